/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning of an engine on the GPU it is built for, in stages: each unique problem of all plans once, from the cache or
 * by a race of tactics inside graphs over the engine's own weights; the libraries' tactics against the winners; whole
 * plans, end to end; plans that call libraries against those. */
#ifndef TUNER_CUDA_TUNE_H
#define TUNER_CUDA_TUNE_H

#include "tuner/cuda/context.h"
#include "tuner/machine.h"

/* Reduces context->plans to the plans of the engine and fills their tactics. If nothing may be measured: cached
 * records, else the first candidate. */
bool tune_cuda(struct tune_context *context, struct status *status);

/* Prints the tactics of every problem in the order in which they are raced, with their launch geometry, and the reason
 * for each kernel of the op that is not raced. */
bool tune_print_candidates(struct tune_context *context, FILE *out, struct status *status);

/* A kernel_set_progress that reports to the stage of a struct progress. */
void tune_show_compiling(void *progress, uint64_t done, uint64_t total);

#endif
