/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores by dtype, and mathematical functions, written with the names of vector_<isa>.h, which includes this
 * file at its end. */
#ifndef KERNELS_CPU_VECTOR_MATH_H
#define KERNELS_CPU_VECTOR_MATH_H

#include "formats/encoding/encoding.h"

/* For functions whose speed depends on arguments that are constant at the call: a dtype, the size of a register
 * tile. */
#define VEC_INLINE static inline __attribute__((always_inline))

/* Elements [index, index + count) of an array of F32, F16 or BF16 as float; count <= VEC_WIDTH, further lanes are zero.
 * A constant dtype removes the branches. */
VEC_INLINE vec vec_load_dtype(const void *array, int64_t index, int64_t count, enum dtype dtype)
{
    if (dtype == DTYPE_F32) {
        const float *from = (const float *)array + index;
        return count >= VEC_WIDTH ? vec_load(from) : vec_load_part(from, count);
    }
    const uint16_t *from = (const uint16_t *)array + index;
    uint16_t lanes[VEC_WIDTH] = {0};
    if (count < VEC_WIDTH) {
        for (int64_t i = 0; i < count; i++) lanes[i] = from[i];
        from = lanes;
    }
    return dtype == DTYPE_F16 ? vec_load_f16(from) : vec_load_bf16(from);
}

VEC_INLINE void vec_store_dtype(void *array, int64_t index, int64_t count, enum dtype dtype, vec value)
{
    if (dtype == DTYPE_F32) {
        float *to = (float *)array + index;
        if (count >= VEC_WIDTH)
            vec_store(to, value);
        else
            vec_store_part(to, count, value);
        return;
    }
    uint16_t *to = (uint16_t *)array + index;
    uint16_t lanes[VEC_WIDTH];
    uint16_t *into = count >= VEC_WIDTH ? to : lanes;
    if (dtype == DTYPE_F16)
        vec_store_f16(into, value);
    else
        vec_store_bf16(into, value);
    if (count < VEC_WIDTH)
        for (int64_t i = 0; i < count; i++) to[i] = lanes[i];
}

/* As vec_load_dtype, of codes of 8 bits without their scale; those of e4m3 times 2^-8. */
VEC_INLINE vec vec_load_codes(const void *array, int64_t index, int64_t count, enum encoding_id encoding)
{
    if (encoding != ENCODING_INT8_CHANNEL && encoding != ENCODING_E4M3_CHANNEL)
        return vec_load_dtype(array, index, count, (enum dtype)encoding);
    const uint8_t *from = (const uint8_t *)array + index;
    uint8_t lanes[VEC_WIDTH] = {0};
    if (count < VEC_WIDTH) {
        for (int64_t i = 0; i < count; i++) lanes[i] = from[i];
        from = lanes;
    }
    return encoding == ENCODING_INT8_CHANNEL ? vec_load_int8(from) : vec_load_e4m3(from);
}

/* Byte `code` of each lane, as vec_load_codes gives codes. */
VEC_INLINE vec vec_of_code(vec_int lanes, int code, enum encoding_id encoding)
{
    const vec_int high = lanes << (24 - 8 * code);
    if (encoding == ENCODING_INT8_CHANNEL) return __builtin_convertvector(high >> 24, vec);
    /* Sign, exponent and mantissa in the place of a float32's: the number times 2^(7 - 127). */
    return (vec)(high >> 4 & vec_int_set(INT32_MIN | 0x07f00000)) * vec_set(0x1p112f);
}

/* Codes of numbers, rounded to nearest even; larger magnitudes become the largest, 127 or 448. Requires: no NaN. */
static inline vec_int vec_int8_codes(vec value)
{
    const vec magic = vec_set(0x1.8p+23f);
    return (vec_int)(vec_min(vec_set(127.0f), vec_max(vec_set(-127.0f), value)) + magic) - (vec_int)magic;
}

