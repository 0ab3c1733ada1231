/* SPDX-License-Identifier: Apache-2.0 */
/* How the rows of router are divided, for the kernel and for its host file. */
#ifndef KERNELS_ROUTER_ROUTER_LAYOUT_CUH
#define KERNELS_ROUTER_ROUTER_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

enum { ROUTER_WARPS = 16, ROUTER_MOST_BLOCKS = 8 }; /* of a block; of the cluster that is the whole launch */

/* Thread blocks of the cluster: a warp takes a row, and then the next after all others. */
LAYOUT_FUNCTION layout_size router_blocks(layout_size rows)
{
    return rows <= ROUTER_WARPS ? 1 : rows <= 2 * ROUTER_WARPS ? 2 : rows <= 4 * ROUTER_WARPS ? 4 : ROUTER_MOST_BLOCKS;
}

/* Whether every block keeps the experts of all choices, two bytes each, in shared memory: lists are made of them by reading all of them again
 * for each expert. */
LAYOUT_FUNCTION int router_keeps_choices(layout_size choices) { return choices * 2 <= (64 << 10); }

/* Bytes of shared memory: how many choices each expert has, where their lists begin, with groups the claims of each warp's row, and
 * the kept choices. */
LAYOUT_FUNCTION layout_size router_shared_bytes(layout_size experts, layout_size groups, layout_size choices)
{
    return 4 * (2 * experts + 1 + (groups > 1 ? ROUTER_WARPS * experts : 0)) +
           (router_keeps_choices(choices) ? 2 * choices : 0);
}

#endif
