/* SPDX-License-Identifier: Apache-2.0 */
/* PANEL16, the layout of weight matrices: rows of W[N, K] in groups of 16 ("panels"), so that one vector holds the same
 * k of 16 outputs and a panel is one contiguous stream. N is padded to a multiple of 16; padding elements are zero. A
 * matrix for a gated epilogue holds gate and up panels in turn: panel 2j = gate rows 16j.., panel 2j + 1 = up rows 16j...
 *
 * Plain encodings:
 *   BF16: element (n, k) at panel n/16, then k/2, then n%16, then k%2: a 64-byte group is 16 pairs of consecutive k
 *         (what VDPBF16PS reads); K is padded to even.
 *   F16:  panel n/16, then k, then n%16 (32 bytes per k).
 *   F32:  panel n/16, then k, then n%16 (64 bytes per k).
 *
 * Other encodings: a panel is a line of row factors, if the encoding has them, and then the K of the matrix in spans. A
 * span is a head and the codes of `span_groups` groups of `group` k; the last span may have fewer. All lines have 64 bytes.
 *   row factors  16 float32: scales of encodings with one scale a row, else the global scales
 *   head         scales [span_groups][16] as the encoding stores them, then with zero points one line of them, laid out as
 *                codes of 4 bits are, with the place of a group in the span for k. No head without groups.
 *   codes        4 bits: a line for 8 k: a word of 32 bits for each row, of which k has bits 4 (k / 2) + 16 (k % 2) on
 *                int8:   a line for 4 k: four bytes for each row, k rising
 *                e4m3:   16 bytes for each k
 * K is padded to a whole line of codes, with codes for 0. e4m3 numbers, codes and scales, are read as float16: sign, then
 * the other seven bits below a 0, which makes a float16 of 2^-8 times their value. So row factors of such encodings, or
 * where they have none the scales, are stored 2^8 times as large, once for each such factor of a product.
 *
 * FRAGMENT16, the layout for GPUs, which have it for such encodings alone (constants: fragment_layout.cuh). Panels of 16
 * rows, too. A panel is a line of row factors, if the encoding has them, and then the K of the matrix in strips of 128 k,
 * padded with codes for 0. A strip is what one warp multiplies by eight matrix instructions or more (m16n8k16), whose
 * operand of 16 rows and 16 k lies in registers: lane l has the rows l / 4 and l / 4 + 8 and the k 2 (l % 4),
 * 2 (l % 4) + 1 and those plus 8, in four registers of two k each: row l / 4, row l / 4 + 8, and both for the k plus 8.
 *   scales  for each pair of rows r and r + 8, r rising, for each group of the strip: that of r, that of r + 8. Types as
 *           the encoding has them, but an e4m3 scale is a byte without a sign, which goes to the codes: five bits of
 *           exponent, less 112 of that of a float32, and three bits of mantissa; if it is 0, the codes of its group are
 *   zeros   a byte each, in the same order
 *   codes   16 bytes for each lane, for 64 k with codes of 4 bits and 32 k with codes of 8; then those of the next k
 *     4 bits: a word of 32 bits for 16 k. The second k of a register has bits 16 above those of the first. int4: register
 *             i has the bits from 4 i + 3 on; those of the last code go on at bit 0. e2m1: magnitude from bit 6, 3, 0
 *             and 9 on, sign at bit 15, 12, 14 and 13 for register 0, 1, 2, 3
 *             tables: from bit 0 on the codes of register 0, the first k and then the second, then those of register 1, 2 and 3. A code
 *             stands for its number rounded to bfloat16
 *     8 bits: a word for two registers: the first k of both, then the second k of both
 * Row factors of encodings with e4m3 scales are stored 2^8 times as large: kernels read those scales 2^-8 times as large. */
#ifndef KERNELS_MATMUL_PANEL_H
#define KERNELS_MATMUL_PANEL_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/encoding/encoding.h"

