/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of matrices in engine files (enum tensor_layout): which one a matmul reads, its panels and its size. */
#ifndef KERNELS_MATMUL_WEIGHT_LAYOUT_H
#define KERNELS_MATMUL_WEIGHT_LAYOUT_H

#include "formats/engine/engine_file.h"
#include "kernels/matmul/panel.h"

/* That of a matmul's weight: on the CPU PANEL16; on GPUs FRAGMENT16 of the encodings that have it, else row-major. */
enum tensor_layout weight_layout_of(enum engine_target target, int64_t encoding);

/* How panels of the layout are laid out; false if it has none of this encoding: row-major has none at all. */
bool weight_layout_form(enum tensor_layout layout, int64_t encoding, struct panel_form *form);

/* Whether kernels read an encoding in this layout: plain ones row by row, others in panels. */
bool weight_layout_has(enum tensor_layout layout, int64_t encoding);

/* Bytes of a matrix [N, K]; false if the layout does not have the encoding, or beyond 64 bits. */
bool weight_layout_bytes(enum tensor_layout layout, int64_t encoding, uint64_t n, uint64_t k, uint64_t *bytes);

#endif
