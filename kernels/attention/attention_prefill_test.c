/* SPDX-License-Identifier: Apache-2.0 */
/* The device kernels that serve chunks of prompts, attention_prefill and attention_generic, against the reference. */
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_device.h"
#include "kernels/cuda/test_launch.h"

#include <math.h>

#include "kernels/cpu/pages.h"

struct shape {
    int64_t rows, valid;
    int64_t start; /* position of row 0 */
    int64_t kv_heads, group, head_dim, window;
    enum dtype x_dtype, kv_dtype;
    int64_t page_tokens; /* 0: 64 */
    bool scattered;      /* rows of several slots, in no order */
    bool in_place;       /* out is q */
};

enum { SLOTS = 5, MOST_CHECKED_ROWS = 48 };

/* A launch: inputs as the device sees them, and decoded for the reference. In the pool only what a row may see is
 * filled, all else is NaN; page table entries and row data that must not be used are wild. */
struct setup {
    struct shape shape;
    int64_t heads, page_tokens, pages_per_slot, page_bytes, kv_offset, pool_bytes;
    float scale;
    int32_t *slots, *positions, *table;
    uint8_t *pool, *q;
    float *q_decoded;
    size_t q_bytes, q_count;
    struct test_device_buffer counts_device, q_device, slots_device, positions_device, table_device, pool_device,
        out_device;
};

static void fill_token(struct setup *setup, struct test_random *random, int64_t slot, int64_t position)
{
    const struct shape *shape = &setup->shape;
    const size_t element = dtype_bytes(shape->kv_dtype), count = (size_t)shape->head_dim;
    const struct pages pages =
        pages_of(setup->pool + setup->kv_offset, setup->table, setup->pages_per_slot, setup->page_tokens,
                 setup->page_bytes, shape->kv_heads, shape->head_dim * (int64_t)element);
    for (int64_t g = 0; g < shape->kv_heads; g++) {
        uint8_t *key = pages_key(&pages, slot, position, g);
        if (!test_is_poison(key, 4)) continue; /* filled for an earlier row */
        test_fill(random, key, count, shape->kv_dtype, -1, 1);
        test_fill(random, key + pages.values, count, shape->kv_dtype, -1, 1);
    }
}

static struct test_device_buffer upload(const void *from, size_t bytes)
{
    struct test_device_buffer buffer = test_device_buffer_new(bytes);
    test_device_write(&buffer, from, bytes);
    return buffer;
}

