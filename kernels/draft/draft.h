/* SPDX-License-Identifier: Apache-2.0 */
/* draft: the token of the largest logit of each out row, the lowest id among equals, as a guess of the token after the one that the row
 * has drawn. NaN counts as less than all numbers; a row without a number drafts token 0.
 *
 * GPUs: with FEEDBACK the drawn token becomes the token row's next input, as sample.h describes it for its own parameter: the launches between
 * sample and this one read the step's own positions. */
#ifndef KERNELS_DRAFT_DRAFT_H
#define KERNELS_DRAFT_DRAFT_H

#include "kernels/op/op.h"

enum draft_operand {
    DRAFT_COUNTS,
    DRAFT_LOGITS,      /* f32[rows, VOCAB] */
    DRAFT_DRAFTED,     /* i32[rows], each in [0, VOCAB) */
    DRAFT_OUT_ROWS,    /* FEEDBACK: i32[rows]: token row of each out row, as the next three */
    DRAFT_NEXT_TOKENS, /* i32[rows] */
    DRAFT_TOKENS,      /* i32[IN_ROWS], written */
    DRAFT_POSITIONS,   /* i32[IN_ROWS], read and written */
    DRAFT_OPERANDS
};
enum draft_param {
    DRAFT_ROWS, /* out rows */
    DRAFT_COUNT_INDEX,
    DRAFT_VOCAB, /* equals the geometry's */
    DRAFT_IN_ROWS,
    DRAFT_FEEDBACK, /* CUDA: 0, 1 */
    DRAFT_PARAMS
};

extern const struct op_descriptor op_draft;
extern const struct device_kernel device_draft;
op_cost draft_cost;

#endif
