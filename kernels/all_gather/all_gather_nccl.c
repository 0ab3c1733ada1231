/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_gather/all_gather_nccl.h"

#include "kernels/cuda/vendor/nccl_call.h"

uint64_t all_gather_nccl_bytes(const int64_t *params, enum all_gather_call_operand operand)
{
    uint64_t bytes;
    const bool known = !op_params_illegal(&op_all_gather, params) &&
                       op_operand_bytes(op_all_gather.call, TARGET_CUDA, params, NULL, (int)operand, &bytes);
    return known ? bytes : 0;
}

bool all_gather_nccl_run(const struct nccl_rank *rank, const int64_t *params, const cu_deviceptr *operands,
                         cu_stream stream, struct status *status)
{
    const uint64_t count = (uint64_t)params[ALL_GATHER_ROWS] * (uint64_t)params[ALL_GATHER_WIDTH];
    return nccl_all_gather(rank, operands[ALL_GATHER_CALL_X], operands[ALL_GATHER_CALL_GATHERED], count * sizeof(float),
                           stream, status);
}

static const char *launch_call(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *illegal = op_params_illegal(&op_all_gather, params);
    if (illegal) return illegal;
    *geometry = (struct device_geometry){{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0};
    return NULL;
}

/* Bytes of this GPU's memory, as for the kernel after it. */
static void cost_of_call(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    *bytes = (uint64_t)params[ALL_GATHER_ROWS] * (uint64_t)params[ALL_GATHER_WIDTH] *
             (1 + (uint64_t)params[ALL_GATHER_RANKS]) * sizeof(float);
    *flops = 0;
}

static const char *launch_place(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    enum { MOST_GRID_Y = 65535 };
    const int64_t rows = params[ALL_GATHER_ROWS], threads = params[ALL_GATHER_DEVICE_THREADS];
    const char *illegal = op_params_illegal(&op_all_gather_place, params);
    (void)gpu;
    if (illegal) return illegal;
    if (rows > MOST_GRID_Y) return "ROWS is more than a grid has";
    const int64_t blocks = (params[ALL_GATHER_OUT_WIDTH] + threads - 1) / threads;
    *geometry =
        (struct device_geometry){{(uint32_t)blocks, (uint32_t)rows, 1}, {(uint32_t)threads, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost_of_place(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    *bytes = 2 * (uint64_t)params[ALL_GATHER_ROWS] * (uint64_t)params[ALL_GATHER_OUT_WIDTH] * sizeof(float);
    *flops = 0;
}

const struct device_kernel device_all_gather_nccl = {
    .name = "nccl_all_gather",
    .op = OP_ALL_GATHER,
    .library = LIBRARY_NCCL,
    .problem = &op_all_gather,
    .launch = launch_call,
    .cost = cost_of_call,
    .call = nccl_make_call,
};

const struct device_kernel device_all_gather_place = {
    .name = "all_gather_place",
    .op = OP_ALL_GATHER_PLACE,
    .problem = &op_all_gather_place,
    .launch = launch_place,
    .cost = cost_of_place,
};
