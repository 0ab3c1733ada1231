/* SPDX-License-Identifier: Apache-2.0 */
/* Static scales of a KV cache, which a checkpoint was calibrated with: nodes that append to an e4m3 cache get them as an
 * operand (kernels/op/paged.h). */
#ifndef BUILDER_WEIGHTS_CACHE_SCALES_H
#define BUILDER_WEIGHTS_CACHE_SCALES_H

#include "builder/graph/graph.h"
#include "formats/checkpoint/checkpoint.h"

/* Whether the checkpoint's configuration says that a KV cache has codes of e4m3. */
bool cache_is_e4m3(const struct checkpoint *checkpoint);

/* Adds the scales, as weights after all others, to an imported graph, before its passes. Layers of which the checkpoint has none,
 * and all where its configuration describes another cache, form a scale for each row. *layers: how many got them. */
bool cache_scales_add(struct graph *graph, const struct checkpoint *checkpoint, uint32_t *layers,
                      struct status *status);

#endif
