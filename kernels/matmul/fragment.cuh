/* SPDX-License-Identifier: Apache-2.0 */
/* Coded weights in FRAGMENT16 layout (panel.h) as operands of tensor cores: a warp's 16 rows and 16 k of a strip in shared
 * memory become the registers of a bfloat16 A operand of mma.m16n8k16 (mma.cuh), and so of wgmma.m64 for each of a
 * warpgroup's four warps.
 *
 * Codes become bfloat16 exactly, but those of tables, which panel.h rounds. Where groups have scales, the product of a group's codes is multiplied by them in float32
 * (SUM_SCALES); but nvfp4 codes are multiplied before, which is exact, too: 2 and 4 significant bits. Scales of rows are left
 * for the end of the sums (fragment_factor). */
#ifndef KERNELS_MATMUL_FRAGMENT_CUH
#define KERNELS_MATMUL_FRAGMENT_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/matmul/fragment_table.cuh"

/* Pairs of bfloat16: a + b, a - b. */
__device__ __forceinline__ u32 add_bf16_pair(u32 a, u32 b) { return fma_bf16_pair(a, 0x3f803f80, b); }
__device__ __forceinline__ u32 subtract_bf16_pair(u32 a, u32 b) { return fma_bf16_pair(b, 0xbf80bf80, a); }

/* UNIT_STEPS: the strip is used in units of so many steps, each with a head of its own; steps and groups are counted from
 * the unit's beginning. */
