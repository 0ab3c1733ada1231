/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/gpu_record.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct gpu_record records[] = {
    /* Values that the driver (580.159.04) reports for an H200 SXM. */
    {
        .name = "h200",
        .facts = {.name = "NVIDIA H200",
                  .capability = 90,
                  .multiprocessors = 132,
                  .shared_per_sm = 233472,
                  .shared_per_block = 232448,
                  .l2_bytes = 62914560,
                  .maps_memory = 1,
                  .memory_bytes = UINT64_C(150109880320)},
        .clocks = {.memory_khz = 3201000, .bus_bits = 6016, .clock_khz = 1980000},
    },
};

const struct gpu_record *gpu_record_find(const char *name, struct status *status)
{
    char names[128] = "";
    if (!name) return &records[0];
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        if (strcasecmp(records[i].name, name) == 0) return &records[i];
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", records[i].name);
    }
    status_fail(status, STATUS_USAGE, "--gpu: expected one of %s; found '%s'", names, name);
    return NULL;
}
