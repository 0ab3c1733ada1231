/* SPDX-License-Identifier: Apache-2.0 */
/* Choices of experts in tiles of rows that one matrix is multiplied with. */
#ifndef KERNELS_MATMUL_EXPERT_TILES_CUH
#define KERNELS_MATMUL_EXPERT_TILES_CUH

#include "kernels/cuda/include/layout.cuh"

/* Most tiles of `tile_rows` of `choices` choices: the last tile of each expert that has any may have fewer. */
LAYOUT_FUNCTION layout_size expert_tiles(layout_size choices, layout_size experts, layout_size tile_rows)
{
    return layout_smaller(choices, layout_smaller(choices, experts) + choices / tile_rows);
}

#endif
