/* SPDX-License-Identifier: Apache-2.0 */
/* A whole decoder layer with embedding, head and sampler as a plan made by hand: replayed on every instruction set
 * against the reference stream, several steps long; and the same plan damaged in many ways, each of which is refused. */
#include "kernels/cpu/executor.h"
#include "kernels/op/test_support.h"

#include "formats/engine/engine_file.h"
#include "kernels/add/add.h"
#include "kernels/attention/attention.h"
#include "kernels/cuda/registry.h"
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
struct fixture {
    struct plan plan;
    struct plan_launch launches[MOST];
    struct plan_operand operands[MOST * 10];
    struct plan_param params[MOST * PLAN_MAX_PARAMS];
    struct plan_geometry geometry;
    struct plan_space_sizes sizes;
    struct cpu_memory memory;
};

static struct plan_operand reserve(struct fixture *fixture, enum plan_space space, uint64_t bytes)
{
    struct plan_operand operand = {.space = (uint8_t)space, .offset = fixture->sizes.bytes[space], .bytes = bytes};
    fixture->sizes.bytes[space] += (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    return operand;
}

static struct plan_operand arena(struct fixture *fixture, uint64_t floats)
{
    return reserve(fixture, SPACE_ARENA, floats * sizeof(float));
}

static struct plan_operand step_field(const struct fixture *fixture, enum step_field field)
{
    return (struct plan_operand){.space = SPACE_STEP,
                                 .offset = fixture->plan.step[field].offset,
                                 .bytes = fixture->plan.step[field].bytes};
}

static struct plan_operand state_field(const struct fixture *fixture, enum state_field field)
{
    return (struct plan_operand){.space = SPACE_STATE,
                                 .offset = fixture->geometry.state[field].offset,
                                 .bytes = fixture->geometry.state[field].bytes};
}

/* Appends a launch; counts is prepended to the operands, and the access of each is what the op demands. */
static void launch(struct fixture *fixture, const struct op_descriptor *op, const int64_t *params,
                   const struct plan_operand *operands, int operand_count)
{
    struct plan_header *header = &fixture->plan.header;
    fixture->launches[header->launch_count] = (struct plan_launch){.op = (uint16_t)op->id,
                                                                   .operand_count = (uint16_t)(operand_count + 1),
                                                                   .first_operand = header->operand_count,
                                                                   .first_param = header->param_count,
                                                                   .tactic = PLAN_NO_TACTIC};
    int64_t copy[PLAN_MAX_PARAMS];
    memcpy(copy, params, (size_t)op_cpu_param_count(op) * sizeof *params);
    test_complete_params(op, copy);
    struct plan_launch *launch = &fixture->launches[header->launch_count];
    launch->param_count =
        (uint16_t)op_list_params(op, copy, op->tunable_count, true, fixture->params + header->param_count);
    struct op_demand demands[PLAN_MAX_OPERANDS];
    int demanded = 0;
    struct status status = {0};
    if (!op_demands(op, TARGET_CPU, copy, &fixture->geometry, demands, &demanded, &status))
        fail_msg("%s", status.message);
    assert_int_equal(demanded, operand_count + 1);
    for (int i = 0; i < demanded; i++) {
        struct plan_operand operand = i ? operands[i - 1] : step_field(fixture, STEP_COUNTS);
        operand.access = demands[i].access;
        fixture->operands[header->operand_count++] = operand;
    }
    header->param_count += launch->param_count;
    header->launch_count++;
}

#define LAUNCH(fixture, op, params, ...)                              \
    launch(fixture, op, params, (struct plan_operand[]){__VA_ARGS__}, \
           (int)(sizeof((struct plan_operand[]){__VA_ARGS__}) / sizeof(struct plan_operand)))

static struct plan_operand weights(struct fixture *fixture, uint64_t n, uint64_t k)
{
    return reserve(fixture, SPACE_WEIGHTS, panel_count(n) * panel_bytes(k, DTYPE_F32));
}

static void matmul(struct fixture *fixture, int64_t count_index, int64_t n, int64_t k, int64_t epilogue,
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
    launch(fixture, &op_matmul, params, operands, residual ? 5 : 4);
}

static void fixture_open(struct fixture *fixture)
{
    memset(fixture, 0, sizeof *fixture);
    fixture->plan = (struct plan){.header = {.kind = PLAN_DECODE, .rows = ROWS, .out_rows = ROWS},
                                  .launches = fixture->launches,
                                  .operands = fixture->operands,
                                  .params = fixture->params};
    uint64_t block = 2 * KV_HEADS * PAGE_TOKENS * HEAD_DIM * sizeof(float);
    fixture->geometry = (struct plan_geometry){.slots = ROWS,
                                               .max_context = CONTEXT,
                                               .page_tokens = PAGE_TOKENS,
                                               .pages_per_slot = CONTEXT / PAGE_TOKENS,
                                               .page_bytes = block,
                                               .vocab_size = VOCAB};
    uint64_t *bytes = fixture->sizes.bytes;
    assert_true(plan_place_step(&fixture->plan, VOCAB, 0, 0));
    assert_true(geometry_place_state(&fixture->geometry, &bytes[SPACE_STATE]));
    bytes[SPACE_STEP] = fixture->plan.header.step_bytes;
    bytes[SPACE_KV] = block;

    const int64_t eps = test_float_bits(1e-5f), per_slot = CONTEXT / PAGE_TOKENS, page_bytes = (int64_t)block;
    struct plan_operand x = arena(fixture, ROWS * HIDDEN), normal = arena(fixture, ROWS * HIDDEN);
    struct plan_operand table = arena(fixture, ROWS * HEAD_DIM), q = arena(fixture, ROWS * HIDDEN);
    struct plan_operand qkv = arena(fixture, ROWS * (HEADS + 2 * KV_HEADS) * HEAD_DIM);
    struct plan_operand inner = arena(fixture, ROWS * INTERMEDIATE), selected = arena(fixture, ROWS * HIDDEN);
    struct plan_operand scratch = reserve(fixture, SPACE_ARENA, ROWS * 2 * INTERMEDIATE * sizeof(float));
    uint64_t workspace_bytes;
    assert_true(attention_workspace_bytes(ROWS, HEADS, HEAD_DIM, &fixture->geometry, &workspace_bytes));
    struct plan_operand partials = reserve(fixture, SPACE_ARENA, workspace_bytes);
    struct plan_operand candidates = reserve(fixture, SPACE_ARENA, sample_workspace_bytes(ROWS, VOCAB));
    struct plan_operand embedding = weights(fixture, VOCAB, HIDDEN), norm = reserve(fixture, SPACE_WEIGHTS, HIDDEN * 4);
    struct plan_operand inv_freq = reserve(fixture, SPACE_WEIGHTS, HEAD_DIM / 2 * 4);
    struct plan_operand w_qkv = weights(fixture, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN);
    struct plan_operand w_out = weights(fixture, HIDDEN, HIDDEN), w_gate = weights(fixture, 2 * INTERMEDIATE, HIDDEN);
    struct plan_operand w_down = weights(fixture, HIDDEN, INTERMEDIATE);
    struct plan_operand slots = step_field(fixture, STEP_SLOTS), positions = step_field(fixture, STEP_POSITIONS);
    struct plan_operand out_rows = step_field(fixture, STEP_OUT_ROWS), logits = step_field(fixture, STEP_LOGITS);
    struct plan_operand pages = state_field(fixture, STATE_PAGE_TABLE);
    struct plan_operand kv = {.space = SPACE_KV, .bytes = block};

    LAUNCH(fixture, &op_embed,
           ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HIDDEN, HIDDEN, VOCAB, DTYPE_F32, 0, 0, LAYOUT_PANEL16}),
           step_field(fixture, STEP_TOKENS), embedding, x);
    LAUNCH(fixture, &op_rope_table, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HEAD_DIM, test_float_bits(1)}), positions,
           inv_freq, table);
    LAUNCH(fixture, &op_rms_norm, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HIDDEN, DTYPE_F32, eps, 0}), x, norm, normal);
    matmul(fixture, 0, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, 0, normal, w_qkv, qkv, scratch, NULL);
    LAUNCH(fixture, &op_rope_append,
           ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, per_slot, page_bytes, ROWS,
                                       DTYPE_F32, 0, 0, 0}),
           qkv, table, slots, positions, pages, kv, q);
    LAUNCH(fixture, &op_attention,
           ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, per_slot, page_bytes, ROWS,
                                       DTYPE_F32, 0, 0, test_float_bits(0.35f)}),
           q, slots, positions, pages, kv, q, partials);
    matmul(fixture, 0, HIDDEN, HIDDEN, 0, q, w_out, x, scratch, &x);
    LAUNCH(fixture, &op_rms_norm, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HIDDEN, DTYPE_F32, eps, 0}), x, norm, normal);
    matmul(fixture, 0, 2 * INTERMEDIATE, HIDDEN, ACTIVATION_SILU, normal, w_gate, inner, scratch, NULL);
    matmul(fixture, 0, HIDDEN, INTERMEDIATE, 0, inner, w_down, normal, scratch, NULL);
    LAUNCH(fixture, &op_add, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 0, HIDDEN}), x, normal, x);
    LAUNCH(fixture, &op_select_rows, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 1, HIDDEN, ROWS}), x, out_rows, selected);
    LAUNCH(fixture, &op_rms_norm, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 1, HIDDEN, DTYPE_F32, eps, 0}), selected, norm,
           selected);
    matmul(fixture, 1, VOCAB, HIDDEN, 0, selected, embedding, logits, scratch, NULL);
    LAUNCH(fixture, &op_sample, ((int64_t[PLAN_MAX_PARAMS]){ROWS, 1, VOCAB, ROWS, ROWS}), logits, out_rows, slots,
           state_field(fixture, STATE_SAMPLERS), state_field(fixture, STATE_SEEN),
           step_field(fixture, STEP_NEXT_TOKENS), candidates);
    fixture->plan.header.arena_bytes = bytes[SPACE_ARENA];

    uint64_t pool = block * ROWS * (CONTEXT / PAGE_TOKENS);
    for (int space = SPACE_WEIGHTS; space < SPACE_COUNT; space++) {
        size_t size = (size_t)(space == SPACE_KV ? pool : bytes[space]);
        fixture->memory.base[space] =
            aligned_alloc(PLAN_ALIGNMENT, (size + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT);
        assert_non_null(fixture->memory.base[space]);
    }
    struct test_random random = {18};
    test_fill(&random, fixture->memory.base[SPACE_WEIGHTS], bytes[SPACE_WEIGHTS] / 4, DTYPE_F32, -0.6f, 0.6f);
}

