/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/task.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "kernels/draft/draft.h"
#include "kernels/op/op.h"
#include "kernels/rope_attention/rope_attention.h"

enum {
    PROMPT = 5,
    TOKENS = 3,
    SHORT_CONTEXT = 6,
    /* Expected rows: tokens of a context that run one at a time; then come chunks of the smallest prefill plan, from LONG_CONTEXT
     * on of the largest that they fill. */
    SINGLE_STEPS = 128,
    LONG_CONTEXT = 4096,
    PAST = 9,        /* tokens beyond a window or a block */
    MOST_CHUNKS = 3, /* cases of a prefill plan */
};

static void free_drafts(const struct golden_drafts *drafts)
{
    free((void *)drafts->tokens);
    free((void *)drafts->near);
}

void golden_outputs_free(struct golden_outputs *outputs)
{
    free_drafts(&outputs->prompt.drafts);
    free_drafts(&outputs->plans.drafts);
    free((void *)outputs->prompt.prompt); /* the tokens follow */
    free((void *)outputs->prompt.logits);
    free((void *)outputs->plans.tokens);
    free((void *)outputs->plans.logits);
    golden_cases_free(&outputs->plans);
    memset(outputs, 0, sizeof *outputs);
}

double golden_flops(const struct plan *plan)
{
    double flops = 0;
    for (uint32_t i = 0; i < plan->header.launch_count; i++) flops += (double)plan->launches[i].flops;
    return flops;
}

uint64_t golden_draft_logits(const struct plan *plan)
{
    const struct plan_launch *launch = plan->launches + plan->header.launch_count - 1;
    while (launch > plan->launches && launch->op != OP_DRAFT) launch--;
    return plan->operands[launch->first_operand + DRAFT_LOGITS].offset;
}

/* ---- contexts and cases ---- */

/* Tokens spread over the vocabulary, the same for every build of a model. */
static void choose_tokens(const struct manifest *manifest, uint64_t seed, int32_t *tokens, uint32_t count)
{
    uint64_t state = seed;
    for (uint32_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth, MMIX */
        tokens[i] = (int32_t)((state >> 33) % manifest->geometry.vocab_size);
    }
    if (manifest->bos_token >= 0) tokens[0] = (int32_t)manifest->bos_token;
}

/* Longest context. With longrope all steps have the same rotary frequencies: slots keep their first set, STATE_ROPE_SET 0. */
static uint64_t most_context(const struct plan_geometry *geometry)
{
    const uint64_t one_set = geometry->rope_original;
    return one_set && one_set < geometry->max_context ? one_set : geometry->max_context;
}

static bool has_drafts(const struct golden_task *task) { return task->plans[0].step[STEP_DRAFTED].bytes > 0; }

/* Room for the drafts of so many rows, if the engine drafts. */
static bool take_drafts(const struct golden_task *task, uint64_t rows, struct golden_drafts *drafts)
{
    if (!has_drafts(task)) return true;
    drafts->tokens = calloc(rows, sizeof *drafts->tokens);
    drafts->near = calloc(rows * plan_allowed_words(task->manifest->geometry.vocab_size), sizeof *drafts->near);
    return drafts->tokens && drafts->near;
}

static bool choose_prompt(const struct golden_task *task, struct engine_golden *golden)
{
    uint64_t vocab = task->manifest->geometry.vocab_size, context = most_context(&task->manifest->geometry);
    if (context < 2) return true; /* the format wants room for prompt and tokens together */
    golden->prompt_count = context > PROMPT ? PROMPT : (uint32_t)context - 1;
    uint64_t room = context - golden->prompt_count;
    golden->token_count = room > TOKENS ? TOKENS : (uint32_t)room;
    golden->vocab_size = (uint32_t)vocab;
    int32_t *prompt = calloc((size_t)golden->prompt_count + golden->token_count, sizeof *prompt);
    golden->prompt = prompt;
    golden->logits = calloc(golden->token_count * vocab, sizeof *golden->logits);
    if (!prompt || !golden->logits || !take_drafts(task, golden->token_count, &golden->drafts)) return false;
    golden->tokens = prompt + golden->prompt_count;
    choose_tokens(task->manifest, 1, prompt, golden->prompt_count);
    return true;
}

