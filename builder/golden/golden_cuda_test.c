/* SPDX-License-Identifier: Apache-2.0 */

#include "builder/golden/golden_cuda.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/op/op.h"
#include "kernels/routed_mlp/routed_mlp.h"

/* The tolerance of a plan whose last launch is of this op. */
static float tolerance_of(enum plan_op op, enum encoding_id kv_dtype, uint32_t eight_bit_rows)
{
    const struct manifest manifest = {.kv_dtype = kv_dtype, .eight_bit_rows = eight_bit_rows};
    const struct plan_launch launches[] = {{.op = OP_EMBED}, {.op = OP_RMS_NORM}, {.op = (uint16_t)op}};
    const struct plan plan = {.header.launch_count = sizeof launches / sizeof *launches, .launches = launches};
    return golden_cuda_tolerance(&manifest, &plan);
}

/* Recurrent layers enlarge rounding, a delta rule most. */
TEST(tolerance_follows_what_enlarges_rounding)
{
    assert_true(tolerance_of(OP_ATTENTION, ENCODING_BF16, 0) == 3e-2f);
    assert_true(tolerance_of(OP_ATTENTION, ENCODING_E4M3_CHANNEL, 0) == 1e-1f);
    assert_true(tolerance_of(OP_ATTENTION, ENCODING_BF16, 32) == 3e-1f);
    assert_true(tolerance_of(OP_SHORT_CONV, ENCODING_BF16, 0) == 1e-1f);
    assert_true(tolerance_of(OP_STATE_SPACE, ENCODING_BF16, 0) == 1e-1f);
    assert_true(tolerance_of(OP_DELTA_RULE, ENCODING_BF16, 0) == 3e-1f);
    /* A norm of groups alone does not. */
    assert_true(tolerance_of(OP_GROUP_NORM, ENCODING_BF16, 0) == 3e-2f);
}

/* The tolerance of a plan with one launch, which has a parameter of this value; others are absent. */
static float tolerance_with(enum plan_op op, int param, int64_t value)
{
    const struct op_descriptor *descriptor = op_find(op);
    int64_t values[PLAN_MAX_PARAMS];
    struct plan_param params[PLAN_MAX_PARAMS];
    for (int i = 0; i < descriptor->param_count; i++) values[i] = op_param_absent(&descriptor->params[i]);
    values[param] = value;
    const int count = op_list_params(descriptor, values, 0, false, params);
    const struct manifest manifest = {.kv_dtype = ENCODING_BF16};
    const struct plan_launch launch = {.op = (uint16_t)op, .param_count = (uint16_t)count};
    const struct plan plan = {.header.launch_count = 1, .launches = &launch, .params = params};
    return golden_cuda_tolerance(&manifest, &plan);
}

TEST(tolerance_follows_experts_and_clamped_activations)
{
    assert_true(tolerance_with(OP_MATMUL, MATMUL_N, 64) == 3e-2f);
    assert_true(tolerance_with(OP_MATMUL, MATMUL_EPILOGUE, ACTIVATION_SILU) == 3e-2f);
    assert_true(tolerance_with(OP_MATMUL, MATMUL_EPILOGUE, ACTIVATION_CLAMPED) == 1e-1f);
    assert_true(tolerance_with(OP_MATMUL, MATMUL_EXPERTS, 8) == 1e-1f);
    assert_true(tolerance_with(OP_ROUTED_MATMUL, ROUTED_MATMUL_EXPERTS, 8) == 1e-1f);
    assert_true(tolerance_with(OP_ROUTED_MLP, ROUTED_MATMUL_EXPERTS, 8) == 1e-1f);
}

int main(void) { return test_run(); }
