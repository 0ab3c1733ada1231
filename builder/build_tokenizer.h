/* SPDX-License-Identifier: Apache-2.0 */
/* The stage of a build that reads the checkpoint's tokenizer. Private to build.c. */
#ifndef BUILDER_BUILD_TOKENIZER_H
#define BUILDER_BUILD_TOKENIZER_H

#include "builder/build_state.h"

/* Fills the tokenizer's image and the chat templates, or warns that the checkpoint has no tokenizer. Requires: the
 * manifest's geometry is set. */
bool build_import_tokenizer(struct build *build, struct status *status);

#endif
