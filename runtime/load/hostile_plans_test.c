/* SPDX-License-Identifier: Apache-2.0 */
/* Every op of the schema table, on both targets: a launch that the schema allows is loaded, and a load refuses it as soon as
 * one parameter, operand, space, size, access or field is not what the schema says. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"

#include "kernels/op/op.h"
#include "kernels/norm_router/norm_router.h"
#include "kernels/routed_mlp/routed_mlp.h"
#include "runtime/load/load.h"

enum {
    ROWS = 4,
    RANKS = 2,
    VOCAB = 64,
    SPACE_BYTES = 1 << 24, /* of each space: any operand fits into any of them */
    MOST_LAUNCHES = 40,
    UNKNOWN_ID = 999,
};

struct fixture {
    struct engine file;
    struct plan plan;
    struct plan_launch launches[MOST_LAUNCHES];
    struct plan_operand operands[MOST_LAUNCHES * PLAN_MAX_OPERANDS];
    struct plan_param params[MOST_LAUNCHES * PLAN_MAX_PARAMS];
};

static struct fixture fixture;

/* ---- launches that are legal ---- */

static bool is_legal(const struct op_descriptor *op, const int64_t *params)
{
    struct op_demand demands[PLAN_MAX_OPERANDS];
    struct status status;
    int count;
    return op_demands(op, fixture.file.manifest.target, params, &fixture.file.manifest.geometry, demands, &count,
                      &status);
}

static int64_t clamp(const struct op_param *param, int64_t value)
{
    return value < param->least ? param->least : value > param->most ? param->most : value;
}

static bool is_of(const struct op_param *param, const struct op_descriptor *op)
{
    return param >= op->params && param < op->params + op->param_count;
}

static int64_t first_guess(const struct op_param *param, bool has_all)
{
    enum { SIZE = 16, MOST_CHOICES = 8 };
    const struct plan_geometry *geometry = &fixture.file.manifest.geometry;
    const bool cpu = fixture.file.manifest.target == TARGET_CPU;
    uint64_t value;
    if (param->type == PARAM_CODES && param->fallback != DTYPE_F32) return param->fallback; /* of codes alone */
    if (op_param_is_type(param)) return cpu ? DTYPE_F32 : DTYPE_BF16;
    if (param->type == PARAM_FLOAT) return clamp(param, (int64_t)float_to_bits(1));
    /* One expert, which a router's matrix has a row for, and none that all rows share. */
    if (is_of(param, &op_routed_matmul) || is_of(param, &op_routed_mlp) || is_of(param, &op_norm_router)) {
        static const char *const ones[] = {"experts", "routed", "router_groups", "top_groups"};
        for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
            if (strcmp(param->name, ones[i]) == 0) return 1;
        if (strcmp(param->name, "route_width") == 0) return 2;
        if (strcmp(param->name, "epilogue") == 0) return ACTIVATION_SILU;
    }
    /* A matmul with all else has no experts. */
    if (strcmp(param->name, "experts") == 0) return clamp(param, !has_all);
    static const char *const zeros[] = {"block_n", "x_pitch", "shared",  "shared_gate",
                                        "q_pitch", "q_first", "kv_pitch"};
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        if (strcmp(param->name, zeros[i]) == 0) return 0;
    /* Rows that all heads share. */
    if (strcmp(param->name, "kv_heads") == 0) return 1;
    if (strcmp(param->name, "value_dim") == 0) return clamp(param, 0);
    if (strcmp(param->name, "route_width") == 0) return clamp(param, has_all ? 0 : 2);
    switch (param->source) {
    case PARAM_OF_ENGINE: memcpy(&value, (const uint8_t *)geometry + param->field, sizeof value); return (int64_t)value;
    case PARAM_OF_ROWS:
    case PARAM_OF_STEP:
    case PARAM_OF_DRAWS: return ROWS;
    case PARAM_OF_COUNT: return param->least;
    case PARAM_OF_PRESENT: return has_all;
    default: break;
    }
    if (strcmp(param->name, "most_positions") == 0) return (int64_t)geometry->max_context;
    if (strcmp(param->name, "follows") == 0) return has_all;
    if (strcmp(param->name, "feedback") == 0) return !cpu; /* what a decode plan must have there */
    return param->most - param->least < MOST_CHOICES ? param->least : clamp(param, SIZE);
}

