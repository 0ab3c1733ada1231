/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/attention/attention_plan.h"

/* A key or a value. */
struct row {
    const uint8_t *codes;
    float scale; /* 1 where the encoding has none */
};

/* `offset`: 0 for the key, that of values for the value. */
static struct row row_of(const struct attention_problem *problem, int64_t slot, int64_t token, int64_t kv_head,
                         int64_t offset)
{
    struct row row = {pages_key(&problem->pages, slot, token, kv_head) + offset, 1.0f};
    if (problem->pages.scales)
        memcpy(&row.scale, pages_key_scale(&problem->pages, slot, token, kv_head) + offset, sizeof row.scale);
    return row;
}

static double element(const struct attention_problem *problem, const struct row *row, int64_t d)
{
    switch (problem->encoding) {
    case ENCODING_INT8_CHANNEL: return (double)(int8_t)row->codes[d] * (double)row->scale;
    case ENCODING_E4M3_CHANNEL: return (double)e4m3_to_float(row->codes[d]) * (double)row->scale;
    default: return (double)op_element(row->codes, d, (enum dtype)problem->encoding);
    }
}

/* Two passes over the tokens, scores computed twice: no buffer of the length of the context is needed. */
static double score_of(const struct attention_problem *problem, const float *q, int64_t slot, int64_t token,
                       int64_t kv_head)
{
    const struct row key = row_of(problem, slot, token, kv_head, 0);
    double dot = 0;
    for (int64_t d = 0; d < problem->head_dim; d++) dot += (double)q[d] * element(problem, &key, d);
    const double score = dot * problem->scale, cap = (double)problem->cap;
    return cap > 0 ? cap * tanh(score / cap) : score;
}

void attention_reference(const struct op_call *call)
{
    const struct attention_problem problem = attention_problem_of(call);
    const int64_t head_dim = problem.head_dim, value_dim = problem.value_dim;
    for (int64_t r = 0; r < problem.rows; r++) {
        int64_t slot = problem.slots[r], last = problem.positions[r], first = 0;
        if (problem.window && last >= problem.window) first = last - problem.window + 1;
        for (int64_t h = 0; h < problem.heads; h++) {
            const float *q = problem.q + (r * problem.heads + h) * head_dim;
            float *out = problem.out + (r * problem.heads + h) * value_dim;
            int64_t g = h / problem.group;
            double max = -INFINITY, sum = 0, values[OP_MAX_LATENT_DIM] = {0};
            for (int64_t t = first; t <= last; t++) {
                double score = score_of(&problem, q, slot, t, g);
                if (score > max) max = score;
            }
            if (problem.sinks) {
                const double sink = (double)op_element(problem.sinks, h, problem.sinks_dtype);
                if (sink > max) max = sink;
                sum = exp(sink - max);
            }
            for (int64_t t = first; t <= last; t++) {
                double weight = exp(score_of(&problem, q, slot, t, g) - max);
                const struct row value = row_of(&problem, slot, t, g, problem.pages.values);
                sum += weight;
                for (int64_t d = 0; d < value_dim; d++) values[d] += weight * element(&problem, &value, d);
            }
            for (int64_t d = 0; d < value_dim; d++) out[d] = (float)(values[d] / sum);
        }
    }
}
