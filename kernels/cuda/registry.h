/* SPDX-License-Identifier: Apache-2.0 */
/* Which device kernels exist for an op. The kernels of an op share operands and the parameters before their tunables, so
 * that they can race each other. */
#ifndef KERNELS_CUDA_REGISTRY_H
#define KERNELS_CUDA_REGISTRY_H

#include "kernels/cuda/kernel.h"

/* In order of preference, NULL-terminated; NULL for an op without device code. */
const struct device_kernel *const *device_kernels(enum plan_op op);
/* Also of a library call; NULL if there is none. */
const struct device_kernel *device_kernel_find(const char *name);
bool device_kernel_runs_on(const struct device_kernel *kernel, const struct device_facts *gpu);

/* One way to compute a problem. */
struct device_tactic {
    const struct device_kernel *kernel;
    int64_t params[PLAN_MAX_PARAMS];
    const void *blob; /* borrowed: what a library's tactic has besides numbers; its hash is among the params */
    size_t blob_bytes;
};
/* The same kernel and the same tunables, whatever the problem. */
bool device_tactic_same_tunables(const struct device_tactic *a, const struct device_tactic *b);

enum { DEVICE_MOST_TACTICS = 64 }; /* of a problem */
/* Legal tactics of all kernels of `op` for the problem in params (those before the tunables), the best guess first.
 * Returns how many, at most `capacity`; 0: no kernel can. */
int device_tactics(enum plan_op op, const int64_t *params, const struct device_facts *gpu,
                   struct device_tactic *tactics, int capacity);
/* The same of any list of kernels, NULL-terminated. */
int device_tactics_among(const struct device_kernel *const *kernels, const int64_t *params,
                         const struct device_facts *gpu, struct device_tactic *tactics, int capacity);
/* Whether the tactics of an op's problems are worth racing: a kernel of it has candidates that differ enough. */
bool device_op_is_tuned(enum plan_op op);
/* Why no kernel takes the problem: the reason of the first kernel. For messages, after device_tactics returned 0. */
const char *device_tactics_reason(enum plan_op op, const int64_t *params, const struct device_facts *gpu);
const char *device_reason_among(const struct device_kernel *const *kernels, const int64_t *params,
                                const struct device_facts *gpu);

#endif