/* Changes one parameter so that all are legal together. */
static bool repair(const struct op_descriptor *op, int64_t *params)
{
    static const int64_t values[] = {0, 1, 2, 32, VOCAB, VOCAB / RANKS};
    for (int i = 0; i < op->param_count; i++) {
        const int64_t kept = params[i];
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            params[i] = values[v];
            if (is_legal(op, params)) return true;
        }
        params[i] = kept;
    }
    return false;
}

static void make_params(const struct op_descriptor *op, int64_t params[PLAN_MAX_PARAMS])
{
    for (int has_all = 1; has_all >= 0; has_all--) {
        memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
        for (int i = 0; i < op->param_count; i++) params[i] = first_guess(&op->params[i], has_all);
        if (fixture.file.manifest.target == TARGET_CPU && op->default_tunables)
            op->default_tunables(params, CPU_PORTABLE, 1, params + op->param_count);
        if (is_legal(op, params) || repair(op, params)) return;
    }
    fail_msg("%s: no legal parameters were found", op->name);
}

static uint64_t padded(uint64_t bytes) { return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT; }

static void add_operands(const struct op_demand *demands, int count)
{
    uint64_t next[SPACE_COUNT] = {[SPACE_COMM] = sizeof(struct comm_header)};
    for (int i = 0; i < count; i++) {
        unsigned space = SPACE_WEIGHTS;
        while (!(demands[i].space_mask & (1u << space))) space++;
        uint64_t offset = 0;
        if (!demands[i].field)
            offset = next[space];
        else if (space == SPACE_STEP)
            offset = fixture.plan.step[demands[i].field - 1].offset;
        else if (space == SPACE_STATE)
            offset = fixture.file.manifest.geometry.state[demands[i].field - 1].offset;
        next[space] += demands[i].field ? 0 : padded(demands[i].bytes);
        fixture.operands[fixture.plan.header.operand_count++] = (struct plan_operand){.space = (uint8_t)space,
                                                                                      .access = demands[i].access,
                                                                                      .offset = offset,
                                                                                      .bytes = demands[i].bytes};
    }
}

/* All of them, defaults too, by rising ids. */
static void list_params(const struct op_descriptor *op, const int64_t *params, int count, struct plan_param *list)
{
    for (int i = 0; i < count; i++) {
        const unsigned id =
            i < op->param_count ? op->params[i].id : op_first_tunable_id(op) + (unsigned)(i - op->param_count);
        int place = i;
        for (; place > 0 && list[place - 1].id > id; place--) list[place] = list[place - 1];
        list[place] = (struct plan_param){.id = (uint16_t)id, .value = params[i]};
    }
}

static void add_launch(const struct op_descriptor *op, uint32_t attributes, bool has_workspace)
{
    const struct manifest *manifest = &fixture.file.manifest;
    struct plan_header *header = &fixture.plan.header;
    struct op_demand demands[PLAN_MAX_OPERANDS];
    int64_t params[PLAN_MAX_PARAMS];
    int count;
    const int param_count = manifest->target == TARGET_CPU ? op_cpu_param_count(op) : op->param_count;
    struct status status;
    make_params(op, params);
    if (!op_demands(op, manifest->target, params, &manifest->geometry, demands, &count, &status))
        fail_msg("%s", status.message);
    if (has_workspace)
        demands[count++] =
            (struct op_demand){"workspace", 0, 1u << SPACE_ARENA, ACCESS_READ_WRITE, 0, .bytes = PLAN_ALIGNMENT};
    assert_true(header->launch_count < MOST_LAUNCHES);
    fixture.launches[header->launch_count++] = (struct plan_launch){.op = (uint16_t)op->id,
                                                                    .attributes = attributes,
                                                                    .first_operand = header->operand_count,
                                                                    .operand_count = (uint16_t)count,
                                                                    .first_param = header->param_count,
                                                                    .param_count = (uint16_t)param_count,
                                                                    .tactic = PLAN_NO_TACTIC};
    list_params(op, params, param_count, fixture.params + header->param_count);
    header->param_count += (uint32_t)param_count;
    add_operands(demands, count);
}

