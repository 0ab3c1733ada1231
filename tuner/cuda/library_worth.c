/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/library_worth.h"

/* Opening cuBLASLt on an H200 took 0.22 to 0.25 s: the first token of the shape of Llama-3.2-1B came after 0.48 to 0.55
 * s with it and after 0.26 to 0.30 s without. The upload of a larger model hides part of this. */
static const double open_us = 200e3;
/* Replays of each plan after which a library must have recovered its opening time: ten seconds of steps of 2 ms. */
static const double replays = 5000;

static double saved_us(const struct library_gain *gains, size_t count, unsigned set)
{
    double us = 0;
    for (size_t i = 0; i < count; i++)
        if (gains[i].libraries && !(gains[i].libraries & ~set)) us += replays * gains[i].us;
    for (unsigned library = 1; library < LIBRARY_COUNT; library++)
        if (set & 1u << library) us -= open_us;
    return us;
}

unsigned library_worth(const struct library_gain *gains, size_t count)
{
    unsigned best = 0;
    double most = 0;
    for (unsigned set = 1; set < 1u << LIBRARY_COUNT; set++) {
        double us = saved_us(gains, count, set);
        if (us > most) {
            best = set;
            most = us;
        }
    }
    return best;
}
