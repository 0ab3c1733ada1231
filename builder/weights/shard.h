/* SPDX-License-Identifier: Apache-2.0 */
/* How a model is split over ranks (tensor parallelism). */
#ifndef BUILDER_WEIGHTS_SHARD_H
#define BUILDER_WEIGHTS_SHARD_H

#include "builder/graph/graph.h"

/* The configuration of one of `ranks` ranks: its heads, KV heads and inner width; the rest is unchanged. False, naming
 * the shape, if there are no equal shares. */
bool shard_config(const struct model_config *whole, uint32_t ranks, struct model_config *rank, struct status *status);

/* A rank's part of a source. */
struct shard_slice {
    uint64_t first_row, first_column;
    uint64_t rows; /* that the source has; the rank's other rows are zeros */
};
struct shard_slice shard_slice(const struct weight_source *source, uint32_t rank, uint32_t ranks);

#endif
