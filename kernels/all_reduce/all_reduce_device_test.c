/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce on GPUs. The sum is formed in float32 in rising order of the ranks, so its bits are known; the norm is
 * compared with float64. What needs no GPU: all_reduce_launch_test.c. */
#include "kernels/all_reduce/all_reduce.h"

#include <time.h>

#include "kernels/all_reduce/test_all_reduce.h"
#include "kernels/cuda/test_comm.h"

enum { MOST_CANDIDATES = 64, MOST_TRIALS = 1024, MOST_SETS = 5 };

struct problem {
    int64_t rows, valid, width, ranks;
    enum dtype dtype, norm_dtype, out_dtype;
    bool residual, in_place, norm;
    bool own_residual, own_norm; /* ALL_REDUCE_OWN_ROWS */
    bool nans;                   /* words of COMM_EMPTY among the valid data */
    bool integers;               /* small ones, whose sums no rounding changes */
};

static const struct device_kernel *const kernels[] = {&device_all_reduce_one_shot, &device_all_reduce_two_shot};

static void problem_params(const struct problem *p, int64_t *params)
{
    const int64_t filled[ALL_REDUCE_PARAMS] = {
        [ALL_REDUCE_ROWS] = p->rows,
        [ALL_REDUCE_COUNT_INDEX] = 1,
        [ALL_REDUCE_WIDTH] = p->width,
        [ALL_REDUCE_RANKS] = p->ranks,
        [ALL_REDUCE_X_DTYPE] = p->dtype,
        [ALL_REDUCE_HAS_RESIDUAL] = !p->residual      ? ALL_REDUCE_NO_ROWS
                                    : p->own_residual ? ALL_REDUCE_OWN_ROWS
                                                      : ALL_REDUCE_EVERY_ROW,
        [ALL_REDUCE_HAS_NORM] = !p->norm      ? ALL_REDUCE_NO_ROWS
                                : p->own_norm ? ALL_REDUCE_OWN_ROWS
                                              : ALL_REDUCE_EVERY_ROW,
        [ALL_REDUCE_NORM_DTYPE] = p->norm_dtype,
        [ALL_REDUCE_EPS_BITS] = test_float_bits(all_reduce_test_eps),
        [ALL_REDUCE_OUT_DTYPE] = p->out_dtype,
    };
    memcpy(params, filled, sizeof filled);
}

static size_t cells_of(const struct problem *p) { return (size_t)(p->rows * p->width); }
static size_t x_bytes(const struct problem *p) { return cells_of(p) * dtype_bytes(p->dtype); }

static size_t exchange_bytes(const struct problem *p)
{
    const bool wide = dtype_bytes(p->out_dtype) > dtype_bytes(p->dtype) || (p->own_residual && !p->own_norm);
    uint64_t bytes;
    assert_true(all_reduce_device_buffer_bytes((uint64_t)p->rows, (uint64_t)p->width, (uint64_t)p->ranks, p->dtype,
                                               wide ? DTYPE_F32 : p->dtype, &bytes));
    return (size_t)bytes;
}

/* ---- data on the host ---- */

/* What a rank brings; nothing but poison in rows that are not valid. */
static void *make_x(const struct problem *p, struct test_memory *memory, uint64_t seed)
{
    struct test_random random = {seed * 2 + 1};
    const size_t valid = (size_t)(p->valid * p->width), words = valid * dtype_bytes(p->dtype) / 4;
    uint8_t *x = memset(test_take(memory, x_bytes(p)), 0xff, x_bytes(p));
    if (p->integers) {
        float *values = test_take(memory, valid * 4);
        for (size_t i = 0; i < valid; i++) values[i] = (float)test_random_range(&random, -8, 8);
        test_encode(values, x, valid, p->dtype);
    } else {
        test_fill(&random, x, valid, p->dtype, -3, 3);
    }
    for (size_t i = 0; p->nans && words && i < 1 + words / 50; i++)
        memset(x + 4 * (size_t)test_random_range(&random, 0, (int64_t)words - 1), 0xff, 4);
    return x;
}

