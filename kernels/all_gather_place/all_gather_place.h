/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather_place: what follows a library's all_gather (device targets; all_gather_nccl.h):
 * out[r, k * WIDTH + c] = gathered[k, r, c], for the columns below OUT_WIDTH. */
#ifndef KERNELS_ALL_GATHER_PLACE_ALL_GATHER_PLACE_H
#define KERNELS_ALL_GATHER_PLACE_ALL_GATHER_PLACE_H

#include "kernels/all_gather/all_gather.h"

enum all_gather_place_operand {
    ALL_GATHER_PLACE_COUNTS,
    ALL_GATHER_PLACE_GATHERED, /* f32[RANKS, rows, WIDTH] */
    ALL_GATHER_PLACE_OUT,      /* f32[rows, OUT_WIDTH] */
    ALL_GATHER_PLACE_OPERANDS
};
/* Those of all_gather, then: */
enum all_gather_place_param {
    ALL_GATHER_PLACE_THREADS = ALL_GATHER_PARAMS, /* of a block: a multiple of 32 up to 1024 */
    ALL_GATHER_PLACE_PARAMS
};

extern const struct op_descriptor op_all_gather_place;

#endif
