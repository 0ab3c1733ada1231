/* SPDX-License-Identifier: Apache-2.0 */
/* End-to-end tuning: whole plans. What wins alone need not win in the chain, where a launch begins while the one
 * before still runs and both share the multiprocessors. So decode plans are timed as a whole: plans of few rows in either
 * fusion, with each matmul's own winner or with one choice of tunables for all of them; then, from several of these
 * (starts.h), problem after problem, with each tactic of the problem's shortlist. At level full prefill plans, too. */
#ifndef TUNER_CUDA_END_TO_END_H
#define TUNER_CUDA_END_TO_END_H

#include "tuner/cuda/context.h"

/* Leaves one variant of each plan that is worth it: the fastest. The choice is a tuning record, so that the cache makes it the same
 * in the next build; where nothing may be measured and nothing is known the plan stays as it is. Requires: the problems are
 * tuned. */
bool tune_end_to_end(struct tune_context *context, struct status *status);

#endif
