/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries' part of tuning for a GPU: each problem that a library takes is raced again, its tactics against the
 * winner of our own, under a key that names the library's version. Private to tune_cuda.c. */
#ifndef BUILDER_TUNE_LIBRARIES_CUDA_H
#define BUILDER_TUNE_LIBRARIES_CUDA_H

#include "builder/tune_cuda_internal.h"

/* Whether the cache says who wins, or no library takes the problem. */
bool tune_libraries_answered(const struct tuning *tuning, const struct tune_problem *problem, enum tune_level level);
/* Adds the kernels that the race needs to those that are to be compiled: our best, where the cache knows it (else
 * NULL), and what a library's tactic needs beside the library. False: out of memory. */
bool tune_libraries_prepare(struct tuning *tuning, const struct tune_problem *problem,
                            const struct device_tactic *known);
/* Microseconds that tune_libraries_solve takes for the problem, for estimates of the time left; 0 where it does not measure. */
uint64_t tune_libraries_expected_us(const struct tuning *tuning, const struct tune_problem *problem,
                                    enum tune_level level);
/* Solves problem i from the cache or by a race, where a library takes it: fills its tuned_problem.library and a record.
 * Does nothing where it is not known and nothing may be measured. After our own winners are known. */
bool tune_libraries_solve(struct tuning *tuning, size_t i, enum tune_level level, struct status *status);

#endif