/* Operands, and what must come out, of one rank. */
struct host {
    float *x[PLAN_MAX_RANKS]; /* decoded, of all ranks; one if a rank exchanges with itself */
    void *encoded[PLAN_MAX_RANKS];
    int count;
    float *residual, *weight; /* [rows, width], [width] */
    void *encoded_weight;
    struct test_memory memory;
};

static void host_open(struct host *host, const struct problem *p, int count, uint64_t seed)
{
    struct test_random random = {seed + 99};
    struct test_memory *memory = &host->memory;
    *host = (struct host){.count = count};
    for (int k = 0; k < count; k++) {
        host->encoded[k] = make_x(p, memory, seed * 31 + (uint64_t)k);
        host->x[k] = test_take(memory, cells_of(p) * 4);
        test_decode(host->encoded[k], host->x[k], cells_of(p), p->dtype);
    }
    host->residual = test_take(memory, cells_of(p) * 4);
    test_fill(&random, host->residual, cells_of(p), DTYPE_F32, -3, 3);
    if (p->integers) memset(host->residual, 0, cells_of(p) * 4);
    host->weight = test_take(memory, (size_t)p->width * 4);
    host->encoded_weight = test_take(memory, (size_t)p->width * 4);
    test_fill(&random, host->encoded_weight, (size_t)p->width, p->norm_dtype, 0.2f, 2);
    test_decode(host->encoded_weight, host->weight, (size_t)p->width, p->norm_dtype);
}

/* Term k of row r's sum. A rank that exchanges with itself receives from itself: in one_shot its own row; in two_shot
 * what it sent to the owners of a group of rows, or, in the last group, if it is not whole, the first row of that. */
static const float *term(const struct problem *p, const struct host *host, bool two_shot, int64_t r, int64_t k)
{
    if (host->count > 1) return host->x[k] + r * p->width;
    int64_t first = r / p->ranks * p->ranks;
    int64_t row = !two_shot ? r : first + p->ranks <= p->valid ? first + k : first;
    return host->x[0] + row * p->width;
}

/* Whether a rank has row r of `out`; a rank that exchanges with itself is rank 0. */
static bool has_row(const struct problem *p, int64_t r, int rank) { return !p->own_norm || r % p->ranks == rank; }

/* The row of `residual` in a rank's result for row r. It is another row if a rank exchanges with itself and finds the
 * norm or `out` of its own row in the place of one that another rank would own. */
static int64_t residual_row(const struct problem *p, const struct host *host, int64_t r)
{
    return host->count > 1 || !(p->own_residual || p->own_norm) ? r : r / p->ranks * p->ranks;
}

/* The residual as rank `rank` gets it: poison where it must not be read. */
static void give_residual(const struct problem *p, const struct host *host, int rank, float *residual)
{
    memcpy(residual, host->residual, cells_of(p) * 4);
    for (int64_t r = 0; (p->own_residual || p->own_norm) && r < p->valid; r++)
        if (r % p->ranks != rank) memset(residual + r * p->width, 0xff, (size_t)p->width * 4);
}

/* The sum of row r, as bits. */
static void sum_row(const struct problem *p, const struct host *host, bool two_shot, int64_t r, float *sum)
{
    const size_t width = (size_t)p->width;
    for (size_t c = 0; c < width; c++) sum[c] = 0;
    for (int64_t k = 0; k < p->ranks; k++) {
        const float *x = term(p, host, two_shot, r, k);
        for (size_t c = 0; c < width; c++) sum[c] += x[c];
    }
    if (!two_shot || (p->residual && p->own_residual) || (p->norm && p->own_norm)) return;
    test_round(sum, width, p->dtype);
}

