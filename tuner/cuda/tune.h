/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning an engine on the GPU it is built for, stage by stage: every unique problem of all plans once, cache first, then a race
 * of tactics inside graphs over the engine's own weights; the libraries' tactics against the winners; whole plans, end to end;
 * plans that call libraries against those. */
#ifndef TUNER_CUDA_TUNE_H
#define TUNER_CUDA_TUNE_H

#include "tuner/cuda/context.h"
#include "tuner/machine.h"

/* Leaves of context->plans what is to be in the engine and fills its tactics. Where nothing may be measured: cached records, else
 * the first candidate. */
bool tune_cuda(struct tune_context *context, struct status *status);

/* Prints the tactics of every problem in the order in which they are raced, with their launch geometry, and why a
 * kernel of the op takes no part. */
bool tune_print_candidates(struct tune_context *context, FILE *out, struct status *status);

/* A kernel_set_progress: of the stage of a struct progress. */
void tune_show_compiling(void *progress, uint64_t done, uint64_t total);

#endif
