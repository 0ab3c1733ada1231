/* SPDX-License-Identifier: Apache-2.0 */
/* sample on the GPU: the semantics of sample.h, draw for draw. Tokens, sampler states and SEEN afterwards equal those of
 * the CPU's vector code with fused multiply-adds (AVX2, AVX-512): the same operations on floats, integer sums. They may
 * differ from sample_reference, which sums in double, where a random number falls on a boundary.
 *
 * With FEEDBACK the drawn token, PLAN_NO_TOKEN too, becomes the token row's next input, so that a decode step can be
 * replayed without the host: tokens[out_rows[o]] = next_tokens[o], positions[out_rows[o]] += 1. Two valid out rows must not have the same token
 * row or slot. Out rows whose token row or slot does not exist draw token 0 and change nothing else.
 *
 * Slots of valid rows and logits are read; out_rows beyond the valid ones is read, too, but not followed. */
#ifndef KERNELS_SAMPLE_SAMPLE_DEVICE_H
#define KERNELS_SAMPLE_SAMPLE_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/sample/sample.h"

enum { SAMPLE_DEVICE_OPERANDS = SAMPLE_NEXT_TOKENS + 1, SAMPLE_DEVICE_OPERANDS_FEEDBACK = SAMPLE_POSITIONS + 1 };
enum sample_device_param {
    SAMPLE_DEVICE_CLUSTER = SAMPLE_PARAMS, /* tunable: thread blocks of a row: 1, 2, 4, 8 (portable); 1 before 9.0 */
    SAMPLE_DEVICE_THREADS,                 /* tunable: of a block: a multiple of 32 in 128..512 (128 tokens are
                                            * ranked at once; registers) */
    SAMPLE_DEVICE_PARAMS
};
extern const struct device_kernel device_sample;

/* As device_kernel.candidates. */
int sample_device_candidates(const int64_t *params, const struct device_facts *gpu,
                             int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);

#endif
