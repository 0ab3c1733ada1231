/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts of a second engine (struct eng_session_options.draft). It has a session of its own, whose slot i computes the tokens of the sequence
 * in slot i, and which runs in the thread that steps the session.
 *
 * The history of its slot tells which tokens are in the KV pages there. Before it drafts, the beginning that these tokens and those of the sequence have
 * in common is kept, and the rest of the sequence is computed. So it need not be told of drafts that were rejected, nor of sequences that
 * end, are set aside, forked or restored, and a text that begins as the one before it in the slot is computed from there on. A long text is
 * computed in parts, one before each step, so that the tokens of other sequences do not wait for all of it.
 *
 * A sequence for which its first tokens are mostly wrong is left alone for a while, and longer after each failure. Drafts depend on
 * tokens alone. */
#include <string.h>

#include "runtime/session/session.h"

/* Tokens without drafts after a failure, and at most after many. */
enum { FIRST_PAUSE = 16, LONGEST_PAUSE = 512 };
/* Rows of known tokens that are computed in one step, whatever prompt_step and step_ms say, and at most of a sequence together with its first
 * drafted token. */
enum { LEAST_ROWS = 32 };

void draft_engine_begin(struct eng_sequence *sequence)
{
    sequence->engine_from = 0;
    sequence->engine_pause = FIRST_PAUSE;
}

static void leave_alone(struct eng_sequence *sequence)
{
    sequence->engine_from = sequence->count + sequence->engine_pause;
    if (sequence->engine_pause < LONGEST_PAUSE) sequence->engine_pause *= 2;
}

void draft_engine_learn(struct eng_sequence *sequence, bool is_hit)
{
    sequence->engine_hits = drafts_weigh(sequence->engine_hits, is_hit);
    if (is_hit)
        sequence->engine_pause = FIRST_PAUSE;
    else if (!drafts_count(sequence->engine_hits, sequence->session->draft_cost, 1))
        leave_alone(sequence);
}

uint32_t draft_engine_wanted(const struct eng_sequence *sequence, uint32_t most)
{
    const struct eng_session *session = sequence->session;
    const uint32_t count = sequence->count;
    if (!session->draft || !most || count < sequence->engine_from) return 0;
    const struct plan_geometry *geometry = session->draft->geometry;
    /* Until its context ends or its rotary frequencies change. The last drafted token is not computed. */
    uint64_t end = geometry->max_context;
    if (geometry->rope_original >= count && geometry->rope_original < end) end = geometry->rope_original;
    if ((uint64_t)sequence->slot >= geometry->slots || count > end) return 0;
    if (end + 1 - count < most) most = (uint32_t)(end + 1 - count);
    const uint32_t wanted = drafts_count(sequence->engine_hits, session->draft_cost, most);
    if (wanted) return wanted;
    /* After a pause one is tried, unless it takes too long even if it is right. */
    return drafts_count(1, session->draft_cost, 1);
}

/* ---- tokens that are known ---- */

static bool is_running_in(const struct eng_session *session, int32_t slot)
{
    for (uint32_t i = 0; i < session->active_count; i++)
        if (session->active[i]->slot == slot) return true;
    return false;
}

/* Takes pages for `tokens` tokens. Slots in which no sequence runs give theirs up. */
static bool reserve(struct eng_session *session, int32_t slot, uint64_t tokens)
{
    struct eng_session *draft = session->draft;
    const int32_t slots = (int32_t)draft->geometry->slots;
    for (int32_t other = 0;; other++) {
        if (slots_reserve(draft, slot, tokens)) return true;
        while (other < slots && (!slots_pages_held(draft, other) || is_running_in(session, other))) other++;
        if (other >= slots) return false;
        slots_empty(draft, other);
    }
}

/* Keeps the tokens of the slot that are the sequence's, but for its last one. */
static void keep_common(struct eng_session *draft, const struct eng_sequence *sequence)
{
    const struct session_slot *own = &draft->slots[sequence->slot];
    uint32_t most = sequence->count - 1, common = 0;
    if (own->position < most) most = own->position;
    while (common < most && own->history[common] == sequence->tokens[common]) common++;
    if (common < own->position) slots_shorten(draft, sequence->slot, common);
}

static uint32_t rest_of(const struct eng_session *draft, const struct eng_sequence *sequence)
{
    return sequence->count - draft->slots[sequence->slot].position;
}

static bool compute(struct eng_session *draft, const struct eng_sequence *sequence, uint32_t rows, size_t plan,
                    struct status *status)
{
    struct session_slot *own = &draft->slots[sequence->slot];
    const int32_t *tokens = sequence->tokens + own->position;
    memcpy(own->history + own->position, tokens, rows * sizeof *tokens);
    const struct replay_part part = {.slot = sequence->slot,
                                     .tokens = tokens,
                                     .count = rows,
                                     .following = tokens[rows]};
    return replay_prefill(draft, &part, plan, NULL, status);
}

/* Rows of known tokens that a step computes for all sequences. */
static uint32_t budget_of(const struct eng_session *session)
{
    uint32_t rows = (uint32_t)session->draft->chunk;
    if (session->step_ms) rows = LEAST_ROWS; /* how long they take is not known */
    if (session->prompt_step && session->prompt_step < rows) rows = session->prompt_step;
    return rows > LEAST_ROWS ? rows : LEAST_ROWS;
}

/* Computes a part of the sequence's tokens, at most *budget of them, which are taken from it. *is_ready: so few are left that they fit into one
 * chunk, and there are pages for `drafted` more. */
