/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of AMX tile registers, in the form that LDTILECFG reads (Intel SDM volume 2, "LDTILECFG"). */
#ifndef KERNELS_CPU_TILE_CONFIG_H
#define KERNELS_CPU_TILE_CONFIG_H

#include <stdint.h>

enum {
    TILE_PALETTE = 1, /* eight registers of 16 rows of 64 bytes; cpu_isa_best checks that the processor has it */
    TILE_REGISTERS = 8,
    TILE_ROWS = 16,
    TILE_ROW_BYTES = 64,
};

struct tile_config {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16]; /* of each register; 0 beyond TILE_REGISTERS */
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as the processor reads it");

#endif
