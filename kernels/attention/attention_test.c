/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention.h"
#include "kernels/op/test_support.h"

#include <math.h>

#include "kernels/cpu/pages.h"

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

struct shape {
    int64_t rows, valid, kv_heads, group, head_dim, page_tokens, window;
    uint64_t slots, context;
    enum dtype kv_dtype;
    float scale;
};

/* A launch, with a pool in which every slot's tokens are filled and everything else is poison (NaN). */
struct setup {
    struct test_case test;
    struct shape shape;
    struct pages pages;
    size_t row_floats;
};

static void setup_open(struct setup *setup, struct test_random *random, const struct shape *shape)
{
    setup->shape = *shape;
    const int64_t heads = shape->kv_heads * shape->group;
    size_t element = dtype_bytes(shape->kv_dtype);
    size_t block = (size_t)(2 * shape->kv_heads * shape->page_tokens * shape->head_dim) * element;
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
    };
    struct test_case *test = &setup->test;
    test_case_open(test, &op_attention, params, &geometry, (int32_t)shape->valid);
    size_t pages = geometry.slots * geometry.pages_per_slot;
    test_case_replace(test, ATTENTION_KV, pages * (size_t)geometry.page_bytes, aligned);
    int32_t *table = test->call.operands[ATTENTION_PAGE_TABLE];
    for (size_t i = 0; i < pages; i++) table[i] = (int32_t)i;
    test_shuffle(random, table, pages);
    setup->row_floats = (size_t)(heads * shape->head_dim);
    test_fill(random, test->call.operands[ATTENTION_Q], (size_t)shape->rows * setup->row_floats, DTYPE_F32, -1, 1);
    setup->pages =
        pages_of(test->call.operands[ATTENTION_KV], table, (int64_t)geometry.pages_per_slot, shape->page_tokens,
                 (int64_t)geometry.page_bytes, shape->kv_heads, shape->head_dim * (int64_t)element);
}

/* Row r is at `position` of `slot`; tokens up to there exist. */
static void place_row(struct setup *setup, struct test_random *random, int64_t r, int64_t slot, int64_t position)
{
    ((int32_t *)setup->test.call.operands[ATTENTION_SLOTS])[r] = (int32_t)slot;
    ((int32_t *)setup->test.call.operands[ATTENTION_POSITIONS])[r] = (int32_t)position;
    size_t count = (size_t)setup->shape.head_dim;
    for (int64_t t = 0; t <= position; t++) {
        for (int64_t g = 0; g < setup->shape.kv_heads; g++) {
            uint8_t *key = pages_key(&setup->pages, slot, t, g);
            if (!test_is_poison(key, 2)) continue; /* filled for an earlier row */
            test_fill(random, key, count, setup->shape.kv_dtype, -1, 1);
            test_fill(random, key + setup->pages.values, count, setup->shape.kv_dtype, -1, 1);
        }
    }
}

/* Runs the call; rows beyond the valid ones must stay poisoned. */
static void run_checked(struct setup *setup, enum cpu_isa isa, int members)
{
    struct test_buffer *out = &setup->test.buffers[ATTENTION_OUT];
    test_buffer_poison(out);
    test_buffer_poison(&setup->test.buffers[ATTENTION_WORKSPACE]);
    test_run_op(&op_attention, isa, &setup->test.call, members);
    test_case_assert_intact(&setup->test);
    size_t used = (size_t)setup->shape.valid * setup->row_floats * sizeof(float);
    assert_true(test_is_poison(out->data + used, out->bytes - used));
}

