/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning of a whole engine for the CPU: each unique matmul problem of all plans once, from the cache or by a race. */
#ifndef TUNER_CPU_TUNE_PLANS_H
#define TUNER_CPU_TUNE_PLANS_H

#include "tuner/cpu/tune_matmul.h"
#include "tuner/progress.h"

/* Patches the tunables and tactic indices of all matmul launches. `weights` is the packed weight section, NULL if
 * nothing may be measured (missing records then get the defaults). `cache` receives each measured record; a failure to
 * write its file is no error. Measures the machine's ceilings when they are first needed. */
bool tune_plans(struct plan *plans, size_t plan_count, const uint8_t *weights, struct machine *machine,
                struct team *team, enum tune_level level, struct tuning_cache *cache, struct progress *progress,
                struct tactics *tactics, struct status *status);

#endif
