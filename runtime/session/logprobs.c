/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of a drawn token and of the likeliest ones, from the row's logits as the model gave them. */
#include <math.h>

#include "kernels/cpu/vector_portable.h"
#include "runtime/session/session.h"

/* Logarithm of the sum of exponentials. Requires: no logit is NaN or +infinity, and one is finite, as in every row that gave
 * a token, unless tokens that were not allowed have others: then the result is NaN. */
static double log_sum(const float *logits, uint64_t vocab_size)
{
    enum { BLOCK = 64 * VEC_WIDTH }; /* so few additions in float */
    const uint64_t whole = vocab_size - vocab_size % VEC_WIDTH;
    vec most = vec_set(-INFINITY);
    for (uint64_t t = 0; t < whole; t += VEC_WIDTH) most = vec_max(vec_load(logits + t), most);
    float largest = vec_largest(most);
    for (uint64_t t = whole; t < vocab_size; t++) largest = logits[t] > largest ? logits[t] : largest;
    double sum = 0;
    for (uint64_t block = 0; block < whole; block += BLOCK) {
        const uint64_t end = block + BLOCK < whole ? block + BLOCK : whole;
        vec sums = vec_set(0);
        for (uint64_t t = block; t < end; t += VEC_WIDTH) sums += vec_exp(vec_load(logits + t) - vec_set(largest));
        sum += (double)vec_sum(sums);
    }
    for (uint64_t t = whole; t < vocab_size; t++) sum += (double)expf(logits[t] - largest);
    return (double)largest + log(sum);
}

/* The `count` largest logits, of equal ones the lowest tokens first. Entries beyond the vocabulary have token -1. */
static void find_top(const float *logits, uint64_t vocab_size, struct eng_logprob *top, size_t count)
{
    size_t found = 0;
    for (uint64_t t = 0; count && t < vocab_size; t++) {
        if (!(found < count || logits[t] > top[count - 1].logprob) || isnan(logits[t])) continue;
        size_t place = found < count ? found++ : count - 1;
        for (; place > 0 && logits[t] > top[place - 1].logprob; place--) top[place] = top[place - 1];
        top[place] = (struct eng_logprob){(int32_t)t, logits[t]};
    }
    for (; found < count; found++) top[found] = (struct eng_logprob){-1, -INFINITY};
}

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
    const uint64_t vocab_size = sequence->session->geometry->vocab_size;
    const double all = log_sum(logits, vocab_size);
    const int32_t token = sequence->tokens[sequence->count - 1];
    if (drawn) *drawn = (struct eng_logprob){token, (float)((double)logits[token] - all)};
    find_top(logits, vocab_size, top, count);
    for (size_t i = 0; i < count; i++) top[i].logprob = (float)((double)top[i].logprob - all);
    return report_ok(error);
}
