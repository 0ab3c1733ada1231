/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of latent_append: the reference against a computation from the contract, every instruction set against the reference, a case by
 * hand, refusal of hostile parameters. */
#include "kernels/latent_append/latent_append.h"

#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/cpu/test_pages.h"

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
static const enum encoding_id encodings[] = {ENCODING_F32, ENCODING_F16, ENCODING_BF16, ENCODING_INT8_CHANNEL,
                                             ENCODING_E4M3_CHANNEL};
enum { ENCODINGS = sizeof encodings / sizeof *encodings };
enum { LAYERS = 3, LAYER = 1 /* the launch's layer: the others' memory must stay as it is */ };

struct shape {
    int64_t rows, valid, heads, head_dim, latent_dim, page_tokens;
    enum encoding_id kv_dtype;
    enum dtype norm_dtype;
    int64_t q_pitch, q_first, kv_pitch; /* 0: rows have no other columns */
};

static int64_t q_width(const struct shape *shape)
{
    return shape->q_pitch ? shape->q_pitch : shape->heads * (shape->head_dim - shape->latent_dim);
}

static int64_t kv_width(const struct shape *shape) { return shape->kv_pitch ? shape->kv_pitch : shape->head_dim; }

struct setup {
    struct test_case test;
    struct shape shape;
    size_t pool_bytes, layer_bytes;
};