static inline vec_int vec_e4m3_codes(vec value)
{
    const vec_int bits = (vec_int)value, magnitude = bits & vec_int_set(INT32_MAX);
    /* Below 2^-6 codes count multiples of 2^-9, the unit of the last place of 2^14. */
    const vec_int small = (vec_int)((vec)magnitude + vec_set(0x1p14f)) - (vec_int)vec_set(0x1p14f);
    const vec_int rounded = magnitude + vec_int_set(0x7ffff) + (magnitude >> 20 & vec_int_set(1));
    const vec_int whole = (rounded >> 20) - vec_int_set((127 - 7) << 3), largest = vec_int_set(0x7e);
    const vec_int is_small = (vec_int)((vec)magnitude < vec_set(0x1p-6f)), is_above = (vec_int)(whole > largest);
    const vec_int normal = (largest & is_above) | (whole & ~is_above);
    return (small & is_small) | (normal & ~is_small) | (bits >> 24 & vec_int_set(0x80));
}

/* A row of `count` floats as codes of 8 bits and their scale: kernels/op/paged.h. `given`: the static scale; NULL: none. */
VEC_INLINE void vec_store_scaled(const float *row, int64_t count, enum encoding_id encoding, const float *given,
                                 uint8_t *codes, float *scale)
{
    const bool is_int8 = encoding == ENCODING_INT8_CHANNEL;
    vec largest = vec_set(0), zeros = vec_set(0); /* zeros: NaN if anything is not finite */
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        const vec value = vec_load_dtype(row, i, count - i, DTYPE_F32);
        largest = vec_max((vec)((vec_int)value & vec_int_set(INT32_MAX)), largest);
        zeros = zeros + value * vec_set(0);
    }
    *scale = vec_sum(zeros) + (given ? *given : vec_largest(largest) / (is_int8 ? 127.0f : 448.0f));
    const bool has_codes = *scale > 0;
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        vec scaled = vec_set(0);
        if (has_codes) scaled = vec_load_dtype(row, i, count - i, DTYPE_F32) / vec_set(*scale);
        const vec_int made = is_int8 ? vec_int8_codes(scaled) : vec_e4m3_codes(scaled);
        uint8_t lanes[VEC_WIDTH];
        vec_store_bytes(count - i >= VEC_WIDTH ? codes + i : lanes, made);
        for (int64_t j = 0; count - i < VEC_WIDTH && j < count - i; j++) codes[i + j] = lanes[j];
    }
}

/* e^x within about one unit in the last place for all floats: 0 below -104, infinity above 88.8, NaN stays NaN. x = n
 * ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r), p of degree 4 by interpolation of (e^r - 1 - r) / r^2 at
 * Chebyshev nodes (relative error of the result 1.1e-8). */
static inline vec vec_exp(vec x)
{
    const vec log2_e = vec_set(0x1.715476p+0f), magic = vec_set(0x1.8p+23f);
    const vec ln2_high = vec_set(0x1.62e4p-1f), ln2_low = vec_set(0x1.7f7d1cp-20f);
    x = vec_min(vec_set(89.0f), vec_max(vec_set(-104.0f), x));
    vec n = vec_fma(x, log2_e, magic) - magic; /* the sum has no bits left for a fraction */
    vec r = vec_fma(n, -ln2_high, x);          /* n * ln2_high is exact: 8 + 16 bits */
    r = vec_fma(n, -ln2_low, r);
    vec p = vec_set(0x1.6d117cp-10f);
    p = vec_fma(p, r, vec_set(0x1.120be2p-7f));
    p = vec_fma(p, r, vec_set(0x1.555518p-5f));
    p = vec_fma(p, r, vec_set(0x1.5554dcp-3f));
    p = vec_fma(p, r, vec_set(0.5f));
    return vec_scale(vec_fma(p, r * r, r) + vec_set(1.0f), n);
}

/* x / (1 + e^-x) */

#endif
