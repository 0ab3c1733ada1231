/* SPDX-License-Identifier: Apache-2.0 */
/* state_space_chunk as a kernel of its own: state_space_chunk.cuh. */
#include "kernels/state_space/state_space_chunk.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                 \
    PARAM(ROWS) = 2048;               \
    PARAM(COUNT_INDEX) = 0;           \
    PARAM(GROUPS) = 8;                \
    PARAM(HEADS) = 64;                \
    PARAM(STATE_DIM) = 128;           \
    PARAM(HEAD_DIM) = 64;             \
    PARAM(DT_MIN_BITS) = 0;           \
    PARAM(DT_MAX_BITS) = 0x7f7fffff;  \
    PARAM(A_DTYPE) = DTYPE_BF16;      \
    PARAM(DT_DTYPE) = DTYPE_BF16;     \
    PARAM(D_DTYPE) = DTYPE_BF16;      \
    PARAM(RECURRENT_BYTES) = 4390912; \
    PARAM(SLOT_COUNT) = 16;           \
    PARAM(X_DTYPE) = DTYPE_BF16;      \
    PARAM(SCATTERED) = 0;             \
    PARAM(CHUNK) = 64;                \
    PARAM(COLUMN_WARPS) = 2;
#endif

struct state_space_chunk_params {
    KERNEL_PARAMS
};
typedef state_space_chunk_body<state_space_chunk_params> state_space_chunk_kernel;

extern "C" __global__ void __launch_bounds__(state_space_chunk_kernel::THREADS, 1)
    state_space_chunk(const int *counts, const void *xbc, const void *z, const float *dt, const void *a_log,
                      const void *dt_bias, const void *d, void *out, const int *slots, const int *positions, u8 *state)
{
    extern __shared__ __align__(16) u8 state_space_chunk_memory[];
    state_space_chunk_kernel::run(state_space_chunk_memory, counts, xbc, z, dt, a_log, dt_bias, d, out, slots,
                                  positions, state);
}
