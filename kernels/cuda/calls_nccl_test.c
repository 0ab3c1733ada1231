/* SPDX-License-Identifier: Apache-2.0 */
/* Library calls of NCCL with the fake driver and the fake NCCL (tests/fake_cuda): their checks, and the sums and
 * gathered data of ranks that run them, queued and in a plan's graph. */
#include "kernels/cuda/vendor/test_nccl.h"

#include "kernels/all_gather/all_gather_nccl.h"
#include "kernels/all_reduce/all_reduce_nccl.h"
#include "kernels/cuda/calls.h"
#include "kernels/op/op.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/vendor/nccl_call.h"

enum { ROWS = 4, WIDTH = 72, RANKS = 3, CELLS = ROWS * WIDTH, COUNTS = 0, X = 1, RESULT = 2, OPERANDS = 3 };
_Static_assert((int)ALL_REDUCE_CALL_SUM == RESULT && (int)ALL_GATHER_CALL_GATHERED == RESULT,
               "both end with what they write");
_Static_assert((int)ALL_REDUCE_CALL_OPERANDS == OPERANDS && (int)ALL_GATHER_CALL_OPERANDS == OPERANDS, "likewise");

static const uint8_t zeros[NCCL_CALL_BYTES];
static const enum plan_op ops[] = {OP_ALL_REDUCE, OP_ALL_GATHER};
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

/* A plan of one launch, and its call. */
struct setup {
    struct engine_call entry;
    struct plan_launch launch;
    struct plan_operand operands[OPERANDS];
    struct plan_param params[PLAN_MAX_PARAMS];
    struct plan plan;
};

/* all_gather is of F32. */
static void set_up(struct setup *setup, enum plan_op op, enum dtype dtype, uint32_t ranks)
{
    const int64_t reduce[PLAN_MAX_PARAMS] = {
        [ALL_REDUCE_ROWS] = ROWS,     [ALL_REDUCE_WIDTH] = WIDTH,          [ALL_REDUCE_RANKS] = ranks,
        [ALL_REDUCE_X_DTYPE] = dtype, [ALL_REDUCE_NORM_DTYPE] = DTYPE_F32, [ALL_REDUCE_OUT_DTYPE] = DTYPE_F32,
    };
    const int64_t gather[PLAN_MAX_PARAMS] = {
        [ALL_GATHER_ROWS] = ROWS,
        [ALL_GATHER_WIDTH] = WIDTH,
        [ALL_GATHER_OUT_WIDTH] = WIDTH + 5, /* few enough for one rank less */
        [ALL_GATHER_RANKS] = ranks,
    };
    const bool sums = op == OP_ALL_REDUCE;
    const uint64_t bytes = CELLS * dtype_bytes(sums ? dtype : DTYPE_F32);
    *setup = (struct setup){.entry = {.library = LIBRARY_NCCL,
                                      .version = NCCL_LEAST_VERSION,
                                      .operand_count = OPERANDS,
                                      .data = zeros,
                                      .bytes = sizeof zeros},
                            .launch = {.op = (uint16_t)op,
                                       .operand_count = OPERANDS,
                                       .param_count = sums ? ALL_REDUCE_DEVICE_THREADS : ALL_GATHER_DEVICE_THREADS,
                                       .attributes = LAUNCH_LIBRARY},
                            .operands = {[COUNTS] = {.space = SPACE_STEP, .access = ACCESS_READ},
                                         [X] = {.space = SPACE_ARENA, .access = ACCESS_READ, .bytes = bytes},
                                         [RESULT] = {.space = SPACE_ARENA,
                                                     .access = ACCESS_WRITE,
                                                     .bytes = sums ? bytes : ranks * bytes}}};
    op_list_params(sums ? &op_all_reduce : &op_all_gather, sums ? reduce : gather, 0, true, setup->params);
    setup->plan = (struct plan){.header = {.kind = PLAN_DECODE, .rows = ROWS, .launch_count = 1},
                                .launches = &setup->launch,
                                .operands = setup->operands,
                                .params = setup->params};
}

