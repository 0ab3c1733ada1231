/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences, from submission to the last token. scheduler.c decides which of them run next. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/session/session.h"

static uint32_t context_limit(const struct eng_sequence *sequence)
{
    if (sequence->context_tokens) return sequence->context_tokens;
    return (uint32_t)sequence->session->geometry->max_context;
}

/* Tokens that it holds at most, if nothing stops it earlier. The last drawn token is never computed and needs no room. */
static uint64_t most_tokens(const struct eng_sequence *sequence, uint64_t prompt_end)
{
    uint64_t limit = context_limit(sequence);
    if ((sequence->flags & ENG_SEQUENCE_KEEP) || sequence->context_tokens || !sequence->max_new_tokens) return limit;
    uint64_t tokens = prompt_end + sequence->max_new_tokens - 1;
    return tokens < limit ? tokens : limit;
}

/* All of its tokens are to be computed again, with other rotary frequencies. Other sequences may share its pages. */
static void compute_again(struct eng_sequence *sequence)
{
    slots_empty(sequence->session, sequence->slot);
    sequence->computed = 0;
    sequence_begin_blocks(sequence);
}

/* ---- waiting and running ---- */

static void start_prefill(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    sequence->state = ENG_STATE_PREFILL;
    session->active[session->active_count++] = sequence;
}

/* Tokens that it has pages for when it begins: its own and one more. */
static uint64_t first_tokens(const struct eng_sequence *sequence)
{
    const uint64_t most = most_tokens(sequence, sequence->prompt_end), tokens = (uint64_t)sequence->count + 1;
    return tokens <= most || most < sequence->count ? tokens : most;
}

/* A page of each group for every active sequence that may still take one. */
static uint64_t growth(const struct eng_session *session)
{
    const unsigned groups = plan_page_groups(session->geometry);
    uint64_t pages = 0;
    for (uint32_t i = 0; i < session->active_count; i++) {
        const struct eng_sequence *sequence = session->active[i];
        const uint64_t most = slots_pages_for(session, most_tokens(sequence, sequence->prompt_end));
        const uint64_t held = slots_pages_held(session, sequence->slot), left = most > held ? most - held : 0;
        pages += left < groups ? left : groups;
    }
    return pages;
}

bool sequence_can_admit(const struct eng_session *session)
{
    /* Strictly in order, so that short sequences do not delay a long one for ever. Each of those that run is left a page to grow:
     * otherwise the youngest would be set aside at once. */
    const struct eng_sequence *first = session->first_waiting;
    if (!first || !session->free_slot_count) return false;
    const uint64_t available = page_pool_available(&session->pool), left = growth(session);
    const uint64_t pages = slots_pages_for(session, first_tokens(first));
    /* Pages of a checkpoint may be those that it needs itself. */
    return pages + left <= available || sequence_uncached_pages(first, pages) + left <= available;
}

void sequence_fill_slot(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    slot_options_set(session, sequence->slot, &sequence->sampling);
    slot_options_set_allowed(session, sequence->slot, sequence->mask == MASK_ALL ? NULL : sequence->allowed);
    slots_mark_seen(session, sequence->slot, sequence->tokens, sequence->count);
    slot_options_begin_answer(session, sequence->slot, sequence->tokens + sequence->prompt_end,
                              sequence->count - sequence->prompt_end);
}

void sequence_admit(struct eng_session *session)
{
    while (sequence_can_admit(session)) {
        struct eng_sequence *sequence = session->first_waiting;
        session->first_waiting = sequence->next;
        if (!session->first_waiting) session->last_waiting = NULL;
        session->waiting_count--;
        sequence->next = NULL;
        sequence->slot = slots_take(session, SLOT_SEQUENCE);
        sequence_fill_slot(sequence);
        slots_switch_rope(session, sequence->slot, sequence->count);
        sequence_begin_blocks(sequence);
        sequence_use_cache(sequence);
        kept_take(sequence);
        slots_reserve(session, sequence->slot, first_tokens(sequence));
        start_prefill(sequence);
    }
}

