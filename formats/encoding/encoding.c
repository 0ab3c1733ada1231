/* SPDX-License-Identifier: Apache-2.0 */
/* The table of encodings, and sizes that follow from it. */
#include "formats/encoding/encoding.h"

#include <string.h>

#include "formats/base/checked.h"

#define FLOATS(of, text, width)                                   \
    {                                                             \
        .id = of, .name = text, .code = CODE_FLOAT, .bits = width \
    }
#define INT4(of, text, group, has_zeros)                                                            \
    {                                                                                               \
        .id = of, .name = text, .code = CODE_UINT4, .bits = 4, .scale = SCALE_F16, .block_rows = 1, \
        .block_columns = group, .zeros = has_zeros                                                  \
    }
#define INT8(of, text, group, has_zeros)                                                           \
    {                                                                                              \
        .id = of, .name = text, .code = CODE_INT8, .bits = 8, .scale = SCALE_F16, .block_rows = 1, \
        .block_columns = group, .zeros = has_zeros                                                 \
    }

#define TABLE(of, text, numbers)                                                                    \
    {                                                                                               \
        .id = of, .name = text, .code = CODE_TABLE, .bits = 4, .scale = SCALE_F32, .block_rows = 1, \
        .block_columns = 64, .table = numbers                                                       \
    }

/* The numbers of bitsandbytes: quantiles of the normal distribution (arXiv:2305.14314, appendix E), and a float of 4 bits. */
static const float nf4_numbers[16] = {-1.0f,         -0.696192801f, -0.525073051f,  -0.394917488f,
                                      -0.284441382f, -0.18477343f,  -0.0910500363f, 0.0f,
                                      0.0795802996f, 0.160930201f,  0.246112302f,   0.337915242f,
                                      0.440709829f,  0.562617004f,  0.722956836f,   1.0f};
static const float fp4_numbers[16] = {0.0f,          0.0625f / 12.0f,  8.0f / 12.0f,  12.0f / 12.0f,
                                      4.0f / 12.0f,  6.0f / 12.0f,     2.0f / 12.0f,  3.0f / 12.0f,
                                      -0.0f,         -0.0625f / 12.0f, -8.0f / 12.0f, -12.0f / 12.0f,
                                      -4.0f / 12.0f, -6.0f / 12.0f,    -2.0f / 12.0f, -3.0f / 12.0f};

/* By rising id. */
static const struct encoding encodings[] = {
    FLOATS(ENCODING_F32, "f32", 32),
    FLOATS(ENCODING_F16, "f16", 16),
    FLOATS(ENCODING_BF16, "bf16", 16),
    {.id = ENCODING_INT8_CHANNEL,
     .name = "int8_channel",
     .code = CODE_INT8,
     .bits = 8,
     .scale = SCALE_F32,
     .block_rows = 1},
    INT4(ENCODING_INT4_G32, "int4_g32", 32, false),
    INT4(ENCODING_INT4_G64, "int4_g64", 64, false),
    INT4(ENCODING_INT4_G128, "int4_g128", 128, false),
    INT4(ENCODING_INT4_G32_ZEROS, "int4_g32_zeros", 32, true),
    INT4(ENCODING_INT4_G64_ZEROS, "int4_g64_zeros", 64, true),
    INT4(ENCODING_INT4_G128_ZEROS, "int4_g128_zeros", 128, true),
    {.id = ENCODING_E4M3_TENSOR, .name = "e4m3_tensor", .code = CODE_E4M3, .bits = 8, .scale = SCALE_F32},
    {.id = ENCODING_E4M3_CHANNEL,
     .name = "e4m3_channel",
     .code = CODE_E4M3,
     .bits = 8,
     .scale = SCALE_F32,
     .block_rows = 1},
    {.id = ENCODING_E4M3_BLOCK128,
     .name = "e4m3_block128",
     .code = CODE_E4M3,
     .bits = 8,
     .scale = SCALE_F32,
     .block_rows = 128,
     .block_columns = 128},
    {.id = ENCODING_MXFP4,
     .name = "mxfp4",
     .code = CODE_E2M1,
     .bits = 4,
     .scale = SCALE_E8M0,
     .block_rows = 1,
     .block_columns = 32},
    {.id = ENCODING_NVFP4,
     .name = "nvfp4",
     .code = CODE_E2M1,
     .bits = 4,
     .scale = SCALE_E4M3,
     .block_rows = 1,
     .block_columns = 16,
     .global = true},
    INT8(ENCODING_INT8_G32, "int8_g32", 32, false),
    INT8(ENCODING_INT8_G64, "int8_g64", 64, false),
    INT8(ENCODING_INT8_G128, "int8_g128", 128, false),
    {.id = ENCODING_MXFP8,
     .name = "mxfp8",
     .code = CODE_E4M3,
     .bits = 8,
     .scale = SCALE_E8M0,
     .block_rows = 1,
     .block_columns = 32},
    TABLE(ENCODING_NF4_G64, "nf4_g64", nf4_numbers),
    TABLE(ENCODING_FP4_G64, "fp4_g64", fp4_numbers),
    INT8(ENCODING_INT8_G32_ZEROS, "int8_g32_zeros", 32, true),
    INT8(ENCODING_INT8_G64_ZEROS, "int8_g64_zeros", 64, true),
    INT8(ENCODING_INT8_G128_ZEROS, "int8_g128_zeros", 128, true),
};

