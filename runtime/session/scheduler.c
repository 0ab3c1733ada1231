/* SPDX-License-Identifier: Apache-2.0 */
/* eng_step: decides which plan runs next, with which sequences.
 *
 * Mixed steps. While prompts wait, one step computes the next token of every sequence that decodes and a part of each prompt, and reads
 * the weights once for all of them. prompt_step and step_ms bound the parts. The oldest prompt has half of their rows at least and the
 * others the rest in equal parts, so that none waits for all of a long one. A prompt alone is computed by prefill plans. With an engine
 * without mixed plans, or too small ones, prefill steps of one prompt and decode steps take turns.
 *
 * Speculation. With session->speculate, a decode step of few sequences becomes a verification step if there is a draft for one of them
 * (drafts.c): its rows are the last token of each sequence and the drafted tokens after it, and a token is drawn after each row with the
 * random number that a decode step would have used there. The drawn tokens are appended up to the first one that differs from the draft, so
 * that they are those of decode steps, whatever was drafted. Keys and values of the tokens after it are written over later. Recurrent state has gone on
 * with them, so it becomes again what it was before the step, and the sequence returns to the state PREFILL: the next step computes the tokens that
 * were appended as it computes the end of a prompt, and draws the next one, in the time of about a decode step. With a draft
 * engine (draft_engine.c) sequences whose own text has no likely draft are drafted by that, in the same call before the step. An engine that
 * predicts further tokens has given its draft with the token that it drew last.
 *
 * Rows of prompts. A prompt whose log-probabilities or mean of hidden states are asked for (prompt_rows.c) is computed by steps with logits at
 * each row: verification plans, whose rows are tokens of it, or decode plans with a token of each such prompt. They and the steps of other
 * sequences take turns.
 *
 * Lookahead. If the backend supports it, and while the same sequences continue to decode, the next step is queued
 * before the tokens of the current one are waited for, so that the device never waits for the host. Only stop tokens
 * are not foreseen: the row of a sequence that has ended computes one token that is discarded, in the sequence's own
 * pages, and its effect on the sampler is undone. Nothing else is submitted before such a step has been waited for.
 *
 * The tokens that a sequence with a grammar, or whose caller sets them, may draw next are known only after its last one. The next step is then
 * queued up to its sampler. The sampler is queued when the grammars have followed the tokens, while the step's layers are computed; where callers set
 * the tokens, by the next call. Where plans cannot be divided nothing is queued ahead for such sequences.
 *
 * Longrope. A sequence that grows past the length for which its rotary frequencies hold returns to the state PREFILL with
 * all of its tokens (sequence_append); the last chunk draws the token that the decode step would have drawn. */
#include <string.h>
#include <time.h>

#include "runtime/session/session.h"

/* Whether its next step is one of its prompt's chunks. */
static bool takes_chunks(const struct eng_sequence *sequence)
{
    return sequence->state == ENG_STATE_PREFILL && !prompt_rows_due(sequence);
}

static struct eng_sequence *oldest_in_prefill(const struct eng_session *session)
{
    for (uint32_t i = 0; i < session->active_count; i++)
        if (takes_chunks(session->active[i])) return session->active[i];
    return NULL;
}

static uint32_t decoding_count(const struct eng_session *session)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < session->active_count; i++) count += session->active[i]->state == ENG_STATE_DECODE;
    return count;
}

/* Sequences with rows that are to be read next. */
static uint32_t reading_count(const struct eng_session *session)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < session->active_count; i++) count += prompt_rows_due(session->active[i]);
    return count;
}

/* Fetches the logits of a row if they are requested or cost nothing, and its hidden state if that is requested. */
static bool row_logits(struct eng_sequence *sequence, uint32_t row, const float **logits, struct status *status)
{
    *logits = NULL;
    sequence->hidden = NULL;
    if (sequence->flags & ENG_SEQUENCE_HIDDEN && !(sequence->hidden = replay_hidden(sequence->session, row, 1, status)))
        return false;
    if (sequence->flags & ENG_SEQUENCE_HIDDEN_MEAN) sequence->hidden = prompt_rows_mean(sequence, sequence->hidden);
    if (!(sequence->flags & ENG_SEQUENCE_LOGITS) && !sequence->session->backend->type->host_logits) return true;
    *logits = replay_logits(sequence->session, row, 1, status);
    return *logits != NULL;
}