/* ---- checks that need no communicator ---- */

static struct device device;
static struct nccl_rank alone;

static int begin(void **state)
{
    struct status status = {0};
    if (test_nccl_begin(state)) return -1;
    test_expect_success(device_open(&device, 0, &status), &status);
    alone = (struct nccl_rank){.nccl = &test_nccl.nccl, .device = &device, .rank = 1, .ranks = RANKS};
    return 0;
}

static int end(void **state)
{
    device_close(&device);
    return test_nccl_end(state);
}

static struct cuda_calls open_calls(const struct setup *setup)
{
    struct cuda_calls calls;
    struct status status = {0};
    test_expect_success(cuda_calls_open(&calls, &device, &setup->entry, 1, &alone, &status), &status);
    return calls;
}

static enum status_code check_with(const struct cuda_calls *calls, const struct setup *setup, struct status *status)
{
    status_clear(status);
    bool ok = cuda_call_check(calls, &setup->plan, &setup->launch, status);
    assert_int_equal(ok, status->code == STATUS_OK);
    return status->code;
}

static enum status_code check(const struct setup *setup)
{
    struct status status;
    struct cuda_calls calls = open_calls(setup);
    enum status_code code = check_with(&calls, setup, &status);
    cuda_calls_close(&calls, &device);
    return code;
}

TEST(opens_with_a_communicator)
{
    struct setup setup;
    struct cuda_calls calls;
    struct status status = {0};
    set_up(&setup, OP_ALL_REDUCE, DTYPE_F32, RANKS);
    calls = open_calls(&setup);
    assert_ptr_equal(calls.nccl, &alone);
    assert_int_equal(calls.count, 1);
    assert_null(calls.cublaslt.library);
    assert_null(calls.cudnn.library);
    cuda_calls_close(&calls, &device);
    assert_null(calls.nccl);
    test_expect_failure(cuda_calls_open(&calls, &device, &setup.entry, 1, NULL, &status), &status, STATUS_MACHINE,
                        "NCCL: the ranks have no communicator");
    status_clear(&status); /* calls of other libraries do not need one either */
    test_expect_success(cuda_calls_open(&calls, &device, NULL, 0, NULL, &status), &status);
    cuda_calls_close(&calls, &device);
}

TEST(opens_calls_of_one_version)
{
    struct setup setup;
    struct cuda_calls calls;
    struct status status = {0};
    set_up(&setup, OP_ALL_REDUCE, DTYPE_F32, RANKS);
    struct engine_call entries[] = {setup.entry, setup.entry};
    entries[1].version++;
    test_expect_failure(cuda_calls_open(&calls, &device, entries, 2, &alone, &status), &status, STATUS_CORRUPT,
                        "library call 1: NCCL in version 21801, others in 21800");
    entries[0].version = 0;
    status_clear(&status);
    test_expect_failure(cuda_calls_open(&calls, &device, entries, 1, &alone, &status), &status, STATUS_CORRUPT,
                        "library call 0: NCCL in version 0");
}

TEST(takes_right_launches)
{
    struct setup setup;
    for (int d = 0; d < 3; d++) {
        set_up(&setup, OP_ALL_REDUCE, dtypes[d], RANKS);
        assert_int_equal(check(&setup), STATUS_OK);
    }
    for (int o = 0; o < 2; o++) {
        set_up(&setup, ops[o], DTYPE_BF16, RANKS);
        assert_int_equal(check(&setup), STATUS_OK);
        setup.operands[RESULT].space = SPACE_STEP;
        setup.operands[RESULT].access = ACCESS_READ | ACCESS_WRITE;
        setup.operands[RESULT].bytes++;
        setup.launch.param_count++;
        setup.plan.header.kind = PLAN_PREFILL;
        assert_int_equal(check(&setup), STATUS_OK);
    }
}

