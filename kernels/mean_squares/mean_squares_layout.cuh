/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of a row of mean squares, for host and device code. */
#ifndef KERNELS_MEAN_SQUARES_MEAN_SQUARES_LAYOUT_CUH
#define KERNELS_MEAN_SQUARES_MEAN_SQUARES_LAYOUT_CUH

/* As many columns as all_reduce takes at least on GPUs; the last ones are 0. */
enum { MEAN_SQUARES_OF_Q, MEAN_SQUARES_OF_K, MEAN_SQUARES_WIDTH = 8 };

#endif
