/* SPDX-License-Identifier: Apache-2.0 */
/* select_rows: out[o, :] = x[index[o], :] (contract: select_rows_device.h). A thread copies 16 bytes where rows keep
 * that alignment, else one float. */
#include "kernels/cuda/include/device.cuh"

#ifndef ROWS
#define ROWS 1
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 1
#endif
#ifndef WIDTH
#define WIDTH 4096
#endif
#ifndef IN_ROWS
#define IN_ROWS 512
#endif

constexpr int SELECT_THREADS = 256; /* as select_rows_device.c */
constexpr int VECTOR = WIDTH % 4 == 0 ? 4 : 1;
constexpr int BLOCKS_PER_ROW = (WIDTH / VECTOR + SELECT_THREADS - 1) / SELECT_THREADS;

extern "C" __global__ void __launch_bounds__(SELECT_THREADS)
    select_rows(const int *__restrict__ counts, const float *__restrict__ x, const int *__restrict__ index,
                float *__restrict__ out)
{
    device_trigger();
    device_wait();
    const int row = blockIdx.x / BLOCKS_PER_ROW;
    const int column = ((blockIdx.x % BLOCKS_PER_ROW) * SELECT_THREADS + threadIdx.x) * VECTOR;
    if (row >= counts[COUNT_INDEX] || column >= WIDTH) return;
    const u32 from = (u32)index[row];
    float *to = out + (i64)row * WIDTH + column;
    if constexpr (VECTOR == 4)
        *(float4 *)to = from < IN_ROWS ? *(const float4 *)(x + (i64)from * WIDTH + column) : make_float4(0, 0, 0, 0);
    else
        *to = from < IN_ROWS ? x[(i64)from * WIDTH + column] : 0.0f;
}
