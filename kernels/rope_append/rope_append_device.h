/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append on the GPU, for prefill: splits the QKV projection, normalises q and k (HAS_NORM), rotates them, appends k
 * and v to the sequences' KV pages. Equations and page layout: rope_append.h. Float32 inside, relative error
 * 1e-6 of the larger of a rotated pair before the rounding to X_DTYPE (q) or KV_DTYPE (k); v is exact.
 *
 * KV begins at a multiple of 16 bytes, other operands likewise. Slots, positions and page table entries of valid rows
 * are the submitter's duty. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_DEVICE_H
#define KERNELS_ROPE_APPEND_ROPE_APPEND_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/rope_append/rope_append.h"

enum rope_append_device_operand {
    ROPE_APPEND_DEVICE_COUNTS,
    ROPE_APPEND_DEVICE_QKV,                                  /* X_DTYPE[ROWS, (HEADS + 2 KV_HEADS) * HEAD_DIM] */
    ROPE_APPEND_DEVICE_TABLE,                                /* f32[ROWS, R]: rope_table's output */
    ROPE_APPEND_DEVICE_SLOTS,                                /* i32[ROWS] */
    ROPE_APPEND_DEVICE_POSITIONS,                            /* i32[ROWS] */
    ROPE_APPEND_DEVICE_PAGE_TABLE,                           /* i32[SLOT_COUNT, PAGES_PER_SLOT] */
    ROPE_APPEND_DEVICE_KV,                                   /* this layer's block in page 0 of the pool */
    ROPE_APPEND_DEVICE_Q,                                    /* X_DTYPE[ROWS, HEADS * HEAD_DIM] */
    ROPE_APPEND_DEVICE_OPERANDS,                             /* with HAS_NORM two more: */
    ROPE_APPEND_DEVICE_NORM_Q = ROPE_APPEND_DEVICE_OPERANDS, /* NORM_DTYPE[...] as in rope_append.h, a constant */
    ROPE_APPEND_DEVICE_NORM_K,
    ROPE_APPEND_DEVICE_OPERANDS_NORM
};
enum rope_append_device_param {
    ROPE_APPEND_DEVICE_ROWS = ROPE_APPEND_ROWS,
    ROPE_APPEND_DEVICE_COUNT_INDEX = ROPE_APPEND_COUNT_INDEX,
    ROPE_APPEND_DEVICE_HEADS = ROPE_APPEND_HEADS,
    ROPE_APPEND_DEVICE_KV_HEADS = ROPE_APPEND_KV_HEADS,
    ROPE_APPEND_DEVICE_HEAD_DIM = ROPE_APPEND_HEAD_DIM,
    ROPE_APPEND_DEVICE_PAGE_TOKENS = ROPE_APPEND_PAGE_TOKENS,
    ROPE_APPEND_DEVICE_PAGES_PER_SLOT = ROPE_APPEND_PAGES_PER_SLOT,
    ROPE_APPEND_DEVICE_PAGE_BYTES = ROPE_APPEND_PAGE_BYTES,
    ROPE_APPEND_DEVICE_SLOT_COUNT = ROPE_APPEND_SLOT_COUNT,
    ROPE_APPEND_DEVICE_KV_DTYPE = ROPE_APPEND_KV_DTYPE,
    ROPE_APPEND_DEVICE_X_DTYPE = ROPE_APPEND_X_DTYPE,
    ROPE_APPEND_DEVICE_HAS_NORM = ROPE_APPEND_HAS_NORM,
    ROPE_APPEND_DEVICE_NORM_DTYPE = ROPE_APPEND_NORM_DTYPE,
    ROPE_APPEND_DEVICE_EPS_BITS = ROPE_APPEND_EPS_BITS,
    ROPE_APPEND_DEVICE_ROTARY_DIM = ROPE_APPEND_ROTARY_DIM,
    ROPE_APPEND_DEVICE_NORM_SCOPE = ROPE_APPEND_NORM_SCOPE,
    ROPE_APPEND_DEVICE_PARAMS = ROPE_APPEND_PARAMS
};
extern const struct device_kernel device_rope_append;

#endif
