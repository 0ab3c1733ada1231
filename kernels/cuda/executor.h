/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as CUDA graphs, as kernels/cpu/executor.h is for the CPU. Each launch becomes a kernel node or, if it calls a
 * library, a child graph with the work that the library queues. A launch with LAUNCH_PROGRAMMATIC depends only on the
 * one before it, by a programmatic edge: it may begin early, and its kernel waits until that launch, and so the whole
 * chain before it, has completed. Other launches, and those after a library call, depend by full edges. Graphs are
 * built from the plan's data: no JIT, no warm-up, and no capture except of library calls.
 *
 * All functions enter the device's context themselves. Requires: a kernel set and its plans belong to one device and
 * are used by one thread at a time. */
#ifndef KERNELS_CUDA_EXECUTOR_H
#define KERNELS_CUDA_EXECUTOR_H

#include "formats/engine/engine_file.h"
#include "kernels/cuda/calls.h"

/* Device addresses and sizes of the spaces; KV: the whole pool. Operands that begin in the moved bytes of SPACE_STEP lie at `moved_to`
 * instead, such as in pinned memory of the host. moved_bytes 0: none. */
struct cuda_memory {
    cu_deviceptr base[SPACE_COUNT];
    uint64_t bytes[SPACE_COUNT];
    uint64_t moved_offset, moved_bytes;
    cu_deviceptr moved_to;
};

/* A kernel of an engine on the device, and its parameters. */
struct cuda_kernel {
    cu_library library;
    cu_function function;
    uint32_t operand_count;
    uint32_t parameter_bytes[PLAN_MAX_OPERANDS]; /* 8: pointer, 128: tensor map */
    uint32_t max_threads, static_shared_bytes;
};
struct cuda_kernels {
    struct cuda_kernel *kernels; /* owned, as the engine's kernels section */
    size_t count;
    const struct cuda_calls *calls; /* borrowed, set by the caller; NULL: no plan calls a library */
};

/* Loads every cubin and looks up every entry; raises the limit of dynamic shared memory to the device's maximum. */
bool cuda_kernels_load(struct cuda_kernels *kernels, const struct device *device, const struct engine_kernel *entries,
                       size_t count, struct status *status);
void cuda_kernels_free(struct cuda_kernels *kernels, const struct device *device);

struct cuda_plan {
    cu_graph_exec exec;
    uint32_t launch_count;
};

/* Builds and instantiates the graph. Checks what depends on the device: shared memory, threads, co-resident blocks, the
 * kernels' parameters, the chain of dependencies. Requires: the plan has passed the checks of engine_open. */
bool cuda_plan_bind(struct cuda_plan *bound, const struct device *device, const struct cuda_kernels *kernels,
                    const struct plan *plan, const struct cuda_memory *memory, const char *name, struct status *status);
/* The same for launches [first, end) alone, at least one. Requires: when the graph is replayed, those before `first` have been queued on the
 * same stream, and the whole plan can be bound. */
bool cuda_plan_bind_part(struct cuda_plan *bound, const struct device *device, const struct cuda_kernels *kernels,
                         const struct plan *plan, uint32_t first, uint32_t end, const struct cuda_memory *memory,
                         const char *name, struct status *status);
void cuda_plan_free(struct cuda_plan *bound, const struct device *device);

/* Queues one replay on the device's stream and returns. */
bool cuda_plan_launch(const struct cuda_plan *bound, const struct device *device, struct status *status);

/* Runs the launches one after the other without a graph and sets launch_us[i]. For traces. */
bool cuda_plan_run_timed(const struct device *device, const struct cuda_kernels *kernels, const struct plan *plan,
                         const struct cuda_memory *memory, double *launch_us, struct status *status);

#endif
