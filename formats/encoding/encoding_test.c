/* SPDX-License-Identifier: Apache-2.0 */
/* The table of encodings against arithmetic of its own: sizes from a second formula, every code of the small floats by
 * definition, decoding of arbitrary planes in double, encoding by the nearest of all codes. */
#include "formats/encoding/encoding.h"

#include <math.h>

#include "formats/base/test_support.h"

/* What the table must say, written a second time. scale_bits 0: none. */
struct expected {
    enum encoding_id id;
    int number;
    const char *name;
    uint64_t bits, block_rows, block_columns /* UINT64_MAX: all */, scale_bytes;
    bool zeros, global;
};

#define ALL UINT64_MAX
static const struct expected expectations[] = {
    {ENCODING_F32, 1, "f32", 32, 1, 1, 0, false, false},
    {ENCODING_F16, 2, "f16", 16, 1, 1, 0, false, false},
    {ENCODING_BF16, 3, "bf16", 16, 1, 1, 0, false, false},
    {ENCODING_INT8_CHANNEL, 16, "int8_channel", 8, 1, ALL, 4, false, false},
    {ENCODING_INT4_G32, 17, "int4_g32", 4, 1, 32, 2, false, false},
    {ENCODING_INT4_G64, 18, "int4_g64", 4, 1, 64, 2, false, false},
    {ENCODING_INT4_G128, 19, "int4_g128", 4, 1, 128, 2, false, false},
    {ENCODING_INT4_G32_ZEROS, 20, "int4_g32_zeros", 4, 1, 32, 2, true, false},
    {ENCODING_INT4_G64_ZEROS, 21, "int4_g64_zeros", 4, 1, 64, 2, true, false},
    {ENCODING_INT4_G128_ZEROS, 22, "int4_g128_zeros", 4, 1, 128, 2, true, false},
    {ENCODING_E4M3_TENSOR, 23, "e4m3_tensor", 8, ALL, ALL, 4, false, false},
    {ENCODING_E4M3_CHANNEL, 24, "e4m3_channel", 8, 1, ALL, 4, false, false},
    {ENCODING_E4M3_BLOCK128, 25, "e4m3_block128", 8, 128, 128, 4, false, false},
    {ENCODING_MXFP4, 26, "mxfp4", 4, 1, 32, 1, false, false},
    {ENCODING_NVFP4, 27, "nvfp4", 4, 1, 16, 1, false, true},
    {ENCODING_INT8_G32, 28, "int8_g32", 8, 1, 32, 2, false, false},
    {ENCODING_INT8_G64, 29, "int8_g64", 8, 1, 64, 2, false, false},
    {ENCODING_INT8_G128, 30, "int8_g128", 8, 1, 128, 2, false, false},
    {ENCODING_MXFP8, 31, "mxfp8", 8, 1, 32, 1, false, false},
    {ENCODING_NF4_G64, 32, "nf4_g64", 4, 1, 64, 4, false, false},
    {ENCODING_FP4_G64, 33, "fp4_g64", 4, 1, 64, 4, false, false},
    {ENCODING_INT8_G32_ZEROS, 34, "int8_g32_zeros", 8, 1, 32, 2, true, false},
    {ENCODING_INT8_G64_ZEROS, 35, "int8_g64_zeros", 8, 1, 64, 2, true, false},
    {ENCODING_INT8_G128_ZEROS, 36, "int8_g128_zeros", 8, 1, 128, 2, true, false},
};
enum { ENCODINGS = sizeof expectations / sizeof *expectations };

static const struct {
    uint64_t rows, columns;
} shapes[] = {{1, 1}, {1, 32}, {3, 33}, {2, 128}, {5, 1}, {130, 7}, {129, 130}, {7, 257}, {256, 128}, {1, 511}};
enum { SHAPES = sizeof shapes / sizeof *shapes, MOST_ELEMENTS = 256 * 130 };

/* What the current test encodes and decodes. */
static uint8_t planes[8 * MOST_ELEMENTS], more_planes[8 * MOST_ELEMENTS];
static float elements[MOST_ELEMENTS], more_elements[MOST_ELEMENTS];

static uint64_t ceiling(uint64_t count, uint64_t unit)
{
    uint64_t whole = 0;
    for (uint64_t at = 0; at < count; whole++) at = unit == ALL ? count : at + unit;
    return whole;
}

