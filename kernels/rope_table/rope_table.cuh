/* SPDX-License-Identifier: Apache-2.0 */
/* rope_table: cosines and sines of position * inv_freq, times SCALING (contract: rope_table.h). One thread per
 * angle.
 *
 * The angle is the float32 product. Its reduction to [-pi/4, pi/4] is one step of Cody and Waite in double, pi/2 in two
 * parts: exact enough for every angle below 2^31, and without the table in local memory that sinf() carries for large
 * arguments. The polynomials are float32. */
#ifndef KERNELS_ROPE_TABLE_ROPE_TABLE_CUH
#define KERNELS_ROPE_TABLE_ROPE_TABLE_CUH

#include "kernels/cuda/include/device.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct rope_table_body {
    static constexpr int THREADS = LAYOUT_ROPE_TABLE_THREADS;
    static constexpr int HALF = P::HEAD_DIM / 2;

    /* `slots`, `rope_set`: null without SWITCHES. */
    static __device__ __forceinline__ void run(const int *counts, const int *positions, const float *inv_freq,
                                               float *out, const int *slots, const int *rope_set)
    {
        device_trigger();
        const u32 index = blockIdx.x * THREADS + threadIdx.x;
        const u32 row = index / HALF, i = index % HALF;
        float frequency = inv_freq[i]; /* never changes */
        device_wait();
        if (row >= P::ROWS || (int)row >= counts[P::COUNT_INDEX]) return;
        if constexpr (P::SWITCHES) {
            if (rope_set[slots[row]]) frequency = inv_freq[HALF + i];
        }

        const double angle = __fmul_rn((float)positions[row], frequency);
        const int quadrant = __double2int_rn(angle * 0x1.45f306dc9c883p-1); /* 2 / pi */
        double reduced = fma((double)quadrant, -0x1.921fb54442d18p+0, angle);
        reduced = fma((double)quadrant, -0x1.1a62633145c07p-54, reduced);

        /* sin and cos on [-pi/4, pi/4] to about 6e-8 (coefficients: Moshier's Cephes library, sinf.c). */
        const float r = (float)reduced, s = r * r;
        float sine = fmaf(fmaf(-1.9515295891e-4f, s, 8.3321608736e-3f), s, -1.6666654611e-1f);
        sine = fmaf(sine * s, r, r);
        float cosine = fmaf(fmaf(2.443315711809948e-5f, s, -1.388731625493765e-3f), s, 4.166664568298827e-2f);
        cosine = fmaf(cosine * s, s, fmaf(-0.5f, s, 1.0f));
        if (quadrant & 1) {
            const float other = cosine;
            cosine = -sine;
            sine = other;
        }
        if (quadrant & 2) {
            cosine = -cosine;
            sine = -sine;
        }
        const float scaling = float_of_bits(P::SCALING_BITS);
        float *to = out + (i64)row * P::HEAD_DIM;
        to[i] = cosine * scaling;
        to[HALF + i] = sine * scaling;
    }
};

#endif
