/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the ops share: operands of exactly the size that `check` demands, between canaries and poisoned;
 * reproducible random data; runs on every instruction set of this machine with teams of several sizes. */
#ifndef KERNELS_OP_TEST_SUPPORT_H
#define KERNELS_OP_TEST_SUPPORT_H

#include "formats/base/test_program.h"
#include "kernels/op/op.h"

/* xorshift64*: the same data on every machine. */
struct test_random {
    uint64_t state;
};
uint64_t test_random_bits(struct test_random *random);
int64_t test_random_range(struct test_random *random, int64_t low, int64_t high); /* inclusive */
float test_random_float(struct test_random *random, float low, float high);

/* Memory between two canaries, aligned to PLAN_ALIGNMENT, filled with bytes that are NaN as F32, F16 and BF16. */
struct test_buffer {
    uint8_t *data;
    size_t bytes;
};
struct test_buffer test_buffer_new(size_t bytes);
void test_buffer_poison(struct test_buffer *buffer);
void test_buffer_assert_intact(const struct test_buffer *buffer, const char *name); /* canaries */
void test_buffer_free(struct test_buffer *buffer);
bool test_is_poison(const void *data, size_t bytes);

/* Fills with values in [low, high) of F32, F16 or BF16. */
void test_fill(struct test_random *random, void *array, size_t count, enum dtype dtype, float low, float high);

/* Rounds to the dtype and back, as what stores and loads it does. */
void test_round(float *values, size_t count, enum dtype dtype);
void test_shuffle(struct test_random *random, int32_t *values, size_t count);

/* Memory for a test, all of it freed at once; never NULL. */
struct test_memory {
    void *blocks[64];
    int count;
};
void *test_take(struct test_memory *memory, size_t bytes);
void test_release(struct test_memory *memory);

/* An engine of one slot and one page, for ops that do not depend on it. */
extern const struct plan_geometry test_geometry;

/* One launch with operands of its own. */
struct test_case {
    const struct op_descriptor *op;
    int64_t params[PLAN_MAX_PARAMS];
    struct plan_geometry geometry;
    struct op_demand demands[PLAN_MAX_OPERANDS];
    int operand_count;
    struct test_buffer buffers[PLAN_MAX_OPERANDS];
    struct op_call call;
};

/* Checks params (which must pass) and allocates the operands. counts[count_index] is set to `valid`. */
void test_case_open(struct test_case *test, const struct op_descriptor *op, const int64_t *params,
                    const struct plan_geometry *geometry, int32_t valid);
void test_case_assert_intact(const struct test_case *test);
void test_case_close(struct test_case *test);

/* Puts the schema's default in the place of every dtype that is DTYPE_NONE. */
void test_complete_params(const struct op_descriptor *op, int64_t *params);

/* Poisons `out`, then runs on a team of test_teams[run] members; run TEST_TEAMS: the reference. */
void test_case_run(struct test_case *test, int out, int run);

/* Replaces an operand's memory by a larger one (the KV pool); the call points `offset` bytes into it. */
void test_case_replace(struct test_case *test, int operand, size_t bytes, size_t offset);

/* Runs on a team of `members`, made for the call. */
void test_run_op(const struct op_descriptor *op, enum cpu_isa isa, const struct op_call *call, int members);

/* Largest |a - b| - tolerance_relative * |b| over the arrays must not exceed tolerance_absolute; NaN never passes. */
void test_assert_close(const float *found, const float *expected, size_t count, double absolute, double relative,
                       const char *what);
void test_assert_same_bits(const void *found, const void *expected, size_t bytes, const char *what);

/* A parameter takes another value. Lists of them: TEST_CHANGES({index, value}, ...) gives their address and number. */
struct test_change {
    int index;
    int64_t value;
};
#define TEST_CHANGES(...)                      \
    (const struct test_change[]){__VA_ARGS__}, \
        sizeof((const struct test_change[]){__VA_ARGS__}) / sizeof(struct test_change)

/* params, changed in any one of these ways, must be refused with a message that names the op. */
void test_refuses(const struct op_descriptor *op, const int64_t *params, const struct plan_geometry *geometry,
                  const struct test_change *changes, size_t count);

/* Every parameter takes extreme values: check must refuse with a message or accept with sizes that make sense, and no
 * sanitizer may object. */
void test_hostile_params(const struct op_descriptor *op, const int64_t *params, const struct plan_geometry *geometry);

/* Ranks that meet in collectives: the COMM space of each, its header filled, and two buffers to take turns with. */
struct test_ranks {
    int count;
    size_t buffer_offsets[2], buffer_bytes;
    struct test_buffer comm[PLAN_MAX_RANKS];
};
void test_ranks_open(struct test_ranks *ranks, int count, size_t buffer_bytes, uint64_t timeout_ns);
struct comm_header *test_ranks_header(const struct test_ranks *ranks, int rank);
void *test_ranks_buffer(const struct test_ranks *ranks, int rank, int which);
void test_ranks_assert_intact(const struct test_ranks *ranks); /* nothing was written beside header and buffers */
void test_ranks_close(struct test_ranks *ranks);

/* Runs function(argument, rank) on a thread for each rank. Assertions of cmocka do not work in there. */
void test_ranks_run(int count, void (*function)(void *argument, int rank), void *argument);

/* As test_run_op, by one rank of several: on a team that exists. */
void test_run_on(struct team *team, const struct op_descriptor *op, enum cpu_isa isa, const struct op_call *call);

/* Ranks that run a collective on F32 rows of `width`: rounds follow each other without a pause, with the two buffers in turn. */
enum { TEST_GROUP_ROUNDS = 5 };
struct test_group {
    const struct op_descriptor *op;
    struct test_ranks ranks;
    struct plan_geometry geometry;
    int64_t rows, width, valid[TEST_GROUP_ROUNDS];
    struct test_case cases[PLAN_MAX_RANKS][TEST_GROUP_ROUNDS];
    struct team *teams[PLAN_MAX_RANKS]; /* NULL: the reference */
    int absent;                         /* the rank that does not come; -1: none */
};
/* Opens the cases, the buffers and header of which are those of the ranks; buffers have a place for each row of x. */
void test_group_open(struct test_group *group, const struct op_descriptor *op, const int64_t *params, int count,
                     int64_t width, uint64_t timeout_ns, struct test_random *random);
void test_group_close(struct test_group *group);
/* Teams of so many members for the next run, or with `mixed` of one to three; 0: the reference. */
void test_group_run(struct test_group *group, int members, bool mixed);
/* Rows of the buffers after the valid ones are as they were. */
void test_group_assert_buffers(const struct test_group *group);
/* After a run without the absent rank: all ranks have stopped, and outputs are as they were. */
void test_group_assert_stopped(const struct test_group *group, int out);
/* Numbers of ranks other than the geometry's (4), and in engines that have no collective, are refused. */
void test_refuses_other_ranks(const struct op_descriptor *op, const int64_t *params,
                              const struct plan_geometry *geometry, int ranks_param);

static inline int64_t test_float_bits(float value) { return (int64_t)float_to_bits(value); }

/* Instruction sets of this machine, and teams from one thread to more than it has processors. */
#define TEST_FOR_EACH_ISA(isa) \
    for (enum cpu_isa isa = CPU_PORTABLE; isa <= cpu_isa_best(); isa = (enum cpu_isa)(isa + 1))
extern const int test_teams[3];
enum { TEST_TEAMS = 3 };

#endif
