/* SPDX-License-Identifier: Apache-2.0 */
/* What op_verify allows in the COMM space (what it refuses: runtime/load/hostile_plans_test.c), and the ids of
 * parameters. */
#include <ctype.h>

#include "kernels/op/op.h"
#include "kernels/op/test_support.h"

#include "formats/base/test_support.h"
#include "formats/engine/engine_file.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/matmul/matmul.h"

enum { ROWS = 3, WIDTH = 32, VOCAB = 50, RANKS = 4, HEADER_BYTES = sizeof(struct comm_header) };

static const struct plan_geometry geometry = {.slots = ROWS,
                                              .max_context = 8,
                                              .page_tokens = 8,
                                              .pages_per_slot = 1,
                                              .page_bytes = 64,
                                              .vocab_size = VOCAB,
                                              .ranks = RANKS};

/* A plan of one launch, with each operand where the op wants it. */
struct fixture {
    struct plan plan;
    struct plan_launch launch;
    struct plan_operand operands[PLAN_MAX_OPERANDS];
    struct plan_param params[PLAN_MAX_PARAMS];
};

static void fixture_fill(struct fixture *fixture, const struct op_descriptor *op, const int64_t *params)
{
    struct op_demand demands[PLAN_MAX_OPERANDS];
    int count = 0;
    struct status status = {0};
    if (!op_demands(op, TARGET_CPU, params, &geometry, demands, &count, &status)) fail_msg("%s", status.message);
    uint64_t next[SPACE_COUNT] = {[SPACE_COMM] = HEADER_BYTES};
    memset(fixture, 0, sizeof *fixture);
    fixture->plan.header = (struct plan_header){.kind = PLAN_DECODE, .rows = ROWS, .out_rows = ROWS};
    assert_true(plan_place_step(&fixture->plan, VOCAB, 0, 0));
    const int params_listed = op_list_params(op, params, op->tunable_count, true, fixture->params);
    for (int i = 0; i < count; i++) {
        unsigned space = SPACE_WEIGHTS;
        while (!(demands[i].space_mask & (1u << space))) space++;
        struct plan_operand *operand = &fixture->operands[i];
        *operand = (struct plan_operand){.space = (uint8_t)space,
                                         .access = demands[i].access,
                                         .bytes = demands[i].bytes,
                                         .offset = next[space]};
        if (demands[i].field)
            operand->offset = space == SPACE_STEP ? fixture->plan.step[demands[i].field - 1].offset : 0;
        else
            next[space] += (demands[i].bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    }
    fixture->launch = (struct plan_launch){.op = (uint16_t)op->id,
                                           .operand_count = (uint16_t)count,
                                           .param_count = (uint16_t)params_listed,
                                           .tactic = PLAN_NO_TACTIC};
    fixture->plan.header.launch_count = 1;
    fixture->plan.header.operand_count = (uint32_t)count;
    fixture->plan.header.param_count = (uint32_t)params_listed;
    fixture->plan.launches = &fixture->launch;
    fixture->plan.operands = fixture->operands;
    fixture->plan.params = fixture->params;
}

static void assert_accepted(const struct fixture *fixture)
{
    struct status status = {0};
    if (!op_verify(&fixture->plan, 0, TARGET_CPU, &geometry, "test plan", &status)) fail_msg("%s", status.message);
}

static void assert_refused(const struct fixture *fixture, const char *words, int line)
{
    struct status status = {0};
    if (op_verify(&fixture->plan, 0, TARGET_CPU, &geometry, "test plan", &status)) fail_msg("line %d: accepted", line);
    assert_int_equal(status.code, STATUS_CORRUPT);
    if (!strstr(status.message, words)) fail_msg("line %d: the message lacks '%s': %s", line, words, status.message);
}

static const int64_t reduce_params[ALL_REDUCE_PARAMS] = {ROWS, 0, WIDTH,      RANKS, DTYPE_F32,
                                                         0,    0, DTYPE_BF16, 0,     DTYPE_BF16};
static const int64_t gather_params[ALL_GATHER_PARAMS] = {ROWS, 1, 13, VOCAB, RANKS};
TEST(buffers_may_lie_anywhere_after_the_header)
{
    struct fixture fixture;
    fixture_fill(&fixture, &op_all_reduce, reduce_params);
    assert_accepted(&fixture);
    fixture.operands[ALL_REDUCE_BUFFER].offset += 16 * PLAN_ALIGNMENT;
    fixture.operands[ALL_REDUCE_BUFFER].bytes += 100;
    assert_accepted(&fixture);
    fixture.operands[ALL_REDUCE_HEADER].bytes += PLAN_ALIGNMENT;
    assert_refused(&fixture, "header", __LINE__);
}

TEST(outputs_of_collectives)
{
    struct fixture fixture;
    fixture_fill(&fixture, &op_all_reduce, reduce_params);
    fixture.operands[ALL_REDUCE_OUT].offset = fixture.operands[ALL_REDUCE_X].offset; /* in place */
    assert_accepted(&fixture);

    fixture_fill(&fixture, &op_all_gather, gather_params);
    assert_accepted(&fixture); /* in the arena */
    const struct plan_field *step = fixture.plan.step;
    struct plan_operand *out = &fixture.operands[ALL_GATHER_OUT];
    out->space = SPACE_STEP;
    out->offset = step[STEP_LOGITS].offset;
    assert_accepted(&fixture);
}

/* A parameter that came after format 2.0 is listed after the tunables, where it differs from its fallback alone. */
TEST(later_params_are_listed_where_they_matter)
{
    int64_t params[MATMUL_PARAMS] = {4, 0, 64, 32}, found[MATMUL_PARAMS];
    struct plan_param list[PLAN_MAX_PARAMS];
    test_complete_params(&op_matmul, params);
    for (int i = MATMUL_FIRST_TUNABLE; i < MATMUL_PARAMS; i++) params[i] = 100 + i;
    int count = op_list_params(&op_matmul, params, MATMUL_TUNABLES, true, list);
    assert_int_equal(count, 14 + MATMUL_TUNABLES); /* as format 2.0 had them: ids 1, 2, 3, ... */
    for (int i = 0; i < count; i++) {
        assert_int_equal(list[i].id, i + 1);
        assert_int_equal(list[i].flags, i < 14 ? PLAN_PARAM_ESSENTIAL : 0);
    }
    params[MATMUL_SCALE_BITS] = test_float_bits(0.22f);
    for (int essential = 0; essential < 2; essential++) {
        struct plan_launch launch = {.op = OP_MATMUL};
        const struct plan plan = {.header = {.launch_count = 1}, .launches = &launch, .params = list};
        struct status status = {0};
        count = op_list_params(&op_matmul, params, MATMUL_TUNABLES, essential, list);
        launch.param_count = (uint16_t)count;
        assert_int_equal(count, 15 + MATMUL_TUNABLES);
        assert_int_equal(list[count - 1].id, OP_LATER_PARAM_ID);
        assert_int_equal(list[count - 1].flags, PLAN_PARAM_ESSENTIAL);
        test_expect_success(op_params(&plan, &launch, MATMUL_TUNABLES, found, &status), &status);
        assert_memory_equal(found, params, sizeof params);
        launch.param_count--; /* absent */
        test_expect_success(op_params(&plan, &launch, MATMUL_TUNABLES, found, &status), &status);
        assert_int_equal(found[MATMUL_SCALE_BITS], OP_FLOAT_ONE_BITS);
        launch.param_count++;
        list[count - 1].id = OP_LATER_PARAM_ID + 99;
        test_expect_failure(op_params(&plan, &launch, MATMUL_TUNABLES, found, &status), &status, STATUS_VERSION,
                            "newer runtime|matmul|355");
        list[count - 1].flags = 0;
        test_expect_success(op_params(&plan, &launch, MATMUL_TUNABLES, found, &status), &status);
    }
}

/* Which rows an op of these reads, the step says: its result for selected rows is not that of the selected inputs. */
TEST(rows_by_the_step_are_not_row_wise)
{
    static const enum plan_op by_step[] = {OP_EMBED, OP_ROPE_APPEND, OP_ATTENTION, OP_SAMPLE, OP_DRAFT},
                              row_wise[] = {OP_MATMUL, OP_RMS_NORM, OP_ADD, OP_ALL_REDUCE};
    for (size_t i = 0; i < sizeof by_step / sizeof *by_step; i++) assert_false(op_is_row_wise(op_find(by_step[i])));
    for (size_t i = 0; i < sizeof row_wise / sizeof *row_wise; i++) assert_true(op_is_row_wise(op_find(row_wise[i])));
}

/* Ids rise, so that a plan lists them in the order of the schema; device code gets names as macros. */
TEST(ids_of_schemas_rise)
{
    for (unsigned id = 0; id < OP_COUNT; id++) {
        const struct op_descriptor *op = op_find(id);
        for (int i = 0; op && i < op->param_count; i++) {
            const struct op_param *param = &op->params[i];
            if (param->id < OP_LATER_PARAM_ID)
                assert_int_equal(param->id, i + 1);
            else
                assert_true(param->id > op->params[i - 1].id);
            assert_true(op_first_tunable_id(op) + PLAN_MAX_PARAMS <= OP_LATER_PARAM_ID);
            for (const char *c = param->name; *c; c++) assert_true(islower(*c) || isdigit(*c) || *c == '_');
        }
    }
}

int main(void) { return test_run(); }
