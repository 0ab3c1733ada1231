/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a slot's sampler that have state of their own: logit biases and penalties of the answer's tokens
 * (STATE_ADJUSTMENTS), tokens that may be drawn (STATE_ALLOWED). A row is filled when its sampler gets the option, and costs
 * nothing before. */
#include <string.h>

#include "runtime/session/session.h"

/* Several processes: the data must be the same in all. */
static void agree(struct eng_session *session, const void *bytes, size_t count)
{
    const struct backend_type *type = session->backend->type;
    if (type->agree && count) type->agree(session->backend, bytes, count);
}

static uint32_t *adjustments_of(struct eng_session *session, int32_t slot)
{
    return session->adjustments + (uint64_t)slot * plan_adjustment_words(session->geometry->vocab_size);
}

static bool adjusts(const struct eng_session *session, int32_t slot)
{
    return session->samplers[slot].options & SAMPLER_ADJUSTS;
}

void slot_options_set(struct eng_session *session, int32_t slot, const struct session_sampling *sampling)
{
    slots_set_sampler(session, slot, &sampling->state);
    session->slots[slot].answer_start = session->slots[slot].position;
    if (!adjusts(session, slot)) return;
    uint32_t *row = adjustments_of(session, slot);
    memset(row, 0, plan_adjustment_words(session->geometry->vocab_size) * sizeof *row);
    for (uint32_t i = 0; i < sampling->bias_count; i++) {
        memcpy(&row[i + 1], &sampling->biases[i].bias, sizeof *row);
        row[PLAN_BIAS_WORDS + sampling->biases[i].token] = (i + 1) << PLAN_COUNT_BITS;
    }
    slots_changed(session, slot, BACKEND_ADJUSTMENTS);
    agree(session, sampling->biases, sampling->bias_count * sizeof *sampling->biases);
}

void slot_options_begin_answer(struct eng_session *session, int32_t slot, const int32_t *tokens, size_t count)
{
    if (!adjusts(session, slot)) return;
    uint32_t *row = adjustments_of(session, slot);
    for (uint64_t t = 0; t < session->geometry->vocab_size; t++) row[PLAN_BIAS_WORDS + t] &= ~(uint32_t)PLAN_COUNT_MOST;
    for (size_t i = 0; i < count; i++) plan_count_token(row, tokens[i]);
    slots_changed(session, slot, BACKEND_ADJUSTMENTS);
}

void slot_options_recount(struct eng_session *session, int32_t slot)
{
    struct session_slot *own = &session->slots[slot];
    if (own->answer_start > own->position) own->answer_start = own->position;
    slot_options_begin_answer(session, slot, own->history + own->answer_start, own->position - own->answer_start);
}

void slot_options_set_allowed(struct eng_session *session, int32_t slot, const uint32_t *allowed)
{
    struct sampler_state *sampler = &session->samplers[slot];
    const uint64_t words = plan_allowed_words(session->geometry->vocab_size);
    if (!allowed && !(sampler->options & SAMPLER_ALLOWS)) return;
    const uint32_t before = sampler->options;
    sampler->options = allowed ? before | SAMPLER_ALLOWS : before & ~(uint32_t)SAMPLER_ALLOWS;
    if (allowed) {
        memcpy(session->allowed + (uint64_t)slot * words, allowed, words * sizeof *allowed);
        slots_changed(session, slot, BACKEND_ALLOWED);
        agree(session, allowed, words * sizeof *allowed);
    }
    if (sampler->options != before) slots_changed(session, slot, BACKEND_SAMPLER);
}

bool slot_options_check_allowed(const struct eng_session *session, const uint32_t *allowed, size_t words,
                                const char *function, enum session_mask *mask, struct status *status)
{
    const uint64_t vocab_size = session->geometry->vocab_size, expected = allowed ? plan_allowed_words(vocab_size) : 0;
    if (!session->geometry->sampling_options)
        return status_fail(status, STATUS_VERSION,
                           "%s: the engine was built before format 2.3 and cannot restrict tokens; build it again with "
                           "this release's engbuild",
                           function);
    if (words != expected)
        return status_fail(status, STATUS_USAGE, "%s: words is %zu, expected %u (%s)", function, words,
                           (unsigned)expected, allowed ? "vocab_size / 32, rounded up" : "allowed is NULL");
    *mask = allowed ? MASK_NONE : MASK_ALL;
    for (uint64_t w = 0; w < expected && *mask == MASK_NONE; w++) {
        const uint64_t rest = vocab_size - 32 * w;
        const uint32_t valid = rest < 32 ? (1u << rest) - 1u : UINT32_MAX;
        if (allowed[w] & valid) *mask = MASK_SOME;
    }
    return true;
}
