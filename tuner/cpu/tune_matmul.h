/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning one matmul problem on the CPU: candidates, cost model, race, record. */
#ifndef TUNER_CPU_TUNE_MATMUL_H
#define TUNER_CPU_TUNE_MATMUL_H

#include <stdio.h>

#include "kernels/matmul/matmul.h"
#include "tuner/machine.h"
#include "tuner/records.h"

/* One problem: parameters of a launch, and where matrices of exactly this shape lie, so that measurements walk
 * through several of them as a step does and no cache keeps what a step would not find there. */
struct matmul_problem {
    const int64_t *params;      /* [MATMUL_PARAMS]; the tunables in it are ignored */
    const void *const *weights; /* [site_count] packed matrices, each as the launch's operand */
    const void *const *biases;  /* [site_count] if MATMUL_HAS_BIAS */
    int site_count;
};

/* The record key: everything that the timing depends on. */
void matmul_tuning_key(const int64_t *params, const struct machine *machine, char key[TUNING_KEY_BYTES]);

/* Predicted time of legal tunables, for pruning and where nothing is measured. Counts the bytes that each level of
 * blocking makes the matmul read again and how much of the multiply-add rate a register tile can use. */
double matmul_model_us(const int64_t *params, const struct machine *machine);

/* Races the candidates and fills the record (key, values, timing). Level TUNE_OFF measures nothing: the record holds
 * the default tunables and level "model". Activations are random; outputs go to scratch. */
bool tune_matmul(const struct matmul_problem *problem, const struct machine *machine, struct team *team,
                 enum tune_level level, struct tuning_record *record, struct status *status);

/* Microseconds that tune_matmul takes at this level, for estimates of the time left; 0 where it measures nothing. Requires: the
 * machine's ceilings are measured. */
double tune_matmul_expected_us(const struct matmul_problem *problem, const struct machine *machine,
                               enum tune_level level);

/* Copies the record's values into params[MATMUL_FIRST_TUNABLE...]. False if the record does not fit the op (a name is
 * missing, a value is illegal): then the problem must be tuned anew. */
bool matmul_apply_record(const struct tuning_record *record, int64_t *params);

/* Prints every candidate of the full space with "legal" and its predicted time, or the reason why it is not legal. */
void matmul_print_space(const int64_t *params, const struct machine *machine, FILE *out);

#endif
