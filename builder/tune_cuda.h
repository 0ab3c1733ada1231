/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning an engine on the GPU it is built for: every unique problem of all plans once, cache first, then a race of
 * tactics inside graphs over the engine's own weights. Private to build*.c. */
#ifndef BUILDER_TUNE_CUDA_H
#define BUILDER_TUNE_CUDA_H

#include "builder/build_state.h"

/* Puts the winning tactic into every launch of build->cuda.plans and fills build->tactics. With level TUNE_OFF, or
 * without weights on the device, nothing is measured: cached records where there are any, else the first candidate. */
bool tune_cuda(struct build *build, enum tune_level level, struct status *status);

/* What every key of a record ends with: a hash of the device code and the revision of how it is measured. */
enum { TUNE_CUDA_CODE_BYTES = 48 };
void tune_cuda_code(char text[TUNE_CUDA_CODE_BYTES]);
/* What a key of a record of whole plans begins with: the GPU; several: how many and how they exchange. */
enum { TUNE_CUDA_GPUS_BYTES = 128 };
void tune_cuda_gpus(const struct build *build, char text[TUNE_CUDA_GPUS_BYTES]);
/* A tactic as a record has it: the name of the first value is the kernel, the others are its tunables. Returns how many. */
int tune_cuda_describe(const struct device_tactic *tactic, struct tuning_value values[TUNING_MAX_VALUES]);
/* Names the tunables of a tactic, whatever the list that it stands in. Not negative. */
int64_t tune_cuda_tunables_name(const struct device_tactic *tactic);
/* Puts a measured record into the cache, if there is one. */
void tune_cuda_save(struct build *build, const struct tuning_record *record);
/* Whether a cached record answers a request of this level: a full one answers all, a quick one all but full. */
bool tune_cuda_good_enough(const struct tuning_record *record, enum tune_level level);

/* Prints the tactics of every problem in the order in which they are raced, with their launch geometry, and why a
 * kernel of the op takes no part. */
bool print_cuda_candidates(struct build *build, FILE *out, struct status *status);

#endif