/* Against the reference; the same bits with other teams, in place, and for each of some rows alone. */
static void check_setup(struct setup *setup)
{
    struct test_case *test = &setup->test;
    const int64_t valid = setup->shape.valid;
    size_t count = (size_t)valid * setup->row_floats, bytes = count * sizeof(float);
    size_t row_bytes = setup->row_floats * sizeof(float);
    float *expected = malloc(bytes), *first = malloc(bytes), *q = malloc(bytes);
    float *out = test->call.operands[ATTENTION_OUT];
    memcpy(q, test->call.operands[ATTENTION_Q], bytes);
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
        call.operands[ATTENTION_OUT] = call.operands[ATTENTION_Q];
        test_run_op(&op_attention, isa, &call, 3);
        test_assert_same_bits(call.operands[ATTENTION_Q], first, bytes, "in place");
        memcpy(call.operands[ATTENTION_Q], q, bytes);

        ((int32_t *)call.operands[ATTENTION_COUNTS])[0] = 1;
        call.operands[ATTENTION_OUT] = out;
        for (int64_t r = 0; r < valid; r += 1 + valid / 5) {
            call.operands[ATTENTION_Q] = (float *)test->call.operands[ATTENTION_Q] + (size_t)r * setup->row_floats;
            call.operands[ATTENTION_SLOTS] = (int32_t *)test->call.operands[ATTENTION_SLOTS] + r;
            call.operands[ATTENTION_POSITIONS] = (int32_t *)test->call.operands[ATTENTION_POSITIONS] + r;
            test_run_op(&op_attention, isa, &call, r % 2 ? 1 : 4);
            test_assert_same_bits(out, first + (size_t)r * setup->row_floats, row_bytes, "row alone");
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
    for (int round = 0; round < 72; round++) {
        struct shape shape = {.rows = test_random_range(&random, 1, 6),
                              .kv_heads = test_random_range(&random, 1, 3),
                              .group = test_random_range(&random, 1, 8),
                              .head_dim = head_dims[round % 6],
                              .page_tokens = page_tokens[round % 3],
                              .window = windows[round / 6 % 4],
                              .slots = 6,
                              .context = 700,
                              .kv_dtype = dtypes[round / 2 % 3],
                              .scale = round % 5 ? 0.3f : 2.0f};
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
    for (int round = 0; round < 24; round++) {
        struct shape shape = {.rows = test_random_range(&random, 2, 70),
                              .kv_heads = test_random_range(&random, 1, 2),
                              .group = 1 + round % 8,
                              .head_dim = head_dims[round % 4],
                              .page_tokens = round % 2 ? 16 : 1,
                              .window = windows[round / 4 % 4],
                              .slots = 2,
                              .context = 640,
                              .kv_dtype = dtypes[round % 3],
                              .scale = 0.25f};
        shape.valid = test_random_range(&random, 2, shape.rows);
        struct setup setup;
        setup_open(&setup, &random, &shape);
        for (int64_t r = 0; r < shape.valid; r++) place_row(&setup, &random, r, 1, starts[round % 5] + r);
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
                              .kv_dtype = DTYPE_F32,
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
                          .kv_dtype = DTYPE_F32,
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

TEST(hostile_params_are_refused)
{
    const struct plan_geometry geometry =
        {.slots = 2, .max_context = 64, .page_tokens = 16, .pages_per_slot = 4, .page_bytes = 65536, .vocab_size = 10};
    const int64_t params[ATTENTION_PARAMS] =
        {4, 0, 8, 2, 64, 16, 4, 65536, 2, DTYPE_F32, DTYPE_F32, 0, test_float_bits(0.125f)};
    test_hostile_params(&op_attention, params, &geometry);
    test_refuses(&op_attention, params, &geometry,
                 TEST_CHANGES({ATTENTION_HEADS, 7}, {ATTENTION_HEADS, 0}, {ATTENTION_KV_HEADS, 0},
                              {ATTENTION_KV_HEADS, 3}, {ATTENTION_KV_HEADS, 16}, {ATTENTION_HEAD_DIM, 0},
                              {ATTENTION_HEAD_DIM, OP_MAX_HEAD_DIM + 1}, {ATTENTION_PAGE_TOKENS, 32},
                              {ATTENTION_PAGES_PER_SLOT, 3}, {ATTENTION_PAGE_BYTES, 1}, {ATTENTION_SLOT_COUNT, 1},
                              {ATTENTION_KV_DTYPE, DTYPE_I32}, {ATTENTION_WINDOW, -1},
                              {ATTENTION_WINDOW, (int64_t)1 << 31}, {ATTENTION_SCALE_BITS, 0},
                              {ATTENTION_SCALE_BITS, 0x7fc00000}, {ATTENTION_SCALE_BITS, 0xbf800000}));
    struct plan_geometry odd_pages = geometry;
    odd_pages.page_bytes = 65540; /* floats of page 1 would be unaligned on some machines */
    int64_t odd[ATTENTION_PARAMS];
    memcpy(odd, params, sizeof odd);
    test_refuses(&op_attention, odd, &odd_pages, TEST_CHANGES({ATTENTION_PAGE_BYTES, 65540}));
    uint64_t bytes;
    struct plan_geometry huge = {.slots = 1, .max_context = 1, .page_tokens = UINT64_MAX, .pages_per_slot = 2};
    assert_false(attention_workspace_bytes(1, 1, 1, &huge, &bytes));
    assert_false(attention_workspace_bytes(UINT64_MAX, UINT64_MAX, 1, &geometry, &bytes));
}

int main(void) { return test_run(); }
