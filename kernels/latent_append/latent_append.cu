/* SPDX-License-Identifier: Apache-2.0 */
/* latent_append as a kernel of its own: latent_append.cuh. */
#include "kernels/latent_append/latent_append.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS               \
    PARAM(ROWS) = 512;              \
    PARAM(COUNT_INDEX) = 0;         \
    PARAM(HEADS) = 16;              \
    PARAM(KV_HEADS) = 1;            \
    PARAM(HEAD_DIM) = 576;          \
    PARAM(PAGE_TOKENS) = 64;        \
    PARAM(PAGES_PER_SLOT) = 128;    \
    PARAM(PAGE_BYTES) = 1990656;    \
    PARAM(SLOT_COUNT) = 16;         \
    PARAM(KV_DTYPE) = DTYPE_BF16;   \
    PARAM(X_DTYPE) = DTYPE_BF16;    \
    PARAM(VALUE_DIM) = 512;         \
    PARAM(NORM_DTYPE) = DTYPE_BF16; \
    PARAM(EPS_BITS) = 0x358637bd;   \
    PARAM(Q_PITCH) = 3648;          \
    PARAM(Q_FIRST) = 2048;          \
    PARAM(KV_PITCH) = 3648;
#endif

struct latent_append_params {
    KERNEL_PARAMS
};
typedef latent_append_body<latent_append_params> latent_append_kernel;

extern "C" __global__ void __launch_bounds__(latent_append_kernel::THREADS)
    latent_append(const int *__restrict__ counts, const u16 *__restrict__ q_latent, const u16 *__restrict__ q_rope,
                  const u16 *__restrict__ kv_row, const float *__restrict__ table, const int *__restrict__ slots,
                  const int *__restrict__ positions, const int *__restrict__ page_table, u8 *__restrict__ kv,
                  u16 *__restrict__ q, const void *__restrict__ norm)
{
    latent_append_kernel::run(counts, q_latent, q_rope, kv_row, table, slots, positions, page_table, kv, q, norm);
}
