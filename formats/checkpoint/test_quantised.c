/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/test_quantised.h"

#include <math.h>

#include "formats/base/test_support.h"

enum order { STREAM, WORDS, AWQ, HIGH_FIRST, FAST };
enum kind { INTEGER, SIGNED_BYTE, E4M3, E2M1, TABLE };

/* A line is a stream of bits in words of 32: word w of line l begins at byte l * line_bytes + w * word_bytes. */
struct plane {
    uint8_t *data;
    enum order order;
    uint32_t bits;
    bool along_rows; /* a line is a column of the matrix, not a row */
    uint64_t line_bytes, word_bytes, columns;
};

/* A module as it is made */
struct encoder {
    struct test_checkpoint *checkpoint;
    const char *module;
    const struct test_quantised *what;
    enum kind kind;
    struct plane codes, zeros;
    uint64_t groups, row_groups; /* scales across and down */
    uint64_t *group_of;          /* [columns] */
    uint8_t *scales, *added;
    enum dtype scale_type;
    uint64_t scale_row, scale_column; /* strides of the scales */
    uint64_t flat;                    /* elements that share a scale, across the ends of rows; 0: groups of rows */
    float table[16], nested_table[256], nested[64], offset;
    double factor;
};

static uint64_t ceiling(uint64_t count, uint64_t unit) { return count / unit + (count % unit != 0); }

static uint64_t below(struct encoder *e, uint64_t limit) { return test_random(&e->checkpoint->random) % limit; }

static void put(const struct plane *plane, uint64_t row, uint64_t column, uint32_t code)
{
    static const uint64_t nibbles[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    uint64_t line = plane->along_rows ? column : row, index = plane->along_rows ? row : column;
    const uint64_t bits = plane->bits, whole = 32 / bits;
    uint64_t at = index * bits;
    if (plane->order == WORDS) at = index / whole * 32 + index % whole * bits;
    if (plane->order == AWQ) at = index / 8 * 32 + nibbles[index % 8] * 4;
    if (plane->order == HIGH_FIRST) at = ((row * plane->columns + column) ^ 1) * 4, line = 0;
    if (plane->order == FAST) {
        /* Position c of 64 elements holds column c / 32 * 32 + c % 4 * 8 + c % 32 / 4. */
        uint64_t position = 0;
        while (position / 32 * 32 + position % 4 * 8 + position % 32 / 4 != column % 64) position++;
        at = (column / 64 * 256 + row % 4 * 64 + position) * 4, line = row / 4;
    }
    for (uint64_t bit = 0; bit < bits; bit++, at++)
        if (code >> bit & 1)
            plane->data[line * plane->line_bytes + at / 32 * plane->word_bytes + at % 32 / 8] |=
                (uint8_t)(1u << at % 8);
}

static float value_of(const struct encoder *e, uint32_t code)
{
    static const float e2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const int exponent = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
    float value = 0;
    switch (e->kind) {
    case INTEGER: return (float)code;
    case SIGNED_BYTE: return (float)code - (code > 127 ? 256.0f : 0.0f);
    case TABLE: return e->table[code];
    case E2M1: return code & 8 ? -e2m1[code & 7] : e2m1[code];
    case E4M3:
        value = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
        return code & 128 ? -value : value;
    }
    return value;
}

static void put_number(uint8_t *at, uint64_t number, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) at[i] = (uint8_t)(number >> (8 * i));
}

/* Stores a random scale, or one of `value` if that is not 0, at an index. Returns its value. */
static float put_scale(struct encoder *e, uint8_t *plane, enum dtype type, uint64_t index, float value)
{
    if (value == 0) value = ldexpf(1.0f + (float)below(e, 1 << 24) * 0x1p-24f, -(int)below(e, 9));
    uint8_t *at = plane + index * dtype_bytes(type);
    if (e->what->flags & TEST_NESTED && plane == e->scales) {
        *at = (uint8_t)below(e, 256);
        const float scaled = e->nested_table[*at] * e->nested[index / 256];
        return scaled + e->offset;
    }
    switch (type) {
    case DTYPE_F16: put_number(at, f16_from_float(value), 2); return f16_to_float(f16_from_float(value));
    case DTYPE_BF16: put_number(at, bf16_from_float(value), 2); return bf16_to_float(bf16_from_float(value));
    case DTYPE_F32: put_number(at, float_to_bits(value), 4); return value;
    case DTYPE_F8_E4M3: {
        const struct encoder floats = {.kind = E4M3};
        *at = (uint8_t)(1 + below(e, 126));
        return value_of(&floats, *at);
    }
    default: /* an exponent */
        *at = (uint8_t)(below(e, 8) ? 90 + below(e, 70) : below(e, 2));
        return ldexpf(1.0f, *at - 127);
    }
}

