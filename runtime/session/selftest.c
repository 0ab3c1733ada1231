/* SPDX-License-Identifier: Apache-2.0 */
/* eng_selftest: runs the engine's golden prompt at the slot level and compares tokens and logits. */
#include <math.h>
#include <stdlib.h>

#include "runtime/session/session.h"

/* Compares one row; false if it is outside the tolerance. The next step uses the golden token in either case, so that
 * one tie does not change all later rows. */
static bool compare_row(const struct engine_golden *golden, uint32_t row, int32_t token, const float *logits,
                        struct eng_selftest_result *result, struct status *status)
{
    const float *expected = golden->logits + (uint64_t)row * golden->vocab_size;
    uint32_t worst = 0;
    float largest = 0;
    for (uint32_t i = 0; i < golden->vocab_size; i++) { /* neither is NaN */
        float error = fabsf(logits[i] - expected[i]);
        if (error <= largest) continue;
        largest = error;
        worst = i;
    }
    result->tokens++;
    if (largest > result->largest_error) result->largest_error = largest;
    if (!(largest <= golden->tolerance))
        return status_fail(
            status, STATUS_INTERNAL,
            "selftest: token %u: logit %u: expected %.6g, found %.6g, tolerance %g; this machine's results differ "
            "from those of the machine that built the engine: rebuild it here, and report a failure that remains",
            row, worst, (double)expected[worst], (double)logits[worst], (double)golden->tolerance);
    if (token == golden->tokens[row]) return true;
    /* Both logits may be off by the tolerance: only a larger gap is a failure. */
    if (expected[golden->tokens[row]] - expected[token] <= 2 * golden->tolerance) {
        result->ties++;
        return true;
    }
    return status_fail(status, STATUS_INTERNAL, "selftest: token %u: expected id %d, found %d", row,
                       golden->tokens[row], token);
}

static bool run(struct eng_session *session, uint32_t slot, float *logits, struct eng_selftest_result *result,
                struct status *status)
{
    const struct engine_golden *golden = &session->engine->file.golden;
    struct eng_error error;
    int32_t token;
    enum eng_status code = eng_prefill(session, slot, golden->prompt, golden->prompt_count, &token, logits, &error);
    for (uint32_t row = 0; code == ENG_OK; row++) {
        if (!compare_row(golden, row, token, logits, result, status)) return false;
        if (row + 1 == golden->token_count) return true;
        code = eng_decode(session, &slot, &golden->tokens[row], 1, &token, logits, &error);
    }
    return status_fail(status, (enum status_code)code, "%s", error.message);
}

enum eng_status eng_selftest(struct eng_session *session, struct eng_selftest_result *result, struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    struct eng_selftest_result own = {0};
    uint32_t slot;
    if (!report_not_null(session, "eng_selftest", "session", &status)) return report_status(&status, error);
    const struct engine_golden *golden = &session->engine->file.golden;
    /* Check the caller's struct before the work, fill it afterwards. */
    if (result && !report_write_facts(result, &own, sizeof own, "eng_selftest_result", &status))
        return report_status(&status, error);
    if (!golden->token_count || !golden->prompt_count) {
        status_fail(&status, STATUS_BAD_INPUT, "selftest: the engine has no golden outputs");
        return report_status(&status, error);
    }
    enum eng_status acquired = eng_slot_acquire(session, &slot, error);
    if (acquired != ENG_OK) return acquired;
    float *logits = malloc(golden->vocab_size * sizeof *logits);
    own.tolerance = golden->tolerance;
    bool ok =
        logits ? run(session, slot, logits, &own, &status) : status_fail(&status, STATUS_MACHINE, "out of memory");
    free(logits);
    slots_give_back(session, (int32_t)slot);
    if (result) report_write_facts(result, &own, sizeof own, "eng_selftest_result", &status);
    return ok ? report_ok(error) : report_status(&status, error);
}
