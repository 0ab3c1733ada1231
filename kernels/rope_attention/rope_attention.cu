/* SPDX-License-Identifier: Apache-2.0 */
/* rope_attention as a kernel of its own: rope_attention.cuh. */
#include "kernels/rope_attention/rope_attention.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                                                                                              \
    PARAM(ROWS) = 4; /* 1 to 65535 */                                                                              \
    PARAM(COUNT_INDEX) = 0;                                                                                        \
    PARAM(HEADS) = 32; /* a multiple of KV_HEADS */                                                                \
    PARAM(KV_HEADS) = 8;                                                                                           \
    PARAM(HEAD_DIM) = 128;   /* even, 2 to 512; multiples of 8 are fast */                                         \
    PARAM(PAGE_TOKENS) = 64; /* a power of two, a multiple of TILE_TOKENS */                                       \
    PARAM(PAGES_PER_SLOT) = 128;                                                                                   \
    PARAM(PAGE_BYTES) = 262144; /* a multiple of 16 */                                                             \
    PARAM(SLOT_COUNT) = 4;                                                                                         \
    PARAM(KV_DTYPE) = DTYPE_BF16; /* F16, BF16, CODES_INT8, CODES_E4M3 */                                          \
    PARAM(X_DTYPE) = DTYPE_BF16;  /* F16, BF16 */                                                                  \
    PARAM(WINDOW) = 0;            /* 0: none */                                                                    \
    PARAM(SCALE_BITS) = 0x3db504f3;                                                                                \
    PARAM(HAS_NORM) = 1;                                                                                           \
    PARAM(NORM_DTYPE) = DTYPE_BF16; /* F32, F16, BF16 */                                                           \
    PARAM(EPS_BITS) = 0x358637bd;                                                                                  \
    PARAM(ROTARY_DIM) = 0; /* even, at most HEAD_DIM; 0: HEAD_DIM */                                               \
    PARAM(CAP_BITS) = 0;                                                                                           \
    PARAM(HAS_SINKS) = 0;                                                                                          \
    PARAM(SINKS_DTYPE) = DTYPE_F32;                                                                                \
    PARAM(NORM_SCOPE) = 0;                                                                                         \
    PARAM(NORM_V) = 0;                                                                                             \
    PARAM(CENTRED) = 0;                                                                                            \
    PARAM(APPENDED) = 0;                                                                                           \
    PARAM(HAS_KV_SCALES) = 0;                                                                                      \
    PARAM(HAS_MEANS) = 0;                                                                                          \
    PARAM(SPLITS) = 16;      /* tunable: blocks per (row, kv head, head block), 1 to 64: as many as may work */    \
    PARAM(WARPS) = 8;        /* tunable: per block, 1 to 16 */                                                     \
    PARAM(TILE_TOKENS) = 16; /* tunable: 16, 32, 64: fewer rounds, more registers */                               \
    PARAM(HEAD_TILES) = 1;   /* tunable: 1, 2, 4: query heads per block / 8; a larger group reads K and V again */ \
    PARAM(STAGES) = 3;       /* tunable: of a warp's ring, 2 to 16: K or V of a tile each; bytes in flight */      \
    PARAM(BULK) = 0; /* tunable: 1: rows are fetched by the copy engine (9.0, HEAD_DIM % 8 == 0); 0: by threads */ \
    PARAM(ALONE_TILES) = 2; /* tunable: per warp, that one split takes alone: a merge costs more; 1 to 64 */
#define PARAM_HAS_NORM      1
#define PARAM_HAS_SINKS     0
#define PARAM_HAS_KV_SCALES 0
#define PARAM_HAS_MEANS     0
#endif

struct rope_attention_params {
    KERNEL_PARAMS
};
typedef rope_attention_body<rope_attention_params> rope_attention_kernel;

extern "C" __global__ void __launch_bounds__(rope_attention_kernel::THREADS, 1)
    rope_attention(const i32 *counts, const u16 *qkv, const float *table, const i32 *slots, const i32 *positions,
                   const i32 *page_table, u8 *kv, u16 *out,
                   void *workspace OPTIONAL(PARAM_HAS_NORM, const void *norm_q, const void *norm_k)
                       OPTIONAL(PARAM_HAS_SINKS, const void *sinks)
                           OPTIONAL(PARAM_HAS_KV_SCALES, const float *kv_scales)
                               OPTIONAL(PARAM_HAS_MEANS, const float *means))
{
    extern __shared__ __align__(16) u8 rope_attention_memory[];
    rope_attention_kernel::run(rope_attention_memory, counts, qkv, table, slots, positions, page_table, kv, out,
                               workspace, IF_PRESENT(PARAM_HAS_NORM, norm_q), IF_PRESENT(PARAM_HAS_NORM, norm_k),
                               IF_PRESENT(PARAM_HAS_SINKS, sinks), IF_PRESENT(PARAM_HAS_KV_SCALES, kv_scales),
                               IF_PRESENT(PARAM_HAS_MEANS, means));
}
