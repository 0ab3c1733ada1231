/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of state_space: chunks and mixed batches on every instruction set against a computation in double over whole sequences, the
 * same bits alone and in a batch, a state of NaN before a sequence begins, refusal of hostile parameters. */
#include "kernels/state_space/state_space.h"

#include <float.h>
#include <math.h>

#include "kernels/op/test_support.h"

enum { SLOTS = 3, TOKENS = 9, BEFORE = 128 /* bytes of another layer in a slot's block */ };

struct shape {
    int64_t groups, heads, state_dim, head_dim;
    enum dtype dtype;  /* of the vectors */
    float least, most; /* of dt */
};

struct setup {
    struct test_case test;
    struct shape shape;
    int64_t widths[3]; /* of rows of xbc, z and dt */
    float *inputs[3];  /* [SLOTS, TOKENS, width] */
    double *expected;  /* [SLOTS, TOKENS, heads * head_dim] */
    struct test_memory memory;
};

static const int inputs[3] = {STATE_SPACE_XBC, STATE_SPACE_Z, STATE_SPACE_DT};

static double element(const struct setup *setup, int operand, int64_t index)
{
    return (double)op_element(setup->test.call.operands[operand], index, setup->shape.dtype);
}

/* All tokens of a sequence, by the formulas of the contract, with a state in double. */
static void expect_head(struct setup *setup, int64_t slot, int64_t head)
{
    const struct shape *shape = &setup->shape;
    const int64_t n = shape->state_dim, p = shape->head_dim, group = head * shape->groups / shape->heads;
    double *state = test_take(&setup->memory, (size_t)(n * p) * sizeof *state);
    memset(state, 0, (size_t)(n * p) * sizeof *state);
    for (int64_t t = 0; t < TOKENS; t++) {
        const float *xbc = setup->inputs[0] + (slot * TOKENS + t) * setup->widths[0];
        const float *x = xbc + head * p, *b = xbc + shape->heads * p + group * n, *c = b + shape->groups * n;
        const float *z = setup->inputs[1] + (slot * TOKENS + t) * setup->widths[1] + head * p;
        const double raw = (double)setup->inputs[2][(slot * TOKENS + t) * setup->widths[2] + head] +
                           element(setup, STATE_SPACE_DT_BIAS, head);
        const double dt = fmax((double)shape->least, fmin((double)shape->most, log(1 + exp(raw))));
        double *out = setup->expected + ((slot * TOKENS + t) * shape->heads + head) * p;
        for (int64_t i = 0; i < n * p; i++) state[i] *= exp(-exp(element(setup, STATE_SPACE_A_LOG, head)) * dt);
        for (int64_t j = 0; j < p; j++) {
            out[j] = element(setup, STATE_SPACE_D, head) * (double)x[j];
            for (int64_t i = 0; i < n; i++) {
                state[i * p + j] += dt * (double)b[i] * (double)x[j];
                out[j] += state[i * p + j] * (double)c[i];
            }
            out[j] *= (double)z[j] / (1 + exp(-(double)z[j]));
        }
    }
}

