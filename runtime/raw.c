/* The slot level of the API: arguments are checked here, slots.c does the work. */
#include <string.h>

#include "runtime/session.h"

static bool check_slot(const struct eng_session *session, uint32_t slot, const char *function, struct status *status)
{
    if (!report_not_null(session, function, "session", status)) return false;
    if (slot >= session->geometry->slots)
        return status_fail(status, STATUS_USAGE, "%s: slot is %u, expected 0 to %u", function, slot,
                           (unsigned)session->geometry->slots - 1);
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

/* Room for `count` more tokens: in the context and in the page pool. */
static bool make_room(struct eng_session *session, uint32_t slot, size_t count, const char *function,
                      struct status *status)
{
    const struct session_slot *own = &session->slots[slot];
    uint64_t context = session->geometry->max_context;
    if (count > context - own->position)
        return status_fail(status, STATUS_TOO_LONG,
                           "%s: slot %u holds %u tokens and %zu more exceed the context of %u tokens", function, slot,
                           own->position, count, (unsigned)context);
    if (slots_reserve(session, (int32_t)slot, own->position + count)) return true;
    return status_fail(status, STATUS_FULL, "%s: slot %u needs %u KV pages in all, has %u, and %u are free", function,
                       slot, slots_pages_for(session, own->position + count), own->pages, session->free_page_count);
}

enum eng_status eng_slot_acquire(struct eng_session *session, uint32_t *slot, struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    if (!report_not_null(session, "eng_slot_acquire", "session", &status) ||
        !report_not_null(slot, "eng_slot_acquire", "slot", &status))
        return report_status(&status, error);
    int32_t taken = slots_take(session, SLOT_RAW);
    if (taken == SESSION_NO_SLOT) {
        status_fail(&status, STATUS_FULL, "eng_slot_acquire: all %u slots are in use",
                    (unsigned)session->geometry->slots);
        return report_status(&status, error);
    }
    *slot = (uint32_t)taken;
    return report_ok(error);
}

enum eng_status eng_slot_release(struct eng_session *session, uint32_t slot, struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    if (!check_slot(session, slot, "eng_slot_release", &status)) return report_status(&status, error);
    slots_give_back(session, (int32_t)slot);
    return report_ok(error);
}

enum eng_status eng_slot_set_sampling(struct eng_session *session, uint32_t slot, const struct eng_sampling *sampling,
                                      struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    struct sampler_state state;
    if (!check_slot(session, slot, "eng_slot_set_sampling", &status) || !sampling_read(sampling, &state, &status))
        return report_status(&status, error);
    session->samplers[slot] = state;
    return report_ok(error);
}

enum eng_status eng_slot_position(const struct eng_session *session, uint32_t slot, uint32_t *position,
                                  struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    if (!check_slot(session, slot, "eng_slot_position", &status) ||
        !report_not_null(position, "eng_slot_position", "position", &status))
        return report_status(&status, error);
    *position = session->slots[slot].position;
    return report_ok(error);
}

enum eng_status eng_slot_truncate(struct eng_session *session, uint32_t slot, uint32_t position,
                                  struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    if (!check_slot(session, slot, "eng_slot_truncate", &status)) return report_status(&status, error);
    if (position > session->slots[slot].position) {
        status_fail(&status, STATUS_USAGE, "eng_slot_truncate: position is %u, expected 0 to %u", position,
                    session->slots[slot].position);
        return report_status(&status, error);
    }
    slots_truncate(session, (int32_t)slot, position);
    return report_ok(error);
}

static bool prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, size_t count,
                    int32_t *next_token, float *logits, struct status *status)
{
    static const char function[] = "eng_prefill";
    if (!check_slot(session, slot, function, status) || !check_tokens(session, tokens, count, function, status) ||
        !make_room(session, slot, count, function, status))
        return false;
    memcpy(session->slots[slot].history + session->slots[slot].position, tokens, count * sizeof *tokens);
    slots_mark_seen(session, (int32_t)slot, tokens, count);
    bool wanted = next_token || logits;
    int32_t drawn = 0;
    const float *drawn_from = NULL;
    for (size_t done = 0; done < count;) {
        size_t plan;
        uint32_t chunk = replay_chunk(session, count - done, &plan);
        bool last = done + chunk == count;
        if (!replay_prefill(session, (int32_t)slot, tokens + done, chunk, plan, wanted && last ? &drawn : NULL,
                            &drawn_from, status))
            return status_prefix(status, "%s", function);
        done += chunk;
    }
    if (next_token) *next_token = drawn;
    if (logits) memcpy(logits, drawn_from, session->geometry->vocab_size * sizeof *logits);
    return true;
}

enum eng_status eng_prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, size_t count,
                            int32_t *next_token, float *logits, struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    if (!prefill(session, slot, tokens, count, next_token, logits, &status)) return report_status(&status, error);
    return report_ok(error);
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

static bool decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, size_t count,
                   int32_t *next_tokens, float *logits, struct status *status)
{
    static const char function[] = "eng_decode";
    if (!report_not_null(session, function, "session", status) || !report_not_null(slots, function, "slots", status) ||
        !report_not_null(next_tokens, function, "next_tokens", status) ||
        !check_tokens(session, tokens, count, function, status))
        return false;
    if (count > session->geometry->slots)
        return status_fail(status, STATUS_USAGE, "%s: count is %zu, at most %u slots", function, count,
                           (unsigned)session->geometry->slots);
    for (size_t i = 0; i < count; i++)
        if (!check_slot(session, slots[i], function, status)) return false;
    if (!check_different(slots, count, function, status)) return false;
    /* A page that one slot got stays with it when a later slot finds none: it is its next page anyway. */
    for (size_t i = 0; i < count; i++)
        if (!make_room(session, slots[i], 1, function, status)) return false;

    struct session_plan *plan = replay_decode_plan(session, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        struct session_slot *slot = &session->slots[slots[i]];
        plan->slots[i] = (int32_t)slots[i];
        plan->tokens[i] = slot->history[slot->position] = tokens[i];
        slots_mark_seen(session, (int32_t)slots[i], &tokens[i], 1);
    }
    if (!replay_decode(session, plan, (uint32_t)count, status)) return status_prefix(status, "%s", function);
    memcpy(next_tokens, plan->next_tokens, count * sizeof *next_tokens);
    if (logits) memcpy(logits, plan->logits, count * session->geometry->vocab_size * sizeof *logits);
    return true;
}

enum eng_status eng_decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, size_t count,
                           int32_t *next_tokens, float *logits, struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    if (!decode(session, slots, tokens, count, next_tokens, logits, &status)) return report_status(&status, error);
    return report_ok(error);
}
