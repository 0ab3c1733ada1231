/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/sample/philox.h"
#include "kernels/sample/sample_row.h"

static float penalised(const struct sample_row *row, uint32_t token)
{
    float value = row->logits[token], penalty = row->sampler->repetition_penalty;
    if (!sample_is_allowed(row->allowed, token)) return -INFINITY;
    if (penalty != 1.0f && sample_is_seen(row, token)) value = value > 0 ? value / penalty : value * penalty;
    return row->adjustments ? sample_adjusted(row->adjustments, row->sampler, token, value) : value;
}

/* Falling value, then rising id. */
static bool comes_before(const struct sample_row *row, uint32_t a, uint32_t b)
{
    float value_a = penalised(row, a), value_b = penalised(row, b);
    return value_a > value_b || (value_a == value_b && a < b);
}

/* Heap sort: in place, as there is no memory to allocate. */
static void sift_down(const struct sample_row *row, uint32_t *ids, int64_t root, int64_t count)
{
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && comes_before(row, ids[child], ids[child + 1])) child++;
        if (!comes_before(row, ids[root], ids[child])) return;
        uint32_t id = ids[root];
        ids[root] = ids[child];
        ids[child] = id;
    }
}

static void sort_ids(const struct sample_row *row, uint32_t *ids, int64_t count)
{
    for (int64_t root = count / 2 - 1; root >= 0; root--) sift_down(row, ids, root, count);
    for (int64_t last = count - 1; last > 0; last--) {
        uint32_t id = ids[0];
        ids[0] = ids[last];
        ids[last] = id;
        sift_down(row, ids, 0, last);
    }
}

static int32_t draw(const struct sample_row *row)
{
    const struct sampler_state *sampler = row->sampler;
    uint32_t *ids = row->ids;
    int64_t count = row->vocab;
    for (int64_t t = 0; t < count; t++) {
        const float value = penalised(row, (uint32_t)t);
        if (isnan(value) || value == INFINITY) return PLAN_NO_TOKEN;
        ids[t] = (uint32_t)t;
    }
    sort_ids(row, ids, count);
    double largest = penalised(row, ids[0]);
    if (largest == -INFINITY) return PLAN_NO_TOKEN;
    if (!(sampler->temperature > 0)) return (int32_t)ids[0];

    if (sampler->top_k > 0 && sampler->top_k < count) {
        float least = penalised(row, ids[sampler->top_k - 1]);
        int64_t kept = sampler->top_k;
        while (kept < count && penalised(row, ids[kept]) == least) kept++;
        count = kept;
    }
    if (sampler->options & SAMPLER_MIN_P) {
        int64_t kept = 1;
        while (kept < count && (penalised(row, ids[kept]) - largest) / sampler->temperature >= sampler->min_p_log)
            kept++;
        count = kept;
    }
    double total = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = penalised(row, ids[i]);
        total += value == largest ? 1.0 : exp((value - largest) / sampler->temperature);
    }
    double sum = 0;
    if (sampler->top_p < 1.0f) {
        int64_t kept = 0;
        while (kept < count && (kept == 0 || sum < (double)sampler->top_p * total)) {
            double value = penalised(row, ids[kept++]);
            sum += value == largest ? 1.0 : exp((value - largest) / sampler->temperature);
        }
        count = kept;
        total = sum;
    }
    double target = total * philox_uniform_24(sampler->seed, row->draw) / (1 << PHILOX_UNIFORM_BITS);
    sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = penalised(row, ids[i]);
        sum += value == largest ? 1.0 : exp((value - largest) / sampler->temperature);
        if (sum > target) return (int32_t)ids[i];
    }
    return (int32_t)ids[count - 1];
}

void sample_reference(const struct op_call *call)
{
    int64_t rows = op_valid_rows(call);
    for (int64_t r = 0; r < rows; r++) {
        struct sample_row row = sample_row_of(call, r);
        sample_commit(call, r, &row, row.sampler ? draw(&row) : 0);
    }
}
