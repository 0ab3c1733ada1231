/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/nccl_launches.h"

#include <string.h>

#include "kernels/all_gather/all_gather_nccl.h"
#include "kernels/all_reduce/all_reduce_nccl.h"

/* For few rows all terms are gathered here and our own kernel computes the sum, with the same or a smaller rounding
 * error. */
static bool gathers(const int64_t *params)
{
    enum { MOST_BYTES = 8 << 20 }; /* of the other ranks */
    return !all_reduce_device_illegal(params) &&
           all_reduce_nccl_bytes(params) <= MOST_BYTES / ((uint64_t)params[ALL_REDUCE_RANKS] - 1);
}

uint64_t nccl_result_bytes(const struct device_launch *site)
{
    const int64_t *params = site->tactic.params;
    if (site->op == OP_ALL_REDUCE)
        return all_reduce_nccl_bytes(params) * (gathers(params) ? (uint64_t)params[ALL_REDUCE_RANKS] : 1);
    return site->op == OP_ALL_GATHER ? all_gather_nccl_bytes(params, ALL_GATHER_CALL_GATHERED) : 0;
}

static void begin(struct device_launch *launch, const struct device_launch *site, const struct device_kernel *kernel)
{
    *launch = (struct device_launch){.op = kernel->op,
                                     .layer = site->layer,
                                     .record = PLAN_NO_TACTIC,
                                     .problem = PLAN_NO_TACTIC,
                                     .tactic = {.kernel = kernel},
                                     .operand_count = 0};
    memcpy(launch->tactic.params, site->tactic.params, sizeof launch->tactic.params);
}

static void add(struct device_launch *launch, const struct plan_operand *operand, enum plan_access access)
{
    struct plan_operand *added = &launch->operands[launch->operand_count++];
    *added = *operand;
    added->access = (uint8_t)access;
}

static void reduce(const struct device_launch *site, const struct plan_operand *sum, struct device_launch *launches)
{
    struct device_launch *call = &launches[0], *finish = &launches[1];
    const struct plan_operand *operands = site->operands;
    const int64_t *params = site->tactic.params;
    const bool terms = gathers(params);
    begin(call, site, terms ? &device_all_gather_nccl : &device_all_reduce_nccl);
    if (terms) {
        memset(call->tactic.params, 0, sizeof call->tactic.params);
        all_reduce_gather_params(params, call->tactic.params);
    } else {
        call->tactic.params[ALL_REDUCE_HAS_RESIDUAL] = call->tactic.params[ALL_REDUCE_HAS_NORM] = 0;
    }
    add(call, &operands[ALL_REDUCE_COUNTS], ACCESS_READ);
    add(call, &operands[ALL_REDUCE_X], ACCESS_READ);
    add(call, sum, ACCESS_WRITE);
    begin(finish, site, &device_all_reduce_finish);
    all_reduce_finish_params(finish->tactic.params, terms ? params[ALL_REDUCE_RANKS] : 1);
    add(finish, &operands[ALL_REDUCE_COUNTS], ACCESS_READ);
    add(finish, sum, ACCESS_READ);
    for (uint32_t i = ALL_REDUCE_OUT; i < site->operand_count; i++)
        add(finish, &operands[i], (enum plan_access)operands[i].access);
}

static void gather(const struct device_launch *site, const struct plan_operand *gathered,
                   struct device_launch *launches)
{
    enum { THREADS = 256 };
    struct device_launch *call = &launches[0], *place = &launches[1];
    begin(call, site, &device_all_gather_nccl);
    add(call, &site->operands[ALL_GATHER_COUNTS], ACCESS_READ);
    add(call, &site->operands[ALL_GATHER_X], ACCESS_READ);
    add(call, gathered, ACCESS_WRITE);
    begin(place, site, &device_all_gather_place);
    place->tactic.params[ALL_GATHER_DEVICE_THREADS] = THREADS;
    add(place, &site->operands[ALL_GATHER_COUNTS], ACCESS_READ);
    add(place, gathered, ACCESS_READ);
    add(place, &site->operands[ALL_GATHER_OUT], ACCESS_WRITE);
}

uint32_t nccl_launches(const struct device_launch *site, struct library_space *space,
                       struct device_launch launches[LIBRARY_MOST_LAUNCHES])
{
    const struct plan_operand result = {.space = SPACE_ARENA,
                                        .offset = space->projection,
                                        .bytes = nccl_result_bytes(site)};
    if (space->projection + result.bytes > space->end) space->end = space->projection + result.bytes;
    if (site->op == OP_ALL_REDUCE)
        reduce(site, &result, launches);
    else
        gather(site, &result, launches);
    return 2;
}
