/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append as a kernel of its own: rope_append.cuh. */
#include "kernels/rope_append/rope_append.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS               \
    PARAM(ROWS) = 512;              \
    PARAM(COUNT_INDEX) = 0;         \
    PARAM(HEADS) = 32;              \
    PARAM(KV_HEADS) = 8;            \
    PARAM(HEAD_DIM) = 128;          \
    PARAM(PAGE_TOKENS) = 64;        \
    PARAM(PAGES_PER_SLOT) = 128;    \
    PARAM(PAGE_BYTES) = 262144;     \
    PARAM(SLOT_COUNT) = 16;         \
    PARAM(KV_DTYPE) = DTYPE_BF16;   \
    PARAM(X_DTYPE) = DTYPE_BF16;    \
    PARAM(HAS_NORM) = 0;            \
    PARAM(NORM_DTYPE) = DTYPE_BF16; \
    PARAM(EPS_BITS) = 0x358637bd;   \
    PARAM(ROTARY_DIM) = 0;          \
    PARAM(NORM_SCOPE) = 0;          \
    PARAM(NORM_V) = 0;              \
    PARAM(CENTRED) = 0;             \
    PARAM(HAS_KV_SCALES) = 0;       \
    PARAM(HAS_MEANS) = 0;
#define PARAM_HAS_NORM      0
#define PARAM_HAS_KV_SCALES 0
#define PARAM_HAS_MEANS     0
#endif

struct rope_append_params {
    KERNEL_PARAMS
};
typedef rope_append_body<rope_append_params> rope_append_kernel;

extern "C" __global__ void __launch_bounds__(rope_append_kernel::THREADS, 1)
    rope_append(const int *__restrict__ counts, const u16 *__restrict__ qkv, const float *__restrict__ table,
                const int *__restrict__ slots, const int *__restrict__ positions, const int *__restrict__ page_table,
                u8 *__restrict__ kv,
                u16 *__restrict__ q OPTIONAL(PARAM_HAS_NORM, const void *__restrict__ norm_q,
                                             const void *__restrict__ norm_k)
                    OPTIONAL(PARAM_HAS_KV_SCALES, const float *__restrict__ kv_scales)
                        OPTIONAL(PARAM_HAS_MEANS, const float *__restrict__ means))
{
    rope_append_kernel::run(counts, qkv, table, slots, positions, page_table, kv, q, IF_PRESENT(PARAM_HAS_NORM, norm_q),
                            IF_PRESENT(PARAM_HAS_NORM, norm_k), IF_PRESENT(PARAM_HAS_KV_SCALES, kv_scales),
                            IF_PRESENT(PARAM_HAS_MEANS, means));
}