static uint8_t *tensor(struct encoder *e, const char *suffix, enum dtype dtype, int rank, uint64_t first,
                       uint64_t second)
{
    return test_quantised_tensor(e->checkpoint, test_text("%s.%s", e->module, suffix), dtype, rank, first, second);
}

/* Scales as a matrix [blocks of rows, groups], or one */
static void add_scales(struct encoder *e, const char *suffix)
{
    const uint32_t flags = e->what->flags;
    const int rank = flags & TEST_SCALAR ? 0 : flags & TEST_TENSOR ? 1 : 2;
    if (rank < 2) e->row_groups = e->groups = 1;
    e->scales = tensor(e, suffix, e->scale_type, rank, e->row_groups, e->groups);
    e->scale_row = e->groups, e->scale_column = 1;
}

static void add_groups(struct encoder *e, const char *suffix)
{
    const uint64_t columns = e->what->columns;
    if (!(e->what->flags & (TEST_TRIVIAL | TEST_ACT_ORDER))) return;
    for (uint64_t i = columns - 1; i > 0 && e->what->flags & TEST_ACT_ORDER; i--) {
        const uint64_t other = below(e, i + 1), group = e->group_of[i];
        e->group_of[i] = e->group_of[other], e->group_of[other] = group;
    }
    uint8_t *groups = tensor(e, suffix, DTYPE_I32, 1, columns, 0);
    for (uint64_t i = 0; i < columns; i++) put_number(groups + 4 * i, e->group_of[i], 4);
}

static void add_gptq(struct encoder *e)
{
    const uint64_t rows = e->what->rows, bits = e->what->bits, words = ceiling(rows * bits, 32);
    e->codes = (struct plane){.line_bytes = 4, .word_bytes = 4 * rows};
    e->codes.data = tensor(e, "qweight", DTYPE_I32, 2, ceiling(e->what->columns * bits, 32), rows);
    e->zeros = (struct plane){.along_rows = true, .line_bytes = 4 * words, .word_bytes = 4};
    e->zeros.data = tensor(e, "qzeros", DTYPE_I32, 2, e->groups, words);
    e->scales = tensor(e, "scales", e->scale_type, 2, e->groups, rows);
    e->scale_row = 1, e->scale_column = rows;
    add_groups(e, "g_idx");
}

static void add_awq(struct encoder *e)
{
    const uint64_t rows = e->what->rows, columns = e->what->columns, group = e->what->group;
    const uint64_t unit = group >= 128 ? 1 : group == 64 ? 2 : 4, width = ceiling(ceiling(e->groups, 8), unit) * unit;
    if (e->what->container == TEST_AWQ_GEMM) {
        e->codes = (struct plane){.order = AWQ, .along_rows = true, .line_bytes = rows / 2, .word_bytes = 4};
        e->zeros = e->codes;
        e->codes.data = tensor(e, "qweight", DTYPE_I32, 2, columns, rows / 8);
        if ((e->what->flags & (TEST_SYMMETRIC | TEST_TRIVIAL)) != TEST_SYMMETRIC)
            e->zeros.data = tensor(e, "qzeros", DTYPE_I32, 2, e->groups, rows / 8);
        e->scales = tensor(e, "scales", e->scale_type, 2, e->groups, rows);
        e->scale_row = 1, e->scale_column = rows;
    } else if (e->what->container == TEST_AWQ_GEMV) {
        e->codes = (struct plane){.line_bytes = columns / 2, .word_bytes = 4};
        e->zeros = (struct plane){.line_bytes = 4 * width, .word_bytes = 4};
        e->codes.data = tensor(e, "qweight", DTYPE_I32, 2, rows, columns / 8);
        e->zeros.data = tensor(e, "qzeros", DTYPE_I32, 2, rows, width);
        e->scales = tensor(e, "scales", e->scale_type, 2, rows, 8 * width);
        e->scale_row = 8 * width, e->scale_column = 1;
    } else {
        e->codes = (struct plane){.order = FAST, .line_bytes = 2 * columns, .word_bytes = 4};
        e->codes.data = tensor(e, "qweight", DTYPE_I16, 2, rows / 4, columns);
        e->scales = tensor(e, "scales", e->scale_type, 2, 8 * width, rows);
        e->added = tensor(e, "qzeros", e->scale_type, 2, 8 * width, rows);
        e->scale_row = 1, e->scale_column = rows;
    }
}

