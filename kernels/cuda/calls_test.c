/* SPDX-License-Identifier: Apache-2.0 */
/* Library calls with the fake driver and the fake libraries (tests/fake_cuda): calls that are opened, checked, and
 * prepared once. The program runs itself again with their folders in LD_LIBRARY_PATH. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <dlfcn.h>
#include <pthread.h>

#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/attention/attention_cudnn_calls.h"
#include "kernels/cuda/calls.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "kernels/op/op.h"

static const char driver_folder[] = "tests/fake_cuda/whole", library_folder[] = "tests/fake_cuda/libraries";
enum { MODULES = 6 }; /* FAKE_CUDA_LIBRARY of tests/fake_cuda/fake_cuda.h */

static struct test_fake_cuda fake;

static const int64_t problem[ATTENTION_PARAMS] = {
    64, 0, 8, 2, 64, 16, 32, 1 << 17, 4, DTYPE_BF16, DTYPE_BF16, 0, 0x3e000000, 0, 0, 0, DTYPE_F32,
};

/* A prefill plan of one launch that calls cuDNN, and a cuBLASLt call as an engine would also have. */
struct setup {
    struct device device;
    struct engine_call entries[2];
    struct plan_launch launch;
    struct plan_operand operands[ATTENTION_CUDNN_OPERANDS];
    struct plan_param params[PLAN_MAX_PARAMS];
    struct plan plan;
    cu_deviceptr addresses[ATTENTION_CUDNN_OPERANDS];
};

static void make_call(struct setup *setup)
{
    struct cudnn cudnn;
    struct status status = {0};
    struct attention_cudnn_blob blob;
    int64_t params[PLAN_MAX_PARAMS];
    int count = 0;
    assert_true(device_enter(&setup->device, &status));
    if (!cudnn_open(&cudnn, 0, &status) || !attention_cudnn_enumerate(&cudnn, problem, &blob, 1, &count, &status))
        fail_msg("%s", status.message);
    assert_int_equal(count, 1);
    assert_true(attention_cudnn_tactic(problem, &blob, 0, params));
    setup->entries[0] = (struct engine_call){.library = LIBRARY_CUDNN, .operand_count = ATTENTION_CUDNN_OPERANDS};
    assert_true(device_attention_cudnn.call(params, blob.data, blob.bytes, &setup->entries[0]));
    assert_int_equal(setup->entries[0].version, cudnn.version);
    assert_int_equal(setup->entries[0].bytes, blob.bytes);
    assert_memory_equal(setup->entries[0].data, blob.data, blob.bytes);
    op_list_params(&op_attention, params, 0, true, setup->params);
    attention_cudnn_blob_free(&blob);
    cudnn_close(&cudnn);
    device_leave(&setup->device);
}

static int set_up(void **state)
{
    struct setup *setup = calloc(1, sizeof *setup);
    struct status status = {0};
    assert_non_null(setup);
    if (!device_open(&setup->device, 0, &status)) fail_msg("%s", status.message);
    make_call(setup);
    setup->entries[1] = (struct engine_call){.library = LIBRARY_CUBLASLT, .version = 130100, .operand_count = 5};
    setup->launch = (struct plan_launch){.op = OP_ATTENTION,
                                         .operand_count = ATTENTION_CUDNN_OPERANDS,
                                         .param_count = ATTENTION_CUDNN_PROBLEM_PARAMS,
                                         .attributes = LAUNCH_LIBRARY};
    for (int i = 0; i < ATTENTION_CUDNN_OPERANDS; i++) {
        setup->operands[i] =
            (struct plan_operand){.space = SPACE_ARENA,
                                  .access =
                                      i == ATTENTION_OUT || i == ATTENTION_CUDNN_WORKSPACE ? ACCESS_WRITE : ACCESS_READ,
                                  .bytes = attention_cudnn_operand_bytes(problem, &setup->entries[0], i)};
        setup->addresses[i] = (cu_deviceptr)(0x10000 * (i + 1));
    }
    setup->plan = (struct plan){.header = {.kind = PLAN_PREFILL, .rows = 64, .launch_count = 1},
                                .launches = &setup->launch,
                                .operands = setup->operands,
                                .params = setup->params};
    *state = setup;
    return 0;
}

/* No test may leak resources or misuse the driver. */
static int tear_down(void **state)
{
    struct setup *setup = *state;
    free((void *)setup->entries[0].data);
    device_close(&setup->device);
    free(setup);
    assert_int_equal(fake.live(-1), 0);
    assert_int_equal(fake.misuse(), 0);
    return 0;
}

static struct cuda_calls open_calls(struct setup *setup, size_t count)
{
    struct cuda_calls calls;
    struct status status = {0};
    if (!cuda_calls_open(&calls, &setup->device, setup->entries, count, NULL, &status)) fail_msg("%s", status.message);
    return calls;
}

