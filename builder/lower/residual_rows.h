/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of the residual stream a rank keeps, where ranks exchange many rows: devices. */
#ifndef BUILDER_LOWER_RESIDUAL_ROWS_H
#define BUILDER_LOWER_RESIDUAL_ROWS_H

#include "builder/graph/graph.h"
#include "kernels/all_reduce/all_reduce_device.h"

struct residual_rows {
    enum all_reduce_rows residual, norm; /* of an all_reduce: its HAS_RESIDUAL and HAS_NORM */
    enum dtype given;                    /* as all_reduce_device_buffer_bytes wants it */
};

/* For the all_reduce `node` in a plan of that many token rows and out rows. */
struct residual_rows residual_rows(const struct graph *graph, const struct graph_node *node, uint64_t rows,
                                   uint64_t out_rows);

#endif
