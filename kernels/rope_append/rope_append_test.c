/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_append/rope_append.h"

#include <float.h>
#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/cpu/test_pages.h"
#include "kernels/mean_squares/mean_squares_layout.cuh"

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
static const enum encoding_id encodings[] = {ENCODING_F32, ENCODING_F16, ENCODING_BF16, ENCODING_INT8_CHANNEL,
                                             ENCODING_E4M3_CHANNEL};
enum { ENCODINGS = sizeof encodings / sizeof *encodings };

struct shape {
    int64_t rows, valid, heads, kv_heads, head_dim, page_tokens;
    uint64_t slots, context;
    enum encoding_id kv_dtype;
    enum dtype norm_dtype;
    bool has_norm;
    int64_t rotary_dim, norm_scope;
    bool norm_v, centred, kv_scales, means;
};

enum { LAYERS = 3, LAYER = 1 /* the launch's layer: the others' memory must stay as it is */, PIECE_BYTES = 1024 };

struct setup {
    struct test_case test;
    struct shape shape;
    uint64_t block_bytes;
    size_t pool_bytes;
};

static void setup_open(struct setup *setup, struct test_random *random, const struct shape *shape)
{
    setup->shape = *shape;
    assert_true(kv_block_bytes(shape->kv_dtype, (uint64_t)shape->kv_heads, (uint64_t)shape->page_tokens,
                               (uint64_t)shape->head_dim, 0, &setup->block_bytes));
    size_t aligned = ((size_t)setup->block_bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    struct plan_geometry geometry = {.slots = shape->slots,
                                     .max_context = shape->context,
                                     .page_tokens = (uint64_t)shape->page_tokens,
                                     .page_bytes = LAYERS * aligned,
                                     .vocab_size = 10};
    geometry.pages_per_slot = (shape->context + geometry.page_tokens - 1) / geometry.page_tokens;
    const int64_t params[ROPE_APPEND_PARAMS] = {
        [ROPE_APPEND_ROWS] = shape->rows,
        [ROPE_APPEND_HEADS] = shape->heads,
        [ROPE_APPEND_KV_HEADS] = shape->kv_heads,
        [ROPE_APPEND_HEAD_DIM] = shape->head_dim,
        [ROPE_APPEND_PAGE_TOKENS] = shape->page_tokens,
        [ROPE_APPEND_PAGES_PER_SLOT] = (int64_t)geometry.pages_per_slot,
        [ROPE_APPEND_PAGE_BYTES] = (int64_t)geometry.page_bytes,
        [ROPE_APPEND_SLOT_COUNT] = (int64_t)geometry.slots,
        [ROPE_APPEND_KV_DTYPE] = shape->kv_dtype,
        [ROPE_APPEND_HAS_NORM] = shape->has_norm,
        [ROPE_APPEND_NORM_DTYPE] = shape->norm_dtype,
        [ROPE_APPEND_EPS_BITS] = test_float_bits(1e-6f),
        [ROPE_APPEND_ROTARY_DIM] = shape->rotary_dim,
        [ROPE_APPEND_NORM_SCOPE] = shape->norm_scope,
        [ROPE_APPEND_NORM_V] = shape->norm_v,
        [ROPE_APPEND_CENTRED] = shape->centred,
        [ROPE_APPEND_HAS_KV_SCALES] = shape->kv_scales,
        [ROPE_APPEND_HAS_MEANS] = shape->means,
    };
    struct test_case *test = &setup->test;
    test_case_open(test, &op_rope_append, params, &geometry, (int32_t)shape->valid);
    assert_int_equal(test->demands[ROPE_APPEND_KV].bytes, setup->block_bytes);
    size_t pages = geometry.slots * geometry.pages_per_slot;
    setup->pool_bytes = pages * (size_t)geometry.page_bytes;
    test_case_replace(test, ROPE_APPEND_KV, setup->pool_bytes, LAYER * aligned);

    /* Pages in an order of their own, every row at a place of its own. */
    int32_t *table = test->call.operands[ROPE_APPEND_PAGE_TABLE];
    for (size_t i = 0; i < pages; i++) table[i] = (int32_t)((i * 7 + 3) % pages);
    if (pages % 7 == 0)
        for (size_t i = 0; i < pages; i++) table[i] = (int32_t)(pages - 1 - i);
    int32_t *slots = test->call.operands[ROPE_APPEND_SLOTS], *positions = test->call.operands[ROPE_APPEND_POSITIONS];
    for (int64_t r = 0; r < shape->valid; r++) {
        slots[r] = (int32_t)(r % (int64_t)shape->slots);
        positions[r] = (int32_t)((r / (int64_t)shape->slots * 3 + 1) % (int64_t)shape->context);
    }
    size_t width = (size_t)((shape->heads + 2 * shape->kv_heads) * shape->head_dim);
    test_fill(random, test->call.operands[ROPE_APPEND_QKV], (size_t)shape->valid * width, DTYPE_F32, -2, 2);
    const int64_t rotary_dim = shape->rotary_dim ? shape->rotary_dim : shape->head_dim;
    assert_int_equal(test->demands[ROPE_APPEND_TABLE].bytes, shape->rows * rotary_dim * 4);
    test_fill(random, test->call.operands[ROPE_APPEND_TABLE], (size_t)(shape->valid * rotary_dim), DTYPE_F32, -1, 1);
    for (int i = ROPE_APPEND_NORM_Q; i <= ROPE_APPEND_NORM_K && shape->has_norm; i++) {
        const int64_t heads = i == ROPE_APPEND_NORM_Q ? shape->heads : shape->kv_heads;
        const size_t count = (size_t)(shape->head_dim * (rope_append_own_weights(shape->norm_scope) ? heads : 1));
        assert_int_equal(test->demands[i].bytes, count * dtype_bytes(shape->norm_dtype));
        test_fill(random, test->call.operands[i], count, shape->norm_dtype, 0.5f, 1.5f);
    }
    if (shape->means)
        test_fill(random, test->call.operands[ROPE_APPEND_MEANS], (size_t)(shape->valid * MEAN_SQUARES_WIDTH),
                  DTYPE_F32, 0.2f, 3);
    if (shape->kv_scales) { /* numbers up to 2 are beyond 448 times some of them */
        assert_int_equal(test->demands[test->operand_count - 1].bytes, 2 * shape->kv_heads * 4);
        test_fill(random, test->call.operands[ROPE_APPEND_KV_SCALES], (size_t)(2 * shape->kv_heads), DTYPE_F32, 0.001f,
                  0.006f);
    }
}

/* KV elements: equal, or close where both were written. Most of the pool is as it was, so that pieces are compared first. */
static void assert_kv_close(const struct setup *setup, const uint8_t *found, const uint8_t *expected)
{
    if (!encoding_is_plain(setup->shape.kv_dtype)) {
        const struct op_call *call = &setup->test.call;
        const size_t layer =
            (size_t)((uint8_t *)call->operands[ROPE_APPEND_KV] - setup->test.buffers[ROPE_APPEND_KV].data);
        const struct pages pages =
            pages_of(call->operands[ROPE_APPEND_KV], call->operands[ROPE_APPEND_PAGE_TABLE], call->params);
        test_pages_assert_coded_close(&pages, call->params, call->operands[ROPE_APPEND_SLOTS],
                                      call->operands[ROPE_APPEND_POSITIONS], setup->shape.valid, layer, false, found,
                                      expected, setup->pool_bytes);
        return;
    }
    const enum dtype dtype = (enum dtype)setup->shape.kv_dtype;
    size_t element = dtype_bytes(dtype);
    double relative = dtype == DTYPE_F32 ? 1e-6 : dtype == DTYPE_F16 ? 1.1e-3 : 8e-3;
    for (size_t i = 0; i < setup->pool_bytes / element; i++) {
        const size_t at = i * element;
        if (at % PIECE_BYTES == 0 && at + PIECE_BYTES <= setup->pool_bytes &&
            memcmp(found + at, expected + at, PIECE_BYTES) == 0) {
            i += PIECE_BYTES / element - 1;
            continue;
        }
        if (memcmp(found + i * element, expected + i * element, element) == 0) continue;
        assert_false(test_is_poison(found + i * element, element));
        assert_false(test_is_poison(expected + i * element, element));
        float a = op_element(found, (int64_t)i, dtype), b = op_element(expected, (int64_t)i, dtype);
        test_assert_close(&a, &b, 1, 2e-6, relative, "kv");
    }
}

/* The e4m3 code nearest to a number, of two the even one, by trying all. */
static uint8_t nearest_e4m3(float value)
{
    int best = 0;
    for (int code = 1; code < 0x7f; code++) {
        const double now = fabs((double)e4m3_to_float((uint8_t)code) - fabs((double)value));
        const double least = fabs((double)e4m3_to_float((uint8_t)best) - fabs((double)value));
        if (now < least || (now == least && code % 2 == 0)) best = code;
    }
    return (uint8_t)(best | (signbit(value) ? 0x80 : 0));
}

/* Row `row` of the matrix of the block at `matrix` must be `values`: codes, from the next multiple of 256 bytes on scales.
 * `given`: the static scale, NULL: none. */
static void assert_coded_row(const struct shape *shape, const uint8_t *matrix, int64_t row, const float *values,
                             const float *given)
{
    const int64_t codes_bytes = shape->kv_heads * shape->page_tokens * shape->head_dim;
    const uint8_t *codes = matrix + row * shape->head_dim;
    float largest = 0, scale;
    for (int64_t i = 0; i < shape->head_dim; i++) largest = fmaxf(largest, fabsf(values[i]));
    memcpy(&scale, matrix + (codes_bytes + 255) / 256 * 256 + row * 4, sizeof scale);
    const bool is_int8 = shape->kv_dtype == ENCODING_INT8_CHANNEL;
    assert_true(scale == (given ? *given : largest / (is_int8 ? 127.0f : 448.0f)));
    for (int64_t i = 0; i < shape->head_dim; i++) {
        const float scaled = values[i] / scale;
        assert_int_equal(codes[i], is_int8 ? (uint8_t)(int8_t)lrintf(scaled) : nearest_e4m3(scaled));
    }
}

/* The layout of the pool, written out once more: v of the last valid row must lie where paged.h says. */
static void assert_layout(const struct setup *setup, const uint8_t *kv)
{
    const struct shape *shape = &setup->shape;
    const struct plan_geometry *geometry = &setup->test.geometry;
    int64_t row = shape->valid - 1;
    int32_t slot = ((const int32_t *)setup->test.call.operands[ROPE_APPEND_SLOTS])[row];
    int32_t position = ((const int32_t *)setup->test.call.operands[ROPE_APPEND_POSITIONS])[row];
    const int32_t *table = setup->test.call.operands[ROPE_APPEND_PAGE_TABLE];
    int32_t page = table[slot * (int64_t)geometry->pages_per_slot + position / shape->page_tokens];
    const uint8_t *block = kv + (size_t)page * geometry->page_bytes + LAYER * geometry->page_bytes / LAYERS;
    const float *v = (const float *)setup->test.call.operands[ROPE_APPEND_QKV] +
                     (row * (shape->heads + 2 * shape->kv_heads) + shape->heads + shape->kv_heads) * shape->head_dim;
    const enum dtype dtype = (enum dtype)shape->kv_dtype;
    for (int64_t g = 0; g < shape->kv_heads; g++) {
        if (!encoding_is_plain(shape->kv_dtype)) {
            const int64_t rows = shape->kv_heads * shape->page_tokens;
            const uint8_t *values = block + (rows * shape->head_dim + 255) / 256 * 256 + rows * 4;
            const float *scales = setup->test.call.operands[ROPE_APPEND_KV_SCALES];
            assert_coded_row(shape, values, g * shape->page_tokens + position % shape->page_tokens,
                             v + g * shape->head_dim, shape->kv_scales ? scales + 2 * g + 1 : NULL);
            continue;
        }
        for (int64_t i = 0; i < shape->head_dim && !shape->norm_v; i++) {
            int64_t k_index = (g * shape->page_tokens + position % shape->page_tokens) * shape->head_dim + i;
            int64_t v_index = k_index + shape->kv_heads * shape->page_tokens * shape->head_dim;
            float expected = v[g * shape->head_dim + i];
            if (dtype == DTYPE_F16) expected = f16_to_float(f16_from_float(expected));
            if (dtype == DTYPE_BF16) expected = bf16_to_float(bf16_from_float(expected));
            assert_true(op_element(block, v_index, dtype) == expected);
            assert_false(test_is_poison(block + (size_t)k_index * dtype_bytes(dtype), dtype_bytes(dtype)));
        }
    }
}

static void check_shape(struct test_random *random, const struct shape *shape)
{
    struct setup setup;
    setup_open(&setup, random, shape);
    struct test_case *test = &setup.test;
    struct test_buffer *kv = &test->buffers[ROPE_APPEND_KV], *q = &test->buffers[ROPE_APPEND_Q];
    size_t q_count = (size_t)(shape->valid * shape->heads * shape->head_dim), q_bytes = q_count * 4;
    uint8_t *expected_kv = malloc(setup.pool_bytes), *first_kv = malloc(setup.pool_bytes);
    float *expected_q = malloc(q->bytes), *first_q = malloc(q->bytes);
    op_rope_append.reference(&test->call);
    assert_layout(&setup, kv->data);
    memcpy(expected_kv, kv->data, setup.pool_bytes);
    memcpy(expected_q, q->data, q_bytes);
    TEST_FOR_EACH_ISA(isa)
    {
        for (int team = 0; team < TEST_TEAMS; team++) {
            test_buffer_poison(kv);
            test_buffer_poison(q);
            test_run_op(&op_rope_append, isa, &test->call, test_teams[team]);
            test_case_assert_intact(test);
            if (team == 0) {
                assert_kv_close(&setup, kv->data, expected_kv);
                assert_layout(&setup, kv->data);
                test_assert_close((const float *)(const void *)q->data, expected_q, q_count, 2e-6, 1e-6, "q");
                assert_true(test_is_poison(q->data + q_bytes, q->bytes - q_bytes));
                memcpy(first_kv, kv->data, setup.pool_bytes);
                memcpy(first_q, q->data, q_bytes);
            }
            test_assert_same_bits(kv->data, first_kv, setup.pool_bytes, "kv of another team");
            test_assert_same_bits(q->data, first_q, q_bytes, "q of another team");
        }
    }
    free(expected_kv);
    free(expected_q);
    free(first_kv);
    free(first_q);
    test_case_close(test);
}

TEST(equals_reference)
{
    struct test_random random = {7};
    static const int64_t head_dims[] = {2, 8, 20, 64, 128, 256}, page_tokens[] = {1, 16, 5};
    for (int round = 0; round < 180; round++) {
        int64_t kv_heads = test_random_range(&random, 1, 3);
        struct shape shape = {
            .rows = test_random_range(&random, 1, round % 9 ? 6 : 70),
            .heads = kv_heads * test_random_range(&random, 1, 8),
            .kv_heads = kv_heads,
            .head_dim = head_dims[round % 6],
            .page_tokens = page_tokens[round % 3],
            .slots = (uint64_t)test_random_range(&random, 1, 4),
            .context = 256,
            .kv_dtype = encodings[round / 6 % ENCODINGS],
            .norm_dtype = dtypes[round / 30 % 3],
            .has_norm = round % 2,
        };
        shape.valid = test_random_range(&random, 1, shape.rows);
        check_shape(&random, &shape);
    }
}

/* Static scales: rows keep them, whatever their largest magnitude is. */
TEST(static_scales)
{
    struct test_random random = {12};
    static const int64_t head_dims[] = {2, 8, 20, 64, 128, 256};
    for (int round = 0; round < 60; round++) {
        const int64_t kv_heads = test_random_range(&random, 1, 3);
        struct shape shape = {
            .rows = test_random_range(&random, 1, round % 9 ? 6 : 40),
            .heads = kv_heads * test_random_range(&random, 1, 4),
            .kv_heads = kv_heads,
            .head_dim = head_dims[round % 6],
            .page_tokens = 16,
            .slots = (uint64_t)test_random_range(&random, 1, 4),
            .context = 256,
            .kv_dtype = ENCODING_E4M3_CHANNEL,
            .norm_dtype = dtypes[round / 6 % 3],
            .has_norm = round % 2,
            .kv_scales = true,
        };
        shape.valid = test_random_range(&random, 1, shape.rows);
        check_shape(&random, &shape);
    }
}

/* Part of each head rotated, and norms over the width of q and of k. */
TEST(rotates_a_part)
{
    struct test_random random = {9};
    static const int64_t dims[][2] = {{24, 12}, {24, 16}, {128, 96}, {128, 2}, {6, 4}, {64, 64}, {256, 254}, {20, 6}};
    for (int round = 0; round < 160; round++) {
        const int64_t kv_heads = test_random_range(&random, 1, 3);
        struct shape shape = {
            .rows = test_random_range(&random, 1, round % 9 ? 6 : 40),
            .heads = kv_heads * test_random_range(&random, 1, 5),
            .kv_heads = kv_heads,
            .head_dim = dims[round % 8][0],
            .page_tokens = 16,
            .slots = (uint64_t)test_random_range(&random, 1, 4),
            .context = 256,
            .kv_dtype = encodings[round / 8 % ENCODINGS],
            .norm_dtype = dtypes[round / 40 % 3],
            .has_norm = round % 3 != 0,
            .rotary_dim = dims[round % 8][1],
            .norm_scope = round % 3 == 2,
            .means = round % 6 == 5,
        };
        shape.valid = test_random_range(&random, 1, shape.rows);
        check_shape(&random, &shape);
    }
}

/* Norms of v, centred ones, with a weight for each head or one for all; heads as large as they may be. */
TEST(other_norms)
{
    struct test_random random = {11};
    static const int64_t head_dims[] = {2, 20, 64, 256, OP_MAX_HEAD_DIM};
    for (int round = 0; round < 120; round++) {
        const int64_t kv_heads = test_random_range(&random, 1, 3);
        struct shape shape = {
            .rows = test_random_range(&random, 1, 6),
            .heads = kv_heads * test_random_range(&random, 1, 4),
            .kv_heads = kv_heads,
            .head_dim = head_dims[round % 5],
            .page_tokens = 16,
            .slots = (uint64_t)test_random_range(&random, 1, 4),
            .context = 64,
            .kv_dtype = encodings[round / 5 % ENCODINGS],
            .norm_dtype = dtypes[round / 25 % 3],
            .has_norm = round % 4 != 3,
            .norm_v = round % 2,
        };
        if (!encoding_is_plain(shape.kv_dtype)) shape.norm_v = false; /* codes of values are compared bit by bit */
        shape.centred = shape.has_norm && round % 3 == 0;
        shape.norm_scope = !shape.has_norm || round % 8 >= 6 ? ROPE_APPEND_NORM_HEAD
                           : round % 8 < 3                   ? ROPE_APPEND_NORM_HEADS
                                                             : ROPE_APPEND_NORM_ROTATED;
        if (round % 7 == 0) shape.rotary_dim = shape.head_dim / 4 * 2;
        shape.valid = shape.rows;
        check_shape(&random, &shape);
    }
}

/* By hand: a head of 2 elements turns by a quarter, and then weights of 10 and 100 multiply it. */
TEST(weights_after_the_rotation)
{
    const struct shape shape = {.rows = 1,
                                .valid = 1,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 2,
                                .page_tokens = 1,
                                .slots = 1,
                                .context = 4,
                                .kv_dtype = ENCODING_F32,
                                .norm_dtype = DTYPE_F32,
                                .has_norm = true,
                                .norm_scope = ROPE_APPEND_NORM_ROTATED};
    static const float x[6] = {1, 7, -7, 1, 5, 6}; /* mean squares: 25 */
    static const float table[2] = {0, 1}, norm_q[2] = {10, 100}, norm_k[2] = {100, 10};
    static const float q[2] = {-14, 20}, k[2] = {-20, -14};
    struct test_random random = {11};
    struct setup setup;
    setup_open(&setup, &random, &shape);
    void *const *operands = setup.test.call.operands;
    memcpy(operands[ROPE_APPEND_QKV], x, sizeof x);
    memcpy(operands[ROPE_APPEND_TABLE], table, sizeof table);
    memcpy(operands[ROPE_APPEND_NORM_Q], norm_q, sizeof norm_q);
    memcpy(operands[ROPE_APPEND_NORM_K], norm_k, sizeof norm_k);
    op_rope_append.reference(&setup.test.call);
    const int32_t page = ((const int32_t *)operands[ROPE_APPEND_PAGE_TABLE])[1]; /* of position 1 */
    const float *found_q = operands[ROPE_APPEND_Q];
    const float *found = (const float *)(const void *)((const uint8_t *)operands[ROPE_APPEND_KV] +
                                                       (uint64_t)page * setup.test.geometry.page_bytes);
    for (int i = 0; i < 2; i++)
        assert_true(fabsf(found_q[i] - q[i]) < 1e-4f && fabsf(found[i] - k[i]) < 1e-4f && found[2 + i] == x[4 + i]);
    test_case_close(&setup.test);
}

/* By hand: one row, heads of 4, the first 2 elements rotated by a quarter turn, norm over both heads of q. With `means` their mean
 * squares are given: over the heads of other ranks, too, they are 4 times as large for q and a quarter for k. */
static void check_small_case(bool means)
{
    const struct shape shape = {.rows = 1,
                                .valid = 1,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 4,
                                .page_tokens = 1,
                                .slots = 1,
                                .context = 4,
                                .kv_dtype = ENCODING_F32,
                                .norm_dtype = DTYPE_F32,
                                .has_norm = true,
                                .rotary_dim = 2,
                                .norm_scope = 1,
                                .means = means};
    static const float x[16] = {1, 2, 3, 4, -4, -3, -2, -1,
                                2, 2, 2, 2, 5,  6,  7,  8}; /* mean square of q: 7.5, of k: 4 */
    static const float table[2] = {0, 1}, norm_q[8] = {1, 1, 1, 1, 2, 2, 2, 2}, norm_k[4] = {1, 3, 1, 1};
    static const float q[8] = {-2, 1, 3, 4, 6, -8, -4, -2}, k[4] = {-3, 1, 1, 1}; /* q: times sqrt(7.5) */
    const float given[MEAN_SQUARES_WIDTH] = {30, 1}, q_factor = means ? sqrtf(30) : sqrtf(7.5f),
                k_factor = means ? 2 : 1;
    struct test_random random = {10};
    struct setup setup;
    setup_open(&setup, &random, &shape);
    void *const *operands = setup.test.call.operands;
    memcpy(operands[ROPE_APPEND_QKV], x, sizeof x);
    memcpy(operands[ROPE_APPEND_TABLE], table, sizeof table);
    memcpy(operands[ROPE_APPEND_NORM_Q], norm_q, sizeof norm_q);
    memcpy(operands[ROPE_APPEND_NORM_K], norm_k, sizeof norm_k);
    if (means) memcpy(operands[ROPE_APPEND_MEANS], given, sizeof given);
    op_rope_append.reference(&setup.test.call);
    const float *found = operands[ROPE_APPEND_Q];
    for (int i = 0; i < 8; i++) assert_true(fabsf(found[i] * q_factor - q[i]) < 1e-4f);
    const int32_t page = ((const int32_t *)operands[ROPE_APPEND_PAGE_TABLE])[1]; /* of position 1 */
    found = (const float *)(const void *)((const uint8_t *)operands[ROPE_APPEND_KV] +
                                          (uint64_t)page * setup.test.geometry.page_bytes);
    for (int i = 0; i < 4; i++) assert_true(fabsf(found[i] - k_factor * k[i]) < 1e-4f && found[4 + i] == x[12 + i]);
    test_case_close(&setup.test);
}

TEST(small_case)
{
    check_small_case(false);
    check_small_case(true);
}

TEST(a_row_alone_gives_the_same_bits)
{
    struct test_random random = {8};
    struct shape shape = {.rows = 6,
                          .valid = 6,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 20,
                          .page_tokens = 4,
                          .slots = 3,
                          .context = 32,
                          .norm_dtype = DTYPE_F32,
                          .has_norm = true};
    for (int n = 0; n < ENCODINGS; n++) TEST_FOR_EACH_ISA(isa)
        {
            struct setup setup;
            shape.kv_dtype = encodings[n];
            setup_open(&setup, &random, &shape);
            struct test_case *test = &setup.test;
            struct test_buffer *kv = &test->buffers[ROPE_APPEND_KV], *q = &test->buffers[ROPE_APPEND_Q];
            uint8_t *all_kv = malloc(setup.pool_bytes), *all_q = malloc(q->bytes);
            test_run_op(&op_rope_append, isa, &test->call, 2);
            memcpy(all_kv, kv->data, setup.pool_bytes);
            memcpy(all_q, q->data, q->bytes);
            test_buffer_poison(kv);
            /* One row at a time, each through the first row of the operands. */
            struct op_call call = test->call;
            ((int32_t *)call.operands[ROPE_APPEND_COUNTS])[0] = 1;
            for (int64_t r = 0; r < shape.rows; r++) {
                call.operands[ROPE_APPEND_QKV] = (float *)test->call.operands[ROPE_APPEND_QKV] + r * 8 * 20;
                call.operands[ROPE_APPEND_TABLE] = (float *)test->call.operands[ROPE_APPEND_TABLE] + r * 20;
                call.operands[ROPE_APPEND_SLOTS] = (int32_t *)test->call.operands[ROPE_APPEND_SLOTS] + r;
                call.operands[ROPE_APPEND_POSITIONS] = (int32_t *)test->call.operands[ROPE_APPEND_POSITIONS] + r;
                test_run_op(&op_rope_append, isa, &call, 1);
                test_assert_same_bits(q->data, all_q + r * 4 * 20 * 4, 4 * 20 * 4, "q of one row");
            }
            test_assert_same_bits(kv->data, all_kv, setup.pool_bytes, "kv row by row");
            free(all_kv);
            free(all_q);
            test_case_close(test);
        }
}

/* Rows of zeros, of subnormal and of the largest numbers, and rows with NaN or infinity; without rotation, so that keys are
 * exact, too. Codes of int8, of e4m3, and of e4m3 with the smallest and the largest static scale. */
TEST(rows_at_the_limits)
{
    enum { KINDS = 4 };
    enum { ROWS = 9, MOST_DIM = 64 };
    struct test_random random = {15};
    static const float given[KINDS] = {0, 0, OP_LEAST_KV_SCALE, OP_MOST_KV_SCALE};
    for (int round = 0; round < 4 * KINDS; round++) {
        const int kind = round % KINDS;
        const struct shape shape = {.rows = ROWS,
                                    .valid = ROWS,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = (const int64_t[]){2, 20, 64, 40}[round / KINDS],
                                    .page_tokens = 16,
                                    .slots = 1,
                                    .context = 32,
                                    .kv_dtype = encodings[3 + (kind > 0)],
                                    .norm_dtype = DTYPE_F32,
                                    .kv_scales = given[kind] > 0};
        const float specials[ROWS] = {0, -0.0f, NAN, -INFINITY, FLT_MAX, 0x1p-149f, 100 * 0x1p-149f, 190 * 0x1p-149f,
                                      1};
        struct setup setup;
        setup_open(&setup, &random, &shape);
        struct test_case *test = &setup.test;
        struct test_buffer *kv = &test->buffers[ROPE_APPEND_KV];
        float *x = test->call.operands[ROPE_APPEND_QKV], *table = test->call.operands[ROPE_APPEND_TABLE];
        for (int64_t r = 0; r < ROWS; r++) {
            for (int64_t i = 0; i < shape.head_dim; i++)
                table[r * shape.head_dim + i] = i < shape.head_dim / 2 ? 1.0f : 0.0f;
            for (int part = 0; part < 3; part++) {
                float *row = x + (3 * r + part) * shape.head_dim;
                const float others = isfinite(specials[r]) ? specials[r] : 1.0f;
                for (int64_t i = 0; i < shape.head_dim; i++) row[i] *= others / 2; /* in [-1, 1] times it */
                row[test_random_range(&random, 0, shape.head_dim - 1)] = specials[r];
            }
        }
        float *scales = test->call.operands[ROPE_APPEND_KV_SCALES];
        if (shape.kv_scales) scales[0] = scales[1] = given[kind];
        uint8_t *expected = malloc(setup.pool_bytes);
        op_rope_append.reference(&test->call);
        memcpy(expected, kv->data, setup.pool_bytes);
        TEST_FOR_EACH_ISA(isa)
        {
            test_buffer_poison(kv);
            test_run_op(&op_rope_append, isa, &test->call, 1);
            const struct pages pages = pages_of(test->call.operands[ROPE_APPEND_KV],
                                                test->call.operands[ROPE_APPEND_PAGE_TABLE], test->params);
            for (int64_t r = 0; r < ROWS; r++)
                for (int64_t offset = 0; offset <= pages.values; offset += pages.values) {
                    const int32_t position = ((const int32_t *)test->call.operands[ROPE_APPEND_POSITIONS])[r];
                    const uint8_t *codes = pages_key(&pages, 0, position, 0) + offset;
                    uint8_t *at = pages_key_scale(&pages, 0, position, 0) + offset;
                    static const uint8_t zeros[MOST_DIM];
                    float scale, wanted;
                    memcpy(&scale, at, sizeof scale);
                    memcpy(&wanted, expected + (at - kv->data), sizeof wanted);
                    if (r < 2) assert_true(scale == given[kind] && !signbit(scale));
                    if (r == 2 || r == 3) assert_true(isnan(scale) && isnan(wanted));
                    if (r == 2 || r == 3) memcpy(at, &wanted, sizeof wanted); /* any NaN */
                    if (r < 2 && shape.kv_scales) continue; /* zeros keep their signs, as in all codes with a scale */
                    if (r < 4) assert_memory_equal(codes, zeros, (size_t)shape.head_dim);
                    if (r >= 4) assert_true(isfinite(scale));
                    if (r == 4 && !shape.kv_scales) assert_true(scale == FLT_MAX / (kind ? 448.0f : 127.0f));
                }
            test_assert_same_bits(kv->data, expected, setup.pool_bytes, cpu_isa_name(isa));
        }
        free(expected);
        test_case_close(test);
    }
}

TEST(hostile_params_are_refused)
{
    const struct plan_geometry geometry =
        {.slots = 2, .max_context = 64, .page_tokens = 16, .pages_per_slot = 4, .page_bytes = 65536, .vocab_size = 10};
    const int64_t params[ROPE_APPEND_PARAMS] = {4,     0, 8,         2,         64, 16,        4,
                                                65536, 2, DTYPE_F32, DTYPE_F32, 1,  DTYPE_F32, test_float_bits(1e-6f)};
    test_hostile_params(&op_rope_append, params, &geometry);
    test_refuses(&op_rope_append, params, &geometry,
                 TEST_CHANGES({ROPE_APPEND_HEADS, 0}, {ROPE_APPEND_KV_HEADS, 0}, {ROPE_APPEND_HEADS, INT64_MAX},
                              {ROPE_APPEND_HEAD_DIM, 63}, {ROPE_APPEND_HEAD_DIM, OP_MAX_HEAD_DIM + 2},
                              {ROPE_APPEND_PAGE_TOKENS, 8}, {ROPE_APPEND_PAGES_PER_SLOT, 5},
                              {ROPE_APPEND_PAGE_BYTES, 65600}, {ROPE_APPEND_SLOT_COUNT, 3},
                              {ROPE_APPEND_KV_DTYPE, DTYPE_F8_E4M3}, {ROPE_APPEND_KV_DTYPE, ENCODING_MXFP4},
                              {ROPE_APPEND_KV_DTYPE, ENCODING_E4M3_TENSOR}, {ROPE_APPEND_HAS_NORM, 2},
                              {ROPE_APPEND_NORM_DTYPE, 0}, {ROPE_APPEND_EPS_BITS, -1}, {ROPE_APPEND_ROTARY_DIM, -2},
                              {ROPE_APPEND_ROTARY_DIM, 31}, {ROPE_APPEND_ROTARY_DIM, 66},
                              {ROPE_APPEND_NORM_SCOPE, ROPE_APPEND_NORM_SCOPES}, {ROPE_APPEND_NORM_V, 2},
                              {ROPE_APPEND_CENTRED, 2}, {ROPE_APPEND_HAS_KV_SCALES, 1}, {ROPE_APPEND_HAS_MEANS, 1}));
    int64_t without_norm[ROPE_APPEND_PARAMS];
    memcpy(without_norm, params, sizeof params);
    without_norm[ROPE_APPEND_HAS_NORM] = 0;
    test_refuses(&op_rope_append, without_norm, &geometry,
                 TEST_CHANGES({ROPE_APPEND_NORM_SCOPE, 1}, {ROPE_APPEND_NORM_SCOPE, 2}, {ROPE_APPEND_NORM_SCOPE, 3},
                              {ROPE_APPEND_CENTRED, 1}, {ROPE_APPEND_HAS_MEANS, 1}));
    int64_t over_width[ROPE_APPEND_PARAMS];
    memcpy(over_width, params, sizeof params);
    over_width[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_WIDTH;
    test_refuses(&op_rope_append, over_width, &geometry,
                 TEST_CHANGES({ROPE_APPEND_CENTRED, 1}, {ROPE_APPEND_HAS_MEANS, 2}));
    struct plan_geometry short_slots = geometry;
    short_slots.max_context = 65; /* four pages of sixteen do not hold it */
    test_refuses(&op_rope_append, params, &short_slots, TEST_CHANGES({ROPE_APPEND_ROWS, 4}));
}

int main(void) { return test_run(); }
