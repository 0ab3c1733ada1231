/* SPDX-License-Identifier: Apache-2.0 */
/* The slot level of the API: checks arguments; slots.c does the work. */
#include <string.h>

#include "runtime/session/session.h"

static bool check_slot(const struct eng_session *session, uint32_t slot, const char *function, struct status *status)
{
    if (!report_not_null(session, function, "session", status)) return false;
    if (slot >= session->geometry->slots)
        return status_fail(status, STATUS_USAGE, "%s: slot is %u, expected 0 to %u", function, slot,
                           (unsigned)session->geometry->slots - 1);
    if (!session_usable(session, status)) return false;
    if (session->slots[slot].use == SLOT_RAW) return true;
    return status_fail(status, STATUS_USAGE, "%s: slot %u %s", function, slot,
                       session->slots[slot].use == SLOT_FREE ? "was not acquired" : "belongs to a sequence");
}

static bool check_tokens(const struct eng_session *session, const int32_t *tokens, size_t count, const char *function,
                         struct status *status)
{
    if (!report_not_null(tokens, function, "tokens", status)) return false;
    if (count == 0) return status_fail(status, STATUS_USAGE, "%s: count is 0, expected at least 1 token", function);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || (uint64_t)tokens[i] >= session->geometry->vocab_size)
            return status_fail(status, STATUS_BAD_INPUT, "%s: token %zu is %d, expected 0 to %u", function, i,
                               tokens[i], (unsigned)session->geometry->vocab_size - 1);
    return true;
}

/* Requires: the slot was checked. Called before tokens are read: if `count` is wrong, the caller's array may be
 * shorter. */
static bool check_context(const struct eng_session *session, uint32_t slot, size_t count, const char *function,
                          struct status *status)
{
    const struct session_slot *own = &session->slots[slot];
    const uint32_t context = (uint32_t)session->geometry->max_context, room = context - own->position;
    if (count <= room) return true;
    return status_fail(status, STATUS_TOO_LONG,
                       "%s: expected at most %u more tokens, since the context is %u and slot %u holds %u, found %zu",
                       function, room, context, slot, own->position, count);
}

/* Takes KV pages for `count` more tokens. Requires: they fit in the context. */
static bool make_room(struct eng_session *session, uint32_t slot, size_t count, const char *function,
                      struct status *status)
{
    const struct session_slot *own = &session->slots[slot];
    if (slots_reserve(session, (int32_t)slot, own->position + count)) return true;
    return status_fail(
        status, STATUS_FULL,
        "%s: slot %u needs %u KV pages in all, has %u, and %u are free; release or truncate slots, or ask for a larger "
        "pool (kv_tokens)",
        function, slot, slots_pages_for(session, own->position + count), slots_pages_held(session, (int32_t)slot),
        page_pool_available(&session->pool));
}

enum eng_status eng_slot_acquire(struct eng_session *session, uint32_t *slot, struct eng_error *error)
{
    struct status status = {0};
    if (!report_not_null(session, "eng_slot_acquire", "session", &status) ||
        !report_not_null(slot, "eng_slot_acquire", "slot", &status) || !session_usable(session, &status))
        return report_status(&status, error);
    int32_t taken = slots_take(session, SLOT_RAW);
    if (taken == SESSION_NO_SLOT) {
        status_fail(&status, STATUS_FULL,
                    "eng_slot_acquire: all %u slots are in use; release one, or destroy a sequence",
                    (unsigned)session->geometry->slots);
        return report_status(&status, error);
    }
    *slot = (uint32_t)taken;
    return report_ok(error);
}

enum eng_status eng_slot_release(struct eng_session *session, uint32_t slot, struct eng_error *error)
{
    struct status status = {0};
    if (!check_slot(session, slot, "eng_slot_release", &status)) return report_status(&status, error);
    slots_give_back(session, (int32_t)slot);
    return report_ok(error);
}