/* Appends what the row of the step waited for last has drawn. */
static void append(struct eng_sequence *sequence, int32_t token, uint32_t row, const float *logits)
{
    const int32_t *drafted = sequence->session->backend->drafted;
    sequence_append(sequence, token, logits);
    if (drafted && token != PLAN_NO_TOKEN) drafts_predicted(sequence, drafted[row]);
}

/* ---- rows of prompts in a step ---- */

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* How many of `rows` rows of prompts a step computes while sequences decode. */
static uint32_t prompt_rows(const struct eng_session *session, uint32_t rows)
{
    enum { LEAST_IN_TIME = 8 };
    const double in_time = session->prompt_rows > LEAST_IN_TIME ? session->prompt_rows : LEAST_IN_TIME;
    if (session->step_ms && rows > in_time) rows = (uint32_t)in_time;
    return session->prompt_step && rows > session->prompt_step ? session->prompt_step : rows;
}

/* Learns from a step with so many rows of prompts how many have time, from few rows on. Its other rows take time, too, so the estimate approaches the
 * right number in several steps. */
static void note_time(struct eng_session *session, uint32_t rows, double ms)
{
    const double budget_ms = session->step_ms, least_ms = budget_ms / 2; /* at most twice as many as before */
    const double found = rows * budget_ms / (ms > least_ms ? ms : least_ms);
    /* A step that had few rows to compute says only that more of them have time. */
    if (ms > budget_ms ? found < session->prompt_rows : found > session->prompt_rows) session->prompt_rows = found;
    if (session->prompt_rows > (double)session->chunk) session->prompt_rows = (double)session->chunk;
    if (session->prompt_rows < 1) session->prompt_rows = 1;
}

/* ---- prefill and decode steps ---- */

static bool step_prefill(struct eng_sequence *sequence, uint32_t chunk, size_t plan, struct status *status)
{
    struct eng_session *session = sequence->session;
    bool last = sequence->computed + chunk == sequence->count;
    int32_t drawn = 0;
    const float *logits = NULL;
    const struct replay_part part = {.slot = sequence->slot,
                                     .tokens = sequence->tokens + sequence->computed,
                                     .count = chunk,
                                     .draws = last,
                                     .following = last ? PLAN_NO_TOKEN : sequence->tokens[sequence->computed + chunk]};
    if (!replay_prefill(session, &part, plan, &drawn, status) || (last && !row_logits(sequence, 0, &logits, status)))
        return false;
    sequence_computed(sequence, chunk);
    if (last) append(sequence, drawn, 0, logits);
    return true;
}

/* Pages for the next token of every sequence that decodes, the oldest first. Returns how many are left. */
static uint32_t reserve_decode(struct eng_session *session)
{
    for (uint32_t i = 0; i < session->active_count; i++) {
        struct eng_sequence *sequence = session->active[i];
        if (sequence->state == ENG_STATE_DECODE) sequence_reserve(sequence, (uint64_t)sequence->computed + 1);
    }
    for (uint32_t i = 0; i < session->active_count; i++)
        if (session->active[i]->state == ENG_STATE_DECODE) sequence_reserve_ahead(session->active[i]);
    return decoding_count(session);
}

/* Submits a step for all sequences that decode. */
static bool submit_decode(struct eng_session *session, uint32_t count, struct status *status)
{
    struct session_plan *plan = replay_decode_plan(session, count);
    struct session_flight *flight = &session->flights[session->flight_count];
    flight->plan = plan;
    flight->rows = 0;
    flight->waits = false;
    for (uint32_t i = 0; i < session->active_count; i++) {
        struct eng_sequence *sequence = session->active[i];
        if (sequence->state != ENG_STATE_DECODE) continue;
        plan->slots[flight->rows] = flight->slots[flight->rows] = sequence->slot;
        plan->tokens[flight->rows] = sequence->tokens[sequence->computed];
        flight->sequences[flight->rows++] = sequence;
    }
    session->flight_count++;
    return replay_submit_decode(session, plan, count, status);
}

/* Whether steps of so many sequences are verified, if there are drafts. With recurrent state a sequence whose draft was wrong computes tokens again
 * next, for which all others, also those that read prompts, would wait without mixed plans. */
