/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/plan/device_plan.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "kernels/op/op.h"

void device_plan_free(struct device_plan *plan)
{
    free(plan->launches);
    memset(plan, 0, sizeof *plan);
}

bool device_plan_copy(const struct device_plan *plan, struct device_plan *copy, struct status *status)
{
    *copy = (struct device_plan){.header = plan->header,
                                 .vocab_size = plan->vocab_size,
                                 .hidden_size = plan->hidden_size,
                                 .drafts = plan->drafts};
    copy->launches = calloc((size_t)plan->count + 1, sizeof *copy->launches);
    if (!copy->launches) return status_fail(status, STATUS_MACHINE, "out of memory while copying a plan");
    copy->count = plan->count;
    memcpy(copy->launches, plan->launches, plan->count * sizeof *copy->launches);
    return true;
}

uint64_t device_plan_hash(const struct device_plan *plan, uint64_t hash)
{
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_tactic *tactic = &plan->launches[n].tactic;
        const uint64_t parts[3] = {hash, hash64(tactic->params, sizeof tactic->params),
                                   hash64(tactic->kernel->name, strlen(tactic->kernel->name))};
        hash = hash64(parts, sizeof parts);
    }
    return hash;
}

/* ---- finishing ---- */

struct finishing {
    struct plan_header header;
    struct plan_launch *launches;
    struct plan_operand *operands;
    struct plan_param *params;
    struct plan_tensor_map *tensor_maps;
    uint32_t *dependencies;
};

/* Operands of the launch with their tensor maps. */
static void add_operands(struct finishing *out, struct plan_launch *launch, const struct device_launch *source)
{
    const struct device_kernel *kernel = source->tactic.kernel;
    for (uint32_t i = 0; i < source->operand_count; i++) {
        struct plan_operand operand = source->operands[i];
        struct plan_tensor_map *map = &out->tensor_maps[out->header.tensor_map_count];
        if (kernel->tensor_map && kernel->tensor_map(source->tactic.params, (int)i, map))
            operand.tensor_map = ++out->header.tensor_map_count;
        out->operands[out->header.operand_count++] = operand;
    }
    launch->operand_count = (uint16_t)source->operand_count;
}

/* Geometry, attributes and the number of the kernel. */
static bool finish_kernel(struct plan_launch *launch, const struct device_launch *source,
                          const struct device_facts *gpu, struct kernel_set *set, struct status *status)
{
    const struct device_kernel *kernel = source->tactic.kernel;
    struct device_geometry geometry;
    const char *illegal = kernel->launch(source->tactic.params, gpu, &geometry);
    if (illegal) return status_fail(status, STATUS_INTERNAL, "kernel '%s': %s", kernel->name, illegal);
    launch->kernel = kernel->library ? kernel_set_add_call(set, &source->tactic, source->operand_count)
                                     : kernel_set_add(set, &source->tactic, source->operand_count);
    if (launch->kernel == UINT32_MAX)
        return status_fail(status, STATUS_MACHINE, "out of memory while finishing a plan");
    launch->shared_bytes = geometry.shared_bytes;
    memcpy(launch->grid, geometry.grid, sizeof launch->grid);
    memcpy(launch->block, geometry.block, sizeof launch->block);
    memcpy(launch->cluster, geometry.cluster, sizeof launch->cluster);
    /* Programmatic dependent launch came with Hopper; without it device_wait() is empty and the edges are full. */
    launch->attributes = kernel->library ? LAUNCH_LIBRARY : gpu->capability >= 90 ? LAUNCH_PROGRAMMATIC : 0;
    if (kernel->coresident) launch->attributes |= LAUNCH_CORESIDENT;
    return true;
}

static bool finish_launch(struct finishing *out, const struct device_launch *source, const struct device_facts *gpu,
                          struct kernel_set *set, struct status *status)
{
    uint32_t index = out->header.launch_count++;
    struct plan_launch *launch = &out->launches[index];
    const struct device_kernel *kernel = source->tactic.kernel;
    const int64_t *params = source->tactic.params;
    *launch = (struct plan_launch){
        .op = (uint16_t)source->op,
        .first_operand = out->header.operand_count,
        .first_param = out->header.param_count,
        .first_dependency = out->header.dependency_count,
        .tactic = source->record,
        .layer = source->layer,
    };
    if (!finish_kernel(launch, source, gpu, set, status)) return false;
    kernel->cost(params, PLAN_COST_CONTEXT, &launch->bytes, &launch->flops);
    /* The code of our own kernels has its parameters compiled in; a call's tell the library what to compute, and its
     * tunables are its data. */
    launch->param_count = (uint16_t)op_list_params(kernel->problem, params, kernel->library ? 0 : kernel->own_count,
                                                   kernel->library, out->params + launch->first_param);
    add_operands(out, launch, source);
    out->header.param_count += launch->param_count;
    if (index > 0) { /* one chain: each launch waits for the one before, and so for all */
        out->dependencies[out->header.dependency_count++] = index - 1;
        launch->dependency_count = 1;
    }
    return true;
}

bool device_plan_finish(const struct device_plan *plan, const struct device_facts *gpu, struct kernel_set *set,
                        struct plan *finished, struct status *status)
{
    size_t count = plan->count;
    struct finishing out = {.header = {.kind = plan->header.kind,
                                       .rows = plan->header.rows,
                                       .out_rows = plan->header.out_rows,
                                       .use = plan->header.use,
                                       .arena_bytes = plan->header.arena_bytes}};
    out.launches = calloc(count + 1, sizeof *out.launches);
    out.operands = calloc(count * PLAN_MAX_OPERANDS + 1, sizeof *out.operands);
    out.params = calloc(count * PLAN_MAX_PARAMS + 1, sizeof *out.params);
    out.tensor_maps = calloc(count * PLAN_MAX_OPERANDS + 1, sizeof *out.tensor_maps);
    out.dependencies = calloc(count + 1, sizeof *out.dependencies);
    bool ok = out.launches && out.operands && out.params && out.tensor_maps && out.dependencies;
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while finishing a plan");
    for (size_t i = 0; ok && i < count; i++) ok = finish_launch(&out, &plan->launches[i], gpu, set, status);
    *finished = (struct plan){
        .header = out.header,
        .launches = out.launches,
        .operands = out.operands,
        .params = out.params,
        .tensor_maps = out.tensor_maps,
        .dependencies = out.dependencies,
    };
    if (ok) op_leave_out_defaults(finished);
    if (ok && !plan_place_step(finished, plan->vocab_size, plan->hidden_size, plan->drafts))
        ok = status_fail(status, STATUS_INTERNAL, "the step of a plan does not fit into 64-bit sizes");
    if (!ok) plan_free(finished);
    return ok;
}
