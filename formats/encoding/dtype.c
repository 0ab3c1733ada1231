/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/encoding/dtype.h"

static const struct {
    const char *name, *torch_name;
    size_t bytes;
} types[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", "float32", 4},
    [DTYPE_F16] = {"F16", "float16", 2},
    [DTYPE_BF16] = {"BF16", "bfloat16", 2},
    [DTYPE_F8_E4M3] = {"F8_E4M3", "float8_e4m3fn", 1},
    [DTYPE_F8_E5M2] = {"F8_E5M2", "float8_e5m2", 1},
    [DTYPE_I8] = {"I8", "int8", 1},
    [DTYPE_U8] = {"U8", "uint8", 1},
    [DTYPE_I32] = {"I32", "int32", 4},
    [DTYPE_I64] = {"I64", "int64", 8},
};

static bool known(enum dtype dtype) { return (int)dtype > DTYPE_NONE && dtype < DTYPE_COUNT; }

size_t dtype_bytes(enum dtype dtype) { return known(dtype) ? types[dtype].bytes : 0; }

const char *dtype_name(enum dtype dtype) { return known(dtype) ? types[dtype].name : "?"; }

enum dtype dtype_from_name(const char *name)
{
    for (int i = DTYPE_NONE + 1; i < DTYPE_COUNT; i++)
        if (strcmp(types[i].name, name) == 0) return (enum dtype)i;
    return DTYPE_NONE;
}

enum dtype dtype_from_torch_name(const char *name)
{
    static const char prefix[] = "torch.";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) name += sizeof prefix - 1;
    for (int i = DTYPE_NONE + 1; i < DTYPE_COUNT; i++)
        if (strcmp(types[i].torch_name, name) == 0) return (enum dtype)i;
    return DTYPE_NONE;
}

float f16_to_float(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = (value >> 10) & 0x1fu, mantissa = value & 0x3ffu;
    if (exponent == 31) return float_from_bits(sign | 0x7f800000u | (mantissa << 13));
    if (exponent) return float_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
    float magnitude = (float)mantissa * 0x1p-24f; /* zero and subnormals: exact in float */
    return sign ? -magnitude : magnitude;
}

uint16_t f16_from_float(float value)
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
