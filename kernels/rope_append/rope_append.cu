/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append: rotates the heads of q and k and files k and v into their pages (contract: rope_append_device.h).
 *
 * A head of a row is the work of a group of lanes, a power of two; a lane holds VECTOR elements of the head's first half
 * and the VECTOR elements of the second half that they are rotated with, so that a rotation stays inside a lane. */
#include "kernels/cuda/include/device.cuh"

#ifndef ROWS
#define ROWS 512
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 0
#endif
#ifndef HEADS
#define HEADS 32
#endif
#ifndef KV_HEADS
#define KV_HEADS 8
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_TOKENS
#define PAGE_TOKENS 64
#endif
#ifndef PAGES_PER_SLOT
#define PAGES_PER_SLOT 128
#endif
#ifndef PAGE_BYTES
#define PAGE_BYTES 262144
#endif
#ifndef SLOT_COUNT
#define SLOT_COUNT 16
#endif
#ifndef KV_DTYPE
#define KV_DTYPE DTYPE_BF16
#endif
#ifndef X_DTYPE
#define X_DTYPE DTYPE_BF16
#endif
#ifndef HAS_NORM
#define HAS_NORM 0
#endif
#ifndef NORM_DTYPE
#define NORM_DTYPE DTYPE_BF16
#endif
#ifndef EPS_BITS
#define EPS_BITS 0x358637bd /* 1e-6 */
#endif

constexpr int ROPE_THREADS = 256; /* as rope_append_device.c, which also repeats VECTOR and LANES */
constexpr int HALF = HEAD_DIM / 2;
constexpr int ALL_HEADS = HEADS + 2 * KV_HEADS;
constexpr int VECTOR = HALF % 8 == 0 ? 8 : HALF % 4 == 0 ? 4 : HALF % 2 == 0 ? 2 : 1;

constexpr int VECTORS = HALF / VECTOR;
constexpr int LANES = VECTORS > 16 ? 32 : VECTORS > 8 ? 16 : VECTORS > 4 ? 8 : VECTORS > 2 ? 4 : VECTORS;
constexpr int STEPS = (VECTORS + LANES - 1) / LANES; /* more than 1 for odd halves above 32 alone */

/* VECTOR 16-bit elements of one access. */
struct alignas(2 * VECTOR) halves {
    u16 at[VECTOR];
};
struct alignas(VECTOR >= 4 ? 16 : 4 * VECTOR) floats {
    float at[VECTOR];
};

#if HAS_NORM
#define NORM_PARAMETERS , const void *__restrict__ norm_q, const void *__restrict__ norm_k
#else
#define NORM_PARAMETERS
#endif

extern "C" __global__ void __launch_bounds__(ROPE_THREADS)
    rope_append(const int *__restrict__ counts, const u16 *__restrict__ qkv, const float *__restrict__ table,
                const int *__restrict__ slots, const int *__restrict__ positions, const int *__restrict__ page_table,
                u8 *__restrict__ kv, u16 *__restrict__ q NORM_PARAMETERS)
{
    device_trigger();
    device_wait();
    const i64 item = ((i64)blockIdx.x * ROPE_THREADS + threadIdx.x) / LANES;
    const int lane = threadIdx.x % LANES;
    const i64 row = item / ALL_HEADS;
    const int head = (int)(item % ALL_HEADS);
    /* No early return: the lanes of a warp meet in the sums of the norm. */
    const bool valid = row < ROWS && row < counts[COUNT_INDEX];
    const bool is_query = head < HEADS, is_value = head >= HEADS + KV_HEADS;

    const u16 *from = qkv + item * HEAD_DIM; /* item counts heads of all rows */
    float low[STEPS][VECTOR], high[STEPS][VECTOR];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int i = (s * LANES + lane) * VECTOR;
        if (!valid || i >= HALF) continue;
        const halves first = *(const halves *)(from + i), second = *(const halves *)(from + HALF + i);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            low[s][j] = float_of_half<X_DTYPE>(first.at[j]);
            high[s][j] = float_of_half<X_DTYPE>(second.at[j]);
        }
    }
#if HAS_NORM
    float squares = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            if (valid && (s * LANES + lane) * VECTOR < HALF)
                squares = fmaf(low[s][j], low[s][j], fmaf(high[s][j], high[s][j], squares));
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    const float factor = 1.0f / sqrtf(squares * (1.0f / HEAD_DIM) + float_of_bits(EPS_BITS));
    const void *weight = is_query ? norm_q : norm_k;
#endif
    if (!valid) return;

    u16 *to;
    if (is_query) {
        to = q + (row * HEADS + head) * HEAD_DIM;
    } else {
        const int position = positions[row], kv_head = is_value ? head - HEADS - KV_HEADS : head - HEADS;
        const int page = page_table[(i64)slots[row] * PAGES_PER_SLOT + position / PAGE_TOKENS];
        to = (u16 *)(kv + (i64)page * PAGE_BYTES) +
             ((i64)((is_value ? KV_HEADS : 0) + kv_head) * PAGE_TOKENS + position % PAGE_TOKENS) * HEAD_DIM;
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int i = (s * LANES + lane) * VECTOR;
        if (i >= HALF) continue;
        floats cosine, sine;
        if (!is_value) {
            const float *angles = table + row * HEAD_DIM + i;
            cosine = *(const floats *)angles;
            sine = *(const floats *)(angles + HALF);
        }
        halves first, second;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            float a = low[s][j], b = high[s][j];
            if (!is_value) {
#if HAS_NORM
                a *= factor * load_element<NORM_DTYPE>(weight, i + j);
                b *= factor * load_element<NORM_DTYPE>(weight, HALF + i + j);
#endif
                const float rotated = a * cosine.at[j] - b * sine.at[j];
                b = b * cosine.at[j] + a * sine.at[j];
                a = rotated;
            }
            first.at[j] = is_query ? half_of_float<X_DTYPE>(a) : half_of_float<KV_DTYPE>(a);
            second.at[j] = is_query ? half_of_float<X_DTYPE>(b) : half_of_float<KV_DTYPE>(b);
        }
        *(halves *)(to + i) = first;
        *(halves *)(to + HALF + i) = second;
    }
}
