/* SPDX-License-Identifier: Apache-2.0 */
/* A whole decoder layer with embedding, head and sampler as a plan made by hand: replayed on every instruction set
 * against the reference stream, several steps long; and the same plan damaged in many ways, each of which is refused. */
#include "kernels/cpu/executor.h"
#include "kernels/op/test_support.h"

#include "formats/engine/engine_file.h"
#include "kernels/add/add.h"
#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/sample/sample.h"
#include "kernels/select_rows/select_rows.h"

enum {
    ROWS = 3,
    HIDDEN = 32,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 8,
    INTERMEDIATE = 48,
    VOCAB = 50,
    PAGE_TOKENS = 4,
    CONTEXT = 32,
    MOST = 64, /* launches, and a tenth of the operands and parameters */
};

/* A plan under construction, the spaces' sizes growing with it. */
struct world {
    struct plan plan;
    struct plan_launch launches[MOST];
    struct plan_operand operands[MOST * 10];
    struct plan_param params[MOST * PLAN_MAX_PARAMS];
    struct plan_geometry geometry;
    struct plan_space_sizes sizes;
    struct cpu_memory memory;
};

static struct plan_operand reserve(struct world *world, enum plan_space space, uint64_t bytes)
{
    struct plan_operand operand = {.space = (uint8_t)space, .offset = world->sizes.bytes[space], .bytes = bytes};
    world->sizes.bytes[space] += (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    return operand;
}

static struct plan_operand arena(struct world *world, uint64_t floats)
{
    return reserve(world, SPACE_ARENA, floats * sizeof(float));
}

static struct plan_operand step_field(const struct world *world, enum step_field field)
{
    return (struct plan_operand){.space = SPACE_STEP,
                                 .offset = world->plan.step[field].offset,
                                 .bytes = world->plan.step[field].bytes};
}

static struct plan_operand state_field(const struct world *world, enum state_field field)
{
    return (struct plan_operand){.space = SPACE_STATE,
                                 .offset = world->geometry.state[field].offset,
                                 .bytes = world->geometry.state[field].bytes};
}

/* Appends a launch; counts is prepended to the operands, and the access of each is what the op demands. */
static void launch(struct world *world, const struct op_descriptor *op, const int64_t *params,
                   const struct plan_operand *operands, int operand_count)
{
    struct plan_header *header = &world->plan.header;
    world->launches[header->launch_count] = (struct plan_launch){.op = (uint16_t)op->id,
                                                                 .operand_count = (uint16_t)(operand_count + 1),
                                                                 .param_count = (uint16_t)op_cpu_param_count(op),
                                                                 .first_operand = header->operand_count,
                                                                 .first_param = header->param_count,
                                                                 .tactic = PLAN_NO_TACTIC};
    int64_t copy[PLAN_MAX_PARAMS];
    memcpy(copy, params, (size_t)op_cpu_param_count(op) * sizeof *params);
    test_complete_params(op, copy);
    op_list_params(copy, op_cpu_param_count(op), op_cpu_param_count(op), world->params + header->param_count);
    struct op_demand demands[PLAN_MAX_OPERANDS];
    int demanded = 0;
    struct status status = {0};
    if (!op_demands(op, TARGET_CPU, copy, &world->geometry, demands, &demanded, &status))
        fail_msg("%s", status.message);
    assert_int_equal(demanded, operand_count + 1);
    for (int i = 0; i < demanded; i++) {
        struct plan_operand operand = i ? operands[i - 1] : step_field(world, STEP_COUNTS);
        operand.access = demands[i].access;
        world->operands[header->operand_count++] = operand;
    }
    header->param_count += (uint32_t)op_cpu_param_count(op);
    header->launch_count++;
}

#define LAUNCH(world, op, params, ...)                              \
    launch(world, op, params, (struct plan_operand[]){__VA_ARGS__}, \
           (int)(sizeof((struct plan_operand[]){__VA_ARGS__}) / sizeof(struct plan_operand)))

static struct plan_operand weights(struct world *world, uint64_t n, uint64_t k)
{
    return reserve(world, SPACE_WEIGHTS, panel_count(n) * panel_bytes(k, DTYPE_F32));
}

static void matmul(struct world *world, int64_t count_index, int64_t n, int64_t k, int64_t epilogue,
                   struct plan_operand x, struct plan_operand w, struct plan_operand out, struct plan_operand scratch,
                   const struct plan_operand *residual)
{
    const int64_t params[MATMUL_PARAMS] = {
        [MATMUL_ROWS] = ROWS,
        [MATMUL_COUNT_INDEX] = count_index,
        [MATMUL_N] = n,
        [MATMUL_K] = k,
        [MATMUL_DTYPE] = DTYPE_F32,
        [MATMUL_EPILOGUE] = epilogue,
        [MATMUL_HAS_RESIDUAL] = residual != NULL,
        [MATMUL_PANELS_PER_TILE] = 2,
        [MATMUL_ROWS_PER_TILE] = 1,
        [MATMUL_PANELS_PER_TASK] = 2,
    };
    struct plan_operand operands[5] = {x, w, out};
    if (residual) operands[3] = *residual;
    operands[residual ? 4 : 3] = scratch;
    launch(world, &op_matmul, params, operands, residual ? 5 : 4);
}

static void world_open(struct world *world)
{
    memset(world, 0, sizeof *world);
    world->plan = (struct plan){.header = {.kind = PLAN_DECODE, .rows = ROWS, .out_rows = ROWS},
                                .launches = world->launches,
                                .operands = world->operands,
                                .params = world->params};
    uint64_t block = 2 * KV_HEADS * PAGE_TOKENS * HEAD_DIM * sizeof(float);
    world->geometry = (struct plan_geometry){.slots = ROWS,
                                             .max_context = CONTEXT,
                                             .page_tokens = PAGE_TOKENS,
                                             .pages_per_slot = CONTEXT / PAGE_TOKENS,
                                             .page_bytes = block,
                                             .vocab_size = VOCAB};
    uint64_t *bytes = world->sizes.bytes;
    assert_true(plan_place_step(&world->plan, VOCAB));
    assert_true(geometry_place_state(&world->geometry, &bytes[SPACE_STATE]));
    bytes[SPACE_STEP] = world->plan.header.step_bytes;
    bytes[SPACE_KV] = block;

    const int64_t eps = test_float_bits(1e-5f), per_slot = CONTEXT / PAGE_TOKENS, page_bytes = (int64_t)block;
    struct plan_operand x = arena(world, ROWS * HIDDEN), normal = arena(world, ROWS * HIDDEN);
    struct plan_operand table = arena(world, ROWS * HEAD_DIM), q = arena(world, ROWS * HIDDEN);
    struct plan_operand qkv = arena(world, ROWS * (HEADS + 2 * KV_HEADS) * HEAD_DIM);
    struct plan_operand inner = arena(world, ROWS * INTERMEDIATE), selected = arena(world, ROWS * HIDDEN);
    struct plan_operand scratch = reserve(world, SPACE_ARENA, matmul_workspace_bytes(ROWS, 2 * INTERMEDIATE));
    uint64_t workspace_bytes;
    assert_true(attention_workspace_bytes(ROWS, HEADS, HEAD_DIM, &world->geometry, &workspace_bytes));
    struct plan_operand partials = reserve(world, SPACE_ARENA, workspace_bytes);
    struct plan_operand candidates = reserve(world, SPACE_ARENA, sample_workspace_bytes(ROWS, VOCAB));
    struct plan_operand embedding = weights(world, VOCAB, HIDDEN), norm = reserve(world, SPACE_WEIGHTS, HIDDEN * 4);
    struct plan_operand inv_freq = reserve(world, SPACE_WEIGHTS, HEAD_DIM / 2 * 4);
    struct plan_operand w_qkv = weights(world, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN);
    struct plan_operand w_out = weights(world, HIDDEN, HIDDEN), w_gate = weights(world, 2 * INTERMEDIATE, HIDDEN);
    struct plan_operand w_down = weights(world, HIDDEN, INTERMEDIATE);
    struct plan_operand slots = step_field(world, STEP_SLOTS), positions = step_field(world, STEP_POSITIONS);
    struct plan_operand out_rows = step_field(world, STEP_OUT_ROWS), logits = step_field(world, STEP_LOGITS);
    struct plan_operand pages = state_field(world, STATE_PAGE_TABLE);
    struct plan_operand kv = {.space = SPACE_KV, .bytes = block};

    LAUNCH(world, &op_embed,
           ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HIDDEN, HIDDEN, VOCAB, DTYPE_F32, 0, 0, LAYOUT_PANEL16}),
           step_field(world, STEP_TOKENS), embedding, x);
    LAUNCH(world, &op_rope_table, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HEAD_DIM, test_float_bits(1)}), positions,
           inv_freq, table);
    LAUNCH(world, &op_rms_norm, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HIDDEN, DTYPE_F32, eps, 0}), x, norm, normal);
    matmul(world, 0, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, 0, normal, w_qkv, qkv, scratch, NULL);
    LAUNCH(world, &op_rope_append,
           ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, per_slot, page_bytes, ROWS,
                                       DTYPE_F32, 0, 0, 0}),
           qkv, table, slots, positions, pages, kv, q);
    LAUNCH(world, &op_attention,
           ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, per_slot, page_bytes, ROWS,
                                       DTYPE_F32, 0, 0, test_float_bits(0.35f)}),
           q, slots, positions, pages, kv, q, partials);
    matmul(world, 0, HIDDEN, HIDDEN, 0, q, w_out, x, scratch, &x);
    LAUNCH(world, &op_rms_norm, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HIDDEN, DTYPE_F32, eps, 0}), x, norm, normal);
    matmul(world, 0, 2 * INTERMEDIATE, HIDDEN, MATMUL_EPILOGUE_SWIGLU, normal, w_gate, inner, scratch, NULL);
    matmul(world, 0, HIDDEN, INTERMEDIATE, 0, inner, w_down, normal, scratch, NULL);
    LAUNCH(world, &op_add, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HIDDEN}), x, normal, x);
    LAUNCH(world, &op_select_rows, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 1, HIDDEN, ROWS}), x, out_rows, selected);
    LAUNCH(world, &op_rms_norm, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 1, HIDDEN, DTYPE_F32, eps, 0}), selected, norm,
           selected);
    matmul(world, 1, VOCAB, HIDDEN, 0, selected, embedding, logits, scratch, NULL);
    LAUNCH(world, &op_sample, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 1, VOCAB, ROWS, ROWS}), logits, out_rows, slots,
           state_field(world, STATE_SAMPLERS), state_field(world, STATE_SEEN), step_field(world, STEP_NEXT_TOKENS),
           candidates);
    world->plan.header.arena_bytes = bytes[SPACE_ARENA];

    uint64_t pool = block * ROWS * (CONTEXT / PAGE_TOKENS);
    for (int space = SPACE_WEIGHTS; space < SPACE_COUNT; space++) {
        size_t size = (size_t)(space == SPACE_KV ? pool : bytes[space]);
        world->memory.base[space] =
            aligned_alloc(PLAN_ALIGNMENT, (size + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT);
        assert_non_null(world->memory.base[space]);
    }
    struct test_random random = {18};
    test_fill(&random, world->memory.base[SPACE_WEIGHTS], bytes[SPACE_WEIGHTS] / 4, DTYPE_F32, -0.6f, 0.6f);
}

