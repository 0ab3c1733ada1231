/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time in microseconds. */
#ifndef TUNER_CLOCK_H
#define TUNER_CLOCK_H

#include <time.h>

static inline double clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

#endif
