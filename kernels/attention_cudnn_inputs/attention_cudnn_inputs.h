/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_inputs: the launch before a call of cuDNN's attention (attention_cudnn.h). It fills the beginning of the
 * call's workspace (attention_cudnn_layout.cuh), and sets v of the tokens after the last valid one to zero up to the end of
 * the slot's last page: cuDNN multiplies them by zero, and unwritten memory may hold NaN. Nothing reads them before they
 * are written again. */
#ifndef KERNELS_ATTENTION_CUDNN_INPUTS_ATTENTION_CUDNN_INPUTS_H
#define KERNELS_ATTENTION_CUDNN_INPUTS_ATTENTION_CUDNN_INPUTS_H

#include "kernels/op/op.h"

enum attention_cudnn_inputs_operand {
    ATTENTION_CUDNN_INPUTS_COUNTS,
    ATTENTION_CUDNN_INPUTS_SLOTS,      /* i32[rows] */
    ATTENTION_CUDNN_INPUTS_POSITIONS,  /* i32[rows] */
    ATTENTION_CUDNN_INPUTS_PAGE_TABLE, /* i32[slots, pages_per_slot] */
    ATTENTION_CUDNN_INPUTS_KV,         /* the layer's block in page 0 of the pool, of a 16-bit type */
    ATTENTION_CUDNN_INPUTS_WORKSPACE,
    ATTENTION_CUDNN_INPUTS_OPERANDS
};
enum attention_cudnn_inputs_param {
    ATTENTION_CUDNN_INPUTS_ROWS,
    ATTENTION_CUDNN_INPUTS_COUNT_INDEX,
    ATTENTION_CUDNN_INPUTS_KV_HEADS,
    ATTENTION_CUDNN_INPUTS_HEAD_DIM, /* a multiple of 8 */
    ATTENTION_CUDNN_INPUTS_PAGE_TOKENS,
    ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT,
    ATTENTION_CUDNN_INPUTS_PAGE_BYTES, /* a multiple of 16 */
    ATTENTION_CUDNN_INPUTS_SLOT_COUNT,
    ATTENTION_CUDNN_INPUTS_PARAMS
};

extern const struct op_descriptor op_attention_cudnn_inputs;
extern const struct device_kernel device_attention_cudnn_inputs;
/* params[ATTENTION_CUDNN_INPUTS_PARAMS] of the launch before a call for a problem of attention. */
void attention_cudnn_inputs_params(const int64_t *attention_params, int64_t *params);

#endif