static void setup_open(struct setup *setup, struct test_random *random, const struct shape *shape)
{
    const int64_t context = shape->start + shape->rows;
    *setup = (struct setup){.shape = *shape,
                            .heads = shape->kv_heads * shape->group,
                            .page_tokens = shape->page_tokens ? shape->page_tokens : 64,
                            /* Sharper than in models: a few tokens have most of the weight. */
                            .scale = 3 / sqrtf((float)shape->head_dim)};
    const int64_t block =
        2 * shape->kv_heads * setup->page_tokens * shape->head_dim * (int64_t)dtype_bytes(shape->kv_dtype);
    /* Three layers, of which this is the second. */
    const int64_t unit = 64 * shape->head_dim;
    setup->kv_offset = (block + unit - 1) / unit * unit;
    setup->page_bytes = 3 * setup->kv_offset;
    setup->pages_per_slot = (context + setup->page_tokens - 1) / setup->page_tokens + 2;
    const int64_t pages = SLOTS * setup->pages_per_slot;
    setup->pool_bytes = pages * setup->page_bytes;
    setup->pool = malloc((size_t)setup->pool_bytes);
    memset(setup->pool, 0xff, (size_t)setup->pool_bytes);
    setup->table = malloc((size_t)pages * sizeof *setup->table);
    for (int64_t i = 0; i < pages; i++) setup->table[i] = (int32_t)i;
    for (int64_t i = pages - 1; i > 0; i--) {
        int64_t j = test_random_range(random, 0, i);
        int32_t page = setup->table[i];
        setup->table[i] = setup->table[j];
        setup->table[j] = page;
    }

    setup->slots = malloc((size_t)shape->rows * sizeof *setup->slots);
    setup->positions = malloc((size_t)shape->rows * sizeof *setup->positions);
    int64_t longest[SLOTS] = {0}; /* tokens */
    int64_t slot = 3;
    for (int64_t r = 0; r < shape->rows; r++) {
        if (shape->scattered && test_random_range(random, 0, 2) == 0) slot = test_random_range(random, 0, SLOTS - 1);
        int64_t position = shape->scattered ? test_random_range(random, 0, shape->start + 7) : shape->start + r;
        setup->slots[r] = r < shape->valid ? (int32_t)slot : INT32_MAX;
        setup->positions[r] = r < shape->valid ? (int32_t)position : INT32_MIN;
        if (r >= shape->valid) continue;
        for (int64_t t = longest[slot]; t <= position; t++) fill_token(setup, random, slot, t);
        if (position >= longest[slot]) longest[slot] = position + 1;
    }
    for (int64_t s = 0; s < SLOTS; s++)
        for (int64_t p = (longest[s] + setup->page_tokens - 1) / setup->page_tokens; p < setup->pages_per_slot; p++)
            setup->table[s * setup->pages_per_slot + p] = p % 2 ? INT32_MAX : -9;

    setup->q_count = (size_t)(shape->rows * setup->heads * shape->head_dim);
    setup->q_bytes = setup->q_count * dtype_bytes(shape->x_dtype);
    setup->q = malloc(setup->q_bytes);
    setup->q_decoded = malloc(setup->q_count * sizeof(float));
    test_fill(random, setup->q, setup->q_count, shape->x_dtype, -1, 1);
    for (size_t i = 0; i < setup->q_count; i++) setup->q_decoded[i] = op_element(setup->q, (int64_t)i, shape->x_dtype);

    const int32_t counts[2] = {(int32_t)shape->valid, 0};
    setup->counts_device = upload(counts, sizeof counts);
    setup->q_device = upload(setup->q, setup->q_bytes);
    setup->slots_device = upload(setup->slots, (size_t)shape->rows * sizeof *setup->slots);
    setup->positions_device = upload(setup->positions, (size_t)shape->rows * sizeof *setup->positions);
    setup->table_device = upload(setup->table, (size_t)pages * sizeof *setup->table);
    setup->pool_device = upload(setup->pool, (size_t)setup->pool_bytes);
    setup->out_device = test_device_buffer_new(setup->q_bytes);
}

static void setup_close(struct setup *setup)
{
    struct test_device_buffer *buffers[] = {&setup->counts_device,    &setup->q_device,     &setup->slots_device,
                                            &setup->positions_device, &setup->table_device, &setup->pool_device,
                                            &setup->out_device};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        test_device_assert_intact(buffers[i], "operand");
        test_device_buffer_free(buffers[i]);
    }
    free(setup->pool);
    free(setup->table);
    free(setup->slots);
    free(setup->positions);
    free(setup->q);
    free(setup->q_decoded);
}

static void problem_of(const struct setup *setup, int64_t params[PLAN_MAX_PARAMS])
{
    const struct shape *shape = &setup->shape;
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    params[ATTENTION_DEVICE_ROWS] = shape->rows;
    params[ATTENTION_DEVICE_HEADS] = setup->heads;
    params[ATTENTION_DEVICE_KV_HEADS] = shape->kv_heads;
    params[ATTENTION_DEVICE_HEAD_DIM] = shape->head_dim;
    params[ATTENTION_DEVICE_PAGE_TOKENS] = setup->page_tokens;
    params[ATTENTION_SCATTERED] = shape->scattered;
    params[ATTENTION_DEVICE_PAGES_PER_SLOT] = setup->pages_per_slot;
    params[ATTENTION_DEVICE_PAGE_BYTES] = setup->page_bytes;
    params[ATTENTION_DEVICE_SLOT_COUNT] = SLOTS;
    params[ATTENTION_DEVICE_KV_DTYPE] = shape->kv_dtype;
    params[ATTENTION_DEVICE_X_DTYPE] = shape->x_dtype;
    params[ATTENTION_DEVICE_WINDOW] = shape->window;
    params[ATTENTION_DEVICE_SCALE_BITS] = test_float_bits(setup->scale);
}

