/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/library_launches.h"

#include <string.h>

#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/matmul/matmul_cublaslt.h"
#include "kernels/swiglu/swiglu.h"

enum { SPACE_ALIGNMENT = 256 };

/* Cannot overflow: the arena fits into memory. */
static uint64_t align(uint64_t bytes) { return (bytes + SPACE_ALIGNMENT - 1) / SPACE_ALIGNMENT * SPACE_ALIGNMENT; }

struct library_space library_space_begin(uint64_t arena_bytes, uint64_t projection_bytes)
{
    uint64_t projection = align(arena_bytes);
    return (struct library_space){.projection = projection,
                                  .workspace = projection + align(projection_bytes),
                                  .end = arena_bytes};
}

/* cuBLASLt computes all matmuls without a norm and without an activation; a kernel of ours after it applies one with a gate. */
static bool is_for_cublaslt(const struct device_launch *site, int64_t params[PLAN_MAX_PARAMS])
{
    struct device_geometry geometry;
    if (site->op != OP_MATMUL) return false;
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, site->tactic.params, MATMUL_FIRST_TUNABLE * sizeof *params);
    if (matmul_is_gated(params)) {
        if (params[MATMUL_OUT_DTYPE] == DTYPE_F32) return false; /* our swiglu kernel does not take it */
        params[MATMUL_EPILOGUE] = ACTIVATION_NONE;
    }
    return device_matmul_cublaslt.launch(params, NULL, &geometry) == NULL;
}

/* cuDNN computes attention that is not fused with rope; only prefill plans have it. */
static bool is_for_cudnn(const struct device_launch *site, int64_t params[PLAN_MAX_PARAMS])
{
    struct device_geometry geometry;
    if (site->op != OP_ATTENTION) return false;
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, site->tactic.params, ATTENTION_PARAMS * sizeof *params);
    return device_attention_cudnn.launch(params, NULL, &geometry) == NULL;
}

enum plan_library library_problem(const struct gpus *gpus, const struct device_launch *site,
                                  int64_t params[PLAN_MAX_PARAMS])
{
    if (gpus_library_version(gpus, LIBRARY_CUBLASLT) && is_for_cublaslt(site, params)) return LIBRARY_CUBLASLT;
    if (gpus_library_version(gpus, LIBRARY_CUDNN) && is_for_cudnn(site, params)) return LIBRARY_CUDNN;
    return 0;
}

void library_space_grow(struct library_space *space, uint64_t end)
{
    if (end > space->end) space->end = end;
}

uint64_t library_workspace_bytes(enum plan_library library, const int64_t *params)
{
    uint64_t workspace = 0;
    if (library == LIBRARY_CUBLASLT) return MATMUL_CUBLASLT_MOST_WORKSPACE;
    if (library == LIBRARY_CUDNN) attention_cudnn_workspace(params, ATTENTION_CUDNN_MOST_OWN, &workspace);
    return workspace;
}

/* An operand has at least one byte. */
static struct plan_operand workspace_operand(struct library_space *space, int64_t bytes, enum plan_access access)
{
    const struct plan_operand operand = {.space = SPACE_ARENA,
                                         .access = (uint8_t)access,
                                         .offset = space->workspace,
                                         .bytes = bytes < PLAN_ALIGNMENT ? PLAN_ALIGNMENT : (uint64_t)bytes};
    library_space_grow(space, operand.offset + operand.bytes);
    return operand;
}

uint64_t library_projection_bytes(const struct device_launch *site)
{
    const int64_t *params = site->tactic.params;
    if (site->op != OP_MATMUL || !matmul_is_gated(params)) return 0;
    return (uint64_t)params[MATMUL_ROWS] * (uint64_t)params[MATMUL_N] *
           dtype_bytes((enum dtype)params[MATMUL_OUT_DTYPE]);
}

