/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test_cuda_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/executor.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/sample/sample.h"
#include "runtime/load/load.h"
#include "tests/fake_cuda/fake_cuda.h"

enum { MOST_PLANS = 32, LAUNCHES = 2, MEMORIES = 4 };

/* Release 2.0: the operands of a plan's only launch. The first of each space gives its base address. */
enum { OLD_STEP, OLD_WEIGHTS, OLD_ARENA, OLD_KV, OLD_STATE, OLD_TOKENS, OLD_POSITIONS, OLD_NEXT_TOKENS, OLD_OPERANDS };

struct fake_plan {
    const struct plan *plan;
    struct cpu_memory memory; /* the memory that it is bound to */
    struct cpu_plan bound;
    uint32_t layers; /* launches before the sampler */
    struct plan_launch launches[LAUNCHES];
    struct plan_operand operands[LAUNCHES * PLAN_MAX_OPERANDS];
    struct plan_param params[LAUNCHES * PLAN_MAX_PARAMS];
    uint32_t dependencies[1];
    struct plan view;
    char entries[LAUNCHES][16], cubins[LAUNCHES][256], old_entry[16];
    size_t cubin_bytes[LAUNCHES];
};

static struct {
    const struct engine *cpu;
    struct plan_space_sizes sizes;
    struct team *team;
    struct fake_plan plans[MOST_PLANS];
    struct cpu_memory memories[MEMORIES]; /* those of the latest sessions */
    uint32_t next_memory;
} fake;

/* A kernel with operands in every space tells where they are, for one of the same session that has fewer. */
static void remember(const struct cpu_memory *memory)
{
    uint32_t i = 0;
    while (i < MEMORIES && fake.memories[i].base[SPACE_STEP] != memory->base[SPACE_STEP]) i++;
    fake.memories[i < MEMORIES ? i : fake.next_memory++ % MEMORIES] = *memory;
}

static const struct cpu_memory *recall(const uint8_t *step)
{
    for (uint32_t i = 0; i < MEMORIES; i++)
        if (fake.memories[i].base[SPACE_STEP] == step) return &fake.memories[i];
    fail_msg("no kernel has run in this memory");
    return NULL;
}

/* Launches [first, end). */
static void replay(struct fake_plan *own, const struct cpu_memory *memory, uint32_t first, uint32_t end,
                   const char *entry)
{
    struct status status;
    if (memcmp(memory, &own->memory, sizeof *memory) != 0) {
        cpu_plan_free(&own->bound);
        own->memory = *memory;
        if (!cpu_plan_bind(&own->bound, own->plan, &fake.cpu->manifest.geometry, &fake.sizes, memory, CPU_PORTABLE,
                           entry, &status))
            fail_msg("%s", status.message);
    }
    const struct cpu_plan part = {.params = own->bound.params,
                                  .calls = own->bound.calls + first,
                                  .runners = own->bound.runners + first,
                                  .ops = own->bound.ops + first,
                                  .launch_count = end - first};
    cpu_plan_run(&part, fake.team);
}

/* What a sample kernel leaves for the next step of a decode plan, and for the host at `target`. */
static void feed_back(const struct fake_plan *own, uint8_t *step, int32_t *target)
{
    const int32_t *counts = (const void *)(step + own->plan->step[STEP_COUNTS].offset);
    const int32_t *next_tokens = (const void *)(step + own->plan->step[STEP_NEXT_TOKENS].offset);
    int32_t *tokens = (void *)(step + own->plan->step[STEP_TOKENS].offset);
    int32_t *positions = (void *)(step + own->plan->step[STEP_POSITIONS].offset);
    if (target != next_tokens)
        for (int32_t i = 0; i < counts[1]; i++) target[i] = next_tokens[i];
    if (own->plan->header.kind != PLAN_DECODE) return;
    for (int32_t i = 0; i < counts[1]; i++) {
        tokens[i] = next_tokens[i];
        positions[i]++;
    }
}

/* The address of a launch's operand, back to the beginning of its space. */
static uint8_t *base_of(const struct plan_operand *operand, void *const *arguments, uint32_t i)
{
    uint8_t *pointer;
    memcpy(&pointer, arguments[i], sizeof pointer);
    return pointer - operand->offset;
}