static void raise_to(uint64_t *value, uint64_t least)
{
    if (*value < least) *value = least;
}

/* Tokens of a context beyond what a launch of attention does in another way than with more. */
static bool raise_for_attention(const struct plan *plan, const struct plan_launch *launch, uint64_t *tokens,
                                struct status *status)
{
    int64_t params[PLAN_MAX_PARAMS];
    if (launch->op != OP_ATTENTION && launch->op != OP_ROPE_ATTENTION) return true;
    bool fused = launch->op == OP_ROPE_ATTENTION;
    if (!op_params(plan, launch, fused ? ROPE_ATTENTION_PARAMS - ROPE_ATTENTION_PROBLEM_PARAMS : 0, params, status))
        return false;
    int64_t window = params[fused ? ROPE_ATTENTION_WINDOW : ATTENTION_WINDOW], alone = ATTENTION_BLOCK_TOKENS;
    /* What one split takes without a merge. */
    if (fused)
        alone = params[ROPE_ATTENTION_WARPS] * params[ROPE_ATTENTION_TILE_TOKENS] * params[ROPE_ATTENTION_ALONE_TILES];
    if (window > 0) raise_to(tokens, (uint64_t)window + PAST);
    if (window == 0 || window > alone) raise_to(tokens, (uint64_t)(alone + alone / 2) + PAST);
    return true;
}

static uint32_t part_of_chunk(uint32_t rows) { return rows / 2 + 1; }

/* Length of the long context: a second page, a second chunk of every prefill plan, a passed window, a merged split, as far as
 * max_context and most_tokens allow. */
static bool long_context(const struct golden_task *task, uint32_t *tokens, struct status *status)
{
    const struct plan_geometry *geometry = &task->manifest->geometry;
    uint64_t wanted = 2 * geometry->page_tokens + PAST;
    for (size_t p = 0; p < task->plan_count; p++) {
        const struct plan *plan = &task->plans[p];
        const uint32_t rows = plan->header.rows;
        if (plan->header.kind == PLAN_PREFILL) raise_to(&wanted, (uint64_t)rows + part_of_chunk(rows));
        for (uint32_t i = 0; i < plan->header.launch_count; i++)
            if (!raise_for_attention(plan, &plan->launches[i], &wanted, status)) return false;
    }
    /* A page that is used again. */
    const uint64_t chunk = plan_longest_chunk(task->plans, task->plan_count);
    for (unsigned g = 0; g < plan_page_groups(geometry); g++)
        if (geometry->page_window[g])
            raise_to(&wanted, plan_ring_pages(geometry, g, chunk) * geometry->page_tokens + PAST);
    if (wanted > most_context(geometry)) wanted = most_context(geometry);
    if ((double)wanted > task->most_tokens) wanted = (uint64_t)task->most_tokens;
    *tokens = wanted > 0 ? (uint32_t)wanted : 1;
    return true;
}

enum {
    LONG,
    SHORT,
    PAGED,
    SEQUENCES
}; /* the contexts of the cases; PAGED ends with the first token of a second page */

/* Arrays of the cases while they are chosen: rows in any order, and twice. */
struct draft {
    struct golden_row *rows;
    struct golden_case *cases;
    uint32_t *items;
    uint32_t row_count, case_count, item_count;
};

static void add_prefill(struct draft *draft, const struct plan_header *header, uint32_t first, uint32_t count)
{
    draft->cases[draft->case_count++] = (struct golden_case){.kind = header->kind,
                                                             .rows = header->rows,
                                                             .count = count,
                                                             .first_item = draft->item_count};
    draft->items[draft->item_count++] = draft->row_count;
    draft->rows[draft->row_count++] = (struct golden_row){.sequence = LONG, .position = first + count - 1};
}

/* Whether pages are used again once their tokens have left a window. */
static bool has_windows(const struct plan_geometry *geometry)
{
    bool any = false;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) any = any || geometry->page_window[g];
    return any;
}

/* A full chunk, then a partly filled one with the first as its past. With `last`, a full one that ends the context, too: it begins
 * inside a page, and in groups with a window it is written where earlier tokens were. */