static void setup_open(struct setup *setup, struct test_random *random, const struct shape *shape)
{
    enum { SLOTS = 3, CONTEXT = 64 };
    uint64_t block;
    setup->shape = *shape;
    assert_true(kv_block_bytes(shape->kv_dtype, 1, (uint64_t)shape->page_tokens, (uint64_t)shape->head_dim,
                               (uint64_t)shape->latent_dim, &block));
    setup->layer_bytes = ((size_t)block + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    struct plan_geometry geometry = {.slots = SLOTS,
                                     .max_context = CONTEXT,
                                     .page_tokens = (uint64_t)shape->page_tokens,
                                     .page_bytes = LAYERS * setup->layer_bytes,
                                     .vocab_size = 10};
    geometry.pages_per_slot = (CONTEXT + geometry.page_tokens - 1) / geometry.page_tokens;
    const int64_t params[LATENT_APPEND_PARAMS] = {
        [LATENT_APPEND_ROWS] = shape->rows,
        [LATENT_APPEND_HEADS] = shape->heads,
        [LATENT_APPEND_KV_HEADS] = 1,
        [LATENT_APPEND_HEAD_DIM] = shape->head_dim,
        [LATENT_APPEND_PAGE_TOKENS] = shape->page_tokens,
        [LATENT_APPEND_PAGES_PER_SLOT] = (int64_t)geometry.pages_per_slot,
        [LATENT_APPEND_PAGE_BYTES] = (int64_t)geometry.page_bytes,
        [LATENT_APPEND_SLOT_COUNT] = SLOTS,
        [LATENT_APPEND_KV_DTYPE] = shape->kv_dtype,
        [LATENT_APPEND_VALUE_DIM] = shape->latent_dim,
        [LATENT_APPEND_NORM_DTYPE] = shape->norm_dtype,
        [LATENT_APPEND_EPS_BITS] = test_float_bits(1e-3f),
        [LATENT_APPEND_Q_PITCH] = shape->q_pitch,
        [LATENT_APPEND_Q_FIRST] = shape->q_first,
        [LATENT_APPEND_KV_PITCH] = shape->kv_pitch,
    };
    struct test_case *test = &setup->test;
    test_case_open(test, &op_latent_append, params, &geometry, (int32_t)shape->valid);
    assert_int_equal(test->demands[LATENT_APPEND_KV].bytes, block);
    const size_t pages = geometry.slots * geometry.pages_per_slot;
    setup->pool_bytes = pages * (size_t)geometry.page_bytes;
    test_case_replace(test, LATENT_APPEND_KV, setup->pool_bytes, LAYER * setup->layer_bytes);
    int32_t *table = test->call.operands[LATENT_APPEND_PAGE_TABLE];
    for (size_t i = 0; i < pages; i++) table[i] = (int32_t)i;
    test_shuffle(random, table, pages);
    int32_t *slots = test->call.operands[LATENT_APPEND_SLOTS];
    int32_t *positions = test->call.operands[LATENT_APPEND_POSITIONS];
    for (int64_t r = 0; r < shape->valid; r++) {
        slots[r] = (int32_t)(r % SLOTS);
        positions[r] = (int32_t)((r / SLOTS * 3 + 1) % CONTEXT);
    }
    const int64_t rope_dim = shape->head_dim - shape->latent_dim, valid = shape->valid;
    const struct {
        int operand;
        int64_t width;
    } inputs[] = {{LATENT_APPEND_Q_LATENT, shape->heads * shape->latent_dim},
                  {LATENT_APPEND_Q_ROPE, q_width(shape)},
                  {LATENT_APPEND_KV_ROW, kv_width(shape)},
                  {LATENT_APPEND_TABLE, rope_dim}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        assert_int_equal(test->demands[inputs[i].operand].bytes, shape->rows * inputs[i].width * 4);
        test_fill(random, test->call.operands[inputs[i].operand], (size_t)(valid * inputs[i].width), DTYPE_F32, -2, 2);
    }
    test_fill(random, test->call.operands[LATENT_APPEND_NORM], (size_t)shape->latent_dim, shape->norm_dtype, 0.5f,
              1.5f);
}

static struct pages pages_in(const struct setup *setup, uint8_t *pool)
{
    return pages_of_latent(pool + LAYER * setup->layer_bytes, setup->test.call.operands[LATENT_APPEND_PAGE_TABLE],
                           setup->test.params, setup->shape.latent_dim);
}

static void rotate(const float *x, const float *table, int64_t dim, double *out)
{
    for (int64_t i = 0; i < dim; i++) {
        const int64_t half = dim / 2, other = i < half ? i + half : i - half;
        const double sine = i < half ? -(double)table[half + i % half] : (double)table[half + i % half];
        out[i] = (double)x[i] * (double)table[i % half] + (double)x[other] * sine;
    }
}

/* Row `row` of q and of keys, as the contract has them. */
static void expect_row(const struct setup *setup, int64_t row, double *q, double *key)
{
    const struct shape *shape = &setup->shape;
    const int64_t latent = shape->latent_dim, rope = shape->head_dim - latent;
    void *const *operands = setup->test.call.operands;
    const float *table = (const float *)operands[LATENT_APPEND_TABLE] + row * rope;
    for (int64_t h = 0; h < shape->heads; h++) {
        const int64_t index = row * shape->heads + h;
        for (int64_t i = 0; i < latent; i++)
            q[h * shape->head_dim + i] = (double)((const float *)operands[LATENT_APPEND_Q_LATENT])[index * latent + i];
        rotate((const float *)operands[LATENT_APPEND_Q_ROPE] + row * q_width(shape) + shape->q_first + h * rope, table,
               rope, q + h * shape->head_dim + latent);
    }
    const float *x = (const float *)operands[LATENT_APPEND_KV_ROW] + (row + 1) * kv_width(shape) - shape->head_dim;
    double squares = 0;
    for (int64_t i = 0; i < latent; i++) squares += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < latent; i++)
        key[i] = (double)x[i] / sqrt(squares / (double)latent + 1e-3) *
                 (double)op_element(operands[LATENT_APPEND_NORM], i, shape->norm_dtype);
    rotate(x + latent, table, rope, key + latent);
}

static void assert_near(double found, double expected, double tolerance, const char *what, int64_t row, int64_t i)
{
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("%s: row %d, element %d: %.9g, expected %.9g", what, (int)row, (int)i, found, expected);
}

