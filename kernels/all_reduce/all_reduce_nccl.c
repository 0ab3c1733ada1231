/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce/all_reduce_nccl.h"

#include "kernels/all_gather/all_gather_device.h"
#include "kernels/cuda/vendor/nccl_call.h"

/* Checks of the problem for both launches. */
static const char *check(const int64_t *params)
{
    int64_t problem[PLAN_MAX_PARAMS] = {0};
    for (int i = 0; i < ALL_REDUCE_DEVICE_THREADS; i++) problem[i] = params[i];
    problem[ALL_REDUCE_DEVICE_THREADS] = 32;
    return all_reduce_device_illegal(problem);
}

static uint64_t row_bytes(const int64_t *params)
{
    return (uint64_t)params[ALL_REDUCE_DEVICE_WIDTH] * dtype_bytes((enum dtype)params[ALL_REDUCE_DEVICE_X_DTYPE]);
}

uint64_t all_reduce_nccl_bytes(const int64_t *params)
{
    return check(params) ? 0
                         : (uint64_t)params[ALL_REDUCE_DEVICE_ROWS] * row_bytes(params); /* 2^20 * 2^24 * 4 at most */
}

bool all_reduce_nccl_run(const struct nccl_rank *rank, const int64_t *params, const cu_deviceptr *operands,
                         cu_stream stream, struct status *status)
{
    const uint64_t count = (uint64_t)params[ALL_REDUCE_DEVICE_ROWS] * (uint64_t)params[ALL_REDUCE_DEVICE_WIDTH];
    return nccl_all_reduce(rank, (enum dtype)params[ALL_REDUCE_DEVICE_X_DTYPE], operands[ALL_REDUCE_CALL_X],
                           operands[ALL_REDUCE_CALL_SUM], count, stream, status);
}