template <int ENCODING, int UNIT_STEPS = FRAGMENT_STRIP_K / 16> struct fragment_strip {
    static constexpr fragment_layout LAYOUT = fragment_lay_out(ENCODING);
    static_assert(LAYOUT.code != 0, "an encoding with fragments");
    static constexpr int STEPS = UNIT_STEPS;                      /* of 16 k */
    static constexpr int UNITS = FRAGMENT_STRIP_K / 16 / STEPS;   /* of a strip */
    static constexpr int VECTOR_STEPS = LAYOUT.bits == 4 ? 4 : 2; /* whose codes of a lane are 16 bytes */
    static constexpr int PART_STEPS =
        STEPS < VECTOR_STEPS ? STEPS : VECTOR_STEPS;                 /* whose codes a lane loads at once */
    static constexpr int PARTS = STEPS / PART_STEPS;                 /* of a unit */
    static constexpr int CODE_WORDS = 4 * PART_STEPS / VECTOR_STEPS; /* of a part */
    static constexpr bool SUM_SCALES = fragment_sum_scales(LAYOUT);
    static constexpr int GROUP_STEPS = SUM_SCALES ? LAYOUT.group / 16 : STEPS; /* whose sums have one scale */
    static constexpr int SCALE_BYTES = LAYOUT.pair_scale_bytes / UNITS, ZERO_BYTES = LAYOUT.pair_zero_bytes / UNITS;
    static constexpr int SCALE_WORDS = SCALE_BYTES > 4 ? SCALE_BYTES / 4 : 1;
    static constexpr int ZERO_WORDS = ZERO_BYTES > 4 ? 2 : 1;
    static_assert(PART_STEPS >= 2 && STEPS % PART_STEPS == 0 && STEPS % GROUP_STEPS == 0, "whole words and groups");

    /* Scales and zeros of the rows lane / 4 and lane / 4 + 8. */
    struct head {
        u32 scales[SCALE_WORDS], zeros[ZERO_WORDS];
    };

    static __device__ __forceinline__ head load_head(u32 strip, int unit = 0)
    {
        const u32 pair = threadIdx.x % 32 / 4;
        head h = {};
        if constexpr (LAYOUT.groups)
            load_head_bytes<SCALE_BYTES>(h.scales, strip + pair * LAYOUT.pair_scale_bytes + (u32)(unit * SCALE_BYTES));
        if constexpr (LAYOUT.zeros)
            load_head_bytes<ZERO_BYTES>(h.zeros, strip + LAYOUT.zeros_at + pair * LAYOUT.pair_zero_bytes +
                                                     (u32)(unit * ZERO_BYTES));
        return h;
    }

    template <int BYTES, int WORDS> static __device__ __forceinline__ void load_head_bytes(u32 (&to)[WORDS], u32 from)
    {
        if constexpr (BYTES == 2)
            to[0] = load_shared_half(from);
        else
            load_shared(to, from);
    }

    /* What the sums of a group are multiplied by: `half` 0 for row lane / 4, 1 for row lane / 4 + 8. Requires
     * SUM_SCALES. */
    static __device__ __forceinline__ float scale(const head &h, int group, int half)
    {
        const int index = group * 2 + half;
        if constexpr (LAYOUT.scale == FRAGMENT_F32)
            return float_of_bits(h.scales[index]);
        else if constexpr (LAYOUT.scale == FRAGMENT_F16)
            return float_of_half<DTYPE_F16>((u16)(h.scales[index / 2] >> (index % 2 * 16)));
        else
            return float_of_bits((h.scales[index / 4] >> (index % 4 * 8) & 0xff) << 23);
    }

    /* The codes of PART_STEPS steps. `part`: of the strip. */
    static __device__ __forceinline__ void load_codes(u32 (&codes)[CODE_WORDS], u32 strip, int part)
    {
        constexpr int VECTOR_PARTS = VECTOR_STEPS / PART_STEPS;
        load_shared(codes, strip + (u32)(LAYOUT.codes_at + part / VECTOR_PARTS * 512) + threadIdx.x % 32 * 16 +
                               (u32)(part % VECTOR_PARTS * CODE_WORDS * 4));
    }

    /* Codes of 8 bits for each of which the operand of `keep` has so many units. */
    static constexpr float KEPT_UNITS = LAYOUT.code == FRAGMENT_UINT4 ? 16 : 1;

    /* The codes of steps `step` and `step` + 1 in 8 bits, the A operand of mma.m16n8k32 if B is in the order of quantise.h: e4m3 and
     * int8 as they are, int4 less 8 as an int8 of KEPT_UNITS times that. HOLDS_MASK: a register is free for a constant, which saves
     * an instruction in three. */
    template <bool HOLDS_MASK>
    static __device__ __forceinline__ void keep(u32 (&a)[4], const u32 (&codes)[CODE_WORDS], int step)
    {
        static_assert(LAYOUT.bits == 8 || (LAYOUT.code == FRAGMENT_UINT4 && !LAYOUT.zeros), "codes of 8 bits, int4");
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (LAYOUT.bits == 8) {
                a[i] = __byte_perm(codes[i / 2 * 2], codes[i / 2 * 2 + 1], i % 2 ? 0x7351 : 0x6240);
            } else {
                /* The upper halves of bytes: registers 0 and 2, or 1 and 3; the codes are 8 more than their numbers. */
                const u32 word = codes[(step + i / 2) % PART_STEPS];
                const u32 turned = HOLDS_MASK && i % 2 == 0 ? word << 1 : __funnelshift_r(word, word, i % 2 ? 3 : 31);
                a[i] = HOLDS_MASK ? and_xor(turned, 0xf0f0f0f0, 0x80808080) : (turned & 0xf0f0f0f0) ^ 0x80808080;
            }
        }
    }

    /* Byte `byte` of a word in both of its halves, below the lowest byte of `above`. */
    static __device__ __forceinline__ u32 byte_in_both_halves(u32 word, int byte, u32 above)
    {
        return __byte_perm(word, above, 0x4040u | (u32)byte | (u32)byte << 8);
    }

    /* int4: 16 more than the codes, zeros not subtracted. */
    static __device__ __forceinline__ void decode_above(u32 (&a)[4], const u32 (&codes)[CODE_WORDS], int step)
    {
        static_assert(LAYOUT.code == FRAGMENT_UINT4, "int4");
        const u32 word = codes[step % PART_STEPS];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 turned = i == 0 ? word : i < 3 ? word >> 4 * i : __funnelshift_r(word, word, 12);
            a[i] = and_or(turned, 0x00780078, 0x41804180);
        }
    }

    /* What decode_above leaves for the sums of a group: this many times the sum of its x. */
    static __device__ __forceinline__ float zero_above(const head &h, int group, int half)
    {
        if constexpr (!LAYOUT.zeros) return -24;
        const int index = group * 2 + half;
        return float_of_bits((h.zeros[index / 4] >> (index % 4 * 8) & 15) << 19 | 0xc1800000);
    }

    /* The operand of step `step` of the unit, from the codes of its part. */
    static __device__ __forceinline__ void decode(u32 (&a)[4], const u32 (&codes)[CODE_WORDS], const head &h, int step)
    {
        constexpr u32 MINUS_ZERO = 0x80008000, HUNDRED28 = 0x43004300;
        if constexpr (LAYOUT.code == FRAGMENT_UINT4) {
            const int group = step / GROUP_STEPS;
            u32 zero[2] = {0xc1c0c1c0, 0xc1c0c1c0}; /* -(16 + 8) */
            /* Braces: without them, nvcc 13.0 drops the next loop together with the discarded one. */
            if constexpr (LAYOUT.zeros) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int index = group * 2 + half; /* a byte of the zeros: 16 and so many eighths of it */
                    zero[half] = byte_in_both_halves(h.zeros[index / 4], index % 4, 0) * 8 + 0xc180c180;
                }
            }
            decode_above(a, codes, step);
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = add_bf16_pair(a[i], zero[i % 2]);
        } else if constexpr (LAYOUT.code == FRAGMENT_INT8) {
            /* 128 + the lower seven bits, less 128, or 256 where the sign bit is set. */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 word = codes[step % 2 * 2 + i / 2] >> i % 2 * 8;
                a[i] = subtract_bf16_pair(and_or(word, 0x007f007f, HUNDRED28), and_or(word, 0x00800080, HUNDRED28));
            }
            if constexpr (LAYOUT.zeros) { /* at most 255 remains, which a bfloat16 holds */
                u32 zero[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int index = step / GROUP_STEPS * 2 + half;
                    const u32 both = byte_in_both_halves(h.zeros[index / 4], index % 4, 0);
                    zero[half] =
                        subtract_bf16_pair(and_or(both, 0x007f007f, HUNDRED28), and_or(both, 0x00800080, HUNDRED28));
                }
#pragma unroll
                for (int i = 0; i < 4; i++) a[i] = subtract_bf16_pair(a[i], zero[i % 2]);
            }
        } else if constexpr (LAYOUT.code == FRAGMENT_E4M3) {
            /* As bfloat16 the bits say 2^-120 of the number. */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 word = codes[step % 2 * 2 + i / 2];
                const u32 sign = (i % 2 ? word : word << 8) & 0x80008000;
                a[i] = fma_bf16_pair(and_or(i % 2 ? word >> 4 : word << 4, 0x07f007f0, sign), 0x7b807b80, MINUS_ZERO);
            }
        } else if constexpr (LAYOUT.code == FRAGMENT_TABLE) {
            const u32 word = codes[step % PART_STEPS];
            fragment_table<ENCODING>::look_up(a[0], a[1], word);
            fragment_table<ENCODING>::look_up(a[2], a[3], word >> 16);
        } else {
            /* As bfloat16 the bits say 2^-126 of the number. */
            constexpr u32 NUMBER = 0x81c081c0, SIGN = 0x80008000, MAGNITUDE = 0x01c001c0;
            const u32 word = codes[step % PART_STEPS];
            a[0] = word & NUMBER;
            a[1] = word * 8 & NUMBER;
            /* One multiplication shifts the magnitude by 6 and the sign by 1. No two bits of the factors' products coincide. */
            a[2] = (word & 0x40074007) * ((1 << 6) + (1 << 1)) & NUMBER;
            a[3] = and_or(word >> 3, MAGNITUDE, word << 2 & SIGN);
            if constexpr (LAYOUT.scale == FRAGMENT_E5M3) {
                /* 2^112 times the scales of an even step and of the next one, for either row; fragment_factor has the rest. */
                const u32 scales = h.scales[step / 2];
                const u32 rows[2] = {and_or(scales << 4, 0x0ff00ff0, 0x70007000),
                                     and_or(scales >> 4, 0x0ff00ff0, 0x70007000)};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[i] = step % 2 ? multiply_bf16_pair_by<1>(a[i], rows[i % 2])
                                    : multiply_bf16_pair_by<0>(a[i], rows[i % 2]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) a[i] = fma_bf16_pair(a[i], 0x7e807e80, MINUS_ZERO);
            }
        }
    }
};

/* The numbers of an encoding as decode gives them are so many times too small: 2^-14 of a number, not 2^-8, with e5m3. */
template <int ENCODING> __device__ constexpr float fragment_unit()
{
    return fragment_lay_out(ENCODING).scale == FRAGMENT_E5M3 ? 64 : 1;
}

/* The factor of row `row` of a matrix of K columns, which multiplies its sum. */
template <int ENCODING> __device__ __forceinline__ float fragment_factor(const void *weights, int row, i64 k)
{
    constexpr fragment_layout LAYOUT = fragment_lay_out(ENCODING);
    if constexpr (LAYOUT.factors) {
        const u8 *panel = (const u8 *)weights + row / FRAGMENT_ROWS * fragment_panel_bytes(LAYOUT, k);
        return ((const float *)panel)[row % FRAGMENT_ROWS] * fragment_unit<ENCODING>();
    }
    return 1;
}

#endif