static void world_close(struct world *world)
{
    for (int space = SPACE_WEIGHTS; space < SPACE_COUNT; space++) free(world->memory.base[space]);
}

static void *step_data(struct world *world, enum step_field field)
{
    return (uint8_t *)world->memory.base[SPACE_STEP] + world->plan.step[field].offset;
}

enum { STEPS = 12 };
struct transcript {
    int32_t tokens[STEPS][ROWS];
    float logits[STEPS][ROWS][VOCAB];
};

enum mode { MODE_RUN, MODE_TIMED, MODE_REFERENCE };

/* Plays STEPS steps from empty sequences; with `forced`, the tokens are those of another transcript. */
static void play(struct world *world, enum cpu_isa isa, int members, enum mode mode, const struct transcript *forced,
                 struct transcript *transcript)
{
    for (int space = SPACE_ARENA; space < SPACE_COUNT; space++)
        if (space != SPACE_KV) memset(world->memory.base[space], 0, (size_t)world->sizes.bytes[space]);
    int32_t *pages = world->memory.base[SPACE_STATE];
    for (int i = 0; i < ROWS * CONTEXT / PAGE_TOKENS; i++) pages[i] = ROWS * CONTEXT / PAGE_TOKENS - 1 - i;
    struct sampler_state *samplers =
        (void *)((uint8_t *)world->memory.base[SPACE_STATE] + world->geometry.state[STATE_SAMPLERS].offset);
    for (int s = 0; s < ROWS; s++)
        samplers[s] =
            (struct sampler_state){.temperature = s == 2 ? 0.9f : 0, .top_p = 1, .repetition_penalty = 1, .seed = 5};
    struct status status = {0};
    struct cpu_plan bound;
    if (!cpu_plan_bind(&bound, &world->plan, &world->geometry, &world->sizes, &world->memory, isa, "test", &status))
        fail_msg("%s", status.message);
    struct team *team = team_create(members, &status);
    assert_non_null(team);
    double launch_us[MOST] = {0};
    int32_t *counts = step_data(world, STEP_COUNTS), *tokens = step_data(world, STEP_TOKENS);
    int32_t *slots = step_data(world, STEP_SLOTS), *positions = step_data(world, STEP_POSITIONS);
    int32_t *out_rows = step_data(world, STEP_OUT_ROWS), *next = step_data(world, STEP_NEXT_TOKENS);
    for (int step = 0; step < STEPS; step++) {
        counts[0] = counts[1] = ROWS;
        for (int r = 0; r < ROWS; r++) {
            tokens[r] = step == 0 ? r + 1 : forced ? forced->tokens[step - 1][r] : transcript->tokens[step - 1][r];
            slots[r] = r;
            positions[r] = step;
            out_rows[r] = r;
        }
        if (mode == MODE_RUN) cpu_plan_run(&bound, team);
        if (mode == MODE_TIMED) cpu_plan_run_timed(&bound, team, launch_us);
        if (mode == MODE_REFERENCE) cpu_plan_run_reference(&bound, team);
        memcpy(transcript->tokens[step], next, sizeof transcript->tokens[step]);
        memcpy(transcript->logits[step], step_data(world, STEP_LOGITS), sizeof transcript->logits[step]);
    }
    for (uint32_t i = 0; i < bound.launch_count; i++) assert_true((launch_us[i] > 0) == (mode == MODE_TIMED));
    team_destroy(team);
    cpu_plan_free(&bound);
    cpu_plan_free(&bound);
}