/* The reference for some rows: the first, the last valid ones, and others in between. */
static int64_t reference_rows(const struct setup *setup, struct test_random *random, int64_t rows[MOST_CHECKED_ROWS],
                              float *expected)
{
    const struct shape *shape = &setup->shape;
    const int64_t width = setup->heads * shape->head_dim;
    int64_t count = shape->valid < MOST_CHECKED_ROWS ? shape->valid : MOST_CHECKED_ROWS;
    for (int64_t i = 0; i < count; i++) {
        rows[i] = i;
        if (count == shape->valid || i < 4) continue;
        rows[i] = i < 12 ? shape->valid - 1 - (i - 4) : test_random_range(random, 0, shape->valid - 1);
    }
    float *q = malloc((size_t)(count * width) * sizeof *q);
    int32_t slots[MOST_CHECKED_ROWS], positions[MOST_CHECKED_ROWS], counts[2] = {(int32_t)count, 0};
    for (int64_t i = 0; i < count; i++) {
        memcpy(q + i * width, setup->q_decoded + rows[i] * width, (size_t)width * sizeof *q);
        slots[i] = setup->slots[rows[i]];
        positions[i] = setup->positions[rows[i]];
    }
    const int64_t params[ATTENTION_PARAMS] = {
        [ATTENTION_ROWS] = count,
        [ATTENTION_HEADS] = setup->heads,
        [ATTENTION_KV_HEADS] = shape->kv_heads,
        [ATTENTION_HEAD_DIM] = shape->head_dim,
        [ATTENTION_PAGE_TOKENS] = setup->page_tokens,
        [ATTENTION_PAGES_PER_SLOT] = setup->pages_per_slot,
        [ATTENTION_PAGE_BYTES] = setup->page_bytes,
        [ATTENTION_SLOT_COUNT] = SLOTS,
        [ATTENTION_KV_DTYPE] = shape->kv_dtype,
        [ATTENTION_WINDOW] = shape->window,
        [ATTENTION_SCALE_BITS] = test_float_bits(setup->scale),
    };
    const struct op_call call = {
        .params = params,
        .operands = {counts, q, slots, positions, setup->table, setup->pool + setup->kv_offset, expected, NULL},
    };
    op_attention.reference(&call);
    free(q);
    return count;
}

/* |v| <= 1 and the weights sum to 1. Rounding each weight by at most u of itself moves the result by at most u,
 * rounding the result by u of itself; u = 2^-9 for bf16, 2^-12 for f16. With tf32, weights are cut at 2^-10. f32 inputs
 * are cut by 2^-10, too: a score of up to about 3 moves by 2^-9 of that, which moves the result by no more than
 * 2 * 0.006. What remains (sums of up to 256 products in f32, exp2 to 2^-22) stays below 1e-4. */
static double tolerance(const struct shape *shape)
{
    if (shape->x_dtype == DTYPE_F32 || shape->kv_dtype == DTYPE_F32) return 1.2e-2;
    if (shape->x_dtype != shape->kv_dtype) return 0x1p-10 + 1e-4;
    return (shape->x_dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12) + 1e-4;
}