enum { PANEL_ROWS = 16, PANEL_LINE_BYTES = 64 };

static inline uint64_t panel_count(uint64_t n) { return n / PANEL_ROWS + (n % PANEL_ROWS != 0); }

/* How panels of an encoding are laid out. */
struct panel_form {
    const struct encoding *encoding;
    bool fragments;               /* FRAGMENT16, of which a strip is called span here; else PANEL16 */
    uint32_t k_bytes;             /* of codes, for one k of 16 rows */
    uint32_t line_k;              /* K is padded to a multiple */
    uint32_t factor_bytes;        /* row factors: 0 or a line */
    uint32_t group;               /* k that share a scale; 0: there are no groups */
    uint32_t span_groups, span_k; /* span_k: 0 without groups */
    uint32_t scale_bytes;         /* of a group's 16 scales */
    uint32_t head_bytes;
};

/* False if `encoding` is unknown or has no panels (e4m3_tensor: its scale becomes one for each row). */
bool panel_form(int64_t encoding, struct panel_form *form);
/* The same of FRAGMENT16, which plain encodings have not. */
bool fragment_form(int64_t encoding, struct panel_form *form);

/* Bytes of one panel; 0 without a form. N, K < 2^31 keep it far below 2^64. */
uint64_t panel_bytes(uint64_t k, int64_t encoding);
uint64_t fragment_bytes(uint64_t k, int64_t encoding);

/* Where k begins in a panel: its span, if there are groups. Requires: a multiple of span_k, or of line_k without groups. */
uint64_t panel_offset(const struct panel_form *form, uint64_t k);

/* K as stored, of plain encodings. */
static inline uint64_t panel_depth(uint64_t k, enum dtype dtype) { return dtype == DTYPE_BF16 ? k + k % 2 : k; }

/* Element index (not bytes) of (n, k) in a packed matrix of a plain encoding. */
static inline uint64_t panel_index(uint64_t n, uint64_t k, uint64_t depth, enum dtype dtype)
{
    uint64_t panel = (n / PANEL_ROWS) * PANEL_ROWS * depth, row = n % PANEL_ROWS;
    if (dtype == DTYPE_BF16) return panel + (k / 2) * (2 * PANEL_ROWS) + row * 2 + k % 2;
    return panel + k * PANEL_ROWS + row;
}

/* Packs up to 16 rows of a row-major matrix of a plain encoding into one panel: rows[i] points at row i's K elements,
 * NULL = zeros. `out` has panel_bytes(k, dtype). Source pointers may be unaligned. */
void panel_pack(const void *const rows[PANEL_ROWS], uint64_t k, enum dtype dtype, void *out);

/* A row of any other encoding before it is packed. */
struct coded_row {
    uint8_t *codes; /* [K]; int4 and int8: with the zero that `zeros` says, else 8 and 0 */
    float *scales;  /* [groups]; each has a value in the encoding's type of scales */
    uint8_t *zeros; /* [groups], of encodings that have them */
    float factor;   /* scale of the row, or its global scale */
};

/* Packs a row into its panel; rows that are not packed stay zero, since a panel of zero bytes is one of zeros: their scales
 * are 0. Requires: `panel` was zero bytes before its first row. */
void panel_pack_coded(const struct panel_form *form, const struct coded_row *row, uint64_t index, uint64_t k,
                      uint8_t *panel);

/* The code of k in row `index` of a panel, or the one that pads it there: the definition of where codes lie. Requires: k is
 * below K as padded. */
uint8_t panel_code(const struct panel_form *form, const uint8_t *panel, uint64_t index, uint64_t k);

/* Elements [first, first + count) of row n of a packed matrix [N, K], of any encoding: the definition of what kernels
 * compute with. */
void panel_read(const struct panel_form *form, const void *panels, uint64_t n, uint64_t k, uint64_t first,
                uint64_t count, float *values);

#endif
