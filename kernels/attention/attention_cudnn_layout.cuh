/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets in the workspace at which attention_cudnn_inputs writes arrays for cuDNN. Host and device code both read
 * this. */
#ifndef KERNELS_ATTENTION_ATTENTION_CUDNN_LAYOUT_CUH
#define KERNELS_ATTENTION_ATTENTION_CUDNN_LAYOUT_CUH

#define ATTENTION_CUDNN_ROW_COUNT_AT   0   /* i32: valid rows */
#define ATTENTION_CUDNN_TOKEN_COUNT_AT 64  /* i32: tokens up to the last valid row's, without regard to the window */
#define ATTENTION_CUDNN_PAGES_AT       256 /* i32 [padded]: the slot's pages; the last one in use fills the rest */
#define ATTENTION_CUDNN_ALIGNMENT      256 /* of the parts after these */

/* cuDNN reads whole tiles of tokens. For an entry that its page table lacks it takes the page whose number is the
 * table's length, which is outside of a pool of just that size, but not of ours: so the table covers whole tiles. */
#define ATTENTION_CUDNN_TILE_TOKENS 256 /* at least any engine's tile of keys, and a multiple of it */
#define ATTENTION_CUDNN_TILE_PAGES(page_tokens) \
    ((page_tokens) < ATTENTION_CUDNN_TILE_TOKENS ? ATTENTION_CUDNN_TILE_TOKENS / (page_tokens) : 1)
#define ATTENTION_CUDNN_PADDED_PAGES(pages, page_tokens)                                                 \
    (((pages) + ATTENTION_CUDNN_TILE_PAGES(page_tokens) - 1) / ATTENTION_CUDNN_TILE_PAGES(page_tokens) * \
     ATTENTION_CUDNN_TILE_PAGES(page_tokens))

#endif
