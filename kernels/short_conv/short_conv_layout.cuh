/* SPDX-License-Identifier: Apache-2.0 */
/* How short_conv divides its channels over threads: for host and device code. */
#ifndef KERNELS_SHORT_CONV_SHORT_CONV_LAYOUT_CUH
#define KERNELS_SHORT_CONV_SHORT_CONV_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

enum { SHORT_CONV_THREADS = 128 };

/* Channels of a thread: their weights are in registers. */
LAYOUT_FUNCTION layout_size short_conv_vector(layout_size channels, layout_size kernel)
{
    return channels % 8 == 0 && kernel <= 4 ? 8 : channels % 4 == 0 && kernel <= 8 ? 4 : 1;
}

/* Blocks for a row. */
LAYOUT_FUNCTION layout_size short_conv_row_blocks(layout_size channels, layout_size kernel)
{
    return layout_divide_up(channels / short_conv_vector(channels, kernel), SHORT_CONV_THREADS);
}

#endif