static void run_candidate(struct setup *setup, const struct device_kernel *kernel, const int64_t *params,
                          const int64_t *rows, int64_t row_count, const float *expected)
{
    const struct shape *shape = &setup->shape;
    const size_t width = (size_t)(setup->heads * shape->head_dim), element = dtype_bytes(shape->x_dtype);
    const uint64_t space_rows =
        (uint64_t)((setup->pool_bytes - setup->kv_offset) / (shape->head_dim * (int64_t)dtype_bytes(shape->kv_dtype)));
    struct test_device_buffer *out = shape->in_place ? &setup->q_device : &setup->out_device;
    const cu_deviceptr operands[ATTENTION_DEVICE_OPERANDS] = {
        setup->counts_device.data,
        setup->q_device.data,
        setup->slots_device.data,
        setup->positions_device.data,
        setup->table_device.data,
        setup->pool_device.data + (cu_deviceptr)setup->kv_offset,
        out->data,
    };
    struct test_kernel test;
    uint8_t *first = malloc(setup->q_bytes), *second = malloc(setup->q_bytes);
    float *found = malloc(width * sizeof *found);
    char what[160];
    snprintf(what, sizeof what, "%s <%d %d %d %d %d %d> rows %d of %d from %d, %d x %d heads of %d, window %d",
             kernel->name, (int)params[13], (int)params[14], (int)params[15], (int)params[16], (int)params[17],
             (int)params[18], (int)shape->valid, (int)shape->rows, (int)shape->start, (int)shape->kv_heads,
             (int)shape->group, (int)shape->head_dim, (int)shape->window);
    test_kernel_open(&test, kernel, params);
    if (test.local_bytes) fail_msg("%s: %d bytes of registers are spilled", what, test.local_bytes);
    test_device_buffer_poison(&setup->out_device);
    test_device_write(&setup->q_device, setup->q, setup->q_bytes);
    test_kernel_run(&test, operands, ATTENTION_DEVICE_OPERANDS, space_rows);
    test_device_read(out, first, setup->q_bytes);
    for (int64_t i = 0; i < row_count; i++) {
        test_decode(first + (size_t)rows[i] * width * element, found, width, shape->x_dtype);
        char row[200];
        snprintf(row, sizeof row, "%s, row %d", what, (int)rows[i]);
        test_assert_close(found, expected + i * (int64_t)width, width, tolerance(shape), 0x1p-9, row);
    }
    test_device_buffer_poison(&setup->out_device);
    test_device_write(&setup->q_device, setup->q, setup->q_bytes);
    test_kernel_run(&test, operands, ATTENTION_DEVICE_OPERANDS, space_rows);
    test_device_read(out, second, setup->q_bytes);
    test_assert_same_bits(second, first, (size_t)shape->valid * width * element, what);
    for (size_t i = (size_t)shape->valid * width * element; i < setup->q_bytes; i++) {
        uint8_t expected_byte = shape->in_place ? setup->q[i] : 0xff;
        if (second[i] != expected_byte) fail_msg("%s: a row that is not valid was written", what);
    }
    test_kernel_close(&test);
    free(first);
    free(second);
    free(found);
}

typedef int candidates_function(const int64_t *params, const struct device_facts *gpu,
                                int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);

/* Up to `most` candidates of the kernel, of which there must be one at least. */
static void check_shape(struct test_random *random, const struct shape *shape, const struct device_kernel *kernel,
                        candidates_function *candidates, int most)
{
    enum { MOST_CANDIDATES = 16 };
    int64_t params[PLAN_MAX_PARAMS], list[MOST_CANDIDATES][PLAN_MAX_PARAMS], rows[MOST_CHECKED_ROWS];
    struct setup setup;
    setup_open(&setup, random, shape);
    problem_of(&setup, params);
    float *expected = malloc(MOST_CHECKED_ROWS * (size_t)(setup.heads * shape->head_dim) * sizeof *expected);
    int64_t row_count = reference_rows(&setup, random, rows, expected);
    int count = candidates(params, &test_device()->device.facts, list, most < MOST_CANDIDATES ? most : MOST_CANDIDATES);
    assert_true(count >= 1);
    for (int i = 0; i < count; i++) run_candidate(&setup, kernel, list[i], rows, row_count, expected);
    free(expected);
    setup_close(&setup);
}