enum eng_status eng_slot_set_sampling(struct eng_session *session, uint32_t slot, const struct eng_sampling *sampling,
                                      struct eng_error *error)
{
    struct status status = {0};
    struct session_sampling own;
    if (!check_slot(session, slot, "eng_slot_set_sampling", &status) ||
        !sampling_read(session, sampling, &own, &status))
        return report_status(&status, error);
    own.state.options |= session->samplers[slot].options & SAMPLER_ALLOWS;
    slot_options_set(session, (int32_t)slot, &own);
    return report_ok(error);
}

enum eng_status eng_slot_set_allowed(struct eng_session *session, uint32_t slot, const uint32_t *allowed, size_t words,
                                     struct eng_error *error)
{
    static const char function[] = "eng_slot_set_allowed";
    struct status status = {0};
    enum session_mask mask;
    if (!check_slot(session, slot, function, &status) ||
        !slot_options_check_allowed(session, allowed, words, function, &mask, &status))
        return report_status(&status, error);
    if (mask == MASK_NONE) {
        status_fail(&status, STATUS_USAGE, "%s: no token is allowed, expected at least one", function);
        return report_status(&status, error);
    }
    slot_options_set_allowed(session, (int32_t)slot, allowed);
    return report_ok(error);
}

enum eng_status eng_slot_position(const struct eng_session *session, uint32_t slot, uint32_t *position,
                                  struct eng_error *error)
{
    struct status status = {0};
    if (!check_slot(session, slot, "eng_slot_position", &status) ||
        !report_not_null(position, "eng_slot_position", "position", &status))
        return report_status(&status, error);
    *position = session->slots[slot].position;
    return report_ok(error);
}

/* Copies the logits of the first `rows` out rows of the last replay. */
static bool copy_logits(struct eng_session *session, size_t rows, float *logits, const char *function,
                        struct status *status)
{
    const float *from = replay_logits(session, 0, (uint32_t)rows, status);
    if (!from) return status_prefix(status, "%s", function);
    memcpy(logits, from, rows * session->geometry->vocab_size * sizeof *logits);
    return true;
}

/* Fails if a slot has drawn no token. */
static bool check_drawn(const uint32_t *slots, const int32_t *drawn, size_t count, const char *function,
                        struct status *status)
{
    for (size_t i = 0; i < count; i++)
        if (drawn[i] == PLAN_NO_TOKEN)
            return status_fail(
                status, STATUS_NOT_FINITE,
                "%s: slot %u: no token can be drawn: its logits are not finite (NaN or infinity) since "
                "values of the model overflow; release or truncate the slot, and check the checkpoint or "
                "build the engine with another --dtype or --kv-dtype",
                function, slots[i]);
    return true;
}

/* Computes the slot's history from its position to `end`, and draws a token if `drawn` is not NULL. */
static bool compute_history(struct eng_session *session, uint32_t slot, size_t end, int32_t *drawn,
                            struct status *status)
{
    const struct session_slot *own = &session->slots[slot];
    while (own->position < end) {
        size_t plan;
        const uint32_t chunk = replay_chunk(session, end - own->position, &plan);
        const bool last = own->position + chunk == end;
        const int32_t *tokens = own->history + own->position;
        const struct replay_part part = {.slot = (int32_t)slot,
                                         .tokens = tokens,
                                         .count = chunk,
                                         .draws = last && drawn,
                                         .following = last ? PLAN_NO_TOKEN : tokens[chunk]};
        if (!replay_prefill(session, &part, plan, drawn, status)) return false;
    }
    return true;
}