enum { ENCODING_COUNT = sizeof encodings / sizeof *encodings };

const struct encoding *encoding_at(size_t index) { return index < ENCODING_COUNT ? &encodings[index] : NULL; }

const struct encoding *encoding_find(int64_t id)
{
    for (size_t i = 0; i < ENCODING_COUNT; i++)
        if ((int64_t)encodings[i].id == id) return &encodings[i];
    return NULL;
}

const char *encoding_name(enum encoding_id id)
{
    const struct encoding *encoding = encoding_find(id);
    return encoding ? encoding->name : "?";
}

const char *encoding_label(int64_t id)
{
    const struct encoding *encoding = encoding_find(id);
    if (!encoding) return "?";
    return encoding->code == CODE_FLOAT ? dtype_name((enum dtype)id) : encoding->name;
}

enum encoding_id encoding_from_label(const char *label)
{
    for (size_t i = 0; i < ENCODING_COUNT; i++)
        if (strcmp(encoding_label(encodings[i].id), label) == 0) return encodings[i].id;
    return ENCODING_NONE;
}

bool encoding_is_plain(enum encoding_id id)
{
    const struct encoding *encoding = encoding_find(id);
    return encoding && encoding->code == CODE_FLOAT;
}

static uint64_t blocks(uint64_t count, uint32_t block)
{
    if (block == 0) return count != 0;
    return count / block + (count % block != 0);
}

/* Bytes of `count` codes of `bits`. */
static bool packed_bytes(uint64_t count, uint32_t bits, uint64_t *bytes)
{
    if (!checked_mul(count, bits, bytes)) return false;
    *bytes = *bytes / 8 + (*bytes % 8 != 0);
    return true;
}

static uint64_t scale_bytes(enum encoding_scale scale)
{
    static const uint8_t bytes[] =
        {[SCALE_NONE] = 0, [SCALE_F32] = 4, [SCALE_F16] = 2, [SCALE_E4M3] = 1, [SCALE_E8M0] = 1};
    return bytes[scale];
}

bool encoding_layout(enum encoding_id id, uint64_t rows, uint64_t columns, struct encoding_layout *layout)
{
    const struct encoding *encoding = encoding_find(id);
    if (!encoding) return false;
    *layout = (struct encoding_layout){0};
    if (rows == 0 || columns == 0) return true;
    layout->row_blocks = blocks(rows, encoding->block_rows);
    layout->column_blocks = blocks(columns, encoding->block_columns);
    uint64_t counts[PLANE_COUNT] = {rows, layout->row_blocks, layout->row_blocks, rows};
    if (!packed_bytes(columns, encoding->bits, &layout->planes[PLANE_CODES].pitch) ||
        !checked_mul(layout->column_blocks, scale_bytes(encoding->scale), &layout->planes[PLANE_SCALES].pitch) ||
        (encoding->zeros && !packed_bytes(layout->column_blocks, encoding->bits, &layout->planes[PLANE_ZEROS].pitch)))
        return false;
    layout->planes[PLANE_GLOBAL].pitch = encoding->global ? sizeof(float) : 0;
    for (int p = 0; p < PLANE_COUNT; p++) {
        if (!layout->planes[p].pitch) continue;
        if (!checked_align(layout->bytes, ENCODING_PLANE_ALIGNMENT, &layout->planes[p].offset) ||
            !checked_mul(counts[p], layout->planes[p].pitch, &layout->planes[p].bytes) ||
            !checked_add(layout->planes[p].offset, layout->planes[p].bytes, &layout->bytes))
            return false;
    }
    return true;
}

uint64_t encoding_bytes(enum encoding_id id, uint64_t rows, uint64_t columns)
{
    struct encoding_layout layout;
    return encoding_layout(id, rows, columns, &layout) ? layout.bytes : 0;
}
