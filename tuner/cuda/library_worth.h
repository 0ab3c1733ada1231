/* SPDX-License-Identifier: Apache-2.0 */
/* Which libraries an engine for one GPU calls. Every library that a plan calls is opened at every start of the engine,
 * before the first token; a plan that gains little by it must not cost every user that time. */
#ifndef TUNER_CUDA_LIBRARY_WORTH_H
#define TUNER_CUDA_LIBRARY_WORTH_H

#include <stddef.h>

#include "formats/engine/plan.h"

struct library_gain {
    unsigned libraries; /* that the plan calls: bit 1 << enum plan_library for each; 0: none */
    double us;          /* that a replay of the plan saves by them */
};

/* The set of libraries whose plans save the most time, less the time that opening them takes, over the replays of
 * library_worth.c; bits as in struct library_gain. 0: none is worth its opening. Of sets that save the same, the one with
 * the lower number. */
unsigned library_worth(const struct library_gain *gains, size_t count);

#endif