enum eng_status eng_slot_truncate(struct eng_session *session, uint32_t slot, uint32_t position,
                                  struct eng_error *error)
{
    struct status status = {0};
    if (!check_slot(session, slot, "eng_slot_truncate", &status)) return report_status(&status, error);
    if (position > session->slots[slot].position) {
        status_fail(&status, STATUS_USAGE, "eng_slot_truncate: position is %u, expected 0 to %u", position,
                    session->slots[slot].position);
        return report_status(&status, error);
    }
    if (position == session->slots[slot].position) return report_ok(error); /* nothing to remove */
    const bool is_whole = slots_truncate(session, (int32_t)slot, position) == position;
    if (session->slots[slot].answer_start > position) session->slots[slot].answer_start = position;
    bool ok = is_whole ||
              (scheduler_drain(session, &status) && compute_history(session, slot, position, NULL, &status)) ||
              status_prefix(&status, "eng_slot_truncate");
    if (ok) slot_options_recount(session, (int32_t)slot);
    return ok ? report_ok(error) : report_status(&status, error);
}

/* The step that was waited for last drew for the slot, in this out row. */
static void note_row(struct eng_session *session, uint32_t slot, uint32_t row)
{
    session->slots[slot].drawn_step = session->steps;
    session->slots[slot].drawn_row = row;
}

static bool prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, size_t count,
                    int32_t *next_token, float *logits, struct status *status)
{
    static const char function[] = "eng_prefill";
    if (!check_slot(session, slot, function, status) || !check_context(session, slot, count, function, status) ||
        !check_tokens(session, tokens, count, function, status) || !scheduler_drain(session, status) ||
        !make_room(session, slot, count, function, status))
        return false;
    const size_t end = session->slots[slot].position + count;
    memcpy(session->slots[slot].history + session->slots[slot].position, tokens, count * sizeof *tokens);
    slots_mark_seen(session, (int32_t)slot, tokens, count);
    bool wanted = next_token || logits;
    int32_t drawn = 0;
    slots_switch_rope(session, (int32_t)slot, end);
    session->slots[slot].answer_start = (uint32_t)end;
    slot_options_begin_answer(session, (int32_t)slot, NULL, 0);
    if (!compute_history(session, slot, end, wanted ? &drawn : NULL, status))
        return status_prefix(status, "%s", function);
    if (wanted) note_row(session, slot, 0);
    if (next_token) *next_token = drawn;
    return (!logits || copy_logits(session, 1, logits, function, status)) &&
           check_drawn(&slot, &drawn, 1, function, status);
}

enum eng_status eng_prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, size_t count,
                            int32_t *next_token, float *logits, struct eng_error *error)
{
    struct status status = {0};
    return report_result(prefill(session, slot, tokens, count, next_token, logits, &status), &status, error);
}

static bool check_different(const uint32_t *slots, size_t count, const char *function, struct status *status)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (slots[i] == slots[k])
                return status_fail(status, STATUS_USAGE, "%s: entries %zu and %zu are both slot %u", function, k, i,
                                   slots[i]);
    return true;
}

static bool check_decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, size_t count,
                         size_t steps, const int32_t *next_tokens, const char *function, struct status *status)
{
    if (!report_not_null(session, function, "session", status) || !report_not_null(slots, function, "slots", status) ||
        !report_not_null(next_tokens, function, "next_tokens", status))
        return false;
    if (count > session->geometry->slots)
        return status_fail(status, STATUS_USAGE, "%s: count is %zu, expected at most %u slots", function, count,
                           (unsigned)session->geometry->slots);
    for (size_t i = 0; i < count; i++)
        if (!check_slot(session, slots[i], function, status) ||
            !check_context(session, slots[i], steps, function, status))
            return false;
    if (!check_tokens(session, tokens, count, function, status)) return false;
    if (!check_different(slots, count, function, status) || !scheduler_drain(session, status)) return false;
    /* Pages that earlier slots got remain theirs if a later slot finds none: they need them next anyway. */
    for (size_t i = 0; i < count; i++)
        if (!make_room(session, slots[i], steps, function, status)) return false;
    return true;
}

/* Computes all tokens of a slot again if one token more needs other rotary frequencies. */
static bool switch_rope(struct eng_session *session, const uint32_t *slots, uint32_t count, struct status *status)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t position = session->slots[slots[i]].position;
        if (slots_switch_rope(session, (int32_t)slots[i], (uint64_t)position + 1) &&
            !compute_history(session, slots[i], position, NULL, status))
            return false;
    }
    return true;
}