/* `out` and `normed` as they came from a rank's memory. */
static void check_result(const struct problem *p, const struct host *host, bool two_shot, int rank, const float *out,
                         const void *normed, const char *what)
{
    const size_t width = (size_t)p->width, element = dtype_bytes(p->out_dtype);
    struct test_memory memory = {.count = 0};
    float *expected = test_take(&memory, width * 4);
    for (int64_t r = 0; r < p->valid; r++) {
        const float *row = out + r * p->width, *added = host->residual + residual_row(p, host, r) * p->width;
        sum_row(p, host, two_shot, r, expected);
        for (size_t c = 0; p->residual && c < width; c++) expected[c] += added[c];
        if (has_row(p, r, rank))
            all_reduce_check_row(expected, row, p->width, r, what);
        else if (!test_is_poison(row, width * 4))
            fail_msg("%s: rank %d: row %d, which is another's, was written", what, rank, (int)r);
        if (p->norm)
            all_reduce_check_normed_row(expected, host->weight, (const uint8_t *)normed + (size_t)r * width * element,
                                        p->out_dtype, p->width, r, what);
    }
    /* Other rows stay as they were. */
    const size_t done = (size_t)p->valid * width, rest = cells_of(p) - done;
    if (p->in_place)
        assert_memory_equal(out + done, host->residual + done, rest * 4);
    else
        assert_true(test_is_poison(out + done, rest * 4));
    if (p->norm) assert_true(test_is_poison((const uint8_t *)normed + done * element, rest * element));
    test_release(&memory);
}

/* ---- one rank alone ---- */

struct trial {
    struct problem problem;
    const struct device_kernel *kernel;
    const int64_t *params;
};
static struct trial trials[MOST_TRIALS];
static struct test_variants variants;

/* The first `most` candidates of each kernel, of two_shot in both ways, for the problem. */
static void add_trials(const struct problem *p, int most)
{
    static int64_t candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    int64_t params[PLAN_MAX_PARAMS] = {0};
    int of_problem = 0;
    problem_params(p, params);
    for (int k = 0; k < 2; k++) {
        int count = kernels[k]->candidates(params, &test_device()->device.facts, candidates, MOST_CANDIDATES);
        assert_in_range(count, 0, MOST_CANDIDATES - 1);
        if (kernels[k] == &device_all_reduce_one_shot && (p->own_residual || p->own_norm)) assert_int_equal(count, 0);
        int taken[3] = {0}; /* by HALVES: of each way so many */
        for (int c = 0; c < count; c++) {
            if (taken[candidates[c][ALL_REDUCE_DEVICE_HALVES]]++ >= most) continue;
            const int added = test_variants_add(&variants, kernels[k], candidates[c]);
            assert_in_range(added, 0, MOST_TRIALS - 1);
            trials[added] = (struct trial){*p, kernels[k], variants.params[added]};
            of_problem++;
        }
    }
    assert_true(of_problem > 0);
}

/* With all rows of the residual stream on every rank; with the owners' rows of the residual; and of the norm, too. */
static void add_sharings(struct problem problem, int most)
{
    problem.own_residual = problem.own_norm = false;
    add_trials(&problem, most);
    problem.own_residual = problem.residual;
    if (problem.own_residual) add_trials(&problem, most);
    problem.own_norm = problem.norm;
    if (problem.own_norm) add_trials(&problem, most);
}

/* In the order of the contract. */
static int list_operands(const struct problem *p, const cu_deviceptr *all, cu_deviceptr *operands)
{
    int count = ALL_REDUCE_OUT + 1;
    memcpy(operands, all, (size_t)count * sizeof *operands);
    if (p->residual) operands[count++] = p->in_place ? all[ALL_REDUCE_OUT] : all[ALL_REDUCE_RESIDUAL];
    if (!p->norm) return count;
    operands[count++] = all[ALL_REDUCE_NORM];
    operands[count++] = all[ALL_REDUCE_NORMED];
    return count;
}

