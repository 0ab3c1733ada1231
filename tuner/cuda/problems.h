/* SPDX-License-Identifier: Apache-2.0 */
/* The unique problems of all plans: each is tuned once. A problem has its launches and the tactics that can compute
 * it. */
#ifndef TUNER_CUDA_PROBLEMS_H
#define TUNER_CUDA_PROBLEMS_H

#include "tuner/cuda/bench.h"
#include "tuner/cuda/context.h"

struct tune_problem {
    char key[TUNING_KEY_BYTES];
    struct bench_problem bench; /* sites of the first plan that has it; tactic_count: tactics that are raced */
    struct device_tactic tactics[DEVICE_MOST_TACTICS];
    int tactic_count;
};
struct tune_problems {
    struct tune_problem **items; /* owned, each */
    size_t count, capacity;
};

/* Numbers the problems of the launches of all variants; at most `most` tactics of each are raced. tune_problems_free
 * must be called even after a failure. */
bool tune_problems_collect(struct tune_problems *problems, const struct tune_context *context, int most,
                           struct status *status);
void tune_problems_free(struct tune_problems *problems);

/* The tactic that a record names, if the problem still has it. */
const struct device_tactic *tune_problem_recorded(const struct tune_problem *problem,
                                                  const struct tuning_record *record);

/* Record of a tactic that was not raced. The roofline comes from the ceilings of `bench`; NULL: none. */
void describe_alone(struct tuning_record *record, const char *key, const struct device_tactic *tactic,
                    const struct cuda_bench *bench);
/* Record of a race of these tactics. runner_up: its number, -1 if there is none. */
void describe_race(struct tuning_record *record, const char *key, const struct device_tactic *tactics, int count,
                   const struct race_result *result, int runner_up, enum tune_level level,
                   const struct cuda_bench *bench);

#endif