static bool catch_up(struct eng_session *session, struct eng_sequence *sequence, uint32_t drafted, uint32_t *budget,
                     bool *is_ready, struct status *status)
{
    struct eng_session *draft = session->draft;
    /* The last drafted token is not computed. */
    const uint64_t total = (uint64_t)sequence->count + drafted - 1;
    const uint32_t last = LEAST_ROWS < draft->chunk ? LEAST_ROWS : (uint32_t)draft->chunk;
    *is_ready = false;
    slots_switch_rope(draft, sequence->slot, total);
    keep_common(draft, sequence);
    if (!reserve(session, sequence->slot, total)) {
        leave_alone(sequence);
        return true;
    }
    while (*budget && rest_of(draft, sequence) > last) {
        const uint32_t rest = rest_of(draft, sequence) - 1;
        size_t plan;
        const uint32_t rows = replay_chunk(draft, rest < *budget ? rest : *budget, &plan);
        if (!compute(draft, sequence, rows, plan, status)) return false;
        *budget -= rows;
    }
    *is_ready = rest_of(draft, sequence) <= last;
    return true;
}

/* ---- tokens that are drafted ---- */

static int32_t *place_of(const struct eng_sequence *sequence, uint32_t round)
{
    return sequence->tokens + sequence->count + round;
}

/* The sequences of session->parts [count] that get a draft's token number `round`, as parts of the draft engine. *rows: tokens that are computed for it. */
static uint32_t gather(struct eng_session *session, uint32_t count, uint32_t round, uint32_t *rows)
{
    struct eng_session *draft = session->draft;
    uint32_t members = 0;
    *rows = 0;
    for (uint32_t p = 0; p < count; p++) {
        struct eng_sequence *sequence = session->part_sequence[p];
        if (!session->parts[p].of_engine || session->parts[p].count <= 1 + round) continue;
        struct session_slot *own = &draft->slots[sequence->slot];
        const uint32_t end = sequence->count + round;
        struct replay_part *part = &draft->parts[members];
        *part = (struct replay_part){.slot = sequence->slot,
                                     .tokens = sequence->tokens + own->position,
                                     .count = end - own->position,
                                     .draws = true};
        memcpy(own->history + own->position, part->tokens, part->count * sizeof *part->tokens);
        draft->part_sequence[members++] = sequence;
        *rows += part->count;
    }
    return members;
}

static bool draw_by_decode(struct eng_session *draft, uint32_t members, uint32_t round, struct status *status)
{
    struct session_plan *plan = replay_decode_plan(draft, members);
    for (uint32_t i = 0; i < members; i++) {
        plan->slots[i] = draft->parts[i].slot;
        plan->tokens[i] = draft->parts[i].tokens[0];
    }
    if (!replay_submit_decode(draft, plan, members, status)) return false;
    const int32_t *drawn = replay_wait(draft, members, status);
    for (uint32_t i = 0; drawn && i < members; i++) {
        replay_accept(draft, draft->parts[i].slot, drawn[i]);
        *place_of(draft->part_sequence[i], round) = drawn[i];
    }
    return drawn != NULL;
}

/* Computes the members' tokens, in one step if there is a plan for that, and puts a token after each. */
static bool draw(struct eng_session *draft, uint32_t members, uint32_t rows, uint32_t round, struct status *status)
{
    if (rows == members) return draw_by_decode(draft, members, round, status);
    struct session_plan *mixed = members > 1 ? replay_mixed_plan(draft, rows, members) : NULL;
    if (mixed && mixed->rows >= rows && mixed->out_rows >= members) {
        const int32_t *drawn = replay_mixed(draft, mixed, draft->parts, members, status);
        for (uint32_t i = 0; drawn && i < members; i++) *place_of(draft->part_sequence[i], round) = drawn[i];
        return drawn != NULL;
    }
    for (uint32_t i = 0; i < members; i++) {
        const struct replay_part *part = &draft->parts[i];
        size_t plan;
        replay_chunk(draft, part->count, &plan); /* all of it */
        if (!replay_prefill(draft, part, plan, place_of(draft->part_sequence[i], round), status)) return false;
    }
    return true;
}

bool draft_engine_draw(struct eng_session *session, uint32_t count, struct status *status)
{
    struct eng_session *draft = session->draft;
    uint32_t rows, members, budget = budget_of(session);
    while (slots_take(draft, SLOT_RAW) != SESSION_NO_SLOT) {} /* all of them, for good */
    for (uint32_t p = 0; p < count; p++) {
        struct replay_part *part = &session->parts[p];
        if (!part->of_engine) continue;
        if (!catch_up(session, session->part_sequence[p], part->count - 1, &budget, &part->of_engine, status))
            return status_prefix(status, "draft engine");
        if (!part->of_engine) part->count = 1;
    }
    for (uint32_t round = 0; (members = gather(session, count, round, &rows)) > 0; round++) {
        if (!draw(draft, members, rows, round, status)) return status_prefix(status, "draft engine");
        for (uint32_t p = 0; p < count; p++) {
            struct replay_part *part = &session->parts[p];
            struct eng_sequence *sequence = session->part_sequence[p];
            if (!part->of_engine || part->count <= 1 + round || *place_of(sequence, round) != PLAN_NO_TOKEN) continue;
            /* Logits of the sequence's own tokens that are not finite will not become so. */
            if (round == 0) sequence->engine_from = UINT32_MAX;
            part->count = 1 + round;
            part->of_engine = round > 0;
        }
    }
    return true;
}
