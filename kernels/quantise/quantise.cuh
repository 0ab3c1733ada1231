/* SPDX-License-Identifier: Apache-2.0 */
/* quantise: one thread block per row (contract: quantise.h). A thread takes groups of 16 elements, which stay in registers
 * between the search of the largest and the rounding. */
#ifndef KERNELS_QUANTISE_QUANTISE_CUH
#define KERNELS_QUANTISE_QUANTISE_CUH

#include "kernels/cuda/include/codes.cuh"
#include "kernels/cuda/include/reduce.cuh"

template <class P> struct quantise_body {
    static constexpr int GROUPS = P::WIDTH / 16; /* of a row */
    static constexpr int STEPS = (GROUPS + P::THREADS - 1) / P::THREADS;
    static constexpr int ENCODING = codes_of_dtype(P::OUT_DTYPE);

    static __device__ __forceinline__ float element(u32 word, int half)
    {
        return float_of_half<P::X_DTYPE>((u16)(word >> half * 16));
    }

    static __device__ __forceinline__ u32 pair(u32 word, float scale)
    {
        return codes_of_pair<ENCODING>(element(word, 0), element(word, 1), scale);
    }

    static __device__ __forceinline__ void run(const int *counts, const uint4 *x, uint4 *out, float *scales)
    {
        device_trigger();
        device_wait();
        /* Rows beyond the valid ones are read along with the count instead of after it: nothing waits twice. */
        u32 words[STEPS][8]; /* of a group: elements 2i and 2i + 1 */
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int group = (int)threadIdx.x + s * P::THREADS;
            uint4 halves[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
            if (group < GROUPS)
#pragma unroll
                for (int i = 0; i < 2; i++) halves[i] = x[((i64)blockIdx.x * GROUPS + group) * 2 + i];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                words[s][4 * i] = halves[i].x, words[s][4 * i + 1] = halves[i].y;
                words[s][4 * i + 2] = halves[i].z, words[s][4 * i + 3] = halves[i].w;
            }
        }
        if ((int)blockIdx.x >= counts[P::COUNT_INDEX]) return;
        float largest = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                largest =
                    max_or_nan(largest, max_or_nan(fabsf(element(words[s][i], 0)), fabsf(element(words[s][i], 1))));
        const float scale = codes_scale<ENCODING>(block_largest<P::THREADS>(largest));
        if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int group = (int)threadIdx.x + s * P::THREADS;
            u32 codes[4];
#pragma unroll
            for (int t = 0; t < 4; t++)
                codes[t] = codes_interleaved(pair(words[s][t], scale), pair(words[s][t + 4], scale));
            if (group < GROUPS)
                out[(i64)blockIdx.x * GROUPS + group] = make_uint4(codes[0], codes[1], codes[2], codes[3]);
        }
    }
};

#endif
