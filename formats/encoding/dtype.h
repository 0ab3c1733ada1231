/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of tensors, their sizes and names, and scalar conversions to and from float. */
#ifndef FORMATS_ENCODING_DTYPE_H
#define FORMATS_ENCODING_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Values are written into engine files: never reused. */
enum dtype {
    DTYPE_NONE = 0,
    DTYPE_F32 = 1,
    DTYPE_F16 = 2,
    DTYPE_BF16 = 3,
    DTYPE_F8_E4M3 = 4,
    DTYPE_F8_E5M2 = 5,
    DTYPE_I8 = 6,
    DTYPE_U8 = 7,
    DTYPE_I32 = 8,
    DTYPE_I64 = 9,
    DTYPE_I16 = 10,
    DTYPE_F8_E8M0 = 11, /* 2^(byte - 127) */
    DTYPE_COUNT
};

size_t dtype_bytes(enum dtype dtype);               /* bytes per element, 0 for an unknown value */
const char *dtype_name(enum dtype dtype);           /* safetensors spelling: "F32", "BF16", ...; "?" if unknown */
enum dtype dtype_from_name(const char *name);       /* safetensors spelling; DTYPE_NONE if unknown */
enum dtype dtype_from_torch_name(const char *name); /* "float32", "bfloat16", "torch.float16"; DTYPE_NONE if unknown */

static inline float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bf16_to_float(uint16_t value) { return float_from_bits((uint32_t)value << 16); }

/* Round to nearest, ties to even; NaN stays a (quiet) NaN. */
static inline uint16_t bf16_from_float(float value)
{
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float f16_to_float(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = (value >> 10) & 0x1fu, mantissa = value & 0x3ffu;
    if (exponent == 31) return float_from_bits(sign | 0x7f800000u | (mantissa << 13));
    if (exponent) return float_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
    float magnitude = (float)mantissa * 0x1p-24f; /* zero and subnormals: exact in float */
    return sign ? -magnitude : magnitude;
}

/* Round to nearest even, overflow to infinity. */
static inline uint16_t f16_from_float(float value)
{
    uint32_t bits = float_to_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 2^16 or beyond */
    if (magnitude < 0x38800000u) {
        /* Subnormal result: adding 0.5 aligns the 10 mantissa bits with the low bits and rounds to even. */
        uint32_t rounded = float_to_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | rounded);
    }
    uint32_t odd = (magnitude >> 13) & 1u;
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

#endif
