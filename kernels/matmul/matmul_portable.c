/* SPDX-License-Identifier: Apache-2.0 */
/* matmul for any processor: vectors of four floats in the compiler's own notation (SSE2 on x86-64, NEON on arm64),
 * multiplication and addition apart because fused ones are slow without hardware. */
#include <string.h>

#include "kernels/matmul/matmul_tile.h"

#define MATMUL_LANES 4
typedef float vec __attribute__((vector_size(16)));
typedef uint32_t bits32 __attribute__((vector_size(16)));
typedef uint16_t bits16 __attribute__((vector_size(8)));

static inline vec vec_broadcast(const float *from)
{
    float value = *from;
    return (vec){value, value, value, value};
}

static inline vec vec_multiply_add(vec a, vec b, vec c) { return a * b + c; }

static inline bits32 load_bits32(const void *from)
{
    bits32 value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* Pairs are little endian: the element of even k is the low half. */
static inline vec vec_bf16_even(const void *from) { return (vec)(load_bits32(from) << 16); }
static inline vec vec_bf16_odd(const void *from) { return (vec)(load_bits32(from) & 0xffff0000u); }

/* The exponent of f16 has a bias of 15, that of f32 of 127: multiplying by 2^112 corrects it, and makes subnormal
 * numbers normal. The largest exponent means infinity or NaN in both and is set by hand. */
static inline vec vec_f16(const void *from)
{
    bits16 halves;
    memcpy(&halves, from, sizeof halves);
    bits32 bits = __builtin_convertvector(halves, bits32);
    bits32 sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    const vec scale = {0x1p112f, 0x1p112f, 0x1p112f, 0x1p112f};
    bits32 special = (bits32)((bits & 0x7c00u) == 0x7c00u) & 0x7f800000u;
    return (vec)((bits32)((vec)magnitude * scale) | special | sign);
}

typedef int32_t integer_vector __attribute__((vector_size(16)));
typedef uint8_t bytes8 __attribute__((vector_size(4)));
typedef const float *vec_numbers;

static inline bits32 load_bytes(const void *from)
{
    bytes8 bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, bits32);
}

static inline vec vec_int4(const void *from, const int place, vec_numbers table)
{
    (void)table;
    const bits32 codes = load_bits32(from) >> MATMUL_NIBBLE_SHIFT(place) & 15;
    return (vec)(codes | 0x4b000000u) - (0x1p23f + 8); /* the code in the low bits of 2^23 */
}

/* Exponent and mantissa in the place of a float's are the number times 2^-126; a subnormal one becomes normal. */
static inline vec vec_e2m1(const void *from, const int place, vec_numbers table)
{
    (void)table;
    const bits32 codes = load_bits32(from) >> MATMUL_NIBBLE_SHIFT(place);
    const vec magnitudes = (vec)((codes & 7) << 22) * 0x1p126f;
    return (vec)((bits32)magnitudes | (codes & 8) << 28);
}

static inline vec vec_looked_up(const void *from, const int place, vec_numbers table)
{
    const bits32 codes = load_bits32(from) >> MATMUL_NIBBLE_SHIFT(place) & 15;
    return (vec){table[codes[0]], table[codes[1]], table[codes[2]], table[codes[3]]};
}

static inline vec vec_int8(const void *from, const int place)
{
    return __builtin_convertvector((integer_vector)(load_bits32(from) << (24 - 8 * place)) >> 24, vec);
}

/* The number times 2^-120, then 2^-8. */
static inline vec vec_e4m3(const void *from)
{
    const bits32 codes = load_bytes(from);
    const vec magnitudes = (vec)((codes & 0x7f) << 20) * 0x1p112f;
    return (vec)((bits32)magnitudes | (codes & 0x80) << 24);
}

static inline vec vec_e8m0(const void *from) { return (vec)(load_bytes(from) << 23); }

static inline vec_numbers vec_table(const struct encoding *encoding) { return encoding->table; }

#include "kernels/matmul/matmul_kernels.h"

MATMUL_TILES_3(MATMUL_DEFINE_TILE, BF16)
MATMUL_TILES_3(MATMUL_DEFINE_TILE, F16)
MATMUL_TILES_3(MATMUL_DEFINE_TILE, F32)
MATMUL_TILES_3(MATMUL_DEFINE_CODED, INT4)
MATMUL_TILES_3(MATMUL_DEFINE_CODED, INT8)
MATMUL_TILES_3(MATMUL_DEFINE_CODED, E4M3)
MATMUL_TILES_3(MATMUL_DEFINE_CODED, E2M1)
MATMUL_TILES_3(MATMUL_DEFINE_CODED, TABLE)

static const struct matmul_kernels kernels = {
    .isa = CPU_PORTABLE,
    .finish = finish,
    .tiles = {MATMUL_TILES_3(MATMUL_LIST_TILE, BF16) MATMUL_TILES_3(MATMUL_LIST_TILE, F16)
                  MATMUL_TILES_3(MATMUL_LIST_TILE, F32) MATMUL_TILES_3(MATMUL_LIST_TILE, INT4)
                      MATMUL_TILES_3(MATMUL_LIST_TILE, INT8) MATMUL_TILES_3(MATMUL_LIST_TILE, E4M3)
                          MATMUL_TILES_3(MATMUL_LIST_TILE, E2M1) MATMUL_TILES_3(MATMUL_LIST_TILE, TABLE)},
};

void matmul_run_portable(const struct op_call *call, struct team_member *member)
{
    matmul_loop(call, member, &kernels);
}
