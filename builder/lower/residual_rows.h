/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the residual stream on each rank, if ranks exchange many rows: CUDA. */
#ifndef BUILDER_LOWER_RESIDUAL_ROWS_H
#define BUILDER_LOWER_RESIDUAL_ROWS_H

#include "builder/graph/graph.h"
#include "kernels/all_reduce/all_reduce_device.h"

/* For the all_reduce `node` in a plan with that many token rows and out rows: HAS_RESIDUAL and HAS_NORM become
 * ALL_REDUCE_OWN_ROWS if a rank keeps only its own rows. `params`: those of the schema otherwise. */
void residual_rows(const struct graph *graph, const struct graph_node *node, uint64_t rows, uint64_t out_rows,
                   int64_t *params);

#endif
