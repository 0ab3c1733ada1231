/* embed: out[r, :] = table[tokens[r], :] as float32. One thread block per row and chunk of columns. */
#include "kernels/device.cuh"

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

constexpr int EMBED_THREADS = 256; /* as embed_device.h */
/* Elements per thread: 16 bytes of a 16-bit table, where rows keep that alignment. */
constexpr int EMBED_VECTOR = HIDDEN % 8 == 0 && PITCH % 8 == 0 ? 8 : 1;
constexpr int EMBED_BLOCKS_PER_ROW = (HIDDEN / EMBED_VECTOR + EMBED_THREADS - 1) / EMBED_THREADS;

extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
    embed(const int *__restrict__ counts, const int *__restrict__ tokens, const void *__restrict__ table,
          float *__restrict__ out)
{
    device_trigger();
    device_wait();
    const int row = blockIdx.x / EMBED_BLOCKS_PER_ROW;
    const i64 column = ((i64)(blockIdx.x % EMBED_BLOCKS_PER_ROW) * EMBED_THREADS + threadIdx.x) * EMBED_VECTOR;
    if (row >= counts[COUNT_INDEX] || column >= HIDDEN) return;
    const u32 token = (u32)tokens[row];
    if (token >= VOCAB) return; /* the submitter's duty; no read beyond the table even so */
    const i64 from = (i64)token * PITCH + column;
    float *to = out + (i64)row * HIDDEN + column;
    if constexpr (EMBED_VECTOR == 1) {
        *to = load_element<TABLE_DTYPE>(table, from);
    } else if constexpr (TABLE_DTYPE == DTYPE_F32) {
        const float4 *vectors = (const float4 *)((const float *)table + from);
        ((float4 *)to)[0] = vectors[0];
        ((float4 *)to)[1] = vectors[1];
    } else {
        const uint4 packed = *(const uint4 *)((const u16 *)table + from);
        const u32 pairs[4] = {packed.x, packed.y, packed.z, packed.w};
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = float_of_half<TABLE_DTYPE>((u16)(pairs[i / 2] >> (16 * (i % 2))));
        ((float4 *)to)[0] = make_float4(values[0], values[1], values[2], values[3]);
        ((float4 *)to)[1] = make_float4(values[4], values[5], values[6], values[7]);
    }
}
