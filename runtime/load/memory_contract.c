/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/memory_contract.h"

#include <inttypes.h>

#include "formats/base/checked.h"

enum {
    DRIVER_GRANULARITY = 2 << 20, /* granularity of cuMemAlloc */
    GRAPH_NODE_BYTES = 2 << 10,   /* upper bound of the measured size of a kernel node with its parameters */
};

uint64_t memory_contract_code(const struct engine *file)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < file->kernel_count; i++) bytes += file->kernels[i].cubin_bytes;
    return bytes;
}

int memory_contract_plan_graphs(const struct engine *file, const struct plan *plan)
{
    const bool alone = plan_ranks(&file->manifest.geometry) == 1 && !file->manifest.geometry.drafts;
    return alone && plan->header.kind == PLAN_DECODE ? MEMORY_CONTRACT_MOST_GRAPHS : 1;
}

uint32_t memory_contract_plan_layers(const struct engine *file, const struct plan *plan)
{
    const struct plan_geometry *geometry = &file->manifest.geometry;
    uint32_t layers = 0;
    if (plan->header.kind != PLAN_DECODE || !geometry->sampling_options || plan_ranks(geometry) > 1) return 0;
    while (layers < plan->header.launch_count && plan->launches[layers].op != OP_SAMPLE) layers++;
    return layers < plan->header.launch_count ? layers : 0;
}

uint64_t memory_contract_graphs(const struct engine *file)
{
    uint64_t launches = 0;
    for (size_t i = 0; i < file->plan_count; i++) {
        const struct plan *plan = &file->plans[i];
        const uint64_t graphs = (uint64_t)memory_contract_plan_graphs(file, plan), count = plan->header.launch_count;
        const uint32_t layers = memory_contract_plan_layers(file, plan);
        launches += graphs * count + (layers ? layers + graphs * (count - layers) : 0);
    }
    return launches * GRAPH_NODE_BYTES;
}

bool memory_contract_total(const struct memory_contract *contract, uint64_t *bytes)
{
    const uint64_t parts[] = {contract->weights, contract->kernels, contract->arena, contract->step,
                              contract->state,   contract->kv,      contract->comm};
    *bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint64_t part;
        if (!checked_align(parts[i], DRIVER_GRANULARITY, &part) || !checked_add(*bytes, part, bytes)) return false;
    }
    return true;
}

bool memory_contract_check(const struct memory_contract *contract, uint64_t free_bytes, const struct device *device,
                           struct status *status)
{
    uint64_t needed;
    if (!memory_contract_total(contract, &needed))
        return status_fail(status, STATUS_MACHINE, "GPU memory: sizes do not fit in 64 bits");
    if (needed <= free_bytes) return true;
    return status_fail(status, STATUS_MACHINE,
                       "GPU %d (%s): expected %" PRIu64 " bytes free (weights %" PRIu64 ", kernels %" PRIu64
                       ", arena %" PRIu64 ", step %" PRIu64 ", state %" PRIu64 ", KV pages %" PRIu64
                       ", exchange %" PRIu64 "), found %" PRIu64 " of %" PRIu64
                       "; end what else uses it (see nvidia-smi), choose another GPU (device), or ask for a smaller KV "
                       "pool (kv_tokens, kv_bytes)",
                       device->ordinal, device->facts.name, needed, contract->weights, contract->kernels,
                       contract->arena, contract->step, contract->state, contract->kv, contract->comm, free_bytes,
                       device->facts.memory_bytes);
}
