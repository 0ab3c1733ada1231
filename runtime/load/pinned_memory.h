/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that GPUs access directly, for staging during a load. */
#ifndef RUNTIME_LOAD_PINNED_MEMORY_H
#define RUNTIME_LOAD_PINNED_MEMORY_H

#include "kernels/cuda/driver.h"
#include "runtime/load/host_memory.h"

struct pinned_memory {
    uint8_t *base;                 /* page aligned; NULL: none */
    struct host_memory registered; /* or allocated by the driver */
};

/* `what` is for messages. Uses large pages where available: four GPUs take 7 ms to pin 64 MiB of them, 35 ms for memory
 * of the driver. Requires: a device's context is current. All devices may use the memory. */
bool pinned_memory_open(struct pinned_memory *memory, const struct cuda_driver *driver, uint64_t bytes,
                        const char *what, struct status *status);
/* Requires: the same context is current, and no copy uses the memory. */
void pinned_memory_close(struct pinned_memory *memory, const struct cuda_driver *driver);

#endif
