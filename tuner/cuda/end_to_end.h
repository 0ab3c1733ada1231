/* SPDX-License-Identifier: Apache-2.0 */
/* End-to-end tuning of whole plans. The fastest tactic in a race need not be the fastest in a plan, where a launch
 * starts while its predecessor still runs and both share the multiprocessors. Decode plans are therefore timed as a
 * whole. Plans of few rows are timed with either fusion, with each matmul's race winner or one choice of tunables for
 * all matmuls. From several of these forms (starts.h) a search then tries the tactics of each problem's shortlist, one
 * problem at a time. Level full also tunes prefill plans. */
#ifndef TUNER_CUDA_END_TO_END_H
#define TUNER_CUDA_END_TO_END_H

#include "tuner/cuda/context.h"

/* Reduces each plan worth measuring to its fastest variant. The choice is stored as a tuning record, so that the next
 * build with the same cache makes the same choice. A plan without a record stays as it is if nothing may be measured.
 * Requires: the problems are tuned. */
bool tune_end_to_end(struct tune_context *context, struct status *status);

#endif