static void replay_equals_reference(void **state)
{
    (void)state;
    struct world world;
    world_open(&world);
    struct transcript reference, found, again;
    play(&world, CPU_PORTABLE, 3, MODE_REFERENCE, NULL, &reference);
    TEST_FOR_EACH_ISA(isa)
    {
        play(&world, isa, 2, MODE_RUN, &reference, &found);
        test_assert_close(&found.logits[0][0][0], &reference.logits[0][0][0], STEPS * ROWS * VOCAB, 3e-5, 1e-5,
                          cpu_isa_name(isa));
        for (int step = 0; step < STEPS; step++)
            for (int r = 0; r < ROWS; r++) assert_int_equal(found.tokens[step][r], reference.tokens[step][r]);
        play(&world, isa, 5, MODE_RUN, &reference, &again);
        assert_memory_equal(&again, &found, sizeof found);
        play(&world, isa, 1, MODE_TIMED, &reference, &again);
        assert_memory_equal(&again, &found, sizeof found);
    }
    world_close(&world);
}

/* The launch of the given op, and its operand. */
static struct plan_launch *find_launch(struct world *world, enum plan_op op)
{
    for (uint32_t i = 0; i < world->plan.header.launch_count; i++)
        if (world->launches[i].op == op) return &world->launches[i];
    fail();
    return NULL;
}

