/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN against the reference, if there are a GPU and the library; refusals, everywhere. */
#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/attention/attention_cudnn_calls.h"
#include "kernels/attention/attention_cudnn_layout.cuh"
#include "kernels/attention/test_attention.h"

enum { CAPTURE_MODE_RELAXED = 2 };

/* As in attention_prefill_test.c: p and the result are rounded. */
static double tolerance(const struct attention_shape *shape)
{
    return (shape->x_dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12) + 1e-4;
}

/* The pool is unchanged, except v after the last token, up to the end of the last page: zeros. */
static void check_pool(struct attention_setup *setup)
{
    const struct attention_shape *shape = &setup->shape;
    const struct test_device_buffer *pool = &setup->launch.device[ATTENTION_KV];
    struct test_memory memory = {.count = 0};
    uint8_t *expected = test_take(&memory, pool->bytes), *found = test_take(&memory, pool->bytes);
    memcpy(expected, setup->launch.host[ATTENTION_KV], pool->bytes);
    const struct pages pages = attention_setup_pages(setup, expected);
    for (int64_t t = shape->start + shape->valid; t % setup->page_tokens; t++)
        for (int64_t g = 0; g < shape->kv_heads; g++)
            memset(pages_key(&pages, ATTENTION_TEST_SLOT, t, g) + pages.values, 0, (size_t)shape->head_dim * 2);
    test_device_read(pool, found, pool->bytes);
    test_assert_same_bits(found, expected, pool->bytes, "the pool");
    test_release(&memory);
}

static void check(cu_result result, const char *what)
{
    struct status status = {0};
    if (!cuda_ok(&test_device()->device.driver, result, &status, "%s", what)) fail_msg("%s", status.message);
}

/* Both launches, the second captured as the runtime does it, on a stream that is gone before the graph runs: sessions
 * come and go, the calls stay. */
static void run(struct attention_setup *setup, struct attention_cudnn_calls *calls, const struct engine_call *call,
                struct test_kernel *inputs, const struct test_device_buffer *workspace, const char *what)
{
    const struct cuda_driver *driver = &test_device()->device.driver;
    const cu_stream stream = test_device()->device.stream;
    struct test_launch *launch = &setup->launch;
    const cu_deviceptr of_inputs[ATTENTION_CUDNN_INPUTS_OPERANDS] = {launch->addresses[ATTENTION_COUNTS],
                                                                     launch->addresses[ATTENTION_SLOTS],
                                                                     launch->addresses[ATTENTION_POSITIONS],
                                                                     launch->addresses[ATTENTION_PAGE_TABLE],
                                                                     launch->addresses[ATTENTION_KV],
                                                                     workspace->data};
    cu_deviceptr operands[PLAN_MAX_OPERANDS];
    operands[test_launch_list(launch, operands)] = workspace->data;
    cu_stream captured = NULL;
    struct status status = {0};
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    test_launch_write(launch);
    test_kernel_run(inputs, of_inputs, ATTENTION_CUDNN_INPUTS_OPERANDS, 0);
    check(driver->StreamCreate(&captured, CU_STREAM_NON_BLOCKING), "a stream");
    check(driver->StreamBeginCapture(captured, CAPTURE_MODE_RELAXED), "capturing");
    bool ok = attention_cudnn_calls_run(calls, launch->params, call, operands, launch->device[ATTENTION_KV].bytes,
                                        captured, &status);
    check(driver->StreamEndCapture(captured, &graph), "capturing");
    check(driver->StreamDestroy(captured), "freeing");
    if (!ok) fail_msg("%s: %s", what, status.message);
    check(driver->GraphInstantiate(&exec, graph, 0), "instantiating");
    check(driver->GraphLaunch(exec, stream), what);
    check(driver->StreamSynchronize(stream), what);
    check(driver->GraphExecDestroy(exec), "freeing");
    check(driver->GraphDestroy(graph), "freeing");
    test_launch_read(launch);
}