static void run_alone(const struct trial *trial, int rounds)
{
    const struct problem *p = &trial->problem;
    const char *what = test_describe(trial->kernel, trial->params);
    const bool two_shot = trial->kernel == &device_all_reduce_two_shot;
    struct test_launch launch;
    struct test_comm comm;
    test_launch_open_operands(&launch, &op_all_reduce, trial->params, p->valid);
    test_kernel_open(&launch.kernel, trial->kernel, trial->params);
    /* More vectors of a row than 512 threads have registers for, or more ranks, may spill. */
    if (p->ranks <= 8 && p->width * (int64_t)dtype_bytes(p->dtype) <= 32768 && launch.kernel.local_bytes)
        fail_msg("%s: %d bytes of spilled registers", what, launch.kernel.local_bytes);
    test_comm_open_alone(&comm, (int)p->ranks, exchange_bytes(p));
    launch.addresses[ALL_REDUCE_HEADER] = test_comm_header(&comm, 0);
    for (int round = 0; round < rounds; round++) {
        struct host host;
        host_open(&host, p, 1, (uint64_t)round + 7);
        launch.addresses[ALL_REDUCE_BUFFER] = test_comm_buffer(&comm, 0, round % TEST_COMM_BUFFERS);
        memcpy(launch.host[ALL_REDUCE_X], host.encoded[0], x_bytes(p));
        if (p->residual) give_residual(p, &host, 0, launch.host[ALL_REDUCE_RESIDUAL]);
        if (p->in_place) test_launch_alias(&launch, ALL_REDUCE_RESIDUAL, ALL_REDUCE_OUT);
        if (p->norm) memcpy(launch.host[ALL_REDUCE_NORM], host.encoded_weight, launch.device[ALL_REDUCE_NORM].bytes);
        test_launch_run(&launch);
        test_comm_assert_done(&comm, what);
        check_result(p, &host, two_shot, 0, launch.found[ALL_REDUCE_OUT], launch.found[ALL_REDUCE_NORMED], what);
        test_release(&host.memory);
    }
    test_comm_close(&comm);
    test_launch_close(&launch);
}

static void run_trials(int rounds)
{
    test_variants_compile(&variants);
    for (int t = 0; t < variants.count; t++) run_alone(&trials[t], rounds);
    variants.count = 0;
}

/* Everything that does not follow from the sizes, in turn. */
static struct problem make_problem(int number, int64_t rows, int64_t valid, int64_t width, int64_t ranks)
{
    return (struct problem){.rows = rows,
                            .valid = valid,
                            .width = width,
                            .ranks = ranks,
                            .dtype = all_reduce_test_dtypes[number % 3],
                            .norm_dtype = all_reduce_test_dtypes[number / 3 % 3],
                            .out_dtype = all_reduce_test_dtypes[number / 2 % 3],
                            .residual = number % 4 != 1,
                            .in_place = number % 4 > 1,
                            .norm = number % 5 != 2,
                            .own_residual = number % 4 != 1 && number % 7 > 3,
                            .own_norm = number % 5 != 2 && number % 7 % 2 == 1};
}

TEST(alone_equals_reference)
{
    TEST_NEEDS_DEVICE();
    static const int64_t ranks[] = {2, 3, 4, 8, 16}, widths[] = {8, 64, 2048, 4096, 5120, 8192, 16384};
    struct test_random random = {3};
    const int step = test_comm_ranks_can_meet() ? 1 : 4; /* tools take minutes over all */
    int number = 0;
    for (int r = 0; r < 5; r++)
        for (int w = 0; w < 7; w++, number++) {
            int64_t rows = test_random_range(&random, 1, 70), valid = test_random_range(&random, 0, rows);
            if (number % step) continue;
            struct problem problem = make_problem(number, rows, number % 3 ? valid : rows, widths[w], ranks[r]);
            add_trials(&problem, 1);
        }
    run_trials(4);
}

TEST(every_candidate)
{
    TEST_NEEDS_DEVICE();
    static const struct {
        int64_t rows, valid, width;
        enum dtype dtype;
    } shapes[] = {{1, 1, 4096, DTYPE_BF16},
                  {16, 13, 4096, DTYPE_BF16},
                  {5, 5, 2048, DTYPE_F32},
                  {70, 66, 8192, DTYPE_BF16}};
    const bool whole = test_comm_ranks_can_meet();
    for (int s = 0; s < (whole ? 4 : 2); s++)
        for (int64_t ranks = 2; ranks <= (whole ? 8 : 2); ranks *= 2) {
            struct problem problem = make_problem(3, shapes[s].rows, shapes[s].valid, shapes[s].width, ranks);
            problem.dtype = shapes[s].dtype;
            problem.norm_dtype = problem.out_dtype = DTYPE_BF16;
            add_sharings(problem, MOST_CANDIDATES);
        }
    run_trials(2);
}

