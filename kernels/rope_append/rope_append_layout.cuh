/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of norms of rope_append, and how it divides a head among lanes, for the kernel and for its host file. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_LAYOUT_CUH
#define KERNELS_ROPE_APPEND_ROPE_APPEND_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

/* What the mean of a norm is taken over; HEADS: over each head, with weights of its own. ROTATED: over each head, with weights that
 * multiply after the rotation. */
enum rope_append_norm_scope {
    ROPE_APPEND_NORM_HEAD,
    ROPE_APPEND_NORM_WIDTH,
    ROPE_APPEND_NORM_HEADS,
    ROPE_APPEND_NORM_ROTATED,
    ROPE_APPEND_NORM_SCOPES
};

/* Whether each head has weights of its own, or all heads of q, and of k, have the same. */
LAYOUT_FUNCTION int rope_append_own_weights(layout_size scope)
{
    return scope == ROPE_APPEND_NORM_WIDTH || scope == ROPE_APPEND_NORM_HEADS;
}

/* Elements of one access: a divisor of half a head and of half its rotated part. */
LAYOUT_FUNCTION layout_size rope_append_vector(layout_size half, layout_size rotated_half)
{
    const layout_size both = half | rotated_half;
    return both % 8 == 0 ? 8 : both % 4 == 0 ? 4 : both % 2 == 0 ? 2 : 1;
}

/* Lanes that share a head: a power of two, at most a warp. */
LAYOUT_FUNCTION layout_size rope_append_lanes(layout_size half, layout_size rotated_half)
{
    layout_size lanes = 1;
    while (lanes < half / rope_append_vector(half, rotated_half) && lanes < 32) lanes *= 2;
    return lanes;
}

#endif
