/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention.h"

#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/cpu/test_pages.h"

static const enum encoding_id encodings[] = {ENCODING_F32, ENCODING_F16, ENCODING_BF16, ENCODING_INT8_CHANNEL,
                                             ENCODING_E4M3_CHANNEL};
enum { ENCODINGS = sizeof encodings / sizeof *encodings };

struct shape {
    int64_t rows, valid, kv_heads, group, head_dim, page_tokens, window;
    uint64_t slots, context;
    enum encoding_id kv_dtype;
    float scale, cap;
    enum dtype sinks;  /* DTYPE_NONE: none */
    int64_t value_dim; /* 0: v is in the pages */
};

/* A launch, with a pool in which every slot's tokens are filled and everything else is poison (NaN). */
struct setup {
    struct test_case test;
    struct shape shape;
    struct pages pages;
    size_t row_floats, out_floats; /* of a row of q and of out */
};

static void setup_open(struct setup *setup, struct test_random *random, const struct shape *shape)
{
    setup->shape = *shape;
    const int64_t heads = shape->kv_heads * shape->group;
    uint64_t block;
    assert_true(kv_block_bytes(shape->kv_dtype, (uint64_t)shape->kv_heads, (uint64_t)shape->page_tokens,
                               (uint64_t)shape->head_dim, (uint64_t)shape->value_dim, &block));
    size_t aligned = (block + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    struct plan_geometry geometry = {.slots = shape->slots,
                                     .max_context = shape->context,
                                     .page_tokens = (uint64_t)shape->page_tokens,
                                     .page_bytes = 2 * aligned,
                                     .vocab_size = 10};
    geometry.pages_per_slot = (shape->context + geometry.page_tokens - 1) / geometry.page_tokens;
    const int64_t params[ATTENTION_PARAMS] = {
        [ATTENTION_ROWS] = shape->rows,
        [ATTENTION_HEADS] = heads,
        [ATTENTION_KV_HEADS] = shape->kv_heads,
        [ATTENTION_HEAD_DIM] = shape->head_dim,
        [ATTENTION_PAGE_TOKENS] = shape->page_tokens,
        [ATTENTION_PAGES_PER_SLOT] = (int64_t)geometry.pages_per_slot,
        [ATTENTION_PAGE_BYTES] = (int64_t)geometry.page_bytes,
        [ATTENTION_SLOT_COUNT] = (int64_t)geometry.slots,
        [ATTENTION_KV_DTYPE] = shape->kv_dtype,
        [ATTENTION_WINDOW] = shape->window,
        [ATTENTION_SCALE_BITS] = test_float_bits(shape->scale),
        [ATTENTION_CAP_BITS] = test_float_bits(shape->cap),
        [ATTENTION_HAS_SINKS] = shape->sinks != DTYPE_NONE,
        [ATTENTION_SINKS_DTYPE] = shape->sinks ? shape->sinks : DTYPE_F32,
        [ATTENTION_VALUE_DIM] = shape->value_dim,
    };
    struct test_case *test = &setup->test;
    test_case_open(test, &op_attention, params, &geometry, (int32_t)shape->valid);
    assert_int_equal(test->demands[ATTENTION_KV].bytes, block);
    size_t pages = geometry.slots * geometry.pages_per_slot;
    test_case_replace(test, ATTENTION_KV, pages * (size_t)geometry.page_bytes, aligned);
    int32_t *table = test->call.operands[ATTENTION_PAGE_TABLE];
    for (size_t i = 0; i < pages; i++) table[i] = (int32_t)i;
    test_shuffle(random, table, pages);
    setup->row_floats = (size_t)(heads * shape->head_dim);
    setup->out_floats = (size_t)(heads * attention_value_dim(params));
    assert_int_equal(test->demands[ATTENTION_OUT].bytes, (size_t)shape->rows * setup->out_floats * sizeof(float));
    if (shape->sinks) test_fill(random, test->call.operands[ATTENTION_SINKS], (size_t)heads, shape->sinks, -2, 3);
    test_fill(random, test->call.operands[ATTENTION_Q], (size_t)shape->rows * setup->row_floats, DTYPE_F32, -1, 1);
    setup->pages = pages_of_latent(test->call.operands[ATTENTION_KV], table, params, shape->value_dim);
}

/* Row r is at `position` of `slot`; tokens up to there exist. */
static void place_row(struct setup *setup, struct test_random *random, int64_t r, int64_t slot, int64_t position)
{
    ((int32_t *)setup->test.call.operands[ATTENTION_SLOTS])[r] = (int32_t)slot;
    ((int32_t *)setup->test.call.operands[ATTENTION_POSITIONS])[r] = (int32_t)position;
    for (int64_t t = 0; t <= position; t++) test_pages_fill(random, &setup->pages, setup->test.call.params, slot, t);
}

/* Runs the call; rows beyond the valid ones must stay poisoned. */
static void run_checked(struct setup *setup, enum cpu_isa isa, int members)
{
    struct test_buffer *out = &setup->test.buffers[ATTENTION_OUT];
    test_buffer_poison(out);
    test_buffer_poison(&setup->test.buffers[ATTENTION_WORKSPACE]);
    test_run_op(&op_attention, isa, &setup->test.call, members);
    test_case_assert_intact(&setup->test);
    size_t used = (size_t)setup->shape.valid * setup->out_floats * sizeof(float);
    assert_true(test_is_poison(out->data + used, out->bytes - used));
}

/* Against the reference; the same bits with other teams, in place, and for each of some rows alone. */
static void check_setup(struct setup *setup)
{
    struct test_case *test = &setup->test;
    const int64_t valid = setup->shape.valid;
    size_t count = (size_t)valid * setup->out_floats, bytes = count * sizeof(float);
    size_t row_bytes = setup->out_floats * sizeof(float), q_bytes = (size_t)valid * setup->row_floats * sizeof(float);
    float *expected = malloc(bytes), *first = malloc(bytes), *q = malloc(q_bytes);
    float *out = test->call.operands[ATTENTION_OUT];
    memcpy(q, test->call.operands[ATTENTION_Q], q_bytes);
    op_attention.reference(&test->call);
    memcpy(expected, out, bytes);
    double largest_score = fabs((double)setup->shape.scale) * (double)setup->shape.head_dim;
    static const int teams[] = {1, 2, 5, 16};
    TEST_FOR_EACH_ISA(isa)
    {
        for (size_t team = 0; team < sizeof teams / sizeof teams[0]; team++) {
            run_checked(setup, isa, teams[team]);
            if (team == 0) {
                test_assert_close(out, expected, count, 1e-6 + 1e-7 * largest_score, 1e-6, cpu_isa_name(isa));
                memcpy(first, out, bytes);
            }
            test_assert_same_bits(out, first, bytes, "another team");
        }
        struct op_call call = test->call;
        if (!setup->shape.value_dim) {
            call.operands[ATTENTION_OUT] = call.operands[ATTENTION_Q];
            test_run_op(&op_attention, isa, &call, 3);
            test_assert_same_bits(call.operands[ATTENTION_Q], first, bytes, "in place");
            memcpy(call.operands[ATTENTION_Q], q, q_bytes);
        }

        ((int32_t *)call.operands[ATTENTION_COUNTS])[0] = 1;
        call.operands[ATTENTION_OUT] = out;
        for (int64_t r = 0; r < valid; r += 1 + valid / 5) {
            call.operands[ATTENTION_Q] = (float *)test->call.operands[ATTENTION_Q] + (size_t)r * setup->row_floats;
            call.operands[ATTENTION_SLOTS] = (int32_t *)test->call.operands[ATTENTION_SLOTS] + r;
            call.operands[ATTENTION_POSITIONS] = (int32_t *)test->call.operands[ATTENTION_POSITIONS] + r;
            test_run_op(&op_attention, isa, &call, r % 2 ? 1 : 4);
            test_assert_same_bits(out, first + (size_t)r * setup->out_floats, row_bytes, "row alone");
        }
        ((int32_t *)call.operands[ATTENTION_COUNTS])[0] = (int32_t)valid;
    }
    free(expected);
    free(first);
    free(q);
}

TEST(decode_equals_reference)
{
    struct test_random random = {9};
    static const int64_t head_dims[] = {8, 20, 64, 128, 1, 256}, page_tokens[] = {1, 16, 7};
    static const int64_t windows[] = {0, 1, 16, 300};
    for (int round = 0; round < 120; round++) {
        struct shape shape = {.rows = test_random_range(&random, 1, 6),
                              .kv_heads = test_random_range(&random, 1, 3),
                              .group = test_random_range(&random, 1, 8),
                              .head_dim = head_dims[round % 6],
                              .page_tokens = page_tokens[round % 3],
                              .window = windows[round / 6 % 4],
                              .slots = 6,
                              .context = 700,
                              .kv_dtype = encodings[round / 2 % ENCODINGS],
                              .scale = round % 5 ? 0.3f : 2.0f,
                              .cap = round % 4 == 3 ? 1.5f : 0,
                              .sinks = (enum dtype[]){DTYPE_NONE, DTYPE_F32, DTYPE_BF16, DTYPE_NONE}[round / 4 % 4]};
        shape.valid = test_random_range(&random, 1, shape.rows);
        struct setup setup;
        setup_open(&setup, &random, &shape);
        for (int64_t r = 0; r < shape.valid; r++) {
            int64_t position = test_random_range(&random, 0, round % 2 ? 40 : 699);
            if (r == 0) position = (int64_t[]){0, 255, 256, 511, 512, 699}[round / 3 % 6];
            place_row(&setup, &random, r, (r * 5 + 2) % 6, position);
        }
        check_setup(&setup);
        test_case_close(&setup.test);
    }
}

TEST(prefill_equals_reference)
{
    struct test_random random = {10};
    static const int64_t head_dims[] = {64, 20, 128, 8}, starts[] = {0, 1, 200, 250, 560};
    static const int64_t windows[] = {0, 16, 1, 100};
    for (int round = 0; round < 40; round++) {
        struct shape shape = {.rows = test_random_range(&random, 2, 70),
                              .kv_heads = test_random_range(&random, 1, 2),
                              .group = 1 + round % 8,
                              .head_dim = head_dims[round % 4],
                              .page_tokens = round % 2 ? 16 : 1,
                              .window = windows[round / 4 % 4],
                              .slots = 2,
                              .context = 640,
                              .kv_dtype = encodings[round % ENCODINGS],
                              .scale = 0.25f};
        shape.valid = test_random_range(&random, 2, shape.rows);
        struct setup setup;
        setup_open(&setup, &random, &shape);
        for (int64_t r = 0; r < shape.valid; r++) place_row(&setup, &random, r, 1, starts[round % 5] + r);
        check_setup(&setup);
        test_case_close(&setup.test);
    }
}

/* Values that are a part of the keys, with one KV head, as in latent attention. */
TEST(latent_rows_equal_reference)
{
    struct test_random random = {15};
    static const int64_t dims[][2] = {{576, 512}, {48, 32}, {20, 13}, {OP_MAX_LATENT_DIM, 320}, {64, 64}, {300, 1}};
    static const int64_t starts[] = {0, 250, 3};
    for (int round = 0; round < 60; round++) {
        const bool decodes = round % 2;
        struct shape shape = {.rows = decodes ? test_random_range(&random, 1, 5) : test_random_range(&random, 2, 24),
                              .kv_heads = 1,
                              .group = test_random_range(&random, 1, 18),
                              .head_dim = dims[round % 6][0],
                              .value_dim = dims[round % 6][1],
                              .page_tokens = round % 3 ? 16 : 5,
                              .window = round % 7 ? 0 : 20,
                              .slots = 3,
                              .context = 540,
                              .kv_dtype = encodings[round / 6 % ENCODINGS],
                              .scale = 0.1f};
        shape.valid = test_random_range(&random, 1, shape.rows);
        struct setup setup;
        setup_open(&setup, &random, &shape);
        for (int64_t r = 0; r < shape.valid; r++)
            place_row(&setup, &random, r, decodes ? r % 3 : 1,
                      decodes ? test_random_range(&random, 0, 539) : starts[round / 2 % 3] + r);
        check_setup(&setup);
        test_case_close(&setup.test);
    }
}

/* Rows in any order and mixture: two chunks of one slot with other slots between them, positions falling. */
TEST(mixed_rows_equal_reference)
{
    struct test_random random = {11};
    for (int round = 0; round < 8; round++) {
        struct shape shape = {.rows = 40,
                              .valid = 37,
                              .kv_heads = 2,
                              .group = 1 + round,
                              .head_dim = 32,
                              .page_tokens = 16,
                              .window = round % 2 ? 0 : 70,
                              .slots = 3,
                              .context = 600,
                              .kv_dtype = encodings[(round + 3) % ENCODINGS],
                              .scale = 0.2f};
        struct setup setup;
        setup_open(&setup, &random, &shape);
        for (int64_t r = 0; r < shape.valid; r++) {
            int64_t position = r < 12 ? 300 - r * 5 : test_random_range(&random, 0, 599);
            place_row(&setup, &random, r, r < 12 ? 0 : r < 15 ? r % 3 : 2, position);
        }
        check_setup(&setup);
        test_case_close(&setup.test);
    }
}

/* Softmax must not overflow, and one dominant token must win. */
TEST(large_scores_are_stable)
{
    struct test_random random = {12};
    struct shape shape = {.rows = 1,
                          .valid = 1,
                          .kv_heads = 1,
                          .group = 2,
                          .head_dim = 16,
                          .page_tokens = 16,
                          .slots = 1,
                          .context = 600,
                          .kv_dtype = ENCODING_F32,
                          .scale = 1000.0f};
    TEST_FOR_EACH_ISA(isa)
    {
        struct setup setup;
        setup_open(&setup, &random, &shape);
        place_row(&setup, &random, 0, 0, 599);
        float *key = (float *)(void *)pages_key(&setup.pages, 0, 300, 0), *q = setup.test.call.operands[ATTENTION_Q];
        for (int d = 0; d < 16; d++) {
            key[d] = 3;
            q[d] = q[16 + d] = 1;
        }
        run_checked(&setup, isa, 2);
        const float *value = (const float *)(const void *)((const uint8_t *)key + setup.pages.values);
        test_assert_close(setup.test.call.operands[ATTENTION_OUT], value, 16, 1e-7, 0, "dominant token");
        test_case_close(&setup.test);
    }
}

/* Encodings with scales, by hand: two tokens, one of zeros, in a page of four. */
TEST(small_case)
{
    static const enum encoding_id coded[] = {ENCODING_INT8_CHANNEL, ENCODING_E4M3_CHANNEL};
    static const uint8_t codes[2][2] = {{64, 0xe0 /* -32 */}, {0x68 /* 64 */, 0xe0 /* -32 */}};
    struct test_random random = {13};
    for (int n = 0; n < 2; n++) {
        const struct shape shape = {.rows = 1,
                                    .valid = 1,
                                    .kv_heads = 1,
                                    .group = 1,
                                    .head_dim = 2,
                                    .page_tokens = 4,
                                    .slots = 1,
                                    .context = 4,
                                    .kv_dtype = coded[n],
                                    .scale = 1};
        struct setup setup;
        setup_open(&setup, &random, &shape);
        /* Block: K codes [4, 2], K scales from byte 256, then the same of V from byte 272. */
        uint8_t *block = setup.test.call.operands[ATTENTION_KV];
        const int32_t page = *(const int32_t *)setup.test.call.operands[ATTENTION_PAGE_TABLE];
        block += (uint64_t)page * setup.test.geometry.page_bytes;
        const float scales[2] = {0, 0x1p-6f};
        for (int v = 0; v < 2; v++) {
            memset(block + 272 * v, 0, 2);
            memcpy(block + 272 * v + 2, codes[n], 2);
            memcpy(block + 272 * v + 256, scales, sizeof scales);
        }
        ((int32_t *)setup.test.call.operands[ATTENTION_SLOTS])[0] = 0;
        ((int32_t *)setup.test.call.operands[ATTENTION_POSITIONS])[0] = 1;
        const float q[2] = {3, 2}; /* scores: 0, and 3 * 1 - 2 * 0.5 = 2 */
        memcpy(setup.test.call.operands[ATTENTION_Q], q, sizeof q);
        const float weight = 1 / (1 + expf(-2)), expected[2] = {weight, -0.5f * weight};
        op_attention.reference(&setup.test.call);
        test_assert_close(setup.test.call.operands[ATTENTION_OUT], expected, 2, 1e-6, 0, "reference");
        TEST_FOR_EACH_ISA(isa)
        {
            run_checked(&setup, isa, 1);
            test_assert_close(setup.test.call.operands[ATTENTION_OUT], expected, 2, 1e-6, 0, cpu_isa_name(isa));
        }
        test_case_close(&setup.test);
    }
}

/* A scale that is NaN makes the results of all rows that see its token NaN, and of no others. */
TEST(damaged_tokens_are_seen)
{
    enum { ROWS = 40, TOKEN = 20, WINDOW = 8 };
    struct test_random random = {14};
    for (int round = 0; round < 8; round++) {
        const struct shape shape = {.rows = ROWS,
                                    .valid = ROWS,
                                    .kv_heads = 1,
                                    .group = 1 + round,
                                    .head_dim = round % 4 < 2 ? 64 : 20,
                                    .page_tokens = 16,
                                    .window = round < 4 ? WINDOW : 0,
                                    .slots = 1,
                                    .context = ROWS,
                                    .kv_dtype = encodings[3 + round % 2],
                                    .scale = 0.2f};
        struct setup setup;
        setup_open(&setup, &random, &shape);
        for (int64_t r = 0; r < ROWS; r++) place_row(&setup, &random, r, 0, r);
        const float damage = NAN;
        memcpy(pages_key_scale(&setup.pages, 0, TOKEN, 0) + (round & 4 ? setup.pages.values : 0), &damage,
               sizeof damage);
        float *out = setup.test.call.operands[ATTENTION_OUT];
        float *expected = malloc(setup.row_floats * ROWS * sizeof *expected);
        op_attention.reference(&setup.test.call);
        memcpy(expected, out, setup.row_floats * ROWS * sizeof *expected);
        TEST_FOR_EACH_ISA(isa)
        {
            run_checked(&setup, isa, round % 2 ? 1 : 5);
            for (size_t i = 0; i < ROWS * setup.row_floats; i++) {
                const int64_t row = (int64_t)(i / setup.row_floats);
                const bool sees = row >= TOKEN && (!shape.window || row < TOKEN + shape.window);
                assert_int_equal(isnan(out[i]), sees);
                assert_int_equal(isnan(expected[i]), sees);
                if (!sees) test_assert_close(out + i, expected + i, 1, 2e-6, 1e-6, cpu_isa_name(isa));
            }
        }
        free(expected);
        test_case_close(&setup.test);
    }
}

/* Writes NaN over a token: over its elements or, where rows have scales, over those. */
static void poison_token(const struct setup *setup, int64_t token)
{
    const float damage = NAN;
    for (int64_t g = 0; g < setup->shape.kv_heads; g++) {
        uint8_t *key = pages_key(&setup->pages, 0, token, g);
        memset(key, 0xff, (size_t)setup->pages.token_bytes);
        memset(key + setup->pages.values, 0xff, (size_t)setup->pages.token_bytes);
        if (!setup->pages.scales) continue;
        uint8_t *scale = pages_key_scale(&setup->pages, 0, token, g);
        memcpy(scale, &damage, sizeof damage);
        memcpy(scale + setup->pages.values, &damage, sizeof damage);
    }
}

/* Pages of tokens that have left the window may be used again: the same bits whatever they hold, NaN included. */
TEST(tokens_before_the_window_have_no_influence)
{
    enum { ROWS = 24, CONTEXT = 700 };
    static const int64_t windows[] = {1, 8, 100, 300};
    struct test_random random = {15};
    for (int round = 0; round < 40; round++) {
        const int64_t window = windows[round % 4], first = CONTEXT - ROWS - round;
        const struct shape shape = {.rows = ROWS,
                                    .valid = round % 3 ? ROWS : 1,
                                    .kv_heads = 2,
                                    .group = 1 + round % 3,
                                    .head_dim = round % 2 ? 64 : 20,
                                    .page_tokens = 16,
                                    .window = window,
                                    .slots = 1,
                                    .context = CONTEXT,
                                    .kv_dtype = encodings[round % 5],
                                    .scale = 0.2f};
        struct setup setup;
        setup_open(&setup, &random, &shape);
        for (int64_t r = 0; r < ROWS; r++) place_row(&setup, &random, r, 0, first + r);
        const float *out = setup.test.call.operands[ATTENTION_OUT];
        const size_t bytes = (size_t)shape.valid * setup.out_floats * sizeof(float);
        float *clean[CPU_ISA_COUNT] = {NULL};
        TEST_FOR_EACH_ISA(isa)
        {
            run_checked(&setup, isa, round % 2 ? 1 : 5);
            clean[isa] = malloc(bytes);
            assert_non_null(clean[isa]);
            memcpy(clean[isa], out, bytes);
        }
        for (int64_t t = 0; t <= first - window; t++) poison_token(&setup, t);
        TEST_FOR_EACH_ISA(isa)
        {
            run_checked(&setup, isa, round % 2 ? 1 : 5);
            for (size_t i = 0; i < bytes / sizeof(float); i++) assert_true(isfinite(out[i]));
            test_assert_same_bits(out, clean[isa], bytes, cpu_isa_name(isa));
            free(clean[isa]);
        }
        test_case_close(&setup.test);
    }
}

TEST(hostile_params_are_refused)
{
    const struct plan_geometry geometry =
        {.slots = 2, .max_context = 64, .page_tokens = 16, .pages_per_slot = 4, .page_bytes = 65536, .vocab_size = 10};
    const int64_t params[ATTENTION_PARAMS] =
        {4, 0, 8, 2, 64, 16, 4, 65536, 2, DTYPE_F32, DTYPE_F32, 0, test_float_bits(0.125f), 0, 0, 0, DTYPE_F32};
    test_hostile_params(&op_attention, params, &geometry);
    int64_t coded[ATTENTION_PARAMS];
    memcpy(coded, params, sizeof coded);
    coded[ATTENTION_KV_DTYPE] = ENCODING_E4M3_CHANNEL;
    test_hostile_params(&op_attention, coded, &geometry);
    struct plan_geometry small_pages = geometry; /* K and V of a layer: 2 * 16 * 2 * (64 + 4) bytes */
    coded[ATTENTION_PAGE_BYTES] = (int64_t)(small_pages.page_bytes = 4352);
    struct op_demand demands[PLAN_MAX_OPERANDS];
    int demand_count;
    struct status status = {0};
    assert_true(op_demands(&op_attention, TARGET_CPU, coded, &small_pages, demands, &demand_count, &status));
    assert_int_equal(demands[ATTENTION_KV].bytes, 4352);
    small_pages.page_bytes = 4288;
    test_refuses(&op_attention, coded, &small_pages, TEST_CHANGES({ATTENTION_PAGE_BYTES, 4288}));
    test_refuses(&op_attention, params, &geometry,
                 TEST_CHANGES({ATTENTION_HEADS, 7}, {ATTENTION_HEADS, 0}, {ATTENTION_KV_HEADS, 0},
                              {ATTENTION_KV_HEADS, 3}, {ATTENTION_KV_HEADS, 16}, {ATTENTION_HEAD_DIM, 0},
                              {ATTENTION_HEAD_DIM, OP_MAX_HEAD_DIM + 1}, {ATTENTION_PAGE_TOKENS, 32},
                              {ATTENTION_PAGES_PER_SLOT, 3}, {ATTENTION_PAGE_BYTES, 1}, {ATTENTION_SLOT_COUNT, 1},
                              {ATTENTION_KV_DTYPE, DTYPE_I32}, {ATTENTION_KV_DTYPE, ENCODING_INT4_G32},
                              {ATTENTION_KV_DTYPE, ENCODING_E4M3_TENSOR}, {ATTENTION_KV_DTYPE, ENCODING_INT8_G32},
                              {ATTENTION_KV_DTYPE, ENCODING_MXFP8}, {ATTENTION_WINDOW, -1},
                              {ATTENTION_WINDOW, (int64_t)1 << 31}, {ATTENTION_SCALE_BITS, 0},
                              {ATTENTION_SCALE_BITS, 0x7fc00000}, {ATTENTION_SCALE_BITS, 0xbf800000},
                              {ATTENTION_CAP_BITS, -1}, {ATTENTION_HAS_SINKS, 2}));
    struct plan_geometry odd_pages = geometry;
    odd_pages.page_bytes = 65540; /* floats of page 1 would be unaligned on some machines */
    int64_t odd[ATTENTION_PARAMS];
    memcpy(odd, params, sizeof odd);
    test_refuses(&op_attention, odd, &odd_pages, TEST_CHANGES({ATTENTION_PAGE_BYTES, 65540}));
    int64_t latent[ATTENTION_PARAMS];
    memcpy(latent, params, sizeof latent);
    latent[ATTENTION_KV_HEADS] = 1;
    latent[ATTENTION_HEAD_DIM] = 576;
    latent[ATTENTION_VALUE_DIM] = 512;
    struct plan_geometry latent_pages = geometry; /* K of a layer: 16 * 576 * 4 bytes */
    latent[ATTENTION_PAGE_BYTES] = (int64_t)(latent_pages.page_bytes = 36864);
    test_hostile_params(&op_attention, latent, &latent_pages);
    assert_true(op_demands(&op_attention, TARGET_CPU, latent, &latent_pages, demands, &demand_count, &status));
    assert_int_equal(demands[ATTENTION_KV].bytes, 36864);
    test_refuses(&op_attention, latent, &latent_pages,
                 TEST_CHANGES({ATTENTION_VALUE_DIM, 577}, {ATTENTION_VALUE_DIM, 0}, {ATTENTION_VALUE_DIM, -1},
                              {ATTENTION_KV_HEADS, 2}, {ATTENTION_HEAD_DIM, OP_MAX_LATENT_DIM + 2},
                              {ATTENTION_HEAD_DIM, 580}));
    uint64_t bytes;
    struct plan_geometry huge = {.slots = 1, .max_context = 1, .page_tokens = UINT64_MAX, .pages_per_slot = 2};
    assert_false(attention_workspace_bytes(1, 1, 1, &huge, &bytes));
    assert_false(attention_workspace_bytes(UINT64_MAX, UINT64_MAX, 1, &geometry, &bytes));
}

int main(void) { return test_run(); }
