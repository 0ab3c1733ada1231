/* SPDX-License-Identifier: Apache-2.0 */
/* attention_generic as a kernel of its own: attention_generic.cuh. */
#include "kernels/attention/attention_generic.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                                                                        \
    PARAM(ROWS) = 16;                                                                        \
    PARAM(COUNT_INDEX) = 0;                                                                  \
    PARAM(HEADS) = 32;                                                                       \
    PARAM(KV_HEADS) = 8;                                                                     \
    PARAM(HEAD_DIM) = 128; /* even, at most 512 */                                           \
    PARAM(PAGE_TOKENS) = 64;                                                                 \
    PARAM(PAGES_PER_SLOT) = 128;                                                             \
    PARAM(PAGE_BYTES) = 8388608;                                                             \
    PARAM(SLOT_COUNT) = 8;                                                                   \
    PARAM(KV_DTYPE) = DTYPE_BF16;                                                            \
    PARAM(X_DTYPE) = DTYPE_BF16;                                                             \
    PARAM(WINDOW) = 0;                                                                       \
    PARAM(SCALE_BITS) = 0x3db504f3; /* 1 / sqrt(128) */                                      \
    PARAM(SCATTERED) = 0;                                                                    \
    PARAM(CAP_BITS) = 0;                                                                     \
    PARAM(HAS_SINKS) = 0;                                                                    \
    PARAM(SINKS_DTYPE) = DTYPE_F32;                                                          \
    PARAM(WARPS_Q) = 4; /* 1, 2, 4: fewer make more blocks, more read each key less often */ \
    PARAM(SPLIT) = 1;   /* 1, 2, 4: more for few rows */                                     \
    PARAM(KEY_TILE) =                                                                        \
        64; /* 16, 32, 64 tokens; at least 16 * SPLIT, so that a warp has a whole step of the second product */
#define PARAM_HAS_SINKS 0
#endif

struct attention_generic_params {
    KERNEL_PARAMS
};
typedef attention_generic_body<attention_generic_params> attention_generic_kernel;

extern "C" __global__ void __launch_bounds__(attention_generic_kernel::threads, 1)
    attention_generic(const i32 *counts, const void *q, const i32 *slots, const i32 *positions, const i32 *page_table,
                      const u8 *kv, void *out OPTIONAL(PARAM_HAS_SINKS, const void *sinks))
{
    extern __shared__ __align__(128) u8 attention_generic_memory[];
    attention_generic_kernel::run(attention_generic_memory, counts, q, slots, positions, page_table, kv, out,
                                  IF_PRESENT(PARAM_HAS_SINKS, sinks));
}
