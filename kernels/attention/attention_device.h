/* SPDX-License-Identifier: Apache-2.0 */
/* attention on the GPU: the contract of the kernels that serve chunks of prompts, and the additions of each.
 *
 * out[r, h, :] = sum over t of softmax_t(SCALE * q[r, h] . k[t, g]) * v[t, g], g = h / (HEADS / KV_HEADS), t from
 * max(0, positions[r] - WINDOW + 1) (WINDOW 0: from 0) to positions[r] inclusive.
 *
 * k and v of every token up to positions[r] are in the pages already, those of this step too. Inside a page, a layer's
 * block begins at the KV operand's offset: K as KV_DTYPE [KV_HEADS, PAGE_TOKENS, HEAD_DIM], then V. Every operand
 * begins at a multiple of 64 bytes. Rows at and after min(counts[COUNT_INDEX], ROWS) are neither read nor written. Sums
 * are float32, softmax is online, two runs give the same bits. */
#ifndef KERNELS_ATTENTION_ATTENTION_DEVICE_H
#define KERNELS_ATTENTION_ATTENTION_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/attention/attention.h"

enum attention_device_operand {
    ATTENTION_DEVICE_COUNTS,
    ATTENTION_DEVICE_Q,          /* X_DTYPE [ROWS, HEADS * HEAD_DIM], rotated */
    ATTENTION_DEVICE_SLOTS,      /* i32 [ROWS] */
    ATTENTION_DEVICE_POSITIONS,  /* i32 [ROWS] */
    ATTENTION_DEVICE_PAGE_TABLE, /* i32 [SLOT_COUNT, PAGES_PER_SLOT] */
    ATTENTION_DEVICE_KV,         /* the layer's block in page 0 of the pool */
    ATTENTION_DEVICE_OUT,        /* X_DTYPE [ROWS, HEADS * HEAD_DIM]; may be Q */
    ATTENTION_DEVICE_OPERANDS
};

enum attention_device_param {
    ATTENTION_DEVICE_ROWS = ATTENTION_ROWS,
    ATTENTION_DEVICE_COUNT_INDEX = ATTENTION_COUNT_INDEX,
    ATTENTION_DEVICE_HEADS = ATTENTION_HEADS,
    ATTENTION_DEVICE_KV_HEADS = ATTENTION_KV_HEADS,
    ATTENTION_DEVICE_HEAD_DIM = ATTENTION_HEAD_DIM,
    ATTENTION_DEVICE_PAGE_TOKENS = ATTENTION_PAGE_TOKENS,
    ATTENTION_DEVICE_PAGES_PER_SLOT = ATTENTION_PAGES_PER_SLOT,
    ATTENTION_DEVICE_PAGE_BYTES = ATTENTION_PAGE_BYTES,
    ATTENTION_DEVICE_SLOT_COUNT = ATTENTION_SLOT_COUNT,
    ATTENTION_DEVICE_KV_DTYPE = ATTENTION_KV_DTYPE,
    ATTENTION_DEVICE_X_DTYPE = ATTENTION_X_DTYPE,
    ATTENTION_DEVICE_WINDOW = ATTENTION_WINDOW,
    ATTENTION_DEVICE_SCALE_BITS = ATTENTION_SCALE_BITS,
    ATTENTION_DEVICE_FIRST_TUNABLE = ATTENTION_PARAMS
};

/* attention_generic: any slots and positions in any order; HEAD_DIM even; KV_DTYPE and X_DTYPE F32, F16 or BF16 (equal
 * and 16-bit: products of that type, p rounded to it; else tf32 products); PAGE_BYTES a multiple of 16. */
enum attention_generic_param {
    ATTENTION_GENERIC_WARPS_Q = ATTENTION_DEVICE_FIRST_TUNABLE, /* 1, 2, 4: sixteens of (row, head) pairs of a block */
    ATTENTION_GENERIC_SPLIT,                                    /* 1, 2, 4: warps that share an entry's tokens */
    ATTENTION_GENERIC_KEY_TILE,                                 /* 16, 32, 64 tokens, at least 16 * SPLIT */
    ATTENTION_GENERIC_PARAMS
};
extern const struct device_kernel device_attention_generic;

/* attention_prefill (sm_90a): all valid rows belong to slots[0] and positions[r] = positions[0] + r; HEAD_DIM a
 * multiple of 16, best 64 or 128; KV_DTYPE = X_DTYPE = F16 or BF16, p rounded to it; PAGE_TOKENS a power of two from
 * 16 to 256; PAGE_BYTES a multiple of HEAD_DIM * 2. Q and KV are passed as tensor maps, for KV over the whole pool. */
enum attention_prefill_param {
    ATTENTION_PREFILL_TILE_Q = ATTENTION_DEVICE_FIRST_TUNABLE, /* 64, 128, 192 rows: a warpgroup for each 64 */
    ATTENTION_PREFILL_KEY_TILE,                                /* 64, 128 tokens */
    ATTENTION_PREFILL_STAGES,                                  /* 2..4 tiles of k, and of v, in shared memory */
    ATTENTION_PREFILL_PING_PONG,                               /* 0, 1: warpgroups take turns at the tensor cores */
    ATTENTION_PREFILL_SPLIT,                                   /* 1, 2, 4, 8 blocks share a tile's tokens: few rows */
    ATTENTION_PREFILL_BLOCKS_PER_SM,                           /* 1, 2 */
    ATTENTION_PREFILL_PARAMS
};
extern const struct device_kernel device_attention_prefill;

/* Complete legal params for the problem in params[0..ATTENTION_DEVICE_FIRST_TUNABLE), the best guess first, always in
 * the same order. Returns their number, at most `capacity`; 0: this kernel does not solve the problem. */
int attention_generic_candidates(const int64_t *params, const struct device_facts *gpu,
                                 int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);
int attention_prefill_candidates(const int64_t *params, const struct device_facts *gpu,
                                 int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);

#endif
