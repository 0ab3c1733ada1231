/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather on GPUs: the columns of all ranks side by side, out[r, k * WIDTH + c] = x of rank k [r, c], for the columns
 * below OUT_WIDTH, bit for bit but for one NaN (comm.cuh, which says how ranks exchange, too). */
#ifndef KERNELS_ALL_GATHER_ALL_GATHER_DEVICE_H
#define KERNELS_ALL_GATHER_ALL_GATHER_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/all_gather/all_gather.h"

enum all_gather_device_operand {
    ALL_GATHER_DEVICE_COUNTS,
    ALL_GATHER_DEVICE_X,      /* f32[ROWS, WIDTH] */
    ALL_GATHER_DEVICE_HEADER, /* struct comm_header */
    ALL_GATHER_DEVICE_BUFFER, /* f32[RANKS, ROWS, WIDTH] in the COMM space, empty (comm.cuh) */
    ALL_GATHER_DEVICE_OUT,    /* f32[ROWS, OUT_WIDTH] */
    ALL_GATHER_DEVICE_OPERANDS
};
enum all_gather_device_param {
    ALL_GATHER_DEVICE_ROWS = ALL_GATHER_ROWS,
    ALL_GATHER_DEVICE_COUNT_INDEX = ALL_GATHER_COUNT_INDEX,
    ALL_GATHER_DEVICE_WIDTH = ALL_GATHER_WIDTH,
    ALL_GATHER_DEVICE_OUT_WIDTH = ALL_GATHER_OUT_WIDTH,
    ALL_GATHER_DEVICE_RANKS = ALL_GATHER_RANKS,
    ALL_GATHER_DEVICE_THREADS = ALL_GATHER_PARAMS, /* tunable: of a block, a multiple of 32 up to 1024 */
    ALL_GATHER_DEVICE_PARAMS
};
extern const struct device_kernel device_all_gather;

bool all_gather_device_buffer_bytes(uint64_t rows, uint64_t width, uint64_t ranks, uint64_t *bytes);

#endif
