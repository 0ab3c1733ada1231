/* SPDX-License-Identifier: Apache-2.0 */
/* A launch names the page table of one page group, and sees no more tokens than that group's pages hold. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/attention/attention.h"
#include "kernels/rope_append/rope_append.h"

enum {
    SLOTS = 3,
    CONTEXT = 96,
    PAGE_TOKENS = 16,
    PAGES = CONTEXT / PAGE_TOKENS,
    HEAD_DIM = 8,
    GROUPS = 3,
    WINDOW = 32
};

static struct plan_geometry geometry;
static struct status status;

static void place_geometry(void)
{
    uint64_t state_bytes;
    geometry = (struct plan_geometry){.slots = SLOTS,
                                      .max_context = CONTEXT,
                                      .page_tokens = PAGE_TOKENS,
                                      .pages_per_slot = PAGES,
                                      .page_bytes = 2 * PAGE_TOKENS * HEAD_DIM * sizeof(float),
                                      .vocab_size = 10,
                                      .ranks = 1,
                                      .page_groups = GROUPS,
                                      .page_window = {WINDOW, 0, WINDOW}};
    assert_true(geometry_place_state(&geometry, &state_bytes));
}

/* Verifies one launch whose page table lies at `table` of the STATE space. */
static bool verify(enum plan_op id, int64_t window, uint64_t table)
{
    const struct op_descriptor *op = op_find(id);
    int64_t params[PLAN_MAX_PARAMS] = {[PAGED_HEADS] = 2,
                                       [PAGED_KV_HEADS] = 1,
                                       [PAGED_HEAD_DIM] = HEAD_DIM,
                                       [PAGED_PAGE_TOKENS] = PAGE_TOKENS,
                                       [PAGED_PAGES_PER_SLOT] = PAGES,
                                       [PAGED_PAGE_BYTES] = (int64_t)geometry.page_bytes,
                                       [PAGED_SLOT_COUNT] = SLOTS,
                                       [PAGED_KV_DTYPE] = ENCODING_F32,
                                       [PAGED_X_DTYPE] = DTYPE_F32};
    params[OP_PARAM_ROWS] = 1;
    for (int i = PAGED_PARAMS; i < op->param_count; i++) params[i] = op->params[i].fallback;
    if (id == OP_ATTENTION) {
        params[ATTENTION_WINDOW] = window;
        params[ATTENTION_SCALE_BITS] = OP_FLOAT_ONE_BITS;
        params[ATTENTION_SINKS_DTYPE] = DTYPE_F32;
    } else {
        params[ROPE_APPEND_NORM_DTYPE] = DTYPE_BF16;
    }
    struct op_demand demands[PLAN_MAX_OPERANDS];
    struct plan_operand operands[PLAN_MAX_OPERANDS] = {{0}};
    struct plan_param list[PLAN_MAX_PARAMS];
    int count;
    if (!op_demands(op, TARGET_CPU, params, &geometry, demands, &count, &status)) fail_msg("%s", status.message);
    struct plan plan = {.header = {.kind = PLAN_DECODE, .rows = 1, .out_rows = 1, .launch_count = 1}};
    assert_true(plan_place_step(&plan, geometry.vocab_size, 0, 0));
    for (int i = 0; i < count; i++) {
        const struct op_operand *schema = &op->operands[demands[i].operand];
        struct plan_operand *operand = &operands[i];
        *operand = (struct plan_operand){.space = SPACE_ARENA,
                                         .access = demands[i].access,
                                         .offset = (uint64_t)i << 20,
                                         .bytes = demands[i].bytes};
        if (schema->role == ROLE_STEP) {
            operand->space = SPACE_STEP;
            operand->offset = plan.step[schema->field].offset;
        } else if (schema->role == ROLE_STATE) {
            operand->space = SPACE_STATE;
            operand->offset = table;
        } else if (schema->role == ROLE_KV) {
            operand->space = SPACE_KV;
            operand->offset = 0;
        }
    }
    const struct plan_launch launch = {.op = (uint16_t)id,
                                       .operand_count = (uint16_t)count,
                                       .param_count =
                                           (uint16_t)op_list_params(op, params, op->tunable_count, true, list)};
    plan.launches = &launch;
    plan.operands = operands;
    plan.params = list;
    plan.header.operand_count = (uint32_t)count;
    plan.header.param_count = launch.param_count;
    status_clear(&status);
    return op_verify(&plan, 0, TARGET_CPU, &geometry, "test", &status);
}

static uint64_t table_of(unsigned group)
{
    return geometry.state[STATE_PAGE_TABLE].offset + group * plan_page_table_stride(&geometry);
}

TEST(windows_that_contradict_the_group_are_refused)
{
    static const struct {
        unsigned group;
        int64_t window;
        const char *words; /* NULL: it is valid */
    } cases[] = {
        {0, WINDOW, NULL},
        {0, 1, NULL},
        {0, WINDOW + 1, "parameter window is 33|page group 0|window of 32"},
        {0, 0, "parameter window is 0 (0: all tokens)|window of 32"},
        {1, 0, NULL},
        {1, 1000, NULL},
        {2, WINDOW, NULL},
        {2, 0, "page group 2"},
    };
    place_geometry();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool valid = verify(OP_ATTENTION, cases[i].window, table_of(cases[i].group));
        assert_int_equal(valid, cases[i].words == NULL);
        if (cases[i].words) test_expect_message(&status, cases[i].words);
    }
    /* An op that only writes has no window. */
    for (unsigned g = 0; g < GROUPS; g++) assert_true(verify(OP_ROPE_APPEND, 0, table_of(g)));
}

TEST(a_page_table_is_that_of_a_group)
{
    place_geometry();
    const uint64_t wrong[] = {table_of(1) + PLAN_ALIGNMENT, table_of(GROUPS), geometry.state[STATE_SAMPLERS].offset,
                              table_of(1) - PLAN_ALIGNMENT};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(verify(OP_ATTENTION, 1, wrong[i]));
        test_expect_message(&status, "operand page_table");
    }
    /* One group: the table is the whole field, as before 2.3. */
    geometry.page_groups = 1;
    geometry.page_window[0] = 0;
    uint64_t state_bytes;
    assert_true(geometry_place_state(&geometry, &state_bytes));
    assert_true(verify(OP_ATTENTION, 0, table_of(0)));
    assert_false(verify(OP_ATTENTION, 0, table_of(1)));
}

int main(void) { return test_run(); }