static void run_step(const char *entry, void *const *arguments, const unsigned grid[3], const unsigned block[3],
                     void *context)
{
    (void)grid, (void)block;
    struct fake_plan *own = context;
    struct cpu_memory memory = {{0}};
    for (uint32_t i = 0; i < own->launches[0].operand_count; i++)
        memory.base[own->operands[i].space] = base_of(&own->operands[i], arguments, i);
    remember(&memory);
    replay(own, &memory, 0, own->layers, entry);
}

static void run_end(const char *entry, void *const *arguments, const unsigned grid[3], const unsigned block[3],
                    void *context)
{
    (void)grid, (void)block;
    struct fake_plan *own = context;
    int32_t *target;
    uint8_t *step = base_of(&own->operands[own->launches[1].first_operand], arguments, OP_OPERAND_COUNTS);
    memcpy(&target, arguments[SAMPLE_NEXT_TOKENS], sizeof target);
    replay(own, recall(step), own->layers, own->plan->header.launch_count, entry);
    feed_back(own, step, target);
}

static void run_plan_2_0(const char *entry, void *const *arguments, const unsigned grid[3], const unsigned block[3],
                         void *context)
{
    (void)grid, (void)block;
    struct fake_plan *own = context;
    void *pointers[OLD_OPERANDS];
    struct cpu_memory memory = {{0}};
    for (int i = 0; i < OLD_OPERANDS; i++) memcpy(&pointers[i], arguments[i], sizeof pointers[i]);
    memory.base[SPACE_STEP] = pointers[OLD_STEP];
    memory.base[SPACE_WEIGHTS] = pointers[OLD_WEIGHTS];
    memory.base[SPACE_ARENA] = pointers[OLD_ARENA];
    memory.base[SPACE_KV] = pointers[OLD_KV];
    memory.base[SPACE_STATE] = pointers[OLD_STATE];
    replay(own, &memory, 0, own->plan->header.launch_count, entry);
    feed_back(own, pointers[OLD_STEP], pointers[OLD_NEXT_TOKENS]);
}

/* Where an operand lies: a field; or the beginning of its space, which operands of one launch may share. */
static struct plan_operand place(const struct plan *plan, const struct op_operand *schema,
                                 const struct op_demand *demand)
{
    const struct plan_geometry *geometry = &fake.cpu->manifest.geometry;
    struct plan_operand operand = {.access = demand->access, .bytes = demand->bytes};
    const struct plan_field *field = schema->role == ROLE_STEP             ? &plan->step[schema->field]
                                     : schema->role == ROLE_STATE          ? &geometry->state[schema->field]
                                     : strcmp(schema->name, "logits") == 0 ? &plan->step[STEP_LOGITS]
                                                                           : NULL;
    operand.space = field ? (schema->role == ROLE_STATE ? SPACE_STATE : SPACE_STEP)
                          : (schema->role == ROLE_WEIGHT ? SPACE_WEIGHTS
                             : schema->role == ROLE_KV   ? SPACE_KV
                                                         : SPACE_ARENA);
    if (field) operand.offset = field->offset;
    return operand;
}

