/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/matmul_device.h"

#include <string.h>

#include "formats/encoding/dtype.h"
#include "kernels/matmul/fragment_layout.cuh"
#include "kernels/op/op.h"
#include "kernels/quantise/quantise.h"

int matmul_device_operand(const int64_t *params, enum matmul_operand operand)
{
    return op_operand_position(&op_matmul, TARGET_CUDA, params, (int)operand);
}

int matmul_device_operand_count(const int64_t *params) { return op_operands_present(&op_matmul, TARGET_CUDA, params); }

uint64_t matmul_device_operand_bytes(const int64_t *params, int operand)
{
    uint64_t bytes;
    for (int i = 0; i < MATMUL_OPERANDS; i++)
        if (op_operand_position(&op_matmul, TARGET_CUDA, params, i) == operand && operand >= 0)
            return op_operand_bytes(&op_matmul, TARGET_CUDA, params, NULL, i, &bytes) ? bytes : 0;
    return 0;
}

int64_t matmul_device_element(const int64_t *params)
{
    return matmul_is_coded(params) ? DTYPE_BF16 : params[MATMUL_DTYPE];
}

const char *matmul_device_illegal(const int64_t *params)
{
    const int64_t n = params[MATMUL_N], k = params[MATMUL_K], dtype = params[MATMUL_DTYPE];
    const char *why = op_params_illegal(&op_matmul, params);
    if (why) return why;
    if (n > MATMUL_DEVICE_MOST_N) return "parameter n is above 2^24";
    if (params[MATMUL_X_PITCH] % 8) return "parameter x_pitch is not a multiple of 8";
    if (k > MATMUL_DEVICE_MOST_K || k % 8) return "parameter k is not a multiple of 8 up to 2^24";
    struct panel_form form;
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16 && !fragment_form(dtype, &form))
        return "parameter dtype is not F16, BF16 or an encoding with fragments";
    if (params[MATMUL_HAS_X_SCALES] && k % QUANTISE_GROUP) return "codes of x with a k that is not a multiple of 16";
    if (!params[MATMUL_HAS_X_SCALES] &&
        params[MATMUL_INPUT_DTYPE] != (params[MATMUL_HAS_NORM] ? DTYPE_F32 : matmul_device_element(params)))
        return "parameter input_dtype is not that of w (BF16 if coded), or F32 with a norm";
    if (params[MATMUL_EXPERTS] && params[MATMUL_BLOCK_N]) return "CUDA code has no experts with block_n";
    if (params[MATMUL_EXPERTS] && matmul_is_coded(params) && matmul_expert_n(params) % FRAGMENT_ROWS)
        return "parameter n is not a multiple of 16 for each expert with coded weights";
    if (params[MATMUL_COMPUTE_DTYPE] != DTYPE_F32) return "parameter compute_dtype is not F32";
    if (matmul_is_gated(params) && matmul_expert_n(params) % 16)
        return "parameter n is not a multiple of 16 with a gate";
    if (params[MATMUL_HAS_RESIDUAL] && params[MATMUL_OUT_DTYPE] != DTYPE_F32)
        return "a residual with an out_dtype that is not F32";
    return NULL;
}

void matmul_device_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    *bytes = 0;
    for (int i = 0; i < matmul_device_operand_count(params); i++) *bytes += matmul_device_operand_bytes(params, i);
    const int64_t slots = matmul_slots(params, params[MATMUL_ROWS]), experts = params[MATMUL_EXPERTS];
    if (experts) {
        const uint64_t weights = matmul_device_operand_bytes(params, matmul_device_operand(params, MATMUL_W));
        *bytes -= weights / (uint64_t)experts * (uint64_t)(experts - matmul_matrices_read(params));
    }
    *flops = 2 * (uint64_t)slots * (uint64_t)matmul_expert_n(params) * (uint64_t)params[MATMUL_K];
}

enum { SHARED_UNIT = 128 };

int64_t matmul_device_most_shared(const struct device_facts *gpu, int64_t per_sm)
{
    const int64_t part = gpu->shared_per_sm / per_sm - DEVICE_RESERVED_SHARED_BYTES;
    return part < gpu->shared_per_block ? part : gpu->shared_per_block;
}

int64_t matmul_device_least_shared(const struct device_facts *gpu, int64_t per_sm)
{
    const int64_t part = gpu->shared_per_sm / (per_sm + 1) - DEVICE_RESERVED_SHARED_BYTES;
    return part < 0 ? 0 : layout_round_up(part + 1, SHARED_UNIT);
}

int64_t matmul_device_second_shared(const struct device_facts *gpu)
{
    return gpu->shared_per_sm - matmul_device_least_shared(gpu, 1) - 2 * DEVICE_RESERVED_SHARED_BYTES;
}

void matmul_device_rank(struct matmul_ranking *ranking, const int64_t *params, double cost)
{
    struct matmul_estimate *list = ranking->list;
    int at = ranking->count;
    while (at > 0 && list[at - 1].cost > cost) at--;
    if (at >= ranking->most) return;
    if (ranking->count < ranking->most) ranking->count++;
    memmove(list + at + 1, list + at, (size_t)(ranking->count - 1 - at) * sizeof *list);
    list[at].cost = cost;
    memcpy(list[at].params, params, sizeof list[at].params);
}

int matmul_device_ranked(const struct matmul_ranking *ranking, int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    const int count = ranking->count < capacity ? ranking->count : capacity;
    for (int i = 0; i < count; i++) memcpy(params_out[i], ranking->list[i].params, sizeof params_out[i]);
    return count;
}