static bool speculates(const struct eng_session *session, uint32_t decoding)
{
    return session->speculate && decoding < replay_verify_plan(session, UINT32_MAX)->rows &&
           (!session->geometry->recurrent_bytes || session->active_count == 1 || replay_mixed_plan(session, 1, 1));
}

/* Whether a verification step may be better than one that is queued before the next token of the sequence is known. `decoding`: sequences. */
static bool may_draft(struct eng_sequence *sequence, uint32_t decoding)
{
    const struct eng_session *session = sequence->session;
    if (!speculates(session, decoding)) return false;
    const uint32_t most = sequence_most_drafted(sequence) > 0;
    return drafts_propose(sequence, most) || draft_engine_wanted(sequence, most);
}

/* Whether the step in flight will be followed by a step of the same rows, unless a stop token ends a sequence. *waits: what that may draw
 * depends on the tokens of this one. */
static bool may_look_ahead(const struct eng_session *session, bool *waits)
{
    const struct session_flight *flight = &session->flights[0];
    *waits = false;
    if (!session->backend->type->lookahead || session->active_count != flight->rows || sequence_can_admit(session))
        return false;
    for (uint32_t row = 0; row < flight->rows; row++) {
        const struct eng_sequence *sequence = flight->sequences[row];
        if (!sequence || sequence_ends_next(sequence) || sequence_switches_next(sequence) ||
            (sequence->flags & (ENG_SEQUENCE_LOGITS | ENG_SEQUENCE_HIDDEN)) ||
            slots_room(session, sequence->slot) < (uint64_t)sequence->computed + 2 ||
            may_draft(flight->sequences[row], flight->rows))
            return false;
        *waits |= sequence->grammar || sequence->flags & ENG_SEQUENCE_ALLOWED;
    }
    return !*waits || replay_splits(session, flight->plan);
}

static bool submit_ahead(struct eng_session *session, bool waits, struct status *status)
{
    const struct session_flight *flight = &session->flights[0];
    struct session_flight *next = &session->flights[1];
    next->plan = flight->plan;
    next->rows = flight->rows;
    next->waits = waits;
    for (uint32_t row = 0; row < flight->rows; row++) {
        next->slots[row] = flight->slots[row];
        next->sequences[row] = flight->sequences[row];
    }
    session->flight_count++;
    return replay_submit_again(session, next->plan, waits, status);
}

/* Queues the sampler of the only step in flight, if it waits. late: it has waited for the caller. */
static bool queue_sampler(struct eng_session *session, bool late, struct status *status)
{
    struct session_flight *flight = &session->flights[0];
    if (!flight->waits) return true;
    flight->waits = false;
    return replay_sample(session, flight->slots, flight->rows, late, status);
}

/* Whether callers may set what the step in flight draws before they let it. */
static bool is_for_callers(const struct session_flight *flight)
{
    for (uint32_t row = 0; row < flight->rows; row++)
        if (flight->sequences[row] && flight->sequences[row]->flags & ENG_SEQUENCE_ALLOWED) return true;
    return false;
}

/* After a sleep of milliseconds little of this is in the processor's caches. Requested together, lines arrive at the same time; by need,
 * they would come one after the other, which takes longer than all else that complete() does. */
static void prefetch_rows(const struct eng_session *session, const struct session_flight *flight, const int32_t *drawn)
{
    for (uint32_t row = 0; row < flight->rows; row++) {
        const struct eng_sequence *sequence = flight->sequences[row];
        const int32_t slot = flight->slots[row];
        if (!sequence || drawn[row] == PLAN_NO_TOKEN) continue;
        __builtin_prefetch(&sequence->state);
        __builtin_prefetch(&sequence->mask);
        __builtin_prefetch(&sequence->tokens);
        __builtin_prefetch(&sequence->polled);
        __builtin_prefetch(&session->slots[slot].position);
        __builtin_prefetch(&session->samplers[slot]);
        __builtin_prefetch(&session->seen[(uint64_t)slot * session->seen_bytes + (uint64_t)drawn[row] / 8]);
    }
    for (uint32_t row = 0; row < flight->rows; row++) {
        const struct eng_sequence *sequence = flight->sequences[row];
        if (sequence) __builtin_prefetch(sequence->tokens + sequence->count);
    }
}

