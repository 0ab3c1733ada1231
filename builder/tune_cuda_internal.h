/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the tuner for GPUs share: tune_cuda.c, tune_races_cuda.c, tune_libraries_cuda.c. */
#ifndef BUILDER_TUNE_CUDA_INTERNAL_H
#define BUILDER_TUNE_CUDA_INTERNAL_H

#include "builder/bench_cuda.h"
#include "builder/tune_cuda.h"

struct tune_problem {
    char key[TUNING_KEY_BYTES];
    struct bench_problem bench; /* of the first plan that has it; tactic_count: those that are raced */
    struct device_tactic tactics[DEVICE_MOST_TACTICS];
    int tactic_count;
};

struct tuning {
    struct build *build;
    struct tune_problem **problems; /* owned, each */
    size_t count, capacity;
    char code[TUNE_CUDA_CODE_BYTES];
    struct bench_cuda benches[PLAN_MAX_RANKS]; /* one on each GPU: different problems race at once */
    pthread_mutex_t lock;                      /* of the build's kernels, records, cache and progress meanwhile */
    struct team *team;                         /* several GPUs, when measuring: a member for each */
    bool measuring;
};

/* The record of a tactic that ran in no race. */
void tune_cuda_describe_alone(struct tuning_record *record, const char *key, const struct device_tactic *tactic,
                              const struct tuning *tuning);
/* What a race of these tactics showed. runner_up: its number, -1 if there is none. */
void tune_cuda_describe_race(struct tuning_record *record, const char *key, const struct device_tactic *tactics,
                             int count, const struct race_result *result, int runner_up, enum tune_level level,
                             const struct tuning *tuning);
/* The key of what was measured of a tactic that did not win. */
bool tune_cuda_entry_key(const struct tune_problem *problem, const struct device_tactic *tactic,
                         char key[TUNING_KEY_BYTES]);

/* tune_races_cuda.c. Benches on all GPUs; tuning->measuring says whether there are any to close. */
bool tune_races_open(struct tuning *tuning, struct status *status);
void tune_races_close(struct tuning *tuning);
/* Brings what build->cuda.kernels holds to all GPUs. */
bool tune_races_load(struct tuning *tuning, struct status *status);
/* Races the problems that are not answered, each GPU taking the next one that is left: their records, what the build knows
 * of them, the cache. */
bool tune_races_run(struct tuning *tuning, const bool *answered, enum tune_level level, struct status *status);

#endif
