/* SPDX-License-Identifier: Apache-2.0 */
/* The plans of a build: how many rows those of each kind have. Private to build*.c. */
#ifndef BUILDER_BUILD_ROWS_H
#define BUILDER_BUILD_ROWS_H

#include "builder/build_options.h"

/* Those of one kind, rising. */
struct build_rows {
    uint32_t rows[BUILD_MAX_PLANS];
    int count;
};

/* By the options, or defaults. rows: [PLAN_KIND_END]. Requires: slots, max_context and recurrent_bytes of the
 * geometry are set. */
bool build_choose_rows(const struct build_options *options, const struct plan_geometry *geometry,
                       struct build_rows *rows, struct status *status);

#endif
