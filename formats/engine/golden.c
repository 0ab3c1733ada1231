/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/engine/golden.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

uint32_t golden_case_items(const struct golden_case *golden_case)
{
    return golden_case->kind == PLAN_PREFILL ? 1 : golden_case->count;
}

uint32_t golden_chunk(const struct golden_cases *cases, const struct golden_case *golden_case, uint32_t item)
{
    if (golden_case->kind == PLAN_PREFILL) return golden_case->count;
    const uint32_t tokens = cases->rows[cases->items[golden_case->first_item + item]].position + 1;
    const uint32_t most =
        plan_has_chunks(golden_case->kind) && item < GOLDEN_MIXED_CHUNKS ? golden_case->rows >> (item + 1) : 1;
    return most < 1 ? 1 : most < tokens ? most : tokens;
}

const int32_t *golden_tokens(const struct golden_cases *cases, uint32_t sequence)
{
    return cases->tokens + cases->sequences[sequence].first_token;
}

uint32_t golden_longest(const struct golden_cases *cases)
{
    uint32_t longest = 0;
    for (uint32_t s = 0; s < cases->sequence_count; s++)
        if (cases->sequences[s].token_count > longest) longest = cases->sequences[s].token_count;
    return longest;
}

const char *golden_plan_name(const struct plan_header *header, char name[GOLDEN_NAME_BYTES])
{
    snprintf(name, GOLDEN_NAME_BYTES, "%s plan of %" PRIu32 " %s%s", plan_kind_name(header->kind), header->rows,
             header->kind == PLAN_PREFILL ? "token" : "row", header->rows == 1 ? "" : "s");
    return name;
}

size_t golden_find_plan(const struct plan *plans, size_t plan_count, uint32_t kind, uint32_t rows)
{
    size_t low = 0, high = plan_count;
    while (low < high) { /* by rising kinds and rows */
        size_t middle = low + (high - low) / 2;
        const struct plan_header *header = &plans[middle].header;
        if (header->kind < kind || (header->kind == kind && header->rows < rows))
            low = middle + 1;
        else
            high = middle;
    }
    return low < plan_count && plans[low].header.kind == kind && plans[low].header.rows == rows ? low : plan_count;
}

uint32_t golden_most_items(const struct plan_header *header)
{
    uint32_t most = header->out_rows;
    if (plan_has_chunks(header->kind) && header->rows >= 4 && most > header->rows / 4 + GOLDEN_MIXED_CHUNKS)
        most = header->rows / 4 + GOLDEN_MIXED_CHUNKS;
    return most < GOLDEN_MOST_ITEMS ? most : GOLDEN_MOST_ITEMS;
}

/* ---- cases of a prompt ---- */

void golden_cases_free(struct golden_cases *cases)
{
    free((void *)cases->sequences);
    free((void *)cases->rows);
    free((void *)cases->cases);
    free((void *)cases->items);
    *cases = (struct golden_cases){0};
}