static void fixture_close(struct fixture *fixture)
{
    for (int space = SPACE_WEIGHTS; space < SPACE_COUNT; space++) free(fixture->memory.base[space]);
}

static void *step_data(struct fixture *fixture, enum step_field field)
{
    return (uint8_t *)fixture->memory.base[SPACE_STEP] + fixture->plan.step[field].offset;
}

enum { STEPS = 12 };
struct transcript {
    int32_t tokens[STEPS][ROWS];
    float logits[STEPS][ROWS][VOCAB];
};

enum mode { MODE_RUN, MODE_TIMED, MODE_REFERENCE };

/* Plays STEPS steps from empty sequences; with `forced`, the tokens are those of another transcript. */
static void play(struct fixture *fixture, enum cpu_isa isa, int members, enum mode mode,
                 const struct transcript *forced, struct transcript *transcript)
{
    for (int space = SPACE_ARENA; space < SPACE_COUNT; space++)
        if (space != SPACE_KV) memset(fixture->memory.base[space], 0, (size_t)fixture->sizes.bytes[space]);
    int32_t *pages = fixture->memory.base[SPACE_STATE];
    for (int i = 0; i < ROWS * CONTEXT / PAGE_TOKENS; i++) pages[i] = ROWS * CONTEXT / PAGE_TOKENS - 1 - i;
    struct sampler_state *samplers =
        (void *)((uint8_t *)fixture->memory.base[SPACE_STATE] + fixture->geometry.state[STATE_SAMPLERS].offset);
    for (int s = 0; s < ROWS; s++)
        samplers[s] =
            (struct sampler_state){.temperature = s == 2 ? 0.9f : 0, .top_p = 1, .repetition_penalty = 1, .seed = 5};
    struct status status = {0};
    struct cpu_plan bound;
    if (!cpu_plan_bind(&bound, &fixture->plan, &fixture->geometry, &fixture->sizes, &fixture->memory, isa, "test",
                       &status))
        fail_msg("%s", status.message);
    struct team *team = team_create(members, &status);
    assert_non_null(team);
    double launch_us[MOST] = {0};
    int32_t *counts = step_data(fixture, STEP_COUNTS), *tokens = step_data(fixture, STEP_TOKENS);
    int32_t *slots = step_data(fixture, STEP_SLOTS), *positions = step_data(fixture, STEP_POSITIONS);
    int32_t *out_rows = step_data(fixture, STEP_OUT_ROWS), *next = step_data(fixture, STEP_NEXT_TOKENS);
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
        memcpy(transcript->logits[step], step_data(fixture, STEP_LOGITS), sizeof transcript->logits[step]);
    }
    for (uint32_t i = 0; i < bound.launch_count; i++) assert_true((launch_us[i] > 0) == (mode == MODE_TIMED));
    team_destroy(team);
    cpu_plan_free(&bound);
    cpu_plan_free(&bound);
}

