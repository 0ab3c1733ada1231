/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loops of the probe over the vectors of one instruction set (vector_*.h). */
#ifndef KERNELS_CPU_PROBE_VECTOR_H
#define KERNELS_CPU_PROBE_VECTOR_H

/* Inner loops, a pair for each instruction set. */
enum { PROBE_PIECE_BYTES = 1 << 20, PROBE_CHAINS = 8, PROBE_ROUNDS = 200000 };
uint64_t probe_sum_avx2(const uint8_t *piece); /* [PROBE_PIECE_BYTES], 64-byte aligned */
uint64_t probe_sum_avx512(const uint8_t *piece);
/* PROBE_ROUNDS rounds of PROBE_CHAINS independent multiply-adds of VEC_WIDTH lanes. */
float probe_chains_avx2(void);
float probe_chains_avx512(void);

typedef uint64_t probe_words __attribute__((vector_size(VEC_WIDTH * sizeof(float))));

VEC_INLINE uint64_t probe_sum(const uint8_t *piece)
{
    const probe_words *at = (const probe_words *)(const void *)piece, *end = at + PROBE_PIECE_BYTES / (int)sizeof *at;
    probe_words a = {0}, b = a, c = a, d = a;
    uint64_t total = 0;
    for (; at < end; at += 4) {
        a ^= at[0];
        b ^= at[1];
        c ^= at[2];
        d ^= at[3];
    }
    a ^= b ^ c ^ d;
    for (size_t i = 0; i < sizeof a / sizeof a[0]; i++) total ^= a[i];
    return total;
}

/* Variables instead of an array, so that compilers keep the chains in registers. */
VEC_INLINE float probe_chains(void)
{
    const vec factor = vec_set(0.999f), term = vec_set(0.001f);
    vec a = factor, b = factor, c = factor, d = factor, e = factor, f = factor, g = factor, h = factor;
    for (int round = 0; round < PROBE_ROUNDS; round++) {
        a = vec_fma(a, factor, term);
        b = vec_fma(b, factor, term);
        c = vec_fma(c, factor, term);
        d = vec_fma(d, factor, term);
        e = vec_fma(e, factor, term);
        f = vec_fma(f, factor, term);
        g = vec_fma(g, factor, term);
        h = vec_fma(h, factor, term);
    }
    return vec_sum((a + b + c + d) + (e + f + g + h));
}

#endif
