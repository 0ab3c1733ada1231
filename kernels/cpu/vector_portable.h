/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of four floats in the generic vector notation of compilers, for every processor (SSE2, NEON or scalar). The
 * three headers vector_<isa>.h define the same names, so that an op is written once and compiled for each;
 * vector_math.h, included at the end, builds on them. Arithmetic uses the operators of the vector type. */
#ifndef KERNELS_CPU_VECTOR_H
#define KERNELS_CPU_VECTOR_H

#include <stdint.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "formats/encoding/dtype.h"

enum { VEC_WIDTH = 4, VEC_REGISTERS = 16 };
typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_int __attribute__((vector_size(16)));

static inline vec vec_set(float value) { return (vec){value, value, value, value}; }
static inline vec_int vec_int_set(int32_t value) { return (vec_int){value, value, value, value}; }

static inline vec vec_load(const float *from) /* [VEC_WIDTH], any alignment */
{
    vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void vec_store(float *to, vec value) { memcpy(to, &value, sizeof value); }

/* Lanes [0, count); further lanes are zero, or untouched by a store. 0 <= count <= VEC_WIDTH. */
static inline vec vec_load_part(const float *from, int64_t count)
{
    float lanes[VEC_WIDTH] = {0};
    for (int64_t i = 0; i < count; i++) lanes[i] = from[i];
    return vec_load(lanes);
}

static inline void vec_store_part(float *to, int64_t count, vec value)
{
    float lanes[VEC_WIDTH];
    vec_store(lanes, value);
    for (int64_t i = 0; i < count; i++) to[i] = lanes[i];
}

static inline vec vec_load_f16(const uint16_t *from)
{
    return (vec){f16_to_float(from[0]), f16_to_float(from[1]), f16_to_float(from[2]), f16_to_float(from[3])};
}

static inline vec vec_load_bf16(const uint16_t *from)
{
    return (vec){bf16_to_float(from[0]), bf16_to_float(from[1]), bf16_to_float(from[2]), bf16_to_float(from[3])};
}

/* Numbers of consecutive codes: int8, and e4m3 times 2^-8 (the bits of an e4m3 number, shifted to those of a float16). */
static inline vec vec_load_int8(const uint8_t *from)
{
    return (vec){(int8_t)from[0], (int8_t)from[1], (int8_t)from[2], (int8_t)from[3]};
}

static inline vec vec_load_e4m3(const uint8_t *from)
{
    uint16_t halves[VEC_WIDTH];
    for (int i = 0; i < VEC_WIDTH; i++) halves[i] = (uint16_t)((from[i] & 0x80) << 8 | (from[i] & 0x7f) << 7);
    return vec_load_f16(halves);
}

/* The lowest byte of each lane. */
static inline void vec_store_bytes(uint8_t *to, vec_int codes)
{
    for (int i = 0; i < VEC_WIDTH; i++) to[i] = (uint8_t)codes[i];
}

/* Round to nearest even. */
static inline void vec_store_f16(uint16_t *to, vec value)
{
    for (int i = 0; i < VEC_WIDTH; i++) to[i] = f16_from_float(value[i]);
}

static inline void vec_store_bf16(uint16_t *to, vec value)
{
    for (int i = 0; i < VEC_WIDTH; i++) to[i] = bf16_from_float(value[i]);
}

/* a * b + c, rounded once if the processor can */
static inline vec vec_fma(vec a, vec b, vec c) { return a * b + c; }

/* A NaN in b is returned, one in a is not: what SSE has instructions for, which compilers do not find. */
static inline vec vec_max(vec a, vec b)
{
#if defined(__SSE__)
    return (vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    vec_int greater = a > b;
    return (vec)(((vec_int)a & greater) | ((vec_int)b & ~greater));
#endif
}

static inline vec vec_min(vec a, vec b)
{
#if defined(__SSE__)
    return (vec)_mm_min_ps((__m128)a, (__m128)b);
#else
    vec_int less = a < b;
    return (vec)(((vec_int)a & less) | ((vec_int)b & ~less));
#endif
}

/* value * 2^n for integer n in [-160, 160], subnormal results included: two steps, each with its exponent in range. */
static inline vec vec_scale(vec value, vec n)
{
    vec_int whole = (vec_int)(n + vec_set(0x1.8p+23f)) - (vec_int)vec_set(0x1.8p+23f), half = whole >> 1;
    vec first = (vec)((half + vec_int_set(127)) << 23), second = (vec)((whole - half + vec_int_set(127)) << 23);
    return value * first * second;
}

/* Sum and maximum over the lanes, in one fixed order. */
static inline float vec_sum(vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }

static inline float vec_largest(vec v)
{
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}

/* Bit i set: lane i of a >= lane i of b (false for NaN). */
static inline uint32_t vec_bits_ge(vec a, vec b)
{
    vec_int mask = a >= b;
    return (uint32_t)((mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8));
}

/* Lane i of a where bit i is set, else of b. */
static inline vec vec_select(uint32_t bits, vec a, vec b)
{
    for (int i = 0; i < VEC_WIDTH; i++)
        if (bits >> i & 1) b[i] = a[i];
    return b;
}

/* rows[i][j] <-> rows[j][i] of VEC_WIDTH x VEC_WIDTH floats. */
static inline __attribute__((always_inline)) void vec_transpose(vec rows[VEC_WIDTH])
{
    vec a = rows[0], b = rows[1], c = rows[2], d = rows[3];
    rows[0] = (vec){a[0], b[0], c[0], d[0]};
    rows[1] = (vec){a[1], b[1], c[1], d[1]};
    rows[2] = (vec){a[2], b[2], c[2], d[2]};
    rows[3] = (vec){a[3], b[3], c[3], d[3]};
}

#include "kernels/cpu/vector_math.h"

#endif
