/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of all ranks, one rank behind the other, side by side (contract: all_gather_nccl.h). */
#include "kernels/cuda/include/device.cuh"

#ifndef ROWS
#define ROWS 1
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 1
#endif
#ifndef WIDTH
#define WIDTH 64128
#endif
#ifndef OUT_WIDTH
#define OUT_WIDTH 128256
#endif
#ifndef RANKS
#define RANKS 2
#endif
#ifndef THREADS
#define THREADS 256
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    all_gather_place(const int *__restrict__ counts, const float *__restrict__ gathered, float *__restrict__ out)
{
    device_trigger();
    device_wait();
    const int row = blockIdx.y;
    const u32 column = blockIdx.x * THREADS + threadIdx.x;
    if (row >= counts[COUNT_INDEX] || column >= OUT_WIDTH) return;
    out[(i64)row * OUT_WIDTH + column] = gathered[((i64)(column / WIDTH) * ROWS + row) * WIDTH + column % WIDTH];
}
