/* SPDX-License-Identifier: Apache-2.0 */
/* One build from checkpoint to engine file: the stages in order. */
#ifndef BUILDER_BUILD_H
#define BUILDER_BUILD_H

#include "builder/build_options.h"

#define BUILDER_VERSION "0.1.0"

/* On failure options->output is unchanged. */
bool build_engine(const struct build_options *options, struct status *status);

#endif
