/* SPDX-License-Identifier: Apache-2.0 */
/* attention_prefill as a kernel of its own: attention_prefill.cuh. Other architectures get an empty kernel. */
#include "kernels/attention/attention_prefill.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                                                                                               \
    PARAM(ROWS) = 2048;                                                                                             \
    PARAM(COUNT_INDEX) = 0;                                                                                         \
    PARAM(HEADS) = 32;                                                                                              \
    PARAM(KV_HEADS) = 8;                                                                                            \
    PARAM(HEAD_DIM) = 128;   /* a multiple of 16, at most 256 */                                                    \
    PARAM(PAGE_TOKENS) = 64; /* a power of two from 16 to 256, the most rows of a box */                            \
    PARAM(PAGES_PER_SLOT) = 128;                                                                                    \
    PARAM(PAGE_BYTES) =                                                                                             \
        8388608; /* a multiple of HEAD_DIM * 2: the pool is one matrix with a token's k or v in each row */         \
    PARAM(SLOT_COUNT) = 8;                                                                                          \
    PARAM(KV_DTYPE) = DTYPE_BF16;                                                                                   \
    PARAM(X_DTYPE) = DTYPE_BF16;                                                                                    \
    PARAM(WINDOW) = 0;                                                                                              \
    PARAM(SCALE_BITS) = 0x3db504f3; /* 1 / sqrt(128) */                                                             \
    PARAM(SCATTERED) = 0;                                                                                           \
    PARAM(CAP_BITS) = 0;                                                                                            \
    PARAM(HAS_SINKS) = 0;                                                                                           \
    PARAM(SINKS_DTYPE) = DTYPE_F32;                                                                                 \
    PARAM(TILE_Q) = 128;   /* 64, 128, 192: a warpgroup for each 64 rows; more read each key less often */          \
    PARAM(KEY_TILE) = 128; /* 64, 128 tokens: what the scores' registers hold */                                    \
    PARAM(STAGES) = 2;     /* 2..4 */                                                                               \
    PARAM(PING_PONG) = 1;  /* 0, 1; without effect for one warpgroup */                                             \
    PARAM(SPLIT) = 1; /* 1, 2, 4, 8: blocks of a cluster that share the keys of one tile of q; more for few rows */ \
    PARAM(BLOCKS_PER_SM) = 1; /* 1, 2: registers and shared memory are shared */
#define PARAM_HAS_SINKS 0
#endif

struct attention_prefill_params {
    KERNEL_PARAMS
};
typedef attention_prefill_body<attention_prefill_params> attention_prefill_kernel;

extern "C" __global__ void
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__launch_bounds__(attention_prefill_kernel::threads, attention_prefill_params::BLOCKS_PER_SM)
#endif
    attention_prefill(const i32 *counts, const __grid_constant__ tensor_map q_map, const i32 *slots,
                      const i32 *positions, const i32 *page_table,
                      const __grid_constant__ attention_prefill_kernel::kv_operand kv,
                      u16 *out OPTIONAL(PARAM_HAS_SINKS, const void *sinks))
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(16) u8 attention_prefill_memory[];
    attention_prefill_kernel::run(attention_prefill_memory, counts, q_map, slots, positions, page_table, kv, out,
                                  IF_PRESENT(PARAM_HAS_SINKS, sinks));
#endif
}
