/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of kernels/cpu/tiles_amx.h in plain C, for processors without them, and for comparison. A use that the processor
 * would refuse ends the program: registers without a shape, shapes that do not fit together. */
#ifndef KERNELS_MATMUL_TEST_TILES_AMX_H
#define KERNELS_MATMUL_TEST_TILES_AMX_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "formats/encoding/encoding.h"
#include "kernels/cpu/tile_config.h"

struct test_tiles {
    struct tile_config config;
    _Alignas(64) uint8_t data[TILE_REGISTERS][TILE_ROWS][TILE_ROW_BYTES];
};
static _Thread_local struct test_tiles test_tiles; /* of a thread, as the processor has them */

static inline void test_tiles_require(bool condition)
{
    if (!condition) __builtin_trap();
}

static inline void test_tiles_configure(const struct tile_config *config)
{
    test_tiles_require(config->palette == TILE_PALETTE && config->start_row == 0);
    for (int i = 0; i < 14; i++) test_tiles_require(config->reserved[i] == 0);
    for (int i = 0; i < 16; i++)
        test_tiles_require(i < TILE_REGISTERS ? config->rows[i] >= 1 && config->rows[i] <= TILE_ROWS &&
                                                    config->row_bytes[i] >= 1 && config->row_bytes[i] <= TILE_ROW_BYTES
                                              : config->rows[i] == 0 && config->row_bytes[i] == 0);
    memset(&test_tiles, 0, sizeof test_tiles);
    test_tiles.config = *config;
}

static inline void test_tiles_release(void) { memset(&test_tiles, 0, sizeof test_tiles); }

static inline void test_tiles_zero(int t)
{
    test_tiles_require(test_tiles.config.rows[t] > 0);
    memset(test_tiles.data[t], 0, sizeof test_tiles.data[t]);
}

static inline void test_tiles_load(int t, const void *from, int64_t stride)
{
    test_tiles_zero(t);
    for (int row = 0; row < test_tiles.config.rows[t]; row++)
        memcpy(test_tiles.data[t][row], (const uint8_t *)from + row * stride, test_tiles.config.row_bytes[t]);
}

static inline void test_tiles_store(int t, void *to, int64_t stride)
{
    test_tiles_require(test_tiles.config.rows[t] > 0);
    for (int row = 0; row < test_tiles.config.rows[t]; row++)
        memcpy((uint8_t *)to + row * stride, test_tiles.data[t][row], test_tiles.config.row_bytes[t]);
}

static inline void test_tiles_check_product(int c, int a, int b)
{
    const struct tile_config *config = &test_tiles.config;
    test_tiles_require(a != b && a != c && b != c && config->rows[c] > 0);
    test_tiles_require(config->rows[a] == config->rows[c] && config->row_bytes[b] == config->row_bytes[c]);
    test_tiles_require(config->row_bytes[a] == 4 * config->rows[b] && config->row_bytes[c] % 4 == 0);
}

/* Subnormal numbers are zero. */
static inline float test_tiles_flush(float value)
{
    const uint32_t bits = float_to_bits(value);
    return bits & 0x7f800000 ? value : float_from_bits(bits & 0x80000000);
}

static inline void test_tiles_add_bf16(int c, int a, int b)
{
    test_tiles_check_product(c, a, b);
    for (int m = 0; m < test_tiles.config.rows[c]; m++) {
        enum { COLUMNS = TILE_ROW_BYTES / 4 };
        float sums[COLUMNS], chains[2][COLUMNS] = {{0}};
        for (int k = 0; k < test_tiles.config.rows[b]; k++)
            for (int half = 0; half < 2; half++) {
                uint16_t x, weights[2 * COLUMNS];
                memcpy(&x, &test_tiles.data[a][m][4 * k + 2 * half], sizeof x);
                memcpy(weights, test_tiles.data[b][k], sizeof weights);
                const float factor = test_tiles_flush(bf16_to_float(x));
                for (int n = 0; n < COLUMNS; n++)
                    chains[half][n] =
                        test_tiles_flush(__builtin_fmaf(factor, test_tiles_flush(bf16_to_float(weights[2 * n + half])),
                                                        chains[half][n]));
            }
        memcpy(sums, test_tiles.data[c][m], sizeof sums);
        for (int n = 0; n < COLUMNS; n++)
            sums[n] = test_tiles_flush(test_tiles_flush(sums[n]) + test_tiles_flush(chains[0][n] + chains[1][n]));
        memcpy(test_tiles.data[c][m], sums, test_tiles.config.row_bytes[c]);
    }
}

static inline void test_tiles_add_int8(int c, int a, int b)
{
    test_tiles_check_product(c, a, b);
    for (int m = 0; m < test_tiles.config.rows[c]; m++) {
        enum { COLUMNS = TILE_ROW_BYTES / 4 };
        int32_t sums[COLUMNS];
        memcpy(sums, test_tiles.data[c][m], sizeof sums);
        for (int k = 0; k < test_tiles.config.rows[b]; k++)
            for (int i = 0; i < 4; i++) {
                const int8_t x = (int8_t)test_tiles.data[a][m][4 * k + i];
                for (int n = 0; n < COLUMNS; n++) sums[n] += x * (int8_t)test_tiles.data[b][k][4 * n + i];
            }
        memcpy(test_tiles.data[c][m], sums, test_tiles.config.row_bytes[c]);
    }
}

#define TILE_CONFIGURE(config)     test_tiles_configure(config)
#define TILE_RELEASE()             test_tiles_release()
#define TILE_ZERO(t)               test_tiles_zero(t)
#define TILE_LOAD(t, from, stride) test_tiles_load(t, from, (int64_t)(stride))
#define TILE_STORE(t, to, stride)  test_tiles_store(t, to, (int64_t)(stride))
#define TILE_ADD_BF16(c, a, b)     test_tiles_add_bf16(c, a, b)
#define TILE_ADD_INT8(c, a, b)     test_tiles_add_int8(c, a, b)

#endif