static void add_chunks(struct draft *draft, const struct plan_header *header, uint32_t tokens, bool last)
{
    const uint32_t rows = header->rows, part = part_of_chunk(rows), rest = rows < tokens ? tokens - rows : 0;
    add_prefill(draft, header, 0, rows < tokens ? rows : tokens);
    if (rest > 0)
        add_prefill(draft, header, rows, part < rest ? part : rest);
    else if (tokens > 1)
        add_prefill(draft, header, 0, tokens / 2);
    if (last && tokens / 2 > rows) add_prefill(draft, header, tokens - rows, rows);
}

/* Short contexts in turn, the long one last, of a plan with chunks first: it has the largest. `rows`: of the long, the short and
 * the paged context. */
static void add_batch(struct draft *draft, const struct plan_header *header, uint64_t slots,
                      const uint32_t rows[SEQUENCES])
{
    const uint32_t room = GOLDEN_MOST_ITEMS - draft->item_count, items = golden_most_items(header);
    const uint32_t most = items < slots ? items : (uint32_t)slots, count = most < room ? most : room;
    const uint32_t longest = plan_has_chunks(header->kind) ? 0 : count - 1;
    if (count == 0) return;
    draft->cases[draft->case_count++] = (struct golden_case){.kind = header->kind,
                                                             .rows = header->rows,
                                                             .count = count,
                                                             .first_item = draft->item_count};
    for (uint32_t i = 0; i < count; i++)
        draft->items[draft->item_count++] = rows[i == longest ? LONG : i % 2 ? PAGED : SHORT];
}

static int compare_rows(const void *left, const void *right)
{
    const struct golden_row *a = left, *b = right;
    if (a->sequence != b->sequence) return a->sequence < b->sequence ? -1 : 1;
    return (a->position > b->position) - (a->position < b->position);
}

/* Sorts the rows, drops those that are there twice, and lets the items name the rest. */
static bool settle_rows(struct draft *draft)
{
    struct golden_row *sorted = calloc(draft->row_count, sizeof *sorted);
    if (!sorted) return false;
    memcpy(sorted, draft->rows, draft->row_count * sizeof *sorted);
    qsort(sorted, draft->row_count, sizeof *sorted, compare_rows);
    uint32_t count = 0;
    for (uint32_t r = 0; r < draft->row_count; r++)
        if (count == 0 || compare_rows(&sorted[count - 1], &sorted[r]) != 0) sorted[count++] = sorted[r];
    for (uint32_t i = 0; i < draft->item_count; i++) {
        const struct golden_row *row =
            bsearch(&draft->rows[draft->items[i]], sorted, count, sizeof *sorted, compare_rows);
        draft->items[i] = (uint32_t)(row - sorted);
    }
    free(draft->rows);
    draft->rows = sorted;
    draft->row_count = count;
    return true;
}

