/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the libraries that an engine for one GPU calls. Every library that some plan calls is opened at every start
 * of the engine, before the first token, so a small gain of one plan does not justify it. */
#ifndef TUNER_CUDA_LIBRARY_WORTH_H
#define TUNER_CUDA_LIBRARY_WORTH_H

#include <stddef.h>

#include "formats/engine/plan.h"

struct library_gain {
    unsigned libraries; /* libraries that the plan calls: bit 1 << enum plan_library for each; 0: none */
    double us;          /* time that a replay saves with them */
};

/* The set of libraries with the largest net saving: the time that their plans save over the replays given in
 * library_worth.c, less the time of opening them; bits as in struct library_gain. 0: no library is worth its opening. A
 * tie goes to the set with the lower number. */
unsigned library_worth(const struct library_gain *gains, size_t count);

#endif