/* An engine of one decode plan that has a launch of each op. */
static void open_fixture(enum engine_target target)
{
    memset(&fixture, 0, sizeof fixture);
    struct manifest *manifest = &fixture.file.manifest;
    uint64_t state_bytes;
    *manifest = (struct manifest){.target = target,
                                  .geometry = {.slots = ROWS,
                                               .recurrent_bytes = 1 << 20,
                                               .max_context = 64,
                                               .page_tokens = 16,
                                               .pages_per_slot = 4,
                                               .page_bytes = SPACE_BYTES,
                                               .vocab_size = VOCAB,
                                               .ranks = RANKS,
                                               .drafts = 1},
                                  .weights_bytes = (uint64_t)RANKS * SPACE_BYTES,
                                  .arena_bytes = SPACE_BYTES,
                                  .step_bytes = SPACE_BYTES,
                                  .state_bytes = SPACE_BYTES,
                                  .comm_bytes = SPACE_BYTES};
    assert_true(geometry_place_state(&manifest->geometry, &state_bytes));
    fixture.file.format_minor = ENGINE_MINOR;
    fixture.file.plans = &fixture.plan;
    fixture.file.plan_count = 1;
    fixture.plan = (struct plan){.header = {.kind = PLAN_DECODE, .rows = ROWS, .out_rows = ROWS},
                                 .launches = fixture.launches,
                                 .operands = fixture.operands,
                                 .params = fixture.params};
    assert_true(plan_place_step(&fixture.plan, VOCAB, 0, 1));
    fixture.plan.header.step_bytes = fixture.plan.header.arena_bytes = SPACE_BYTES;
    for (unsigned id = 1; id < OP_COUNT; id++) {
        const struct op_descriptor *op = op_find(id);
        assert_non_null(op);
        if (target == TARGET_CPU && !op->run[CPU_PORTABLE]) continue;
        add_launch(op, 0, false);
        if (target == TARGET_CUDA && op->call) add_launch(op->call, LAUNCH_LIBRARY, false);
    }
    if (target == TARGET_CUDA) add_launch(op_find(OP_MATMUL), LAUNCH_LIBRARY, true);
}

/* ---- and their damage ---- */

static bool loads(struct status *status)
{
    size_t decode_plans;
    struct plan_space_sizes sizes;
    status_clear(status);
    return load_check_plans(&fixture.file, &decode_plans, &sizes, status);
}

static int refusals;

static void refused(uint32_t launch, const char *name, const char *words, const char *others)
{
    struct status status;
    char number[24];
    snprintf(number, sizeof number, "launch %u", launch);
    const char *op = op_find(fixture.launches[launch].op)->name;
    if (loads(&status)) fail_msg("%s: %s: '%s' was not refused", op, name, words);
    assert_int_equal(status.code, STATUS_CORRUPT);
    if (!strstr(status.message, number) || !strstr(status.message, op) ||
        !((strstr(status.message, name) && strstr(status.message, words)) ||
          (others && strstr(status.message, others))))
        fail_msg("%s: %s: the message lacks '%s': %s", op, name, words, status.message);
    refusals++;
}

static void damage_param(uint32_t launch, const struct op_param *schema)
{
    struct plan_param *param = &fixture.params[fixture.launches[launch].first_param];
    while (param->id != schema->id) param++;
    static const int64_t no_types[] = {-1, DTYPE_NONE, DTYPE_I32, DTYPE_COUNT, INT64_MAX};
    const int64_t kept = param->value;
    const int64_t beyond[] = {schema->least - 1, schema->most + 1, INT64_MIN, INT64_MAX};
    const bool type = op_param_is_type(schema);
    for (size_t i = 0; i < (type ? sizeof no_types / sizeof *no_types : sizeof beyond / sizeof *beyond); i++) {
        param->value = type ? no_types[i] : beyond[i];
        refused(launch, schema->name, "parameter", NULL);
    }
    param->value = kept - (kept > schema->least);
    if (schema->source == PARAM_OF_ENGINE && param->value != kept)
        refused(launch, schema->name, "geometry says", "not a multiple");
    if (schema->source == PARAM_OF_ROWS) refused(launch, "works on 3 rows", "the plan has 4", NULL);
    param->value = kept;
}

