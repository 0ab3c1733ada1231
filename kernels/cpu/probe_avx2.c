/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/probe.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

uint64_t probe_sum_avx2(const uint8_t *piece)
{
    const __m256i *at = (const __m256i *)(const void *)piece, *end = at + PROBE_PIECE_BYTES / (int)sizeof *at;
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (; at < end; at += 4) {
        a = _mm256_xor_si256(a, _mm256_load_si256(at));
        b = _mm256_xor_si256(b, _mm256_load_si256(at + 1));
        c = _mm256_xor_si256(c, _mm256_load_si256(at + 2));
        d = _mm256_xor_si256(d, _mm256_load_si256(at + 3));
    }
    uint64_t words[256 / 64], total = 0;
    _mm256_storeu_si256((__m256i *)(void *)words, _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
    for (int i = 0; i < 256 / 64; i++) total ^= words[i];
    return total;
}

/* Variables instead of an array, so that compilers keep the chains in registers. */
float probe_chains_avx2(void)
{
    __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
    __m256 a = factor, b = factor, c = factor, d = factor, e = factor, f = factor, g = factor, h = factor;
    for (int round = 0; round < PROBE_ROUNDS; round++) {
        a = _mm256_fmadd_ps(a, factor, term);
        b = _mm256_fmadd_ps(b, factor, term);
        c = _mm256_fmadd_ps(c, factor, term);
        d = _mm256_fmadd_ps(d, factor, term);
        e = _mm256_fmadd_ps(e, factor, term);
        f = _mm256_fmadd_ps(f, factor, term);
        g = _mm256_fmadd_ps(g, factor, term);
        h = _mm256_fmadd_ps(h, factor, term);
    }
    a = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
    e = _mm256_add_ps(_mm256_add_ps(e, f), _mm256_add_ps(g, h));
    return _mm_cvtss_f32(_mm256_castps256_ps128(_mm256_add_ps(a, e)));
}

#endif
