/* SPDX-License-Identifier: Apache-2.0 */
/* The stage of a build that checks the checkpoint's chat templates. Private to build*.c. */
#ifndef BUILDER_BUILD_TEMPLATES_H
#define BUILDER_BUILD_TEMPLATES_H

#include "builder/build_state.h"
#include "formats/tokenizer/tokenizer.h"

/* Fills the build's chat templates; a template that cannot be used is a warning. `tokenizer`: NULL, then no
 * token of the templates is known. Requires: the manifest's end tokens are set. */
bool build_import_templates(struct build *build, const struct tokenizer *tokenizer, struct status *status);

#endif