/* A data word equal to "empty" is sent as another NaN, so that no thread waits without end. */
TEST(words_that_look_empty)
{
    TEST_NEEDS_DEVICE();
    for (int d = 0; d < 3; d++)
        for (int64_t ranks = 2; ranks <= 4; ranks += 2) {
            struct problem problem = make_problem(3 * d, 9, 7, 512, ranks);
            problem.dtype = all_reduce_test_dtypes[d];
            problem.nans = true;
            problem.norm = problem.residual = true;
            add_sharings(problem, 2);
        }
    run_trials(2);
}

/* ---- several ranks ---- */

/* Memory of each rank, as list_operands takes it, but for x, of which there are `sets`. */
struct group {
    const struct problem *problem;
    struct test_comm comm;
    struct test_comm_kernel bound;
    struct host hosts[MOST_SETS];
    int sets;
    float *residual[PLAN_MAX_RANKS]; /* as each rank got it */
    struct test_memory memory;
    cu_deviceptr all[PLAN_MAX_RANKS][ALL_REDUCE_OPERANDS], x[PLAN_MAX_RANKS][MOST_SETS];
};

static void group_open(struct group *group, const struct problem *p, const struct test_kernel *kernel, int gpus,
                       int sets, uint64_t timeout_ns)
{
    const int32_t counts[2] = {INT32_MAX, (int32_t)p->valid};
    *group = (struct group){.problem = p, .sets = sets};
    if (gpus)
        test_comm_open(&group->comm, (int)p->ranks, gpus, exchange_bytes(p), timeout_ns);
    else
        test_comm_open_alone(&group->comm, (int)p->ranks, exchange_bytes(p));
    test_comm_kernel_open(&group->comm, &group->bound, kernel);
    for (int s = 0; s < sets; s++) host_open(&group->hosts[s], p, group->comm.members, (uint64_t)s + 1);
    const struct host *host = &group->hosts[0];
    for (int r = 0; r < group->comm.members; r++) {
        struct test_comm *comm = &group->comm;
        float *residual = test_take(&group->memory, cells_of(p) * 4);
        give_residual(p, host, r, residual);
        const cu_deviceptr all[ALL_REDUCE_OPERANDS] = {
            test_comm_memory(comm, r, counts, sizeof counts),
            0,
            test_comm_header(comm, r),
            0,
            test_comm_memory(comm, r, p->in_place ? residual : NULL, cells_of(p) * 4),
            test_comm_memory(comm, r, residual, cells_of(p) * 4),
            test_comm_memory(comm, r, host->encoded_weight, (size_t)p->width * dtype_bytes(p->norm_dtype)),
            test_comm_memory(comm, r, NULL, cells_of(p) * dtype_bytes(p->out_dtype)),
        };
        memcpy(group->all[r], all, sizeof all);
        group->residual[r] = residual;
        for (int s = 0; s < sets; s++)
            group->x[r][s] = test_comm_memory(comm, r, group->hosts[s].encoded[r], x_bytes(p));
    }
}

static void group_close(struct group *group)
{
    for (int s = 0; s < group->sets; s++) test_release(&group->hosts[s].memory);
    test_release(&group->memory);
    test_comm_close(&group->comm);
}

/* Operands of launch `number` of a rank. */
static int group_operands(const struct group *group, int rank, int number, cu_deviceptr *operands)
{
    cu_deviceptr all[ALL_REDUCE_OPERANDS];
    memcpy(all, group->all[rank], sizeof all);
    all[ALL_REDUCE_X] = group->x[rank][number % group->sets];
    all[ALL_REDUCE_BUFFER] = test_comm_buffer(&group->comm, rank, number % TEST_COMM_BUFFERS);
    return list_operands(group->problem, all, operands);
}

static void launch_rank(const struct group *group, int rank, int number)
{
    cu_deviceptr operands[ALL_REDUCE_OPERANDS];
    int count = group_operands(group, rank, number, operands);
    test_comm_launch(&group->comm, rank, &group->bound, operands, count);
}

