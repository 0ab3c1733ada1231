/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning a whole engine: every unique matmul problem of all plans once, cache first, then the race. */
#ifndef BUILDER_TUNE_PLANS_H
#define BUILDER_TUNE_PLANS_H

#include "builder/progress.h"
#include "tuner/cpu/tune_matmul.h"

/* The records an engine carries, in order of first use; launches name them by index. */
struct tactics {
    struct tuning_record *records; /* owned */
    size_t count, measured, cached;
    size_t unsaved; /* measured, but the cache file would not take them: cache_status says why */
    struct status cache_status;
};

/* Patches the tunables and tactic indices of all matmul launches. `weights` is the packed weight section, NULL when
 * nothing may be measured (then missing records get the defaults). `cache` receives what was measured, record by
 * record; that its file cannot be written is no failure. The machine's ceilings are measured when first needed. */
bool tune_plans(struct plan *plans, size_t plan_count, const uint8_t *weights, struct machine *machine,
                struct team *team, enum tune_level level, struct tuning_cache *cache, struct progress *progress,
                struct tactics *tactics, struct status *status);

/* All records as lines, malloc'd. */
bool tactics_format(const struct tactics *tactics, char **text, size_t *size, struct status *status);
void tactics_free(struct tactics *tactics);

#endif
