/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/op/test_support.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "kernels/cpu/rendezvous.h"

/* Under AddressSanitizer the canaries are also forbidden ground, so that reads beyond a buffer show too. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TEST_ADDRESS_SANITIZER
#endif
#if defined(TEST_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size)   ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

enum { CANARY_BYTES = 256, CANARY = 0xa5, POISON = 0xff };

const int test_teams[TEST_TEAMS] = {1, 2, 5};
const struct plan_geometry test_geometry =
    {.slots = 1, .max_context = 8, .page_tokens = 8, .pages_per_slot = 1, .page_bytes = 64, .vocab_size = 10};

uint64_t test_random_bits(struct test_random *random)
{
    if (!random->state) random->state = 0x9e3779b97f4a7c15u;
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return random->state * 0x2545f4914f6cdd1du;
}

int64_t test_random_range(struct test_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)(test_random_bits(random) % (uint64_t)(high - low + 1));
}

float test_random_float(struct test_random *random, float low, float high)
{
    float unit = (float)(test_random_bits(random) >> 40) * 0x1p-24f;
    return low + (high - low) * unit;
}

struct test_buffer test_buffer_new(size_t bytes)
{
    size_t whole = (bytes + 2 * CANARY_BYTES + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    uint8_t *memory = aligned_alloc(PLAN_ALIGNMENT, whole);
    assert_non_null(memory);
    struct test_buffer buffer = {.data = memory + CANARY_BYTES, .bytes = bytes};
    memset(memory, CANARY, CANARY_BYTES);
    memset(buffer.data + bytes, CANARY, CANARY_BYTES);
    test_buffer_poison(&buffer);
    ASAN_POISON_MEMORY_REGION(memory, CANARY_BYTES);
    ASAN_POISON_MEMORY_REGION(buffer.data + bytes, CANARY_BYTES);
    return buffer;
}

void test_buffer_poison(struct test_buffer *buffer) { memset(buffer->data, POISON, buffer->bytes); }

void test_buffer_assert_intact(const struct test_buffer *buffer, const char *name)
{
    ASAN_UNPOISON_MEMORY_REGION(buffer->data - CANARY_BYTES, CANARY_BYTES);
    ASAN_UNPOISON_MEMORY_REGION(buffer->data + buffer->bytes, CANARY_BYTES);
    for (int i = 1; i <= CANARY_BYTES; i++) {
        if (buffer->data[-i] != CANARY) fail_msg("%s: byte %d before the buffer was written", name, i);
        if (buffer->data[buffer->bytes + (size_t)i - 1] != CANARY)
            fail_msg("%s: byte %d after the buffer was written", name, i - 1);
    }
    ASAN_POISON_MEMORY_REGION(buffer->data - CANARY_BYTES, CANARY_BYTES);
    ASAN_POISON_MEMORY_REGION(buffer->data + buffer->bytes, CANARY_BYTES);
}

void test_buffer_free(struct test_buffer *buffer)
{
    if (!buffer->data) return;
    ASAN_UNPOISON_MEMORY_REGION(buffer->data - CANARY_BYTES, CANARY_BYTES);
    ASAN_UNPOISON_MEMORY_REGION(buffer->data + buffer->bytes, CANARY_BYTES);
    free(buffer->data - CANARY_BYTES);
    buffer->data = NULL;
}

bool test_is_poison(const void *data, size_t bytes)
{
    const uint8_t *byte = data;
    for (size_t i = 0; i < bytes; i++)
        if (byte[i] != POISON) return false;
    return true;
}

void test_fill(struct test_random *random, void *array, size_t count, enum dtype dtype, float low, float high)
{
    for (size_t i = 0; i < count; i++) {
        float value = test_random_float(random, low, high);
        if (dtype == DTYPE_F32)
            ((float *)array)[i] = value;
        else
            ((uint16_t *)array)[i] = dtype == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
    }
}

void test_round(float *values, size_t count, enum dtype dtype)
{
    for (size_t i = 0; i < count; i++)
        if (dtype == DTYPE_F16)
            values[i] = f16_to_float(f16_from_float(values[i]));
        else if (dtype == DTYPE_BF16)
            values[i] = bf16_to_float(bf16_from_float(values[i]));
}

void test_shuffle(struct test_random *random, int32_t *values, size_t count)
{
    for (size_t i = count - 1; i > 0; i--) {
        const size_t j = (size_t)test_random_range(random, 0, (int64_t)i);
        const int32_t value = values[i];
        values[i] = values[j];
        values[j] = value;
    }
}

void *test_take(struct test_memory *memory, size_t bytes)
{
    void *block = malloc(bytes ? bytes : 1);
    assert_non_null(block);
    assert_in_range(memory->count, 0, sizeof memory->blocks / sizeof *memory->blocks - 1);
    return memory->blocks[memory->count++] = block;
}

void test_release(struct test_memory *memory)
{
    while (memory->count > 0) free(memory->blocks[--memory->count]);
}

void test_complete_params(const struct op_descriptor *op, int64_t *params)
{
    for (int i = 0; i < op->param_count; i++) {
        const struct op_param *param = &op->params[i];
        const bool zero_is_legal = !op_param_is_type(param) && param->least <= 0 && param->most >= 0;
        if (params[i] == 0 && !zero_is_legal) params[i] = param->fallback;
    }
}

void test_case_open(struct test_case *test, const struct op_descriptor *op, const int64_t *params,
                    const struct plan_geometry *geometry, int32_t valid)
{
    memset(test, 0, sizeof *test);
    test->op = op;
    memcpy(test->params, params, (size_t)op_cpu_param_count(op) * sizeof *params);
    test->geometry = *geometry;
    test_complete_params(op, test->params);
    struct status status = {0};
    if (!op_demands(op, TARGET_CPU, test->params, geometry, test->demands, &test->operand_count, &status))
        fail_msg("%s: refused: %s", op->name, status.message);
    test->call.params = test->params;
    for (int i = 0; i < test->operand_count; i++) {
        const int operand = test->demands[i].operand;
        test->buffers[operand] = test_buffer_new((size_t)test->demands[i].bytes);
        test->call.operands[operand] = test->buffers[operand].data;
    }
    int32_t *counts = test->call.operands[OP_OPERAND_COUNTS];
    counts[0] = counts[1] = INT32_MAX; /* the other count must not matter */
    counts[params[OP_PARAM_COUNT_INDEX]] = valid;
}

