/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/probe.h"

#if defined(__AVX512F__)

#include <immintrin.h>

uint64_t probe_sum_avx512(const uint8_t *piece)
{
    const __m512i *at = (const __m512i *)(const void *)piece, *end = at + PROBE_PIECE_BYTES / (int)sizeof *at;
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (; at < end; at += 4) {
        a = _mm512_xor_si512(a, _mm512_load_si512(at));
        b = _mm512_xor_si512(b, _mm512_load_si512(at + 1));
        c = _mm512_xor_si512(c, _mm512_load_si512(at + 2));
        d = _mm512_xor_si512(d, _mm512_load_si512(at + 3));
    }
    uint64_t words[512 / 64], total = 0;
    _mm512_storeu_si512((__m512i *)(void *)words, _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
    for (int i = 0; i < 512 / 64; i++) total ^= words[i];
    return total;
}

/* Variables instead of an array, so that compilers keep the chains in registers. */
float probe_chains_avx512(void)
{
    __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
    __m512 a = factor, b = factor, c = factor, d = factor, e = factor, f = factor, g = factor, h = factor;
    for (int round = 0; round < PROBE_ROUNDS; round++) {
        a = _mm512_fmadd_ps(a, factor, term);
        b = _mm512_fmadd_ps(b, factor, term);
        c = _mm512_fmadd_ps(c, factor, term);
        d = _mm512_fmadd_ps(d, factor, term);
        e = _mm512_fmadd_ps(e, factor, term);
        f = _mm512_fmadd_ps(f, factor, term);
        g = _mm512_fmadd_ps(g, factor, term);
        h = _mm512_fmadd_ps(h, factor, term);
    }
    a = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
    e = _mm512_add_ps(_mm512_add_ps(e, f), _mm512_add_ps(g, h));
    return _mm_cvtss_f32(_mm512_castps512_ps128(_mm512_add_ps(a, e)));
}

#endif