/* `operand` in each space that the schema does not allow. */
static void damage_space(uint32_t launch, const struct op_demand *demand, struct plan_operand *operand)
{
    const struct plan_operand kept = *operand;
    for (unsigned space = SPACE_NONE; space < SPACE_COUNT; space++) {
        if (demand->space_mask & (1u << space)) continue;
        operand->space = (uint8_t)space;
        operand->offset = 0;
        if (space == SPACE_NONE) *operand = (struct plan_operand){0};
        refused(launch, demand->name, "which this op does not allow", "writes to the weights");
        *operand = kept;
    }
}

/* A pinned operand in each other field; one that an op writes in the fields that ops use as indices. */
static void damage_field(uint32_t launch, const struct op_demand *demand, struct plan_operand *operand)
{
    const struct plan_operand kept = *operand;
    const bool in_step = demand->space_mask & (1u << SPACE_STEP), in_state = demand->space_mask & (1u << SPACE_STATE);
    const struct plan_field *fields = in_step ? fixture.plan.step : fixture.file.manifest.geometry.state;
    const int count = in_step ? (int)STEP_FIELD_COUNT : (int)STATE_FIELD_COUNT;
    if (!in_step && !in_state) return;
    if (!demand->field && !(demand->access & ACCESS_WRITE)) return;
    for (int f = 0; f < count; f++) {
        if (demand->field ? f == demand->field - 1 : in_step && plan_step_is_result(f)) continue;
        if (!fields[f].bytes) continue; /* one that this engine has not */
        operand->space = in_step ? SPACE_STEP : SPACE_STATE;
        operand->offset = fields[f].offset;
        refused(launch, demand->name, "outside the field it belongs to", "overlap in part");
    }
    *operand = kept;
}

static void damage_comm(uint32_t launch, const struct op_demand *demand, struct plan_operand *operand)
{
    const struct plan_operand kept = *operand;
    if (!(demand->space_mask & (1u << SPACE_COMM))) return;
    operand->offset = demand->field ? sizeof(struct comm_header) : 0;
    refused(launch, demand->name, "header of 192 bytes", NULL);
    *operand = kept;
}

/* One that is written half over each other one of its space. */
static void damage_overlap(uint32_t launch, const struct op_demand *demands, int count, int written)
{
    struct plan_operand *operands = &fixture.operands[fixture.launches[launch].first_operand],
                        *own = &operands[written];
    const struct plan_operand kept = *own;
    if (!(kept.access & ACCESS_WRITE) || demands[written].field || kept.space == SPACE_COMM) return;
    for (int i = 0; i < count; i++) {
        if (i == written || operands[i].space != kept.space || operands[i].bytes <= PLAN_ALIGNMENT) continue;
        own->offset = operands[i].offset + PLAN_ALIGNMENT;
        refused(launch, demands[written].name, "overlap in part", NULL);
    }
    *own = kept;
}

static void damage_operand(uint32_t launch, const struct op_demand *demands, int count, int index)
{
    const struct op_demand *demand = &demands[index];
    struct plan_operand *operand = &fixture.operands[fixture.launches[launch].first_operand + (uint32_t)index];
    const struct plan_operand kept = *operand;
    if (demand->bytes > 1) {
        operand->bytes = demand->bytes - 1;
        refused(launch, demand->name, "bytes, expected at least", NULL);
    }
    *operand = kept;
    for (uint8_t access = ACCESS_READ; access <= ACCESS_READ_WRITE; access++) {
        operand->access = access;
        if (access != kept.access) refused(launch, demand->name, "has access", "writes to the weights");
    }
    *operand = kept;
    operand->offset += 4;
    refused(launch, "", "is not a multiple of 64", NULL);
    *operand = kept;
    damage_space(launch, demand, operand);
    damage_field(launch, demand, operand);
    damage_comm(launch, demand, operand);
    damage_overlap(launch, demands, count, index);
}