static void wait_as_the_last(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    sequence->state = ENG_STATE_WAITING;
    if (session->last_waiting)
        session->last_waiting->next = sequence;
    else
        session->first_waiting = sequence;
    session->last_waiting = sequence;
    session->waiting_count++;
}

static void leave_waiting(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    struct eng_sequence *before = NULL;
    for (struct eng_sequence *at = session->first_waiting; at != sequence; at = at->next) before = at;
    if (before)
        before->next = sequence->next;
    else
        session->first_waiting = sequence->next;
    if (session->last_waiting == sequence) session->last_waiting = before;
    sequence->next = NULL;
    session->waiting_count--;
}

static void leave_active(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < session->active_count; i++)
        if (session->active[i] != sequence) session->active[kept++] = session->active[i];
    session->active_count = kept;
    for (uint32_t i = 0; i < session->flight_count; i++)
        for (uint32_t row = 0; row < session->flights[i].rows; row++)
            if (session->flights[i].sequences[row] == sequence) session->flights[i].sequences[row] = NULL;
}

static void free_slot(struct eng_sequence *sequence)
{
    if (sequence->slot == SESSION_NO_SLOT) return;
    /* With its count of draws. Admission sets the mask again. */
    sequence->sampling.state = sequence->session->samplers[sequence->slot];
    sequence->sampling.state.options &= ~(uint32_t)SAMPLER_ALLOWS;
    slots_give_back(sequence->session, sequence->slot);
    sequence->slot = SESSION_NO_SLOT;
}

/* Takes slot and pages away from an active sequence, which waits as the first of all and later goes on with the same tokens. */
static void set_aside(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    leave_active(sequence);
    kept_put(sequence);
    free_slot(sequence);
    sequence->computed = 0;
    sequence->state = ENG_STATE_WAITING;
    sequence->next = session->first_waiting;
    session->first_waiting = sequence;
    if (!session->last_waiting) session->last_waiting = sequence;
    session->waiting_count++;
    session->set_aside++;
    log_write(&session->engine->log, ENG_LOG_INFO,
              "session: a sequence of %u tokens was set aside for want of KV pages", sequence->count);
}

bool sequence_reserve(struct eng_sequence *sequence, uint64_t tokens)
{
    struct eng_session *session = sequence->session;
    while (!slots_reserve(session, sequence->slot, tokens)) {
        struct eng_sequence *youngest = session->active[session->active_count - 1];
        set_aside(youngest);
        if (youngest == sequence) return false;
    }
    return true;
}

void sequence_reserve_ahead(struct eng_sequence *sequence)
{
    enum { AHEAD_PAGES = 2 };
    struct eng_session *session = sequence->session;
    const uint64_t most = most_tokens(sequence, sequence->prompt_end);
    uint64_t tokens = sequence->computed + 1 + AHEAD_PAGES * session->geometry->page_tokens;
    if (tokens > most) tokens = most;
    if (tokens <= slots_room(session, sequence->slot)) return;
    const uint64_t spare = (uint64_t)session->active_count * plan_page_groups(session->geometry) * (AHEAD_PAGES + 1);
    if (page_pool_available(&session->pool) > spare) slots_reserve(session, sequence->slot, tokens);
}

static void finish(struct eng_sequence *sequence, enum eng_end end)
{
    if (sequence->state == ENG_STATE_WAITING) leave_waiting(sequence);
    kept_free(sequence);
    if (sequence->state == ENG_STATE_PREFILL || sequence->state == ENG_STATE_DECODE) leave_active(sequence);
    if (end == ENG_END_CANCELLED || end == ENG_END_NOT_FINITE || !(sequence->flags & ENG_SEQUENCE_KEEP)) {
        if (end == ENG_END_NOT_FINITE)
            sequence_leave_cache(sequence);
        else
            sequence_leave_checkpoint(sequence);
        free_slot(sequence);
    }
    sequence->state = ENG_STATE_DONE;
    sequence->end = end;
}

