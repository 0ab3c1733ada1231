/* SPDX-License-Identifier: Apache-2.0 */
/* Tactics of two launches that follow each other, of which the second reads routes early (matmul.h, EARLY_ROUTES): its blocks begin
 * while the first runs, if a multiprocessor has room for a block of both. Each alone is fastest with most of the shared memory, so that
 * a search that changes one of the two at a time does not come to a pair that fits. */
#ifndef TUNER_CUDA_PAIRS_H
#define TUNER_CUDA_PAIRS_H

#include "tuner/cuda/context.h"

/* Whether a launch of this problem may be the first, the second of such a pair. */
bool begins_pair(enum plan_op op, const int64_t *params);
bool ends_pair(enum plan_op op, const int64_t *params);

/* Whether a multiprocessor that has a block of the tactic has room for the largest one that starts beside it
 * (matmul_device_second_shared). */
bool leaves_room(const struct device_tactic *tactic, const struct device_facts *gpu);

/* Places in the shortlists of two problems. */
struct tactic_pair {
    int first, second;
};
enum { MOST_PAIRS = SHORTLIST };

/* The pairs that fit on a multiprocessor together, at most MOST_PAIRS; those whose sum of race times is least, in ascending order.
 * Returns their number. */
int choose_pairs(const struct tuned_problem *first, const struct tuned_problem *second, const struct device_facts *gpu,
                 struct tactic_pair pairs[MOST_PAIRS]);

#endif
