/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of drawn tokens. */
#include "runtime/session/session.h"

enum eng_status eng_sequence_logprobs(const struct eng_sequence *sequence, struct eng_logprob *drawn,
                                      struct eng_logprob *top, size_t count, struct eng_error *error)
{
    static const char function[] = "eng_sequence_logprobs";
    struct status status = {0};
    if (!report_not_null(sequence, function, "sequence", &status) ||
        (count && !report_not_null(top, function, "top", &status)))
        return report_status(&status, error);
    if (count > ENG_MAX_LOGPROBS) {
        status_fail(&status, STATUS_USAGE, "%s: count is %zu, expected at most %d", function, count, ENG_MAX_LOGPROBS);
        return report_status(&status, error);
    }
    const float *logits = eng_sequence_logits(sequence);
    if (!logits) {
        status_fail(
            &status, STATUS_USAGE,
            "%s: there are no logits: the last step drew no token of this sequence, or the engine runs on a GPU "
            "and the sequence was not created with ENG_SEQUENCE_LOGITS",
            function);
        return report_status(&status, error);
    }
    struct eng_logprob own;
    logprobs_of_row(logits, sequence->session->geometry->vocab_size, sequence->tokens[sequence->count - 1], &own, top,
                    count);
    if (drawn) *drawn = own;
    return report_ok(error);
}