bool sequence_is_ended_by(const struct eng_sequence *sequence, int32_t token)
{
    const struct manifest *manifest = &sequence->session->engine->file.manifest;
    for (int i = 0; !(sequence->flags & ENG_SEQUENCE_IGNORE_EOS) && i < manifest->eos_count; i++)
        if (manifest->eos_tokens[i] == token) return true;
    for (uint32_t i = 0; i < sequence->stop_count; i++)
        if (sequence->stop_tokens[i] == token) return true;
    return sequence->grammar && token == chat_end_token(sequence->session->engine);
}

bool sequence_ends_next(const struct eng_sequence *sequence)
{
    return (sequence->max_new_tokens && sequence->count + 1 - sequence->prompt_end >= sequence->max_new_tokens) ||
           sequence->computed + 1 >= context_limit(sequence);
}

uint32_t sequence_most_drafted(const struct eng_sequence *sequence)
{
    const struct eng_session *session = sequence->session;
    const struct sampler_state *sampler = &session->samplers[sequence->slot];
    const bool counts_tokens =
        (sampler->options & SAMPLER_ADJUSTS) &&
        (fpclassify(sampler->presence_penalty) != FP_ZERO || fpclassify(sampler->frequency_penalty) != FP_ZERO);
    if (sequence_ends_next(sequence) || sequence->grammar || counts_tokens ||
        (sequence->flags & (ENG_SEQUENCE_LOGITS | ENG_SEQUENCE_HIDDEN | ENG_SEQUENCE_ALLOWED)) ||
        sampler->repetition_penalty < 1 || sampler->repetition_penalty > 1)
        return 0;
    uint32_t most = context_limit(sequence) - sequence->computed - 1;
    const uint32_t drawn = sequence->count - sequence->prompt_end, left = sequence->max_new_tokens - drawn;
    if (sequence->max_new_tokens && left - 1 < most) most = left - 1;
    /* Until the rotary frequencies change. */
    const uint64_t original = session->geometry->rope_original;
    if (original && sequence->count <= original && original - sequence->count < most)
        most = (uint32_t)(original - sequence->count);
    return most;
}

bool sequence_switches_next(const struct eng_sequence *sequence)
{
    return slots_rope_differs(sequence->session, sequence->slot, (uint64_t)sequence->computed + 2);
}

/* The tokens that may be drawn next, as the grammar has put them into sequence->allowed; `ok` false: none, since it failed. */
static void allow(struct eng_sequence *sequence, bool ok)
{
    const uint64_t words = plan_allowed_words(sequence->session->geometry->vocab_size);
    if (!ok) memset(sequence->allowed, 0, words * sizeof *sequence->allowed);
    sequence->mask = ok ? MASK_SOME : MASK_NONE;
    if (sequence->slot != SESSION_NO_SLOT)
        slot_options_set_allowed(sequence->session, sequence->slot, sequence->allowed);
}

void sequence_append(struct eng_sequence *sequence, int32_t token, const float *logits)
{
    news_note(sequence);
    if (token == PLAN_NO_TOKEN) {
        sequence->logits = sequence->hidden = NULL;
        finish(sequence, sequence->mask == MASK_NONE ? ENG_END_NONE_ALLOWED : ENG_END_NOT_FINITE);
        return;
    }
    sequence_prove(sequence, sequence->computed);
    drafts_learn(sequence, token);
    sequence->tokens[sequence->count++] = token;
    sequence->drawn_step = sequence->session->steps;
    sequence->logits = logits;
    sequence->state = ENG_STATE_DECODE;
    if (sequence_is_ended_by(sequence, token))
        finish(sequence, ENG_END_EOS);
    else if (sequence->max_new_tokens && sequence->count - sequence->prompt_end >= sequence->max_new_tokens)
        finish(sequence, ENG_END_LENGTH);
    else if (sequence->computed >= context_limit(sequence))
        finish(sequence, ENG_END_CONTEXT);
    else if (slots_switch_rope(sequence->session, sequence->slot, sequence->count)) {
        compute_again(sequence);
        sequence->state = ENG_STATE_PREFILL;
    }
    if (sequence->grammar && sequence->state != ENG_STATE_DONE) {
        struct status ignored = {0};
        allow(sequence, grammar_follow(sequence->grammar, sequence->place, token, sequence->allowed, &ignored));
    }
}