/* Waits for the oldest step in flight and appends its tokens. */
static bool complete(struct eng_session *session, struct status *status)
{
    struct session_flight flight = session->flights[0];
    const int32_t *drawn = replay_wait(session, flight.rows, status);
    if (!drawn) return false;
    session->flight_count--;
    session->flights[0] = session->flights[1];
    session->flights[1] = flight;
    prefetch_rows(session, &flight, drawn);
    for (uint32_t row = flight.rows; row-- > 0;) {
        struct eng_sequence *sequence = flight.sequences[row];
        const float *logits;
        if (!sequence) {
            replay_reject(session, flight.slots[row]);
            continue;
        }
        if (!row_logits(sequence, row, &logits, status)) return false;
        replay_accept(session, flight.slots[row], drawn[row]);
        sequence_computed(sequence, 1);
        append(sequence, drawn[row], row, logits);
    }
    return true;
}

bool scheduler_drain(struct eng_session *session, struct status *status)
{
    while (session->flight_count) {
        if (!session->flights[0].waits) {
            if (!complete(session, status)) return false;
            continue;
        }
        session->flight_count--;
        replay_abandon(session);
    }
    news_signal(session);
    return true;
}

/* Discards a step that was queued ahead if all its sequences have ended since. */
static bool drain_if_void(struct eng_session *session, struct status *status)
{
    for (uint32_t i = 0; i < session->flight_count; i++)
        for (uint32_t row = 0; row < session->flights[i].rows; row++)
            if (session->flights[i].sequences[row]) return true;
    return scheduler_drain(session, status);
}

/* ---- mixed steps ---- */

static bool is_mixed_due(const struct eng_session *session)
{
    const struct session_plan *largest = replay_mixed_plan(session, UINT32_MAX, UINT32_MAX);
    const uint32_t decoding = decoding_count(session);
    if (!largest || decoding > largest->rows / 2 || decoding >= largest->out_rows) return false;
    const uint32_t prompts = session->active_count - decoding - reading_count(session);
    return prompts > 1 || (prompts && decoding);
}

static uint32_t mixed_prompt_rows(const struct eng_session *session, uint32_t decoding)
{
    const uint32_t rows = replay_mixed_plan(session, UINT32_MAX, UINT32_MAX)->rows - decoding;
    return decoding ? prompt_rows(session, rows) : rows;
}

/* Whether another prompt of the step computes the page that is the sequence's next: it is then found in the cache. */
static bool waits_for_page(const struct eng_session *session, const struct eng_sequence *sequence, uint32_t first,
                           uint32_t count)
{
    const uint32_t page = (uint32_t)session->geometry->page_tokens, computed = sequence->computed;
    for (uint32_t p = first; session->checkpointing && p < count; p++)
        if (sequence_awaits(sequence, session->part_sequence[p])) return true;
    if (session->checkpointing || !session->caches || sequence->is_private || computed != sequence->blocks * page ||
        computed + page >= sequence->count)
        return false;
    for (uint32_t p = first; p < count; p++) {
        const struct eng_sequence *other = session->part_sequence[p];
        if (!other->is_private && other->block == sequence->block && other->count >= computed + page &&
            memcmp(other->tokens + computed, sequence->tokens + computed, page * sizeof *other->tokens) == 0)
            return true;
    }
    return false;
}

static uint32_t uncomputed(const struct eng_session *session, uint32_t part)
{
    const struct eng_sequence *sequence = session->part_sequence[part];
    const uint32_t rest = sequence_rest(sequence);
    return rest < session->chunk ? rest : (uint32_t)session->chunk;
}

/* Divides `rows` among the prompts, parts [first, count) in order of admission. */
static void share_rows(struct eng_session *session, uint32_t first, uint32_t count, uint32_t rows)
{
    uint32_t left = rows;
    for (uint32_t p = first; p < count; p++) {
        const uint32_t share = p == first && first + 1 < count ? (left + 1) / 2 : left / (count - p);
        const uint32_t rest = uncomputed(session, p);
        session->parts[p].count = rest < share ? rest : share;
        left -= session->parts[p].count;
    }
    for (uint32_t p = first; p < count; p++) {
        const uint32_t more = uncomputed(session, p) - session->parts[p].count;
        session->parts[p].count += more < left ? more : left;
        left -= more < left ? more : left;
    }
}