/* What a launch left in q and in the pool. */
static void check_rows(struct setup *setup, const char *what)
{
    const struct shape *shape = &setup->shape;
    uint8_t *pool = setup->test.buffers[LATENT_APPEND_KV].data;
    const struct pages pages = pages_in(setup, pool);
    const int32_t *slots = setup->test.call.operands[LATENT_APPEND_SLOTS];
    const int32_t *positions = setup->test.call.operands[LATENT_APPEND_POSITIONS];
    const float *q = setup->test.call.operands[LATENT_APPEND_Q];
    const int64_t width = shape->heads * shape->head_dim;
    double *wanted = malloc((size_t)(width + shape->head_dim) * sizeof *wanted), *key = wanted + width;
    for (int64_t r = 0; r < shape->valid; r++) {
        expect_row(setup, r, wanted, key);
        for (int64_t i = 0; i < width; i++) assert_near((double)q[r * width + i], wanted[i], 1e-5, what, r, i);
        const uint8_t *codes = pages_key(&pages, slots[r], positions[r], 0);
        double largest = 0;
        for (int64_t i = 0; i < shape->head_dim; i++) largest = fmax(largest, fabs(key[i]));
        float scale = 0;
        if (pages.scales) memcpy(&scale, pages_key_scale(&pages, slots[r], positions[r], 0), sizeof scale);
        for (int64_t i = 0; i < shape->head_dim; i++) {
            const double size = fabs(key[i]);
            double found, tolerance;
            switch (shape->kv_dtype) {
            case ENCODING_INT8_CHANNEL:
                found = (double)(int8_t)codes[i] * (double)scale, tolerance = largest / 127 * 0.51;
                break;
            case ENCODING_E4M3_CHANNEL:
                found = (double)e4m3_to_float(codes[i]) * (double)scale, tolerance = size / 15 + largest / 448 / 256;
                break;
            case ENCODING_F32: found = (double)op_element(codes, i, DTYPE_F32), tolerance = 1e-5; break;
            case ENCODING_F16: found = (double)op_element(codes, i, DTYPE_F16), tolerance = 1e-5 + size / 1024; break;
            default: found = (double)op_element(codes, i, DTYPE_BF16), tolerance = 1e-5 + size / 128; break;
            }
            assert_near(found, key[i], tolerance, what, r, i);
        }
    }
    free(wanted);
}

/* Only the rows' codes and scales were written: with those as poison again, all is. */
static void check_rest(struct setup *setup)
{
    const struct shape *shape = &setup->shape;
    uint8_t *pool = setup->test.buffers[LATENT_APPEND_KV].data;
    const struct pages pages = pages_in(setup, pool);
    struct test_buffer poison = test_buffer_new(setup->pool_bytes);
    for (int64_t r = 0; r < shape->valid; r++) {
        const int32_t slot = ((const int32_t *)setup->test.call.operands[LATENT_APPEND_SLOTS])[r];
        const int32_t position = ((const int32_t *)setup->test.call.operands[LATENT_APPEND_POSITIONS])[r];
        uint8_t *codes = pages_key(&pages, slot, position, 0);
        memcpy(codes, poison.data + (codes - pool), (size_t)pages.token_bytes);
        if (!pages.scales) continue;
        uint8_t *scale = pages_key_scale(&pages, slot, position, 0);
        memcpy(scale, poison.data + (scale - pool), sizeof(float));
    }
    test_assert_same_bits(pool, poison.data, setup->pool_bytes, "what no row has written");
    const struct test_buffer *q = &setup->test.buffers[LATENT_APPEND_Q];
    const size_t used = (size_t)(shape->valid * shape->heads * shape->head_dim) * sizeof(float);
    assert_true(test_is_poison(q->data + used, q->bytes - used));
    test_buffer_free(&poison);
}

