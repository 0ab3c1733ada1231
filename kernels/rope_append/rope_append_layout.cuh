/* SPDX-License-Identifier: Apache-2.0 */
/* How rope_append divides a head among lanes, for the kernel and for its host file. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_LAYOUT_CUH
#define KERNELS_ROPE_APPEND_ROPE_APPEND_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

/* Elements of one access; `half`: those of half a head. */
LAYOUT_FUNCTION layout_size rope_append_vector(layout_size half)
{
    return half % 8 == 0 ? 8 : half % 4 == 0 ? 4 : half % 2 == 0 ? 2 : 1;
}

/* Lanes that share a head: a power of two, at most a warp. */
LAYOUT_FUNCTION layout_size rope_append_lanes(layout_size half)
{
    layout_size lanes = 1;
    while (lanes < half / rope_append_vector(half) && lanes < 32) lanes *= 2;
    return lanes;
}

#endif
