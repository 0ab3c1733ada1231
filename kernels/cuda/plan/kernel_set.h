/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels and library calls that plans launch, each once, and their compilation: what these sections of an engine hold. */
#ifndef KERNELS_CUDA_PLAN_KERNEL_SET_H
#define KERNELS_CUDA_PLAN_KERNEL_SET_H

#include "kernels/cuda/compile_workers.h"
#include "kernels/cuda/registry.h"

struct kernel_set {
    struct kernel_set_entry {
        struct device_tactic tactic;
        uint32_t operand_count;
        void *cubin; /* owned; NULL until compiled */
        size_t cubin_bytes;
    } * entries;
    size_t count, capacity;
    struct engine_call *calls;          /* their data are owned, too */
    struct device_tactic *call_tactics; /* [call_count]: without their blobs */
    size_t call_count, call_capacity;
};

/* The number of the kernel that computes `tactic` for launches of `operand_count` operands; new ones are compiled
 * later. UINT32_MAX: out of memory. */
uint32_t kernel_set_add(struct kernel_set *set, const struct device_tactic *tactic, uint32_t operand_count);
/* Likewise of the call that a library's tactic makes. */
uint32_t kernel_set_add_call(struct kernel_set *set, const struct device_tactic *tactic, uint32_t operand_count);

struct kernel_compiler {
    struct nvrtc *nvrtc;
    int capability, threads;
    struct compile_workers *workers; /* for threads beyond COMPILE_THREADS_OF_A_PROCESS; NULL: none */
    struct kernel_set known;         /* everything that was compiled */
};
/* Compiles kernels that are neither compiled nor known yet. `progress` may be NULL. */
typedef void kernel_set_progress(void *context, uint64_t done, uint64_t total);
bool kernel_set_compile(struct kernel_set *set, struct kernel_compiler *compiler, kernel_set_progress *progress,
                        void *context, struct status *status);
void kernel_set_free(struct kernel_set *set);
/* The entries in the engine's form, malloc'd; they borrow from the set. */
struct engine_kernel *kernel_set_view(const struct kernel_set *set);

#endif