static void check_shape(struct test_random *random, const struct shape *shape)
{
    struct setup setup;
    setup_open(&setup, random, shape);
    struct test_case *test = &setup.test;
    struct test_buffer *kv = &test->buffers[LATENT_APPEND_KV], *q = &test->buffers[LATENT_APPEND_Q];
    uint8_t *first_kv = malloc(setup.pool_bytes), *first_q = malloc(q->bytes);
    op_latent_append.reference(&test->call);
    check_rows(&setup, "reference");
    check_rest(&setup);
    TEST_FOR_EACH_ISA(isa)
    {
        for (int run = 0; run < TEST_TEAMS; run++) {
            test_buffer_poison(kv);
            test_buffer_poison(q);
            test_run_op(&op_latent_append, isa, &test->call, test_teams[run]);
            test_case_assert_intact(test);
            if (run == 0) {
                check_rows(&setup, cpu_isa_name(isa));
                memcpy(first_kv, kv->data, setup.pool_bytes);
                memcpy(first_q, q->data, q->bytes);
            }
            test_assert_same_bits(kv->data, first_kv, setup.pool_bytes, "kv of another team");
            test_assert_same_bits(q->data, first_q, q->bytes, "q of another team");
        }
        check_rest(&setup);
    }
    free(first_kv);
    free(first_q);
    test_case_close(test);
}

TEST(equals_a_plain_computation)
{
    struct test_random random = {21};
    static const int64_t dims[][2] = {{576, 512}, {48, 32}, {20, 14}, {3, 1}, {OP_MAX_LATENT_DIM, 2}, {33, 17}};
    for (int round = 0; round < 90; round++) {
        struct shape shape = {.rows = test_random_range(&random, 1, round % 9 ? 6 : 40),
                              .heads = test_random_range(&random, 1, 9),
                              .head_dim = dims[round % 6][0],
                              .latent_dim = dims[round % 6][1],
                              .page_tokens = round % 4 ? 16 : 5,
                              .kv_dtype = encodings[round / 6 % ENCODINGS],
                              .norm_dtype = dtypes[round / 30 % 3]};
        shape.valid = test_random_range(&random, 1, shape.rows);
        if (round % 3) {
            shape.q_first = test_random_range(&random, 0, 40);
            shape.q_pitch = shape.q_first + q_width(&shape) + test_random_range(&random, 0, 9);
        }
        if (round % 4) shape.kv_pitch = shape.head_dim + test_random_range(&random, 1, 70);
        check_shape(&random, &shape);
    }
}

/* By hand: a latent row of 2 and a key of 2 that turns by a quarter. */
TEST(small_case)
{
    struct test_random random = {22};
    const struct shape shape = {.rows = 1,
                                .valid = 1,
                                .heads = 2,
                                .head_dim = 4,
                                .latent_dim = 2,
                                .page_tokens = 16,
                                .kv_dtype = ENCODING_F32,
                                .norm_dtype = DTYPE_F32};
    static const float q_latent[] = {1, 2, 3, 4}, q_rope[] = {5, 6, 7, 8}, kv_row[] = {3, -4, 1, 2};
    static const float table[] = {0, 1}, norm[] = {1, 2}, q[] = {1, 2, -6, 5, 3, 4, -8, 7};
    struct setup setup;
    setup_open(&setup, &random, &shape);
    void *const *operands = setup.test.call.operands;
    memcpy(operands[LATENT_APPEND_Q_LATENT], q_latent, sizeof q_latent);
    memcpy(operands[LATENT_APPEND_Q_ROPE], q_rope, sizeof q_rope);
    memcpy(operands[LATENT_APPEND_KV_ROW], kv_row, sizeof kv_row);
    memcpy(operands[LATENT_APPEND_TABLE], table, sizeof table);
    memcpy(operands[LATENT_APPEND_NORM], norm, sizeof norm);
    const float divisor = sqrtf(12.501f), key[] = {3 / divisor, -8 / divisor, -2, 1};
    TEST_FOR_EACH_ISA(isa)
    {
        test_run_op(&op_latent_append, isa, &setup.test.call, 1);
        test_assert_close(operands[LATENT_APPEND_Q], q, 8, 0, 0, cpu_isa_name(isa));
        const struct pages pages = pages_in(&setup, setup.test.buffers[LATENT_APPEND_KV].data);
        const int32_t position = *(const int32_t *)operands[LATENT_APPEND_POSITIONS];
        test_assert_close((const float *)(const void *)pages_key(&pages, 0, position, 0), key, 4, 1e-6, 1e-6, "key");
    }
    test_case_close(&setup.test);
}