TEST(replay_equals_reference)
{
    struct fixture fixture;
    fixture_open(&fixture);
    struct transcript reference, found, again;
    play(&fixture, CPU_PORTABLE, 3, MODE_REFERENCE, NULL, &reference);
    TEST_FOR_EACH_ISA(isa)
    {
        play(&fixture, isa, 2, MODE_RUN, &reference, &found);
        test_assert_close(&found.logits[0][0][0], &reference.logits[0][0][0], STEPS * ROWS * VOCAB, 3e-5, 1e-5,
                          cpu_isa_name(isa));
        for (int step = 0; step < STEPS; step++)
            for (int r = 0; r < ROWS; r++) assert_int_equal(found.tokens[step][r], reference.tokens[step][r]);
        play(&fixture, isa, 5, MODE_RUN, &reference, &again);
        assert_memory_equal(&again, &found, sizeof found);
        play(&fixture, isa, 1, MODE_TIMED, &reference, &again);
        assert_memory_equal(&again, &found, sizeof found);
    }
    fixture_close(&fixture);
}

/* The launch of the given op, and its operand. */
static struct plan_launch *find_launch(struct fixture *fixture, enum plan_op op)
{
    for (uint32_t i = 0; i < fixture->plan.header.launch_count; i++)
        if (fixture->launches[i].op == op) return &fixture->launches[i];
    fail();
    return NULL;
}

