/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on AMX tile registers. The numbers of registers are constants. Tests have the same operations in plain C
 * (kernels/matmul/test_tiles_amx.h).
 *
 *   TILE_CONFIGURE(config)        shapes of all registers, whose contents become zeros; TILE_RELEASE(): no shapes
 *   TILE_ZERO(t)
 *   TILE_LOAD(t, from, stride)    rows of a register from rows in memory, `stride` bytes apart
 *   TILE_STORE(t, to, stride)
 *   TILE_ADD_BF16(c, a, b)        c[m][n] += even[m][n] + odd[m][n], chains of fused additions from 0 on over pairs k of bf16:
 *                                 even += a[m][2 k] * b[k][2 n], odd += a[m][2 k + 1] * b[k][2 n + 1]; rounds to nearest even,
 *                                 subnormal operands and results are zero
 *   TILE_ADD_INT8(c, a, b)        c[m][n] += sum over k and i of a[m][4 k + i] * b[k][4 n + i], integers
 *
 * Compilers know neither the registers nor, of loads, the memory that they read: TILE_IS_WRITTEN keeps stores before a load. */
#ifndef KERNELS_CPU_TILES_AMX_H
#define KERNELS_CPU_TILES_AMX_H

#include <immintrin.h>

#include "kernels/cpu/tile_config.h"

#define TILE_IS_WRITTEN(at) __asm__ volatile("" ::"r"(at) : "memory")

#define TILE_CONFIGURE(config)    \
    do {                          \
        TILE_IS_WRITTEN(config);  \
        _tile_loadconfig(config); \
    } while (0)
#define TILE_RELEASE() _tile_release()
#define TILE_ZERO(t)   _tile_zero(t)
#define TILE_LOAD(t, from, stride)                 \
    do {                                           \
        TILE_IS_WRITTEN(from);                     \
        _tile_loadd(t, from, (long long)(stride)); \
    } while (0)
#define TILE_STORE(t, to, stride)                 \
    do {                                          \
        _tile_stored(t, to, (long long)(stride)); \
        TILE_IS_WRITTEN(to);                      \
    } while (0)
#define TILE_ADD_BF16(c, a, b) _tile_dpbf16ps(c, a, b)
#define TILE_ADD_INT8(c, a, b) _tile_dpbssd(c, a, b)

#endif