void test_case_assert_intact(const struct test_case *test)
{
    for (int i = 0; i < test->operand_count; i++)
        test_buffer_assert_intact(&test->buffers[test->demands[i].operand], test->demands[i].name);
}

void test_case_close(struct test_case *test)
{
    test_case_assert_intact(test);
    for (int i = 0; i < test->operand_count; i++) test_buffer_free(&test->buffers[test->demands[i].operand]);
}

void test_case_replace(struct test_case *test, int operand, size_t bytes, size_t offset)
{
    test_buffer_free(&test->buffers[operand]);
    test->buffers[operand] = test_buffer_new(bytes);
    test->call.operands[operand] = test->buffers[operand].data + offset;
}

struct run_job {
    op_run *run;
    const struct op_call *call;
};

static void run_member(void *argument, struct team_member *member)
{
    const struct run_job *job = argument;
    job->run(job->call, member);
}

void test_run_op(const struct op_descriptor *op, enum cpu_isa isa, const struct op_call *call, int members)
{
    struct status status = {0};
    struct team *team = team_create(members, &status);
    if (!team) fail_msg("%s", status.message);
    test_run_on(team, op, isa, call);
    team_destroy(team);
}

void test_case_run(struct test_case *test, int out, int run)
{
    test_buffer_poison(&test->buffers[out]);
    if (run == TEST_TEAMS)
        test->op->reference(&test->call);
    else
        test_run_op(test->op, cpu_isa_best(), &test->call, test_teams[run]);
}

void test_run_on(struct team *team, const struct op_descriptor *op, enum cpu_isa isa, const struct op_call *call)
{
    struct run_job job = {.run = op_runner(op, isa), .call = call};
    team_run(team, run_member, &job);
}