static uint64_t aligned(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

/* Sizes of the planes, and the offsets at which they begin. Returns the size of all. */
static uint64_t expected_planes(const struct expected *e, uint64_t rows, uint64_t columns, uint64_t sizes[4],
                                uint64_t offsets[4])
{
    const uint64_t across = ceiling(columns, e->block_columns), down = ceiling(rows, e->block_rows);
    sizes[0] = rows * ceiling(columns * e->bits, 8);
    sizes[1] = down * across * e->scale_bytes;
    sizes[2] = e->zeros ? down * ceiling(across * e->bits, 8) : 0;
    sizes[3] = e->global ? rows * 4 : 0;
    uint64_t end = 0;
    for (int p = 0; p < 4; p++) {
        offsets[p] = sizes[p] ? aligned(end) : 0;
        if (sizes[p]) end = offsets[p] + sizes[p];
    }
    return end;
}

TEST(the_table_is_complete)
{
    for (size_t i = 0; i < ENCODINGS; i++) {
        const struct expected *e = &expectations[i];
        const struct encoding *encoding = encoding_at(i);
        assert_non_null(encoding);
        assert_int_equal(encoding->id, e->number);
        assert_int_equal(e->id, e->number);
        assert_ptr_equal(encoding_find(e->number), encoding);
        assert_string_equal(encoding->name, e->name);
        assert_string_equal(encoding_name(e->id), e->name);
        assert_int_equal(encoding->bits, e->bits);
        assert_int_equal(encoding_is_plain(e->id), e->number <= 3);
        if (e->number <= 3) assert_int_equal(e->bits / 8, dtype_bytes((enum dtype)e->number));
    }
    assert_null(encoding_at(ENCODINGS));
    static const int64_t unknown[] = {0, -1, 4, 5, 6, 7, 8, 9, 15, 37, 1 << 20, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        struct encoding_layout layout;
        assert_null(encoding_find(unknown[i]));
        if (unknown[i] < 0 || unknown[i] > INT32_MAX) continue;
        assert_string_equal(encoding_name((enum encoding_id)unknown[i]), "?");
        assert_false(encoding_is_plain((enum encoding_id)unknown[i]));
        assert_false(encoding_layout((enum encoding_id)unknown[i], 1, 1, &layout));
        assert_int_equal(encoding_bytes((enum encoding_id)unknown[i], 1, 1), 0);
    }
}

TEST(planes_have_their_sizes)
{
    for (size_t i = 0; i < ENCODINGS; i++)
        for (size_t s = 0; s < SHAPES; s++) {
            struct encoding_layout layout;
            uint64_t sizes[4], offsets[4];
            const uint64_t rows = shapes[s].rows, columns = shapes[s].columns;
            uint64_t bytes = expected_planes(&expectations[i], rows, columns, sizes, offsets);
            assert_true(encoding_layout(expectations[i].id, rows, columns, &layout));
            assert_int_equal(layout.bytes, bytes);
            assert_int_equal(encoding_bytes(expectations[i].id, rows, columns), bytes);
            for (int p = 0; p < PLANE_COUNT; p++) {
                assert_int_equal(layout.planes[p].bytes, sizes[p]);
                assert_int_equal(layout.planes[p].offset, offsets[p]);
            }
        }
}

TEST(sizes_do_not_overflow)
{
    struct encoding_layout layout;
    for (size_t i = 0; i < ENCODINGS; i++) {
        const enum encoding_id id = expectations[i].id;
        assert_true(encoding_layout(id, 0, 5, &layout));
        assert_int_equal(layout.bytes, 0);
        assert_true(encoding_layout(id, 5, 0, &layout));
        assert_int_equal(layout.bytes, 0);
        assert_false(encoding_layout(id, UINT64_MAX, UINT64_MAX, &layout));
        assert_false(encoding_layout(id, 1, UINT64_MAX, &layout));
        assert_false(encoding_layout(id, (uint64_t)1 << 33, (uint64_t)1 << 33, &layout));
        assert_int_equal(encoding_bytes(id, (uint64_t)1 << 33, (uint64_t)1 << 33), 0);
        assert_true(encoding_layout(id, (uint64_t)1 << 30, (uint64_t)1 << 24, &layout));
        assert_true(layout.bytes >= (uint64_t)1 << 53);
    }
    /* Codes fit, scales do not. */
    assert_false(encoding_layout(ENCODING_INT8_CHANNEL, (uint64_t)1 << 62, 1, &layout));
    assert_true(encoding_layout(ENCODING_E4M3_TENSOR, (uint64_t)1 << 62, 1, &layout));
}

/* ---- single codes ---- */

/* By definition of the formats, in double. */
static double small_value(unsigned code, int exponent_bits, int mantissa_bits, int bias)
{
    const int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    const int mantissa = (int)(code & ((1u << mantissa_bits) - 1));
    const double fraction = mantissa / (double)(1 << mantissa_bits);
    const double magnitude = exponent ? (1 + fraction) * pow(2, exponent - bias) : fraction * pow(2, 1 - bias);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

static double e4m3_value(unsigned code) { return small_value(code, 4, 3, 7); }
static double e2m1_value(unsigned code) { return small_value(code, 2, 1, 1); }

/* The numbers of bitsandbytes 0.49 as it prints them, in units of 10^-16; those of FP4 are twelfths. */
static double nf4_value(unsigned code)
{
    static const double numbers[16] = {-1e16,
                                       -6961928009986877,
                                       -5250730514526367,
                                       -3949174880981445,
                                       -2844413816928864,
                                       -1847734302282333,
                                       -910500362515450,
                                       0,
                                       795802995562553,
                                       1609302014112473,
                                       2461123019456863,
                                       3379152417182923,
                                       4407098293304443,
                                       5626170039176941,
                                       7229568362236023,
                                       1e16};
    return (double)(float)(numbers[code] * 1e-16);
}

static double fp4_value(unsigned code)
{
    static const double twelfths[8] = {0, 0.0625, 8, 12, 4, 6, 2, 3};
    const double magnitude = (double)(float)(twelfths[code % 8] / 12);
    return code < 8 ? magnitude : -magnitude;
}

TEST(every_code_of_the_small_floats)
{
    static const float fours[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (unsigned code = 0; code < 16; code++) {
        assert_int_equal(float_to_bits(e2m1_to_float((uint8_t)code)), float_to_bits(fours[code]));
        assert_true((double)fours[code] == e2m1_value(code));
        assert_int_equal(e2m1_from_float(fours[code]), code);
    }
    for (unsigned code = 0; code < 256; code++) {
        const float value = e4m3_to_float((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(value));
            continue;
        }
        assert_true((double)value == e4m3_value(code));
        assert_int_equal(signbit(value) != 0, code >> 7);
        assert_int_equal(e4m3_from_float(value), code);
    }
    assert_true(e4m3_to_float(0x7e) == 448.0f && e4m3_to_float(0x01) == 0x1p-9f && e4m3_to_float(0x38) == 1.0f);
}

/* Halfway between two neighbours goes to the even code, anything beside it to the nearer one. */
TEST(small_floats_round_to_nearest_even)
{
    static const struct {
        double (*value)(unsigned code);
        uint8_t (*from_float)(float value);
        unsigned largest, sign;
    } formats[] = {{e4m3_value, e4m3_from_float, 0x7e, 0x80}, {e2m1_value, e2m1_from_float, 7, 8}};
    for (size_t f = 0; f < 2; f++)
        for (unsigned code = 0; code < formats[f].largest; code++) {
            const float middle = (float)((formats[f].value(code) + formats[f].value(code + 1)) / 2);
            const unsigned even = code & 1 ? code + 1 : code;
            assert_int_equal(formats[f].from_float(middle), even);
            assert_int_equal(formats[f].from_float(nextafterf(middle, 0)), code);
            assert_int_equal(formats[f].from_float(nextafterf(middle, INFINITY)), code + 1);
            assert_int_equal(formats[f].from_float(-middle), even | formats[f].sign);
        }
    static const float large[] = {464.0f, 479.9f, 480.0f, 1e30f, 0x1.fffffep127f, INFINITY};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        assert_int_equal(e4m3_from_float(large[i]), 0x7e);
        assert_int_equal(e4m3_from_float(-large[i]), 0xfe);
        assert_int_equal(e2m1_from_float(large[i]), 0x7);
        assert_int_equal(e2m1_from_float(-large[i]), 0xf);
    }
    assert_int_equal(e4m3_from_float(0x1p-149f), 0);
    assert_int_equal(e2m1_from_float(-0x1p-149f), 0x8);
}

/* Many numbers at once get the codes that they get one by one, whatever their number, and nothing else is written. */
TEST(many_small_floats)
{
    enum { MOST = 70 };
    uint64_t seed = 11;
    for (uint64_t count = 0; count <= MOST; count++) {
        float values[MOST];
        uint8_t eight[MOST + 1], four[MOST + 1];
        memset(eight, 0xaa, sizeof eight);
        memset(four, 0xaa, sizeof four);
        for (uint64_t i = 0; i < count; i++) {
            const float value = ldexpf((float)(test_random(&seed) % 4096) - 2048, (int)(test_random(&seed) % 40) - 30);
            values[i] = i % 9 == 8 ? copysignf(INFINITY, value) : i % 9 == 7 ? copysignf(0, value) : value;
        }
        e4m3_from_floats(count, values, eight);
        e2m1_from_floats(count, values, four);
        for (uint64_t i = 0; i < count; i++) {
            assert_int_equal(eight[i], e4m3_from_float(values[i]));
            assert_int_equal(four[i], e2m1_from_float(values[i]));
        }
        assert_int_equal(eight[count], 0xaa);
        assert_int_equal(four[count], 0xaa);
    }
}

/* ---- planes ---- */

static double float_at(const uint8_t *data, uint64_t index)
{
    float value;
    memcpy(&value, data + 4 * index, 4);
    return (double)value;
}

static unsigned bits_at(const uint8_t *row, uint64_t index, uint64_t bits)
{
    unsigned code = 0;
    for (uint64_t b = 0; b < bits; b++)
        code |= (unsigned)(row[(index * bits + b) / 8] >> ((index * bits + b) % 8) & 1) << b;
    return code;
}

/* One encoded weight, and the parts of an element. */
struct view {
    const struct expected *e;
    uint64_t rows, columns, sizes[4], offsets[4];
    const uint8_t *data;
};

static struct view view_of(const struct expected *e, uint64_t rows, uint64_t columns, const uint8_t *data)
{
    struct view view = {.e = e, .rows = rows, .columns = columns, .data = data};
    expected_planes(e, rows, columns, view.sizes, view.offsets);
    return view;
}

static bool is_mx(const struct expected *e) { return e->id == ENCODING_MXFP4 || e->id == ENCODING_MXFP8; }

static double scale_at(const struct view *v, uint64_t row, uint64_t column)
{
    const struct expected *e = v->e;
    if (e->scale_bytes == 0) return 1;
    const uint64_t across = ceiling(v->columns, e->block_columns);
    const uint64_t index = (e->block_rows == ALL ? 0 : row / e->block_rows) * across +
                           (e->block_columns == ALL ? 0 : column / e->block_columns);
    const uint8_t *scales = v->data + v->offsets[1];
    uint16_t half;
    if (e->scale_bytes == 4) return float_at(scales, index);
    memcpy(&half, scales + 2 * (e->scale_bytes == 2 ? index : 0), 2);
    if (e->scale_bytes == 2) return (double)f16_to_float(half);
    return is_mx(e) ? pow(2, scales[index] - 127) : e4m3_value(scales[index]);
}

static double global_at(const struct view *v, uint64_t row)
{
    return v->e->global ? float_at(v->data + v->offsets[3], row) : 1;
}

static int zero_at(const struct view *v, uint64_t row, uint64_t column)
{
    if (!v->e->zeros) return 8;
    const uint64_t pitch = v->sizes[2] / v->rows;
    const unsigned zero = bits_at(v->data + v->offsets[2] + row * pitch, column / v->e->block_columns, v->e->bits);
    return v->e->bits == 8 ? (int8_t)zero : (int)zero;
}

static unsigned code_at(const struct view *v, uint64_t row, uint64_t column)
{
    return bits_at(v->data + v->offsets[0] + row * (v->sizes[0] / v->rows), column, v->e->bits);
}

/* The value that a code stands for, before its scale is applied. */
static double code_value(const struct view *v, unsigned code, int zero)
{
    switch (v->e->id) {
    case ENCODING_F32: return (double)float_from_bits(code);
    case ENCODING_F16: return (double)f16_to_float((uint16_t)code);
    case ENCODING_BF16: return (double)bf16_to_float((uint16_t)code);
    case ENCODING_INT8_CHANNEL:
    case ENCODING_INT8_G32:
    case ENCODING_INT8_G64:
    case ENCODING_INT8_G128: return code < 128 ? code : (double)code - 256;
    case ENCODING_INT8_G32_ZEROS:
    case ENCODING_INT8_G64_ZEROS:
    case ENCODING_INT8_G128_ZEROS: return (code < 128 ? code : (double)code - 256) - zero;
    case ENCODING_E4M3_TENSOR:
    case ENCODING_E4M3_CHANNEL:
    case ENCODING_E4M3_BLOCK128:
    case ENCODING_MXFP8: return e4m3_value(code);
    case ENCODING_MXFP4:
    case ENCODING_NVFP4: return e2m1_value(code);
    case ENCODING_NF4_G64: return nf4_value(code);
    case ENCODING_FP4_G64: return fp4_value(code);
    default: return (double)code - zero;
    }
}

static bool is_int8(const struct expected *e)
{
    return e->id == ENCODING_INT8_CHANNEL || (e->id >= ENCODING_INT8_G32 && e->id <= ENCODING_INT8_G128) ||
           (e->id >= ENCODING_INT8_G32_ZEROS && e->id <= ENCODING_INT8_G128_ZEROS);
}

static bool is_number(const struct expected *e, unsigned code)
{
    return e->bits != 8 || is_int8(e) || (code & 0x7f) != 0x7f;
}

/* Planes of arbitrary bytes, apart from codes and scales that are not numbers. */
static void arbitrary_planes(const struct expected *e, uint64_t rows, uint64_t columns, uint64_t *seed, uint8_t *data)
{
    uint64_t sizes[4], offsets[4];
    const uint64_t bytes = expected_planes(e, rows, columns, sizes, offsets);
    for (uint64_t b = 0; b < bytes; b++) data[b] = (uint8_t)test_random(seed);
    for (uint64_t b = 0; b < sizes[0] && e->bits == 8; b++)
        if (!is_number(e, data[b])) data[b] = 0x3f;
    if (e->bits >= 16)
        for (uint64_t c = 0; c < sizes[0]; c += e->bits / 8) data[c + e->bits / 8 - 1] &= 0xbf; /* below 2 */
    for (uint64_t b = 0; b < sizes[1]; b++) {
        uint8_t *scale = data + offsets[1] + b;
        if (e->scale_bytes == 1) *scale = (uint8_t)(is_mx(e) ? 100 + *scale % 50 : *scale % 0x7f);
        if (b % e->scale_bytes == e->scale_bytes - 1 && e->scale_bytes > 1) *scale &= 0x3b;
    }
    for (uint64_t row = 0; row < rows && e->global; row++) {
        const float global = 0x1p-7f * (float)(1 + test_random(seed) % 1000);
        memcpy(data + offsets[3] + 4 * row, &global, 4);
    }
}

TEST(arbitrary_planes_decode_as_defined)
{
    uint64_t seed = 7;
    for (size_t i = 0; i < ENCODINGS; i++)
        for (size_t s = 0; s < SHAPES; s++) {
            const struct expected *e = &expectations[i];
            const uint64_t rows = shapes[s].rows, columns = shapes[s].columns;
            arbitrary_planes(e, rows, columns, &seed, planes);
            const struct view view = view_of(e, rows, columns, planes);
            encoding_to_float(e->id, rows, columns, planes, 0, rows, elements);
            for (uint64_t row = 0; row < rows; row++)
                for (uint64_t column = 0; column < columns; column++) {
                    double exact = code_value(&view, code_at(&view, row, column), zero_at(&view, row, column)) *
                                   scale_at(&view, row, column);
                    exact = (double)(float)exact * global_at(&view, row); /* a rounding for each product */
                    const float expected = (float)exact, found = elements[row * columns + column];
                    if (float_to_bits(expected) != float_to_bits(found))
                        fail_msg("%s [%llu, %llu] element %llu, %llu: expected %a, found %a", e->name,
                                 (unsigned long long)rows, (unsigned long long)columns, (unsigned long long)row,
                                 (unsigned long long)column, (double)expected, (double)found);
                }
            /* Any part of the rows is the same. */
            const uint64_t first = test_random(&seed) % rows, count = test_random(&seed) % (rows - first) + 1;
            encoding_to_float(e->id, rows, columns, planes, first, count, more_elements);
            assert_memory_equal(more_elements, elements + first * columns, count * columns * sizeof *more_elements);
        }
}

/* ---- from floats ---- */

/* Random numbers whose size varies from row to row, with rows and blocks of zeros. */
static void random_values(uint64_t rows, uint64_t columns, uint64_t *seed, float *values)
{
    for (uint64_t row = 0; row < rows; row++) {
        const float size = ldexpf(1.0f, (int)(test_random(seed) % 12) - 6) * (test_random(seed) % 9 ? 1.0f : 0.0f);
        for (uint64_t column = 0; column < columns; column++) {
            const float value = (float)test_random(seed) * 0x1p-30f - 1.0f;
            values[row * columns + column] = column / 16 % 7 == 5 ? 0.0f : size * value * value * value;
        }
    }
}

/* Extremes of the block that an element is in. */
static void block_extremes(const struct expected *e, const float *values, uint64_t rows, uint64_t columns, uint64_t row,
                           uint64_t column, double *least, double *largest)
{
    *least = *largest = 0;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            if (e->block_rows != ALL && r / e->block_rows != row / e->block_rows) continue;
            if (e->block_columns != ALL && c / e->block_columns != column / e->block_columns) continue;
            *least = fmin(*least, (double)values[r * columns + c]);
            *largest = fmax(*largest, (double)values[r * columns + c]);
        }
}

static double nearest(const struct view *v, double value, double scale, int zero)
{
    const unsigned codes = 1u << v->e->bits;
    double best = INFINITY;
    for (unsigned code = 0; code < codes; code++) {
        if (!is_number(v->e, code) || (is_int8(v->e) && !v->e->zeros && code == 128)) continue;
        best = fmin(best, fabs(code_value(v, code, zero) * scale - value));
    }
    return best;
}

static void expect_scale(const struct view *v, const float *values, uint64_t row, uint64_t column)
{
    const struct expected *e = v->e;
    double least, largest, row_largest = 0;
    block_extremes(e, values, v->rows, v->columns, row, column, &least, &largest);
    const double magnitude = fmax(-least, largest), found = scale_at(v, row, column);
    for (uint64_t c = 0; c < v->columns; c++)
        row_largest = fmax(row_largest, fabs((double)values[row * v->columns + c]));
    double wanted = 0, tolerance = 1e-6;
    switch (e->id) {
    case ENCODING_INT8_CHANNEL: wanted = magnitude / 127; break;
    case ENCODING_E4M3_TENSOR:
    case ENCODING_E4M3_CHANNEL:
    case ENCODING_E4M3_BLOCK128: wanted = magnitude / 448; break;
    case ENCODING_MXFP4: wanted = magnitude > 0 ? pow(2, floor(log2(magnitude)) - 2) : pow(2, -127); break;
    case ENCODING_MXFP8: wanted = magnitude > 0 ? pow(2, floor(log2(magnitude)) - 8) : pow(2, -127); break;
    case ENCODING_NF4_G64:
    case ENCODING_FP4_G64: wanted = magnitude; break;
    case ENCODING_NVFP4:
        assert_true(fabs(global_at(v, row) - row_largest / 2688) <= row_largest * 1e-9);
        wanted = row_largest > 0 ? magnitude / 6 / global_at(v, row) : 0;
        tolerance = 0.0626; /* three bits of mantissa */
        break;
    default:
        wanted = e->zeros ? (largest - least) / (is_int8(e) ? 255 : 15) : magnitude / (is_int8(e) ? 127 : 7);
        tolerance = 0.0005; /* ten bits */
        break;
    }
    if (fabs(found - wanted) > wanted * tolerance + (e->scale_bytes == 1 ? 0x1p-10 : 0x1p-24))
        fail_msg("%s: scale at %llu, %llu: expected about %g, found %g", e->name, (unsigned long long)row,
                 (unsigned long long)column, wanted, found);
}

/* Every element has the nearest code there is for its block's scale, and scales are what they should be. */
TEST(elements_get_the_nearest_code)
{
    uint64_t seed = 11, refused;
    for (size_t i = 3; i < ENCODINGS; i++)
        for (size_t s = 0; s < SHAPES; s++) {
            const struct expected *e = &expectations[i];
            const uint64_t rows = shapes[s].rows, columns = shapes[s].columns;
            random_values(rows, columns, &seed, elements);
            assert_true(encoding_from_float(e->id, rows, columns, elements, planes, &refused));
            const struct view view = view_of(e, rows, columns, planes);
            encoding_to_float(e->id, rows, columns, planes, 0, rows, more_elements);
            const uint64_t step = rows * columns / 1000 + 1;
            for (uint64_t at = 0; at < rows * columns; at += step) {
                const uint64_t row = at / columns, column = at % columns;
                if (at / step % 4 == 0) expect_scale(&view, elements, row, column);
                const double scale = scale_at(&view, row, column) * global_at(&view, row);
                const double best = nearest(&view, (double)elements[at], scale, zero_at(&view, row, column));
                const double error = fabs((double)more_elements[at] - (double)elements[at]);
                if (error > best + fabs((double)elements[at]) * 1e-6)
                    fail_msg("%s: element %llu is %g, became %g, but a code at %g is nearer", e->name,
                             (unsigned long long)at, (double)elements[at], (double)more_elements[at], best);
            }
        }
}

/* What was decoded is encoded without a change: a second round trip gives the values of the first. */
TEST(encoded_values_stay)
{
    uint64_t seed = 13, refused;
    static const enum encoding_id exact[] = {ENCODING_F32, ENCODING_F16, ENCODING_BF16, ENCODING_MXFP4};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        for (size_t s = 0; s < SHAPES; s++) {
            const uint64_t rows = shapes[s].rows, columns = shapes[s].columns;
            random_values(rows, columns, &seed, elements);
            assert_true(encoding_from_float(exact[i], rows, columns, elements, planes, &refused));
            encoding_to_float(exact[i], rows, columns, planes, 0, rows, elements);
            assert_true(encoding_from_float(exact[i], rows, columns, elements, planes, &refused));
            encoding_to_float(exact[i], rows, columns, planes, 0, rows, more_elements);
            for (uint64_t at = 0; at < rows * columns; at++) assert_true(more_elements[at] == elements[at]);
        }
}

/* Bytes worked out by hand. */
TEST(exact_bytes)
{
    uint8_t data[1024];
    uint64_t refused;
    /* 4 bit: -7 to 7 times a half, so that the scale is 0.5 = 0x3800. Code = value / scale + 8, low nibble first. */
    float values[32];
    for (int k = 0; k < 32; k++) values[k] = (float)(k % 15 - 7) * 0.5f;
    assert_true(encoding_from_float(ENCODING_INT4_G32, 1, 32, values, data, &refused));
    static const uint8_t four[16] = {0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x1f,
                                     0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0x21};
    assert_memory_equal(data, four, 16);
    assert_memory_equal(data + 256, "\x00\x38", 2);
    /* With zeros: -5 to 10 are 15 steps of 1 = 0x3c00, and 0 is code 5. */
    for (int k = 0; k < 32; k++) values[k] = (float)(k % 16 - 5);
    assert_true(encoding_from_float(ENCODING_INT4_G32_ZEROS, 1, 32, values, data, &refused));
    static const uint8_t rising[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    assert_memory_equal(data, rising, 8);
    assert_memory_equal(data + 8, rising, 8);
    assert_memory_equal(data + 256, "\x00\x3c", 2);
    assert_int_equal(data[512], 5);
    /* int8: the largest is 127, so the scale is 1. Ties go to even. */
    static const float eight[5] = {127, -127, 0.5f, 1.5f, -2.5f};
    assert_true(encoding_from_float(ENCODING_INT8_CHANNEL, 1, 5, eight, data, &refused));
    assert_memory_equal(data, "\x7f\x81\x00\x02\xfe", 5);
    assert_memory_equal(data + 256, "\x00\x00\x80\x3f", 4);
    /* e4m3 of 448, 1, -2: scale 1. */
    static const float floats[3] = {448, 1, -2};
    assert_true(encoding_from_float(ENCODING_E4M3_TENSOR, 3, 1, floats, data, &refused));
    assert_memory_equal(data, "\x7e\x38\xc0", 3);
    assert_memory_equal(data + 256, "\x00\x00\x80\x3f", 4);
    /* mxfp4: the largest is 6, its power of two is 4: scale 2^0 = 127. */
    static const float mx[5] = {6, -0.5f, 3, 1, -4};
    assert_true(encoding_from_float(ENCODING_MXFP4, 1, 5, mx, data, &refused));
    assert_memory_equal(data, "\x97\x25\x0e", 3);
    assert_int_equal(data[256], 127);
    /* nvfp4: the row's largest is 2688, so its global scale is 1; the second block's scale is 12 / 6 = 2 = 0x40. */
    float nv[32] = {2688};
    for (int k = 16; k < 32; k++) nv[k] = k % 2 ? 12 : -2;
    assert_true(encoding_from_float(ENCODING_NVFP4, 1, 32, nv, data, &refused));
    assert_int_equal(data[0], 0x07);
    assert_int_equal(data[8], 0x7a);
    assert_memory_equal(data + 256, "\x7e\x40", 2);
    assert_memory_equal(data + 512, "\x00\x00\x80\x3f", 4);
}

TEST(what_is_not_finite_is_refused)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    uint64_t seed = 17, refused;
    for (size_t i = 0; i < ENCODINGS; i++)
        for (size_t s = 0; s < SHAPES; s++)
            for (size_t o = 0; o < 3; o++) {
                const uint64_t count = shapes[s].rows * shapes[s].columns;
                random_values(shapes[s].rows, shapes[s].columns, &seed, elements);
                const uint64_t at = test_random(&seed) % count;
                elements[at] = odd[o];
                if (at + 1 < count) elements[count - 1] = NAN; /* the first is named */
                assert_false(encoding_from_float(expectations[i].id, shapes[s].rows, shapes[s].columns, elements,
                                                 planes, &refused));
                assert_int_equal(refused, at);
            }
    /* Beyond the range of the encoding. */
    float large[64] = {0};
    large[5] = 65520;
    assert_false(encoding_from_float(ENCODING_F16, 1, 64, large, planes, &refused));
    assert_int_equal(refused, 5);
    large[5] = 65519;
    assert_true(encoding_from_float(ENCODING_F16, 1, 64, large, planes, &refused));
    large[5] = 0x1.ffp127f;
    assert_false(encoding_from_float(ENCODING_BF16, 1, 64, large, planes, &refused));
    assert_int_equal(refused, 5);
    large[5] = 0;
    large[40] = 7 * 65519.0f; /* its scale is the largest float16 */
    assert_true(encoding_from_float(ENCODING_INT4_G32, 1, 64, large, planes, &refused));
    large[40] = -7 * 65520.0f;
    for (enum encoding_id id = ENCODING_INT4_G32; id <= ENCODING_INT4_G128; id++) {
        assert_false(encoding_from_float(id, 1, 64, large, planes, &refused));
        assert_int_equal(refused, 40);
    }
    large[40] = 0x1.fffffep127f;
    for (enum encoding_id id = ENCODING_E4M3_TENSOR; id <= ENCODING_NVFP4; id++)
        assert_true(encoding_from_float(id, 1, 64, large, planes, &refused));
}

/* Numbers too small for a scale become zeros, and zeros stay. */
TEST(the_smallest_are_no_trouble)
{
    static const float small[] = {0, 0x1p-149f, -0x1p-140f, 0x1p-126f};
    float values[96], back[96];
    uint8_t data[4096];
    uint64_t refused;
    for (size_t i = 0; i < ENCODINGS; i++)
        for (size_t s = 0; s < 4; s++) {
            for (int k = 0; k < 96; k++) values[k] = small[s];
            assert_true(encoding_from_float(expectations[i].id, 2, 48, values, data, &refused));
            encoding_to_float(expectations[i].id, 2, 48, data, 0, 2, back);
            for (int k = 0; k < 96; k++) assert_true(fabsf(back[k] - values[k]) <= fabsf(small[s]));
        }
}

/* All bytes are written, padding with zeros, and none after the end. */
TEST(padding_is_zero)
{
    uint64_t seed = 19, refused;
    for (size_t i = 0; i < ENCODINGS; i++)
        for (size_t s = 0; s < SHAPES; s++) {
            const struct expected *e = &expectations[i];
            const uint64_t rows = shapes[s].rows, columns = shapes[s].columns;
            uint64_t sizes[4], offsets[4], bytes = expected_planes(e, rows, columns, sizes, offsets), end = 0;
            random_values(rows, columns, &seed, elements);
            memset(planes, 0x55, bytes + 8);
            memset(more_planes, 0xaa, bytes + 8);
            assert_true(encoding_from_float(e->id, rows, columns, elements, planes, &refused));
            assert_true(encoding_from_float(e->id, rows, columns, elements, more_planes, &refused));
            assert_memory_equal(planes, more_planes, bytes);
            for (int b = 0; b < 8; b++) assert_true(planes[bytes + (uint64_t)b] == 0x55);
            for (int p = 0; p < 4; p++) {
                if (!sizes[p]) continue;
                for (; end < offsets[p]; end++) assert_int_equal(planes[end], 0);
                end = offsets[p] + sizes[p];
            }
            for (uint64_t row = 0; row < rows && e->bits == 4 && columns % 2; row++)
                assert_int_equal(planes[(row + 1) * (sizes[0] / rows) - 1] >> 4, 0);
        }
}

/* Blocks of rows that were encoded alone have the planes of the whole, one after the other. */
TEST(row_blocks_are_independent)
{
    enum { ROWS = 300, COLUMNS = 130 };
    uint64_t seed = 23, refused;
    uint8_t *whole = malloc(8 * ROWS * COLUMNS), *part = malloc(8 * ROWS * COLUMNS);
    float *values = malloc(ROWS * COLUMNS * sizeof *values);
    random_values(ROWS, COLUMNS, &seed, values);
    for (size_t i = 0; i < ENCODINGS; i++) {
        const struct expected *e = &expectations[i];
        struct encoding_layout all, own;
        uint64_t done[PLANE_COUNT] = {0};
        const uint64_t block = e->block_rows == ALL ? ROWS : e->block_rows;
        assert_true(encoding_from_float(e->id, ROWS, COLUMNS, values, whole, &refused));
        assert_true(encoding_layout(e->id, ROWS, COLUMNS, &all));
        for (uint64_t row = 0; row < ROWS; row += block) {
            const uint64_t rows = ROWS - row < block ? ROWS - row : block;
            assert_true(encoding_from_float(e->id, rows, COLUMNS, values + row * COLUMNS, part, &refused));
            assert_true(encoding_layout(e->id, rows, COLUMNS, &own));
            for (int p = 0; p < PLANE_COUNT; p++) {
                assert_memory_equal(whole + all.planes[p].offset + done[p], part + own.planes[p].offset,
                                    own.planes[p].bytes);
                done[p] += own.planes[p].bytes;
            }
        }
        for (int p = 0; p < PLANE_COUNT; p++) assert_int_equal(done[p], all.planes[p].bytes);
    }
    free(whole);
    free(part);
    free(values);
}

int main(void) { return test_run(); }