TEST(refuses_wrong_operands)
{
    static const enum plan_space others[] = {SPACE_WEIGHTS, SPACE_KV, SPACE_STATE, SPACE_COMM};
    for (int o = 0; o < 2; o++) {
        struct setup right, setup;
        set_up(&right, ops[o], DTYPE_F16, RANKS);
#define WITH(change)                                        \
    set_up(&setup, ops[o], DTYPE_F16, RANKS), setup.change; \
    if (check(&setup) != STATUS_CORRUPT) fail_msg("%s: %s was accepted", plan_op_name(ops[o]), #change)
        WITH(operands[X].bytes--);
        WITH(operands[X].bytes = 0);
        WITH(operands[RESULT].bytes--);
        WITH(operands[RESULT].bytes = right.operands[X].bytes - 1);
        WITH(operands[RESULT].access = ACCESS_READ);
        for (size_t s = 0; s < sizeof others / sizeof *others; s++) {
            WITH(operands[RESULT].space = (uint8_t)others[s]);
        }
        WITH(launch.operand_count = 0);
        WITH(launch.operand_count = 2);
        WITH(launch.operand_count = 4);
        /* Not even queued. */
        struct status status = {0};
        const cu_deviceptr addresses[OPERANDS] = {0};
        set_up(&setup, ops[o], DTYPE_F16, RANKS);
        setup.operands[RESULT].bytes--;
        struct cuda_calls calls = open_calls(&setup);
        test_expect_failure(cuda_call_run(&calls, &setup.plan, &setup.launch, addresses, 0, device.stream, &status),
                            &status, STATUS_CORRUPT, "operand 2: expected ");
        cuda_calls_close(&calls, &device);
    }
}

TEST(refuses_wrong_problems)
{
    static const int64_t rows[] = {INT64_MIN, -1, 0, ROWS + 1, INT64_MAX};
    static const int64_t ranks[] = {INT64_MIN, -1, 0, 1, RANKS - 1, RANKS + 1, PLAN_MAX_RANKS + 1, INT64_MAX};
    for (int o = 0; o < 2; o++) {
        const int ranks_at = o == 0 ? ALL_REDUCE_RANKS : ALL_GATHER_RANKS;
        struct setup setup;
        WITH(launch.param_count--);
        WITH(launch.param_count = 0);
        WITH(launch.op = OP_MATMUL);
        WITH(launch.op = OP_ATTENTION);
        WITH(launch.op = OP_ADD);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            WITH(params[0].value = rows[i]);
        }
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
            WITH(params[ranks_at].value = ranks[i]);
        }
        WITH(params[1].value = 2); /* COUNT_INDEX */
        WITH(params[2].value = WIDTH + 8);
        WITH(params[2].value = -WIDTH);
    }
}

/* NCCL adds no residual and computes no norm: a plan that requires them would get wrong results. */
TEST(refuses_what_nccl_leaves_out)
{
    const int o = 0;
    struct setup setup;
    WITH(params[ALL_REDUCE_HAS_RESIDUAL].value = 1);
    WITH(params[ALL_REDUCE_HAS_NORM].value = 1);
    WITH(params[ALL_REDUCE_X_DTYPE].value = DTYPE_I8);
    WITH(params[ALL_REDUCE_X_DTYPE].value = DTYPE_F32); /* twice the bytes */
}

TEST(refuses_wrong_calls)
{
    for (int o = 0; o < 2; o++) {
        static const uint8_t not_zeros[] = {0, 0, 0, 0, 0, 0, 0, 1, 0};
        struct setup setup;
        struct status status;
        WITH(entry.bytes--);
        WITH(entry.bytes++);
        WITH(entry.data = not_zeros);
        set_up(&setup, ops[o], DTYPE_F16, RANKS);
        struct cuda_calls calls = open_calls(&setup);
        setup.launch.kernel = 1;
        assert_int_equal(check_with(&calls, &setup, &status), STATUS_INTERNAL);
        setup.launch.kernel = 0;
        setup.entry.library = LIBRARY_CUDNN; /* which is not open */
        assert_int_equal(check_with(&calls, &setup, &status), STATUS_CORRUPT);
        setup.entry.library = LIBRARY_NCCL;
        assert_int_equal(check_with(&calls, &setup, &status), STATUS_OK);
        cuda_calls_close(&calls, &device);
    }
}