static void add_packed(struct encoder *e)
{
    const uint64_t rows = e->what->rows, columns = e->what->columns, bits = e->what->bits;
    const bool old = e->what->flags & TEST_OLD_WORDS;
    const uint64_t words = old ? ceiling(columns, 32 / bits) : ceiling(columns * bits, 32);
    e->codes = (struct plane){.order = old ? WORDS : STREAM, .line_bytes = 4 * words, .word_bytes = 4};
    e->codes.data = tensor(e, "weight_packed", DTYPE_I32, 2, rows, words);
    add_scales(e, "weight_scale");
    uint8_t *shape = tensor(e, "weight_shape", DTYPE_I64, 1, 2, 0);
    put_number(shape, rows, 8), put_number(shape + 8, columns, 8);
    if (!(e->what->flags & TEST_SYMMETRIC)) {
        e->zeros = (struct plane){.along_rows = true, .line_bytes = 4, .word_bytes = 4 * e->groups};
        e->zeros.data = tensor(e, "weight_zero_point", DTYPE_I32, 2, ceiling(rows * bits, 32), e->groups);
    }
    add_groups(e, "weight_g_idx");
}

/* Codes of a byte each, or two in a byte, with the first in the low bits */
static void add_bytes(struct encoder *e, const char *suffix, enum dtype dtype, const char *scales)
{
    const uint64_t bytes = e->what->columns * e->what->bits / 8;
    e->codes = (struct plane){.line_bytes = bytes, .word_bytes = 4};
    e->codes.data = tensor(e, suffix, dtype, 2, e->what->rows, bytes);
    add_scales(e, scales);
}

static void add_4bit(struct encoder *e)
{
    const uint64_t elements = e->what->rows * e->what->columns, blocks = ceiling(elements, e->what->group);
    const bool nested = e->what->flags & TEST_NESTED;
    e->flat = e->what->group;
    e->codes = (struct plane){.order = HIGH_FIRST, .word_bytes = 4, .columns = e->what->columns};
    e->codes.data = tensor(e, "weight", DTYPE_U8, 2, elements / 2, 1);
    uint8_t *table = tensor(e, "weight.quant_map", DTYPE_F32, 1, 16, 0);
    for (uint64_t i = 0; i < 16; i++)
        e->table[i] = put_scale(e, table, DTYPE_F32, i, i < 8 ? (float)i / 7 - 1 : (float)i / 15);
    e->scale_type = nested ? DTYPE_U8 : DTYPE_F32;
    e->scales = tensor(e, "weight.absmax", e->scale_type, 1, blocks, 0);
    e->scale_row = 1;
    const char *state =
        test_text("{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"bfloat16\", \"shape\": [%d, %d]",
                  (int)e->flat, (int)e->what->rows, (int)e->what->columns);
    if (nested) {
        e->offset = 0.15625f;
        uint8_t *map = tensor(e, "weight.nested_quant_map", DTYPE_F32, 1, 256, 0);
        for (uint64_t i = 0; i < 256; i++) e->nested_table[i] = put_scale(e, map, DTYPE_F32, i, (float)i / 127.3f - 1);
        assert_true(ceiling(blocks, 256) <= sizeof e->nested / sizeof *e->nested);
        uint8_t *scales = tensor(e, "weight.nested_absmax", DTYPE_F32, 1, ceiling(blocks, 256), 0);
        for (uint64_t i = 0; i < ceiling(blocks, 256); i++) e->nested[i] = put_scale(e, scales, DTYPE_F32, i, 0);
        state = test_text("%s, \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": 0.15625",
                          state);
    }
    state = test_text("%s}", state);
    memcpy(tensor(e, "weight.quant_state.bitsandbytes__nf4", DTYPE_U8, 1, strlen(state), 0), state, strlen(state));
}

