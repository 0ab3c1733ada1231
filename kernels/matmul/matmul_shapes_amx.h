/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of tile registers in matmul with AMX: registers 0 to 3 have sums, 4 and 5 activations of rows 0 to 15 and of rows 16 to 31,
 * 6 and 7 weights. Operations on them are defined before, as matmul_amx.h says. */
#ifndef KERNELS_MATMUL_MATMUL_SHAPES_AMX_H
#define KERNELS_MATMUL_MATMUL_SHAPES_AMX_H

#include "kernels/cpu/tile_config.h"
#include "kernels/matmul/matmul_tile.h"

enum {
    TILE_K = TILE_ROW_BYTES / 2, /* bf16 in a row of a tile register */
    BLOCK_BYTES = 64,            /* activations of a row for 32 k, in both forms */
    WEIGHT_TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES,
    MOST_ROWS = 2 * TILE_ROWS,
    MOST_SUMS = 4 * TILE_ROWS * PANEL_ROWS, /* of a register tile */
};
_Static_assert((int)PANEL_ROWS == (int)TILE_ROWS && (int)PANEL_LINE_BYTES == (int)TILE_ROW_BYTES,
               "lines of panels are tile rows");
_Static_assert((int)TILE_K == (int)MATMUL_INT8_BLOCK, "both forms have blocks of 32 k");

/* Shapes for a register tile of `rows` rows whose products are over `k_bytes` bytes of k of each row. */
static void configure(const struct matmul_tile_call *call, int k_bytes)
{
    const uint32_t shape = (uint32_t)(call->rows << 8 | k_bytes);
    if (*call->tile_shape == shape) return;
    const uint8_t first = (uint8_t)(call->rows < TILE_ROWS ? call->rows : TILE_ROWS);
    const uint8_t second = call->rows > TILE_ROWS ? (uint8_t)(call->rows - TILE_ROWS) : first;
    struct tile_config config = {.palette = TILE_PALETTE};
    for (int i = 0; i < TILE_REGISTERS; i++) {
        const bool is_activations = i == 4 || i == 5, is_weights = i == 6 || i == 7;
        config.row_bytes[i] = (uint16_t)(is_activations ? k_bytes : TILE_ROW_BYTES);
        config.rows[i] = (uint8_t)(is_weights ? k_bytes / 4 : i == 5 || i / 2 == 1 ? second : first);
    }
    TILE_CONFIGURE(&config);
    *call->tile_shape = shape;
}

static void release(void) { TILE_RELEASE(); }

#endif