/* The parts of a mixed step: sequences that decode, then prompts. Returns how many. */
static uint32_t choose_parts(struct eng_session *session)
{
    uint32_t decoding = 0, count;
    for (uint32_t i = 0; i < session->active_count; i++) {
        if (session->active[i]->state != ENG_STATE_DECODE) continue;
        session->part_sequence[decoding] = session->active[i];
        session->parts[decoding++].count = 1;
    }
    count = decoding;
    for (uint32_t i = 0; i < session->active_count; i++) {
        struct eng_sequence *sequence = session->active[i];
        if (!takes_chunks(sequence)) continue;
        /* The first of several sequences that began together with the same text has computed it by now. */
        sequence_use_cache(sequence);
        if (!prompt_rows_due(sequence) && !waits_for_page(session, sequence, decoding, count))
            session->part_sequence[count++] = sequence;
    }
    share_rows(session, decoding, count, mixed_prompt_rows(session, decoding));
    const uint32_t most = replay_mixed_plan(session, UINT32_MAX, UINT32_MAX)->out_rows;
    uint32_t kept = decoding, draws = decoding;
    for (uint32_t p = decoding; p < count; p++) {
        struct eng_sequence *sequence = session->part_sequence[p];
        uint32_t rows = session->parts[p].count;
        /* Without an out row for its draw, the last token waits. */
        if (sequence->computed + rows == sequence->count && draws++ >= most) rows--;
        if (!rows) continue;
        session->part_sequence[kept] = sequence;
        session->parts[kept++].count = rows;
    }
    return kept;
}

/* Pages for all parts. False: a sequence was set aside, and all must be chosen again. */
static bool reserve_parts(struct eng_session *session, uint32_t count)
{
    const uint64_t before = session->set_aside;
    for (uint32_t p = 0; p < count && session->set_aside == before; p++) {
        struct eng_sequence *sequence = session->part_sequence[p];
        sequence_reserve(sequence, (uint64_t)sequence->computed + session->parts[p].count);
    }
    return session->set_aside == before;
}

static bool step_mixed(struct eng_session *session, uint32_t count, struct status *status)
{
    uint32_t rows = 0, prompts = 0, draws = 0;
    for (uint32_t p = 0; p < count; p++) {
        const struct eng_sequence *sequence = session->part_sequence[p];
        struct replay_part *part = &session->parts[p];
        part->slot = sequence->slot;
        part->tokens = sequence->tokens + sequence->computed;
        part->draws = sequence->computed + part->count == sequence->count;
        part->following = part->draws ? PLAN_NO_TOKEN : part->tokens[part->count];
        rows += part->count;
        if (sequence->state == ENG_STATE_PREFILL) prompts += part->count;
        draws += part->draws;
    }
    const double start = now_ms();
    const int32_t *drawn =
        replay_mixed(session, replay_mixed_plan(session, rows, draws), session->parts, count, status);
    if (!drawn) return false;
    if (session->step_ms && prompts && rows > prompts) note_time(session, prompts, now_ms() - start);
    for (uint32_t p = 0, row = 0; p < count; p++) {
        struct eng_sequence *sequence = session->part_sequence[p];
        const float *logits = NULL;
        if (session->parts[p].draws && !row_logits(sequence, row, &logits, status)) return false;
        sequence_computed(sequence, session->parts[p].count);
        if (!session->parts[p].draws) continue;
        append(sequence, drawn[row], row, logits);
        row++;
    }
    return true;
}

/* ---- verification steps ---- */

