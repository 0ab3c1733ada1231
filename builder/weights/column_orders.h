/* SPDX-License-Identifier: Apache-2.0 */
/* Act-order: columns of a quantised matrix that share a scale may lie apart. An engine has the columns of such a matrix by
 * rising group, so that its groups are those of an encoding, and multiplies x with its columns in the same order. Where a
 * matmul makes x, it makes it in that order: its rows are reordered. Elsewhere a select_columns reorders x. */
#ifndef BUILDER_WEIGHTS_COLUMN_ORDERS_H
#define BUILDER_WEIGHTS_COLUMN_ORDERS_H

#include "builder/graph/graph.h"
#include "builder/weights/weight_types.h"
#include "formats/checkpoint/checkpoint.h"

/* Those of a checkpoint; matrices with the same groups share one. */
struct column_orders {
    struct column_order *orders; /* [count] */
    const uint8_t **groups;      /* [count]: the tensors that the orders are of */
    size_t count;
};

bool column_orders_open(struct column_orders *orders, const struct checkpoint *checkpoint, struct status *status);
void column_orders_close(struct column_orders *orders); /* harmless twice, and on zeros */

/* Gives their orders to matrices of an imported graph, before its passes: those whose tensors all have the same groups, that
 * one matmul reads, and whose codes `types` keeps. Matrices of experts get none. Where several ranks divide a matrix by columns, it gets one only if
 * a matmul makes its x. Weights of select_columns come after all others. The graph borrows the orders. */
bool column_orders_add(struct graph *graph, const struct column_orders *orders, const struct checkpoint *checkpoint,
                       const struct weight_types *types, struct status *status);

#endif
