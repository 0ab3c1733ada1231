/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows of x with coded weights (fragment.cuh) in shared memory, by one warp. */
#ifndef KERNELS_MATMUL_STRIP_PRODUCT_CUH
#define KERNELS_MATMUL_STRIP_PRODUCT_CUH

#include "kernels/cuda/include/mma.cuh"
#include "kernels/matmul/fragment.cuh"

/* No sums of x: zeros are subtracted from each code (multiply_strips). */
struct no_x_sums {
    static constexpr bool PRESENT = false;
    __device__ __forceinline__ void load(u32 (&)[2], int) const {}
};

/* Adds to sums[panel] the products of a strip of each of PANELS panels, PITCH bytes apart, 16 rows of W, with 8 rows of x: the
 * accumulators of mma.m16n8k16 with W as A.
 *
 * x_at: where load_matrices takes the lane's row of 128 bytes of four 8 x 8 matrices from. What follows `valid_k`, a multiple of
 * 32, in rows of x is not read. `x_sums`: int4 alone; the sums of two rows of x over each group, so that zeros are subtracted from
 * the sums of a group.
 *
 * Sums of even and of odd steps are two chains of instructions, which meet at the end of each group, where its scales multiply
 * them. Groups of two steps have one chain each, the next group another. */
template <int ENCODING, int PITCH, int PANELS, class X_SUMS>
__device__ __forceinline__ void multiply_strips(float (&sums)[PANELS][4], u32 strips, u32 x_at, int valid_k,
                                                const X_SUMS x_sums)
{
    typedef fragment_strip<ENCODING> strip;
    static_assert(!X_SUMS::PRESENT || strip::LAYOUT.code == FRAGMENT_UINT4, "zeros");
    constexpr bool SHORT_GROUPS = strip::SUM_SCALES && strip::GROUP_STEPS == 2;
    typename strip::head heads[PANELS];
    u32 codes[PANELS][strip::PARTS][4], x[strip::STEPS / 2][4];
    float parts[PANELS][2][4] = {};
    /* All loads first: what follows waits for them once. */
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        const u32 of_panel = strips + (u32)(panel * PITCH);
#pragma unroll
        for (int part = 0; part < strip::PARTS; part++) strip::load_codes(codes[panel][part], of_panel, part);
        heads[panel] = strip::load_head(of_panel);
    }
#pragma unroll
    for (int i = 0; i < strip::STEPS / 2; i++) {
        if (i * 32 < valid_k)
            load_matrices(x[i], x_at + (u32)(i * 64));
        else
            x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
    }
#pragma unroll
    for (int step = 0; step < strip::STEPS; step++) {
        const int group = step / strip::GROUP_STEPS, chain = SHORT_GROUPS ? group % 2 : step % 2;
        if constexpr (X_SUMS::PRESENT) {
            if (step % strip::GROUP_STEPS == 0) {
                u32 of_x[2];
                x_sums.load(of_x, group);
#pragma unroll
                for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        parts[panel][chain][j] =
                            strip::zero_above(heads[panel], group, j / 2) * float_of_bits(of_x[j % 2]);
            }
        }
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            u32 a[4];
            if constexpr (X_SUMS::PRESENT)
                strip::decode_above(a, codes[panel][step / strip::PART_STEPS], step);
            else
                strip::decode(a, codes[panel][step / strip::PART_STEPS], heads[panel], step);
            mma<DTYPE_BF16>(parts[panel][chain], a[0], a[1], a[2], a[3], x[step / 2][step % 2 * 2],
                            x[step / 2][step % 2 * 2 + 1]);
        }
        if ((step + 1) % strip::GROUP_STEPS != 0) continue;
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float sum = parts[panel][chain][j];
                if constexpr (!SHORT_GROUPS) sum += parts[panel][1 - chain][j];
                if constexpr (strip::SUM_SCALES)
                    sums[panel][j] += sum * strip::scale(heads[panel], group, j / 2);
                else
                    sums[panel][j] += sum;
                parts[panel][0][j] = parts[panel][1][j] = 0;
            }
    }
}

#endif