static void make_swiglu(const struct device_launch *site, const struct plan_operand *projection,
                        struct device_launch *swiglu)
{
    *swiglu = *site;
    swiglu->op = OP_SWIGLU;
    swiglu->record = swiglu->problem = PLAN_NO_TACTIC;
    swiglu->tactic = (struct device_tactic){.kernel = &device_swiglu};
    swiglu->tactic.params[SWIGLU_ROWS] = site->tactic.params[MATMUL_ROWS];
    swiglu->tactic.params[SWIGLU_COUNT_INDEX] = site->tactic.params[MATMUL_COUNT_INDEX];
    swiglu->tactic.params[SWIGLU_WIDTH] = site->tactic.params[MATMUL_N] / 2;
    swiglu->tactic.params[SWIGLU_X_DTYPE] = site->tactic.params[MATMUL_OUT_DTYPE];
    swiglu->tactic.params[SWIGLU_ACTIVATION] = site->tactic.params[MATMUL_EPILOGUE];
    swiglu->operand_count = SWIGLU_OPERANDS;
    swiglu->operands[SWIGLU_GATE_UP] = *projection;
    swiglu->operands[SWIGLU_GATE_UP].access = ACCESS_READ;
    swiglu->operands[SWIGLU_OUT] = site->operands[MATMUL_OUT];
}

static uint32_t matmul_launches(const struct device_launch *site, const struct device_tactic *tactic,
                                struct library_space *space, struct device_launch *launches)
{
    struct device_launch *call = &launches[0];
    *call = *site;
    call->tactic = *tactic;
    call->operands[call->operand_count++] =
        workspace_operand(space, tactic->params[MATMUL_CUBLASLT_WORKSPACE], ACCESS_READ_WRITE);
    if (!matmul_is_gated(site->tactic.params)) return 1;
    const struct plan_operand projection = {.space = SPACE_ARENA,
                                            .access = ACCESS_WRITE,
                                            .offset = space->projection,
                                            .bytes = library_projection_bytes(site)};
    library_space_grow(space, projection.offset + projection.bytes);
    make_swiglu(site, &projection, &launches[1]);
    call->operands[MATMUL_OUT] = projection;
    return 2;
}

static uint32_t attention_launches(const struct device_launch *site, const struct device_tactic *tactic,
                                   struct library_space *space, struct device_launch *launches)
{
    static const int from[ATTENTION_CUDNN_INPUTS_WORKSPACE] = {
        [ATTENTION_CUDNN_INPUTS_COUNTS] = ATTENTION_COUNTS,
        [ATTENTION_CUDNN_INPUTS_SLOTS] = ATTENTION_SLOTS,
        [ATTENTION_CUDNN_INPUTS_POSITIONS] = ATTENTION_POSITIONS,
        [ATTENTION_CUDNN_INPUTS_PAGE_TABLE] = ATTENTION_PAGE_TABLE,
        [ATTENTION_CUDNN_INPUTS_KV] = ATTENTION_KV,
    };
    struct device_launch *inputs = &launches[0], *call = &launches[1];
    const int64_t workspace = tactic->params[ATTENTION_CUDNN_TACTIC_WORKSPACE];
    *inputs = *call = *site;
    inputs->record = inputs->problem = PLAN_NO_TACTIC;
    inputs->op = OP_ATTENTION_CUDNN_INPUTS;
    inputs->tactic = (struct device_tactic){.kernel = &device_attention_cudnn_inputs};
    attention_cudnn_inputs_params(site->tactic.params, inputs->tactic.params);
    inputs->operand_count = ATTENTION_CUDNN_INPUTS_OPERANDS;
    for (int i = 0; i < ATTENTION_CUDNN_INPUTS_WORKSPACE; i++) inputs->operands[i] = site->operands[from[i]];
    inputs->operands[ATTENTION_CUDNN_INPUTS_KV].access = ACCESS_READ_WRITE;
    inputs->operands[ATTENTION_CUDNN_INPUTS_WORKSPACE] = workspace_operand(space, workspace, ACCESS_WRITE);
    call->tactic = *tactic;
    call->operands[call->operand_count++] = workspace_operand(space, workspace, ACCESS_READ_WRITE);
    return 2;
}

uint32_t library_launches(const struct device_launch *site, const struct device_tactic *tactic,
                          struct library_space *space, struct device_launch launches[LIBRARY_MOST_LAUNCHES])
{
    return tactic->kernel->library == LIBRARY_CUDNN ? attention_launches(site, tactic, space, launches)
                                                    : matmul_launches(site, tactic, space, launches);
}