static enum status_code check(struct setup *setup, const struct cuda_calls *calls)
{
    struct status status = {0};
    assert_true(device_enter(&setup->device, &status));
    bool ok = cuda_call_check(calls, &setup->plan, &setup->launch, &status);
    device_leave(&setup->device);
    assert_int_equal(ok, status.code == STATUS_OK);
    return status.code;
}

static enum status_code run(struct setup *setup, const struct cuda_calls *calls, uint64_t pool_bytes,
                            struct status *status)
{
    status_clear(status);
    assert_true(device_enter(&setup->device, status));
    bool ok =
        cuda_call_run(calls, &setup->plan, &setup->launch, setup->addresses, pool_bytes, setup->device.stream, status);
    device_leave(&setup->device);
    assert_int_equal(ok, status->code == STATUS_OK);
    return status->code;
}

TEST(opens_what_is_called)
{
    struct setup *setup = *state;
    struct cuda_calls calls = open_calls(setup, 0);
    assert_null(calls.cublaslt.library);
    assert_null(calls.cudnn.library);
    cuda_calls_close(&calls, &setup->device);
    calls = open_calls(setup, 1);
    assert_null(calls.cublaslt.library);
    assert_non_null(calls.cudnn.library);
    cuda_calls_close(&calls, &setup->device);
    calls = open_calls(setup, 2);
    assert_non_null(calls.cublaslt.library);
    assert_non_null(calls.cudnn.library);
    cuda_calls_close(&calls, &setup->device);
    const struct engine_call cudnn = setup->entries[0];
    setup->entries[0] = setup->entries[1];
    calls = open_calls(setup, 2);
    assert_null(calls.cudnn.library);
    cuda_calls_close(&calls, &setup->device);
    setup->entries[0] = cudnn;
}

TEST(leaves_later_libraries_alone)
{
    struct setup *setup = *state;
    struct cuda_calls calls;
    struct status status = {0};
    const struct engine_call lt = setup->entries[1];
    setup->entries[1].library = (enum plan_library)LIBRARY_COUNT;
    assert_false(cuda_calls_open(&calls, &setup->device, setup->entries, 2, NULL, &status));
    assert_int_equal(status.code, STATUS_MACHINE);
    assert_non_null(strstr(status.message, "library call 1: expected cuBLASLt, cuDNN or NCCL, found library 4"));
    setup->entries[1] = lt;
}

TEST(refuses_other_versions)
{
    struct setup *setup = *state;
    struct cuda_calls calls;
    struct status status = {0};
    const struct engine_call lt = setup->entries[1];
    setup->entries[1] = setup->entries[0];
    setup->entries[1].version++;
    assert_false(cuda_calls_open(&calls, &setup->device, setup->entries, 2, NULL, &status));
    assert_int_equal(status.code, STATUS_CORRUPT);
    status_clear(&status);
    assert_false(cuda_calls_open(&calls, &setup->device, setup->entries + 1, 1, NULL, &status));
    assert_int_equal(status.code, STATUS_MACHINE);
    assert_non_null(strstr(status.message, "expected version 9.19.1"));
    assert_non_null(strstr(status.message, "install that version"));
    setup->entries[1] = lt;
}

/* A plan is one module on the device, however often it is checked and run. */
TEST(prepares_once)
{
    enum { RUNS = 3 };
    struct setup *setup = *state;
    struct status status;
    struct cuda_calls calls = open_calls(setup, 1);
    int64_t modules = fake.live(MODULES);
    uint64_t kernels = fake.kernels();
    for (int i = 0; i < RUNS; i++) {
        assert_int_equal(check(setup, &calls), STATUS_OK);
        assert_int_equal(run(setup, &calls, 1 << 24, &status), STATUS_OK);
    }
    assert_int_equal(fake.live(MODULES), modules + 1);
    assert_int_equal(fake.kernels(), kernels + RUNS);
    cuda_calls_close(&calls, &setup->device);
    assert_int_equal(fake.live(MODULES), modules);
}

struct runner {
    struct setup *setup;
    const struct cuda_calls *calls;
    bool ok;
};

static void *run_many(void *argument)
{
    struct runner *runner = argument;
    struct setup *setup = runner->setup;
    struct status status = {0};
    runner->ok = device_enter(&setup->device, &status);
    for (int i = 0; runner->ok && i < 50; i++)
        runner->ok = cuda_call_run(runner->calls, &setup->plan, &setup->launch, setup->addresses, 1 << 24,
                                   setup->device.stream, &status);
    device_leave(&setup->device);
    return NULL;
}