/* Reads what a rank has into `out` and `normed`. */
static void read_rank(const struct group *group, int rank, float *out, void *normed)
{
    const struct problem *p = group->problem;
    test_comm_read(&group->comm, rank, group->all[rank][ALL_REDUCE_OUT], out, cells_of(p) * 4);
    test_comm_read(&group->comm, rank, group->all[rank][ALL_REDUCE_NORMED], normed,
                   cells_of(p) * dtype_bytes(p->out_dtype));
}

/* All ranks have the sum of set 0, and of what all have the same bits. */
static void check_ranks(const struct group *group, bool two_shot, const char *what)
{
    const struct problem *p = group->problem;
    const size_t bytes = cells_of(p) * 4, normed_bytes = cells_of(p) * dtype_bytes(p->out_dtype);
    struct test_memory memory = {.count = 0};
    float *out = test_take(&memory, bytes), *first = test_take(&memory, bytes);
    void *normed = test_take(&memory, normed_bytes), *first_normed = test_take(&memory, normed_bytes);
    read_rank(group, 0, first, first_normed);
    check_result(p, &group->hosts[0], two_shot, 0, first, first_normed, what);
    for (int r = 1; r < group->comm.members; r++) {
        read_rank(group, r, out, normed);
        if (p->own_norm)
            check_result(p, &group->hosts[0], two_shot, r, out, normed, what);
        else
            test_assert_same_bits(out, first, bytes, what);
        test_assert_same_bits(normed, first_normed, normed_bytes, what);
    }
    test_release(&memory);
}

static void reset_ranks(struct group *group)
{
    const struct problem *p = group->problem;
    const size_t bytes = cells_of(p) * 4;
    struct test_memory memory = {.count = 0};
    const void *poison = memset(test_take(&memory, bytes), 0xff, bytes);
    for (int r = 0; r < group->comm.members; r++)
        test_comm_write(&group->comm, r, group->all[r][ALL_REDUCE_OUT], p->in_place ? group->residual[r] : poison,
                        bytes);
    test_release(&memory);
}

/* Single launches, the ranks in another order each time. */
static void run_ranks(const struct trial *trial, int gpus)
{
    const struct problem *p = &trial->problem;
    const char *what = test_describe(trial->kernel, trial->params);
    struct test_kernel kernel;
    static struct group group;
    test_kernel_open(&kernel, trial->kernel, trial->params);
    group_open(&group, p, &kernel, gpus, 1, 0);
    for (int round = 0; round < 4; round++) {
        if (round) reset_ranks(&group);
        for (int r = 0; r < group.comm.members; r++) launch_rank(&group, (r + round) % group.comm.members, round);
        test_comm_wait(&group.comm);
        test_comm_assert_done(&group.comm, what);
        check_ranks(&group, trial->kernel == &device_all_reduce_two_shot, what);
    }
    group_close(&group);
    test_kernel_close(&kernel);
}

/* Integers add up in the residual's place, launch by launch: a round that took another's data, or missed its own, shows
 * in the sum of all rounds. gpus 0: one rank alone. */