/* rows, valid, start, kv_heads, group, head_dim, window, x_dtype, kv_dtype, page_tokens, scattered, in_place */
TEST(generic_equals_reference)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {11};
    static const struct shape all_candidates = {100, 93, 50, 2, 4, 128, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false};
    static const struct shape shapes[] = {
        {16, 16, 0, 2, 4, 64, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {1, 1, 200, 3, 1, 128, 0, DTYPE_F16, DTYPE_F16, 0, false, false},
        {64, 64, 1000, 1, 7, 80, 0, DTYPE_BF16, DTYPE_BF16, 0, false, true},
        {40, 37, 100, 2, 2, 96, 16, DTYPE_F16, DTYPE_F16, 16, false, false},
        {20, 20, 130, 1, 8, 256, 100, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {33, 31, 90, 2, 4, 128, 0, DTYPE_BF16, DTYPE_BF16, 0, true, false},
        {64, 60, 90, 1, 1, 64, 30, DTYPE_F16, DTYPE_F16, 32, true, true},
        {24, 24, 70, 2, 3, 2, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {24, 20, 70, 2, 3, 6, 0, DTYPE_F16, DTYPE_F16, 0, true, false},
        {24, 24, 70, 1, 2, 250, 0, DTYPE_BF16, DTYPE_BF16, 48, false, false},
        {24, 24, 70, 2, 2, 36, 0, DTYPE_BF16, DTYPE_F16, 0, false, false},
        {24, 23, 170, 2, 2, 128, 0, DTYPE_F16, DTYPE_BF16, 0, true, false},
        {24, 24, 70, 1, 4, 64, 0, DTYPE_F32, DTYPE_F32, 0, false, false},
        {24, 24, 70, 1, 2, 18, 0, DTYPE_F32, DTYPE_BF16, 0, false, true},
        {24, 24, 70, 1, 4, 256, 0, DTYPE_BF16, DTYPE_F32, 0, false, false},
    };
    check_shape(&random, &all_candidates, &device_attention_generic, attention_generic_candidates, 16);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_shape(&random, &shapes[i], &device_attention_generic, attention_generic_candidates, 1 + (int)(i % 2));
}

TEST(prefill_equals_reference)
{
    TEST_NEEDS_DEVICE();
    if (test_device()->device.facts.capability != 90) skip();
    struct test_random random = {12};
    static const struct shape all_candidates[] = {
        {300, 290, 100, 2, 4, 128, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {500, 450, 1000, 2, 4, 64, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        /* More tiles than SMs: persistent blocks with two pieces of work. */
        {300, 290, 100, 6, 8, 128, 0, DTYPE_BF16, DTYPE_BF16, 0, false, true},
        {1024, 1000, 50, 4, 8, 64, 0, DTYPE_F16, DTYPE_F16, 0, false, false},
        {300, 300, 1, 6, 8, 64, 40, DTYPE_BF16, DTYPE_BF16, 0, false, false},
    };
    static const struct shape shapes[] = {
        {16, 16, 0, 2, 4, 128, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {64, 64, 0, 1, 1, 64, 0, DTYPE_F16, DTYPE_F16, 0, false, false},
        {128, 128, 1000, 2, 2, 128, 0, DTYPE_F16, DTYPE_F16, 0, false, true},
        {256, 129, 64, 1, 7, 64, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {1024, 1024, 0, 1, 8, 128, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {1024, 1001, 333, 2, 4, 64, 0, DTYPE_F16, DTYPE_F16, 0, false, false},
        {256, 250, 100, 1, 4, 128, 16, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {400, 400, 1000, 2, 2, 64, 100, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {100, 1, 63, 2, 4, 128, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {200, 200, 65, 1, 2, 16, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {200, 190, 65, 2, 1, 32, 0, DTYPE_F16, DTYPE_F16, 0, false, false},
        {200, 190, 31, 2, 2, 80, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {200, 190, 1, 2, 2, 96, 70, DTYPE_F16, DTYPE_F16, 0, false, true},
        {200, 190, 500, 1, 2, 256, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {300, 270, 33, 6, 8, 16, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {300, 270, 33, 6, 8, 32, 200, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {300, 270, 33, 6, 8, 80, 0, DTYPE_F16, DTYPE_F16, 0, false, false},
        {300, 270, 33, 6, 8, 96, 0, DTYPE_BF16, DTYPE_BF16, 0, false, false},
        {300, 270, 33, 6, 8, 256, 0, DTYPE_F16, DTYPE_F16, 0, false, false},
        {130, 130, 77, 1, 2, 128, 0, DTYPE_BF16, DTYPE_BF16, 16, false, false},
        {130, 130, 77, 1, 2, 64, 0, DTYPE_BF16, DTYPE_BF16, 256, false, false},
    };
    for (size_t i = 0; i < sizeof all_candidates / sizeof all_candidates[0]; i++)
        check_shape(&random, &all_candidates[i], &device_attention_prefill, attention_prefill_candidates, 16);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_shape(&random, &shapes[i], &device_attention_prefill, attention_prefill_candidates, 1 + (int)(i % 3));
}

/* Needs no GPU: parameters at their extremes are refused with a reason, or give a launch within the limits. */
TEST(hostile_params)
{
    const struct device_facts gpu = test_facts(90);
    static const int64_t extremes[] = {INT64_MIN, INT32_MIN,        -1,       0, 1, 3, 1 << 20,
                                       INT32_MAX, (int64_t)1 << 40, INT64_MAX};
    static const int64_t problem[ATTENTION_DEVICE_FIRST_TUNABLE] = {
        2048, 0, 32, 8, 128, 64, 128, 1 << 23, 8, DTYPE_BF16, DTYPE_BF16, 0, 0x3db504f3,
    };
    const struct device_kernel *kernels[] = {&device_attention_generic, &device_attention_prefill};
    candidates_function *functions[] = {attention_generic_candidates, attention_prefill_candidates};
    for (int k = 0; k < 2; k++) {
        int64_t list[8][PLAN_MAX_PARAMS], params[PLAN_MAX_PARAMS];
        struct device_geometry geometry;
        int count = functions[k](problem, &gpu, list, 8);
        assert_true(count >= 3);
        assert_int_equal(functions[k](problem, &gpu, list, 1), 1);
        for (int c = 0; c < count; c++) {
            for (int i = 0; i < device_param_count(kernels[k]); i++) {
                for (size_t e = 0; e < sizeof extremes / sizeof extremes[0]; e++) {
                    memcpy(params, list[0], sizeof params);
                    params[i] = extremes[e];
                    memset(&geometry, 0, sizeof geometry);
                    const char *why = kernels[k]->launch(params, &gpu, &geometry);
                    functions[k](params, &gpu, list + 1, 7);
                    if (why) continue;
                    assert_in_range(geometry.block[0], 32, 1024);
                    assert_in_range(geometry.shared_bytes, 1, 232448);
                    assert_true(geometry.grid[0] >= 1 && geometry.grid[1] >= 1 && geometry.grid[1] <= 65535);
                }
            }
        }
        memcpy(params, list[0], sizeof params);
        assert_null(kernels[k]->launch(params, &gpu, &geometry));
        params[ATTENTION_SCATTERED] = 1;
        assert_int_equal(kernels[k]->launch(params, &gpu, &geometry) != NULL, kernels[k] == &device_attention_prefill);
        test_launch_refuses(kernels[k], list[0],
                            TEST_CHANGES({ATTENTION_DEVICE_ROWS, 0}, {ATTENTION_DEVICE_COUNT_INDEX, 2},
                                         {ATTENTION_DEVICE_HEADS, 31}, {ATTENTION_DEVICE_KV_HEADS, 0},
                                         {ATTENTION_DEVICE_HEAD_DIM, 127}, {ATTENTION_DEVICE_HEAD_DIM, 258},
                                         {ATTENTION_DEVICE_PAGE_TOKENS, 0}, {ATTENTION_DEVICE_PAGE_BYTES, 8},
                                         {ATTENTION_DEVICE_PAGES_PER_SLOT, 0}, {ATTENTION_DEVICE_SLOT_COUNT, 0},
                                         {ATTENTION_DEVICE_KV_DTYPE, 0}, {ATTENTION_DEVICE_X_DTYPE, 4},
                                         {ATTENTION_DEVICE_WINDOW, -1}, {ATTENTION_DEVICE_SCALE_BITS, 0},
                                         {ATTENTION_DEVICE_FIRST_TUNABLE, 0}, {ATTENTION_DEVICE_FIRST_TUNABLE + 1, 8}));
    }
}

int main(void) { return test_run(); }