static bool read_options(struct eng_sequence *sequence, const struct eng_sequence_options *given, struct status *status)
{
    static const char function[] = "eng_sequence_create";
    const struct plan_geometry *geometry = sequence->session->geometry;
    struct eng_sequence_options own;
    struct session_sampling sampling;
    if (!report_read_options(&own, sizeof own, given, "eng_sequence_options", status) ||
        !sampling_read(sequence->session, own.sampling, &sampling, status))
        return false;
    if (own.stop_count > ENG_MAX_STOP_TOKENS)
        return status_fail(status, STATUS_USAGE, "%s: stop_count is %u, expected at most %d", function, own.stop_count,
                           ENG_MAX_STOP_TOKENS);
    if (own.stop_count && !report_not_null(own.stop_tokens, function, "options->stop_tokens", status)) return false;
    const uint32_t known = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_KEEP | ENG_SEQUENCE_LOGITS | ENG_SEQUENCE_ALLOWED |
                           ENG_SEQUENCE_HIDDEN | ENG_SEQUENCE_HIDDEN_MEAN;
    if (own.flags & ~known)
        return status_fail(status, STATUS_USAGE, "%s: flags are %#x, expected only bits of %#x", function, own.flags,
                           known);
    if (own.flags & (ENG_SEQUENCE_HIDDEN | ENG_SEQUENCE_HIDDEN_MEAN) &&
        !hidden_exist(sequence->session, function, status))
        return false;
    if (own.prompt_logprobs < -1 || own.prompt_logprobs > ENG_MAX_LOGPROBS)
        return status_fail(status, STATUS_USAGE, "%s: prompt_logprobs is %d, expected -1 to %d", function,
                           own.prompt_logprobs, ENG_MAX_LOGPROBS);
    if (own.context_tokens > geometry->max_context)
        return status_fail(status, STATUS_TOO_LONG,
                           "%s: context_tokens is %u, expected at most the engine's context of %u", function,
                           own.context_tokens, (unsigned)geometry->max_context);
    if (own.grammar && grammar_engine(own.grammar) != sequence->session->engine)
        return status_fail(status, STATUS_USAGE, "%s: the grammar is of another engine", function);
    if (own.grammar && (own.flags & (ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_ALLOWED)))
        return status_fail(status, STATUS_USAGE,
                           "%s: a grammar ends with an end token and allows tokens itself: not with "
                           "ENG_SEQUENCE_IGNORE_EOS or ENG_SEQUENCE_ALLOWED",
                           function);
    if (own.grammar && !(sequence->place = malloc(sizeof *sequence->place)))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    sequence->grammar = own.grammar;
    if (own.grammar) grammar_retain(own.grammar);
    sequence->sampling = sampling;
    sequence->sampling.biases = sequence->biases;
    if (sampling.bias_count) memcpy(sequence->biases, sampling.biases, sampling.bias_count * sizeof *sampling.biases);
    sequence->flags = own.flags;
    if (own.flags & ENG_SEQUENCE_HIDDEN_MEAN) sequence->flags |= ENG_SEQUENCE_HIDDEN;
    sequence->prompt_logprobs = own.prompt_logprobs;
    sequence->max_new_tokens = own.max_new_tokens;
    sequence->context_tokens = own.context_tokens;
    sequence->stop_count = own.stop_count;
    if (own.stop_count) memcpy(sequence->stop_tokens, own.stop_tokens, own.stop_count * sizeof *own.stop_tokens);
    return true;
}