bool golden_cases_of_prompt(const struct engine_golden *golden, const struct plan *plans, size_t plan_count,
                            struct golden_cases *cases, struct status *status)
{
    uint64_t most_items = 0;
    for (size_t p = 0; p < plan_count; p++) most_items += golden_most_items(&plans[p].header);
    struct golden_sequence *sequence = calloc(1, sizeof *sequence);
    struct golden_row *rows = calloc((size_t)golden->token_count + 1, sizeof *rows);
    struct golden_case *list = calloc(plan_count + 1, sizeof *list);
    uint32_t *items = calloc((size_t)most_items + 1, sizeof *items);
    *cases = (struct golden_cases){
        .vocab_size = golden->vocab_size,
        .tolerance = golden->tolerance,
        .token_count = golden->prompt_count + golden->token_count,
        .sequence_count = 1,
        .row_count = golden->token_count,
        .sequences = sequence,
        .rows = rows,
        .cases = list,
        .items = items,
        .tokens = golden->prompt,
        .logits = golden->logits,
        .drafts = golden->drafts,
    };
    if (!sequence || !rows || !list || !items) {
        golden_cases_free(cases);
        return status_fail(status, STATUS_MACHINE, "out of memory");
    }
    sequence->token_count = cases->token_count;
    for (uint32_t r = 0; r < golden->token_count; r++)
        rows[r] = (struct golden_row){.position = golden->prompt_count - 1 + r, .token = golden->tokens[r]};
    /* Prefill first: contexts of decode rows are then made by plans that were compared. */
    static const enum plan_kind kinds[] = {PLAN_PREFILL, PLAN_DECODE, PLAN_MIXED, PLAN_VERIFY};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t p = 0; p < plan_count && cases->case_count < plan_count; p++) {
            const struct plan_header *header = &plans[p].header;
            if (header->kind != kinds[k]) continue;
            const uint32_t most = golden->prompt_count < header->rows ? golden->prompt_count : header->rows;
            struct golden_case *one = &list[cases->case_count++];
            *one = (struct golden_case){.kind = header->kind,
                                        .rows = header->rows,
                                        .count = kinds[k] == PLAN_PREFILL  ? most
                                                 : kinds[k] == PLAN_VERIFY ? 1 /* slots may be fewer than rows */
                                                                           : golden_most_items(header),
                                        .first_item = cases->item_count};
            for (uint32_t i = 0; i < golden_case_items(one); i++) /* the last row first */
                items[cases->item_count++] =
                    kinds[k] == PLAN_PREFILL ? 0 : golden->token_count - 1 - i % golden->token_count;
        }
    return true;
}

void golden_out_rows(const struct golden_step *step, int32_t *out_rows)
{
    for (uint32_t row = 0, found = 0; found < step->out_rows && row < step->count; row++)
        if (row + 1 == step->count || step->slots[row + 1] != step->slots[row]) out_rows[found++] = (int32_t)row;
}

void golden_following(const struct golden_step *step, int32_t *following)
{
    int32_t ended = 0;
    for (uint32_t row = 0; row < step->count; row++) {
        if (row + 1 < step->count && step->slots[row + 1] == step->slots[row])
            following[row] = step->tokens[row + 1];
        else
            following[row] = step->out_rows ? ~ended++ : step->after;
    }
}

/* ---- walk ---- */

/* What a slot of the machine holds. */
struct held {
    uint32_t sequence, position; /* position 0: nothing */
    bool taken;                  /* by a row of this case */
};

struct walk {
    const struct golden_cases *cases;
    const struct golden_machine *machine;
    struct held *held;                       /* [slots] */
    uint32_t slots, used;                    /* of the machine; those that were ever reserved */
    int32_t *tokens, *row_slots, *positions; /* [largest plan] of a step */
    uint32_t *expected;                      /* [largest plan]: row of each out row */
    bool *differs;
};

static bool walk_open(struct walk *walk, struct status *status)
{
    uint32_t most = 1, slots = 1;
    const struct golden_cases *cases = walk->cases;
    for (uint32_t c = 0; c < cases->case_count; c++) {
        if (cases->cases[c].rows > most) most = cases->cases[c].rows;
        if (golden_case_items(&cases->cases[c]) > slots) slots = golden_case_items(&cases->cases[c]);
    }
    walk->slots = slots < walk->machine->slots ? slots : walk->machine->slots;
    walk->held = calloc((size_t)walk->slots + 1, sizeof *walk->held);
    walk->tokens = calloc(most, sizeof *walk->tokens);
    walk->row_slots = calloc(most, sizeof *walk->row_slots);
    walk->positions = calloc(most, sizeof *walk->positions);
    walk->expected = calloc(most, sizeof *walk->expected);
    return (walk->held && walk->tokens && walk->row_slots && walk->positions && walk->expected) ||
           status_fail(status, STATUS_MACHINE, "out of memory");
}

