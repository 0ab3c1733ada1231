/* SPDX-License-Identifier: Apache-2.0 */
/* Scales of channels, as AWQ chooses them (Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and
 * Acceleration", 2023): a column that multiplies large activations is multiplied by a number above 1 before its elements are
 * rounded, so that their errors count less, and the row of the weight that makes the channel is divided by it.
 *
 * The scale of a channel is the root of its mean square to the power of alpha, divided by the geometric mean of all. Each
 * link of two weights gets the alpha, from 0 (no scales) to 1, with the least error of products that is left after the feedback of
 * rounding, as the calibration's factors tell it. */
#ifndef BUILDER_WEIGHTS_CHANNEL_SCALES_H
#define BUILDER_WEIGHTS_CHANNEL_SCALES_H

#include "builder/weights/channel_links.h"
#include "formats/checkpoint/checkpoint.h"

/* Factors of a weight on a rank; NULL: 1 everywhere. */
struct weight_scales {
    const float *columns; /* [depth] of each row */
    const float *rows;    /* [rank_rows] of one source */
    int source;           /* the one that `rows` are of */
};

/* For reports. */
struct channel_scales_summary {
    int matrices, scaled;           /* whose columns can have scales; that have them */
    double least_alpha, most_alpha; /* of the scaled ones */
};

struct channel_scales {
    struct weight_scales *weights; /* [ranks, weight_count] */
    float *values;                 /* that they point to */
    int weight_count;
    uint32_t ranks;
    struct channel_scales_summary summary;
};

/* Requires: calibration_finish. The result does not depend on the team's size. A part of the rows of
 * large matrices decides. */
bool channel_scales_choose(struct channel_scales *scales, const struct graph *model, const struct graph *engine,
                           const struct checkpoint *checkpoint, const struct calibration *calibration,
                           struct team *team, struct status *status);
void channel_scales_close(struct channel_scales *scales); /* harmless twice, and on zeros */

/* `scales` may be NULL. */
struct weight_scales channel_scales_of(const struct channel_scales *scales, uint32_t rank, int weight);

#endif