TEST(refuses_older_versions)
{
    struct setup setup;
    struct status status;
    set_up(&setup, OP_ALL_GATHER, DTYPE_F32, RANKS);
    setup.entry.version = test_nccl.nccl.version;
    struct cuda_calls calls = open_calls(&setup);
    assert_int_equal(check_with(&calls, &setup, &status), STATUS_OK);
    setup.entry.version++;
    assert_int_equal(check_with(&calls, &setup, &status), STATUS_MACHINE);
    test_expect_message(&status, "NCCL: expected version 22810 or later, found 22809; install a later one");
    cuda_calls_close(&calls, &device);
}

TEST(borrows_a_communicator)
{
    const struct cublaslt no_cublaslt = {0};
    const struct cudnn no_cudnn = {0};
    for (int with = 0; with < 2; with++) {
        struct setup setup;
        struct cuda_calls calls;
        struct status status = {0};
        set_up(&setup, OP_ALL_REDUCE, DTYPE_F32, RANKS);
        test_expect_success(cuda_calls_borrow(&calls, &no_cublaslt, &no_cudnn, with ? &alone : NULL, &status), &status);
        calls.entries = &setup.entry;
        calls.count = 1;
        assert_int_equal(check_with(&calls, &setup, &status), with ? STATUS_OK : STATUS_CORRUPT);
        cuda_calls_close(&calls, &device);
    }
}

/* ---- ranks that have joined ---- */

static bool queue(struct test_nccl_rank *self)
{
    const cu_deviceptr addresses[OPERANDS] = {0, self->from, self->to};
    for (uint32_t n = 0; n < 4; n++) { /* sums of each dtype, then a gather */
        const enum dtype dtype = dtypes[n % 3];
        struct setup setup;
        struct cuda_calls calls;
        set_up(&setup, n < 3 ? OP_ALL_REDUCE : OP_ALL_GATHER, dtype, self->ranks);
        EXPECT(cuda_calls_open(&calls, &self->device, &setup.entry, 1, &self->rank, &self->status));
        EXPECT(cuda_call_check(&calls, &setup.plan, &setup.launch, &self->status));
        test_nccl_fill(self, self->from, dtype, CELLS, n);
        memset((void *)(uintptr_t)self->to, 0xff, (RANKS * CELLS + 1) * sizeof(float));
        EXPECT(cuda_call_run(&calls, &setup.plan, &setup.launch, addresses, 0, self->device.stream, &self->status));
        CALL(StreamSynchronize, self->device.stream);
        EXPECT(nccl_ok(&self->rank, &self->status));
        if (n < 3)
            EXPECT(test_nccl_is_sum(self, self->to, dtype, CELLS, n));
        else
            EXPECT(test_nccl_is_gathered(self, self->to, CELLS, n));
        /* Nothing after it. */
        const uint8_t *behind = (const uint8_t *)(uintptr_t)self->to + setup.operands[RESULT].bytes;
        EXPECT(behind[0] == 0xff && behind[1] == 0xff);
        cuda_calls_close(&calls, &self->device);
    }
    return true;
}

TEST(ranks_have_the_result)
{
    for (uint32_t ranks = 2; ranks <= TEST_NCCL_RANKS; ranks++) test_nccl_run(ranks, queue);
}