static bool choose_cases(const struct golden_task *task, struct golden_cases *cases, struct status *status)
{
    const struct plan_geometry *geometry = &task->manifest->geometry;
    uint32_t lengths[SEQUENCES], ends[SEQUENCES];
    if (!long_context(task, &lengths[LONG], status)) return false;
    lengths[SHORT] = lengths[LONG] < SHORT_CONTEXT ? lengths[LONG] : SHORT_CONTEXT;
    lengths[PAGED] = geometry->page_tokens < lengths[LONG] ? (uint32_t)geometry->page_tokens + 1 : lengths[LONG];
    uint64_t items = MOST_CHUNKS * task->plan_count;
    for (size_t p = 0; p < task->plan_count; p++)
        if (task->plans[p].header.kind != PLAN_PREFILL) items += task->plans[p].header.out_rows;
    struct draft draft = {
        .rows = calloc(MOST_CHUNKS * task->plan_count + SEQUENCES, sizeof *draft.rows),
        .cases = calloc(MOST_CHUNKS * task->plan_count, sizeof *draft.cases),
        .items = calloc(items, sizeof *draft.items),
    };
    struct golden_sequence *sequences = calloc(SEQUENCES, sizeof *sequences);
    bool ok = draft.rows && draft.cases && draft.items && sequences;
    for (uint32_t s = 0; ok && s < SEQUENCES; s++) {
        sequences[s] = (struct golden_sequence){.first_token = cases->token_count, .token_count = lengths[s]};
        cases->token_count += lengths[s];
        ends[s] = draft.row_count;
        draft.rows[draft.row_count++] = (struct golden_row){.sequence = s, .position = lengths[s] - 1};
    }
    /* Prefill first: contexts of decode rows are then made by plans that were compared. */
    for (size_t p = 0; ok && p < task->plan_count; p++)
        if (task->plans[p].header.kind == PLAN_PREFILL)
            add_chunks(&draft, &task->plans[p].header, lengths[LONG], has_windows(geometry));
    for (size_t p = 0; ok && p < task->plan_count; p++)
        if (task->plans[p].header.kind != PLAN_PREFILL)
            add_batch(&draft, &task->plans[p].header, geometry->slots, ends);
    ok = ok && settle_rows(&draft);
    cases->vocab_size = (uint32_t)geometry->vocab_size;
    cases->sequence_count = SEQUENCES;
    cases->sequences = sequences;
    cases->rows = draft.rows;
    cases->row_count = draft.row_count;
    cases->cases = draft.cases;
    cases->case_count = draft.case_count;
    cases->items = draft.items;
    cases->item_count = draft.item_count;
    int32_t *tokens = calloc((size_t)cases->token_count + 1, sizeof *tokens);
    cases->tokens = tokens;
    cases->logits = calloc(cases->row_count * geometry->vocab_size, sizeof *cases->logits);
    if (!ok || !tokens || !cases->logits || !take_drafts(task, cases->row_count, &cases->drafts))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint32_t s = 0; s < SEQUENCES; s++)
        choose_tokens(task->manifest, 2 + s, tokens + sequences[s].first_token, lengths[s]);
    return true;
}

bool golden_choose(struct golden_task *task, struct golden_outputs *outputs, struct status *status)
{
    const struct plan_geometry *geometry = &task->manifest->geometry;
    struct golden_pages *pages = &task->pages;
    memset(outputs, 0, sizeof *outputs);
    if (!choose_cases(task, &outputs->plans, status)) return status_prefix(status, "golden outputs");
    *pages = (struct golden_pages){.geometry = geometry, .chunk = UINT64_MAX};
    pages->table = calloc(1, geometry->state[STATE_PAGE_TABLE].bytes);
    pages->held = calloc(plan_page_groups(geometry) * geometry->slots, sizeof *pages->held);
    if (!choose_prompt(task, &outputs->prompt) || !pages->table || !pages->held)
        return status_fail(status, STATUS_MACHINE, "out of memory while computing golden outputs");
    const struct golden_sequence *sequences = outputs->plans.sequences;
    uint64_t most = sequences[PAGED].token_count;
    raise_to(&most, outputs->prompt.prompt_count + outputs->prompt.token_count);
    pages->count = plan_sequence_pages(geometry, sequences[LONG].token_count, UINT64_MAX) +
                   (geometry->slots - 1) * plan_sequence_pages(geometry, most, UINT64_MAX);
    return true;
}

/* ---- a slot ---- */

static bool take_pages(struct golden_pages *pages, uint32_t slot, uint32_t tokens)
{
    const struct plan_geometry *geometry = pages->geometry;
    uint64_t more = 0;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) {
        const uint64_t held = pages->held[g * geometry->slots + slot];
        const uint64_t wanted = plan_group_pages(geometry, g, tokens, pages->chunk);
        more += wanted > held ? wanted - held : 0;
    }
    if (more > pages->count - pages->used) return false;
    for (unsigned g = 0; more && g < plan_page_groups(geometry); g++) {
        int32_t *row = pages->table + plan_page_row(geometry, g, slot);
        uint32_t *held = &pages->held[g * geometry->slots + slot];
        const uint64_t wanted = plan_group_pages(geometry, g, tokens, pages->chunk);
        while (*held < wanted) row[(*held)++] = (int32_t)pages->used++;
        for (uint64_t i = *held; *held == plan_ring_pages(geometry, g, pages->chunk) && i < geometry->pages_per_slot;
             i++)
            row[i] = row[i - *held];
        pages->is_new = true;
    }
    return true;
}

