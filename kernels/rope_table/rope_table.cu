/* SPDX-License-Identifier: Apache-2.0 */
/* rope_table as a kernel of its own: rope_table.cuh. */
#include "kernels/rope_table/rope_table.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                 \
    PARAM(ROWS) = 16;                 \
    PARAM(COUNT_INDEX) = 0;           \
    PARAM(HEAD_DIM) = 128;            \
    PARAM(SCALING_BITS) = 0x3f800000; \
    PARAM(SWITCHES) = 0;
#define PARAM_SWITCHES 0
#endif

struct rope_table_params {
    KERNEL_PARAMS
};
typedef rope_table_body<rope_table_params> rope_table_kernel;

extern "C" __global__ void __launch_bounds__(rope_table_kernel::THREADS)
    rope_table(const int *__restrict__ counts, const int *__restrict__ positions, const float *__restrict__ inv_freq,
               float *__restrict__ out OPTIONAL(PARAM_SWITCHES, const int *__restrict__ slots,
                                                const int *__restrict__ rope_set))
{
    rope_table_kernel::run(counts, positions, inv_freq, out, IF_PRESENT(PARAM_SWITCHES, slots),
                           IF_PRESENT(PARAM_SWITCHES, rope_set));
}
