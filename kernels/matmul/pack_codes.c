/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/pack_codes.h"

#include <string.h>

/* ---- PANEL16: lines ---- */

/* Eight codes of 4 bits as a word: pairs of codes of even k and of odd k become bytes, which are put in their order. */
static uint32_t nibble_word(const uint8_t codes[8])
{
    uint64_t all;
    memcpy(&all, codes, sizeof all);
    all &= UINT64_C(0x0f0f0f0f0f0f0f0f);
    all |= all >> 12;
    const uint32_t low = (uint32_t)all, high = (uint32_t)(all >> 32);
    return (low & 0xff) | (high & 0xff) << 8 | (low & 0xff00) << 8 | (high & 0xff00) << 16;
}

static void pack_lines(const struct encoding *encoding, const uint8_t *codes, uint64_t count, uint64_t index,
                       uint8_t *to)
{
    if (encoding->bits == 4) {
        to += 4 * index;
        for (uint64_t k = 0; k < count; k += 8, to += PANEL_LINE_BYTES) {
            const uint32_t word = nibble_word(codes + k);
            memcpy(to, &word, sizeof word);
        }
    } else if (encoding->code == CODE_INT8) {
        to += 4 * index;
        for (uint64_t k = 0; k < count; k += 4, to += PANEL_LINE_BYTES) memcpy(to, codes + k, 4);
    } else {
        for (uint64_t k = 0; k < count; k++) to[k * PANEL_ROWS + index] = codes[k];
    }
}

/* ---- FRAGMENT16: strips ----
 *
 * A row has the 64 bytes of four lanes in each 64 k (4 bits) or 32 k (8 bits), and shares them with the row that is 8 rows away. */

typedef uint32_t words __attribute__((vector_size(16)));

/* Two codes in the halves of each word; from one word to the next `step` k. */
static words pairs(const uint8_t *codes, uint64_t step)
{
    uint16_t both[4];
    for (uint64_t i = 0; i < 4; i++) memcpy(&both[i], codes + i * step, sizeof *both);
    const words each = {both[0], both[1], both[2], both[3]};
    return (each | each << 8) & 0x00ff00ff;
}

static void add_words(uint8_t *to, words value)
{
    words there;
    memcpy(&there, to, sizeof there);
    there |= value;
    memcpy(to, &there, sizeof there);
}

static words e2m1_words(words codes, uint64_t lane_register)
{
    static const int magnitudes[4] = {6, 3, 0, 9}, signs[4] = {15, 12, 14, 13};
    return (codes & 0x00070007) << magnitudes[lane_register] | (codes >> 3 & 0x00010001) << signs[lane_register];
}

/* Codes of 4 bits: of the lane's registers for the first eight k of 16, and for the others. */
static words nibble_words(enum encoding_code code, words first, words second, uint64_t upper)
{
    first &= 0x000f000f;
    second &= 0x000f000f;
    if (code == CODE_E2M1) return e2m1_words(first, upper) | e2m1_words(second, 2 + upper);
    if (code == CODE_TABLE)
        return (((first | first >> 12) & 0xff) | ((second | second >> 12) & 0xff) << 16) << 8 * (int)upper;
    const int bit = 4 * (int)upper + 3;
    const words nibbles = first | second << 8;
    return nibbles << bit | nibbles >> (32 - bit);
}

static void pack_strips(const struct encoding *encoding, const uint8_t *codes, uint64_t count, uint64_t index,
                        uint8_t *to)
{
    enum { LANES = 4, LANE_BYTES = 16, ALL_LANES_BYTES = 32 * LANE_BYTES };
    const uint64_t upper = index / 8, lane_k = encoding->bits == 4 ? 64 : 32;
    to += index % 8 * LANES * LANE_BYTES;
    for (uint64_t k = 0; k < count; k += lane_k, codes += lane_k, to += ALL_LANES_BYTES)
        for (uint64_t lane = 0; lane < LANES; lane++) {
            const uint8_t *from = codes + 2 * lane;
            add_words(to + lane * LANE_BYTES,
                      encoding->bits == 4 ? nibble_words(encoding->code, pairs(from, 16), pairs(from + 8, 16), upper)
                                          : pairs(from, 8) << 8 * (int)upper);
        }
}

void pack_codes(const struct panel_form *form, const uint8_t *codes, uint64_t count, uint64_t index, uint8_t *to)
{
    if (form->fragments)
        pack_strips(form->encoding, codes, count, index, to);
    else
        pack_lines(form->encoding, codes, count, index, to);
}
