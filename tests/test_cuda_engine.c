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
#include "runtime/load/load.h"
#include "tests/fake_cuda/fake_cuda.h"

enum { MOST_PLANS = 32, OPERANDS = 8 };

/* The operands of a plan's only launch. The first of each space gives its base address. */
enum { AT_STEP, AT_WEIGHTS, AT_ARENA, AT_KV, AT_STATE, AT_TOKENS, AT_POSITIONS, AT_NEXT_TOKENS };

struct fake_plan {
    const struct plan *plan;
    struct cpu_memory memory; /* the memory that it is bound to */
    struct cpu_plan bound;
    struct plan_launch launch;
    struct plan_operand operands[OPERANDS];
    struct plan view;
    char entry[16], cubin[256];
    size_t cubin_bytes;
};

static struct {
    const struct engine *cpu;
    struct plan_space_sizes sizes;
    struct team *team;
    struct fake_plan plans[MOST_PLANS];
} fake;

static void run_plan(const char *entry, void *const *arguments, const unsigned grid[3], const unsigned block[3],
                     void *context)
{
    (void)entry;
    (void)grid;
    (void)block;
    struct fake_plan *own = context;
    void *pointers[OPERANDS];
    struct cpu_memory memory = {{0}};
    struct status status;
    for (int i = 0; i < OPERANDS; i++) memcpy(&pointers[i], arguments[i], sizeof pointers[i]);
    memory.base[SPACE_STEP] = pointers[AT_STEP];
    memory.base[SPACE_WEIGHTS] = pointers[AT_WEIGHTS];
    memory.base[SPACE_ARENA] = pointers[AT_ARENA];
    memory.base[SPACE_KV] = pointers[AT_KV];
    memory.base[SPACE_STATE] = pointers[AT_STATE];
    if (memcmp(&memory, &own->memory, sizeof memory) != 0) {
        cpu_plan_free(&own->bound);
        own->memory = memory;
        if (!cpu_plan_bind(&own->bound, own->plan, &fake.cpu->manifest.geometry, &fake.sizes, &memory, CPU_PORTABLE,
                           entry, &status))
            fail_msg("%s", status.message);
    }
    cpu_plan_run(&own->bound, fake.team);
    if (own->plan->header.kind != PLAN_DECODE) return;
    const int32_t *counts = pointers[AT_STEP], *next_tokens = pointers[AT_NEXT_TOKENS];
    int32_t *tokens = pointers[AT_TOKENS], *positions = pointers[AT_POSITIONS];
    for (int32_t i = 0; i < counts[1]; i++) {
        tokens[i] = next_tokens[i];
        positions[i]++;
    }
}

static void operand(struct fake_plan *own, int index, enum plan_space space, enum plan_access access,
                    struct plan_field field)
{
    own->operands[index] = (struct plan_operand){.space = (uint8_t)space,
                                                 .access = (uint8_t)access,
                                                 .offset = field.offset,
                                                 .bytes = field.bytes};
}

static void make_plan(struct fake_plan *own, const struct plan *plan, uint32_t index)
{
    const struct manifest *manifest = &fake.cpu->manifest;
    const struct plan_geometry *geometry = &manifest->geometry;
    const struct plan_field *step = plan->step, *state = geometry->state;
    bool decode = plan->header.kind == PLAN_DECODE;
    *own = (struct fake_plan){.plan = plan};
    operand(own, AT_STEP, SPACE_STEP, ACCESS_READ, step[STEP_COUNTS]);
    operand(own, AT_WEIGHTS, SPACE_WEIGHTS, ACCESS_READ, (struct plan_field){0, manifest->weights_bytes});
    operand(own, AT_ARENA, SPACE_ARENA, ACCESS_READ_WRITE, (struct plan_field){0, plan->header.arena_bytes});
    operand(own, AT_KV, SPACE_KV, ACCESS_READ_WRITE, (struct plan_field){0, geometry->page_bytes});
    operand(own, AT_STATE, SPACE_STATE, ACCESS_READ, state[STATE_PAGE_TABLE]);
    operand(own, AT_TOKENS, SPACE_STEP, decode ? ACCESS_WRITE : ACCESS_READ, step[STEP_TOKENS]);
    operand(own, AT_POSITIONS, SPACE_STEP, decode ? ACCESS_READ_WRITE : ACCESS_READ, step[STEP_POSITIONS]);
    operand(own, AT_NEXT_TOKENS, SPACE_STEP, ACCESS_WRITE, step[STEP_NEXT_TOKENS]);
    own->launch = (struct plan_launch){.op = OP_SAMPLE,
                                       .operand_count = OPERANDS,
                                       .tactic = PLAN_NO_TACTIC,
                                       .layer = UINT32_MAX,
                                       .kernel = index,
                                       .grid = {1, 1, 1},
                                       .block = {32, 1, 1},
                                       .cluster = {1, 1, 1}};
    own->view = *plan;
    own->view.header.launch_count = 1;
    own->view.header.operand_count = OPERANDS;
    own->view.header.param_count = own->view.header.dependency_count = 0;
    own->view.launches = &own->launch;
    own->view.operands = own->operands;
    snprintf(own->entry, sizeof own->entry, "plan%u", index);
    char text[64];
    snprintf(text, sizeof text, "FAKE CUBIN 90\nkernel plan%u 8 8 8 8 8 8 8 8\nend\n", index);
    own->cubin_bytes = fake_cuda_cubin(text, own->cubin, sizeof own->cubin);
}

static void write_engine(const char *path, const struct plan *plans, const struct engine_kernel *kernels)
{
    const struct engine *cpu = fake.cpu;
    struct manifest manifest = cpu->manifest;
    manifest.target = TARGET_CUDA;
    manifest.target_capability = 90;
    const struct engine_name_table sample = {.op = OP_SAMPLE, .name = plan_op_name(OP_SAMPLE)};
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
              engine_writer_kernels(writer, kernels, cpu->plan_count, &status) &&
              engine_writer_plans(writer, plans, cpu->plan_count, &manifest.geometry, &status) &&
              engine_writer_names(writer, &sample, 1, NULL, 0, NULL, 0, &status) &&
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
        driver.learn(own->entry, run_plan, own);
    }
}

void cuda_engine_write(const struct engine *cpu, const char *path)
{
    struct plan plans[MOST_PLANS];
    struct engine_kernel kernels[MOST_PLANS];
    cuda_engine_learn(cpu);
    for (uint32_t i = 0; i < cpu->plan_count; i++) {
        const struct fake_plan *own = &fake.plans[i];
        plans[i] = own->view;
        kernels[i] = (struct engine_kernel){.entry = own->entry,
                                            .cubin = own->cubin,
                                            .cubin_bytes = own->cubin_bytes,
                                            .operand_count = OPERANDS};
    }
    write_engine(path, plans, kernels);
}

void cuda_engine_close(void)
{
    for (int i = 0; i < MOST_PLANS; i++) cpu_plan_free(&fake.plans[i].bound);
    team_destroy(fake.team);
    memset(&fake, 0, sizeof fake);
}
