/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_bandwidth.h"

#include <stdlib.h>

#include "kernels/cpu/probe.h"
#include "formats/base/memory_limit.h"

enum { PASSES = 7, MOST_BYTES = 1 << 30, LEAST_BYTES = 64 << 20 };

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool bandwidth_measure(uint32_t threads, struct bandwidth *bandwidth, struct status *status)
{
    struct memory_limit memory;
    memory_limit_available("", &memory);
    uint64_t bytes = memory.bytes / 4 < MOST_BYTES ? memory.bytes / 4 : MOST_BYTES;
    if (bytes < LEAST_BYTES)
        return status_fail(status, STATUS_MACHINE, "read bandwidth: cannot allocate %d bytes; free memory",
                           LEAST_BYTES);
    struct team *team = team_create((int)threads, status);
    if (!team) return false;
    double rates[PASSES];
    bool ok = probe_read(team, cpu_isa_best(), bytes, PASSES, rates, status);
    if (ok) {
        qsort(rates, PASSES, sizeof *rates, compare_doubles);
        *bandwidth = (struct bandwidth){rates[PASSES - 1], rates[PASSES / 2], bytes, PASSES, team_size(team)};
    }
    team_destroy(team);
    return ok;
}
