/* SPDX-License-Identifier: Apache-2.0 */
/* A row of logits as sample reads it: with repetition penalty, logit biases, penalties of the answer's tokens, and without the tokens
 * that are not allowed. Operation by operation what the CPU does (sample_row.h), so that results are equal bit by bit. */
#ifndef KERNELS_SAMPLE_SAMPLE_LOGITS_CUH
#define KERNELS_SAMPLE_SAMPLE_LOGITS_CUH

#include "kernels/cuda/include/ptx.cuh"
#include "kernels/sample/sample_layout.cuh"

struct sampler_state { /* formats/engine/plan.h */
    float temperature, top_p, repetition_penalty;
    int top_k;
    u64 seed, draw;
    u32 options;
    float min_p_log, presence_penalty, frequency_penalty;
    u64 reserved[2];
};
static_assert(sizeof(sampler_state) == 64, "formats/engine/plan.h");

template <class P> struct sample_logits {
    static constexpr int VECTOR = P::VOCAB % 4 == 0 ? 4 : 1; /* logits of one load: rows keep their alignment */

    /* One row, as this block sees it. */
    struct row_slice {
        const float *logits; /* of the slice */
        const u8 *seen;      /* of the slice; NULL: no penalty */
        float penalty;
        u32 first; /* token of the slice */
        int count; /* tokens of the slice */
        /* HAS_OPTIONS; NULL: the sampler does not have the option. */
        const u32 *adjustments; /* the slot's row; words of tokens begin at the slice's */
        const u32 *allowed;     /* the slot's row */
        const sampler_state *sampler;
        u32 draws_before; /* VERIFIES: out rows before this one of the same slot; else 0 */

        __device__ __forceinline__ bool changes_logits() const { return P::HAS_OPTIONS && (adjustments || allowed); }
    };

    static __device__ __forceinline__ void load_values(const row_slice &row, int i, float value[VECTOR])
    {
        if constexpr (VECTOR == 4) {
            const float4 vector = *(const float4 *)(row.logits + i);
            value[0] = vector.x, value[1] = vector.y, value[2] = vector.z, value[3] = vector.w;
        } else {
            value[0] = row.logits[i];
        }
    }

    static __device__ __forceinline__ void penalise(const row_slice &row, int i, float value[VECTOR])
    {
        if (!row.seen) return;
        const u32 seen = (u32)row.seen[i / 8] >> (i % 8);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            if (seen >> j & 1)
                value[j] = value[j] >= 0 ? __fdiv_rn(value[j], row.penalty) : __fmul_rn(value[j], row.penalty);
    }

    /* Logit biases, penalties of the answer's tokens, tokens that are not allowed. */
    static __device__ __forceinline__ void adjust(const row_slice &row, int i, float value[VECTOR])
    {
        if (row.adjustments) {
            const u32 *words = row.adjustments + SAMPLE_BIAS_WORDS + row.first + i;
            u32 word[VECTOR], any = 0;
            if constexpr (VECTOR == 4) {
                const uint4 vector = *(const uint4 *)words;
                word[0] = vector.x, word[1] = vector.y, word[2] = vector.z, word[3] = vector.w;
            } else {
                word[0] = *words;
            }
#pragma unroll
            for (int j = 0; j < VECTOR; j++) any |= word[j];
            if (any)
#pragma unroll
                for (int j = 0; j < VECTOR; j++) {
                    const u32 occurrences = word[j] & ((1u << SAMPLE_COUNT_BITS) - 1);
                    const float bias = float_of_bits(row.adjustments[word[j] >> SAMPLE_COUNT_BITS]);
                    const float penalty = __fadd_rn(__fmul_rn(row.sampler->frequency_penalty, (float)occurrences),
                                                    row.sampler->presence_penalty);
                    value[j] = __fadd_rn(value[j], bias);
                    if (occurrences) value[j] = __fsub_rn(value[j], penalty);
                }
        }
        if (row.allowed) {
            const u32 token = row.first + (u32)i, bits = row.allowed[token / 32] >> (token % 32);
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                if (!(bits >> j & 1)) value[j] = -infinity();
        }
    }
};

#endif
