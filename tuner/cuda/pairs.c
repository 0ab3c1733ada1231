/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/pairs.h"

#include "kernels/matmul/matmul_device.h"
#include "kernels/matmul/matmul_grouped_layout.cuh"

/* With more choices neither matmul_gemv nor matmul_grouped takes the problem, and others begin when the launch before has ended. */
static bool has_early_kernels(const int64_t *params)
{
    return matmul_slots(params, params[MATMUL_ROWS]) <= GROUPED_MOST_CHOICES;
}

bool begins_pair(enum plan_op op, const int64_t *params)
{
    return op == OP_ROUTED_MATMUL ||
           (op == OP_MATMUL && params[MATMUL_EXPERTS] && matmul_shares_x(params) && has_early_kernels(params));
}

bool ends_pair(enum plan_op op, const int64_t *params)
{
    return op == OP_MATMUL && params[MATMUL_EARLY_ROUTES] && has_early_kernels(params);
}

/* Shared memory that a block takes; INT64_MAX: the tactic cannot be launched. */
static int64_t shared_bytes(const struct device_tactic *tactic, const struct device_facts *gpu)
{
    struct device_geometry geometry;
    if (tactic->kernel->launch(tactic->params, gpu, &geometry)) return INT64_MAX;
    return (int64_t)geometry.shared_bytes + DEVICE_RESERVED_SHARED_BYTES;
}

bool leaves_room(const struct device_tactic *tactic, const struct device_facts *gpu)
{
    const int64_t second = matmul_device_second_shared(gpu) + DEVICE_RESERVED_SHARED_BYTES;
    return shared_bytes(tactic, gpu) <= gpu->shared_per_sm - second;
}

static double pair_us(const struct tuned_problem *first, const struct tuned_problem *second,
                      const struct tactic_pair pair)
{
    return first->shortlist[pair.first].record.median_us + second->shortlist[pair.second].record.median_us;
}

int choose_pairs(const struct tuned_problem *first, const struct tuned_problem *second, const struct device_facts *gpu,
                 struct tactic_pair pairs[MOST_PAIRS])
{
    int count = 0;
    for (int f = 0; f < first->shortlist_count; f++)
        for (int s = 0; s < second->shortlist_count; s++) {
            const int64_t of_first = shared_bytes(&first->shortlist[f].tactic, gpu),
                          of_second = shared_bytes(&second->shortlist[s].tactic, gpu);
            if (of_first > gpu->shared_per_sm || of_second > gpu->shared_per_sm - of_first) continue;
            const struct tactic_pair pair = {f, s};
            const double us = pair_us(first, second, pair);
            int at = count < MOST_PAIRS ? count++ : MOST_PAIRS;
            if (at == MOST_PAIRS && us >= pair_us(first, second, pairs[--at])) continue;
            for (; at > 0 && us < pair_us(first, second, pairs[at - 1]); at--) pairs[at] = pairs[at - 1];
            pairs[at] = pair;
        }
    return count;
}