/* `chunk`: see struct golden_pages. */
static bool drop_pages(struct golden_task *task, uint64_t chunk, struct status *status)
{
    const struct plan_geometry *geometry = task->pages.geometry;
    memset(task->pages.held, 0, plan_page_groups(geometry) * geometry->slots * sizeof *task->pages.held);
    task->pages.used = 0;
    task->pages.chunk = chunk;
    return task->scramble(task->context, status);
}

/* One replay in one slot. With `found`, the last row draws; else the token after it follows the others in memory. */
static bool run_in_slot(struct golden_task *task, size_t plan, enum golden_way way, uint32_t slot,
                        const int32_t *tokens, uint32_t first, uint32_t count, struct golden_found *found,
                        struct status *status)
{
    struct golden_found ignored;
    int32_t *places = calloc(2 * (size_t)count, sizeof *places);
    if (!places) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        places[i] = (int32_t)slot;
        places[count + i] = (int32_t)(first + i);
    }
    const struct golden_step step = {.count = count,
                                     .out_rows = found != NULL,
                                     .tokens = tokens,
                                     .slots = places,
                                     .positions = places + count,
                                     .after = found ? PLAN_NO_TOKEN : tokens[count],
                                     .fixes_routes = true};
    bool ok = task->run(task->context, plan, way, &step, found ? found : &ignored, status);
    free(places);
    return ok;
}

static size_t first_prefill(const struct golden_task *task)
{
    size_t p = 0;
    while (p + 1 < task->plan_count && task->plans[p].header.kind != PLAN_PREFILL) p++;
    return p;
}

/* The smallest prefill plan that takes all of `rest`, else the largest: as the runtime chooses. */
static size_t fitting_prefill(const struct golden_task *task, uint32_t rest)
{
    size_t p = first_prefill(task);
    while (p + 1 < task->plan_count && task->plans[p + 1].header.kind == PLAN_PREFILL &&
           task->plans[p].header.rows < rest)
        p++;
    return p;
}

/* ---- expected logits ---- */

/* Appends a context as plans do that are expected to be right; see SINGLE_STEPS. */
static bool append_expected(struct golden_task *task, enum golden_way way, const int32_t *tokens, uint32_t first,
                            uint32_t end, struct status *status)
{
    const bool single = way != GOLDEN_BY_REFERENCE;
    for (uint32_t count; first < end; first += count) {
        size_t plan = first >= LONG_CONTEXT && single ? fitting_prefill(task, end - first) : first_prefill(task);
        if (single && first < SINGLE_STEPS) plan = 0;
        count = task->plans[plan].header.rows < end - first ? task->plans[plan].header.rows : end - first;
        if (!run_in_slot(task, plan, way, 0, tokens + first, first, count, NULL, status)) return false;
    }
    return true;
}

/* The draft of the row that was just replayed. What arithmetic may make of its logits is `relative_tolerance` off, in two results. */
static bool expect_draft(struct golden_task *task, struct golden_drafts *drafts, uint64_t row,
                         const struct golden_found *found, struct status *status)
{
    const uint64_t vocab = task->manifest->geometry.vocab_size;
    const float *logits;
    float largest = 1.0f;
    if (!drafts->tokens) return true;
    if (!task->draft_logits(task->context, &logits, status)) return false;
    const int32_t drafted = found->drafted[0];
    if (drafted < 0 || (uint64_t)drafted >= vocab)
        return status_fail(status, STATUS_INTERNAL, "drafted token: expected 0 to %" PRIu64 ", found %" PRId32,
                           vocab - 1, drafted);
    ((int32_t *)drafts->tokens)[row] = drafted;
    uint32_t *near = (uint32_t *)drafts->near + row * plan_allowed_words(vocab);
    for (uint64_t i = 0; i < vocab; i++) largest = fmaxf(largest, fabsf(logits[i]));
    const float least = logits[drafted] - 2 * largest * task->relative_tolerance;
    for (uint64_t i = 0; i < vocab; i++)
        if (logits[i] >= least || i == (uint64_t)drafted) near[i / 32] |= 1u << i % 32;
    return true;
}