bool sequence_make(struct eng_session *session, const struct eng_sequence_options *options,
                   struct eng_sequence **sequence, struct status *status)
{
    struct eng_sequence *created = session->free_sequences;
    if (!created)
        return status_fail(status, STATUS_FULL,
                           "eng_sequence_create: all %u sequences exist (max_sequences); destroy one, or ask for more",
                           session->max_sequences);
    if (!read_options(created, options, status)) return false;
    session->free_sequences = created->next;
    created->next = NULL;
    created->exists = true;
    created->state = ENG_STATE_IDLE;
    created->end = ENG_END_NONE;
    created->slot = SESSION_NO_SLOT;
    created->count = created->computed = created->prompt_end = created->polled = created->blocks = 0;
    created->reached = created->cached = 0;
    created->drawn_step = 0;
    drafts_begin(created);
    draft_engine_begin(created);
    created->mask = MASK_ALL;
    created->is_private = created->has_news = false;
    created->logits = created->hidden = NULL;
    *sequence = created;
    return true;
}

enum eng_status eng_sequence_create(struct eng_session *session, const struct eng_sequence_options *options,
                                    struct eng_sequence **sequence, struct eng_error *error)
{
    struct status status = {0};
    bool ok = report_not_null(session, "eng_sequence_create", "session", &status) &&
              report_not_null((const void *)sequence, "eng_sequence_create", "sequence", &status) &&
              session_usable(session, &status) && sequence_make(session, options, sequence, &status);
    return report_result(ok, &status, error);
}

void sequence_restored(struct eng_sequence *sequence, uint32_t computed)
{
    sequence_begin_blocks(sequence);
    sequence->is_private = true;
    sequence_computed(sequence, computed);
    sequence->flags |= ENG_SEQUENCE_KEEP;
    sequence->state = ENG_STATE_DONE;
    sequence->end = ENG_END_LENGTH;
}

static bool check_pool(const struct eng_sequence *sequence, uint64_t prompt_end, const char *function,
                       struct status *status)
{
    const struct eng_session *session = sequence->session;
    const uint32_t pages = slots_pages_for(session, most_tokens(sequence, prompt_end));
    if (pages <= session->pool.count) return true;
    return status_fail(status, STATUS_TOO_LONG,
                       "%s: prompt and answer need %u KV pages, the whole pool has %u; ask for a larger pool "
                       "(kv_tokens), or set max_new_tokens or context_tokens lower",
                       function, pages, session->pool.count);
}

static bool check_submit(const struct eng_sequence *sequence, const int32_t *tokens, size_t count,
                         struct status *status)
{
    static const char function[] = "eng_sequence_submit";
    if (!report_not_null(sequence, function, "sequence", status) ||
        !report_not_null(tokens, function, "tokens", status))
        return false;
    if (!sequence->exists) return status_fail(status, STATUS_USAGE, "%s: the sequence was destroyed", function);
    if (!session_usable(sequence->session, status)) return false;
    bool again = sequence->state == ENG_STATE_DONE && sequence->slot != SESSION_NO_SLOT;
    if (sequence->state != ENG_STATE_IDLE && !again)
        return status_fail(status, STATUS_USAGE, "%s: the sequence %s", function,
                           sequence->state != ENG_STATE_DONE ? "is not done yet"
                           : sequence->flags & ENG_SEQUENCE_KEEP
                               ? "was cancelled, or its logits were not finite"
                               : "has ended and was not created with ENG_SEQUENCE_KEEP");
    if (sequence->polled != sequence->count)
        return status_fail(status, STATUS_USAGE, "%s: %u tokens of the sequence are not polled yet; poll them first",
                           function, sequence->count - sequence->polled);
    if (count == 0) return status_fail(status, STATUS_USAGE, "%s: count is 0, expected at least 1 token", function);
    /* Before tokens are read: if `count` is wrong, the array may be shorter. */
    const uint32_t limit = context_limit(sequence), room = sequence->count < limit ? limit - sequence->count : 0;
    if (count > room)
        return status_fail(
            status, STATUS_TOO_LONG,
            "%s: count: expected at most %u tokens, since the context is %u and the sequence has %u, found "
            "%zu; submit fewer, or begin a new sequence",
            function, room, limit, sequence->count, count);
    uint64_t vocab_size = sequence->session->geometry->vocab_size;
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || (uint64_t)tokens[i] >= vocab_size)
            return status_fail(status, STATUS_BAD_INPUT, "%s: token %zu is %d, expected 0 to %u", function, i,
                               tokens[i], (unsigned)vocab_size - 1);
    return check_pool(sequence, sequence->count + count, function, status);
}