TEST(hostile_params_are_refused)
{
    const struct plan_geometry geometry =
        {.slots = 2, .max_context = 64, .page_tokens = 16, .pages_per_slot = 4, .page_bytes = 36864, .vocab_size = 10};
    const int64_t params[LATENT_APPEND_PARAMS] = {
        [LATENT_APPEND_ROWS] = 4,
        [LATENT_APPEND_HEADS] = 8,
        [LATENT_APPEND_KV_HEADS] = 1,
        [LATENT_APPEND_HEAD_DIM] = 576,
        [LATENT_APPEND_PAGE_TOKENS] = 16,
        [LATENT_APPEND_PAGES_PER_SLOT] = 4,
        [LATENT_APPEND_PAGE_BYTES] = 36864, /* 16 * 576 * 4 */
        [LATENT_APPEND_SLOT_COUNT] = 2,
        [LATENT_APPEND_KV_DTYPE] = DTYPE_F32,
        [LATENT_APPEND_X_DTYPE] = DTYPE_F32,
        [LATENT_APPEND_VALUE_DIM] = 512,
        [LATENT_APPEND_NORM_DTYPE] = DTYPE_F32,
    };
    test_hostile_params(&op_latent_append, params, &geometry);
    test_refuses(&op_latent_append, params, &geometry,
                 TEST_CHANGES({LATENT_APPEND_VALUE_DIM, 0}, {LATENT_APPEND_VALUE_DIM, 576},
                              {LATENT_APPEND_VALUE_DIM, 575}, {LATENT_APPEND_VALUE_DIM, 578},
                              {LATENT_APPEND_KV_HEADS, 2}, {LATENT_APPEND_HEAD_DIM, 580},
                              {LATENT_APPEND_HEAD_DIM, OP_MAX_LATENT_DIM + 2}, {LATENT_APPEND_HEAD_DIM, 2},
                              {LATENT_APPEND_X_DTYPE, DTYPE_BF16}, {LATENT_APPEND_PAGE_BYTES, 36800},
                              {LATENT_APPEND_KV_DTYPE, ENCODING_INT4_G32}, {LATENT_APPEND_EPS_BITS, -1},
                              {LATENT_APPEND_Q_FIRST, 1}, {LATENT_APPEND_Q_PITCH, 511}, {LATENT_APPEND_Q_PITCH, -1},
                              {LATENT_APPEND_KV_PITCH, 575}, {LATENT_APPEND_KV_PITCH, INT64_MAX}));
    int64_t shared[LATENT_APPEND_PARAMS];
    memcpy(shared, params, sizeof shared);
    shared[LATENT_APPEND_Q_PITCH] = shared[LATENT_APPEND_KV_PITCH] = 1600;
    shared[LATENT_APPEND_Q_FIRST] = 512;
    test_hostile_params(&op_latent_append, shared, &geometry);
    test_refuses(&op_latent_append, shared, &geometry,
                 TEST_CHANGES({LATENT_APPEND_Q_FIRST, 1089}, {LATENT_APPEND_Q_FIRST, INT64_MAX},
                              {LATENT_APPEND_Q_PITCH, 0}, {LATENT_APPEND_Q_PITCH, 1023}));
}

int main(void) { return test_run(); }
