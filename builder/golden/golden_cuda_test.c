/* SPDX-License-Identifier: Apache-2.0 */

#include "builder/golden/golden_cuda.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/op/op.h"

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

int main(void) { return test_run(); }
