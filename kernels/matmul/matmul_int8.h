/* SPDX-License-Identifier: Apache-2.0 */
/* Activations in blocks of int8, as the tiles of matmul_int8_<isa>.c read them. A file that includes it defines before:
 *
 *   static int32_t quantise(const float *x, int64_t count, bool nibbles, int32_t words[MATMUL_INT8_BLOCK / 4], float *scale)
 *       the same as matmul_round, bit for bit: codes of `count` numbers and zeros, 4 in a word, each 16 of them in the order
 *       INT8_NIBBLE_ORDER if `nibbles`; returns their sum */
#ifndef KERNELS_MATMUL_MATMUL_INT8_H
#define KERNELS_MATMUL_MATMUL_INT8_H

#include "kernels/matmul/matmul_tile.h"

enum {
    INT8_BLOCK_WORDS = MATMUL_INT8_BLOCK / 4,
    /* A block of activations, in units of 4 bytes for each row: the words of its codes, its scale, the sum of its codes, and
     * nothing. */
    INT8_SCALE_AT = INT8_BLOCK_WORDS,
    INT8_SUM_AT = INT8_BLOCK_WORDS + 1,
    INT8_BLOCK_UNITS = MATMUL_INT8_BLOCK / 2,
};
_Static_assert(INT8_BLOCK_UNITS > INT8_SUM_AT, "a block holds its parts");

MATMUL_INLINE void int8_prepare(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, int32_t *out,
                                const bool nibbles)
{
    for (int64_t row = 0; row < rows; row++) {
        int32_t *to = out + first / 2 * rows + row;
        for (int64_t i = first; i < last; i += MATMUL_INT8_BLOCK, to += INT8_BLOCK_UNITS * rows) {
            const int64_t count = last - i < MATMUL_INT8_BLOCK ? last - i : MATMUL_INT8_BLOCK;
            _Alignas(32) int32_t words[INT8_BLOCK_WORDS];
            float scale;
            const int32_t sum = quantise(x + row * k + i, count, nibbles, words, &scale);
            for (int word = 0; word < INT8_BLOCK_WORDS; word++) to[word * rows] = words[word];
            to[INT8_SCALE_AT * rows] = (int32_t)float_to_bits(scale);
            to[INT8_SUM_AT * rows] = sum;
        }
    }
}

static inline void prepare_nibbles(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out)
{
    int8_prepare(x, k, rows, first, last, out, true);
}
static inline void prepare_bytes(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out)
{
    int8_prepare(x, k, rows, first, last, out, false);
}

/* Tiles of both codes from tile_int8(call, panels, rows, nibbles), for the sizes that TILES lists, and their kernels. */
#define INT8_DEFINE_TILE(PANELS, ROWS, KIND)                                         \
    static void tile_##KIND##_##PANELS##x##ROWS(const struct matmul_tile_call *call) \
    {                                                                                \
        tile_int8(call, PANELS, ROWS, MATMUL_WEIGHTS_##KIND == MATMUL_WEIGHTS_INT4); \
    }
#define INT8_LIST_TILE(PANELS, ROWS, KIND) MATMUL_TILE_AT(PANELS, ROWS, KIND, tile_##KIND##_##PANELS##x##ROWS)
#define INT8_KERNELS(ISA, FINISH, PREPARE, TILES, KIND)                                                        \
    {                                                                                                          \
        .isa = (ISA), .pair_units = 1, .block_k = MATMUL_INT8_BLOCK, .prepare = (PREPARE), .finish = (FINISH), \
        .tiles = {TILES(INT8_LIST_TILE, KIND)},                                                                \
    }

/* How a launch whose weights have codes that int8 kernels know runs: `nibbles` or `bytes`; false: it has none, or a K that is
 * less than a block, which would not fit the workspace. */
static inline bool int8_run(const struct op_call *call, struct team_member *member,
                            const struct matmul_kernels *nibbles, const struct matmul_kernels *bytes)
{
    const enum encoding_code code = encoding_find(call->params[MATMUL_DTYPE])->code;
    if ((code != CODE_UINT4 && code != CODE_INT8) || call->params[MATMUL_K] < MATMUL_INT8_BLOCK) return false;
    matmul_loop(call, member, code == CODE_UINT4 ? nibbles : bytes);
    return true;
}

#endif