static void setup_open(struct setup *setup, const struct shape *shape)
{
    struct test_random random = {(uint64_t)(shape->state_dim * 31 + shape->head_dim)};
    const uint64_t part =
        state_space_state_bytes((uint64_t)shape->heads, (uint64_t)shape->state_dim, (uint64_t)shape->head_dim);
    struct plan_geometry geometry = test_geometry;
    geometry.slots = SLOTS;
    geometry.recurrent_bytes = 2 * BEFORE + (part + 63) / 64 * 64;
    memset(setup, 0, sizeof *setup);
    setup->shape = *shape;
    const int64_t params[STATE_SPACE_PARAMS] = {
        [STATE_SPACE_ROWS] = TOKENS,
        [STATE_SPACE_GROUPS] = shape->groups,
        [STATE_SPACE_HEADS] = shape->heads,
        [STATE_SPACE_STATE_DIM] = shape->state_dim,
        [STATE_SPACE_HEAD_DIM] = shape->head_dim,
        [STATE_SPACE_DT_MIN_BITS] = test_float_bits(shape->least),
        [STATE_SPACE_DT_MAX_BITS] = test_float_bits(shape->most),
        [STATE_SPACE_A_DTYPE] = shape->dtype,
        [STATE_SPACE_DT_DTYPE] = shape->dtype,
        [STATE_SPACE_D_DTYPE] = shape->dtype,
        [STATE_SPACE_RECURRENT_BYTES] = (int64_t)geometry.recurrent_bytes,
        [STATE_SPACE_SLOT_COUNT] = SLOTS,
        [STATE_SPACE_X_DTYPE] = DTYPE_F32,
    };
    struct test_case *test = &setup->test;
    test_case_open(test, &op_state_space, params, &geometry, TOKENS);
    assert_int_equal(test->demands[STATE_SPACE_STATE].bytes, (SLOTS - 1) * geometry.recurrent_bytes + part);
    test_case_replace(test, STATE_SPACE_STATE, SLOTS * geometry.recurrent_bytes, BEFORE);
    const int64_t values = shape->heads * shape->head_dim;
    setup->widths[0] = values + 2 * shape->groups * shape->state_dim;
    setup->widths[1] = values;
    setup->widths[2] = shape->heads;
    for (int i = 0; i < 3; i++) {
        const size_t count = (size_t)(SLOTS * TOKENS * setup->widths[i]);
        setup->inputs[i] = test_take(&setup->memory, count * sizeof(float));
        test_fill(&random, setup->inputs[i], count, DTYPE_F32, -2, 2);
    }
    test_fill(&random, test->call.operands[STATE_SPACE_A_LOG], (size_t)shape->heads, shape->dtype, -3, 1);
    test_fill(&random, test->call.operands[STATE_SPACE_DT_BIAS], (size_t)shape->heads, shape->dtype, -1, 1);
    test_fill(&random, test->call.operands[STATE_SPACE_D], (size_t)shape->heads, shape->dtype, 0.5f, 1.5f);
    setup->expected = test_take(&setup->memory, (size_t)(SLOTS * TOKENS * values) * sizeof(double));
    for (int64_t slot = 0; slot < SLOTS; slot++)
        for (int64_t head = 0; head < shape->heads; head++) expect_head(setup, slot, head);
}

static void fill_step(struct setup *setup, const int32_t (*rows)[2], int32_t count)
{
    struct test_case *test = &setup->test;
    ((int32_t *)test->call.operands[STATE_SPACE_COUNTS])[0] = count;
    for (int32_t r = 0; r < count; r++) {
        ((int32_t *)test->call.operands[STATE_SPACE_SLOTS])[r] = rows[r][0];
        ((int32_t *)test->call.operands[STATE_SPACE_POSITIONS])[r] = rows[r][1];
        for (int i = 0; i < 3; i++)
            memcpy((float *)test->call.operands[inputs[i]] + r * setup->widths[i],
                   setup->inputs[i] + (rows[r][0] * TOKENS + rows[r][1]) * setup->widths[i],
                   (size_t)setup->widths[i] * sizeof(float));
    }
}

static void check_step(const struct setup *setup, const int32_t (*rows)[2], int32_t count, const char *what)
{
    const float *out = setup->test.call.operands[STATE_SPACE_OUT];
    const int64_t width = setup->widths[1];
    for (int32_t r = 0; r < count; r++)
        for (int64_t c = 0; c < width; c++) {
            const double want = setup->expected[(rows[r][0] * TOKENS + rows[r][1]) * width + c];
            if (!(fabs((double)out[r * width + c] - want) <= 3e-5 * (1 + fabs(want))))
                fail_msg("%s: slot %d, position %d, column %d: expected %.9g, found %.9g", what, rows[r][0], rows[r][1],
                         (int)c, want, (double)out[r * width + c]);
        }
}

static void run_step(struct setup *setup, const int32_t (*rows)[2], int32_t count, int isa, int members)
{
    struct test_case *test = &setup->test;
    fill_step(setup, rows, count);
    test_buffer_poison(&test->buffers[STATE_SPACE_OUT]);
    if (isa < 0)
        op_state_space.reference(&test->call);
    else
        test_run_op(&op_state_space, (enum cpu_isa)isa, &test->call, members);
    check_step(setup, rows, count, isa < 0 ? "reference" : cpu_isa_name((enum cpu_isa)isa));
}