/* A gather, and then a sum of its result: the number of ranks times that. */
static bool replay(struct test_nccl_rank *self)
{
    enum { GATHERED = 4096, SUM = 8192 }; /* in the arena, after x */
    _Static_assert(CELLS * 4 <= GATHERED && TEST_NCCL_RANKS * CELLS * 4 <= SUM - GATHERED, "they do not overlap");
    struct setup gather, sum;
    struct cuda_calls calls;
    struct cuda_plan bound;
    set_up(&gather, OP_ALL_GATHER, DTYPE_F32, self->ranks);
    set_up(&sum, OP_ALL_REDUCE, DTYPE_F32, self->ranks);
    const uint64_t bytes = gather.operands[RESULT].bytes;
    gather.operands[RESULT].offset = sum.operands[X].offset = GATHERED;
    sum.operands[RESULT].offset = SUM;
    sum.operands[X].bytes = sum.operands[RESULT].bytes = bytes;
    sum.params[ALL_REDUCE_ROWS].value = self->ranks * ROWS;
    const struct engine_call entries[] = {gather.entry, sum.entry};
    struct plan_launch launches[] = {gather.launch, sum.launch};
    struct plan_operand operands[2 * OPERANDS];
    struct plan_param params[2 * PLAN_MAX_PARAMS];
    const uint32_t before[] = {0};
    launches[1].kernel = launches[1].dependency_count = 1;
    launches[1].first_operand = OPERANDS;
    launches[1].first_param = PLAN_MAX_PARAMS;
    memcpy(operands, gather.operands, sizeof gather.operands);
    memcpy(operands + OPERANDS, sum.operands, sizeof sum.operands);
    memcpy(params, gather.params, sizeof gather.params);
    memcpy(params + PLAN_MAX_PARAMS, sum.params, sizeof sum.params);
    const struct plan plan = {.header = {.kind = PLAN_DECODE, .rows = ROWS, .launch_count = 2},
                              .launches = launches,
                              .operands = operands,
                              .params = params,
                              .dependencies = before};
    const struct cuda_kernels kernels = {.calls = &calls};
    const struct cuda_memory memory = {.base = {[SPACE_ARENA] = self->to, [SPACE_STEP] = self->from},
                                       .bytes = {[SPACE_ARENA] = SUM + bytes, [SPACE_STEP] = 8}};
    EXPECT(cuda_calls_open(&calls, &self->device, entries, 2, &self->rank, &self->status));
    EXPECT(cuda_plan_bind(&bound, &self->device, &kernels, &plan, &memory, "the plan", &self->status));
    EXPECT(bound.launch_count == 2);
    for (uint32_t round = 0; round < 5; round++) {
        double us[2];
        test_nccl_fill(self, self->to, DTYPE_F32, CELLS, round);
        memset((void *)(uintptr_t)(self->to + GATHERED), 0xff, SUM - GATHERED + bytes);
        if (round < 4)
            EXPECT(cuda_plan_launch(&bound, &self->device, &self->status));
        else /* one after the other */
            EXPECT(cuda_plan_run_timed(&self->device, &kernels, &plan, &memory, us, &self->status));
        CALL(StreamSynchronize, self->device.stream);
        EXPECT(nccl_ok(&self->rank, &self->status));
        EXPECT(test_nccl_is_gathered(self, self->to + GATHERED, CELLS, round));
        for (uint64_t i = 0; i < self->ranks * (uint64_t)CELLS; i++) {
            float one = test_nccl_get(self->to + GATHERED, DTYPE_F32, i), all = 0;
            for (uint32_t r = 0; r < self->ranks; r++) all += one;
            EXPECT(test_nccl_get(self->to + SUM, DTYPE_F32, i) == all);
        }
    }
    cuda_plan_free(&bound, &self->device);
    cuda_calls_close(&calls, &self->device);
    return true;
}

TEST(graphs_replay_with_other_data)
{
    for (uint32_t ranks = 2; ranks <= TEST_NCCL_RANKS; ranks++) test_nccl_run(ranks, replay);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    if (!test_nccl_with_libraries(argv, &result)) return result;
    return test_run_with(test_nccl_find, begin, end, NULL);
}
