/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that sources take every element of every tensor of a checkpoint, and none twice. */
#ifndef BUILDER_WEIGHTS_CONSUMPTION_H
#define BUILDER_WEIGHTS_CONSUMPTION_H

#include "builder/weights/source.h"
#include "formats/base/status.h"

/* The sources that take parts of one tensor. */
struct tensor_claims {
    const struct weight_source **sources;
    size_t count, capacity;
};

/* False after an allocation failure. */
bool claims_add(struct tensor_claims *claims, const struct weight_source *source);
void claims_free(struct tensor_claims *claims);

/* Checks the claims on one tensor. Requires: at least one claim, each with the shape of `tensor` and without a fault.
 * False, naming rows or columns of the tensor, if some are unclaimed; `reader` names the reader that omits them
 * ("model_type 'phi3'"). */
bool claims_cover(const struct tensor_claims *claims, const struct tensor_view *tensor, const char *reader,
                  struct status *status);

#endif