TEST(runs_on_any_thread)
{
    enum { THREADS = 4 };
    struct setup *setup = *state;
    struct cuda_calls calls = open_calls(setup, 1);
    struct runner runners[THREADS];
    pthread_t threads[THREADS];
    int64_t modules = fake.live(MODULES);
    for (int i = 0; i < THREADS; i++) {
        runners[i] = (struct runner){setup, &calls, false};
        assert_int_equal(pthread_create(&threads[i], NULL, run_many, &runners[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(runners[i].ok);
    }
    assert_int_equal(fake.live(MODULES), modules + 1);
    cuda_calls_close(&calls, &setup->device);
}

TEST(refuses_wrong_launches)
{
    struct setup *setup = *state;
    struct cuda_calls calls = open_calls(setup, 1);
    struct plan_launch *launch = &setup->launch;
    assert_int_equal(check(setup, &calls), STATUS_OK);
    for (int i = 0; i < ATTENTION_CUDNN_OPERANDS; i++) {
        setup->operands[i].bytes--;
        assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
        setup->operands[i].bytes++;
    }
    static const int written[] = {ATTENTION_OUT, ATTENTION_CUDNN_WORKSPACE};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        struct plan_operand *operand = &setup->operands[written[i]];
        const struct plan_operand right = *operand;
        operand->access = ACCESS_READ;
        assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
        *operand = right;
        operand->space = SPACE_STATE;
        assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
        operand->space = SPACE_STEP;
        assert_int_equal(check(setup, &calls), STATUS_OK);
        *operand = right;
    }
    launch->operand_count--;
    assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
    launch->operand_count++;
    launch->param_count--;
    assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
    launch->param_count++;
    launch->op = OP_MATMUL;
    assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
    launch->op = OP_ATTENTION;
    setup->plan.header.kind = PLAN_DECODE;
    assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
    setup->plan.header.kind = PLAN_PREFILL;
    for (int i = 0; i < ATTENTION_CUDNN_PROBLEM_PARAMS; i++)
        for (int64_t value = -1; value <= 3; value++) {
            int64_t kept = setup->params[i].value;
            setup->params[i].value = value;
            assert_int_equal(check(setup, &calls), value == kept ? STATUS_OK : STATUS_CORRUPT);
            setup->params[i].value = kept;
        }
    setup->params[0].id = 999;
    assert_int_equal(check(setup, &calls), STATUS_VERSION); /* an essential parameter that is unknown here */
    setup->params[0].flags = 0;
    assert_int_equal(check(setup, &calls), STATUS_CORRUPT); /* no rows */
    cuda_calls_close(&calls, &setup->device);
}

TEST(refuses_wrong_data)
{
    struct setup *setup = *state;
    struct engine_call *call = &setup->entries[0];
    const uint64_t bytes = call->bytes, lengths[] = {1, 8, 135, 136, 137, bytes - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        call->bytes = lengths[i];
        struct cuda_calls calls = open_calls(setup, 1);
        assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
        cuda_calls_close(&calls, &setup->device);
    }
    call->bytes = bytes;
    char *data = (char *)call->data;
    data[sizeof(struct attention_cudnn_header) + 2] ^= 1; /* the plan itself */
    struct cuda_calls calls = open_calls(setup, 1);
    assert_int_equal(check(setup, &calls), STATUS_CORRUPT);
    cuda_calls_close(&calls, &setup->device);
}

TEST(refuses_wrong_memory)
{
    struct setup *setup = *state;
    struct status status;
    struct cuda_calls calls = open_calls(setup, 1);
    const uint64_t page_bytes = (uint64_t)problem[ATTENTION_PAGE_BYTES];
    assert_int_equal(run(setup, &calls, ATTENTION_CUDNN_MOST_PAGES * page_bytes, &status), STATUS_OK);
    assert_int_equal(run(setup, &calls, (ATTENTION_CUDNN_MOST_PAGES + 1) * page_bytes, &status), STATUS_MACHINE);
    setup->addresses[ATTENTION_CUDNN_WORKSPACE] += 64;
    struct status misplaced;
    assert_int_equal(run(setup, &calls, 1 << 24, &misplaced), STATUS_CORRUPT);
    assert_non_null(strstr(status.message, "at most 1048576 KV pages, found 1048577; ask for a smaller one"));
    cuda_calls_close(&calls, &setup->device);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    /* After the driver's folder, which comes first. */
    const char *folders = getenv("LD_LIBRARY_PATH");
    if ((!folders || !strstr(folders, driver_folder)) && !test_with_libraries(library_folder, argv, &result))
        return result;
    if (!test_with_libraries(driver_folder, argv, &result)) return result;
    fake = test_fake_cuda_find();
    return test_run_with(NULL, set_up, tear_down, NULL);
}