void test_ranks_open(struct test_ranks *ranks, int count, size_t buffer_bytes, uint64_t timeout_ns)
{
    /* Each buffer ends before a gap of at least PLAN_ALIGNMENT bytes. */
    size_t pitch = (buffer_bytes / PLAN_ALIGNMENT + 2) * PLAN_ALIGNMENT, first = sizeof(struct comm_header);
    *ranks =
        (struct test_ranks){.count = count, .buffer_bytes = buffer_bytes, .buffer_offsets = {first, first + pitch}};
    for (int rank = 0; rank < count; rank++) {
        ranks->comm[rank] = test_buffer_new(first + 2 * pitch);
        comm_header_init(test_ranks_header(ranks, rank), (uint32_t)rank, (uint32_t)count, timeout_ns);
    }
    for (int rank = 0; rank < count; rank++)
        for (int peer = 0; peer < count; peer++)
            test_ranks_header(ranks, rank)->peers[peer] = (uintptr_t)ranks->comm[peer].data;
}

struct comm_header *test_ranks_header(const struct test_ranks *ranks, int rank)
{
    return (struct comm_header *)ranks->comm[rank].data;
}

void *test_ranks_buffer(const struct test_ranks *ranks, int rank, int which)
{
    return ranks->comm[rank].data + ranks->buffer_offsets[which];
}

void test_ranks_assert_intact(const struct test_ranks *ranks)
{
    size_t pitch = ranks->buffer_offsets[1] - ranks->buffer_offsets[0];
    for (int rank = 0; rank < ranks->count; rank++) {
        const struct comm_header *header = test_ranks_header(ranks, rank);
        assert_int_equal(header->rank, rank);
        assert_int_equal(header->ranks, ranks->count);
        assert_int_equal(header->sleepers, 0);
        for (int i = 0; i < PLAN_MAX_RANKS; i++)
            assert_int_equal(header->peers[i], i < ranks->count ? (uintptr_t)ranks->comm[i].data : 0);
        test_buffer_assert_intact(&ranks->comm[rank], "comm");
        for (int which = 0; which < 2; which++) {
            const uint8_t *end = (uint8_t *)test_ranks_buffer(ranks, rank, which) + ranks->buffer_bytes;
            assert_true(test_is_poison(end, pitch - ranks->buffer_bytes));
        }
    }
}

void test_ranks_close(struct test_ranks *ranks)
{
    test_ranks_assert_intact(ranks);
    for (int rank = 0; rank < ranks->count; rank++) test_buffer_free(&ranks->comm[rank]);
}

struct rank_thread {
    pthread_t thread;
    void (*function)(void *argument, int rank);
    void *argument;
    int rank;
};

static void *rank_main(void *argument)
{
    struct rank_thread *rank = argument;
    rank->function(rank->argument, rank->rank);
    return NULL;
}

void test_ranks_run(int count, void (*function)(void *argument, int rank), void *argument)
{
    struct rank_thread threads[PLAN_MAX_RANKS];
    for (int rank = 0; rank < count; rank++) {
        threads[rank] = (struct rank_thread){.function = function, .argument = argument, .rank = rank};
        assert_int_equal(pthread_create(&threads[rank].thread, NULL, rank_main, &threads[rank]), 0);
    }
    for (int rank = 0; rank < count; rank++) assert_int_equal(pthread_join(threads[rank].thread, NULL), 0);
}