/* Drafts for the sequences that decode, as parts of a step. *parts: how many; 0: there is no draft, or no room for one. */
static bool choose_drafts(struct eng_session *session, uint32_t decoding, uint32_t *parts, struct status *status)
{
    const struct session_plan *largest = replay_verify_plan(session, UINT32_MAX);
    *parts = 0;
    if (!speculates(session, decoding)) return true;
    const uint32_t room = largest->rows - decoding;
    uint32_t count = 0, left = room;
    for (uint32_t i = 0; i < session->active_count; i++) {
        struct eng_sequence *sequence = session->active[i];
        if (sequence->state != ENG_STATE_DECODE) continue;
        const uint32_t share = (left + decoding - count - 1) / (decoding - count);
        uint32_t most = sequence_most_drafted(sequence);
        if (most > share) most = share;
        if (most > session->speculate) most = session->speculate;
        uint32_t drafted = drafts_propose(sequence, most);
        const bool of_engine = !drafted;
        if (of_engine) drafted = draft_engine_wanted(sequence, most);
        /* No other sequence is set aside for it. */
        if (drafted && !slots_reserve(session, sequence->slot, (uint64_t)sequence->count + drafted))
            drafted = (uint32_t)(slots_room(session, sequence->slot) - sequence->count);
        left -= drafted;
        session->part_sequence[count] = sequence;
        session->parts[count].of_engine = of_engine && drafted;
        session->parts[count++].count = 1 + drafted;
    }
    if (session->draft && !draft_engine_draw(session, count, status)) return false;
    for (uint32_t p = 0; p < count && !*parts; p++)
        if (session->parts[p].count > 1) *parts = count;
    return true;
}

/* Appends what was drawn after the rows of a part, drawn[part->count], up to the first token that is not the drafted one. `row`: of the
 * first. */
static bool take_drawn(struct eng_sequence *sequence, const struct replay_part *part, const int32_t *drawn,
                       uint32_t row, struct status *status)
{
    struct eng_session *session = sequence->session;
    uint32_t taken = 0;
    bool goes_on = true;
    session->drafted_tokens += part->count - 1;
    if (part->of_engine) draft_engine_learn(sequence, drawn[0] == part->tokens[1]);
    while (goes_on) {
        const float *logits;
        const int32_t token = drawn[taken];
        if (!row_logits(sequence, row + taken, &logits, status)) return false;
        goes_on = ++taken < part->count && part->tokens[taken] == token;
        replay_keep(session, part->slot, 1, token);
        sequence_computed(sequence, 1);
        append(sequence, token, row + taken - 1, logits);
        goes_on = goes_on && sequence->state == ENG_STATE_DECODE;
    }
    session->accepted_tokens += taken - 1;
    return true;
}

/* The same for a model with recurrent state. `saved`: the slot's state before the step. */
static bool take_drawn_recurrent(struct eng_sequence *sequence, const struct replay_part *part, const int32_t *drawn,
                                 uint32_t row, uint32_t saved, struct status *status)
{
    struct eng_session *session = sequence->session;
    uint32_t taken = 1;
    while (taken < part->count && part->tokens[taken] == drawn[taken - 1] &&
           !sequence_is_ended_by(sequence, drawn[taken - 1]))
        taken++;
    const bool is_kept = taken == part->count;
    if (!is_kept && !slots_restore_state(session, part->slot, saved, status)) return false;
    session->drafted_tokens += part->count - 1;
    session->accepted_tokens += taken - 1;
    if (part->of_engine) draft_engine_learn(sequence, drawn[0] == part->tokens[1]);
    for (uint32_t i = 0; i < taken; i++) {
        const float *logits;
        if (!row_logits(sequence, row + i, &logits, status)) return false;
        replay_keep(session, part->slot, 0, drawn[i]);
        if (is_kept && i + 1 == taken) {
            replay_keep(session, part->slot, taken, PLAN_NO_TOKEN);
            sequence_computed(sequence, taken);
        }
        append(sequence, drawn[i], row + i, logits);
    }
    if (!is_kept && sequence->state == ENG_STATE_DECODE) sequence->state = ENG_STATE_PREFILL;
    return true;
}

static bool step_verify(struct eng_session *session, uint32_t count, struct status *status)
{
    const bool recurrent = session->geometry->recurrent_bytes > 0;
    uint32_t rows = 0, saved = 0;
    for (uint32_t p = 0; p < count; p++) {
        const struct eng_sequence *sequence = session->part_sequence[p];
        session->parts[p].slot = sequence->slot;
        session->parts[p].tokens = sequence->tokens + sequence->computed;
        session->parts[p].draws = true;
        rows += session->parts[p].count;
        if (recurrent && session->parts[p].count > 1 && !slots_save_state(session, sequence->slot, saved++, status))
            return false;
    }
    const int32_t *drawn = replay_verify(session, replay_verify_plan(session, rows), session->parts, count, status);
    if (!drawn) return false;
    saved = 0;
    for (uint32_t p = 0, row = 0; p < count; row += session->parts[p++].count) {
        struct eng_sequence *sequence = session->part_sequence[p];
        const struct replay_part *part = &session->parts[p];
        if (!(recurrent ? take_drawn_recurrent(sequence, part, drawn + row, row, saved, status)
                        : take_drawn(sequence, part, drawn + row, row, status)))
            return false;
        saved += part->count > 1;
    }
    return true;
}

