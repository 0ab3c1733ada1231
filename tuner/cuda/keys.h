/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of tuning records for GPUs, and the encoding of tactics in records. */
#ifndef TUNER_CUDA_KEYS_H
#define TUNER_CUDA_KEYS_H

#include "kernels/cuda/plan/device_plan.h"
#include "tuner/cuda/gpus.h"
#include "tuner/records.h"

/* The parts that all keys of a build share. */
struct key_parts {
    char gpu[128], gpus[160]; /* its name; with several, also their number and how they exchange data */
    char code[48];            /* a hash of the device code and the revision of how it is measured */
};
void key_parts_describe(struct key_parts *parts, const struct gpus *gpus);

/* Every function below fails if the key is too long. Key of a launch's problem: GPU, op, the parameters in the order of
 * its contract, code. */
bool key_of_problem(const struct key_parts *parts, const struct device_launch *launch, char key[TUNING_KEY_BYTES],
                    struct status *status);
/* Key of a race of a library's tactics for that problem. */
bool key_of_library(const char *problem, enum plan_library library, uint32_t version, char key[TUNING_KEY_BYTES],
                    struct status *status);
/* Key of the measurement of a tactic that did not win. */
bool key_of_tactic(const char *problem, const struct device_tactic *tactic, char key[TUNING_KEY_BYTES]);
/* Key of a whole plan: GPUs, rows, `kind`, a hash of everything else that its time depends on, code. */
bool key_of_plan(const struct key_parts *parts, const struct plan_header *header, const char *kind, uint64_t hash,
                 char key[TUNING_KEY_BYTES], struct status *status);

/* Encodes a tactic for a record: the name of the first value is the kernel, the others are its tunables. Returns the
 * number of values. */
int describe_tactic(const struct device_tactic *tactic, struct tuning_value values[TUNING_MAX_VALUES]);
/* Whether the record describes this tactic. */
bool record_names_tactic(const struct tuning_record *record, const struct device_tactic *tactic);
/* Identifies the tunables of a tactic, independent of the list that contains it. Not negative. */
int64_t tunables_name(const struct device_tactic *tactic);

#endif
