/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of weights as codes with scales: those that a quantised checkpoint has, kept as they are, and those that the builder
 * makes of floats. */
#ifndef BUILDER_WEIGHTS_CODED_H
#define BUILDER_WEIGHTS_CODED_H

#include "builder/graph/graph.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/quantised.h"
#include "kernels/matmul/panel.h"

/* The encoding that holds the codes of all sources of a matrix as the checkpoint has them, on each of `ranks` ranks;
 * ENCODING_NONE where none does: a source is not of a quantised tensor, or its codes, scales or order of columns are such
 * as no encoding has. *why is then the reason, as it follows "matrices". A float16 scale stands for another one only where the difference
 * is less than 2^-16 of the matrix's largest scale. Where a checkpoint adds numbers in float16 to codes times scales, a zero point stands for
 * them if it gives them `exactly`, or else if it gives them but for their rounding. */
enum encoding_id coded_encoding(const struct graph_weight *weight, const struct checkpoint *checkpoint, uint32_t ranks,
                                bool exactly, const char **why);

/* The encoding, or that of its kind with the largest smaller group, of which every rank has whole groups; ENCODING_NONE:
 * there is none. */
enum encoding_id coded_that_splits(const struct graph_weight *weight, enum encoding_id encoding, uint32_t ranks);

/* Buffers for a row of `columns`; false after an allocation failure. */
bool coded_row_open(struct coded_row *row, const struct panel_form *form, uint64_t columns);
void coded_row_close(struct coded_row *row);

/* Codes of columns [first, first + count) of a row of the source in the encoding that coded_encoding found, whose elements
 * have the values[count] that source_read gives; `matrix`: of its tensor. False, with the column in *refused (from 0), where
 * an element is no number of the encoding. */
bool coded_from_quantised(const struct panel_form *form, const struct quantised *matrix,
                          const struct weight_source *source, uint64_t row, uint64_t first, uint64_t count,
                          const float *values, struct coded_row *to, uint64_t *refused);

/* The number of a code, before its scale; `zero` is what int4, and int8 with zeros, subtract. */
float coded_number(const struct encoding *encoding, uint8_t code, int zero);

/* What calibration says about the columns of a row. */
struct coded_feedback {
    const float *factors, *error_weights; /* of a calibrated weight (calibration.h) */
    const float *scales; /* [count]: codes are of the values times these (channel_scales.h); NULL: of the values */
    double error;        /* set: sum of the squared errors of products, as far as the factors tell */
};

/* Codes nearest to values[count], with scales that make the sum of squared errors of each group small. With `feedback` (NULL:
 * none) the error of an element moves into those after it, and values are overwritten. False, with the column in *refused,
 * where a value is NaN or infinite or has no finite value in the encoding. */
bool coded_from_floats(const struct panel_form *form, float *values, uint64_t count, struct coded_feedback *feedback,
                       struct coded_row *to, uint64_t *refused);

#endif
