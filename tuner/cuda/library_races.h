/* SPDX-License-Identifier: Apache-2.0 */
/* Library races: each problem that a library can compute is raced again, the library's tactics against the winner of
 * our own kernels, under a key that contains the library's version. */
#ifndef TUNER_CUDA_LIBRARY_RACES_H
#define TUNER_CUDA_LIBRARY_RACES_H

#include "tuner/cuda/races.h"

/* Whether the cache has the outcome, or no library computes the problem. */
bool library_race_answered(const struct tune_context *context, const struct tune_problem *problem);
/* Adds the kernels that the race needs to those to be compiled: our best, if the cache has it (else NULL), and the
 * companions of the library's tactics. False: out of memory. */
bool library_race_prepare(struct races *races, const struct tune_problem *problem, const struct device_tactic *known);
/* Estimated microseconds of library_race_run for the problem, for the estimate of the time left; 0 if it measures
 * nothing. */
uint64_t library_race_expected_us(const struct races *races, const struct tune_problem *problem);
/* Solves problem i from the cache or by a race, if a library computes it: fills its tuned_problem.library and a record.
 * Does nothing if the cache has no answer and nothing may be measured. Requires: the winners of our own kernels are
 * known. */
bool library_race_run(struct races *races, size_t i, struct status *status);

#endif
