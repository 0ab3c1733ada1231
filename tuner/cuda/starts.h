/* SPDX-License-Identifier: Apache-2.0 */
/* From which forms of a plan the search over whole plans sets out. It changes one problem at a time, and what is best of one
 * depends on its neighbours: how much shared memory the kernel before it leaves, for one. So where it ends depends on where
 * it begins, and it begins several times. */
#ifndef TUNER_CUDA_STARTS_H
#define TUNER_CUDA_STARTS_H

#include <stdbool.h>
#include <stddef.h>

struct form_time {
    int variant;  /* of the plan, from 0 */
    bool uniform; /* all matmuls have the same tunables */
    double us;    /* INFINITY: it cannot run */
};
enum { MOST_STARTS = 4 };

/* The fastest form of each variant and uniformity, the fastest of all first, at most `most` of them (1 to MOST_STARTS):
 * their numbers in `starts`. Left out are forms that take more than a tenth longer than the fastest. Returns their
 * number; 0 where no form can run. Of equal times the first form. */
size_t choose_starts(const struct form_time *forms, size_t count, size_t most, size_t starts[MOST_STARTS]);

#endif
