/* SPDX-License-Identifier: Apache-2.0 */
/* Places in a graph where factors can move from one weight to the next: the rows of one weight, the maker, make the channels
 * that the columns of a matrix multiply, and every op between the two is linear in each channel. Dividing a row of the maker and
 * multiplying the column by the same number changes no result. */
#ifndef BUILDER_WEIGHTS_CHANNEL_LINKS_H
#define BUILDER_WEIGHTS_CHANNEL_LINKS_H

#include "builder/weights/calibration.h"

struct channel_link {
    int matrix;     /* calibrated */
    int maker;      /* the weight of a norm, the matrix of gate and up, or that of q, k and v */
    int bias;       /* of the maker; -1: none */
    int source;     /* of maker and bias: the one whose rows are channels */
    bool is_shared; /* every rank has all of the maker, and all of its channels */
    /* Each of `heads` neighbouring heads of columns reads the same rows; 1 and 1: column j reads row j. */
    uint64_t head_dim, heads;
};

/* The links of the calibrated matrices of int4. `model`: the nodes, as the processor runs them; `engine`: the same weights with
 * the encodings that they get. The caller frees *links. */
bool channel_links_find(const struct graph *model, const struct graph *engine, const struct calibration *calibration,
                        struct channel_link **links, int *count, struct status *status);

/* The row of the maker's source, on each rank, that a column of the matrix reads. */
uint64_t channel_link_row(const struct channel_link *link, uint64_t column);

#endif