static void add_launch(struct fake_plan *own, enum plan_op id, const int64_t *params, uint32_t kernel)
{
    const struct op_descriptor *op = op_find(id);
    struct plan_header *header = &own->view.header;
    struct op_demand demands[PLAN_MAX_OPERANDS];
    struct plan_launch *launch = &own->launches[header->launch_count];
    char *entry = own->entries[header->launch_count], text[128];
    struct status status;
    int count;
    if (!op_demands(op, TARGET_CUDA, params, &fake.cpu->manifest.geometry, demands, &count, &status))
        fail_msg("%s", status.message);
    *launch = (struct plan_launch){.op = (uint16_t)id,
                                   .first_operand = header->operand_count,
                                   .operand_count = (uint16_t)count,
                                   .first_param = header->param_count,
                                   .dependency_count = header->launch_count > 0,
                                   .tactic = PLAN_NO_TACTIC,
                                   .layer = UINT32_MAX,
                                   .kernel = kernel,
                                   .grid = {1, 1, 1},
                                   .block = {32, 1, 1},
                                   .cluster = {1, 1, 1}};
    snprintf(entry, sizeof own->entries[0], "%s%u", id == OP_SAMPLE ? "end" : "step", kernel / LAUNCHES);
    int used = snprintf(text, sizeof text, "FAKE CUBIN 90\nkernel %s", entry);
    for (int i = 0; i < count; i++) {
        struct plan_operand *operand = &own->operands[header->operand_count++];
        *operand = place(own->plan, &op->operands[demands[i].operand], &demands[i]);
        if (operand->space == SPACE_ARENA && operand->bytes > header->arena_bytes) header->arena_bytes = operand->bytes;
        used += snprintf(text + used, sizeof text - (size_t)used, " 8");
    }
    snprintf(text + used, sizeof text - (size_t)used, "\nend\n");
    own->cubin_bytes[header->launch_count] =
        fake_cuda_cubin(text, own->cubins[header->launch_count], sizeof own->cubins[0]);
    launch->param_count = (uint16_t)op_list_params(op, params, 0, false, own->params + header->param_count);
    header->param_count += launch->param_count;
    header->dependency_count += launch->dependency_count;
    header->launch_count++;
}

/* Two launches: one with operands in every space, which runs the CPU's plan up to its sampler, and a sample kernel. */
static void make_plan(struct fake_plan *own, const struct plan *plan, uint32_t index)
{
    const struct manifest *manifest = &fake.cpu->manifest;
    const struct plan_geometry *geometry = &manifest->geometry;
    const int64_t step[PLAN_MAX_PARAMS] = {
        [ROPE_ATTENTION_ROWS] = plan->header.rows,
        [ROPE_ATTENTION_HEADS] = (int64_t)manifest->heads,
        [ROPE_ATTENTION_KV_HEADS] = (int64_t)manifest->kv_heads,
        [ROPE_ATTENTION_HEAD_DIM] = (int64_t)manifest->head_dim,
        [ROPE_ATTENTION_PAGE_TOKENS] = (int64_t)geometry->page_tokens,
        [ROPE_ATTENTION_PAGES_PER_SLOT] = (int64_t)geometry->pages_per_slot,
        [ROPE_ATTENTION_PAGE_BYTES] = (int64_t)geometry->page_bytes,
        [ROPE_ATTENTION_SLOT_COUNT] = (int64_t)geometry->slots,
        [ROPE_ATTENTION_KV_DTYPE] = manifest->kv_dtype,
        [ROPE_ATTENTION_X_DTYPE] = DTYPE_F32,
        [ROPE_ATTENTION_SCALE_BITS] = (int64_t)float_to_bits(1),
        [ROPE_ATTENTION_HAS_NORM] = 1,
        [ROPE_ATTENTION_NORM_DTYPE] = DTYPE_F32,
        [ROPE_ATTENTION_SINKS_DTYPE] = DTYPE_F32,
    };
    const int64_t end[PLAN_MAX_PARAMS] = {
        [SAMPLE_ROWS] = plan->header.out_rows,
        [SAMPLE_COUNT_INDEX] = 1,
        [SAMPLE_VOCAB] = (int64_t)geometry->vocab_size,
        [SAMPLE_SLOT_COUNT] = (int64_t)geometry->slots,
        [SAMPLE_IN_ROWS] = plan->header.rows,
        [SAMPLE_FEEDBACK] = plan->header.kind == PLAN_DECODE,
        [SAMPLE_HAS_OPTIONS] = (int64_t)geometry->sampling_options,
        [SAMPLE_VERIFIES] = plan->header.kind == PLAN_VERIFY,
    };
    *own = (struct fake_plan){.plan = plan, .view = *plan};
    while (plan->launches[own->layers].op != OP_SAMPLE) own->layers++;
    struct plan_header *header = &own->view.header;
    header->launch_count = header->operand_count = header->param_count = header->dependency_count = 0;
    add_launch(own, OP_ROPE_ATTENTION, step, LAUNCHES * index);
    add_launch(own, OP_SAMPLE, end, LAUNCHES * index + 1);
    own->view.launches = own->launches;
    own->view.operands = own->operands;
    own->view.params = own->params;
    own->view.dependencies = own->dependencies;
    op_leave_out_defaults(&own->view);
    snprintf(own->old_entry, sizeof own->old_entry, "plan%u", index);
}