static void add_up(const struct trial *trial, int gpus, int launches, int replays)
{
    const struct problem *p = &trial->problem;
    const bool two_shot = trial->kernel == &device_all_reduce_two_shot;
    const char *what = test_describe(trial->kernel, trial->params);
    cu_graph_exec execs[PLAN_MAX_RANKS];
    struct test_kernel kernel;
    static struct group group;
    enum { SETS = MOST_SETS * TEST_COMM_BUFFERS }; /* no set comes round in the same buffer sooner */
    assert_true(p->integers && p->in_place && launches % SETS == 0);
    test_kernel_open(&kernel, trial->kernel, trial->params);
    group_open(&group, p, &kernel, gpus, MOST_SETS, 0);
    for (int r = 0; r < group.comm.members; r++) {
        cu_deviceptr packed[SETS * ALL_REDUCE_OPERANDS];
        int count = 0;
        for (int s = 0; s < SETS; s++) count = group_operands(&group, r, s, packed + s * count);
        execs[r] = test_comm_graph(&group.comm, r, &group.bound, packed, SETS, count, launches);
    }
    for (int i = 0; i < replays; i++)
        for (int r = 0; r < group.comm.members; r++)
            test_comm_replay(&group.comm, (r + i) % group.comm.members, execs[(r + i) % group.comm.members]);
    test_comm_wait(&group.comm);
    test_comm_assert_done(&group.comm, what);
    /* sum[c] of a round is at most 16 * 8, and all rounds' stay below 2^24: exact. */
    struct test_memory memory = {.count = 0};
    float *out = test_take(&memory, cells_of(p) * 4), *sum = test_take(&memory, (size_t)p->width * 4);
    float *expected = memset(test_take(&memory, cells_of(p) * 4), 0, cells_of(p) * 4);
    for (int64_t r = 0; r < p->valid; r++)
        for (int s = 0; s < MOST_SETS; s++) {
            sum_row(p, &group.hosts[s], two_shot, r, sum);
            for (int64_t c = 0; c < p->width; c++)
                expected[r * p->width + c] += (float)(replays * (launches / MOST_SETS)) * sum[c];
        }
    for (int r = 0; r < group.comm.members; r++) {
        test_comm_read(&group.comm, r, group.all[r][ALL_REDUCE_OUT], out, cells_of(p) * 4);
        for (int64_t row = 0; row < p->rows; row++)
            if (has_row(p, row, r))
                test_assert_close(out + row * p->width, expected + row * p->width, (size_t)p->width, 0, 0, what);
    }
    test_release(&memory);
    for (int r = 0; r < group.comm.members; r++) test_comm_graph_free(&group.comm, r, execs[r]);
    group_close(&group);
    test_kernel_close(&kernel);
}

static struct problem integer_problem(int64_t rows, int64_t valid, int64_t width, int64_t ranks)
{
    return (struct problem){.rows = rows,
                            .valid = valid,
                            .width = width,
                            .ranks = ranks,
                            .dtype = DTYPE_BF16,
                            .norm_dtype = DTYPE_BF16,
                            .out_dtype = DTYPE_BF16,
                            .residual = true,
                            .in_place = true,
                            .norm = true,
                            .integers = true};
}

TEST(rounds_in_a_graph_alone)
{
    TEST_NEEDS_DEVICE();
    for (int64_t ranks = 2; ranks <= 8; ranks *= 2) add_sharings(integer_problem(9, 9, 2048, ranks), 1);
    test_variants_compile(&variants);
    for (int t = 0; t < variants.count; t++) add_up(&trials[t], 0, 100, test_comm_ranks_can_meet() ? 20 : 1);
    variants.count = 0;
}

/* The whole protocol, with data that differ, where there is but one GPU: the ranks' blocks are so few that all of them
 * run side by side. */
TEST(ranks_on_one_gpu)
{
    TEST_NEEDS_DEVICE();
    if (!test_comm_ranks_can_meet()) skip();
    for (int64_t ranks = 2; ranks <= 4; ranks++)
        for (int64_t rows = 1; rows <= 7; rows += 3) {
            struct problem problem = make_problem((int)(ranks * 4 + rows + 1), rows, rows - (rows > 3), 2048, ranks);
            problem.nans = rows == 4;
            add_sharings(problem, 1);
        }
    test_variants_compile(&variants);
    for (int t = 0; t < variants.count; t++) run_ranks(&trials[t], 1);
    variants.count = 0;
}

TEST(rounds_in_graphs_on_one_gpu)
{
    TEST_NEEDS_DEVICE();
    if (!test_comm_ranks_can_meet()) skip();
    for (int64_t ranks = 2; ranks <= 4; ranks += 2) add_sharings(integer_problem(2, 2, 1024, ranks), 1);
    test_variants_compile(&variants);
    for (int t = 0; t < variants.count; t++) add_up(&trials[t], 1, 40, 50);
    variants.count = 0;
}

#define NEEDS_GPUS()                                                     \
    do {                                                                 \
        TEST_NEEDS_DEVICE();                                             \
        if (!test_comm_ranks_can_meet() || test_comm_gpus() < 2) skip(); \
    } while (0)

