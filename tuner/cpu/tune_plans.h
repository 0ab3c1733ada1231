/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning a whole engine for the CPU: every unique matmul problem of all plans once, cache first, then the race. */
#ifndef TUNER_CPU_TUNE_PLANS_H
#define TUNER_CPU_TUNE_PLANS_H

#include "tuner/cpu/tune_matmul.h"
#include "tuner/progress.h"

/* Patches the tunables and tactic indices of all matmul launches. `weights` is the packed weight section, NULL when
 * nothing may be measured (then missing records get the defaults). `cache` receives what was measured, record by
 * record; that its file cannot be written is no failure. The machine's ceilings are measured when first needed. */
bool tune_plans(struct plan *plans, size_t plan_count, const uint8_t *weights, struct machine *machine,
                struct team *team, enum tune_level level, struct tuning_cache *cache, struct progress *progress,
                struct tactics *tactics, struct status *status);

#endif