/* Whether the step after the next one may follow it at once: no slot needs other rotary frequencies for it. */
static bool may_look_ahead(const struct eng_session *session, const uint32_t *slots, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (slots_rope_differs(session, (int32_t)slots[i], (uint64_t)session->slots[slots[i]].position + 2))
            return false;
    return session->backend->type->lookahead;
}

/* Submits one step of these slots with these tokens. */
static bool submit_rows(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, uint32_t count,
                        struct status *status)
{
    struct session_plan *plan = replay_decode_plan(session, count);
    for (uint32_t i = 0; i < count; i++) {
        plan->slots[i] = (int32_t)slots[i];
        plan->tokens[i] = tokens[i];
        slots_mark_seen(session, (int32_t)slots[i], &tokens[i], 1);
    }
    return replay_submit_decode(session, plan, count, status);
}

/* Runs `steps` steps; next_tokens: [steps, count]. Ends after a step with PLAN_NO_TOKEN. Requires: arguments were
 * checked, and pages are reserved. */
static bool run_steps(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, uint32_t count,
                      size_t steps, int32_t *next_tokens, struct status *status)
{
    bool queued = false /* the next step */, finite = true;
    const struct session_plan *plan = replay_decode_plan(session, count);
    size_t step = 0;
    for (; step < steps && finite; step++) {
        if (!queued &&
            (!switch_rope(session, slots, count, status) || !submit_rows(session, slots, tokens, count, status)))
            return false;
        queued = step + 1 < steps && may_look_ahead(session, slots, count);
        if (queued && !replay_submit_again(session, plan, false, status)) return false;
        const int32_t *drawn = replay_wait(session, count, status);
        if (!drawn) return false;
        for (uint32_t i = 0; i < count; i++) {
            struct session_slot *slot = &session->slots[slots[i]];
            slot->history[slot->position] = tokens[i];
            replay_accept(session, (int32_t)slots[i], drawn[i]);
            note_row(session, slots[i], i);
            finite &= drawn[i] != PLAN_NO_TOKEN;
        }
        memcpy(next_tokens, drawn, count * sizeof *drawn);
        tokens = next_tokens;
        next_tokens += count;
    }
    if (step == steps) return true;
    /* The step that was queued after the last one is discarded. */
    if (queued && !replay_wait(session, count, status)) return false;
    for (uint32_t i = 0; queued && i < count; i++) replay_reject(session, (int32_t)slots[i]);
    for (size_t i = 0; i < (steps - step) * count; i++) next_tokens[i] = PLAN_NO_TOKEN;
    return true;
}

/* next_tokens: [steps, count]; logits, of the last step, may be NULL. */
static bool decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, size_t count,
                   size_t steps, int32_t *next_tokens, float *logits, const char *function, struct status *status)
{
    if (!check_decode(session, slots, tokens, count, steps, next_tokens, function, status)) return false;
    if (!run_steps(session, slots, tokens, (uint32_t)count, steps, next_tokens, status))
        return status_prefix(status, "%s", function);
    if (logits && !copy_logits(session, count, logits, function, status)) return false;
    for (size_t step = 0; step < steps; step++)
        if (!check_drawn(slots, next_tokens + step * count, count, function, status)) return false;
    return true;
}

enum eng_status eng_decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, size_t count,
                           int32_t *next_tokens, float *logits, struct eng_error *error)
{
    struct status status = {0};
    return report_result(decode(session, slots, tokens, count, 1, next_tokens, logits, "eng_decode", &status), &status,
                         error);
}

enum eng_status eng_decode_steps(struct eng_session *session, const uint32_t *slots, const int32_t *tokens,
                                 size_t count, size_t steps, int32_t *next_tokens, struct eng_error *error)
{
    struct status status = {0};
    return report_result(decode(session, slots, tokens, count, steps, next_tokens, NULL, "eng_decode_steps", &status),
                         &status, error);
}