TEST(several_gpus)
{
    NEEDS_GPUS();
    static const int64_t widths[] = {64, 2048, 4096, 5120, 8192};
    struct test_random random = {17};
    for (int gpus = 2; gpus <= test_comm_gpus(); gpus *= 2) {
        for (int w = 0; w < 5; w++)
            for (int i = 0; i < 2; i++) {
                int64_t rows = i ? test_random_range(&random, 2, 300) : test_random_range(&random, 1, 8);
                struct problem problem =
                    make_problem(gpus + w + 3 * i, rows, test_random_range(&random, 1, rows), widths[w], gpus);
                problem.nans = w == 2;
                add_sharings(problem, 2);
            }
        test_variants_compile(&variants);
        for (int t = 0; t < variants.count; t++) run_ranks(&trials[t], gpus);
        variants.count = 0;
    }
}

TEST(rounds_in_graphs_on_several_gpus)
{
    NEEDS_GPUS();
    for (int gpus = 2; gpus <= test_comm_gpus(); gpus *= 2) {
        static const int64_t rows[] = {1, 13, 150};
        for (int i = 0; i < 3; i++) add_sharings(integer_problem(rows[i], rows[i], 4096, gpus), 1);
        test_variants_compile(&variants);
        for (int t = 0; t < variants.count; t++) add_up(&trials[t], gpus, 200, 50);
        variants.count = 0;
    }
}

/* ---- ranks that do not come ---- */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void run_without_rank_1(int ranks, const struct device_kernel *device_kernel, int64_t blocks, int64_t halves,
                               bool by_owner)
{
    enum { TIMEOUT_MS = 100 };
    struct problem p = integer_problem(32, 32, 1024, ranks);
    int64_t params[PLAN_MAX_PARAMS] = {0};
    struct test_kernel kernel;
    struct comm_header header;
    static struct group group;
    p.own_norm = by_owner;
    problem_params(&p, params);
    params[ALL_REDUCE_DEVICE_THREADS] = 128;
    params[ALL_REDUCE_DEVICE_BLOCKS] = blocks;
    params[ALL_REDUCE_DEVICE_HALVES] = halves;
    test_kernel_open(&kernel, device_kernel, params);
    group_open(&group, &p, &kernel, test_comm_gpus() >= ranks ? ranks : 1, 1, TIMEOUT_MS * UINT64_C(1000000));
    double start = seconds_now();
    for (int r = 0; r < ranks; r++)
        if (r != 1) launch_rank(&group, r, 0);
    test_comm_wait(&group.comm);
    double seconds = seconds_now() - start;
    if (seconds < 0.9e-3 * TIMEOUT_MS || seconds > 12e-3 * TIMEOUT_MS)
        fail_msg("%s: waited %.3f s for a rank that did not come, expected about %.3f", device_kernel->name, seconds,
                 1e-3 * TIMEOUT_MS);
    /* No rank reports a rank that itself waits; the last to check may find that it has been told to stop. */
    uint32_t blamed = 0;
    for (int r = 0; r < ranks; r++) {
        const uint32_t fault = group.comm.fault[r];
        test_comm_read_header(&group.comm, r, &header);
        assert_true(header.stop != 0 && header.timed_out == fault && (fault == 0 || (fault == 1 + 1 && r != 1)));
        blamed += fault != 0;
    }
    assert_true(blamed > 0);
    /* A later rank is told to stop, and reports no other. */
    launch_rank(&group, 1, 1);
    test_comm_wait(&group.comm);
    assert_int_equal(group.comm.fault[1], 0);
    test_comm_read_header(&group.comm, 1, &header);
    assert_int_equal(header.timed_out, 0);
    group_close(&group);
    test_kernel_close(&kernel);
}

/* One block has many rows to wait for: it waits once. */
TEST(a_missing_rank)
{
    TEST_NEEDS_DEVICE();
    if (!test_comm_ranks_can_meet()) skip(); /* nor keep their time */
    for (int ranks = 2; ranks <= 4; ranks++) {
        run_without_rank_1(ranks, &device_all_reduce_one_shot, 1, 0, false);
        for (int way = 0; way < 8; way++)
            run_without_rank_1(ranks, &device_all_reduce_two_shot, way & 1 ? 32 : 1, way & 2 ? 2 : 1, way & 4);
    }
}

int main(void) { return test_run(); }
