/* SPDX-License-Identifier: Apache-2.0 */
/* Memory read bandwidth of all threads: the limit of a decode step, which reads every weight once. */
#ifndef RUNTIME_CLI_CLI_BANDWIDTH_H
#define RUNTIME_CLI_CLI_BANDWIDTH_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"

struct bandwidth {
    double best_gb_per_second, median_gb_per_second;
    uint64_t bytes; /* read in one pass */
    int passes;
    int threads;
};

/* threads 0: one per processor. Allocates a buffer far larger than the caches during the call. */
bool bandwidth_measure(uint32_t threads, struct bandwidth *bandwidth, struct status *status);

#endif
