/* SPDX-License-Identifier: Apache-2.0 */
/* embed: out[r, :] = SCALE * table[tokens[r], :] (+ position_table[positions[r], :]), as float.
 *
 * The table may be row-major or, when it doubles as the LM head (tied embeddings), in the layout of the matmul's weight. Where
 * several ranks share the vocabulary (plan_rank_vocab), rank k has the tokens from k * VOCAB on, and rows of tokens that
 * other ranks have are zero: an all_reduce makes the sum. Rows of tokens that no rank has are zero, too.
 * PLAN_NO_TOKEN, which a step finds if it was queued after one that drew nothing, gives zeros, too.
 *
 * With FOLLOWS the rows are those of the tokens after tokens[r]: following[r], or where that is ~o the token that out row o has drawn; zeros
 * where o is no valid out row. */
#ifndef KERNELS_EMBED_EMBED_H
#define KERNELS_EMBED_EMBED_H

#include "kernels/op/op.h"

enum embed_operand {
    EMBED_COUNTS,
    EMBED_TOKENS,    /* i32[rows] */
    EMBED_TABLE,     /* TABLE_DTYPE[VOCAB, PITCH] in LAYOUT */
    EMBED_OUT,       /* OUT_DTYPE[rows, HIDDEN] */
    EMBED_HEADER,    /* struct comm_header; SHARDED */
    EMBED_POSITIONS, /* HAS_POSITIONS: i32[rows] */
    EMBED_POSITION_TABLE, /* HAS_POSITIONS: POSITION_DTYPE[MOST_POSITIONS, HIDDEN], row-major; added where the rank has the token */
    EMBED_FOLLOWING, /* FOLLOWS: i32[rows] */
    EMBED_DRAWN,     /* FOLLOWS: i32[OUT_ROWS] */
    EMBED_OPERANDS
};
enum embed_param {
    EMBED_ROWS,
    EMBED_COUNT_INDEX,
    EMBED_HIDDEN,
    EMBED_PITCH, /* elements between rows of the table, at least HIDDEN */
    EMBED_VOCAB,
    EMBED_TABLE_DTYPE,
    EMBED_SHARDED, /* 1: several ranks share the vocabulary */
    EMBED_OUT_DTYPE,
    EMBED_LAYOUT,     /* enum tensor_layout: row-major; CPU: or PANEL16; CUDA: or FRAGMENT16 (kernels/matmul/panel.h) */
    EMBED_SCALE_BITS, /* bits of a float32 above 0 */
    EMBED_HAS_POSITIONS,
    EMBED_POSITION_DTYPE,
    EMBED_MOST_POSITIONS, /* at least the engine's longest context */
    EMBED_FOLLOWS,        /* 0, 1 */
    EMBED_OUT_ROWS,       /* of the step */
    EMBED_PARAMS
};

extern const struct op_descriptor op_embed;
extern const struct device_kernel device_embed;
op_cost embed_cost;

#endif
