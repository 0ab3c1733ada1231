/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce/all_reduce_nccl.h"

#include "kernels/all_gather/all_gather.h"
#include "kernels/cuda/vendor/nccl_call.h"

static uint64_t row_bytes(const int64_t *params)
{
    return (uint64_t)params[ALL_REDUCE_WIDTH] * dtype_bytes((enum dtype)params[ALL_REDUCE_X_DTYPE]);
}

uint64_t all_reduce_nccl_bytes(const int64_t *params)
{
    return all_reduce_device_illegal(params)
               ? 0
               : (uint64_t)params[ALL_REDUCE_ROWS] * row_bytes(params); /* 2^20 * 2^24 * 4 at most */
}

bool all_reduce_nccl_run(const struct nccl_rank *rank, const int64_t *params, const cu_deviceptr *operands,
                         cu_stream stream, struct status *status)
{
    const uint64_t count = (uint64_t)params[ALL_REDUCE_ROWS] * (uint64_t)params[ALL_REDUCE_WIDTH];
    return nccl_all_reduce(rank, (enum dtype)params[ALL_REDUCE_X_DTYPE], operands[ALL_REDUCE_CALL_X],
                           operands[ALL_REDUCE_CALL_SUM], count, stream, status);
}

static const char *launch_call(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *illegal = all_reduce_device_illegal(params);
    if (illegal) return illegal;
    if (params[ALL_REDUCE_HAS_RESIDUAL] || params[ALL_REDUCE_HAS_NORM])
        return "HAS_RESIDUAL or HAS_NORM is not 0, but NCCL forms sums alone";
    *geometry = (struct device_geometry){{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0};
    return NULL;
}

/* Bytes of this GPU's memory. */
static void cost_of_call(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[ALL_REDUCE_ROWS] * (uint64_t)params[ALL_REDUCE_WIDTH];
    *bytes = 2 * (uint64_t)params[ALL_REDUCE_ROWS] * row_bytes(params);
    *flops = elements * (uint64_t)params[ALL_REDUCE_RANKS];
}

static const char *launch_finish(const int64_t *params, const struct device_facts *gpu,
                                 struct device_geometry *geometry)
{
    enum { VECTOR_BYTES = 16, MOST_STEPS = 4 };
    (void)gpu;
    const int64_t threads = params[ALL_REDUCE_FINISH_THREADS];
    const char *illegal = op_params_illegal(&op_all_reduce_finish, params);
    if (!illegal) illegal = all_reduce_device_illegal(params);
    if (illegal) return illegal;
    if ((row_bytes(params) / VECTOR_BYTES + (uint64_t)threads - 1) / (uint64_t)threads > MOST_STEPS)
        return "THREADS is too small for a row to stay in registers";
    *geometry =
        (struct device_geometry){{(uint32_t)params[ALL_REDUCE_ROWS], 1, 1}, {(uint32_t)threads, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

void all_reduce_finish_params(int64_t *params, int64_t parts)
{
    enum { LEAST = 64, MOST = 1024, VECTOR_BYTES = 16 };
    const uint64_t vectors = row_bytes(params) / VECTOR_BYTES;
    uint64_t threads = LEAST;
    while (threads < MOST && threads < vectors) threads *= 2;
    if (params[ALL_REDUCE_HAS_RESIDUAL]) params[ALL_REDUCE_HAS_RESIDUAL] = ALL_REDUCE_EVERY_ROW;
    if (params[ALL_REDUCE_HAS_NORM]) params[ALL_REDUCE_HAS_NORM] = ALL_REDUCE_EVERY_ROW;
    params[ALL_REDUCE_FINISH_THREADS] = (int64_t)threads;
    params[ALL_REDUCE_FINISH_PARTS] = parts;
}

void all_reduce_gather_params(const int64_t *params, int64_t *gather)
{
    const int64_t words = (int64_t)(row_bytes(params) / sizeof(uint32_t)); /* WIDTH is a multiple of 8 */
    gather[ALL_GATHER_ROWS] = params[ALL_REDUCE_ROWS];
    gather[ALL_GATHER_COUNT_INDEX] = params[ALL_REDUCE_COUNT_INDEX];
    gather[ALL_GATHER_WIDTH] = words;
    gather[ALL_GATHER_OUT_WIDTH] = words * params[ALL_REDUCE_RANKS];
    gather[ALL_GATHER_RANKS] = params[ALL_REDUCE_RANKS];
}

static void cost_of_finish(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[ALL_REDUCE_ROWS] * (uint64_t)params[ALL_REDUCE_WIDTH];
    const uint64_t parts = (uint64_t)params[ALL_REDUCE_FINISH_PARTS];
    uint64_t each = parts * dtype_bytes((enum dtype)params[ALL_REDUCE_X_DTYPE]) + sizeof(float);
    if (params[ALL_REDUCE_HAS_RESIDUAL]) each += sizeof(float);
    if (params[ALL_REDUCE_HAS_NORM]) each += dtype_bytes((enum dtype)params[ALL_REDUCE_OUT_DTYPE]);
    *bytes = elements * each;
    *flops = elements * (parts + (params[ALL_REDUCE_HAS_NORM] ? 4 : 0));
}

const struct device_kernel device_all_reduce_nccl = {
    .name = "nccl_all_reduce",
    .op = OP_ALL_REDUCE,
    .library = LIBRARY_NCCL,
    .problem = &op_all_reduce,
    .launch = launch_call,
    .cost = cost_of_call,
    .call = nccl_make_call,
};

const struct device_kernel device_all_reduce_finish = {
    .name = "all_reduce_finish",
    .op = OP_ALL_REDUCE_FINISH,
    .problem = &op_all_reduce_finish,
    .launch = launch_finish,
    .cost = cost_of_finish,
};
