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

enum sample_device_operand {
    SAMPLE_DEVICE_COUNTS,
    SAMPLE_DEVICE_LOGITS,                          /* f32[ROWS, VOCAB] */
    SAMPLE_DEVICE_OUT_ROWS,                        /* i32[ROWS]: token row of each out row */
    SAMPLE_DEVICE_SLOTS,                           /* i32[IN_ROWS] */
    SAMPLE_DEVICE_SAMPLERS,                        /* struct sampler_state[SLOT_COUNT], read and written */
    SAMPLE_DEVICE_SEEN,                            /* u8[SLOT_COUNT, ceil(VOCAB / 8)], read and written */
    SAMPLE_DEVICE_NEXT_TOKENS,                     /* i32[ROWS] */
    SAMPLE_DEVICE_OPERANDS,                        /* with FEEDBACK two more: */
    SAMPLE_DEVICE_TOKENS = SAMPLE_DEVICE_OPERANDS, /* i32[IN_ROWS], written */
    SAMPLE_DEVICE_POSITIONS,                       /* i32[IN_ROWS], read and written */
    SAMPLE_DEVICE_OPERANDS_FEEDBACK
};
enum sample_device_param {
    SAMPLE_DEVICE_ROWS = SAMPLE_ROWS,
    SAMPLE_DEVICE_COUNT_INDEX = SAMPLE_COUNT_INDEX,
    SAMPLE_DEVICE_VOCAB = SAMPLE_VOCAB,
    SAMPLE_DEVICE_SLOT_COUNT = SAMPLE_SLOT_COUNT,
    SAMPLE_DEVICE_IN_ROWS = SAMPLE_IN_ROWS,
    SAMPLE_DEVICE_FEEDBACK = SAMPLE_FEEDBACK,
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
