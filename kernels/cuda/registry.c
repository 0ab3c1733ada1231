/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/registry.h"

#include <string.h>

#include "kernels/all_gather/all_gather_nccl.h"
#include "kernels/all_reduce/all_reduce_nccl.h"
#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/draft/draft.h"
#include "kernels/embed/embed.h"
#include "kernels/group_norm/group_norm.h"
#include "kernels/latent_append/latent_append.h"
#include "kernels/matmul/matmul_cublaslt.h"
#include "kernels/matmul/matmul_device.h"
#include "kernels/mean_squares/mean_squares.h"
#include "kernels/multiply/multiply.h"
#include "kernels/norm_router/norm_router.h"
#include "kernels/quantise/quantise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_query/rope_query.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/routed_matmul/routed_matmul.h"
#include "kernels/routed_mlp/routed_mlp.h"
#include "kernels/router/router.h"
#include "kernels/sample/sample.h"
#include "kernels/select_columns/select_columns.h"
#include "kernels/select_rows/select_rows.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/sigmoid_gate/sigmoid_gate.h"
#include "kernels/state_space/state_space.h"
#include "kernels/sum_parts/sum_parts.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/xielu/xielu.h"

#define KERNELS(...) \
    (const struct device_kernel *const[]) { __VA_ARGS__, NULL }

static const struct device_kernel *const *const registry[OP_COUNT] = {
    [OP_EMBED] = KERNELS(&device_embed),
    [OP_ROPE_TABLE] = KERNELS(&device_rope_table),
    [OP_RMS_NORM] = KERNELS(&device_rms_norm),
    [OP_MATMUL] = KERNELS(&device_matmul_gemv, &device_matmul_grouped, &device_matmul_wgmma, &device_matmul_mma),
    [OP_ROPE_APPEND] = KERNELS(&device_rope_append),
    [OP_ATTENTION] = KERNELS(&device_attention_prefill, &device_attention_latent, &device_attention_generic),
    [OP_SWIGLU] = KERNELS(&device_swiglu),
    [OP_SELECT_ROWS] = KERNELS(&device_select_rows),
    [OP_SAMPLE] = KERNELS(&device_sample),
    [OP_ROPE_ATTENTION] = KERNELS(&device_rope_attention),
    [OP_ALL_REDUCE] = KERNELS(&device_all_reduce_one_shot, &device_all_reduce_two_shot),
    [OP_ALL_GATHER] = KERNELS(&device_all_gather),
    [OP_ALL_REDUCE_FINISH] = KERNELS(&device_all_reduce_finish),
    [OP_ALL_GATHER_PLACE] = KERNELS(&device_all_gather_place),
    [OP_ATTENTION_CUDNN_INPUTS] = KERNELS(&device_attention_cudnn_inputs),
    [OP_QUANTISE] = KERNELS(&device_quantise),
    [OP_ROUTER] = KERNELS(&device_router),
    [OP_SUM_PARTS] = KERNELS(&device_sum_parts),
    [OP_LATENT_APPEND] = KERNELS(&device_latent_append),
    [OP_SHORT_CONV] = KERNELS(&device_short_conv),
    [OP_DELTA_RULE] = KERNELS(&device_delta_rule_chunk, &device_delta_rule),
    [OP_SIGMOID_GATE] = KERNELS(&device_sigmoid_gate),
    [OP_MULTIPLY] = KERNELS(&device_multiply),
    [OP_ROPE_QUERY] = KERNELS(&device_rope_query),
    [OP_ROUTED_MATMUL] = KERNELS(&device_routed_matmul),
    [OP_MEAN_SQUARES] = KERNELS(&device_mean_squares),
    [OP_DRAFT] = KERNELS(&device_draft),
    [OP_SELECT_COLUMNS] = KERNELS(&device_select_columns),
    [OP_NORM_ROUTER] = KERNELS(&device_norm_router),
    [OP_STATE_SPACE] = KERNELS(&device_state_space_chunk, &device_state_space),
    [OP_GROUP_NORM] = KERNELS(&device_group_norm),
    [OP_XIELU] = KERNELS(&device_xielu),
    [OP_ROUTED_MLP] = KERNELS(&device_routed_mlp),
};
/* Library calls: not in the registry, since a plan has them only beside its counterpart without libraries. */
static const struct device_kernel *const calls[] = {&device_matmul_cublaslt, &device_attention_cudnn,
                                                    &device_all_reduce_nccl, &device_all_gather_nccl, NULL};

