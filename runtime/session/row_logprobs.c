/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of a token and of the likeliest ones, from a row's logits as the model gave them. */
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

void logprobs_of_row(const float *logits, uint64_t vocab_size, int32_t token, struct eng_logprob *own,
                     struct eng_logprob *top, size_t count)
{
    const double all = log_sum(logits, vocab_size);
    *own = (struct eng_logprob){token, (float)((double)logits[token] - all)};
    find_top(logits, vocab_size, top, count);
    for (size_t i = 0; i < count; i++) top[i].logprob = (float)((double)top[i].logprob - all);
}