static bool expect_rows(struct golden_task *task, struct golden_cases *cases, struct status *status)
{
    const uint64_t vocab = cases->vocab_size;
    float *logits = (float *)cases->logits;
    struct golden_row *rows = (struct golden_row *)cases->rows;
    uint32_t done = 0;
    if (!drop_pages(task, UINT64_MAX, status)) return false;
    for (uint32_t r = 0; r < cases->row_count; r++) {
        const int32_t *tokens = golden_tokens(cases, rows[r].sequence);
        const uint32_t position = rows[r].position;
        struct golden_found found;
        if (r == 0 || rows[r - 1].sequence != rows[r].sequence) done = 0;
        if (!take_pages(&task->pages, 0, position + 1))
            return status_fail(status, STATUS_INTERNAL, "golden outputs: too few KV pages");
        if (!append_expected(task, task->expected_way, tokens, done, position, status) ||
            !run_in_slot(task, 0, task->expected_way, 0, tokens + position, position, 1, &found, status) ||
            !expect_draft(task, &cases->drafts, r, &found, status))
            return false;
        rows[r].token = found.drawn[0];
        memcpy(logits + r * vocab, found.logits, vocab * sizeof *logits);
        done = position + 1;
        /* The row that drew comes again (golden.c, forget_drawn), with recurrent state all rows. */
        if (has_drafts(task)) done = task->manifest->geometry.recurrent_bytes ? 0 : position;
        if (task->progress) progress_update(task->progress, r + 1, cases->row_count, NULL);
    }
    return true;
}

static bool expect_prompt(struct golden_task *task, struct engine_golden *golden, struct status *status)
{
    const uint64_t vocab = golden->vocab_size;
    const uint32_t prompt_count = golden->prompt_count;
    const size_t prefill = first_prefill(task);
    const uint32_t chunk = task->plans[prefill].header.rows;
    int32_t *tokens = (int32_t *)golden->tokens;
    float *logits = (float *)golden->logits;
    struct golden_found found;
    if (!drop_pages(task, UINT64_MAX, status)) return false;
    if (!take_pages(&task->pages, 0, prompt_count + golden->token_count))
        return status_fail(status, STATUS_INTERNAL, "golden outputs: too few KV pages");
    for (uint32_t first = 0; first < prompt_count; first += chunk) {
        uint32_t count = prompt_count - first < chunk ? prompt_count - first : chunk;
        bool last = first + count == prompt_count;
        if (!run_in_slot(task, prefill, task->prompt_way, 0, golden->prompt + first, first, count, last ? &found : NULL,
                         status))
            return false;
    }
    for (uint32_t t = 0; t < golden->token_count; t++) {
        tokens[t] = found.drawn[0];
        memcpy(logits + t * vocab, found.logits, vocab * sizeof *logits);
        if (!expect_draft(task, &golden->drafts, t, &found, status)) return false;
        if (t + 1 < golden->token_count &&
            !run_in_slot(task, 0, task->prompt_way, 0, &tokens[t], prompt_count + t, 1, &found, status))
            return false;
    }
    return true;
}

/* A loader refuses golden logits that are not finite, and a model that gives them has nothing to say. */
static bool set_tolerance(const float *logits, uint64_t count, float relative, float *tolerance, struct status *status)
{
    float largest = 1.0f;
    for (uint64_t i = 0; i < count; i++) {
        if (!isfinite(logits[i]))
            return status_fail(status, STATUS_BAD_INPUT,
                               "the model's logits are not finite (NaN or infinity): are the checkpoint's tensors "
                               "damaged, or does it need another --dtype or --kv-dtype?");
        largest = fmaxf(largest, fabsf(logits[i]));
    }
    *tolerance = largest * relative;
    return true;
}

/* ---- the comparison ---- */

struct comparison {
    struct golden_task *task;
    enum golden_way way;
};

/* With pages that are used again, the tokens before `position` may be gone. */
static uint32_t rewind_slot(void *context, uint32_t slot, uint32_t position)
{
    const struct comparison *comparison = context;
    const struct golden_pages *pages = &comparison->task->pages;
    if (pages->geometry->recurrent_bytes) return 0; /* the state is that of the last token */
    for (unsigned g = 0; g < plan_page_groups(pages->geometry); g++)
        if (pages->held[g * pages->geometry->slots + slot] == plan_ring_pages(pages->geometry, g, pages->chunk))
            return 0;
    return position;
}

