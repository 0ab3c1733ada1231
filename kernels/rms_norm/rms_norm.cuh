/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm: one thread block per row (contract: rms_norm.h). A thread's share of the row stays in registers
 * between the sums and the scaling, unless the row is too long for that; then it is read again. Rows that become
 * codes stay. */
#ifndef KERNELS_RMS_NORM_RMS_NORM_CUH
#define KERNELS_RMS_NORM_RMS_NORM_CUH

#include "kernels/cuda/include/codes.cuh"
#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/reduce.cuh"

template <class P> struct rms_norm_body {
    static constexpr int VECTOR = P::HIDDEN % 4 == 0 ? 4 : 1; /* elements of one access */
    static constexpr int STRIDE = P::THREADS * VECTOR;
    static constexpr int STEPS = (P::HIDDEN + STRIDE - 1) / STRIDE;
    static constexpr bool KEEP = STEPS * VECTOR <= 32; /* registers for the row: half of what 1024 threads may have */
    static constexpr int KEPT = KEEP ? STEPS : 1;

    static constexpr int CODES = codes_of_dtype(P::OUT_DTYPE);
    static_assert(!CODES || (KEEP && VECTOR == 4), "launch checks");
    static_assert(P::HAS_RESIDUAL ? KEEP : P::PARTS == 1, "launch checks");

    /* Codes of this thread's numbers, in the order of quantise.h: of 16 elements, four threads have four each, and two of them
     * exchange pairs, whose codes take turns. By all threads. */
    static __device__ __forceinline__ void store_codes(u8 *out, float *scales, const float (&value)[KEPT][VECTOR],
                                                       int first)
    {
        float largest = 0;
#pragma unroll
        for (int s = 0; s < KEPT; s++)
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                if (first + s * STRIDE < P::HIDDEN) largest = max_or_nan(largest, fabsf(value[s][i]));
        const float scale = codes_scale<CODES>(block_largest<P::THREADS>(largest));
        const bool upper = threadIdx.x & 2;
        if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#pragma unroll
        for (int s = 0; s < KEPT; s++) {
            u32 pairs[VECTOR / 2];
#pragma unroll
            for (int i = 0; i < VECTOR; i += 2)
                pairs[i / 2] = codes_of_pair<CODES>(value[s][i], value[s][i + 1], scale);
            const u32 theirs = __shfl_xor_sync(0xffffffffu, pairs[upper ? 0 : 1], 2);
            const u32 word = upper ? codes_interleaved(theirs, pairs[1]) : codes_interleaved(pairs[0], theirs);
            const int group = (first + s * STRIDE) / 16 * 16, place = (int)threadIdx.x % 2 * 2 + upper;
            if (first + s * STRIDE < P::HIDDEN) *(u32 *)(out + (i64)blockIdx.x * P::HIDDEN + group + place * 4) = word;
        }
    }

    template <int ELEMENT>
    static __device__ __forceinline__ void load_vector(const void *from, i64 index, float (&value)[VECTOR])
    {
        if constexpr (VECTOR == 4)
            load_elements<ELEMENT>(value, from, index);
        else
            value[0] = load_element<ELEMENT>(from, index);
    }

    template <int ELEMENT>
    static __device__ __forceinline__ void store_vector(void *out, i64 index, const float (&value)[VECTOR])
    {
        if constexpr (VECTOR == 4)
            store_elements<ELEMENT>(out, index, value);
        else
            store_element<ELEMENT>(out, index, value[0]);
    }

    /* The numbers from `column` on that the norm is of: all parts are under way at once. */
    static __device__ __forceinline__ void load_row(const float *x, const float *residual, int column,
                                                    float (&value)[VECTOR])
    {
        if constexpr (!P::HAS_RESIDUAL) {
            load_vector<DTYPE_F32>(x, (i64)blockIdx.x * P::HIDDEN + column, value);
        } else {
            load_vector<DTYPE_F32>(residual, (i64)blockIdx.x * P::HIDDEN + column, value);
#pragma unroll 8
            for (int part = 0; part < P::PARTS; part++) {
                float addend[VECTOR];
                load_vector<DTYPE_F32>(x, ((i64)blockIdx.x * P::PARTS + part) * P::HIDDEN + column, addend);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) value[i] += addend[i];
            }
        }
    }

    /* `residual`, `total` (the op's sum), `add_to`, `copy`, `scales`, `bias` and `factors`: null where the op has none. */
    static __device__ __forceinline__ void run(const int *counts, const float *x, const void *weight, void *out,
                                               const float *residual, float *total, const float *add_to, void *copy,
                                               float *scales, const void *bias, const void *factors)
    {
        device_trigger();
        const int first = threadIdx.x * VECTOR;
        float scale[KEPT][VECTOR], value[KEPT][VECTOR], base[KEPT][VECTOR], added[KEPT][VECTOR];
        float times[KEPT][VECTOR];
        if constexpr (KEEP) /* constants: before the wait */
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                if (first + s * STRIDE < P::HIDDEN) {
                    load_vector<P::WEIGHT_DTYPE>(weight, first + s * STRIDE, scale[s]);
                    if constexpr (P::HAS_BIAS) load_vector<P::BIAS_DTYPE>(bias, first + s * STRIDE, added[s]);
                    if constexpr (P::HAS_FACTOR) load_vector<P::FACTOR_DTYPE>(factors, first + s * STRIDE, times[s]);
                }
        device_wait();

        const i64 row = (i64)blockIdx.x * P::HIDDEN;
        float squares = 0, mean = 0;
        if constexpr (KEEP) {
            /* Rows beyond the valid ones are read along with the count instead of after it: nothing waits twice. */
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                if (first + s * STRIDE < P::HIDDEN) {
                    load_row(x, residual, first + s * STRIDE, value[s]);
                    if constexpr (P::HAS_ADD_TO) load_vector<DTYPE_F32>(add_to, row + first + s * STRIDE, base[s]);
                }
            if ((int)blockIdx.x >= counts[P::COUNT_INDEX]) return;
            if constexpr (P::HAS_RESIDUAL)
#pragma unroll
                for (int s = 0; s < STEPS; s++)
                    if (first + s * STRIDE < P::HIDDEN)
                        store_vector<DTYPE_F32>(total, row + first + s * STRIDE, value[s]);
            if constexpr (P::CENTRED) {
                float sum = 0;
#pragma unroll
                for (int s = 0; s < STEPS; s++)
                    if (first + s * STRIDE < P::HIDDEN)
#pragma unroll
                        for (int i = 0; i < VECTOR; i++) sum += value[s][i];
                mean = block_sum<P::THREADS, false>(sum) * (1.0f / P::HIDDEN);
            }
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                if (first + s * STRIDE < P::HIDDEN)
#pragma unroll
                    for (int i = 0; i < VECTOR; i++) {
                        if constexpr (P::CENTRED) value[s][i] -= mean;
                        squares = fmaf(value[s][i], value[s][i], squares);
                    }
        } else {
            if ((int)blockIdx.x >= counts[P::COUNT_INDEX]) return;
            if constexpr (P::CENTRED) {
                float sum = 0;
                for (int column = first; column < P::HIDDEN; column += STRIDE) {
                    load_vector<DTYPE_F32>(x, row + column, value[0]);
#pragma unroll
                    for (int i = 0; i < VECTOR; i++) sum += value[0][i];
                }
                mean = block_sum<P::THREADS, false>(sum) * (1.0f / P::HIDDEN);
            }
            for (int column = first; column < P::HIDDEN; column += STRIDE) {
                load_vector<DTYPE_F32>(x, row + column, value[0]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    if constexpr (P::CENTRED) value[0][i] -= mean;
                    squares = fmaf(value[0][i], value[0][i], squares);
                }
            }
        }
        const float factor =
            1.0f / sqrtf(block_sum<P::THREADS, P::CENTRED>(squares) * (1.0f / P::HIDDEN) + float_of_bits(P::EPS_BITS));
#pragma unroll
        for (int s = 0; s < (KEEP ? STEPS : 1); s++) {
            for (int column = first + s * STRIDE; column < P::HIDDEN; column += KEEP ? P::HIDDEN : STRIDE) {
                if constexpr (!KEEP) load_vector<DTYPE_F32>(x, row + column, value[s]);
                if constexpr (!KEEP) load_vector<P::WEIGHT_DTYPE>(weight, column, scale[s]);
                if constexpr (!KEEP && P::HAS_ADD_TO) load_vector<DTYPE_F32>(add_to, row + column, base[s]);
                if constexpr (!KEEP && P::HAS_BIAS) load_vector<P::BIAS_DTYPE>(bias, column, added[s]);
                if constexpr (!KEEP && P::HAS_FACTOR) load_vector<P::FACTOR_DTYPE>(factors, column, times[s]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    if constexpr (!KEEP && P::CENTRED) value[s][i] -= mean;
                    value[s][i] = value[s][i] * factor * scale[s][i];
                    if constexpr (P::HAS_BIAS) value[s][i] += added[s][i];
                    if constexpr (P::HAS_ADD_TO) value[s][i] += base[s][i];
                    if constexpr (P::HAS_FACTOR) value[s][i] *= times[s][i];
                }
                if constexpr (!CODES) store_vector<P::OUT_DTYPE>(out, row + column, value[s]);
                if constexpr (P::HAS_COPY) store_vector<P::COPY_DTYPE>(copy, row + column, value[s]);
            }
        }
        if constexpr (CODES) store_codes((u8 *)out, scales, value, first);
    }
};

#endif