bool sequence_check_room(const struct eng_sequence *sequence, const char *function, struct status *status)
{
    const uint32_t limit = context_limit(sequence), drawn = sequence->count - sequence->prompt_end;
    if (sequence->count > limit)
        return status_fail(status, STATUS_TOO_LONG, "%s: the sequence has %u tokens, its context is %u", function,
                           sequence->count, limit);
    if (sequence->max_new_tokens && drawn >= sequence->max_new_tokens)
        return status_fail(status, STATUS_USAGE,
                           "%s: max_new_tokens is %u, expected more than the %u tokens that the answer has", function,
                           sequence->max_new_tokens, drawn);
    return check_pool(sequence, sequence->prompt_end, function, status);
}

/* Adds what determines the scheduler's steps to the data that must be the same in all processes. */
static void agree(const struct eng_sequence *sequence)
{
    struct backend *backend = sequence->session->backend;
    const uint32_t numbers[] = {sequence->flags,          sequence->max_new_tokens,
                                sequence->context_tokens, (uint32_t)sequence->prompt_logprobs,
                                sequence->stop_count,     sequence->count};
    if (!backend->type->agree) return;
    backend->type->agree(backend, numbers, sizeof numbers);
    backend->type->agree(backend, sequence->stop_tokens, sequence->stop_count * sizeof *sequence->stop_tokens);
}

void sequence_join(struct eng_sequence *sequence, enum eng_state state)
{
    struct eng_session *session = sequence->session;
    agree(sequence);
    if (state == ENG_STATE_WAITING) {
        wait_as_the_last(sequence);
        return;
    }
    sequence->state = state;
    if (state != ENG_STATE_DONE) session->active[session->active_count++] = sequence;
}

enum eng_status eng_sequence_submit(struct eng_sequence *sequence, const int32_t *tokens, size_t count,
                                    struct eng_error *error)
{
    struct status status = {0};
    if (!check_submit(sequence, tokens, count, &status) || !prompt_rows_begin(sequence, (uint32_t)count, &status))
        return report_status(&status, error);
    struct eng_session *session = sequence->session;
    memcpy(sequence->tokens + sequence->count, tokens, count * sizeof *tokens);
    sequence->reached = sequence->count;
    sequence->cached = 0;
    sequence->count += (uint32_t)count;
    sequence->prompt_end = sequence->polled = sequence->count;
    sequence->end = ENG_END_NONE;
    sequence->logits = sequence->hidden = NULL; /* those of the last draw: the last token is of the prompt now */
    agree(sequence);
    if (sequence->grammar) {
        struct status ignored = {0};
        allow(sequence, grammar_start(sequence->grammar, sequence->place, sequence->allowed, &ignored));
    }
    if (sequence->slot != SESSION_NO_SLOT) {
        slots_mark_seen(session, sequence->slot, sequence->tokens + sequence->computed,
                        sequence->count - sequence->computed);
        slot_options_begin_answer(session, sequence->slot, NULL, 0);
        /* Where no token was drawn, the row before the prompt is computed already. */
        if (slots_switch_rope(session, sequence->slot, sequence->count) ||
            sequence->computed > prompt_rows_before(sequence))
            compute_again(sequence);
        start_prefill(sequence);
        return report_ok(error);
    }
    wait_as_the_last(sequence);
    return report_ok(error);
}

enum eng_status eng_sequence_set_allowed(struct eng_sequence *sequence, const uint32_t *allowed, size_t words,
                                         struct eng_error *error)
{
    static const char function[] = "eng_sequence_set_allowed";
    struct status status = {0};
    enum session_mask mask;
    if (!report_not_null(sequence, function, "sequence", &status)) return report_status(&status, error);
    struct eng_session *session = sequence->session;
    if (!sequence->exists)
        status_fail(&status, STATUS_USAGE, "%s: the sequence was destroyed", function);
    else if (!(sequence->flags & ENG_SEQUENCE_ALLOWED))
        status_fail(&status, STATUS_USAGE, "%s: the sequence was not created with ENG_SEQUENCE_ALLOWED", function);
    else if (session_usable(session, &status))
        slot_options_check_allowed(session, allowed, words, function, &mask, &status);
    if (status.code != STATUS_OK) return report_status(&status, error);
    sequence->mask = mask;
    if (allowed) memcpy(sequence->allowed, allowed, words * sizeof *allowed);
    if (sequence->slot != SESSION_NO_SLOT) slot_options_set_allowed(session, sequence->slot, allowed);
    return report_ok(error);
}