static bool reserve(void *context, uint32_t slot, uint32_t tokens)
{
    const struct comparison *comparison = context;
    return take_pages(&comparison->task->pages, slot, tokens);
}

static bool append(void *context, uint32_t slot, const int32_t *tokens, uint32_t position, uint32_t count,
                   struct status *status)
{
    struct comparison *comparison = context;
    struct golden_task *task = comparison->task;
    for (uint32_t done = 0, chunk; done < count; done += chunk) {
        size_t plan = fitting_prefill(task, count - done);
        chunk = task->plans[plan].header.rows < count - done ? task->plans[plan].header.rows : count - done;
        if (!run_in_slot(task, plan, GOLDEN_BY_PLAN, slot, tokens + done, position + done, chunk, NULL, status))
            return false;
    }
    return true;
}

static bool run_compared(void *context, size_t plan, const struct golden_step *step, struct golden_found *found,
                         struct status *status)
{
    struct comparison *comparison = context;
    return comparison->task->run(comparison->task->context, plan, comparison->way, step, found, status);
}

static bool compare_way(struct golden_task *task, const struct golden_cases *cases, enum golden_way way,
                        struct status *status)
{
    struct comparison comparison = {.task = task, .way = way};
    const struct golden_machine machine = {.context = &comparison,
                                           .slots = (uint32_t)task->pages.geometry->slots,
                                           .rewind = rewind_slot,
                                           .reserve = reserve,
                                           .append = append,
                                           .run = run_compared};
    struct golden_result *results = calloc(task->plan_count, sizeof *results);
    bool *left_out = calloc(task->plan_count, sizeof *left_out), any = false, differs = false;
    bool ok = (results && left_out) || status_fail(status, STATUS_MACHINE, "out of memory");
    for (size_t p = 0; ok && p < task->plan_count; p++) {
        left_out[p] = way == GOLDEN_BY_LIBRARY_PLAN && !(task->has_library_plan && task->has_library_plan[p]);
        any = any || !left_out[p];
    }
    if (ok && any)
        ok = drop_pages(task, plan_longest_chunk(task->plans, task->plan_count), status) &&
             golden_walk(cases, task->plans, task->plan_count, left_out, &machine, results, &differs, status);
    if (!ok && differs) {
        const struct status found = *status;
        status_fail(status, STATUS_INTERNAL, "%s%s; the engine would be wrong, nothing was written",
                    way == GOLDEN_BY_LIBRARY_PLAN ? "with libraries: " : "", found.message);
    }
    free(results);
    free(left_out);
    return ok;
}

bool golden_compute(struct golden_task *task, struct golden_outputs *outputs, struct status *status)
{
    struct engine_golden *prompt = &outputs->prompt;
    struct golden_cases *plans = &outputs->plans, of_prompt = {0};
    const uint64_t vocab = plans->vocab_size;
    bool ok = expect_rows(task, plans, status) && set_tolerance(plans->logits, plans->row_count * vocab,
                                                                task->relative_tolerance, &plans->tolerance, status);
    if (ok && prompt->token_count > 0)
        ok = expect_prompt(task, prompt, status) &&
             set_tolerance(prompt->logits, prompt->token_count * vocab, task->relative_tolerance, &prompt->tolerance,
                           status) &&
             golden_cases_of_prompt(prompt, task->plans, task->plan_count, &of_prompt, status);
    for (enum golden_way way = GOLDEN_BY_PLAN; ok && way < GOLDEN_WAYS; way++)
        ok = compare_way(task, plans, way, status) &&
             (prompt->token_count == 0 || compare_way(task, &of_prompt, way, status));
    golden_cases_free(&of_prompt);
    return ok || status_prefix(status, "golden outputs");
}

void golden_close(struct golden_task *task)
{
    free(task->pages.table);
    free(task->pages.held);
    memset(&task->pages, 0, sizeof task->pages);
}
