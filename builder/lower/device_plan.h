/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for devices while they are being built: every launch with its kernel and parameters, so that the tuner can put
 * another tactic in its place. Finishing a plan fixes geometry and kernel numbers and gives the engine's form. */
#ifndef BUILDER_LOWER_DEVICE_PLAN_H
#define BUILDER_LOWER_DEVICE_PLAN_H

#include "builder/lower/lower.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/cuda/registry.h"

struct device_launch {
    enum plan_op op;
    struct device_tactic tactic; /* params: the op's, then the kernel's tunables */
    struct plan_operand operands[PLAN_MAX_OPERANDS];
    uint32_t operand_count;
    uint32_t layer;
    uint32_t record;  /* line of the tactics section, PLAN_NO_TACTIC if nothing was tuned */
    uint32_t problem; /* of the tuner: launches of one problem can have each other's tactics; PLAN_NO_TACTIC: none */
};

struct device_plan {
    struct plan_header header;      /* counts are set by finishing */
    struct device_launch *launches; /* owned */
    uint32_t count;
};

/* What lowering.scratch_bytes must be at least for decode plans of `rows` rows, whatever tactics are chosen. */
uint64_t device_scratch_bytes(const struct graph *graph, const struct lowering *lowering,
                              const struct device_facts *gpu, uint32_t rows);

/* The plan for `rows` token rows, each launch with the first legal tactic of its op. */
bool lower_device_plan(const struct graph *graph, const struct lowering *lowering, const struct device_facts *gpu,
                       uint32_t rows, struct device_plan *plan, struct status *status);
void device_plan_free(struct device_plan *plan);

/* Compiled kernels and library calls, each once: what these sections will hold. */
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
/* Compiles what is not compiled yet on `threads` threads: not what `known` has, which remembers what is new; it may be
 * NULL, and so may `progress`. */
typedef void kernel_set_progress(void *context, uint64_t done, uint64_t total);
bool kernel_set_compile(struct kernel_set *set, struct kernel_set *known, struct nvrtc *nvrtc, int capability,
                        int threads, kernel_set_progress *progress, void *context, struct status *status);
void kernel_set_free(struct kernel_set *set);
/* The entries in the engine's form, malloc'd; they borrow from the set. */
struct engine_kernel *kernel_set_view(const struct kernel_set *set);

/* The plan as the engine holds it; the caller frees it with lowered_plan_free. Adds its kernels to the set. */
bool finish_device_plan(const struct device_plan *plan, const struct device_facts *gpu, struct kernel_set *set,
                        struct plan *finished, struct status *status);

#endif
