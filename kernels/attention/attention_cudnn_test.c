/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN against the reference, if there are a GPU and the library; refusals, everywhere. */
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/attention/attention_cudnn_calls.h"
#include "kernels/attention/attention_cudnn_layout.cuh"
#include "kernels/cuda/test_device.h"

#include <math.h>

#include "kernels/cpu/pages.h"

struct shape {
    int64_t rows, valid;
    int64_t start; /* position of row 0 */
    int64_t kv_heads, group, head_dim, page_tokens, window;
    enum dtype dtype;
    bool in_place; /* out is q */
};

enum { SLOTS = 5, SLOT = 3, MOST_CHECKED_ROWS = 24, CAPTURE_MODE_RELAXED = 2 };

/* A launch. In the pool only what a row may see is filled, all else is NaN; page table entries and row data that must
 * not be used are wild. */
struct setup {
    struct shape shape;
    int64_t heads, pages_per_slot, page_bytes, kv_offset, pool_bytes;
    float scale;
    int64_t params[ATTENTION_DEVICE_FIRST_TUNABLE];
    int32_t *slots, *positions, *table;
    uint8_t *pool, *q;
    float *q_decoded;
    size_t q_bytes;
    struct test_device_buffer counts_device, q_device, slots_device, positions_device, table_device, pool_device,
        out_device;
};

static struct test_device_buffer upload(const void *from, size_t bytes)
{
    struct test_device_buffer buffer = test_device_buffer_new(bytes);
    test_device_write(&buffer, from, bytes);
    return buffer;
}

static struct pages pages_in(const struct setup *setup, uint8_t *pool)
{
    const struct shape *shape = &setup->shape;
    return pages_of(pool + setup->kv_offset, setup->table, setup->pages_per_slot, shape->page_tokens, setup->page_bytes,
                    shape->kv_heads, shape->head_dim * 2);
}

static void fill_pool(struct setup *setup, struct test_random *random)
{
    const struct shape *shape = &setup->shape;
    const struct pages pages = pages_in(setup, setup->pool);
    for (int64_t t = 0; t < shape->start + shape->valid; t++)
        for (int64_t g = 0; g < shape->kv_heads; g++) {
            uint8_t *key = pages_key(&pages, SLOT, t, g);
            test_fill(random, key, (size_t)shape->head_dim, shape->dtype, -1, 1);
            test_fill(random, key + pages.values, (size_t)shape->head_dim, shape->dtype, -1, 1);
        }
}