static void walk_close(struct walk *walk)
{
    free(walk->held);
    free(walk->tokens);
    free(walk->row_slots);
    free(walk->positions);
    free(walk->expected);
}

/* How well a slot serves a sequence up to `first`: 0 not at all, 1 it holds another sequence, 2 nothing, 3 less, 4 enough. */
static int fitness(const struct held *held, uint32_t sequence, uint32_t first)
{
    if (held->taken) return 0;
    if (held->position == 0) return 2;
    if (held->sequence != sequence) return 1;
    return held->position < first ? 3 : 4;
}

/* Finds a slot with room for `tokens` tokens; `slots` of the walk: there is none. */
static uint32_t find_slot(struct walk *walk, uint32_t sequence, uint32_t first, uint32_t tokens)
{
    for (int least = 4; least > 0; least--) {
        uint32_t end = walk->used < walk->slots ? walk->used + 1 : walk->slots;
        for (uint32_t s = 0; s < end; s++) {
            struct held *held = &walk->held[s];
            if (fitness(held, sequence, first) != least) continue;
            if (!walk->machine->reserve(walk->machine->context, s, tokens)) break; /* others need as much */
            if (s == walk->used) walk->used++;
            return s;
        }
    }
    return walk->slots;
}

/* Takes a slot that holds tokens [0, first) of the sequence and has room for one step more. *slot is `slots`: no room. */
static bool take_slot(struct walk *walk, uint32_t sequence, uint32_t first, uint32_t tokens, uint32_t *slot,
                      struct status *status)
{
    const struct golden_machine *machine = walk->machine;
    *slot = find_slot(walk, sequence, first, tokens);
    if (*slot == walk->slots) return true;
    struct held *held = &walk->held[*slot];
    uint32_t kept = held->sequence == sequence ? held->position : 0;
    if (kept > first) kept = first;
    if (kept < held->position) kept = machine->rewind(machine->context, *slot, kept);
    /* After a rewind the room is still there, or can be had again. */
    if (!machine->reserve(machine->context, *slot, tokens))
        return status_fail(status, STATUS_INTERNAL, "slot %" PRIu32 " has lost its room", *slot);
    *held = (struct held){.sequence = sequence, .position = first, .taken = true};
    return kept == first || machine->append(machine->context, *slot, golden_tokens(walk->cases, sequence) + kept, kept,
                                            first - kept, status);
}

static bool is_near(const struct golden_cases *cases, uint32_t row, int32_t token)
{
    const uint32_t *near = cases->drafts.near + row * plan_allowed_words(cases->vocab_size);
    return token >= 0 && (uint32_t)token < cases->vocab_size && near[token / 32] >> token % 32 & 1;
}

