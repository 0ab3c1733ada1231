/* SPDX-License-Identifier: Apache-2.0 */
/* Device version of the small engine of test_engine.c: kernels, dimensions, tensor maps; library calls. */
#include <string.h>

#include "formats/engine/test_engine.h"

enum { CAPABILITY = 90, WORKSPACE_BYTES = 4096 };
enum { MATMUL_WEIGHTS = 2, MATMUL_WORKSPACE = 4, ATTENTION_KV = 5 }; /* operands */

/* Sizes with much, no and little padding after them. */
static const struct engine_kernel kernels[TEST_ENGINE_KERNELS] = {
    {.entry = "rows", .cubin_bytes = 200, .operand_count = 4},
    {.entry = "rows", .cubin_bytes = 64, .operand_count = 8},
    {.entry = "matmul_head", .cubin_bytes = 129, .operand_count = 5},
};

/* Sizes that are no multiple of the alignment; versions as the libraries state them. */
static const struct engine_call calls[TEST_ENGINE_CALLS] = {
    {.library = LIBRARY_CUDNN, .version = 91300, .operand_count = 8, .bytes = 40},
    {.library = LIBRARY_CUBLASLT, .version = 130200, .operand_count = 5, .bytes = 72},
};

static uint64_t aligned(uint64_t position)
{
    return (position + ENGINE_CUBIN_ALIGNMENT - 1) / ENGINE_CUBIN_ALIGNMENT * ENGINE_CUBIN_ALIGNMENT;
}

/* Not engine_writer_kernels: its result is compared with this. */
static bool make_kernels(struct test_engine *engine)
{
    uint8_t *section = engine->kernels_section;
    struct engine_kernels_header header = {.kernel_count = TEST_ENGINE_KERNELS};
    uint64_t names_at = sizeof header + TEST_ENGINE_KERNELS * sizeof(struct engine_kernel_entry);
    for (int i = 0; i < TEST_ENGINE_KERNELS; i++) header.name_bytes += (uint32_t)strlen(kernels[i].entry) + 1;
    uint64_t cubin_at = aligned(names_at + header.name_bytes);
    uint32_t name_offset = 0;
    memcpy(section, &header, sizeof header);
    for (uint64_t i = 0; i < TEST_ENGINE_KERNELS; i++) {
        struct engine_kernel *kernel = &engine->kernels[i];
        *kernel = kernels[i];
        kernel->cubin = section + cubin_at;
        if (cubin_at + aligned(kernel->cubin_bytes) > sizeof engine->kernels_section) return false;
        const struct engine_kernel_entry entry = {
            .name_offset = name_offset,
            .name_bytes = (uint32_t)strlen(kernel->entry),
            .operand_count = kernel->operand_count,
            .offset = cubin_at,
            .bytes = kernel->cubin_bytes,
        };
        memcpy(section + sizeof header + i * sizeof entry, &entry, sizeof entry);
        memcpy(section + names_at + name_offset, kernel->entry, entry.name_bytes + 1);
        for (uint64_t byte = 0; byte < kernel->cubin_bytes; byte++)
            section[cubin_at + byte] = (uint8_t)(byte * 37 + i * 11 + 1);
        memcpy(section + cubin_at,
               "\x7f"
               "ELF",
               4);
        name_offset += entry.name_bytes + 1;
        cubin_at = aligned(cubin_at + kernel->cubin_bytes);
    }
    engine->kernel_count = TEST_ENGINE_KERNELS;
    return cubin_at == sizeof engine->kernels_section;
}

struct plan_launch *test_engine_launch(struct test_engine *engine, size_t plan, enum plan_op op)
{
    for (uint32_t i = 0; i < engine->plans[plan].header.launch_count; i++)
        if (engine->storage[plan].launches[i].op == op) return &engine->storage[plan].launches[i];
    return NULL;
}

struct plan_tensor_map *test_engine_map(struct test_engine *engine, size_t plan, const struct plan_launch *launch,
                                        uint32_t operand)
{
    struct test_plan *storage = &engine->storage[plan];
    return &storage->tensor_maps[storage->operands[launch->first_operand + operand].tensor_map - 1];
}

static void add_map(struct test_engine *engine, size_t plan, const struct plan_launch *launch, uint32_t operand,
                    const struct plan_tensor_map *map)
{
    struct test_plan *storage = &engine->storage[plan];
    uint32_t *count = &engine->plans[plan].header.tensor_map_count;
    storage->tensor_maps[(*count)++] = *map;
    storage->operands[launch->first_operand + operand].tensor_map = *count;
}

static bool make_launch(const struct test_engine *engine, struct plan_launch *launch, bool first)
{
    uint32_t kernel = 0;
    while (kernel < TEST_ENGINE_KERNELS && engine->kernels[kernel].operand_count != launch->operand_count) kernel++;
    const uint32_t grid[3] = {4, 2, 1}, block[3] = {32, 4, 1}, cluster[3] = {2, 1, 1};
    launch->kernel = kernel;
    memcpy(launch->grid, grid, sizeof grid);
    memcpy(launch->block, block, sizeof block);
    memcpy(launch->cluster, cluster, sizeof cluster);
    launch->shared_bytes = 1024;
    launch->attributes = first ? 0 : LAUNCH_PROGRAMMATIC;
    return kernel < TEST_ENGINE_KERNELS;
}

