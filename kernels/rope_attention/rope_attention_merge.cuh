/* SPDX-License-Identifier: Apache-2.0 */
/* Merging the partial results of rope_attention: weighted sums of quads (float4) of several warps or blocks. Blocks
 * exchange their results through a workspace in global memory whose words are zero until they are written. */
#ifndef KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_MERGE_CUH
#define KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_MERGE_CUH

#include "kernels/cuda/include/ptx.cuh"

/* Sum of weighted quads: the merge of warps and of splits. */
struct merged {
    float4 value;
    float maximum, sum;
};

/* PARTS partial results of one head: their (maximum, sum) at sums[i * sums_pitch], values at quads[i * quads_pitch]. */
__device__ __forceinline__ merged merge(const float2 *sums, int sums_pitch, const float4 *quads, int quads_pitch,
                                        int parts)
{
    merged all = {make_float4(0, 0, 0, 0), sums[0].x, 0};
    for (int i = 1; i < parts; i++) all.maximum = fmaxf(all.maximum, sums[i * sums_pitch].x);
#pragma unroll 8
    for (int i = 0; i < parts; i++) {
        float2 part = sums[i * sums_pitch];
        float4 value = quads[i * quads_pitch];
        float factor = exp2_approximate(part.x - all.maximum);
        all.sum += factor * part.y;
        all.value.x += factor * value.x;
        all.value.y += factor * value.y;
        all.value.z += factor * value.z;
        all.value.w += factor * value.w;
    }
    return all;
}

__device__ __forceinline__ bool is_written(float4 v)
{
    return bits_of_float(v.x) && bits_of_float(v.y) && bits_of_float(v.z) && bits_of_float(v.w);
}
__device__ __forceinline__ bool is_written(float2 v) { return bits_of_float(v.x) && bits_of_float(v.y); }

/* merge() of results that other blocks may still have to write, with BATCH loads in flight; leaves the quads zero for
 * the next launch. */
template <int BATCH>
__device__ __forceinline__ merged merge_arriving(const float2 *sums, int sums_pitch, float4 *quads, int quads_pitch,
                                                 int parts)
{
    merged all = {make_float4(0, 0, 0, 0), -infinity(), 0};
    for (int start = 0; start < parts; start += BATCH) {
        float4 values[BATCH];
        float2 pairs[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (start + i < parts) {
                values[i] = load_relaxed(quads + (start + i) * quads_pitch);
                pairs[i] = load_relaxed(sums + (start + i) * sums_pitch);
            }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (start + i < parts) {
                float4 &value = values[i];
                while (!is_written(value)) value = load_relaxed(quads + (start + i) * quads_pitch);
                while (!is_written(pairs[i])) pairs[i] = load_relaxed(sums + (start + i) * sums_pitch);
                quads[(start + i) * quads_pitch] = make_float4(0, 0, 0, 0);
                float maximum = fmaxf(all.maximum, pairs[i].x);
                float old = exp2_approximate(all.maximum - maximum), factor = exp2_approximate(pairs[i].x - maximum);
                all.maximum = maximum;
                all.sum = all.sum * old + factor * pairs[i].y;
                all.value.x = all.value.x * old + factor * value.x;
                all.value.y = all.value.y * old + factor * value.y;
                all.value.z = all.value.z * old + factor * value.z;
                all.value.w = all.value.w * old + factor * value.w;
            }
    }
    return all;
}

/* Sum of the partial results of this lane and the one `offset` further; either may be empty. */
__device__ __forceinline__ merged merge_across(merged a, int offset, u32 lanes)
{
    merged b;
    b.value.x = __shfl_xor_sync(lanes, a.value.x, offset), b.value.y = __shfl_xor_sync(lanes, a.value.y, offset);
    b.value.z = __shfl_xor_sync(lanes, a.value.z, offset), b.value.w = __shfl_xor_sync(lanes, a.value.w, offset);
    b.maximum = __shfl_xor_sync(lanes, a.maximum, offset), b.sum = __shfl_xor_sync(lanes, a.sum, offset);
    const float maximum = fmaxf(fmaxf(a.maximum, b.maximum), -3e38f); /* finite: infinities would cancel to NaN */
    const float factor_a = exp2_approximate(a.maximum - maximum), factor_b = exp2_approximate(b.maximum - maximum);
    merged all;
    all.value = make_float4(a.value.x * factor_a + b.value.x * factor_b, a.value.y * factor_a + b.value.y * factor_b,
                            a.value.z * factor_a + b.value.z * factor_b, a.value.w * factor_a + b.value.w * factor_b);
    all.maximum = maximum;
    all.sum = a.sum * factor_a + b.sum * factor_b;
    return all;
}

#endif