/* Compares one out row. */
static bool compare(struct walk *walk, uint32_t out_row, uint32_t row, const struct golden_found *step,
                    struct golden_result *result, struct status *status)
{
    const struct golden_cases *cases = walk->cases;
    const struct golden_row *golden = &cases->rows[row];
    const float *expected = cases->logits + (uint64_t)row * cases->vocab_size,
                *found = step->logits + (uint64_t)out_row * cases->vocab_size;
    const int32_t token = step->drawn[out_row];
    bool tie = token != golden->token;
    uint32_t worst = 0;
    float largest = 0;
    for (uint32_t i = 0; i < cases->vocab_size; i++) {
        float error = fabsf(found[i] - expected[i]);
        if (error <= largest) continue; /* a NaN stays the worst */
        largest = error;
        worst = i;
        if (isnan(error)) break;
    }
    result->rows++;
    if (golden->position >= result->longest) result->longest = golden->position + 1;
    if (!(largest <= result->largest_error)) result->largest_error = largest;
    *walk->differs = true;
    if (!(largest <= cases->tolerance))
        return status_fail(status, token == PLAN_NO_TOKEN ? STATUS_NOT_FINITE : STATUS_INTERNAL,
                           "row %" PRIu32 " (position %" PRIu32 " of sequence %" PRIu32 "): logit %" PRIu32
                           ": expected %.6g, found %.6g, tolerance %g",
                           out_row, golden->position, golden->sequence, worst, (double)expected[worst],
                           (double)found[worst], (double)cases->tolerance);
    if (token < 0 || (uint32_t)token >= cases->vocab_size ||
        (token != golden->token && expected[golden->token] - expected[token] > 2 * cases->tolerance))
        /* Both logits may be off by the tolerance: only a larger gap is a failure. */
        return status_fail(status, STATUS_INTERNAL,
                           "row %" PRIu32 " (position %" PRIu32 " of sequence %" PRIu32 "): token: expected id %" PRId32
                           ", found %" PRId32,
                           out_row, golden->position, golden->sequence, golden->token, token);
    /* What follows another token than the expected one is drafted from that. */
    if (cases->drafts.tokens && !tie) {
        const int32_t drafted = step->drafted[out_row];
        tie = drafted != cases->drafts.tokens[row];
        if (!is_near(cases, row, drafted))
            return status_fail(status, STATUS_INTERNAL,
                               "row %" PRIu32 " (position %" PRIu32 " of sequence %" PRIu32
                               "): drafted token: expected id %" PRId32 ", found %" PRId32,
                               out_row, golden->position, golden->sequence, cases->drafts.tokens[row], drafted);
    }
    *walk->differs = false;
    result->ties += tie;
    return true;
}

/* Puts a decode row or a chunk's last row at place `place` of the step, if there is room. */
static bool add_row(struct walk *walk, uint32_t row, uint32_t first, uint32_t place, struct golden_result *result,
                    bool *added, struct status *status)
{
    uint32_t slot;
    const struct golden_row *golden = &walk->cases->rows[row];
    if (!take_slot(walk, golden->sequence, first, golden->position + 1, &slot, status)) return false;
    *added = slot < walk->slots;
    result->left_out += !*added;
    if (!*added) return true;
    walk->expected[place] = row;
    walk->row_slots[place] = (int32_t)slot;
    walk->positions[place] = (int32_t)golden->position;
    walk->tokens[place] = golden_tokens(walk->cases, golden->sequence)[golden->position];
    return true;
}

/* The rows of a decode step in the case's order. The longest context takes its pages first. */
static bool fill_decode(struct walk *walk, const struct golden_case *one, struct golden_step *step,
                        struct golden_result *result, struct status *status)
{
    const uint32_t *items = walk->cases->items + one->first_item;
    uint32_t longest = 0;
    bool added;
    for (uint32_t i = 1; i < one->count; i++)
        if (walk->cases->rows[items[i]].position > walk->cases->rows[items[longest]].position) longest = i;
    const uint32_t first = walk->cases->rows[items[longest]].position;
    if (!add_row(walk, items[longest], first, one->count - 1, result, &added, status)) return false;
    /* Kept beside the step until its turn. */
    const int32_t slot = walk->row_slots[one->count - 1];
    const bool has_longest = added;
    uint32_t count = 0;
    for (uint32_t i = 0; i < one->count; i++) {
        const struct golden_row *row = &walk->cases->rows[items[i]];
        if (i == longest) {
            if (!has_longest) continue;
            walk->expected[count] = items[i];
            walk->row_slots[count] = slot;
            walk->positions[count] = (int32_t)row->position;
            walk->tokens[count] = golden_tokens(walk->cases, row->sequence)[row->position];
            count++;
            continue;
        }
        if (!add_row(walk, items[i], row->position, count, result, &added, status)) return false;
        count += added;
    }
    step->count = step->out_rows = count;
    return true;
}

