/* SPDX-License-Identifier: Apache-2.0 */
/* draft as a kernel of its own: draft.cuh. */
#include "kernels/draft/draft.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS       \
    PARAM(ROWS) = 16;       \
    PARAM(COUNT_INDEX) = 1; \
    PARAM(VOCAB) = 128256;  \
    PARAM(IN_ROWS) = 16;    \
    PARAM(FEEDBACK) = 1;
#define PARAM_FEEDBACK 1
#endif

struct draft_params {
    KERNEL_PARAMS
};
typedef draft_body<draft_params> draft_kernel;

extern "C" __global__ void __launch_bounds__(draft_kernel::THREADS)
    draft(const int *__restrict__ counts, const float *__restrict__ logits,
          int *drafted OPTIONAL(PARAM_FEEDBACK, const int *__restrict__ out_rows, const int *__restrict__ next_tokens,
                                int *tokens, int *positions))
{
    draft_kernel::run(counts, logits, drafted, IF_PRESENT(PARAM_FEEDBACK, out_rows),
                      IF_PRESENT(PARAM_FEEDBACK, next_tokens), IF_PRESENT(PARAM_FEEDBACK, tokens),
                      IF_PRESENT(PARAM_FEEDBACK, positions));
}
