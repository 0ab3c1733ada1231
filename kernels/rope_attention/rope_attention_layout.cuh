/* SPDX-License-Identifier: Apache-2.0 */
/* How rope_attention uses shared memory: sizes that the kernel and its host code share. */
#ifndef KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_LAYOUT_CUH
#define KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_LAYOUT_CUH

#define ROPE_ATTENTION_CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define ROPE_ATTENTION_MAX(a, b)      ((a) > (b) ? (a) : (b))

/* 16-byte chunks of a row of K or V in its page, and from one row to the next: 2 more than a multiple of 4, so that reads
 * are free of bank conflicts. */
#define ROPE_ATTENTION_CHUNKS(row_bytes) ROPE_ATTENTION_CEIL_DIV(row_bytes, 16)
#define ROPE_ATTENTION_PITCH(row_bytes)  ((ROPE_ATTENTION_CHUNKS(row_bytes) + 1) / 4 * 4 + 2)

/* Rows of K or of V of one tile; with `is_coded` 1 followed by their scales. */
#define ROPE_ATTENTION_STAGE_BYTES(row_bytes, is_coded, tile_tokens) \
    ((tile_tokens) * (ROPE_ATTENTION_PITCH(row_bytes) * 16 + (is_coded)*4))

/* A warp's partial result: floats from one head to the next (8 lanes of a store lie in different banks), and all. */
#define ROPE_ATTENTION_PART_PITCH(head_dim)              (ROPE_ATTENTION_CEIL_DIV(head_dim, 32) * 32 + 4)
#define ROPE_ATTENTION_PART_BYTES(head_dim, block_heads) ((block_heads)*ROPE_ATTENTION_PART_PITCH(head_dim) * 4)

/* Each warp has a ring, over which its result comes to lie. */
#define ROPE_ATTENTION_WARP_BYTES(head_dim, row_bytes, is_coded, tile_tokens, stages, block_heads) \
    ROPE_ATTENTION_MAX((stages)*ROPE_ATTENTION_STAGE_BYTES(row_bytes, is_coded, tile_tokens),      \
                       ROPE_ATTENTION_PART_BYTES(head_dim, block_heads))

/* Elements from one row of q to the next: two rows of 64 bytes lie in different banks. With codes, whose reads cover 64
 * elements, it is at least as much. */
#define ROPE_ATTENTION_Q_PITCH(head_dim) (ROPE_ATTENTION_CEIL_DIV(head_dim, 32) * 32 + 32)

/* Static shared memory, at most: q, the new token's k and v, sums of the warps, mbarriers, a flag; with codes scales of q's
 * heads, of k and of v. */
#define ROPE_ATTENTION_STATIC_BYTES(head_dim, row_bytes, is_coded, head_tiles, block_heads, warps, stages) \
    (8 * (head_tiles)*ROPE_ATTENTION_Q_PITCH(head_dim) * 2 + 2 * ROPE_ATTENTION_CHUNKS(row_bytes) * 16 +   \
     (warps) * (block_heads)*8 + (warps) * (stages)*8 + 32 + (is_coded) * (8 * (head_tiles) + 2) * 4)

#endif