static void check_plan(struct attention_setup *setup, struct cudnn *cudnn, const struct attention_cudnn_blob *blob)
{
    struct test_launch *launch = &setup->launch;
    struct status status = {0};
    struct test_kernel inputs;
    int64_t inputs_params[PLAN_MAX_PARAMS] = {0};
    const struct engine_call call = {.library = LIBRARY_CUDNN, .data = blob->data, .bytes = blob->bytes};
    struct attention_cudnn_calls *calls = attention_cudnn_calls_new(cudnn, &status);
    if (!calls || !attention_cudnn_calls_check(calls, launch->params, &call, &status))
        fail_msg("%s: %s", blob->name, status.message);
    struct test_device_buffer workspace =
        test_device_buffer_new(attention_cudnn_operand_bytes(launch->params, &call, ATTENTION_CUDNN_WORKSPACE));
    attention_cudnn_inputs_params(launch->params, inputs_params);
    test_kernel_open(&inputs, &device_attention_cudnn_inputs, inputs_params);

    const size_t bytes = launch->device[ATTENTION_OUT].bytes;
    const size_t done = bytes / (size_t)setup->shape.rows * (size_t)setup->shape.valid;
    const uint8_t *found = launch->found[ATTENTION_OUT];
    struct test_memory memory = {.count = 0};
    void *first = test_take(&memory, bytes);
    run(setup, calls, &call, &inputs, &workspace, blob->name);
    memcpy(first, found, bytes);
    check_pool(setup);
    attention_setup_check(setup, tolerance(&setup->shape), blob->name);
    run(setup, calls, &call, &inputs, &workspace, blob->name);
    test_assert_same_bits(found, first, done, blob->name);
    for (size_t i = done; i < bytes; i++)
        if (found[i] != 0 && found[i] != 0xff) fail_msg("%s: a row that is not valid has a result", blob->name);
    test_release(&memory);
    test_kernel_close(&inputs);
    test_device_assert_intact(&workspace, blob->name);
    test_device_buffer_free(&workspace);
    attention_cudnn_calls_free(calls);
}

TEST(equals_reference)
{
    enum { MOST_PLANS = 2 };
    /* rows, valid, start, kv_heads, group, head_dim, window, x_dtype, kv_dtype, page_tokens */
    static const struct attention_shape shapes[] = {
        {512, 512, 188, 8, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 64, .in_place = false},
        {512, 500, 200, 2, 4, 64, 0, DTYPE_BF16, ENCODING_BF16, 64, .in_place = false},
        {512, 333, 300, 2, 4, 128, 100, DTYPE_BF16, ENCODING_BF16, 64, .in_place = false},
        {256, 250, 700, 1, 7, 128, 0, DTYPE_F16, ENCODING_F16, 16, .in_place = false},
        {200, 190, 31, 2, 4, 80, 0, DTYPE_BF16, ENCODING_BF16, 128, .in_place = false},
        {100, 1, 63, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 64, .in_place = false},
        {256, 250, 100, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 64, .in_place = true},
        {128, 128, 0, 3, 3, 64, 1, DTYPE_F16, ENCODING_F16, 32, .in_place = false},
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
        struct attention_setup setup;
        struct attention_shape shape = shapes[i];
        int count = 0;
        shape.nan_rows = true;
        shape.count_index = 1;
        attention_setup_open(&setup, &random, &shape);
        if (!attention_cudnn_enumerate(&cudnn, setup.launch.params, blobs, MOST_PLANS, &count, &status))
            fail_msg("%s", status.message);
        assert_true(count >= 1);
        for (int b = 0; b < count; b++) {
            check_plan(&setup, &cudnn, &blobs[b]);
            attention_cudnn_blob_free(&blobs[b]);
        }
        test_launch_close(&setup.launch);
    }
    cudnn_close(&cudnn);
}

static const int64_t problem[ATTENTION_PARAMS] = {
    2048, 0, 32, 8, 128, 64, 128, 1 << 23, 8, DTYPE_BF16, ENCODING_BF16, 0, 0x3db504f3, 0, 0, 0, DTYPE_F32,
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
    for (int i = 0; i < ATTENTION_PARAMS; i++)
        for (size_t e = 0; e < sizeof extremes / sizeof extremes[0]; e++) {
            int64_t params[ATTENTION_PARAMS];
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
