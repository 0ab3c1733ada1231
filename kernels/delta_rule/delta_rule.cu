/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule as a kernel of its own: delta_rule.cuh. */
#include "kernels/delta_rule/delta_rule.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                 \
    PARAM(ROWS) = 2048;               \
    PARAM(COUNT_INDEX) = 0;           \
    PARAM(KEY_HEADS) = 16;            \
    PARAM(VALUE_HEADS) = 32;          \
    PARAM(KEY_DIM) = 128;             \
    PARAM(VALUE_DIM) = 128;           \
    PARAM(EPS_BITS) = 0x358637bd;     \
    PARAM(A_DTYPE) = DTYPE_BF16;      \
    PARAM(DT_DTYPE) = DTYPE_BF16;     \
    PARAM(NORM_DTYPE) = DTYPE_BF16;   \
    PARAM(RECURRENT_BYTES) = 4390912; \
    PARAM(SLOT_COUNT) = 16;           \
    PARAM(X_DTYPE) = DTYPE_BF16;      \
    PARAM(SCATTERED) = 0;             \
    PARAM(LANES) = 16;                \
    PARAM(WARPS) = 4;
#endif

struct delta_rule_params {
    KERNEL_PARAMS
};
typedef delta_rule_body<delta_rule_params> delta_rule_kernel;

extern "C" __global__ void __launch_bounds__(delta_rule_kernel::THREADS, 1)
    delta_rule(const int *counts, const void *qkv, const void *z, const float *ba, const void *a_log,
               const void *dt_bias, const void *norm, void *out, const int *slots, const int *positions, u8 *state)
{
    extern __shared__ __align__(16) u8 delta_rule_memory[];
    delta_rule_kernel::run(delta_rule_memory, counts, qkv, z, ba, a_log, dt_bias, norm, out, slots, positions, state);
}
