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

float f16_to_float(uint16_t value);
uint16_t f16_from_float(float value); /* round to nearest even, overflow to infinity */

#endif