/* Every sequence in chunks, then one row of each at a time; and again, after the state of the run before. */
static void run_all(struct setup *setup, int isa, int members)
{
    static const int32_t chunk[][2] = {{1, 0}, {1, 1}, {1, 2}, {1, 3}}, rest[][2] = {{1, 4}, {1, 5}, {1, 6}};
    static const int32_t batches[][3][2] = {{{2, 0}, {0, 0}, {1, 7}}, {{0, 1}, {1, 8}, {2, 1}}};
    run_step(setup, chunk, 4, isa, members);
    run_step(setup, rest, 3, isa, members);
    for (int b = 0; b < 2; b++) run_step(setup, batches[b], 3, isa, members);
}

static void check(const struct shape *shape)
{
    struct setup setup;
    setup_open(&setup, shape);
    run_all(&setup, -1, 1);
    for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++)
        if (cpu_isa_supported((enum cpu_isa)isa))
            for (int members = 1; members <= 3; members += 2) run_all(&setup, isa, members);
    test_case_assert_intact(&setup.test);
    const uint8_t *blocks = setup.test.buffers[STATE_SPACE_STATE].data;
    for (int64_t slot = 0; slot < SLOTS; slot++)
        assert_true(test_is_poison(blocks + slot * setup.test.params[STATE_SPACE_RECURRENT_BYTES], BEFORE));
    test_case_close(&setup.test);
    test_release(&setup.memory);
}

TEST(equals_the_formulas)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, DTYPE_F32, 0, FLT_MAX},         {2, 4, 16, 16, DTYPE_BF16, 0, FLT_MAX},
        {1, 3, 7, 13, DTYPE_F16, 0.5f, 1.25f},       {3, 3, 33, 20, DTYPE_F32, 0, 0.75f},
        {1, 4, 128, 64, DTYPE_BF16, 0.01f, FLT_MAX},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check(&shapes[i]);
}

/* A token's bits do not depend on what else is in the step, nor on the number of threads. */
TEST(same_bits_alone_and_in_a_batch)
{
    static const int32_t chunk[][2] = {{0, 0}, {0, 1}, {0, 2}, {0, 3}}, batch[][2] = {{2, 0}, {0, 3}, {1, 0}};
    struct setup setup;
    setup_open(&setup, &(struct shape){2, 6, 24, 40, DTYPE_F32, 0, FLT_MAX});
    const size_t bytes = (size_t)setup.widths[1] * sizeof(float);
    float *first = test_take(&setup.memory, bytes);
    const float *out = setup.test.call.operands[STATE_SPACE_OUT];
    for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_supported((enum cpu_isa)isa)) continue;
        run_step(&setup, chunk, 4, isa, 1);
        memcpy(first, out + 3 * setup.widths[1], bytes);
        for (int32_t r = 0; r < 3; r++) run_step(&setup, &chunk[r], 1, isa, 4);
        run_step(&setup, batch, 3, isa, 2);
        test_assert_same_bits(out + setup.widths[1], first, bytes, cpu_isa_name((enum cpu_isa)isa));
    }
    test_case_close(&setup.test);
    test_release(&setup.memory);
}

TEST(hostile_params_are_refused)
{
    struct setup setup;
    setup_open(&setup, &(struct shape){2, 4, 16, 16, DTYPE_F32, 0, 1});
    test_refuses(&op_state_space, setup.test.params, &setup.test.geometry,
                 TEST_CHANGES({STATE_SPACE_GROUPS, 3}, {STATE_SPACE_GROUPS, 0}, {STATE_SPACE_HEAD_DIM, 513},
                              {STATE_SPACE_STATE_DIM, 513}, {STATE_SPACE_HEADS, 4096},
                              {STATE_SPACE_DT_MIN_BITS, test_float_bits(1.5f)}, {STATE_SPACE_DT_MAX_BITS, -1},
                              {STATE_SPACE_RECURRENT_BYTES, 64}, {STATE_SPACE_SLOT_COUNT, 1}));
    test_hostile_params(&op_state_space, setup.test.params, &setup.test.geometry);
    test_case_close(&setup.test);
    test_release(&setup.memory);
}

int main(void) { return test_run(); }
