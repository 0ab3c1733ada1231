/* SPDX-License-Identifier: Apache-2.0 */
/* Device kernels as data: for every .cu file what it computes, which parameters specialise it, how it is launched.
 *
 * A .cu file has one entry, `extern "C" __global__`, named as the file. Its arguments are the launch's operands in the
 * order of the contract: pointers, or by value a tensor map (struct tensor_map, __grid_constant__) where the kernel's
 * host file says so. The body is in a .cuh file, a template over a struct of all shapes, dtypes and tunables
 * (kernels/cuda/include/device.cuh): the parameters of the op that the kernel is for, by its schema, then
 * the kernel's own; the .cu file has a default of each, so that nvcc compiles it as it is. Outputs of a launch become visible to the next launch
 * as programmatic dependent launch says: every kernel calls device_wait() before it touches what an earlier launch
 * writes or writes what one reads, and device_trigger() early. A matmul over experts with an activation triggers only after its wait, and
 * one with EARLY_ROUTES (matmul.h) reads routes before its own: whatever began after such a trigger may read what was complete then. */
#ifndef KERNELS_CUDA_KERNEL_H
#define KERNELS_CUDA_KERNEL_H

#include "formats/engine/engine_file.h"
#include "kernels/cuda/device.h"
#include "kernels/op/op.h"

/* Bytes of a multiprocessor's shared memory that the system takes for each thread block. */
enum { DEVICE_RESERVED_SHARED_BYTES = 1024 };

struct device_geometry {
    uint32_t grid[3], block[3], cluster[3]; /* cluster 1, 1, 1: none */
    uint32_t shared_bytes;                  /* dynamic */
};

struct device_kernel {
    const char *name;   /* entry, and the file's name without ".cu" */
    const char *source; /* from the root of the tree; NULL: "kernels/OP/NAME.cu" */
    enum plan_op op;
    enum plan_library library;           /* 0: code of ours; else the launch is a call, and there is no source */
    int least_capability;                /* 90, ...; 0: 80 */
    int most_capability;                 /* 90 for code that uses wgmma; 0: no limit */
    const struct op_descriptor *problem; /* whose parameters its first ones are; NULL: none are */
    const char *const *own_names;        /* [own_count]: of its own parameters after them: tunables, which change */
    int own_count;                       /* speed alone; without a problem all parameters */
    bool coresident;                     /* its blocks wait for each other: LAUNCH_CORESIDENT */

    /* Why these parameters are illegal on this GPU, NULL if they are legal; then *geometry is filled. Never trusts a
     * parameter: products are overflow-checked. */
    const char *(*launch)(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry);
    /* Complete legal params for the problem in params[0..device_problem_count): the best guess first, the others from
     * promising to less so, always in the same order. Returns how many, at most `capacity`; 0: not a problem of this
     * kernel. NULL: the kernel has no tunables. */
    int (*candidates)(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity);
    bool untuned; /* not worth a race: the best guess is taken */
    /* Operand `operand` is passed as a tensor map: fills it and returns true. NULL: all are pointers. */
    bool (*tensor_map)(const int64_t *params, int operand, struct plan_tensor_map *map);
    op_cost *cost;
    /* Bytes that it uses of the operand of ROLE_COUNTERS, of legal parameters. NULL: it has none. */
    uint64_t (*counter_bytes)(const int64_t *params);
    /* Library tactics: what an engine stores of the call. Sets version, bytes and data, which is malloc'd and the
     * caller's; false: out of memory. `blob`: of the tactic. */
    bool (*call)(const int64_t *params, const void *blob, size_t blob_bytes, struct engine_call *call);
};

/* Members of struct device_kernel: a name for each of `count` parameters of the kernel's own. */
#define DEVICE_OWN_NAMES(count, ...) .own_names = (const char *const[count]){__VA_ARGS__}, .own_count = (count)

/* Parameters: those of the problem, and all, at most PLAN_MAX_PARAMS. */
static inline int device_problem_count(const struct device_kernel *kernel)
{
    return kernel->problem ? kernel->problem->param_count : 0;
}
static inline int device_param_count(const struct device_kernel *kernel)
{
    return device_problem_count(kernel) + kernel->own_count;
}
/* For device_kernel.candidates: appends the problem in params with these parameters of the kernel's own to the `count` sets
 * found, if it is legal, new and below the capacity. Returns how many there are then. */
int device_add_candidate(const struct device_kernel *kernel, const int64_t *params, const int64_t *own,
                         const struct device_facts *gpu, int64_t (*found)[PLAN_MAX_PARAMS], int count, int capacity);

/* Lower case as in the schema, upper case if the kernel's own. */
static inline const char *device_param_name(const struct device_kernel *kernel, int index)
{
    const int first = device_problem_count(kernel);
    return index < first ? kernel->problem->params[index].name : kernel->own_names[index - first];
}

#endif