static void setup_open(struct setup *setup, struct test_random *random, const struct shape *shape)
{
    const int64_t block = 4 * shape->kv_heads * shape->page_tokens * shape->head_dim;
    const int64_t used = (shape->start + shape->valid + shape->page_tokens - 1) / shape->page_tokens;
    *setup = (struct setup){.shape = *shape,
                            .heads = shape->kv_heads * shape->group,
                            .pages_per_slot = (shape->start + shape->rows) / shape->page_tokens + 3,
                            .page_bytes = 3 * block, /* three layers, of which this is the second */
                            .kv_offset = block,
                            .scale = 3 / sqrtf((float)shape->head_dim)};
    const int64_t pages = SLOTS * setup->pages_per_slot;
    setup->pool_bytes = pages * setup->page_bytes;
    setup->pool = malloc((size_t)setup->pool_bytes);
    memset(setup->pool, 0xff, (size_t)setup->pool_bytes);
    setup->table = malloc((size_t)pages * sizeof *setup->table);
    for (int64_t i = 0; i < pages; i++) setup->table[i] = i % 2 ? INT32_MAX : -9;
    for (int64_t i = 0; i < used; i++) /* backwards, every other page */
        setup->table[SLOT * setup->pages_per_slot + i] = (int32_t)(pages - 1 - 2 * i);
    fill_pool(setup, random);

    setup->slots = malloc((size_t)shape->rows * sizeof *setup->slots);
    setup->positions = malloc((size_t)shape->rows * sizeof *setup->positions);
    for (int64_t r = 0; r < shape->rows; r++) {
        setup->slots[r] = r < shape->valid ? SLOT : INT32_MAX;
        setup->positions[r] = r < shape->valid ? (int32_t)(shape->start + r) : INT32_MIN;
    }
    const size_t width = (size_t)(setup->heads * shape->head_dim), count = (size_t)shape->rows * width;
    setup->q_bytes = count * 2;
    setup->q = malloc(setup->q_bytes);
    setup->q_decoded = malloc(count * sizeof(float));
    memset(setup->q, 0xff, setup->q_bytes);
    test_fill(random, setup->q, (size_t)shape->valid * width, shape->dtype, -1, 1);
    test_decode(setup->q, setup->q_decoded, count, shape->dtype);

    const int32_t counts[2] = {0, (int32_t)shape->valid};
    setup->counts_device = upload(counts, sizeof counts);
    setup->q_device = upload(setup->q, setup->q_bytes);
    setup->slots_device = upload(setup->slots, (size_t)shape->rows * sizeof *setup->slots);
    setup->positions_device = upload(setup->positions, (size_t)shape->rows * sizeof *setup->positions);
    setup->table_device = upload(setup->table, (size_t)pages * sizeof *setup->table);
    setup->pool_device = test_device_buffer_new((size_t)setup->pool_bytes);
    setup->out_device = test_device_buffer_new(setup->q_bytes);
    const int64_t params[ATTENTION_DEVICE_FIRST_TUNABLE] = {
        [ATTENTION_DEVICE_ROWS] = shape->rows,
        [ATTENTION_DEVICE_COUNT_INDEX] = 1,
        [ATTENTION_DEVICE_HEADS] = setup->heads,
        [ATTENTION_DEVICE_KV_HEADS] = shape->kv_heads,
        [ATTENTION_DEVICE_HEAD_DIM] = shape->head_dim,
        [ATTENTION_DEVICE_PAGE_TOKENS] = shape->page_tokens,
        [ATTENTION_DEVICE_PAGES_PER_SLOT] = setup->pages_per_slot,
        [ATTENTION_DEVICE_PAGE_BYTES] = setup->page_bytes,
        [ATTENTION_DEVICE_SLOT_COUNT] = SLOTS,
        [ATTENTION_DEVICE_KV_DTYPE] = shape->dtype,
        [ATTENTION_DEVICE_X_DTYPE] = shape->dtype,
        [ATTENTION_DEVICE_WINDOW] = shape->window,
        [ATTENTION_DEVICE_SCALE_BITS] = test_float_bits(setup->scale),
    };
    memcpy(setup->params, params, sizeof params);
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

/* The reference's result for some rows, the first and the last among them. Returns how many. */
static int64_t reference_rows(const struct setup *setup, int64_t *rows, float *expected)
{
    const struct shape *shape = &setup->shape;
    const int64_t width = setup->heads * shape->head_dim;
    int64_t count = shape->valid < MOST_CHECKED_ROWS ? shape->valid : MOST_CHECKED_ROWS;
    float *q = malloc((size_t)(count * width) * sizeof *q);
    int32_t slots[MOST_CHECKED_ROWS], positions[MOST_CHECKED_ROWS], counts[2] = {(int32_t)count, 0};
    for (int64_t i = 0; i < count; i++) {
        rows[i] = count == 1 ? 0 : i * (shape->valid - 1) / (count - 1);
        memcpy(q + i * width, setup->q_decoded + rows[i] * width, (size_t)width * sizeof *q);
        slots[i] = setup->slots[rows[i]];
        positions[i] = setup->positions[rows[i]];
    }
    const int64_t params[ATTENTION_PARAMS] = {
        [ATTENTION_ROWS] = count,
        [ATTENTION_HEADS] = setup->heads,
        [ATTENTION_KV_HEADS] = shape->kv_heads,
        [ATTENTION_HEAD_DIM] = shape->head_dim,
        [ATTENTION_PAGE_TOKENS] = shape->page_tokens,
        [ATTENTION_PAGES_PER_SLOT] = setup->pages_per_slot,
        [ATTENTION_PAGE_BYTES] = setup->page_bytes,
        [ATTENTION_SLOT_COUNT] = SLOTS,
        [ATTENTION_KV_DTYPE] = shape->dtype,
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

/* As in attention_prefill_test.c: p and the result are rounded. */
static double tolerance(const struct shape *shape) { return (shape->dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12) + 1e-4; }

/* The pool is unchanged, except v after the last token, up to the end of the last page: zeros. */
static void check_pool(const struct setup *setup)
{
    const struct shape *shape = &setup->shape;
    const int64_t tokens = shape->start + shape->valid;
    uint8_t *expected = malloc((size_t)setup->pool_bytes), *found = malloc((size_t)setup->pool_bytes);
    memcpy(expected, setup->pool, (size_t)setup->pool_bytes);
    const struct pages pages = pages_in(setup, expected);
    for (int64_t t = tokens; t % shape->page_tokens; t++)
        for (int64_t g = 0; g < shape->kv_heads; g++)
            memset(pages_key(&pages, SLOT, t, g) + pages.values, 0, (size_t)shape->head_dim * 2);
    test_device_read(&setup->pool_device, found, (size_t)setup->pool_bytes);
    test_assert_same_bits(found, expected, (size_t)setup->pool_bytes, "the pool");
    free(expected);
    free(found);
}

static void check(cu_result result, const char *what)
{
    struct status status = {0};
    if (!cuda_ok(&test_device()->device.driver, result, &status, "%s", what)) fail_msg("%s", status.message);
}

/* Both launches, the second captured as the runtime does it, on a stream that is gone before the graph runs: sessions
 * come and go, the calls stay. */
static void run(struct setup *setup, struct attention_cudnn_calls *calls, const struct engine_call *call,
                struct test_kernel *inputs, const struct test_device_buffer *workspace, const char *what)
{
    const struct cuda_driver *driver = &test_device()->device.driver;
    const cu_stream stream = test_device()->device.stream;
    cu_stream captured = NULL;
    const cu_deviceptr kv = setup->pool_device.data + (cu_deviceptr)setup->kv_offset;
    const cu_deviceptr out = setup->shape.in_place ? setup->q_device.data : setup->out_device.data;
    const cu_deviceptr of_inputs[ATTENTION_CUDNN_INPUTS_OPERANDS] = {setup->counts_device.data,
                                                                     setup->slots_device.data,
                                                                     setup->positions_device.data,
                                                                     setup->table_device.data,
                                                                     kv,
                                                                     workspace->data};
    const cu_deviceptr operands[ATTENTION_CUDNN_OPERANDS] = {setup->counts_device.data,
                                                             setup->q_device.data,
                                                             setup->slots_device.data,
                                                             setup->positions_device.data,
                                                             setup->table_device.data,
                                                             kv,
                                                             out,
                                                             workspace->data};
    struct status status = {0};
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    test_device_buffer_poison(&setup->out_device);
    test_device_write(&setup->q_device, setup->q, setup->q_bytes);
    test_device_write(&setup->pool_device, setup->pool, (size_t)setup->pool_bytes);
    test_kernel_run(inputs, of_inputs, ATTENTION_CUDNN_INPUTS_OPERANDS, 0);
    check(driver->StreamCreate(&captured, CU_STREAM_NON_BLOCKING), "a stream");
    check(driver->StreamBeginCapture(captured, CAPTURE_MODE_RELAXED), "capturing");
    bool ok =
        attention_cudnn_calls_run(calls, setup->params, call, operands, (uint64_t)setup->pool_bytes, captured, &status);
    check(driver->StreamEndCapture(captured, &graph), "capturing");
    check(driver->StreamDestroy(captured), "freeing");
    if (!ok) fail_msg("%s: %s", what, status.message);
    check(driver->GraphInstantiate(&exec, graph, 0), "instantiating");
    check(driver->GraphLaunch(exec, stream), what);
    check(driver->StreamSynchronize(stream), what);
    check(driver->GraphExecDestroy(exec), "freeing");
    check(driver->GraphDestroy(graph), "freeing");
}

static void check_plan(struct setup *setup, struct cudnn *cudnn, const struct attention_cudnn_blob *blob,
                       const int64_t *rows, int64_t row_count, const float *expected)
{
    const struct shape *shape = &setup->shape;
    const size_t width = (size_t)(setup->heads * shape->head_dim), row_bytes = width * 2;
    struct test_device_buffer *out = shape->in_place ? &setup->q_device : &setup->out_device;
    struct status status = {0};
    struct test_kernel inputs;
    int64_t inputs_params[PLAN_MAX_PARAMS] = {0};
    char what[320];
    snprintf(what, sizeof what, "%s: rows %d of %d from %d, %d x %d heads of %d, window %d", blob->name,
             (int)shape->valid, (int)shape->rows, (int)shape->start, (int)shape->kv_heads, (int)shape->group,
             (int)shape->head_dim, (int)shape->window);
    const struct engine_call call = {.library = LIBRARY_CUDNN, .data = blob->data, .bytes = blob->bytes};
    struct attention_cudnn_calls *calls = attention_cudnn_calls_new(cudnn, &status);
    if (!calls || !attention_cudnn_calls_check(calls, setup->params, &call, &status))
        fail_msg("%s: %s", what, status.message);
    struct test_device_buffer workspace =
        test_device_buffer_new(attention_cudnn_operand_bytes(setup->params, &call, ATTENTION_CUDNN_WORKSPACE));
    attention_cudnn_inputs_params(setup->params, inputs_params);
    test_kernel_open(&inputs, &device_attention_cudnn_inputs, inputs_params);

    uint8_t *first = malloc(setup->q_bytes), *second = malloc(setup->q_bytes);
    float *found = malloc(width * sizeof *found);
    run(setup, calls, &call, &inputs, &workspace, what);
    test_device_read(out, first, setup->q_bytes);
    check_pool(setup);
    for (int64_t i = 0; i < row_count; i++) {
        char row[360];
        test_decode(first + (size_t)rows[i] * row_bytes, found, width, shape->dtype);
        snprintf(row, sizeof row, "%s, row %d", what, (int)rows[i]);
        test_assert_close(found, expected + (size_t)i * width, width, tolerance(shape), 0x1p-9, row);
    }
    run(setup, calls, &call, &inputs, &workspace, what);
    test_device_read(out, second, setup->q_bytes);
    test_assert_same_bits(second, first, (size_t)shape->valid * row_bytes, what);
    for (size_t i = (size_t)shape->valid * row_bytes; i < setup->q_bytes; i++)
        if (second[i] != 0 && second[i] != 0xff) fail_msg("%s: a row that is not valid has a result", what);
    free(first);
    free(second);
    free(found);
    test_kernel_close(&inputs);
    test_device_assert_intact(&workspace, what);
    test_device_buffer_free(&workspace);
    attention_cudnn_calls_free(calls);
}

TEST(equals_reference)
{
    enum { MOST_PLANS = 2 };
    /* rows, valid, start, kv_heads, group, head_dim, page_tokens, window, dtype, in_place */
    static const struct shape shapes[] = {
        {512, 512, 188, 8, 4, 128, 64, 0, DTYPE_BF16, false},   {512, 500, 200, 2, 4, 64, 64, 0, DTYPE_BF16, false},
        {512, 333, 300, 2, 4, 128, 64, 100, DTYPE_BF16, false}, {256, 250, 700, 1, 7, 128, 16, 0, DTYPE_F16, false},
        {200, 190, 31, 2, 4, 80, 128, 0, DTYPE_BF16, false},    {100, 1, 63, 2, 4, 128, 64, 0, DTYPE_BF16, false},
        {256, 250, 100, 2, 4, 128, 64, 0, DTYPE_BF16, true},    {128, 128, 0, 3, 3, 64, 32, 1, DTYPE_F16, false},
    };
    TEST_NEEDS_DEVICE();
    struct test_random random = {21};
    struct cudnn cudnn;
    struct status status = {0};
    if (!cudnn_open(&cudnn, 0, &status)) {
        fprintf(stderr, "skipped: %s\n", status.message);
        skip();
    }
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct attention_cudnn_blob blobs[MOST_PLANS];
        struct setup setup;
        int64_t rows[MOST_CHECKED_ROWS];
        int count = 0;
        setup_open(&setup, &random, &shapes[i]);
        float *expected = malloc(MOST_CHECKED_ROWS * (size_t)(setup.heads * setup.shape.head_dim) * sizeof *expected);
        int64_t row_count = reference_rows(&setup, rows, expected);
        if (!attention_cudnn_enumerate(&cudnn, setup.params, blobs, MOST_PLANS, &count, &status))
            fail_msg("%s", status.message);
        assert_true(count >= 1);
        for (int b = 0; b < count; b++) {
            check_plan(&setup, &cudnn, &blobs[b], rows, row_count, expected);
            attention_cudnn_blob_free(&blobs[b]);
        }
        free(expected);
        setup_close(&setup);
    }
    cudnn_close(&cudnn);
}

static const int64_t problem[ATTENTION_DEVICE_FIRST_TUNABLE] = {
    2048, 0, 32, 8, 128, 64, 128, 1 << 23, 8, DTYPE_BF16, DTYPE_BF16, 0, 0x3db504f3,
};

/* Parameters at their extremes are refused with a reason, or give a workspace of a size that fits. */
TEST(hostile_params)
{
    static const int64_t extremes[] = {INT64_MIN, INT32_MIN,        -1,       0, 1, 3, 1 << 20,
                                       INT32_MAX, (int64_t)1 << 40, INT64_MAX};
    const struct device_facts gpu = {.capability = 90};
    uint64_t bytes = 0;
    assert_null(attention_cudnn_illegal(problem));
    assert_true(attention_cudnn_workspace(problem, 256, &bytes));
    assert_int_equal(bytes, ATTENTION_CUDNN_PAGES_AT + 128 * 4 + 2 * 2048 * 32 * 4 + 256);
    assert_false(attention_cudnn_workspace(problem, UINT64_MAX, &bytes));
    for (int i = 0; i < ATTENTION_DEVICE_FIRST_TUNABLE; i++)
        for (size_t e = 0; e < sizeof extremes / sizeof extremes[0]; e++) {
            int64_t params[ATTENTION_DEVICE_FIRST_TUNABLE];
            memcpy(params, problem, sizeof params);
            params[i] = extremes[e];
            const bool illegal = attention_cudnn_illegal(params) != NULL;
            assert_int_equal(attention_cudnn_workspace(params, 1, &bytes), !illegal);
            if (!illegal) assert_in_range(bytes, 1, (uint64_t)1 << 40);
        }
    int64_t inputs[PLAN_MAX_PARAMS] = {0};
    struct device_geometry geometry;
    attention_cudnn_inputs_params(problem, inputs);
    assert_null(device_attention_cudnn_inputs.launch(inputs, &gpu, &geometry));
    assert_int_equal(geometry.grid[0], 8);
    for (int i = 0; i < ATTENTION_CUDNN_INPUTS_PARAMS; i++)
        for (size_t e = 0; e < sizeof extremes / sizeof extremes[0]; e++) {
            attention_cudnn_inputs_params(problem, inputs);
            inputs[i] = extremes[e];
            if (device_attention_cudnn_inputs.launch(inputs, &gpu, &geometry)) continue;
            assert_in_range(geometry.grid[0], 1, 1 << 12);
        }
}

static void assert_refused(const struct attention_cudnn_header *header, size_t bytes, enum status_code code)
{
    struct cudnn cudnn = {.version = 91900}; /* no function of which may be called */
    struct status status = {0};
    char *blob = malloc(bytes + 1); /* of just this size, so that what reads on is noticed */
    memcpy(blob, header, bytes < sizeof *header ? bytes : sizeof *header);
    if (bytes > sizeof *header) memset(blob + sizeof *header, '{', bytes - sizeof *header);
    assert_null(attention_cudnn_prepare(&cudnn, problem, blob, bytes, &status));
    assert_int_equal(status.code, code);
    free(blob);
}

TEST(hostile_blobs)
{
    enum { PLAN_BYTES = 100 };
    struct attention_cudnn_header good = {.magic = ATTENTION_CUDNN_MAGIC,
                                          .cudnn_version = 91900,
                                          .workspace_bytes = 256,
                                          .plan_bytes = PLAN_BYTES};
    memcpy(good.params, problem, sizeof good.params);
    for (size_t bytes = 0; bytes <= sizeof good + PLAN_BYTES + 1; bytes++)
        if (bytes != sizeof good + PLAN_BYTES) assert_refused(&good, bytes, STATUS_CORRUPT);
    struct attention_cudnn_header bad = good;
    bad.magic ^= 1;
    assert_refused(&bad, sizeof bad + PLAN_BYTES, STATUS_CORRUPT);
    bad = good;
    bad.plan_bytes = UINT64_MAX;
    assert_refused(&bad, sizeof bad + PLAN_BYTES, STATUS_CORRUPT);
    bad.plan_bytes = 0;
    assert_refused(&bad, sizeof bad, STATUS_CORRUPT);
    bad = good;
    bad.workspace_bytes = UINT64_MAX;
    assert_refused(&bad, sizeof bad + PLAN_BYTES, STATUS_CORRUPT);
    bad = good;
    bad.cudnn_version++;
    assert_refused(&bad, sizeof bad + PLAN_BYTES, STATUS_MACHINE);
    for (int i = 0; i < ATTENTION_CUDNN_PROBLEM_PARAMS; i++) {
        bad = good;
        bad.params[i]++;
        assert_refused(&bad, sizeof bad + PLAN_BYTES, STATUS_CORRUPT);
    }
}

int main(void) { return test_run(); }
