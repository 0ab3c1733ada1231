/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries' part of tuning for a GPU: each problem that a library takes is raced again, its tactics against the
 * winner of our own, under a key that names the library's version. */
#ifndef TUNER_CUDA_LIBRARY_RACES_H
#define TUNER_CUDA_LIBRARY_RACES_H

#include "tuner/cuda/races.h"

/* Whether the cache says who wins, or no library takes the problem. */
bool library_race_answered(const struct tune_context *context, const struct tune_problem *problem);
/* Adds the kernels that the race needs to those that are to be compiled: our best, where the cache knows it (else
 * NULL), and what a library's tactic needs beside the library. False: out of memory. */
bool library_race_prepare(struct races *races, const struct tune_problem *problem, const struct device_tactic *known);
/* Microseconds that library_race_run takes for the problem, for estimates of the time left; 0 where it does not measure. */
uint64_t library_race_expected_us(const struct races *races, const struct tune_problem *problem);
/* Solves problem i from the cache or by a race, where a library takes it: fills its tuned_problem.library and a record.
 * Does nothing where it is not known and nothing may be measured. Requires: our own winners are known. */
bool library_race_run(struct races *races, size_t i, struct status *status);

#endif
