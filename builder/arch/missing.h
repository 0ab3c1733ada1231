/* SPDX-License-Identifier: Apache-2.0 */
/* What models need that no family has, as far as a configuration says it, so that a refusal can name it. */
#ifndef BUILDER_ARCH_MISSING_H
#define BUILDER_ARCH_MISSING_H

#include <jansson.h>

/* What a model of this type, with these fields of its text part, needs and no block of the builder computes; NULL: not known.
 * *nearest: the model_type of the family that has most in common, NULL: no particular one. */
const char *missing_block(const char *model_type, const json_t *config, const char **nearest);

#endif
