/* eng_step: which plan runs next, and on whose behalf. */
#include "runtime/session.h"

static struct eng_sequence *oldest_in_prefill(const struct eng_session *session)
{
    for (uint32_t i = 0; i < session->active_count; i++)
        if (session->active[i]->state == ENG_STATE_PREFILL) return session->active[i];
    return NULL;
}

static uint32_t decoding_count(const struct eng_session *session)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < session->active_count; i++) count += session->active[i]->state == ENG_STATE_DECODE;
    return count;
}

static bool step_prefill(struct eng_sequence *sequence, struct status *status)
{
    struct eng_session *session = sequence->session;
    size_t plan;
    uint32_t chunk = replay_chunk(session, sequence->count - sequence->computed, &plan);
    bool last = sequence->computed + chunk == sequence->count;
    int32_t drawn = 0;
    const float *logits = NULL;
    if (!replay_prefill(session, sequence->slot, sequence->tokens + sequence->computed, chunk, plan,
                        last ? &drawn : NULL, &logits, status))
        return false;
    sequence->computed += chunk;
    if (last) sequence_append(sequence, drawn, logits);
    return true;
}

static bool step_decode(struct eng_session *session, uint32_t count, struct status *status)
{
    struct session_plan *plan = replay_decode_plan(session, count);
    uint32_t row = 0;
    for (uint32_t i = 0; i < session->active_count; i++) {
        struct eng_sequence *sequence = session->active[i];
        if (sequence->state != ENG_STATE_DECODE) continue;
        plan->slots[row] = sequence->slot;
        plan->tokens[row++] = sequence->tokens[sequence->computed++];
    }
    if (!replay_decode(session, plan, count, status)) return false;
    /* Backwards, because a sequence that ends leaves the list; rows were given in the list's order. */
    for (uint32_t i = session->active_count; i-- > 0;) {
        struct eng_sequence *sequence = session->active[i];
        if (sequence->state != ENG_STATE_DECODE) continue;
        row--;
        sequence_append(sequence, plan->next_tokens[row], plan->logits + row * session->geometry->vocab_size);
    }
    return true;
}

static bool step(struct eng_session *session, struct status *status)
{
    sequence_admit(session);
    struct eng_sequence *prefill = oldest_in_prefill(session);
    uint32_t decoding = decoding_count(session);
    if (prefill && (!decoding || !session->prefilled_last)) {
        session->prefilled_last = true;
        return step_prefill(prefill, status);
    }
    if (decoding) {
        session->prefilled_last = false;
        return step_decode(session, decoding, status);
    }
    if (!session->waiting_count) return true;
    return status_fail(status, STATUS_FULL,
                       "eng_step: %u sequences wait, none runs, %u slots and %u KV pages are free; destroy kept "
                       "sequences or release slots",
                       session->waiting_count, session->free_slot_count, session->free_page_count);
}

enum eng_status eng_step(struct eng_session *session, uint32_t *unfinished, struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    if (!report_not_null(session, "eng_step", "session", &status)) return report_status(&status, error);
    bool ok = step(session, &status);
    if (unfinished) *unfinished = session->active_count + session->waiting_count;
    return ok ? report_ok(error) : report_status(&status, error);
}
