/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of weight rows into PANEL16. Both BF16 (pairs of k) and F32 are a transposition of 32-bit units, F16 one of
 * 16-bit units, done in blocks of one cache line per row. */
#include "kernels/matmul/panel.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { LINE_BYTES = 64, PREFETCH_BYTES = 8 * LINE_BYTES };

/* Transposes one line of each of four rows: unit i of row j goes to out[i * PANEL_ROWS + j]. Four rows at a time,
 * because rows are often a multiple of 4096 bytes apart: sixteen such lines would not fit in one set of an L1 cache. */
static void transpose_units32(const unsigned char *const rows[4], uint32_t *out)
{
#if defined(__SSE2__)
    for (int part = 0; part < LINE_BYTES / 16; part++) {
        __m128i a = _mm_loadu_si128((const __m128i *)(rows[0] + 16 * part));
        __m128i b = _mm_loadu_si128((const __m128i *)(rows[1] + 16 * part));
        __m128i c = _mm_loadu_si128((const __m128i *)(rows[2] + 16 * part));
        __m128i d = _mm_loadu_si128((const __m128i *)(rows[3] + 16 * part));
        __m128i ab_low = _mm_unpacklo_epi32(a, b), ab_high = _mm_unpackhi_epi32(a, b);
        __m128i cd_low = _mm_unpacklo_epi32(c, d), cd_high = _mm_unpackhi_epi32(c, d);
        uint32_t *to = out + 4 * part * PANEL_ROWS;
        _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi64(ab_low, cd_low));
        _mm_storeu_si128((__m128i *)(to + PANEL_ROWS), _mm_unpackhi_epi64(ab_low, cd_low));
        _mm_storeu_si128((__m128i *)(to + 2 * PANEL_ROWS), _mm_unpacklo_epi64(ab_high, cd_high));
        _mm_storeu_si128((__m128i *)(to + 3 * PANEL_ROWS), _mm_unpackhi_epi64(ab_high, cd_high));
    }
#else
    for (int unit = 0; unit < LINE_BYTES / 4; unit++)
        for (int row = 0; row < 4; row++) memcpy(out + unit * PANEL_ROWS + row, rows[row] + 4 * unit, 4);
#endif
}

static void transpose_units16(const unsigned char *const rows[4], uint16_t *out)
{
#if defined(__SSE2__)
    for (int part = 0; part < LINE_BYTES / 16; part++) {
        __m128i a = _mm_loadu_si128((const __m128i *)(rows[0] + 16 * part));
        __m128i b = _mm_loadu_si128((const __m128i *)(rows[1] + 16 * part));
        __m128i c = _mm_loadu_si128((const __m128i *)(rows[2] + 16 * part));
        __m128i d = _mm_loadu_si128((const __m128i *)(rows[3] + 16 * part));
        __m128i ab[2] = {_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)};
        __m128i cd[2] = {_mm_unpacklo_epi16(c, d), _mm_unpackhi_epi16(c, d)};
        for (int half = 0; half < 2; half++) {
            uint16_t *to = out + (8 * part + 4 * half) * PANEL_ROWS;
            __m128i low = _mm_unpacklo_epi32(ab[half], cd[half]), high = _mm_unpackhi_epi32(ab[half], cd[half]);
            _mm_storel_epi64((__m128i *)to, low);
            _mm_storel_epi64((__m128i *)(to + PANEL_ROWS), _mm_unpackhi_epi64(low, low));
            _mm_storel_epi64((__m128i *)(to + 2 * PANEL_ROWS), high);
            _mm_storel_epi64((__m128i *)(to + 3 * PANEL_ROWS), _mm_unpackhi_epi64(high, high));
        }
    }
#else
    for (int unit = 0; unit < LINE_BYTES / 2; unit++)
        for (int row = 0; row < 4; row++) memcpy(out + unit * PANEL_ROWS + row, rows[row] + 2 * unit, 2);
#endif
}

/* One line of each of the 16 rows becomes 16 contiguous lines. */
static void transpose_block(const unsigned char *const rows[PANEL_ROWS], bool units32, unsigned char *out)
{
    for (int row = 0; row < PANEL_ROWS; row += 4) {
        if (units32)
            transpose_units32(rows + row, (uint32_t *)(void *)out + row);
        else
            transpose_units16(rows + row, (uint16_t *)(void *)out + row);
    }
}

void panel_pack(const void *const rows[PANEL_ROWS], uint64_t k, enum dtype dtype, void *out)
{
    static const unsigned char zeros[LINE_BYTES];
    uint64_t element_bytes = dtype_bytes(dtype), row_bytes = k * element_bytes;
    uint64_t stored_bytes = panel_depth(k, dtype) * element_bytes; /* of one row */
    bool units32 = dtype != DTYPE_F16;
    unsigned char *to = out;
    const unsigned char *lines[PANEL_ROWS];

    uint64_t offset = 0;
    for (; offset + LINE_BYTES <= row_bytes; offset += LINE_BYTES) {
        for (int row = 0; row < PANEL_ROWS; row++) {
            lines[row] = rows[row] ? (const unsigned char *)rows[row] + offset : zeros;
            /* Sixteen streams are more than the hardware prefetches. */
            if (offset + PREFETCH_BYTES < row_bytes) __builtin_prefetch(lines[row] + PREFETCH_BYTES);
        }
        transpose_block(lines, units32, to + offset * PANEL_ROWS);
    }
    if (offset < stored_bytes) {
        _Alignas(LINE_BYTES) unsigned char tails[PANEL_ROWS][LINE_BYTES] = {{0}};
        _Alignas(LINE_BYTES) unsigned char block[PANEL_ROWS * LINE_BYTES];
        for (int row = 0; row < PANEL_ROWS; row++) {
            if (rows[row]) memcpy(tails[row], (const unsigned char *)rows[row] + offset, row_bytes - offset);
            lines[row] = tails[row];
        }
        transpose_block(lines, units32, block);
        memcpy(to + offset * PANEL_ROWS, block, (stored_bytes - offset) * PANEL_ROWS);
    }
}