/* ---- steps that read rows of prompts ---- */

/* The tokens whose rows are read next, of the oldest prompts first. Returns how many parts. */
static uint32_t choose_reading(struct eng_session *session)
{
    const struct session_plan *largest = replay_verify_plan(session, UINT32_MAX);
    uint32_t count = 0, left = largest ? largest->rows : (uint32_t)session->geometry->slots;
    if (decoding_count(session)) left = prompt_rows(session, left);
    for (uint32_t i = 0; i < session->active_count && left; i++) {
        struct eng_sequence *sequence = session->active[i];
        if (!prompt_rows_due(sequence)) continue;
        const uint32_t rest = sequence->rows.end - sequence->rows.next;
        const uint32_t most = largest && !session->geometry->recurrent_bytes ? rest : 1; /* else beyond a checkpoint */
        session->part_sequence[count] = sequence;
        session->parts[count].count = most < left ? most : left;
        left -= session->parts[count++].count;
    }
    return count;
}

/* Computes a token of each part and draws after it, which is undone later. */
static const int32_t *replay_single(struct eng_session *session, uint32_t count, struct status *status)
{
    struct session_plan *plan = replay_decode_plan(session, count);
    for (uint32_t p = 0; p < count; p++) {
        plan->slots[p] = session->parts[p].slot;
        plan->tokens[p] = session->parts[p].tokens[0];
    }
    return replay_submit_decode(session, plan, count, status) ? replay_wait(session, count, status) : NULL;
}

/* Reads the rows of a part, from `row` of the step on. drawn[part->count]: what was drawn after each. */
static bool read_part(struct eng_sequence *sequence, const struct replay_part *part, const int32_t *drawn, uint32_t row,
                      struct status *status)
{
    struct eng_session *session = sequence->session;
    for (uint32_t i = 0; i < part->count; i++) {
        const float *logits = NULL, *hidden = NULL;
        if ((sequence->rows.logprobs && drawn[i] != PLAN_NO_TOKEN &&
             !(logits = replay_logits(session, row + i, 1, status))) ||
            (prompt_rows_has_hidden(sequence) && !(hidden = replay_hidden(session, row + i, 1, status))))
            return false;
        if (drawn[i] == PLAN_NO_TOKEN)
            sequence_leave_cache(sequence);
        else
            sequence_prove(sequence, sequence->computed + i + 1);
        prompt_rows_read(sequence, logits, hidden);
    }
    return true;
}

/* A step with logits at each row: of a verification plan, else of a decode plan. What it draws is not used but to tell whether logits are
 * finite: meanwhile the samplers are greedy and allow all tokens. */
static bool step_reading(struct eng_session *session, uint32_t count, struct status *status)
{
    struct session_plan *plan = replay_verify_plan(session, UINT32_MAX);
    uint32_t rows = 0;
    for (uint32_t p = 0; p < count; p++) {
        struct eng_sequence *sequence = session->part_sequence[p];
        struct replay_part *part = &session->parts[p];
        part->slot = sequence->slot;
        part->tokens = sequence->tokens + sequence->computed;
        part->draws = false; /* what follows is the prompt's next token */
        part->following = part->tokens[part->count];
        rows += part->count;
        sequence->sampling.state = session->samplers[part->slot];
        slots_set_sampler(session, part->slot, &(struct sampler_state){.top_p = 1, .repetition_penalty = 1});
    }
    const int32_t *drawn =
        plan ? replay_verify(session, replay_verify_plan(session, rows), session->parts, count, status)
             : replay_single(session, count, status);
    if (!drawn) return false;
    for (uint32_t p = 0, row = 0; p < count; row += session->parts[p++].count) {
        struct eng_sequence *sequence = session->part_sequence[p];
        const struct replay_part *part = &session->parts[p];
        if (!read_part(sequence, part, drawn + row, row, status)) return false;
        replay_keep(session, part->slot, part->count, PLAN_NO_TOKEN);
        slots_set_sampler(session, part->slot, &sequence->sampling.state);
        if (!plan) {
            slots_clear_seen(session, part->slot);
            slots_mark_seen(session, part->slot, sequence->tokens, sequence->count);
        }
        sequence_computed(sequence, part->count);
    }
    return true;
}