/* A scalar that multiplies all scales */
static double add_factor(struct encoder *e, const char *suffix, int rank)
{
    return put_scale(e, tensor(e, suffix, DTYPE_F32, rank, 1, 0), DTYPE_F32, 0, 0);
}

static void set_config(struct quant_config *config, enum quant_method method, const char *name,
                       struct quant_scheme scheme)
{
    config->method = method;
    strcpy(config->name, name);
    for (int i = 0; i < config->scheme_count; i++) {
        const struct quant_scheme *other = &config->schemes[i];
        if (other->bits == scheme.bits && other->group_size == scheme.group_size &&
            other->symmetric == scheme.symmetric)
            return;
    }
    assert_true(config->scheme_count < QUANT_MAX_SCHEMES);
    config->schemes[config->scheme_count++] = scheme;
}

/* Adds the tensors, with planes that are still 0. */
static void add_tensors(struct encoder *e, struct test_module *module)
{
    struct quant_config *config = &e->checkpoint->config;
    const uint32_t bits = e->what->bits, flags = e->what->flags;
    const uint64_t group = e->what->group, block_rows = e->what->block_rows;
    const bool symmetric = flags & TEST_SYMMETRIC;
    const struct quant_scheme integers = {false, bits, group, symmetric, flags & TEST_ACT_ORDER},
                              floats = {true, bits, group, true, false};
    switch (e->what->container) {
    case TEST_GPTQ:
        set_config(config, QUANT_GPTQ, "gptq", integers);
        config->zeros_less_one = flags & TEST_LESS_ONE;
        config->by_gptqmodel = flags & TEST_GPTQMODEL;
        add_gptq(e);
        break;
    case TEST_AWQ_GEMM:
    case TEST_AWQ_GEMV:
    case TEST_AWQ_FAST:
        set_config(config, QUANT_AWQ, "awq", integers);
        config->order = e->what->container == TEST_AWQ_GEMM   ? QUANT_GEMM
                        : e->what->container == TEST_AWQ_GEMV ? QUANT_GEMV
                                                              : QUANT_GEMV_FAST;
        add_awq(e);
        break;
    case TEST_CT_PACKED:
        set_config(config, QUANT_COMPRESSED_TENSORS, "compressed-tensors", integers);
        add_packed(e);
        break;
    case TEST_CT_INT8:
        set_config(config, QUANT_COMPRESSED_TENSORS, "compressed-tensors", integers);
        e->kind = SIGNED_BYTE;
        add_bytes(e, "weight", DTYPE_I8, "weight_scale");
        if (!symmetric) {
            e->zeros = (struct plane){.line_bytes = e->groups, .word_bytes = 4};
            e->zeros.data =
                tensor(e, "weight_zero_point", DTYPE_I8, flags & TEST_TENSOR ? 1 : 2, e->row_groups, e->groups);
        }
        tensor(e, "input_scale", DTYPE_F32, 1, 1, 0), tensor(e, "input_zero_point", DTYPE_I8, 1, 1, 0);
        break;
    case TEST_CT_FLOAT8:
    case TEST_CT_MXFP8:
        set_config(config, QUANT_COMPRESSED_TENSORS, "compressed-tensors",
                   (struct quant_scheme){true, 8, block_rows ? 0 : group, true, false});
        if (block_rows) config->block_rows = block_rows, config->block_columns = group;
        e->kind = E4M3;
        add_bytes(e, "weight", DTYPE_F8_E4M3, "weight_scale");
        tensor(e, "input_scale", DTYPE_BF16, 1, 1, 0);
        break;
    case TEST_CT_NVFP4:
        set_config(config, QUANT_COMPRESSED_TENSORS, "compressed-tensors", floats);
        e->kind = E2M1;
        add_bytes(e, "weight_packed", DTYPE_U8, "weight_scale");
        e->factor = 1 / add_factor(e, "weight_global_scale", 1);
        add_factor(e, "input_global_scale", 1);
        module->ulps = 2;
        break;
    case TEST_CT_MXFP4:
        set_config(config, QUANT_COMPRESSED_TENSORS, "compressed-tensors", floats);
        e->kind = E2M1;
        add_bytes(e, "weight_packed", DTYPE_U8, "weight_scale");
        break;
    case TEST_FP8_INVERSE:
    case TEST_FP8_SCALE:
    case TEST_MODELOPT_FP8:
        set_config(config, e->what->container == TEST_MODELOPT_FP8 ? QUANT_MODELOPT : QUANT_FP8,
                   e->what->container == TEST_MODELOPT_FP8 ? "modelopt" : "fp8",
                   (struct quant_scheme){true, 8, 0, true, false});
        if (group) config->block_rows = block_rows ? block_rows : 1, config->block_columns = group;
        e->kind = E4M3;
        add_bytes(e, "weight", DTYPE_F8_E4M3,
                  e->what->container == TEST_FP8_INVERSE ? "weight_scale_inv" : "weight_scale");
        tensor(e, e->what->container == TEST_FP8_INVERSE ? "activation_scale" : "input_scale", DTYPE_F32, 0, 0, 0);
        break;
    case TEST_MODELOPT_NVFP4:
        set_config(config, QUANT_MODELOPT, "modelopt", floats);
        e->kind = E2M1;
        add_bytes(e, "weight", DTYPE_U8, "weight_scale");
        e->factor = add_factor(e, "weight_scale_2", 0);
        add_factor(e, "input_scale", 0);
        module->ulps = 1;
        break;
    case TEST_BNB_4BIT:
        set_config(config, QUANT_BITSANDBYTES, "bitsandbytes", (struct quant_scheme){true, 4, 0, true, false});
        e->kind = TABLE;
        add_4bit(e);
        break;
    case TEST_BNB_INT8:
        set_config(config, QUANT_BITSANDBYTES, "bitsandbytes", (struct quant_scheme){false, 8, 0, true, false});
        e->kind = SIGNED_BYTE;
        e->factor = 1 / 127.0;
        add_bytes(e, "weight", DTYPE_I8, "SCB");
        test_quantised_find(e->checkpoint, test_text("%s.SCB", e->module))->rank = 1;
        tensor(e, "weight_format", DTYPE_U8, 0, 0, 0);
        module->ulps = 3;
        break;
    case TEST_CONTAINERS: break;
    }
    e->codes.bits = e->zeros.bits = bits;
}

