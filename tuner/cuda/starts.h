/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the forms of a plan at which the search over whole plans starts. The search changes one problem at a time,
 * and the best tactic of one depends on its neighbours, for example on the shared memory that the kernel before it
 * leaves free. The result therefore depends on the start, so the search runs from several. */
#ifndef TUNER_CUDA_STARTS_H
#define TUNER_CUDA_STARTS_H

#include <stdbool.h>
#include <stddef.h>

struct form_time {
    int variant;  /* variant of the plan, from 0 */
    bool uniform; /* all matmuls have the same tunables */
    double us;    /* INFINITY: it cannot run */
};
enum { MOST_STARTS = 4 };

/* Writes the numbers of the fastest form of each variant and uniformity to `starts`, the fastest of all first, at most
 * `most` of them (1 to MOST_STARTS). Omits forms that take more than a tenth longer than the fastest. A tie goes to the
 * first form. Returns their number; 0 if no form can run. */
size_t choose_starts(const struct form_time *forms, size_t count, size_t most, size_t starts[MOST_STARTS]);

#endif