static void damage_launch(uint32_t index)
{
    const struct manifest *manifest = &fixture.file.manifest;
    struct plan_launch *launch = &fixture.launches[index];
    const struct op_descriptor *op = op_of_launch(launch);
    struct op_demand demands[PLAN_MAX_OPERANDS];
    int64_t params[PLAN_MAX_PARAMS];
    int count;
    struct status status;
    const int tunables = manifest->target == TARGET_CPU ? op->tunable_count : 0;
    assert_true(op_params(&fixture.plan, launch, tunables, params, &status));
    assert_true(op_demands(op, manifest->target, params, &manifest->geometry, demands, &count, &status));
    for (int i = 0; i < op->param_count; i++) damage_param(index, &op->params[i]);
    for (int i = 0; i < count; i++) damage_operand(index, demands, count, i);
    const bool has_workspace = launch->operand_count > count;
    for (int wrong = -1; wrong <= 1; wrong += 2) {
        if (launch->attributes & LAUNCH_LIBRARY && (has_workspace || wrong > 0)) continue;
        launch->operand_count = (uint16_t)(launch->operand_count + wrong);
        refused(index, "operands", "", NULL);
        launch->operand_count = (uint16_t)(launch->operand_count - wrong);
    }
    if (!has_workspace) return;
    struct plan_operand *workspace = &fixture.operands[launch->first_operand + (uint32_t)count], kept = *workspace;
    workspace->space = SPACE_STEP;
    refused(index, "workspace", "does not allow", NULL);
    *workspace = kept;
    workspace->offset = fixture.operands[launch->first_operand + 1].offset + PLAN_ALIGNMENT;
    refused(index, "workspace", "overlap in part", NULL);
    *workspace = kept;
}

static void every_damage_is_refused(enum engine_target target)
{
    struct status status;
    open_fixture(target);
    if (!loads(&status)) fail_msg("%s", status.message);
    refusals = 0;
    for (uint32_t i = 0; i < fixture.plan.header.launch_count; i++) damage_launch(i);
    if (!loads(&status)) fail_msg("%s", status.message); /* the damage was all that was wrong */
    print_message("%u launches, %d refusals\n", fixture.plan.header.launch_count, refusals);
}

TEST(damage_on_gpus_is_refused)
{
    every_damage_is_refused(TARGET_CUDA);
    assert_true(fixture.plan.header.launch_count >= OP_COUNT - 1 + 3); /* all ops, and calls */
}

TEST(damage_on_processors_is_refused) { every_damage_is_refused(TARGET_CPU); }

/* A later release may add parameters: they are passed over unless they are marked as essential. */
TEST(unknown_parameters)
{
    for (int target = TARGET_CPU; target <= TARGET_CUDA; target++) {
        struct status status;
        open_fixture((enum engine_target)target);
        struct plan_launch *last = &fixture.launches[fixture.plan.header.launch_count - 1];
        struct plan_param *added = &fixture.params[last->first_param + last->param_count++];
        fixture.plan.header.param_count++;
        *added = (struct plan_param){.id = UNKNOWN_ID, .value = INT64_MIN};
        if (!loads(&status)) fail_msg("%s", status.message);
        added->flags = PLAN_PARAM_ESSENTIAL;
        assert_false(loads(&status));
        assert_int_equal(status.code, STATUS_VERSION);
        if (!strstr(status.message, "needs a newer runtime") || !strstr(status.message, "id 999"))
            fail_msg("%s", status.message);
    }
}

/* In engines of format 2.0 a kernel for a GPU may be of any form. */
TEST(kernels_of_2_0)
{
    for (int target = TARGET_CPU; target <= TARGET_CUDA; target++) {
        struct status status;
        open_fixture((enum engine_target)target);
        fixture.file.format_minor = 0;
        fixture.params[0].value = ROWS - 1;
        assert_int_equal(loads(&status), target == TARGET_CUDA);
    }
}

int main(void) { return test_run(); }