void test_group_open(struct test_group *group, const struct op_descriptor *op, const int64_t *params, int count,
                     int64_t width, uint64_t timeout_ns, struct test_random *random)
{
    *group = (struct test_group){.op = op, .rows = params[OP_PARAM_ROWS], .width = width, .absent = -1};
    group->geometry = test_geometry;
    group->geometry.ranks = (uint64_t)count;
    const size_t buffer_bytes = (size_t)(group->rows * width) * sizeof(float);
    test_ranks_open(&group->ranks, count, buffer_bytes, timeout_ns);
    for (int round = 0; round < TEST_GROUP_ROUNDS; round++) {
        group->valid[round] = test_random_range(random, round == 0, group->rows);
        for (int rank = 0; rank < count; rank++) {
            struct test_case *test = &group->cases[rank][round];
            test_case_open(test, op, params, &group->geometry, (int32_t)group->valid[round]);
            for (int i = 0; i < test->operand_count; i++) {
                const int operand = test->demands[i].operand;
                if (op->operands[operand].role == ROLE_HEADER) {
                    assert_int_equal(test->demands[i].bytes, sizeof(struct comm_header));
                    test->call.operands[operand] = test_ranks_header(&group->ranks, rank);
                } else if (op->operands[operand].role == ROLE_EXCHANGE) {
                    assert_int_equal(test->demands[i].bytes, buffer_bytes);
                    test->call.operands[operand] = test_ranks_buffer(&group->ranks, rank, round % 2);
                }
            }
        }
    }
}

void test_group_close(struct test_group *group)
{
    for (int rank = 0; rank < group->ranks.count; rank++) {
        for (int round = 0; round < TEST_GROUP_ROUNDS; round++) test_case_close(&group->cases[rank][round]);
        team_destroy(group->teams[rank]);
    }
    test_ranks_close(&group->ranks);
}

static void run_group_rank(void *argument, int rank)
{
    struct test_group *group = argument;
    if (rank == group->absent) return;
    for (int round = 0; round < TEST_GROUP_ROUNDS; round++) {
        if (round % group->ranks.count == rank) usleep(200); /* each is the last one now and then */
        const struct op_call *call = &group->cases[rank][round].call;
        if (group->teams[rank])
            test_run_on(group->teams[rank], group->op, cpu_isa_best(), call);
        else
            group->op->reference(call);
    }
}

void test_group_run(struct test_group *group, int members, bool mixed)
{
    for (int rank = 0; members && rank < group->ranks.count; rank++) {
        group->teams[rank] = team_create(mixed ? 1 + (members + rank) % 3 : members, NULL);
        assert_non_null(group->teams[rank]);
    }
    test_ranks_run(group->ranks.count, run_group_rank, group);
}

void test_group_assert_buffers(const struct test_group *group)
{
    for (int which = 0; which < 2; which++) {
        int64_t most = 0;
        for (int round = which; round < TEST_GROUP_ROUNDS; round += 2)
            if (group->valid[round] > most) most = group->valid[round];
        const size_t used = (size_t)(most * group->width) * sizeof(float);
        for (int rank = 0; rank < group->ranks.count; rank++)
            assert_true(test_is_poison((uint8_t *)test_ranks_buffer(&group->ranks, rank, which) + used,
                                       group->ranks.buffer_bytes - used));
    }
}

void test_group_assert_stopped(const struct test_group *group, int out)
{
    for (int rank = 0; rank < group->ranks.count; rank++) {
        assert_true(test_ranks_header(&group->ranks, rank)->stop != 0);
        for (int round = 0; round < TEST_GROUP_ROUNDS; round++) {
            const struct test_buffer *buffer = &group->cases[rank][round].buffers[out];
            assert_true(test_is_poison(buffer->data, buffer->bytes));
        }
    }
}

void test_refuses_other_ranks(const struct op_descriptor *op, const int64_t *params,
                              const struct plan_geometry *geometry, int ranks_param)
{
    for (int64_t ranks = 0; ranks <= PLAN_MAX_RANKS + 1; ranks++)
        if (ranks != 4) test_refuses(op, params, geometry, TEST_CHANGES({ranks_param, ranks}));
    test_refuses(op, params, geometry, TEST_CHANGES({ranks_param, 4 + ((int64_t)1 << 32)}));
    struct plan_geometry odd = *geometry;
    for (odd.ranks = 0; odd.ranks < 2; odd.ranks++)
        for (int64_t ranks = 0; ranks < 5; ranks++) test_refuses(op, params, &odd, TEST_CHANGES({ranks_param, ranks}));
    odd.ranks = PLAN_MAX_RANKS + 1;
    test_refuses(op, params, &odd, TEST_CHANGES({ranks_param, PLAN_MAX_RANKS + 1}));
}

