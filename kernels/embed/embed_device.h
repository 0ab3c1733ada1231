/* SPDX-License-Identifier: Apache-2.0 */
/* embed on the GPU: out[r, :] = table[tokens[r], :], rounded to OUT_DTYPE. The table is row-major. SHARDED: rank k of
 * several has the tokens from k * VOCAB on. Rows of tokens that the table does not have are zero: those of other ranks, and
 * PLAN_NO_TOKEN, which a step finds that was queued behind one that drew nothing. */
#ifndef KERNELS_EMBED_EMBED_DEVICE_H
#define KERNELS_EMBED_EMBED_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/embed/embed.h"

enum embed_device_operand {
    EMBED_DEVICE_COUNTS,
    EMBED_DEVICE_TOKENS, /* i32[ROWS] */
    EMBED_DEVICE_TABLE,  /* DTYPE[VOCAB, PITCH] */
    EMBED_DEVICE_OUT,    /* OUT_DTYPE[ROWS, HIDDEN] */
    EMBED_DEVICE_HEADER, /* struct comm_header; with SHARDED */
    EMBED_DEVICE_OPERANDS
};
enum embed_device_param {
    EMBED_DEVICE_ROWS = EMBED_ROWS,
    EMBED_DEVICE_COUNT_INDEX = EMBED_COUNT_INDEX,
    EMBED_DEVICE_HIDDEN = EMBED_HIDDEN,
    EMBED_DEVICE_PITCH = EMBED_PITCH,
    EMBED_DEVICE_VOCAB = EMBED_VOCAB,
    EMBED_DEVICE_DTYPE = EMBED_TABLE_DTYPE,
    EMBED_DEVICE_SHARDED = EMBED_SHARDED,
    EMBED_DEVICE_OUT_DTYPE = EMBED_OUT_DTYPE,
    EMBED_DEVICE_PARAMS = EMBED_PARAMS
};
extern const struct device_kernel device_embed;

#endif