static void write_engine(const char *path, const struct plan *plans, const struct engine_kernel *kernels)
{
    const struct engine *cpu = fake.cpu;
    struct manifest manifest = cpu->manifest;
    manifest.target = TARGET_CUDA;
    manifest.target_capability = 90;
    for (size_t i = 0; i < cpu->plan_count; i++)
        if (plans[i].header.arena_bytes > manifest.arena_bytes) manifest.arena_bytes = plans[i].header.arena_bytes;
    const struct engine_name_table names[] = {
        {.op = OP_SAMPLE, .name = plan_op_name(OP_SAMPLE)},
        {.op = OP_ROPE_ATTENTION, .name = plan_op_name(OP_ROPE_ATTENTION)},
    };
    struct status status;
    status_clear(&status);
    char *text = NULL;
    size_t size;
    struct engine_writer *writer = engine_writer_begin(path, &status);
    bool ok = writer && manifest_format(&manifest, &text, &size, &status) &&
              engine_writer_section(writer, SECTION_MANIFEST, text, size, false, &status) &&
              engine_writer_tensors(writer, cpu->tensors, cpu->tensor_count, &status) &&
              engine_writer_weights_begin(writer, manifest.weights_bytes, 1, &status) &&
              engine_writer_weights_put(writer, 0, cpu->weights, manifest.weights_bytes, &status) &&
              engine_writer_weights_end(writer, &status) &&
              engine_writer_kernels(writer, kernels, LAUNCHES * cpu->plan_count, &status) &&
              engine_writer_plans(writer, plans, cpu->plan_count, &manifest.geometry, &status) &&
              engine_writer_names(writer, names, 2, NULL, 0, NULL, 0, &status) &&
              engine_writer_section(writer, SECTION_TOKENIZER, cpu->tokenizer, cpu->tokenizer_size, true, &status) &&
              engine_writer_golden(writer, &cpu->golden, &status);
    free(text);
    if (!ok || !engine_writer_commit(writer, &status)) fail_msg("%s", status.message);
}

void cuda_engine_learn(const struct engine *cpu)
{
    struct status status;
    size_t decode_plans;
    const struct test_fake_cuda driver = test_fake_cuda_find();
    fake.cpu = cpu;
    assert_true(cpu->plan_count <= MOST_PLANS);
    assert_true(load_check_plans(cpu, &decode_plans, &fake.sizes, &status));
    fake.team = team_create(1, &status);
    assert_non_null(fake.team);
    for (uint32_t i = 0; i < cpu->plan_count; i++) {
        struct fake_plan *own = &fake.plans[i];
        make_plan(own, &cpu->plans[i], i);
        driver.learn(own->entries[0], run_step, own);
        driver.learn(own->entries[1], run_end, own);
        driver.learn(own->old_entry, run_plan_2_0, own);
    }
}

static void write_plans(const char *path, uint32_t attributes)
{
    struct plan plans[MOST_PLANS];
    struct engine_kernel kernels[LAUNCHES * MOST_PLANS];
    for (uint32_t i = 0; i < fake.cpu->plan_count; i++) {
        struct fake_plan *own = &fake.plans[i];
        own->launches[0].attributes = attributes;
        plans[i] = own->view;
        for (uint32_t n = 0; n < LAUNCHES; n++)
            kernels[LAUNCHES * i + n] = (struct engine_kernel){.entry = own->entries[n],
                                                               .cubin = own->cubins[n],
                                                               .cubin_bytes = own->cubin_bytes[n],
                                                               .operand_count = own->launches[n].operand_count};
    }
    write_engine(path, plans, kernels);
}

void cuda_engine_write(const struct engine *cpu, const char *path)
{
    cuda_engine_learn(cpu);
    write_plans(path, 0);
}

void cuda_engine_write_coresident(const char *path) { write_plans(path, LAUNCH_CORESIDENT); }

void cuda_engine_close(void)
{
    for (int i = 0; i < MOST_PLANS; i++) cpu_plan_free(&fake.plans[i].bound);
    team_destroy(fake.team);
    memset(&fake, 0, sizeof fake);
}