void test_assert_close(const float *found, const float *expected, size_t count, double absolute, double relative,
                       const char *what)
{
    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)found[i] - expected[i]);
        if (!(error <= absolute + relative * fabs((double)expected[i])))
            fail_msg("%s: element %zu is %.9g, expected %.9g (error %.3g)", what, i, (double)found[i],
                     (double)expected[i], error);
    }
}

void test_assert_same_bits(const void *found, const void *expected, size_t bytes, const char *what)
{
    const uint8_t *a = found, *b = expected;
    if (!bytes || memcmp(a, b, bytes) == 0) return;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i]) fail_msg("%s: byte %zu of %zu differs", what, i, bytes);
}

void test_refuses(const struct op_descriptor *op, const int64_t *params, const struct plan_geometry *geometry,
                  const struct test_change *changes, size_t count)
{
    for (const struct test_change *change = changes; change < changes + count; change++) {
        int64_t hostile[PLAN_MAX_PARAMS];
        struct op_demand operands[PLAN_MAX_OPERANDS];
        int operand_count = 0;
        struct status status = {0};
        memcpy(hostile, params, (size_t)op_cpu_param_count(op) * sizeof *params);
        test_complete_params(op, hostile);
        hostile[change->index] = change->value;
        if (op_demands(op, TARGET_CPU, hostile, geometry, operands, &operand_count, &status))
            fail_msg("%s: %s = %" PRId64 " was accepted", op->name, op_cpu_param_name(op, change->index),
                     change->value);
        assert_int_equal(status.code, STATUS_CORRUPT);
        if (!strstr(status.message, op->name)) fail_msg("message does not name %s: %s", op->name, status.message);
    }
}

void test_hostile_params(const struct op_descriptor *op, const int64_t *params, const struct plan_geometry *geometry)
{
    static const int64_t extremes[] = {
        INT64_MIN,        INT64_MIN + 1, -1,        0, 1, 2, 3, 5, 7, 255, 257, INT32_MAX, INT64_C(1) << 31, UINT32_MAX,
        INT64_C(1) << 40, INT64_MAX - 1, INT64_MAX,
    };
    enum { EXTREMES = sizeof extremes / sizeof extremes[0] };
    struct test_random random = {77};
    for (int round = 0; round < 4000; round++) {
        int64_t hostile[PLAN_MAX_PARAMS];
        memcpy(hostile, params, (size_t)op_cpu_param_count(op) * sizeof *params);
        test_complete_params(op, hostile);
        const int count = op_cpu_param_count(op), changes = round < count * EXTREMES ? 1 : 3;
        for (int i = 0; i < changes; i++) {
            int index = (int)test_random_range(&random, 0, count - 1);
            int64_t value = extremes[test_random_range(&random, 0, EXTREMES - 1)];
            if (changes == 1) {
                index = round / EXTREMES;
                value = extremes[round % EXTREMES];
            }
            hostile[index] = value;
        }
        struct op_demand operands[PLAN_MAX_OPERANDS];
        int operand_count = 0;
        struct status status = {0};
        if (!op_demands(op, TARGET_CPU, hostile, geometry, operands, &operand_count, &status)) {
            assert_int_equal(status.code, STATUS_CORRUPT);
            assert_true(strlen(status.message) > 0);
            continue;
        }
        assert_in_range(operand_count, 1, PLAN_MAX_OPERANDS);
        uint64_t bytes, flops;
        op->cost(hostile, geometry->max_context / 2, &bytes, &flops);
        for (int i = 0; i < operand_count; i++) {
            assert_non_null(operands[i].name);
            assert_true(operands[i].bytes > 0);
            assert_true(operands[i].space_mask != 0);
        }
    }
    test_refuses(op, params, geometry,
                 TEST_CHANGES({OP_PARAM_ROWS, 0}, {OP_PARAM_ROWS, OP_MAX_ROWS + 1}, {OP_PARAM_COUNT_INDEX, 2},
                              {OP_PARAM_COUNT_INDEX, -1}));
}