/* ---- steps ---- */

/* Begins a step: a mixed step, a chunk of a prompt, a step that reads rows or a verification step, which is complete on return, or a decode
 * step, which is in flight. Sequences for which there are no pages are set aside, so that each turn of the loop has fewer. */
static bool begin_step(struct eng_session *session, struct status *status)
{
    sequence_admit(session);
    while (session->active_count) {
        const uint32_t reading = reading_count(session);
        if (reading && (!session->read_last || reading == session->active_count)) {
            const uint32_t parts = choose_reading(session);
            if (!reserve_parts(session, parts)) continue;
            session->read_last = true;
            return step_reading(session, parts, status);
        }
        session->read_last = false;
        if (is_mixed_due(session)) {
            const uint32_t parts = choose_parts(session);
            if (!parts) continue; /* of all, rows are to be read next */
            if (reserve_parts(session, parts)) return step_mixed(session, parts, status);
            continue;
        }
        struct eng_sequence *prefill = oldest_in_prefill(session);
        uint32_t decoding = decoding_count(session);
        if (prefill && (!decoding || !session->prefilled_last)) {
            size_t plan;
            /* The first of several sequences that began together with the same text has computed it by now. */
            sequence_use_cache(prefill);
            if (prompt_rows_due(prefill)) continue;
            uint32_t rest = sequence_rest(prefill);
            if (decoding) rest = prompt_rows(session, rest);
            const uint32_t chunk = replay_chunk(session, rest, &plan);
            if (!sequence_reserve(prefill, (uint64_t)prefill->computed + chunk)) continue;
            session->prefilled_last = true;
            const double start = now_ms();
            if (!step_prefill(prefill, chunk, plan, status)) return false;
            const double took = now_ms() - start;
            kept_note_prompt(session, chunk, took * 1e-3);
            if (session->step_ms && decoding) note_time(session, chunk, took);
            return true;
        }
        decoding = reserve_decode(session);
        session->prefilled_last = false;
        uint32_t parts = 0;
        if (decoding && !choose_drafts(session, decoding, &parts, status)) return false;
        if (parts) return step_verify(session, parts, status);
        if (decoding) return submit_decode(session, decoding, status);
    }
    return !session->waiting_count ||
           status_fail(status, STATUS_FULL,
                       "eng_step: %u sequences wait and none can run: %u slots and %u KV pages are free; destroy kept "
                       "sequences or release slots",
                       session->waiting_count, session->free_slot_count, page_pool_available(&session->pool));
}

static bool step(struct eng_session *session, struct status *status)
{
    if (!drain_if_void(session, status) || (!session->flight_count && !begin_step(session, status))) return false;
    if (!session->flight_count) return true;
    bool waits;
    if (!queue_sampler(session, true, status) ||
        (may_look_ahead(session, &waits) && !submit_ahead(session, waits, status)) || !complete(session, status))
        return false;
    return !session->flight_count || is_for_callers(&session->flights[0]) || queue_sampler(session, false, status);
}

enum eng_status eng_step(struct eng_session *session, uint32_t *unfinished, struct eng_error *error)
{
    struct status status = {0};
    if (!report_not_null(session, "eng_step", "session", &status)) return report_status(&status, error);
    bool ok = session_usable(session, &status);
    if (ok && session->news.is_telling)
        ok = status_fail(&status, STATUS_USAGE, "eng_step: called by the function of eng_session_set_callback");
    if (ok) {
        sequence_cancel_unwanted(session);
        ok = step(session, &status);
        sequence_cancel_unwanted(session);
        news_tell(session);
    }
    if (unfinished) *unfinished = session->active_count + session->waiting_count;
    return ok ? report_ok(error) : report_status(&status, error);
}
