/* SPDX-License-Identifier: Apache-2.0 */
/* Choices of experts at random, for a matmul over experts that is measured without its router. */
#ifndef TUNER_CHOOSE_EXPERTS_H
#define TUNER_CHOOSE_EXPERTS_H

#include "kernels/matmul/matmul.h"

/* Writes the routes of all rows (router.h), each of which chooses its experts evenly. The draw is taken whose rows
 * read matmul_matrices_read experts, or as near to it as one comes, so that launches with other choices move as many bytes.
 * `random`: the state of the generator, which the draws advance. */
void choose_experts(const int64_t *params, uint64_t *random, float *routes);

#endif
