/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/bench_choices.h"

#include <stdlib.h>

#include "tuner/choose_experts.h"

bool bench_write_choices(const struct cuda_memory *memory, const struct device *device,
                         const struct device_launch *const *launches, int count, struct status *status)
{
    static const char what[] = "writing choices of experts";
    const int64_t *params = launches[0]->tactic.params;
    if (launches[0]->op != OP_MATMUL || !params[MATMUL_EXPERTS]) return true;
    const size_t slots = (size_t)matmul_slots(params, params[MATMUL_ROWS]);
    const size_t route_bytes = 2 * slots * sizeof(float);
    const size_t list_bytes = ((size_t)params[MATMUL_EXPERTS] + 1 + slots) * sizeof(int32_t);
    const int routes_at = op_operand_position(&op_matmul, TARGET_CUDA, params, MATMUL_ROUTES);
    const int lists_at = op_operand_position(&op_matmul, TARGET_CUDA, params, MATMUL_LISTS);
    float *routes = calloc(1, route_bytes);
    int32_t *lists = calloc(1, list_bytes);
    bool ok = (routes && lists) || status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    const int64_t experts = params[MATMUL_EXPERTS];
    uint64_t random = 1;
    for (int i = 0; ok && i < count; i++) {
        const struct plan_operand *to = launches[i]->operands;
        choose_experts(params, &random, routes);
        matmul_fill_expert_lists(routes, params[MATMUL_ROWS], matmul_top_k(params),
                                 &(struct expert_lists){experts, lists, lists + experts + 1});
        ok = device_write(device, memory->base[to[routes_at].space] + to[routes_at].offset, routes, route_bytes, what,
                          status) &&
             device_write(device, memory->base[to[lists_at].space] + to[lists_at].offset, lists, list_bytes, what,
                          status);
    }
    free(routes);
    free(lists);
    return ok;
}