static struct plan_operand *find_operand(struct world *world, enum plan_op op, int operand)
{
    return &world->operands[find_launch(world, op)->first_operand + (uint32_t)operand];
}

/* Puts an operand elsewhere; its access stays. */
static void place(struct world *world, enum plan_op op, int operand, struct plan_operand where)
{
    struct plan_operand *moved = find_operand(world, op, operand);
    where.access = moved->access;
    *moved = where;
}

static void assert_bind_refused(struct world *world, const char *words, int line)
{
    struct cpu_plan bound;
    struct status status = {0};
    if (cpu_plan_bind(&bound, &world->plan, &world->geometry, &world->sizes, &world->memory, CPU_PORTABLE, "test plan",
                      &status))
        fail_msg("line %d: accepted", line);
    if (!strstr(status.message, words)) fail_msg("line %d: the message lacks '%s': %s", line, words, status.message);
    assert_true(status.code != STATUS_OK);
    assert_null(bound.calls);
}

/* Damages a fresh world by `change` and demands a refusal whose message has `words`. */
#define REFUSED(change, words)                        \
    do {                                              \
        world_open(&world);                           \
        change;                                       \
        assert_bind_refused(&world, words, __LINE__); \
        world_close(&world);                          \
    } while (0)

static void damaged_plans_are_refused(void **state)
{
    (void)state;
    struct world world;
    REFUSED(find_launch(&world, OP_ADD)->op = 0, "");
    REFUSED(find_launch(&world, OP_ADD)->op = OP_COUNT, "");
    REFUSED(find_launch(&world, OP_ADD)->op = UINT16_MAX, "");
    REFUSED(find_launch(&world, OP_ADD)->op = OP_EMBED, "embed");
    REFUSED(find_launch(&world, OP_ADD)->param_count = 2, "width"); /* absent: 0 */
    REFUSED(world.params[find_launch(&world, OP_ADD)->first_param + ADD_WIDTH].id = 77, "id 77");
    REFUSED(find_launch(&world, OP_ADD)->operand_count = 3, "operands");
    REFUSED(find_launch(&world, OP_SAMPLE)->first_param = UINT32_MAX, "");
    REFUSED(find_launch(&world, OP_SAMPLE)->first_operand = UINT32_MAX - 1, "");
    REFUSED(world.params[find_launch(&world, OP_ADD)->first_param + ADD_WIDTH].value = HIDDEN + 1, "operand");
    REFUSED(world.params[find_launch(&world, OP_ADD)->first_param + ADD_ROWS].value = ROWS - 1, "rows");
    REFUSED(world.params[find_launch(&world, OP_ADD)->first_param + ADD_COUNT_INDEX].value = 2, "count_index");
    /* An operand that is too small, in the wrong space, with the wrong access, overlapping another in part. */
    REFUSED(find_operand(&world, OP_ADD, ADD_A)->bytes -= 1, "operand a");
    REFUSED(find_operand(&world, OP_ADD, ADD_A)->space = SPACE_WEIGHTS, "operand a");
    REFUSED(find_operand(&world, OP_ADD, ADD_A)->space = SPACE_COUNT, "");
    REFUSED(find_operand(&world, OP_ADD, ADD_OUT)->access = ACCESS_READ, "operand out");
    REFUSED(find_operand(&world, OP_ADD, ADD_A)->access = ACCESS_READ_WRITE, "operand a");
    REFUSED(find_operand(&world, OP_ADD, ADD_B)->offset = find_operand(&world, OP_ADD, ADD_OUT)->offset + 64,
            "overlap");
    REFUSED(find_operand(&world, OP_ADD, ADD_B)->offset += 4, "");
    REFUSED(find_operand(&world, OP_ADD, ADD_B)->offset = UINT64_MAX - 63, "");
    /* Indices that an op trusts, taken from where a plan could have written them. */
    REFUSED(place(&world, OP_EMBED, EMBED_TOKENS, step_field(&world, STEP_LOGITS)), "tokens");
    REFUSED(place(&world, OP_EMBED, EMBED_TOKENS, step_field(&world, STEP_POSITIONS)), "tokens");
    REFUSED(place(&world, OP_EMBED, EMBED_COUNTS, step_field(&world, STEP_LOGITS)), "counts");
    REFUSED(place(&world, OP_ATTENTION, ATTENTION_SLOTS, step_field(&world, STEP_TOKENS)), "slots");
    REFUSED(place(&world, OP_ATTENTION, ATTENTION_PAGE_TABLE, state_field(&world, STATE_SAMPLERS)), "page_table");
    REFUSED(find_operand(&world, OP_ROPE_APPEND, ROPE_APPEND_PAGE_TABLE)->space = SPACE_STEP, "page_table");
    REFUSED(place(&world, OP_SAMPLE, SAMPLE_SEEN, state_field(&world, STATE_PAGE_TABLE)), "seen");
    REFUSED(place(&world, OP_SAMPLE, SAMPLE_NEXT_TOKENS, step_field(&world, STEP_SLOTS)), "next_tokens");
    /* Outputs over the indices: the LM head's logits, of more rows than there are, or from an earlier place on. */
    REFUSED(
        {
            struct plan_launch *head = &world.launches[world.plan.header.launch_count - 2];
            assert_int_equal(head->op, OP_MATMUL);
            world.operands[head->first_operand + MATMUL_OUT].offset = world.plan.step[STEP_POSITIONS].offset;
        },
        "out");
    /* The KV pool: a block beyond the page, another page size than the engine's. */
    REFUSED(find_operand(&world, OP_ATTENTION, ATTENTION_KV)->offset = 64, "");
    REFUSED(world.params[find_launch(&world, OP_ATTENTION)->first_param + ATTENTION_PAGE_BYTES].value = 64,
            "page_bytes");
    REFUSED(world.sizes.bytes[SPACE_KV] *= 2, "page");
    /* Memory that is missing or badly aligned, an instruction set that does not exist. */
    REFUSED(
        {
            free(world.memory.base[SPACE_ARENA]);
            world.memory.base[SPACE_ARENA] = NULL;
        },
        "arena");
    world_open(&world);
    struct cpu_plan bound;
    struct status status = {0};
    assert_false(cpu_plan_bind(&bound, &world.plan, &world.geometry, &world.sizes, &world.memory, CPU_ISA_COUNT, "test",
                               &status));
    assert_int_equal(status.code, STATUS_MACHINE);
    world_close(&world);
}

