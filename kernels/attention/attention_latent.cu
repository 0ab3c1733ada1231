/* SPDX-License-Identifier: Apache-2.0 */
/* attention_latent as a kernel of its own: attention_latent.cuh. */
#include "kernels/attention/attention_latent.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                                                                                      \
    PARAM(ROWS) = 16;                                                                                      \
    PARAM(COUNT_INDEX) = 0;                                                                                \
    PARAM(HEADS) = 16;                                                                                     \
    PARAM(KV_HEADS) = 1;                                                                                   \
    PARAM(HEAD_DIM) = 576;                                                                                 \
    PARAM(PAGE_TOKENS) = 64;                                                                               \
    PARAM(PAGES_PER_SLOT) = 128;                                                                           \
    PARAM(PAGE_BYTES) = 1990656;                                                                           \
    PARAM(SLOT_COUNT) = 16;                                                                                \
    PARAM(KV_DTYPE) = DTYPE_BF16;                                                                          \
    PARAM(X_DTYPE) = DTYPE_BF16;                                                                           \
    PARAM(SCALE_BITS) = 0x3d13cd3a; /* 1 / sqrt(192) */                                                    \
    PARAM(VALUE_DIM) = 512;                                                                                \
    PARAM(WARPS_Q) = 1;   /* 1, 2, 4: more read each token less often, fewer make more blocks */           \
    PARAM(WARPS_V) = 4;   /* 2, 4, 8: each keeps VALUE_DIM / WARPS_V columns of 16 entries in registers */ \
    PARAM(KEY_TILE) = 64; /* 16, 32, 64 tokens, at least 4 * WARPS_V: fewer take less shared memory */     \
    PARAM(SPLIT) = 1;     /* 1, 2, 4, 8 blocks of a cluster share the tokens: more for few rows */         \
    PARAM(GROUPS) = 1;    /* 1..32 clusters share them */
#endif

struct attention_latent_params {
    KERNEL_PARAMS
};
typedef attention_latent_body<attention_latent_params> attention_latent_kernel;

extern "C" __global__ void __launch_bounds__(attention_latent_kernel::threads, attention_latent_kernel::LEAST_BLOCKS)
    attention_latent(const i32 *counts, const u16 *q, const i32 *slots, const i32 *positions, const i32 *page_table,
                     const u8 *kv, u16 *out, float4 *counters)
{
    extern __shared__ __align__(128) u8 attention_latent_memory[];
    attention_latent_kernel::run(attention_latent_memory, counts, q, slots, positions, page_table, kv, out, counters);
}