static void fill(struct encoder *e, float *expected)
{
    const uint32_t bits = e->what->bits, flags = e->what->flags, top = (1u << bits) - 1;
    const uint64_t rows = e->what->rows, columns = e->what->columns;
    const uint64_t count = e->flat ? ceiling(rows * columns, e->flat) : e->row_groups * e->groups;
    const bool less_one = (flags & TEST_LESS_ONE) != 0, packed = flags & TEST_GPTQMODEL && less_one && bits != 3;
    float *scales = calloc(count, sizeof *scales), *zeros = calloc(count, sizeof *zeros),
          *added = calloc(count, sizeof *added);
    assert_true(scales && zeros && added);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t row = e->flat ? i : i / e->groups, column = e->flat ? 0 : i % e->groups;
        const uint64_t at = row * e->scale_row + column * e->scale_column;
        scales[i] = put_scale(e, e->scales, e->scale_type, at, 0);
        if (e->added) added[i] = put_scale(e, e->added, e->scale_type, at, -scales[i] * (float)below(e, 16));
        if (e->kind == INTEGER && !e->added) zeros[i] = (float)(1u << (bits - 1));
        if (!e->zeros.data) continue;
        uint32_t zero = 1u << (bits - 1);
        if (!(flags & TEST_SYMMETRIC)) zero = (uint32_t)(less_one && !packed ? 1 + below(e, top) : below(e, top + 1));
        zeros[i] = value_of(e, zero);
        put(&e->zeros, row, column, zero - (!packed && less_one != ((flags & TEST_MISLABELLED) != 0)));
    }
    if (packed) {
        const struct tensor_view *words = test_quantised_find(e->checkpoint, test_text("%s.qzeros", e->module));
        for (uint64_t i = 0; i < words->bytes / 4; i++) {
            uint32_t word;
            memcpy(&word, e->zeros.data + 4 * i, 4);
            word -= UINT32_MAX / top;
            memcpy(e->zeros.data + 4 * i, &word, 4);
        }
    }
    const uint64_t block_rows = ceiling(rows, e->row_groups);
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t column = 0; column < columns; column++) {
            uint32_t code = (uint32_t)below(e, top + 1);
            if (e->kind == E4M3 && (code & 127) == 127) code--;
            put(&e->codes, row, column, code);
            const uint64_t across = e->groups > 1 ? e->group_of[column] : 0;
            const uint64_t down = row / (e->what->block_rows ? e->what->block_rows : block_rows);
            const uint64_t at = e->flat ? (row * columns + column) / e->flat : down * e->groups + across;
            float element = (value_of(e, code) - zeros[at]) * scales[at];
            if (e->added) element += added[at];
            if (e->factor != 1) element = (float)((double)value_of(e, code) * (double)scales[at] * e->factor);
            expected[row * columns + column] = element;
        }
    free(scales), free(zeros), free(added);
}

