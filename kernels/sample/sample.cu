/* SPDX-License-Identifier: Apache-2.0 */
/* sample as a kernel of its own: sample.cuh. */
#include "kernels/sample/sample.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS       \
    PARAM(ROWS) = 16;       \
    PARAM(COUNT_INDEX) = 1; \
    PARAM(VOCAB) = 128256;  \
    PARAM(SLOT_COUNT) = 16; \
    PARAM(IN_ROWS) = 16;    \
    PARAM(FEEDBACK) = 1;    \
    PARAM(HAS_OPTIONS) = 1; \
    PARAM(VERIFIES) = 0;    \
    PARAM(CLUSTER) = 8;     \
    PARAM(THREADS) = 512;
#define PARAM_FEEDBACK    1
#define PARAM_HAS_OPTIONS 1
#endif

struct sample_params {
    KERNEL_PARAMS
};
typedef sample_body<sample_params> sample_kernel;

extern "C" __global__ void __launch_bounds__(sample_params::THREADS, 1)
    sample(const int *__restrict__ counts, const float *__restrict__ logits, const int *__restrict__ out_rows,
           const int *__restrict__ slots, sampler_state *samplers, u8 *seen,
           int *next_tokens OPTIONAL(PARAM_FEEDBACK, int *tokens, int *positions)
               OPTIONAL(PARAM_HAS_OPTIONS, u32 *adjustments, const u32 *__restrict__ allowed))
{
    sample_kernel::run(counts, logits, out_rows, slots, samplers, seen, next_tokens, IF_PRESENT(PARAM_FEEDBACK, tokens),
                       IF_PRESENT(PARAM_FEEDBACK, positions), IF_PRESENT(PARAM_HAS_OPTIONS, adjustments),
                       IF_PRESENT(PARAM_HAS_OPTIONS, allowed));
}
