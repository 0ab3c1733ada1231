/* SPDX-License-Identifier: Apache-2.0 */
/* Single elements of a matrix in FRAGMENT16 layout, as panel_read gives them, bit for bit (panel.h). */
#ifndef KERNELS_MATMUL_FRAGMENT_ELEMENT_CUH
#define KERNELS_MATMUL_FRAGMENT_ELEMENT_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/matmul/fragment_table.cuh"

template <int ENCODING> struct fragment_element {
    static constexpr fragment_layout LAYOUT = fragment_lay_out(ENCODING);
    static_assert(LAYOUT.code != 0, "an encoding with fragments");

    /* The number of e2m1 or e4m3 whose bits below the sign are `magnitude`, with the sign at bit 31 of `sign`. A float32 with
     * the same exponent and mantissa has the number times 2^-126 or 2^-120. */
    static __device__ __forceinline__ float small_float(u32 magnitude, int mantissa_bits, u32 factor, u32 sign)
    {
        return float_of_bits(magnitude << (23 - mantissa_bits) | sign) * float_of_bits(factor);
    }

    /* The number of element `k` of row `row` of the panel's strip whose codes begin at `codes`, less its zero. */
    static __device__ __forceinline__ float code(const u8 *codes, u32 row, u32 k, int zero)
    {
        constexpr u32 LANE_K = LAYOUT.bits == 4 ? 64 : 32;
        const u32 lane = row % 8 * 4 + k % 8 / 2, lane_register = k % 16 / 8 * 2 + row / 8, second = k % 2;
        const u32 step = k % LANE_K / 16;
        codes += k / LANE_K * 512 + lane * 16;
        if constexpr (LAYOUT.bits == 4) {
            const u32 word = *(const u32 *)(codes + step * 4), half = word >> second * 16;
            if constexpr (LAYOUT.code == FRAGMENT_TABLE) {
                u32 pairs[2];
                fragment_table<ENCODING>::look_up(pairs[0], pairs[1], word >> lane_register / 2 * 16);
                const u32 pair = lane_register % 2 ? pairs[1] : pairs[0];
                return float_of_bits(second ? pair & 0xffff0000 : pair << 16);
            }
            const u32 bit = lane_register * 4 + second * 16 + 3; /* int4; of a word that rotates */
            if constexpr (LAYOUT.code == FRAGMENT_UINT4)
                return (float)((int)((word >> bit | word << (32 - bit)) & 15) - zero);
            /* Where e2m1's bits begin, by register, four bits each: 6, 3, 0, 9 and 15, 12, 14, 13. */
            const u32 magnitude = half >> (0x9036 >> lane_register * 4 & 15) & 7;
            const u32 sign = half >> (0xdecf >> lane_register * 4 & 15) & 1;
            return small_float(magnitude, 1, 0x7e800000, sign << 31);
        } else {
            const u32 byte = codes[step * 8 + lane_register / 2 * 4 + second * 2 + lane_register % 2];
            if constexpr (LAYOUT.code == FRAGMENT_INT8)
                return (float)((signed char)byte - (LAYOUT.zeros ? (signed char)zero : 0));
            return small_float(byte & 0x7f, 3, 0x7b800000, byte << 24 & 0x80000000);
        }
    }

    /* Number `index` of the scales at `scales`. */
    static __device__ __forceinline__ float scale(const u8 *scales, u32 index)
    {
        if constexpr (LAYOUT.scale == FRAGMENT_F32)
            return ((const float *)scales)[index];
        else if constexpr (LAYOUT.scale == FRAGMENT_F16)
            return float_of_half<DTYPE_F16>(((const u16 *)scales)[index]);
        else if constexpr (LAYOUT.scale == FRAGMENT_E5M3)
            return float_of_bits(((u32)scales[index] + ((112 - 8) << 3)) << 20); /* 2^-8 of it */
        else
            return float_of_bits((u32)scales[index] << 23);
    }

    /* Element [row, column] of the matrix of `columns` columns at `weights`. */
    static __device__ __forceinline__ float load(const void *weights, u32 row, u32 column, i64 columns)
    {
        const u8 *panel = (const u8 *)weights + row / FRAGMENT_ROWS * fragment_panel_bytes(LAYOUT, columns);
        const u8 *strip = panel + fragment_factor_bytes(LAYOUT) + (i64)(column / FRAGMENT_STRIP_K) * LAYOUT.strip_bytes;
        const u32 in_panel = row % FRAGMENT_ROWS, k = column % FRAGMENT_STRIP_K;
        u32 place = 0; /* of scale and zero in the strip */
        int zero = 8;
        if constexpr (LAYOUT.groups != 0) place = (in_panel % 8 * LAYOUT.groups + k / LAYOUT.group) * 2 + in_panel / 8;
        if constexpr (LAYOUT.zeros != 0) zero = strip[LAYOUT.zeros_at + place];
        float value = code(strip + LAYOUT.codes_at, in_panel, k, zero);
        if constexpr (LAYOUT.groups != 0) value *= scale(strip, place);
        if constexpr (LAYOUT.factors != 0) value *= ((const float *)panel)[in_panel];
        return value;
    }
};

#endif
