/* SPDX-License-Identifier: Apache-2.0 */
/* PANEL16, the layout of weight matrices: rows of W[N, K] in groups of 16 ("panels"), so that one vector holds the same
 * k of 16 outputs and a panel is one contiguous stream.
 *
 *   BF16: element (n, k) at panel n/16, then k/2, then n%16, then k%2: a 64-byte group is 16 pairs of consecutive k
 *         (what VDPBF16PS reads); K is padded to even.
 *   F16:  panel n/16, then k, then n%16 (32 bytes per k).
 *   F32:  panel n/16, then k, then n%16 (64 bytes per k).
 *
 * N is padded to a multiple of 16; padding elements are zero. A matrix for a gated epilogue holds gate and up
 * panels in turn: panel 2j = gate rows 16j.., panel 2j + 1 = up rows 16j... */
#ifndef KERNELS_MATMUL_PANEL_H
#define KERNELS_MATMUL_PANEL_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/encoding/dtype.h"

enum { PANEL_ROWS = 16 };

static inline uint64_t panel_count(uint64_t n) { return n / PANEL_ROWS + (n % PANEL_ROWS != 0); }

/* K as stored. */
static inline uint64_t panel_depth(uint64_t k, enum dtype dtype) { return dtype == DTYPE_BF16 ? k + k % 2 : k; }

/* Bytes of one panel; N, K < 2^31 keep it far below 2^64. */
static inline uint64_t panel_bytes(uint64_t k, enum dtype dtype)
{
    return panel_depth(k, dtype) * PANEL_ROWS * dtype_bytes(dtype);
}

/* Element index (not bytes) of (n, k) in the packed matrix. */
static inline uint64_t panel_index(uint64_t n, uint64_t k, uint64_t depth, enum dtype dtype)
{
    uint64_t panel = (n / PANEL_ROWS) * PANEL_ROWS * depth, row = n % PANEL_ROWS;
    if (dtype == DTYPE_BF16) return panel + (k / 2) * (2 * PANEL_ROWS) + row * 2 + k % 2;
    return panel + k * PANEL_ROWS + row;
}

/* Packs up to 16 rows of a row-major matrix into one panel: rows[i] points at row i's K elements, NULL = zeros.
 * `out` has panel_bytes(k, dtype). Source pointers may be unaligned. */
void panel_pack(const void *const rows[PANEL_ROWS], uint64_t k, enum dtype dtype, void *out);

#endif