static struct plan_operand *find_operand(struct fixture *fixture, enum plan_op op, int operand)
{
    return &fixture->operands[find_launch(fixture, op)->first_operand + (uint32_t)operand];
}

static void assert_bind_refused(struct fixture *fixture, const char *words, int line)
{
    struct cpu_plan bound;
    struct status status = {0};
    if (cpu_plan_bind(&bound, &fixture->plan, &fixture->geometry, &fixture->sizes, &fixture->memory, CPU_PORTABLE,
                      "test plan", &status))
        fail_msg("line %d: accepted", line);
    if (!strstr(status.message, words)) fail_msg("line %d: the message lacks '%s': %s", line, words, status.message);
    assert_true(status.code != STATUS_OK);
    assert_null(bound.calls);
}

/* Damages a fresh fixture by `change` and demands a refusal whose message has `words`. */
#define REFUSED(change, words)                          \
    do {                                                \
        fixture_open(&fixture);                         \
        change;                                         \
        assert_bind_refused(&fixture, words, __LINE__); \
        fixture_close(&fixture);                        \
    } while (0)

/* What the schema says of a launch: runtime/load/hostile_plans_test.c. */
TEST(damaged_plans_are_refused)
{
    struct fixture fixture;
    REFUSED(find_launch(&fixture, OP_ADD)->op = 0, "");
    REFUSED(find_launch(&fixture, OP_ADD)->op = OP_EMBED, "embed");
    REFUSED(find_launch(&fixture, OP_ADD)->param_count = 2, "width"); /* absent: 0 */
    REFUSED(find_launch(&fixture, OP_SAMPLE)->first_param = UINT32_MAX, "");
    REFUSED(find_launch(&fixture, OP_SAMPLE)->first_operand = UINT32_MAX - 1, "");
    REFUSED(find_operand(&fixture, OP_ADD, ADD_B)->offset = UINT64_MAX - 63, "");
    /* Outputs over the indices: the LM head's logits, of more rows than there are, or from an earlier place on. */
    REFUSED(
        {
            struct plan_launch *head = &fixture.launches[fixture.plan.header.launch_count - 2];
            assert_int_equal(head->op, OP_MATMUL);
            fixture.operands[head->first_operand + MATMUL_OUT].offset = fixture.plan.step[STEP_POSITIONS].offset;
        },
        "out");
    /* The KV pool: a block beyond the page, another page size than the engine's. */
    REFUSED(find_operand(&fixture, OP_ATTENTION, ATTENTION_KV)->offset = 64, "");
    REFUSED(fixture.sizes.bytes[SPACE_KV] *= 2, "page");
    /* Memory that is missing or badly aligned, an instruction set that does not exist. */
    REFUSED(
        {
            free(fixture.memory.base[SPACE_ARENA]);
            fixture.memory.base[SPACE_ARENA] = NULL;
        },
        "arena");
    fixture_open(&fixture);
    struct cpu_plan bound;
    struct status status = {0};
    assert_false(cpu_plan_bind(&bound, &fixture.plan, &fixture.geometry, &fixture.sizes, &fixture.memory, CPU_ISA_COUNT,
                               "test", &status));
    assert_int_equal(status.code, STATUS_MACHINE);
    fixture_close(&fixture);
}

