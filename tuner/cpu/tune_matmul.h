/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning one matmul problem on the CPU: candidates, cost model, race, record. */
#ifndef TUNER_CPU_TUNE_MATMUL_H
#define TUNER_CPU_TUNE_MATMUL_H

#include <stdio.h>

#include "kernels/matmul/matmul.h"
#include "tuner/machine.h"
#include "tuner/records.h"

/* One problem: parameters of a launch, and the places of matrices of exactly this shape. Measurements use them in turn,
 * as a step does, so that caches hold no more than they would in a step. */
struct matmul_problem {
    const int64_t *params;      /* [MATMUL_PARAMS]; the tunables in it are ignored */
    const void *const *weights; /* [site_count] packed matrices, each as the launch's operand */
    const void *const *biases;  /* [site_count] if MATMUL_HAS_BIAS */
    int site_count;
};

/* Makes the record key: everything that the timing depends on. */
void matmul_tuning_key(const int64_t *params, const struct machine *machine, char key[TUNING_KEY_BYTES]);

/* Predicted time of legal tunables, for pruning and for builds without measurements. Counts the bytes that each level
 * of blocking makes the matmul read again, and the share of the multiply-add rate that a register tile can use. */
double matmul_model_us(const int64_t *params, const struct machine *machine);

/* Races the candidates and fills the record (key, values, timing). Level TUNE_OFF measures nothing: the record holds
 * the default tunables and level "model". Activations are random; outputs go to scratch. */
bool tune_matmul(const struct matmul_problem *problem, const struct machine *machine, struct team *team,
                 enum tune_level level, struct tuning_record *record, struct status *status);

/* Estimated microseconds of tune_matmul at this level, for the estimate of the time left; 0 if it measures nothing.
 * Requires: the machine's ceilings are measured. */
double tune_matmul_expected_us(const struct matmul_problem *problem, const struct machine *machine,
                               enum tune_level level);

/* Copies the record's values into params[MATMUL_FIRST_TUNABLE...]. False if the record does not fit the op (a name is
 * missing, a value is illegal): the problem must then be tuned again. */
bool matmul_apply_record(const struct tuning_record *record, int64_t *params);

/* Prints every candidate of the full space with "legal" and its predicted time, or the reason why it is not legal. */
void matmul_print_space(const int64_t *params, const struct machine *machine, FILE *out);

#endif
