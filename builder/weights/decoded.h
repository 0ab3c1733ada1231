/* SPDX-License-Identifier: Apache-2.0 */
/* Which matrices of an engine have no longer the codes that a quantised checkpoint has, and why. */
#ifndef BUILDER_WEIGHTS_DECODED_H
#define BUILDER_WEIGHTS_DECODED_H

#include "builder/graph/graph.h"
#include "builder/weights/weight_types.h"
#include "formats/checkpoint/checkpoint.h"

enum { DECODED_MOST_REASONS = 16 };

/* Matrices with one reason, which follows the word "matrices"; 0 matrices: there are no further reasons. */
struct decoded_matrices {
    const char *reason;
    uint64_t count;
};

/* Those in use of a bound graph, by their reasons. Requires: `types` are those that the graph was bound with. */
void decoded_matrices_count(const struct graph *graph, const struct checkpoint *checkpoint,
                            const struct weight_types *types, struct decoded_matrices counts[DECODED_MOST_REASONS]);

#endif