size_t eng_sequence_poll(struct eng_sequence *sequence, int32_t *tokens, size_t capacity)
{
    if (!sequence || !tokens) return 0;
    size_t count = sequence->count - sequence->polled;
    if (count > capacity) count = capacity;
    /* Mostly one token, written just before. gcc makes of memcpy a string instruction, which waits for that write. */
    for (size_t i = 0; i < count; i++) tokens[i] = sequence->tokens[sequence->polled + i];
    sequence->polled += (uint32_t)count;
    return count;
}

enum eng_state eng_sequence_state(const struct eng_sequence *sequence)
{
    return sequence ? sequence->state : ENG_STATE_IDLE;
}

enum eng_end eng_sequence_end(const struct eng_sequence *sequence) { return sequence ? sequence->end : ENG_END_NONE; }

const float *eng_sequence_logits(const struct eng_sequence *sequence)
{
    if (!sequence || !sequence->logits || sequence->drawn_step != sequence->session->steps) return NULL;
    return sequence->logits;
}

void eng_sequence_cancel(struct eng_sequence *sequence)
{
    if (!sequence || !sequence->exists) return;
    if (sequence->state != ENG_STATE_DONE) {
        finish(sequence, ENG_END_CANCELLED);
        return;
    }
    sequence_leave_checkpoint(sequence); /* a kept one, which has already ended */
    free_slot(sequence);
}

enum eng_status eng_sequence_cancel_async(struct eng_sequence *sequence)
{
    if (!sequence) return ENG_OK;
    const struct eng_engine *engine = sequence->session->engine;
    if (engine->process_group) {
        log_write(&engine->log, ENG_LOG_WARNING,
                  "eng_sequence_cancel_async: refused: several processes share the engine, which would cancel between "
                  "different steps; call eng_sequence_cancel between the same two steps of all of them");
        return ENG_USAGE;
    }
    if (atomic_exchange(&sequence->is_unwanted, true)) return ENG_OK;
    _Atomic(struct eng_sequence *) *list = &sequence->session->unwanted;
    sequence->next_unwanted = atomic_load(list);
    while (!atomic_compare_exchange_weak(list, &sequence->next_unwanted, sequence)) {}
    return ENG_OK;
}

void sequence_cancel_unwanted(struct eng_session *session)
{
    if (!atomic_load(&session->unwanted)) return;
    struct eng_sequence *sequence = atomic_exchange(&session->unwanted, NULL);
    while (sequence) {
        struct eng_sequence *next = sequence->next_unwanted;
        const bool was_done = sequence->state == ENG_STATE_DONE;
        atomic_store(&sequence->is_unwanted, false);
        eng_sequence_cancel(sequence);
        if (sequence->exists && !was_done) news_note(sequence);
        sequence = next;
    }
}

static void let_go(struct eng_sequence *sequence)
{
    prompt_rows_free(sequence);
    grammar_release(sequence->grammar);
    free(sequence->place);
    sequence->grammar = NULL;
    sequence->place = NULL;
}

void eng_sequence_destroy(struct eng_sequence **handle)
{
    if (!handle || !*handle) return;
    struct eng_sequence *sequence = *handle;
    *handle = NULL;
    if (!sequence->exists) return;
    sequence_cancel_unwanted(sequence->session); /* the list must not name it any more */
    eng_sequence_cancel(sequence);
    let_go(sequence);
    sequence->exists = false;
    sequence->next = sequence->session->free_sequences;
    sequence->session->free_sequences = sequence;
}