/* Random damage to any byte of launches, operands and parameters: refused, or replayed without leaving its memory. */
static void random_damage_is_refused_or_harmless(void **state)
{
    (void)state;
    struct test_random random = {19};
    struct world world;
    world_open(&world);
    struct team *team = team_create(2, NULL);
    assert_non_null(team);
    int accepted = 0;
    for (int round = 0; round < 3000; round++) {
        struct world damaged = world;
        damaged.plan.launches = damaged.launches;
        damaged.plan.operands = damaged.operands;
        damaged.plan.params = damaged.params;
        const struct plan_header *header = &world.plan.header;
        struct {
            uint8_t *data;
            size_t bytes;
        } areas[] = {
            {(uint8_t *)damaged.launches, header->launch_count * sizeof(struct plan_launch)},
            {(uint8_t *)damaged.operands, header->operand_count * sizeof(struct plan_operand)},
            {(uint8_t *)damaged.params, header->param_count * sizeof(struct plan_param)},
        };
        int area = (int)test_random_range(&random, 0, 2);
        size_t byte = (size_t)test_random_range(&random, 0, (int64_t)areas[area].bytes - 1);
        areas[area].data[byte] = (uint8_t)test_random_bits(&random);
        struct cpu_plan bound;
        struct status status = {0};
        if (!cpu_plan_bind(&bound, &damaged.plan, &world.geometry, &world.sizes, &world.memory,
                           (enum cpu_isa)(round % ((int)cpu_isa_best() + 1)), "damaged", &status)) {
            assert_true(strlen(status.message) > 0);
            continue;
        }
        accepted++;
        int32_t *pages = world.memory.base[SPACE_STATE];
        memset(world.memory.base[SPACE_STEP], 0, (size_t)world.sizes.bytes[SPACE_STEP]);
        memset(world.memory.base[SPACE_STATE], 0, (size_t)world.sizes.bytes[SPACE_STATE]);
        for (int i = 0; i < ROWS * CONTEXT / PAGE_TOKENS; i++) pages[i] = i;
        int32_t *counts = step_data(&world, STEP_COUNTS);
        counts[0] = counts[1] = ROWS;
        for (int r = 0; r < ROWS; r++) {
            ((int32_t *)step_data(&world, STEP_TOKENS))[r] = VOCAB - 1;
            ((int32_t *)step_data(&world, STEP_SLOTS))[r] = r;
            ((int32_t *)step_data(&world, STEP_POSITIONS))[r] = CONTEXT - 1;
            ((int32_t *)step_data(&world, STEP_OUT_ROWS))[r] = ROWS - 1 - r;
        }
        cpu_plan_run(&bound, team);
        cpu_plan_free(&bound);
    }
    print_message("%d of 3000 damaged plans were still valid\n", accepted);
    team_destroy(team);
    world_close(&world);
}

