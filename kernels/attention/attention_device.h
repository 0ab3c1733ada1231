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

/* Operands of a launch: those of enum attention_operand but the workspace, sinks and counters. */
enum { ATTENTION_DEVICE_OPERANDS = ATTENTION_OUT + 1 };

/* attention_generic: any slots and positions, with SCATTERED the rows of a slot one after the other; HEAD_DIM even; KV_DTYPE and X_DTYPE F32, F16 or BF16 (equal
 * and 16-bit: products of that type, p rounded to it; else tf32 products), or KV_DTYPE with codes, which are rounded to
 * X_DTYPE; PAGE_BYTES a multiple of 16. Codes: HEAD_DIM and PAGE_TOKENS multiples of 16. */
enum attention_generic_param {
    ATTENTION_GENERIC_WARPS_Q = ATTENTION_PARAMS, /* 1, 2, 4: sixteens of (row, head) pairs of a block */
    ATTENTION_GENERIC_SPLIT,                      /* 1, 2, 4: warps that share an entry's tokens */
    ATTENTION_GENERIC_KEY_TILE,                   /* 16, 32, 64 tokens, at least 16 * SPLIT */
    ATTENTION_GENERIC_PARAMS
};
extern const struct device_kernel device_attention_generic;

/* attention_latent: VALUE_DIM, which the other kernels do not have: v[t] is the first VALUE_DIM elements of k[t]. Any slots and
 * positions in any order; HEAD_DIM and VALUE_DIM multiples of 8; X_DTYPE F16 or BF16; KV_DTYPE the same, or with codes, which
 * are rounded to X_DTYPE: HEAD_DIM and PAGE_TOKENS multiples of 16; no window, cap or sinks. COUNTS, SLOTS, POSITIONS, PAGE_TABLE and
 * KV of tokens before the first of the slot's rows are read before the launches before have completed: no launch of the same graph may
 * write them. */
enum attention_latent_param {
    ATTENTION_LATENT_WARPS_Q = ATTENTION_PARAMS, /* 1, 2, 4: sixteens of (row, head) pairs of a block */
    ATTENTION_LATENT_WARPS_V,                    /* 2, 4, 8: warps that share sixteen's tokens and columns of v */
    ATTENTION_LATENT_KEY_TILE, /* 16, 32, 64 tokens, at least 4 * WARPS_V; below 8 two warps share scores */
    ATTENTION_LATENT_SPLIT,    /* 1, 2, 4, 8 blocks of a cluster share the tokens; 1 below capability 90 */
    ATTENTION_LATENT_GROUPS,   /* 1..32 clusters share them: with more than 1 at most a block for each multiprocessor */
    ATTENTION_LATENT_PARAMS
};
extern const struct device_kernel device_attention_latent;

/* attention_prefill (sm_90a): all valid rows belong to slots[0] and positions[r] = positions[0] + r; with SCATTERED that holds for each run
 * of rows of one slot, no slot has two, and COUNTS, SLOTS and POSITIONS are read before the launches before have completed: none of those
 * in the same graph may write them. HEAD_DIM a
 * multiple of 16, best 64 or 128; X_DTYPE = F16 or BF16, p rounded to it; KV_DTYPE = X_DTYPE, or with codes, which are
 * rounded to X_DTYPE; PAGE_TOKENS a power of two from 16 to 256; without codes PAGE_BYTES a multiple of HEAD_DIM * 2. Q is
 * passed as a tensor map, KV without codes too, over the whole pool. */
enum attention_prefill_param {
    ATTENTION_PREFILL_TILE_Q = ATTENTION_PARAMS, /* 64, 128, 192 rows: a warpgroup for each 64 */
    ATTENTION_PREFILL_KEY_TILE,                  /* 64, 128 tokens */
    ATTENTION_PREFILL_STAGES,                    /* 2..4 tiles of k, and of v, in shared memory */
    ATTENTION_PREFILL_PING_PONG,                 /* 0, 1: warpgroups take turns at the tensor cores */
    ATTENTION_PREFILL_SPLIT,                     /* 1, 2, 4, 8 blocks share a tile's tokens: few rows */
    ATTENTION_PREFILL_BLOCKS_PER_SM,             /* 1, 2 */
    ATTENTION_PREFILL_PARAMS
};
extern const struct device_kernel device_attention_prefill;

#endif
