/* SPDX-License-Identifier: Apache-2.0 */
/* How many blocks of all_reduce_two_shot a multiprocessor holds, for the kernel and for its host file. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_LAYOUT_CUH
#define KERNELS_ALL_REDUCE_ALL_REDUCE_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

/* The kernel's __launch_bounds__ guarantee it. `vectors`: of 16 bytes, in a row. More ranks, and more than one
 * vector a thread, take more registers. */
LAYOUT_FUNCTION layout_size all_reduce_two_shot_resident(layout_size ranks, layout_size vectors, layout_size threads)
{
    return layout_larger((ranks <= 4 && vectors <= threads ? 1024 : 512) / threads, 1);
}

#endif