const struct device_kernel *const *device_kernels(enum plan_op op) { return op < OP_COUNT ? registry[op] : NULL; }

static const struct device_kernel *find_in(const struct device_kernel *const *kernels, const char *name)
{
    for (; *kernels; kernels++)
        if (strcmp((*kernels)->name, name) == 0) return *kernels;
    return NULL;
}

const struct device_kernel *device_kernel_find(const char *name)
{
    const struct device_kernel *found = find_in(calls, name);
    for (int op = 0; op < OP_COUNT && !found; op++)
        if (registry[op]) found = find_in(registry[op], name);
    return found;
}

bool device_kernel_runs_on(const struct device_kernel *kernel, const struct device_facts *gpu)
{
    const int least = kernel->least_capability ? kernel->least_capability : 80;
    return gpu->capability >= least && (kernel->most_capability == 0 || gpu->capability <= kernel->most_capability);
}

bool device_tactic_same_tunables(const struct device_tactic *a, const struct device_tactic *b)
{
    const int first = device_problem_count(a->kernel);
    return a->kernel == b->kernel &&
           memcmp(a->params + first, b->params + first, (size_t)a->kernel->own_count * sizeof *a->params) == 0;
}

bool device_op_is_tuned(enum plan_op op)
{
    const struct device_kernel *const *kernels = device_kernels(op);
    for (int i = 0; kernels && kernels[i]; i++)
        if (kernels[i]->candidates && !kernels[i]->untuned) return true;
    return false;
}

static int kernel_tactics(const struct device_kernel *kernel, const int64_t *params, const struct device_facts *gpu,
                          struct device_tactic *tactics, int capacity)
{
    int64_t found[DEVICE_MOST_TACTICS][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    int count = 0;
    if (kernel->candidates) {
        memset(found, 0, sizeof found);
        count = kernel->candidates(params, gpu, found, capacity < DEVICE_MOST_TACTICS ? capacity : DEVICE_MOST_TACTICS);
    } else if (!kernel->launch(params, gpu, &geometry)) {
        memcpy(found[0], params, (size_t)device_param_count(kernel) * sizeof *params);
        count = 1;
    }
    for (int i = 0; i < count; i++) {
        tactics[i].kernel = kernel;
        memset(tactics[i].params, 0, sizeof tactics[i].params);
        memcpy(tactics[i].params, found[i], (size_t)device_param_count(kernel) * sizeof *params);
    }
    return count;
}

int device_tactics_among(const struct device_kernel *const *kernels, const int64_t *params,
                         const struct device_facts *gpu, struct device_tactic *tactics, int capacity)
{
    int count = 0;
    for (int i = 0; kernels[i] && count < capacity; i++)
        if (device_kernel_runs_on(kernels[i], gpu))
            count += kernel_tactics(kernels[i], params, gpu, tactics + count, capacity - count);
    return count;
}

int device_tactics(enum plan_op op, const int64_t *params, const struct device_facts *gpu,
                   struct device_tactic *tactics, int capacity)
{
    const struct device_kernel *const *kernels = device_kernels(op);
    return kernels ? device_tactics_among(kernels, params, gpu, tactics, capacity) : 0;
}

/* Without a candidate the tunables are zero, and what `launch` says of them means nothing to a reader. */
static bool names_a_tunable(const struct device_kernel *kernel, const char *reason)
{
    for (int i = 0; i < kernel->own_count; i++)
        if (strstr(reason, kernel->own_names[i])) return true;
    return false;
}

const char *device_reason_among(const struct device_kernel *const *kernels, const int64_t *params,
                                const struct device_facts *gpu)
{
    struct device_geometry geometry;
    bool any = false;
    for (int i = 0; kernels[i]; i++) {
        if (!device_kernel_runs_on(kernels[i], gpu)) continue;
        any = true;
        const char *reason = kernels[i]->launch(params, gpu, &geometry);
        if (reason && !names_a_tunable(kernels[i], reason)) return reason;
    }
    return any ? "no kernel for this GPU takes its shape" : "no kernel runs on this GPU";
}

const char *device_tactics_reason(enum plan_op op, const int64_t *params, const struct device_facts *gpu)
{
    const struct device_kernel *const *kernels = device_kernels(op);
    return kernels ? device_reason_among(kernels, params, gpu) : "there is no device code for it";
}
