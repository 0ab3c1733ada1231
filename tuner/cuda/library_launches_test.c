/* SPDX-License-Identifier: Apache-2.0 */
/* Which launches a library can compute. */
#include "tuner/cuda/library_launches.h"
#include "formats/base/test_program.h"

#include "formats/base/test_support.h"
#include "kernels/matmul/matmul.h"

static struct gpus gpus;

/* What cuBLASLt is asked for a matmul with this epilogue; ACTIVATION_COUNT: nothing. */
static int64_t asked(int epilogue)
{
    static struct device_launch site;
    int64_t params[PLAN_MAX_PARAMS];
    site = (struct device_launch){.op = OP_MATMUL};
    for (int i = 0; i < op_matmul.param_count; i++) site.tactic.params[i] = op_matmul.params[i].fallback;
    site.tactic.params[MATMUL_ROWS] = 128;
    site.tactic.params[MATMUL_N] = 512;
    site.tactic.params[MATMUL_K] = 256;
    site.tactic.params[MATMUL_DTYPE] = site.tactic.params[MATMUL_INPUT_DTYPE] = DTYPE_BF16;
    site.tactic.params[MATMUL_OUT_DTYPE] = DTYPE_BF16;
    site.tactic.params[MATMUL_EPILOGUE] = epilogue;
    return library_problem(&gpus, &site, params) == LIBRARY_CUBLASLT ? params[MATMUL_EPILOGUE] : ACTIVATION_COUNT;
}

/* A kernel of ours applies an activation with a gate; without one there is none that would. */
TEST(activations_without_a_gate_are_not_for_cublaslt)
{
    gpus.cublaslt.library = &gpus;
    gpus.cublaslt.version = 1;
    assert_int_equal(asked(ACTIVATION_NONE), ACTIVATION_NONE);
    assert_int_equal(asked(ACTIVATION_SILU), ACTIVATION_NONE);
    assert_int_equal(asked(ACTIVATION_RELU), ACTIVATION_NONE);
    for (int activation = ACTIVATION_SILU; activation < ACTIVATION_COUNT; activation++)
        assert_int_equal(asked(EPILOGUE_PLAIN + activation), ACTIVATION_COUNT);
}

int main(void) { return test_run(); }
