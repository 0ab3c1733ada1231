/* SPDX-License-Identifier: Apache-2.0 */
/* What op_verify demands of operands in the COMM space. The other spaces: kernels/cpu/executor_test.c. */
#include "kernels/op/op.h"
#include "kernels/op/test_support.h"

#include "formats/engine/engine_file.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/embed/embed.h"

enum { ROWS = 3, WIDTH = 32, VOCAB = 50, RANKS = 4, HEADER_BYTES = sizeof(struct comm_header) };

static const struct plan_geometry geometry = {.slots = ROWS,
                                              .max_context = 8,
                                              .page_tokens = 8,
                                              .pages_per_slot = 1,
                                              .page_bytes = 64,
                                              .vocab_size = VOCAB,
                                              .ranks = RANKS};

/* A plan of one launch, with each operand where the op wants it. */
struct world {
    struct plan plan;
    struct plan_launch launch;
    struct plan_operand operands[PLAN_MAX_OPERANDS];
    struct plan_param params[PLAN_MAX_PARAMS];
};

static void world_fill(struct world *world, const struct op_descriptor *op, const int64_t *params)
{
    struct op_demand demands[PLAN_MAX_OPERANDS];
    int count = 0;
    struct status status = {0};
    if (!op_demands(op, TARGET_CPU, params, &geometry, demands, &count, &status)) fail_msg("%s", status.message);
    uint64_t next[SPACE_COUNT] = {[SPACE_COMM] = HEADER_BYTES};
    memset(world, 0, sizeof *world);
    world->plan.header = (struct plan_header){.kind = PLAN_DECODE, .rows = ROWS, .out_rows = ROWS};
    assert_true(plan_place_step(&world->plan, VOCAB));
    op_list_params(params, op_cpu_param_count(op), op_cpu_param_count(op), world->params);
    for (int i = 0; i < count; i++) {
        unsigned space = SPACE_WEIGHTS;
        while (!(demands[i].space_mask & (1u << space))) space++;
        struct plan_operand *operand = &world->operands[i];
        *operand = (struct plan_operand){.space = (uint8_t)space,
                                         .access = demands[i].access,
                                         .bytes = demands[i].bytes,
                                         .offset = next[space]};
        if (demands[i].field)
            operand->offset = space == SPACE_STEP ? world->plan.step[demands[i].field - 1].offset : 0;
        else
            next[space] += (demands[i].bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    }
    world->launch = (struct plan_launch){.op = (uint16_t)op->id,
                                         .operand_count = (uint16_t)count,
                                         .param_count = (uint16_t)op_cpu_param_count(op),
                                         .tactic = PLAN_NO_TACTIC};
    world->plan.header.launch_count = 1;
    world->plan.header.operand_count = (uint32_t)count;
    world->plan.header.param_count = (uint32_t)op_cpu_param_count(op);
    world->plan.launches = &world->launch;
    world->plan.operands = world->operands;
    world->plan.params = world->params;
}

static void assert_accepted(const struct world *world)
{
    struct status status = {0};
    if (!op_verify(&world->plan, 0, TARGET_CPU, &geometry, "test plan", &status)) fail_msg("%s", status.message);
}

static void assert_refused(const struct world *world, const char *words, int line)
{
    struct status status = {0};
    if (op_verify(&world->plan, 0, TARGET_CPU, &geometry, "test plan", &status)) fail_msg("line %d: accepted", line);
    assert_int_equal(status.code, STATUS_CORRUPT);
    if (!strstr(status.message, words)) fail_msg("line %d: the message lacks '%s': %s", line, words, status.message);
}

static const int64_t reduce_params[ALL_REDUCE_PARAMS] = {ROWS, 0, WIDTH,      RANKS, DTYPE_F32,
                                                         0,    0, DTYPE_BF16, 0,     DTYPE_BF16};
static const int64_t gather_params[ALL_GATHER_PARAMS] = {ROWS, 1, 13, VOCAB, RANKS};
static const int64_t embed_params[EMBED_PARAMS] = {ROWS, 0, WIDTH, WIDTH, 13, DTYPE_BF16, 1, DTYPE_F32, LAYOUT_PANEL16};

/* Changes one field of an operand of a fresh all_reduce. */
#define REFUSED(operand, change, words)                          \
    do {                                                         \
        world_fill(&world, &op_all_reduce, reduce_params);       \
        struct plan_operand *changed = &world.operands[operand]; \
        changed->change;                                         \
        assert_refused(&world, words, __LINE__);                 \
    } while (0)

static void headers_are_pinned(void **state)
{
    (void)state;
    struct world world;
    world_fill(&world, &op_all_reduce, reduce_params);
    assert_accepted(&world);
    REFUSED(ALL_REDUCE_HEADER, offset = PLAN_ALIGNMENT, "header");
    REFUSED(ALL_REDUCE_HEADER, offset = HEADER_BYTES, "header");
    REFUSED(ALL_REDUCE_HEADER, offset = 1, "header");
    REFUSED(ALL_REDUCE_HEADER, bytes += PLAN_ALIGNMENT, "header");
    REFUSED(ALL_REDUCE_HEADER, bytes -= 1, "header");
    REFUSED(ALL_REDUCE_HEADER, bytes = UINT64_MAX, "header");
    REFUSED(ALL_REDUCE_HEADER, access = ACCESS_READ, "header");
    REFUSED(ALL_REDUCE_HEADER, space = SPACE_ARENA, "header");
    REFUSED(ALL_REDUCE_HEADER, space = SPACE_STATE, "header");

    world_fill(&world, &op_embed, embed_params);
    assert_accepted(&world);
    world.operands[EMBED_HEADER].access = ACCESS_READ_WRITE;
    assert_refused(&world, "header", __LINE__);
    world_fill(&world, &op_embed, embed_params);
    world.operands[EMBED_HEADER].offset = HEADER_BYTES;
    assert_refused(&world, "header", __LINE__);
    world_fill(&world, &op_embed, embed_params);
    world.launch.operand_count--;
    assert_refused(&world, "operands", __LINE__);
}

static void buffers_lie_behind_the_header(void **state)
{
    (void)state;
    struct world world;
    REFUSED(ALL_REDUCE_BUFFER, offset = 0, "behind the header");
    REFUSED(ALL_REDUCE_BUFFER, offset = PLAN_ALIGNMENT, "behind the header");
    REFUSED(ALL_REDUCE_BUFFER, offset = HEADER_BYTES - PLAN_ALIGNMENT, "behind the header");
    REFUSED(ALL_REDUCE_BUFFER, offset = HEADER_BYTES + 4, "buffer");
    REFUSED(ALL_REDUCE_BUFFER, bytes -= 4, "buffer");
    REFUSED(ALL_REDUCE_BUFFER, access = ACCESS_WRITE, "buffer");
    REFUSED(ALL_REDUCE_BUFFER, space = SPACE_ARENA, "buffer");
    world_fill(&world, &op_all_reduce, reduce_params);
    world.operands[ALL_REDUCE_BUFFER].offset += 16 * PLAN_ALIGNMENT;
    world.operands[ALL_REDUCE_BUFFER].bytes += 100;
    assert_accepted(&world);
}

static void outputs_of_collectives(void **state)
{
    (void)state;
    struct world world;
    REFUSED(ALL_REDUCE_X, space = SPACE_COMM, "x");
    REFUSED(ALL_REDUCE_OUT, space = SPACE_COMM, "out");
    world_fill(&world, &op_all_reduce, reduce_params);
    world.operands[ALL_REDUCE_OUT].space = SPACE_STEP;
    world.operands[ALL_REDUCE_OUT].offset = 0; /* counts */
    assert_refused(&world, "out", __LINE__);
    REFUSED(ALL_REDUCE_OUT, offset = PLAN_ALIGNMENT, "overlap"); /* half over x */
    world_fill(&world, &op_all_reduce, reduce_params);
    world.operands[ALL_REDUCE_OUT].offset = world.operands[ALL_REDUCE_X].offset; /* in place */
    assert_accepted(&world);

    world_fill(&world, &op_all_gather, gather_params);
    assert_accepted(&world); /* in the arena */
    const struct plan_field *step = world.plan.step;
    struct plan_operand *out = &world.operands[ALL_GATHER_OUT];
    out->space = SPACE_STEP;
    out->offset = step[STEP_LOGITS].offset;
    assert_accepted(&world);
    out->offset = step[STEP_POSITIONS].offset;
    assert_refused(&world, "out", __LINE__);
    out->space = SPACE_STATE;
    assert_refused(&world, "out", __LINE__);
    /* Another engine's ranks. */
    world_fill(&world, &op_all_gather, gather_params);
    world.params[ALL_GATHER_RANKS].value = RANKS - 1;
    assert_refused(&world, "ranks", __LINE__);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_pinned),
        cmocka_unit_test(buffers_lie_behind_the_header),
        cmocka_unit_test(outputs_of_collectives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
