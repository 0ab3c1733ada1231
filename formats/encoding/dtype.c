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
    [DTYPE_I16] = {"I16", "int16", 2},
    [DTYPE_F8_E8M0] = {"F8_E8M0", "float8_e8m0fnu", 1},
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
