/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/bench.h"

#include "formats/base/test_support.h"
#include "kernels/matmul/matmul_device.h"

/* The lower bound of a matmul whose operations take 8 us as products of 16-bit values. */
static double bound_us(enum encoding_id weights, enum dtype input, bool codes)
{
    const struct cuda_bench bench = {.read_bytes_per_us = 1e9, .flops_per_us = 2.0 * 2048 * 4096 * 4096 / 8};
    struct device_tactic tactic = {.kernel = &device_matmul_wgmma};
    tactic.params[MATMUL_ROWS] = 2048;
    tactic.params[MATMUL_N] = tactic.params[MATMUL_K] = 4096;
    tactic.params[MATMUL_DTYPE] = (int64_t)weights;
    tactic.params[MATMUL_OUT_DTYPE] = DTYPE_BF16;
    tactic.params[MATMUL_INPUT_DTYPE] = (int64_t)input;
    tactic.params[MATMUL_HAS_X_SCALES] = codes;
    return cuda_bench_roofline(&bench, &tactic);
}

TEST(codes_are_multiplied_twice_as_fast)
{
    assert_float_equal(bound_us(ENCODING_BF16, DTYPE_BF16, false), 8, 1e-9);
    assert_float_equal(bound_us(ENCODING_INT8_CHANNEL, DTYPE_BF16, false), 8, 1e-9);
    assert_float_equal(bound_us(ENCODING_INT8_CHANNEL, DTYPE_I8, true), 4, 1e-9);
    assert_float_equal(bound_us(ENCODING_E4M3_CHANNEL, DTYPE_F8_E4M3, true), 4, 1e-9);
}

int main(void) { return test_run(); }
