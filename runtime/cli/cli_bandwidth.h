/* SPDX-License-Identifier: Apache-2.0 */
/* How fast all threads together read memory: what a decode step that reads every weight once is measured against. */
#ifndef RUNTIME_CLI_CLI_BANDWIDTH_H
#define RUNTIME_CLI_CLI_BANDWIDTH_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"

struct bandwidth {
    double best_gb_per_second, median_gb_per_second;
    uint64_t bytes; /* read by one pass */
    int passes;
    int threads;
};

/* threads 0: one per processor. Takes a buffer far larger than the caches for the time of the call. */
bool bandwidth_measure(uint32_t threads, struct bandwidth *bandwidth, struct status *status);

#endif