static void ops_are_registered(void **state)
{
    (void)state;
    assert_null(op_find(0));
    assert_null(op_find(OP_COUNT));
    assert_null(op_find(UINT32_MAX));
    for (unsigned id = 1; id < OP_COUNT; id++) {
        const struct op_descriptor *op = op_find(id);
        assert_non_null(op);
        assert_int_equal(op->id, id);
        assert_string_equal(op->name, plan_op_name(id));
        assert_in_range(op->param_count, 2, PLAN_MAX_PARAMS);
        assert_string_equal(op->params[OP_PARAM_ROWS].name, "rows");
        assert_string_equal(op->params[OP_PARAM_COUNT_INDEX].name, "count_index");
        for (int i = 0; i < op->param_count; i++) {
            assert_non_null(op->params[i].name);
            for (int j = 0; j < i; j++) assert_int_not_equal(op->params[i].id, op->params[j].id);
            assert_true(op->params[i].id > 0);
        }
        for (int i = 0; i < op->tunable_count; i++) assert_non_null(op->tunables[i]);
        assert_in_range(op->operand_count, 2, PLAN_MAX_OPERANDS);
        for (int i = 0; i < op->operand_count; i++) assert_non_null(op->operands[i].name);
        if (id == OP_ROPE_ATTENTION || id == OP_SWIGLU) { /* GPUs alone have code for it */
            assert_null(op->run[CPU_PORTABLE]);
            continue;
        }
        assert_non_null(op->reference);
        for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++) assert_non_null(op_runner(op, (enum cpu_isa)isa));
        assert_ptr_equal(op_runner(op, CPU_PORTABLE), op->run[CPU_PORTABLE]);
    }
    assert_true(cpu_isa_supported(CPU_PORTABLE));
    assert_true(cpu_isa_supported(cpu_isa_best()));
    assert_false(cpu_isa_supported(CPU_ISA_COUNT));
    assert_string_equal(cpu_isa_name(CPU_PORTABLE), "portable");
    print_message("best instruction set here: %s\n", cpu_isa_name(cpu_isa_best()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_are_registered),
        cmocka_unit_test(replay_equals_reference),
        cmocka_unit_test(damaged_plans_are_refused),
        cmocka_unit_test(random_damage_is_refused_or_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