static bool make_plan(struct test_engine *engine, size_t plan)
{
    const struct manifest *manifest = &engine->manifest;
    struct plan_launch *matmul = test_engine_launch(engine, plan, OP_MATMUL);
    struct plan_launch *attention = test_engine_launch(engine, plan, OP_ATTENTION);
    for (uint32_t i = 0; i < engine->plans[plan].header.launch_count; i++)
        if (!make_launch(engine, &engine->storage[plan].launches[i], i == 0)) return false;
    /* The whole matrix, to its last byte. */
    const int64_t hidden = (int64_t)manifest->hidden_size, head_dim = (int64_t)manifest->head_dim;
    const struct plan_tensor_map head = {
        .dtype = DTYPE_F32,
        .columns = hidden,
        .rows = TEST_ENGINE_VOCAB,
        .pitch = hidden * 4,
        .box_columns = hidden,
        .box_rows = 8,
        .swizzle = 64,
    };
    add_map(engine, plan, matmul, MATMUL_WEIGHTS, &head);
    if (!attention) return true;
    const struct plan_tensor_map pool = {
        .dtype = DTYPE_F32,
        .columns = head_dim,
        .pitch = head_dim * 4,
        .box_columns = head_dim,
        .box_rows = (int64_t)manifest->geometry.page_tokens,
        .swizzle = 32,
    };
    add_map(engine, plan, attention, ATTENTION_KV, &pool);
    attention->op = OP_ROPE_ATTENTION; /* field of device targets only */
    return true;
}

bool test_engine_make_device(struct test_engine *engine, struct status *status)
{
    if (!test_engine_make(engine, status)) return false;
    engine->manifest.target = TARGET_CUDA;
    engine->manifest.target_capability = CAPABILITY;
    strcpy(engine->manifest.target_name, "a GPU");
    if (!make_kernels(engine)) return status_fail(status, STATUS_INTERNAL, "test engine: kernels");
    for (size_t plan = 0; plan < engine->plan_count; plan++)
        if (!make_plan(engine, plan)) return status_fail(status, STATUS_INTERNAL, "test engine: device plans");
    return true;
}

/* Not engine_writer_calls: its result is compared with this. */
static bool make_calls(struct test_engine *engine)
{
    uint8_t *section = engine->calls_section;
    const struct engine_calls_header header = {.call_count = TEST_ENGINE_CALLS};
    const uint64_t workspace_bytes = WORKSPACE_BYTES;
    uint64_t data_at = aligned(sizeof header + TEST_ENGINE_CALLS * sizeof(struct engine_call_entry));
    memcpy(section, &header, sizeof header);
    for (uint64_t i = 0; i < TEST_ENGINE_CALLS; i++) {
        struct engine_call *call = &engine->calls[i];
        *call = calls[i];
        call->data = section + data_at;
        if (data_at + aligned(call->bytes) > sizeof engine->calls_section) return false;
        const struct engine_call_entry entry = {
            .library = call->library,
            .version = call->version,
            .operand_count = call->operand_count,
            .offset = data_at,
            .bytes = call->bytes,
        };
        memcpy(section + sizeof header + i * sizeof entry, &entry, sizeof entry);
        for (uint64_t byte = 0; byte < call->bytes; byte++) section[data_at + byte] = (uint8_t)(byte * 41 + i * 13 + 1);
        if (call->library == LIBRARY_CUBLASLT) memcpy(section + data_at, &workspace_bytes, sizeof workspace_bytes);
        data_at = aligned(data_at + call->bytes);
    }
    engine->call_count = TEST_ENGINE_CALLS;
    return data_at == sizeof engine->calls_section;
}

/* A library takes addresses, not tensor maps, and picks its own dimensions. */
static void make_library_launch(struct test_engine *engine, enum plan_op op, uint32_t call, uint32_t mapped_operand)
{
    struct test_plan *storage = &engine->storage[TEST_ENGINE_LIBRARY_PLAN];
    struct plan_launch *launch = test_engine_launch(engine, TEST_ENGINE_LIBRARY_PLAN, op);
    storage->operands[launch->first_operand + mapped_operand].tensor_map = 0;
    launch->kernel = call;
    memset(launch->grid, 0, sizeof launch->grid);
    memset(launch->block, 0, sizeof launch->block);
    memset(launch->cluster, 0, sizeof launch->cluster);
    launch->shared_bytes = 0;
    launch->attributes = LAUNCH_LIBRARY;
}

bool test_engine_make_library(struct test_engine *engine, struct status *status)
{
    if (!test_engine_make_device(engine, status)) return false;
    if (!make_calls(engine)) return status_fail(status, STATUS_INTERNAL, "test engine: library calls");
    struct test_plan *storage = &engine->storage[TEST_ENGINE_LIBRARY_PLAN];
    struct plan *plan = &engine->plans[TEST_ENGINE_LIBRARY_PLAN];
    *storage = engine->storage[0];
    *plan = engine->plans[0];
    plan->launches = storage->launches;
    plan->operands = storage->operands;
    plan->params = storage->params;
    plan->tensor_maps = storage->tensor_maps;
    plan->dependencies = storage->dependencies;
    engine->library_plan_count = 1;
    make_library_launch(engine, OP_ROPE_ATTENTION, 0, ATTENTION_KV);
    make_library_launch(engine, OP_MATMUL, 1, MATMUL_WEIGHTS);
    const struct plan_launch *matmul = test_engine_launch(engine, TEST_ENGINE_LIBRARY_PLAN, OP_MATMUL);
    struct plan_operand *workspace = &storage->operands[matmul->first_operand + MATMUL_WORKSPACE];
    workspace->offset = plan->header.arena_bytes;
    workspace->bytes = WORKSPACE_BYTES;
    plan->header.arena_bytes += WORKSPACE_BYTES;
    return true;
}
