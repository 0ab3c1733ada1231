/* SPDX-License-Identifier: Apache-2.0 */
/* How the activations of a weight vary together, and what follows for rounding its elements: the error of an element is made
 * good by the elements after it, as GPTQ does (Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative
 * Pre-trained Transformers", 2022, algorithm 1), within blocks of columns.
 *
 * For the columns of a block, H is the sum of x x^T over the activations. With U the upper triangular factor of
 * H^-1 = U^T U, an error e of element j changes every later element k of the block by -e U[j, k] / U[j, j]. */
#ifndef BUILDER_WEIGHTS_CALIBRATION_H
#define BUILDER_WEIGHTS_CALIBRATION_H

#include "builder/graph/graph.h"
#include "kernels/cpu/team.h"

enum { CALIBRATION_BLOCK = 256 };

struct calibration {
    uint64_t *offsets; /* [ranks, weight_count]: floats from `matrices`; UINT64_MAX: the weight is not calibrated */
    float *matrices;   /* in a file without a name: sums, then factors; after them magnitudes and error weights */
    uint64_t floats;   /* of the matrices */
    uint64_t bytes;
    int weight_count;
    uint32_t ranks;
    uint64_t tokens; /* that activations are added of; set before calibration_finish */
};

/* Room for the matrices of `graph` that have codes of 4 bits, in a file of `folder` that has no name. */
bool calibration_open(struct calibration *calibration, const struct graph *graph, const char *folder,
                      struct status *status);
void calibration_close(struct calibration *calibration); /* harmless twice, and on zeros */

/* Adds the activations x[rows, columns] of a weight on a rank. Members of a team share the blocks. */
void calibration_add(struct calibration *calibration, uint32_t rank, int weight, const float *x, uint64_t rows,
                     uint64_t columns, const struct team_member *member);

/* Turns sums into factors U, divided by their diagonal. */
bool calibration_finish(struct calibration *calibration, const struct graph *graph, struct team *team,
                        struct status *status);

/* The factors of a weight, blocks of [CALIBRATION_BLOCK, CALIBRATION_BLOCK] one after the other; NULL: not calibrated. */
const float *calibration_factors(const struct calibration *calibration, uint32_t rank, int weight);
/* A number for each column, whole blocks; NULL: not calibrated. Magnitudes: the root of the sum of its squared activations. Error
 * weights: 1 / U[j, j]^2, what an error of 1 adds to the sum of the squared errors of products after the elements that follow it
 * have made good what they can. */
const float *calibration_magnitudes(const struct calibration *calibration, uint32_t rank, int weight);
const float *calibration_error_weights(const struct calibration *calibration, uint32_t rank, int weight);

#endif