/* Random damage to any byte of launches, operands and parameters: refused, or replayed without leaving its memory. */
TEST(random_damage_is_refused_or_harmless)
{
    struct test_random random = {19};
    struct fixture fixture;
    fixture_open(&fixture);
    struct team *team = team_create(2, NULL);
    assert_non_null(team);
    int accepted = 0;
    for (int round = 0; round < 3000; round++) {
        struct fixture damaged = fixture;
        damaged.plan.launches = damaged.launches;
        damaged.plan.operands = damaged.operands;
        damaged.plan.params = damaged.params;
        const struct plan_header *header = &fixture.plan.header;
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
        if (!cpu_plan_bind(&bound, &damaged.plan, &fixture.geometry, &fixture.sizes, &fixture.memory,
                           (enum cpu_isa)(round % ((int)cpu_isa_best() + 1)), "damaged", &status)) {
            assert_true(strlen(status.message) > 0);
            continue;
        }
        accepted++;
        int32_t *pages = fixture.memory.base[SPACE_STATE];
        memset(fixture.memory.base[SPACE_STEP], 0, (size_t)fixture.sizes.bytes[SPACE_STEP]);
        memset(fixture.memory.base[SPACE_STATE], 0, (size_t)fixture.sizes.bytes[SPACE_STATE]);
        for (int i = 0; i < ROWS * CONTEXT / PAGE_TOKENS; i++) pages[i] = i;
        int32_t *counts = step_data(&fixture, STEP_COUNTS);
        counts[0] = counts[1] = ROWS;
        for (int r = 0; r < ROWS; r++) {
            ((int32_t *)step_data(&fixture, STEP_TOKENS))[r] = VOCAB - 1;
            ((int32_t *)step_data(&fixture, STEP_SLOTS))[r] = r;
            ((int32_t *)step_data(&fixture, STEP_POSITIONS))[r] = CONTEXT - 1;
            ((int32_t *)step_data(&fixture, STEP_OUT_ROWS))[r] = ROWS - 1 - r;
        }
        cpu_plan_run(&bound, team);
        cpu_plan_free(&bound);
    }
    print_message("%d of 3000 damaged plans were still valid\n", accepted);
    team_destroy(team);
    fixture_close(&fixture);
}

TEST(ops_are_registered)
{
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
        if (!op->run[CPU_PORTABLE]) { /* GPUs alone have code for it */
            assert_non_null(device_kernels((enum plan_op)id));
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

int main(void) { return test_run(); }
