/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul by cuBLASLt on the GPU: shapes, epilogues, its favourites and a share of its whole space, calls that are
 * not what they say. */
#include "kernels/matmul/matmul_cublaslt.h"
#include "kernels/matmul/test_matmul_device.h"

/* NULL, and the test skips, where the library is not there. */
static struct cublaslt *open_library(void)
{
    static struct cublaslt library;
    struct status status;
    status_clear(&status);
    struct test_device *test = test_device();
    if (!test || library.library) return test ? &library : NULL;
    assert_true(device_enter(&test->device, &status)); /* for the whole program */
    if (cublaslt_open(&library, 0, &status)) return &library;
    fprintf(stderr, "skipped: %s\n", status.message);
    return NULL;
}

struct call {
    const struct cublaslt *library;
    const int64_t *params;
    struct engine_call call;
    struct test_device_buffer workspace;
};

static void run_call(void *context, const cu_deviceptr *operands, int count)
{
    const struct call *call = context;
    const struct device *device = &test_device()->device;
    cu_deviceptr addresses[PLAN_MAX_OPERANDS];
    struct status status;
    status_clear(&status);
    memcpy(addresses, operands, (size_t)count * sizeof *operands);
    addresses[count] = call->workspace.data;
    if (!matmul_cublaslt_run(call->library, call->params, &call->call, addresses, device->stream, &status))
        fail_msg("%s", status.message);
    assert_int_equal(device->driver.StreamSynchronize(device->stream), CU_SUCCESS);
}

static int check(const struct cublaslt *library, const struct matmul_device_problem *problem, int most, int samples)
{
    int64_t params[PLAN_MAX_PARAMS];
    int64_t(*tactics)[PLAN_MAX_PARAMS] = calloc((size_t)most, sizeof *tactics);
    assert_non_null(tactics);
    matmul_device_problem_params(problem, params);
    int count = matmul_cublaslt_tactics(library, params, tactics, most);
    for (int t = 0; t < count; t++) {
        char what[128];
        struct call call = {.library = library, .params = params, .call = {.library = LIBRARY_CUBLASLT}};
        struct status status;
        status_clear(&status);
        assert_true(device_matmul_cublaslt.call(tactics[t], NULL, 0, &call.call));
        snprintf(what, sizeof what, "cuBLASLt tactic %d of %lld x %lld x %lld", t, (long long)problem->rows,
                 (long long)problem->n, (long long)problem->k);
        if (!matmul_cublaslt_check(library, params, &call.call, &status)) fail_msg("%s: %s", what, status.message);
        uint64_t bytes = matmul_cublaslt_workspace(&call.call);
        call.workspace = test_device_buffer_new(bytes ? bytes : 1);
        matmul_device_check_run(what, params, problem->valid, samples, run_call, &call);
        test_device_assert_intact(&call.workspace, what);
        test_device_buffer_free(&call.workspace);
        free((void *)call.call.data);
    }
    free(tactics);
    return count;
}

TEST(computes_the_contract)
{
    static const struct matmul_device_problem problems[] = {
        {.rows = 1, .n = 512, .k = 256, .dtype = BF16, .out_dtype = BF16},
        {.rows = 7, .n = 1000, .k = 1096, .dtype = BF16, .out_dtype = F32},
        {.rows = 16, .n = 4104, .k = 176, .dtype = F16, .out_dtype = F16, .valid = 9},
        {.rows = 33, .n = 344, .k = 512, .dtype = BF16, .out_dtype = BF16, .bias = BF16},
        {.rows = 64, .n = 512, .k = 512, .dtype = BF16, .out_dtype = F32, .residual = true},
        {.rows = 257, .n = 704, .k = 1024, .dtype = F16, .out_dtype = F32, .residual = true, .valid = 200},
        {.rows = 512, .n = 768, .k = 4096, .dtype = BF16, .out_dtype = BF16},
        {.rows = 16, .n = 512, .k = 512, .dtype = BF16, .out_dtype = BF16, .scale = 0.22f},
        {.rows = 64, .n = 512, .k = 512, .dtype = BF16, .out_dtype = F32, .scale = 0.22f, .residual = true},
    };
    enum { FAVOURITES = 8, SAMPLES = 400 };
    const struct cublaslt *library = open_library();
    if (!library) skip();
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
        assert_true(check(library, &problems[i], FAVOURITES, SAMPLES) > 0);
}

TEST(all_of_its_space)
{
    static const struct matmul_device_problem problem =
        {.rows = 32, .n = 512, .k = 1024, .dtype = BF16, .out_dtype = F32, .residual = true};
    enum { SHARE = 96, SAMPLES = 100 };
    const struct cublaslt *library = open_library();
    if (!library) skip();
    assert_true(check(library, &problem, SHARE, SAMPLES) > SHARE / 4);
}

TEST(refuses_wrong_calls)
{
    static const struct matmul_device_problem problem = {.rows = 16,
                                                         .n = 512,
                                                         .k = 512,
                                                         .dtype = BF16,
                                                         .out_dtype = BF16};
    int64_t params[PLAN_MAX_PARAMS], tactic[1][PLAN_MAX_PARAMS];
    struct engine_call call = {.library = LIBRARY_CUBLASLT};
    struct status status;
    const struct cublaslt *library = open_library();
    if (!library) skip();
    matmul_device_problem_params(&problem, params);
    assert_int_equal(matmul_cublaslt_tactics(library, params, tactic, 1), 1);
    assert_true(device_matmul_cublaslt.call(tactic[0], NULL, 0, &call));
    char *data = (char *)call.data;
    assert_int_equal(call.version, library->version);
    status_clear(&status);
    call.bytes--;
    assert_false(matmul_cublaslt_check(library, params, &call, &status));
    assert_int_equal(status.code, STATUS_CORRUPT);
    call.bytes++;
    memset(data + sizeof(uint64_t), 0xa5, sizeof(struct lt_algorithm));
    status_clear(&status);
    assert_false(matmul_cublaslt_check(library, params, &call, &status));
    assert_int_equal(status.code, STATUS_MACHINE);
    memset(data, 0xff, sizeof(uint64_t)); /* workspace */
    status_clear(&status);
    assert_false(matmul_cublaslt_check(library, params, &call, &status));
    assert_int_equal(status.code, STATUS_CORRUPT);
    free(data);
    params[MATMUL_HAS_NORM] = 1;
    assert_int_equal(matmul_cublaslt_tactics(library, params, tactic, 1), 0);
}

TEST(refuses_a_bias_with_a_scale)
{
    const struct matmul_device_problem problem =
        {.rows = 4, .n = 64, .k = 64, .dtype = BF16, .out_dtype = BF16, .bias = BF16, .scale = 0.22f};
    int64_t params[PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    matmul_device_problem_params(&problem, params);
    assert_string_equal(device_matmul_cublaslt.launch(params, NULL, &geometry), "cuBLASLt adds a bias after the scale");
    params[MATMUL_HAS_BIAS] = 0;
    assert_null(device_matmul_cublaslt.launch(params, NULL, &geometry));
    params[MATMUL_HAS_BIAS] = 1;
    params[MATMUL_SCALE_BITS] = OP_FLOAT_ONE_BITS;
    assert_null(device_matmul_cublaslt.launch(params, NULL, &geometry));
}

int main(void) { return test_run(); }