/* The chunks of a prefill or a mixed step in the case's order. */
static bool fill_chunks(struct walk *walk, const struct golden_case *one, struct golden_step *step,
                        struct golden_result *result, struct status *status)
{
    uint32_t count = 0, out_rows = 0;
    for (uint32_t item = 0; item < golden_case_items(one); item++) {
        const uint32_t row = walk->cases->items[one->first_item + item];
        const struct golden_row *golden = &walk->cases->rows[row];
        const uint32_t chunk = golden_chunk(walk->cases, one, item), first = golden->position + 1 - chunk;
        bool added;
        if (!add_row(walk, row, first, count, result, &added, status)) return false;
        if (!added) continue;
        const int32_t slot = walk->row_slots[count];
        walk->expected[out_rows++] = row;
        for (uint32_t i = 0; i < chunk; i++, count++) {
            walk->row_slots[count] = slot;
            walk->positions[count] = (int32_t)(first + i);
            walk->tokens[count] = golden_tokens(walk->cases, golden->sequence)[first + i];
        }
    }
    step->count = count;
    step->out_rows = out_rows;
    return true;
}

/* What an engine that drafts keeps of a row that drew depends on the drawn token, which need not be the sequence's next one: a slot keeps the
 * rows before it. */
static void forget_drawn(struct walk *walk, const struct golden_step *step)
{
    for (uint32_t row = 0; row < step->count; row++) {
        const uint32_t slot = (uint32_t)step->slots[row];
        if (row + 1 < step->count && step->slots[row + 1] == step->slots[row]) continue;
        walk->held[slot].position = walk->machine->rewind(walk->machine->context, slot, (uint32_t)step->positions[row]);
    }
}

static bool run_case(struct walk *walk, const struct golden_case *one, size_t plan, struct golden_result *result,
                     struct status *status)
{
    const struct golden_machine *machine = walk->machine;
    struct golden_step step = {.tokens = walk->tokens,
                               .slots = walk->row_slots,
                               .positions = walk->positions,
                               .fixes_routes = true};
    struct golden_found found = {0};
    for (uint32_t s = 0; s < walk->used; s++) walk->held[s].taken = false;
    if (!(one->kind == PLAN_DECODE ? fill_decode : fill_chunks)(walk, one, &step, result, status)) return false;
    if (step.count == 0) return true;
    if (!machine->run(machine->context, plan, &step, &found, status)) return false;
    for (uint32_t i = 0; i < step.count; i++)
        walk->held[walk->row_slots[i]].position = (uint32_t)walk->positions[i] + 1;
    for (uint32_t i = 0; i < step.out_rows; i++)
        if (!compare(walk, i, walk->expected[i], &found, result, status)) return false;
    if (walk->cases->drafts.tokens) forget_drawn(walk, &step);
    return true;
}

bool golden_walk(const struct golden_cases *cases, const struct plan *plans, size_t plan_count, const bool *left_out,
                 const struct golden_machine *machine, struct golden_result *results, bool *differs,
                 struct status *status)
{
    struct walk walk = {.cases = cases, .machine = machine, .differs = differs};
    char name[GOLDEN_NAME_BYTES];
    *differs = false;
    bool ok = walk_open(&walk, status);
    for (uint32_t c = 0; ok && c < cases->case_count; c++) {
        const struct golden_case *one = &cases->cases[c];
        size_t plan = golden_find_plan(plans, plan_count, one->kind, one->rows);
        if (plan == plan_count || (left_out && left_out[plan])) continue;
        ok = run_case(&walk, one, plan, &results[plan], status) ||
             status_prefix(status, "%s", golden_plan_name(&plans[plan].header, name));
    }
    for (size_t p = 0; ok && p < plan_count; p++)
        if (results[p].left_out > 0 && results[p].rows == 0)
            ok = status_fail(status, STATUS_FULL, "%s: no slot or too few KV pages are free",
                             golden_plan_name(&plans[p].header, name));
    walk_close(&walk);
    return ok;
}
