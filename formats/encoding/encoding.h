/* SPDX-License-Identifier: Apache-2.0 */
/* Encodings of weights and of the KV cache: how a matrix of numbers is stored where an element type alone does not say it.
 *
 * An encoded [rows, columns] weight is up to four planes, in the order of enum encoding_plane:
 *   codes   bits per element, the first element in the lowest bits; every row begins on a byte, its last bits are 0
 *   scales  one per block of block_rows x block_columns elements, [row blocks, column blocks]
 *   zeros   one code per block, with as many bits as a code; packed along the column blocks as codes are along columns
 *   global  a float32 per row, which multiplies the row's scales
 * and an element is  (code - zero) * scale * global, with what an encoding lacks left out. A code of int4 is unsigned, and
 * its zero is 8 where there is no plane of zeros. A global scale belongs to a row, not to the weight, so that weights can
 * be joined by rows without a change of value. Offsets and sizes of the planes: encoding_layout. */
#ifndef FORMATS_ENCODING_ENCODING_H
#define FORMATS_ENCODING_ENCODING_H

#include "formats/encoding/dtype.h"

/* Values are written into engine files: never reused. 1 to 3 are those of enum dtype, so that what a kernel reads as an
 * element type is one number; the other element types (4 to 11) are no encodings. */
enum encoding_id {
    ENCODING_NONE = 0,
    ENCODING_F32 = DTYPE_F32,
    ENCODING_F16 = DTYPE_F16,
    ENCODING_BF16 = DTYPE_BF16,
    ENCODING_INT8_CHANNEL = 16,
    ENCODING_INT4_G32 = 17,
    ENCODING_INT4_G64 = 18,
    ENCODING_INT4_G128 = 19,
    ENCODING_INT4_G32_ZEROS = 20,
    ENCODING_INT4_G64_ZEROS = 21,
    ENCODING_INT4_G128_ZEROS = 22,
    ENCODING_E4M3_TENSOR = 23,
    ENCODING_E4M3_CHANNEL = 24,
    ENCODING_E4M3_BLOCK128 = 25,
    ENCODING_MXFP4 = 26,
    ENCODING_NVFP4 = 27,
    ENCODING_INT8_G32 = 28,
    ENCODING_INT8_G64 = 29,
    ENCODING_INT8_G128 = 30,
    ENCODING_MXFP8 = 31,
    ENCODING_NF4_G64 = 32,
    ENCODING_FP4_G64 = 33,
    ENCODING_INT8_G32_ZEROS = 34,
    ENCODING_INT8_G64_ZEROS = 35,
    ENCODING_INT8_G128_ZEROS = 36,
};

enum encoding_code {
    CODE_FLOAT, /* a number by itself: float32, float16 or bfloat16, as the encoding's id says */
    CODE_INT8,  /* two's complement, less its zero, if there are zeros */
    CODE_UINT4, /* less its zero */
    CODE_E4M3,  /* float8_e4m3fn: largest 448, no infinity, 0x7f and 0xff are NaN */
    CODE_E2M1,  /* 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (8 to 15) */
    CODE_TABLE, /* an index of the encoding's table */
};

enum encoding_scale {
    SCALE_NONE,
    SCALE_F32,
    SCALE_F16,
    SCALE_E4M3,
    SCALE_E8M0, /* 2^(byte - 127); 255 is NaN */
};

struct encoding {
    enum encoding_id id;
    const char *name;
    enum encoding_code code;
    uint32_t bits; /* of a code */
    enum encoding_scale scale;
    uint32_t block_rows, block_columns; /* elements that share a scale; 0: all rows, all columns */
    bool zeros, global;                 /* planes */
    const float *table;                 /* CODE_TABLE: the numbers of the 16 codes, at most 1, of which one is 0 */
};

/* NULL if `id`, which may come from a file, is not an encoding. */
const struct encoding *encoding_find(int64_t id);
const struct encoding *encoding_at(size_t index); /* in the order of ids; NULL after the last */
const char *encoding_name(enum encoding_id id);   /* "?" if unknown */
/* The name in messages, keys and manifests: that of the element type ("BF16") where the encoding is plain. */
const char *encoding_label(int64_t id);
enum encoding_id encoding_from_label(const char *label); /* ENCODING_NONE if unknown */
/* Codes alone, each a number: f32, f16 and bf16. */
bool encoding_is_plain(enum encoding_id id);

enum encoding_plane { PLANE_CODES, PLANE_SCALES, PLANE_ZEROS, PLANE_GLOBAL, PLANE_COUNT };

/* Offsets of planes, from the weight's own beginning. */
enum { ENCODING_PLANE_ALIGNMENT = 256 };

struct encoding_layout {
    struct {
        uint64_t offset, bytes; /* 0 bytes: the encoding has no such plane */
        uint64_t pitch;         /* from one row (codes, global) or row block (scales, zeros) to the next */
    } planes[PLANE_COUNT];
    uint64_t row_blocks, column_blocks;
    uint64_t bytes; /* of the weight, without padding after its last plane */
};

/* False for an unknown encoding or a size beyond 64 bits. A weight without rows or columns has 0 bytes. */
bool encoding_layout(enum encoding_id id, uint64_t rows, uint64_t columns, struct encoding_layout *layout);
/* encoding_layout's bytes; 0 if it fails. */
uint64_t encoding_bytes(enum encoding_id id, uint64_t rows, uint64_t columns);

/* The reference: rows [first_row, first_row + count) of an encoded [rows, columns] weight as floats, [count, columns].
 * One rounding for each multiplication, none for unscaled elements. Requires: encoding_layout accepts the sizes. */
void encoding_to_float(enum encoding_id id, uint64_t rows, uint64_t columns, const void *data, uint64_t first_row,
                       uint64_t count, float *values);

/* Encodes values[rows, columns], rounding to nearest, ties to even; scales from the largest magnitude (with zeros: from
 * least and largest element) of a block. `data` has encoding_bytes, every byte of which is written, 0 between the planes.
 * False, with the index of the first such element in *refused, where an element is NaN or infinite or has no finite value
 * in the encoding. Row blocks are independent: each may be encoded as a weight of its own, and its parts of the planes be
 * put side by side. */
bool encoding_from_float(enum encoding_id id, uint64_t rows, uint64_t columns, const float *values, void *data,
                         uint64_t *refused);

/* Single codes. From float: to nearest, ties to the even code; larger magnitudes become the largest. Requires: no
 * NaN. */
float e4m3_to_float(uint8_t code);
uint8_t e4m3_from_float(float value);
float e2m1_to_float(uint8_t code);
uint8_t table_from_float(const float table[16], float value); /* the first of equally near ones */
float e8m0_to_float(uint8_t code);                            /* 2^(code - 127); 255: NaN */
uint8_t e2m1_from_float(float value);

/* Codes of many numbers: codes[count] of values[count]. */
void e4m3_from_floats(uint64_t count, const float *values, uint8_t *codes);
void e2m1_from_floats(uint64_t count, const float *values, uint8_t *codes);

#endif