void test_quantised_add(struct test_checkpoint *checkpoint, const char *name, const struct test_quantised *what)
{
    assert_true(checkpoint->module_count < TEST_MAX_MODULES);
    struct test_module *module = &checkpoint->modules[checkpoint->module_count++];
    *module = (struct test_module){.name = name, .what = *what};
    const uint64_t group = what->group ? what->group : what->columns;
    struct encoder *e = calloc(1, sizeof *e);
    assert_non_null(e);
    *e = (struct encoder){.checkpoint = checkpoint, .module = name, .what = &module->what, .factor = 1};
    e->scale_type = what->scale;
    e->groups = ceiling(what->columns, group);
    e->row_groups = ceiling(what->rows, what->block_rows ? what->block_rows : 1);
    e->group_of = calloc(what->columns, sizeof *e->group_of);
    module->expected = calloc(what->rows * what->columns, sizeof *module->expected);
    assert_true(e->group_of && module->expected);
    for (uint64_t i = 0; i < what->columns; i++) e->group_of[i] = i / group;
    add_tensors(e, module);
    fill(e, module->expected);
    free(e->group_of);
    free(e);
}

void test_quantised_resize(struct tensor_view *view)
{
    uint64_t bytes = dtype_bytes(view->dtype);
    for (int i = 0; i < view->rank; i++) bytes *= view->shape[i];
    uint8_t *data = calloc(bytes + 1, 1);
    assert_non_null(data);
    if (view->data) {
        memcpy(data + 1, view->data, bytes < view->bytes ? bytes : view->bytes);
        free((uint8_t *)view->data - 1);
    }
    view->data = data + 1;
    view->bytes = bytes;
}

uint8_t *test_quantised_tensor(struct test_checkpoint *checkpoint, const char *name, enum dtype dtype, int rank,
                               uint64_t first, uint64_t second)
{
    assert_true(checkpoint->count < TEST_MAX_TENSORS);
    struct tensor_view *view = &checkpoint->tensors[checkpoint->count++];
    *view = (struct tensor_view){.name = strdup(name), .dtype = dtype, .rank = rank};
    assert_non_null(view->name);
    if (rank > 0) view->shape[0] = first;
    if (rank > 1) view->shape[1] = second;
    test_quantised_resize(view);
    return (uint8_t *)view->data;
}

struct tensor_view *test_quantised_find(struct test_checkpoint *checkpoint, const char *name)
{
    const char *full = checkpoint->module_count ? test_text("%s.%s", checkpoint->modules[0].name, name) : name;
    for (size_t i = 0; i < checkpoint->count; i++)
        if (strcmp(checkpoint->tensors[i].name, name) == 0 || strcmp(checkpoint->tensors[i].name, full) == 0)
            return &checkpoint->tensors[i];
    fail_msg("no tensor '%s'", name);
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor_view *)a)->name, ((const struct tensor_view *)b)->name);
}

void test_quantised_sort(struct test_checkpoint *checkpoint)
{
    qsort(checkpoint->tensors, checkpoint->count, sizeof *checkpoint->tensors, by_name);
}

void test_quantised_free(struct test_checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->count; i++) {
        free((char *)checkpoint->tensors[i].name);
        free((uint8_t *)checkpoint->tensors[i].data - 1);
    }
    for (size_t i = 0; i < checkpoint->module_count; i++) free(checkpoint->modules[i].expected);
    *checkpoint = (struct test_checkpoint){0};
}
