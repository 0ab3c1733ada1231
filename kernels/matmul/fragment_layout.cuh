/* SPDX-License-Identifier: Apache-2.0 */
/* FRAGMENT16, the layout of coded weights for GPUs (documented in panel.h): what device code and the host must know of an
 * encoding alike. Encodings, their codes and scales have the numbers of formats/encoding/encoding.h; coded_panel.c
 * asserts that. */
#ifndef KERNELS_MATMUL_FRAGMENT_LAYOUT_CUH
#define KERNELS_MATMUL_FRAGMENT_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

enum {
    FRAGMENT_ROWS = 16,
    FRAGMENT_STRIP_K = 128, /* k of a strip: a multiple of every group */
    FRAGMENT_FACTOR_BYTES = 64,
    FRAGMENT_LARGEST_DTYPE = 3, /* ids up to this are element types: W is not coded */
};

/* Codes, as enum encoding_code. */
enum { FRAGMENT_INT8 = 1, FRAGMENT_UINT4 = 2, FRAGMENT_E4M3 = 3, FRAGMENT_E2M1 = 4, FRAGMENT_TABLE = 5 };
/* Scales of a group, as enum encoding_scale. */
enum { FRAGMENT_NO_SCALE = 0, FRAGMENT_F32 = 1, FRAGMENT_F16 = 2, FRAGMENT_E5M3 = 3, FRAGMENT_E8M0 = 4 };

struct fragment_layout {
    int code, bits;
    int scale;   /* of groups */
    int group;   /* k that share a scale; 0: none do */
    int zeros;   /* each group has a zero for each row */
    int factors; /* each row has a float32 factor */
    int groups;  /* of a strip */
    /* Bytes: scales and zeros of a strip for a pair of rows r and r + 8, in the order of the groups; from the strip's
     * beginning to its zeros and to its codes; of a strip. */
    int pair_scale_bytes, pair_zero_bytes, zeros_at, codes_at, strip_bytes;
};

/* code is 0: none with fragments. */
LAYOUT_FUNCTION struct fragment_layout fragment_lay_out(long long encoding)
{
    struct fragment_layout l = {0};
    int scale_bytes = 0;
    if (encoding >= 17 && encoding <= 22) { /* int4: groups of 32, 64, 128; with zeros */
        l.code = FRAGMENT_UINT4, l.scale = FRAGMENT_F16;
        l.group = 32 << (encoding - 17) % 3;
        l.zeros = encoding >= 20;
    } else if (encoding >= 28 && encoding <= 30) { /* int8: the same groups */
        l.code = FRAGMENT_INT8, l.scale = FRAGMENT_F16;
        l.group = 32 << (encoding - 28);
    } else if (encoding == 16) {
        l.code = FRAGMENT_INT8, l.factors = 1;
    } else if (encoding == 24) {
        l.code = FRAGMENT_E4M3, l.factors = 1;
    } else if (encoding == 25) {
        l.code = FRAGMENT_E4M3, l.scale = FRAGMENT_F32, l.group = 128;
    } else if (encoding == 26) {
        l.code = FRAGMENT_E2M1, l.scale = FRAGMENT_E8M0, l.group = 32;
    } else if (encoding == 27) {
        l.code = FRAGMENT_E2M1, l.scale = FRAGMENT_E5M3, l.group = 16, l.factors = 1;
    } else if (encoding == 31) {
        l.code = FRAGMENT_E4M3, l.scale = FRAGMENT_E8M0, l.group = 32;
    } else if (encoding == 32 || encoding == 33) {
        l.code = FRAGMENT_TABLE, l.scale = FRAGMENT_F32, l.group = 64;
    } else if (encoding >= 34 && encoding <= 36) { /* int8 with zeros */
        l.code = FRAGMENT_INT8, l.scale = FRAGMENT_F16, l.zeros = 1;
        l.group = 32 << (encoding - 34);
    }
    if (l.code == 0) return l;
    l.bits = l.code == FRAGMENT_INT8 || l.code == FRAGMENT_E4M3 ? 8 : 4;
    if (l.scale == FRAGMENT_F32) scale_bytes = 4;
    if (l.scale == FRAGMENT_F16) scale_bytes = 2;
    if (l.scale == FRAGMENT_E5M3 || l.scale == FRAGMENT_E8M0) scale_bytes = 1;
    l.groups = l.group ? FRAGMENT_STRIP_K / l.group : 0;
    l.pair_scale_bytes = 2 * scale_bytes * l.groups;
    l.pair_zero_bytes = l.zeros ? 2 * l.groups : 0;
    l.zeros_at = FRAGMENT_ROWS / 2 * l.pair_scale_bytes;
    l.codes_at = l.zeros_at + FRAGMENT_ROWS / 2 * l.pair_zero_bytes;
    l.strip_bytes = l.codes_at + FRAGMENT_ROWS * FRAGMENT_STRIP_K * l.bits / 8;
    return l;
}

/* Tables: the number of a code as bits of a bfloat16, to which it is rounded (formats/encoding/encoding.c). */
LAYOUT_FUNCTION unsigned short fragment_number(long long encoding, int code)
{
    const unsigned short nf4[16] = {0xbf80, 0xbf32, 0xbf06, 0xbeca, 0xbe92, 0xbe3d, 0xbdba, 0x0000,
                                    0x3da3, 0x3e25, 0x3e7c, 0x3ead, 0x3ee2, 0x3f10, 0x3f39, 0x3f80};
    const unsigned short fp4[16] = {0x0000, 0x3bab, 0x3f2b, 0x3f80, 0x3eab, 0x3f00, 0x3e2b, 0x3e80,
                                    0x8000, 0xbbab, 0xbf2b, 0xbf80, 0xbeab, 0xbf00, 0xbe2b, 0xbe80};
    return encoding == 32 ? nf4[code] : fp4[code];
}

LAYOUT_FUNCTION int fragment_is_coded(long long encoding) { return encoding > FRAGMENT_LARGEST_DTYPE; }

/* The scales of groups multiply their sums: each group needs sums of its own. */
LAYOUT_FUNCTION int fragment_sum_scales(struct fragment_layout layout)
{
    return layout.group != 0 && layout.scale != FRAGMENT_E5M3;
}

LAYOUT_FUNCTION layout_size fragment_strips(layout_size k) { return layout_divide_up(k, FRAGMENT_STRIP_K); }

/* Bytes of a panel of 16 rows; its strips begin after its factors. */
LAYOUT_FUNCTION layout_size fragment_factor_bytes(struct fragment_layout layout)
{
    return layout.factors ? FRAGMENT_FACTOR_BYTES : 0;
}
LAYOUT_FUNCTION layout_size fragment_panel_bytes(struct fragment_layout layout, layout_size k)
{
    return fragment_factor_bytes(layout) + fragment_strips(k) * layout.strip_bytes;
}

#endif
