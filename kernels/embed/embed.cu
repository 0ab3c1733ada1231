/* SPDX-License-Identifier: Apache-2.0 */
/* embed (contract: embed_device.h). One thread block per row and chunk of columns. */
#include "kernels/cuda/include/comm.cuh"

#ifndef ROWS
#define ROWS 16
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 0
#endif
#ifndef HIDDEN
#define HIDDEN 2048
#endif
#ifndef PITCH
#define PITCH HIDDEN
#endif
#ifndef VOCAB
#define VOCAB 128256
#endif
#ifndef TABLE_DTYPE
#define TABLE_DTYPE DTYPE_BF16
#endif
#ifndef SHARDED
#define SHARDED 0
#endif
#ifndef OUT_DTYPE
#define OUT_DTYPE DTYPE_F32
#endif

constexpr int EMBED_THREADS = 256; /* as embed_device.h */
/* Elements per thread: 16 bytes of a 16-bit table, where rows keep that alignment. */
constexpr int EMBED_VECTOR = HIDDEN % 8 == 0 && PITCH % 8 == 0 ? 8 : 1;
constexpr int EMBED_BLOCKS_PER_ROW = (HIDDEN / EMBED_VECTOR + EMBED_THREADS - 1) / EMBED_THREADS;

__device__ __forceinline__ void store_vector(void *out, i64 index, const float value[8])
{
    if constexpr (OUT_DTYPE == DTYPE_F32) {
        float4 *to = (float4 *)((float *)out + index);
        to[0] = make_float4(value[0], value[1], value[2], value[3]);
        to[1] = make_float4(value[4], value[5], value[6], value[7]);
    } else {
        *(uint4 *)((u16 *)out + index) =
            make_uint4(pack_halves<OUT_DTYPE>(value[0], value[1]), pack_halves<OUT_DTYPE>(value[2], value[3]),
                       pack_halves<OUT_DTYPE>(value[4], value[5]), pack_halves<OUT_DTYPE>(value[6], value[7]));
    }
}

extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
    embed(const int *__restrict__ counts, const int *__restrict__ tokens, const void *__restrict__ table,
          void *__restrict__ out
#if SHARDED
          ,
          const comm_header *__restrict__ header
#endif
    )
{
    device_trigger();
#if SHARDED
    const u32 first = header->rank * (u32)VOCAB;
#else
    const u32 first = 0;
#endif
    device_wait();
    const int row = blockIdx.x / EMBED_BLOCKS_PER_ROW;
    const i64 column = ((i64)(blockIdx.x % EMBED_BLOCKS_PER_ROW) * EMBED_THREADS + threadIdx.x) * EMBED_VECTOR;
    if (row >= counts[COUNT_INDEX] || column >= HIDDEN) return;
    const u32 token = (u32)tokens[row] - first;
    const i64 from = (i64)token * PITCH + column, to = (i64)row * HIDDEN + column;
    const bool here = token < VOCAB;
    if constexpr (EMBED_VECTOR == 1) {
        store_element<OUT_DTYPE>(out, to, here ? load_element<TABLE_DTYPE>(table, from) : 0.0f);
    } else {
        float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if constexpr (TABLE_DTYPE == DTYPE_F32) {
            if (here) {
                const float4 *vectors = (const float4 *)((const float *)table + from);
                const float4 low = vectors[0], high = vectors[1];
                values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
                values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
            }
        } else if (here) {
            const uint4 packed = *(const uint4 *)((const u16 *)table + from);
            const u32 pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
            for (int i = 0; i < 8; i++) values[i] = float_of_half<TABLE_DTYPE>((u16)(pairs[i / 2] >> (16 * (i % 2))));
        }
        store_vector(out, to, values);
    }
}