static const char *launch_call(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *illegal = check(params);
    if (illegal) return illegal;
    if (params[ALL_REDUCE_DEVICE_HAS_RESIDUAL] || params[ALL_REDUCE_DEVICE_HAS_NORM])
        return "HAS_RESIDUAL or HAS_NORM is not 0, but NCCL forms sums alone";
    *geometry = (struct device_geometry){{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0};
    return NULL;
}

/* Bytes of this GPU's memory. */
static void cost_of_call(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[ALL_REDUCE_DEVICE_ROWS] * (uint64_t)params[ALL_REDUCE_DEVICE_WIDTH];
    *bytes = 2 * (uint64_t)params[ALL_REDUCE_DEVICE_ROWS] * row_bytes(params);
    *flops = elements * (uint64_t)params[ALL_REDUCE_DEVICE_RANKS];
}

static const char *launch_finish(const int64_t *params, const struct device_facts *gpu,
                                 struct device_geometry *geometry)
{
    enum { VECTOR_BYTES = 16, MOST_STEPS = 4, WARP = 32, MOST_THREADS = 1024 };
    (void)gpu;
    const int64_t threads = params[ALL_REDUCE_DEVICE_THREADS];
    const char *illegal = check(params);
    if (illegal) return illegal;
    if (threads < WARP || threads > MOST_THREADS || threads % WARP)
        return "THREADS is not a multiple of 32 in 32..1024";
    if (params[ALL_REDUCE_DEVICE_HAS_RESIDUAL] == ALL_REDUCE_OWN_ROWS ||
        params[ALL_REDUCE_DEVICE_HAS_NORM] == ALL_REDUCE_OWN_ROWS)
        return "HAS_RESIDUAL or HAS_NORM is 2, but every rank finishes every row";
    if (params[ALL_REDUCE_FINISH_PARTS] != 1 && params[ALL_REDUCE_FINISH_PARTS] != params[ALL_REDUCE_DEVICE_RANKS])
        return "PARTS is neither 1 nor RANKS";
    if ((row_bytes(params) / VECTOR_BYTES + (uint64_t)threads - 1) / (uint64_t)threads > MOST_STEPS)
        return "THREADS is too small for a row to stay in registers";
    *geometry = (struct device_geometry){{(uint32_t)params[ALL_REDUCE_DEVICE_ROWS], 1, 1},
                                         {(uint32_t)threads, 1, 1},
                                         {1, 1, 1},
                                         0};
    return NULL;
}

void all_reduce_finish_params(int64_t *params, int64_t parts)
{
    enum { LEAST = 64, MOST = 1024, VECTOR_BYTES = 16 };
    const uint64_t vectors = row_bytes(params) / VECTOR_BYTES;
    uint64_t threads = LEAST;
    while (threads < MOST && threads < vectors) threads *= 2;
    if (params[ALL_REDUCE_DEVICE_HAS_RESIDUAL]) params[ALL_REDUCE_DEVICE_HAS_RESIDUAL] = ALL_REDUCE_EVERY_ROW;
    if (params[ALL_REDUCE_DEVICE_HAS_NORM]) params[ALL_REDUCE_DEVICE_HAS_NORM] = ALL_REDUCE_EVERY_ROW;
    params[ALL_REDUCE_DEVICE_THREADS] = (int64_t)threads;
    params[ALL_REDUCE_FINISH_PARTS] = parts;
}

void all_reduce_gather_params(const int64_t *params, int64_t *gather)
{
    const int64_t words = (int64_t)(row_bytes(params) / sizeof(uint32_t)); /* WIDTH is a multiple of 8 */
    gather[ALL_GATHER_DEVICE_ROWS] = params[ALL_REDUCE_DEVICE_ROWS];
    gather[ALL_GATHER_DEVICE_COUNT_INDEX] = params[ALL_REDUCE_DEVICE_COUNT_INDEX];
    gather[ALL_GATHER_DEVICE_WIDTH] = words;
    gather[ALL_GATHER_DEVICE_OUT_WIDTH] = words * params[ALL_REDUCE_DEVICE_RANKS];
    gather[ALL_GATHER_DEVICE_RANKS] = params[ALL_REDUCE_DEVICE_RANKS];
}

static void cost_of_finish(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[ALL_REDUCE_DEVICE_ROWS] * (uint64_t)params[ALL_REDUCE_DEVICE_WIDTH];
    const uint64_t parts = (uint64_t)params[ALL_REDUCE_FINISH_PARTS];
    uint64_t each = parts * dtype_bytes((enum dtype)params[ALL_REDUCE_DEVICE_X_DTYPE]) + sizeof(float);
    if (params[ALL_REDUCE_DEVICE_HAS_RESIDUAL]) each += sizeof(float);
    if (params[ALL_REDUCE_DEVICE_HAS_NORM]) each += dtype_bytes((enum dtype)params[ALL_REDUCE_DEVICE_OUT_DTYPE]);
    *bytes = elements * each;
    *flops = elements * (parts + (params[ALL_REDUCE_DEVICE_HAS_NORM] ? 4 : 0));
}

const struct device_kernel device_all_reduce_nccl = {
    .name = "nccl_all_reduce",
    .op = OP_ALL_REDUCE,
    .library = LIBRARY_NCCL,
    .least_capability = 80,
    .problem = &op_all_reduce,
    .operand_count = ALL_REDUCE_CALL_OPERANDS,
    .launch = launch_call,
    .cost = cost_of_call,
    .call = nccl_make_call,
};

const struct device_kernel device_all_reduce_finish = {
    .name = "all_reduce_finish",
    .source = "kernels/all_reduce_finish/all_reduce_finish.cu",
    .op = OP_ALL_REDUCE_FINISH,
    .least_capability = 80,
    .problem = &op_all_reduce_finish,
    .operand_count = ALL_REDUCE_FINISH_OPERANDS,
    .launch = launch_finish,
    .cost = cost_of_finish,
};
