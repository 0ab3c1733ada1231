/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/attention/attention_plan.h"

/* Two passes over the tokens, scores computed twice: no buffer of the length of the context is needed. */
static double score_of(const struct attention_problem *problem, const float *q, int64_t slot, int64_t token,
                       int64_t kv_head)
{
    const uint8_t *key = pages_key(&problem->pages, slot, token, kv_head);
    double dot = 0;
    for (int64_t d = 0; d < problem->head_dim; d++) dot += (double)q[d] * op_element(key, d, problem->dtype);
    return dot * problem->scale;
}

void attention_reference(const struct op_call *call)
{
    const struct attention_problem problem = attention_problem_of(call);
    const int64_t head_dim = problem.head_dim;
    for (int64_t r = 0; r < problem.rows; r++) {
        int64_t slot = problem.slots[r], last = problem.positions[r], first = 0;
        if (problem.window && last >= problem.window) first = last - problem.window + 1;
        for (int64_t h = 0; h < problem.heads; h++) {
            const float *q = problem.q + (r * problem.heads + h) * head_dim;
            float *out = problem.out + (r * problem.heads + h) * head_dim;
            int64_t g = h / problem.group;
            double max = -INFINITY, sum = 0, values[OP_MAX_HEAD_DIM] = {0};
            for (int64_t t = first; t <= last; t++) {
                double score = score_of(&problem, q, slot, t, g);
                if (score > max) max = score;
            }
            for (int64_t t = first; t <= last; t++) {
                double weight = exp(score_of(&problem, q, slot, t, g) - max);
                const uint8_t *value = pages_key(&problem.pages, slot, t, g) + problem.pages.values;
                sum += weight;
                for (int64_t d = 0; d < head_dim; d++) values[d] += weight * op_element(value, d, problem.dtype);
            }
            for (int64_t d = 0; d < head_dim; d++) out[d] = (float)(values[d] / sum);
        }
    }
}
