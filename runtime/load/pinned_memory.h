/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host that GPUs copy from and to by themselves, for as long as it takes to load something. */
#ifndef RUNTIME_LOAD_PINNED_MEMORY_H
#define RUNTIME_LOAD_PINNED_MEMORY_H

#include "kernels/cuda/driver.h"
#include "runtime/load/host_memory.h"

struct pinned_memory {
    uint8_t *base;                 /* page aligned; NULL: none */
    struct host_memory registered; /* or the driver's own */
};

/* In a device's context; all devices may use it. `what` is for messages. Of large pages where the system has some: pinning
 * 64 MiB of them takes four GPUs 7 ms, where the driver's own take 35. */
bool pinned_memory_open(struct pinned_memory *memory, const struct cuda_driver *driver, uint64_t bytes,
                        const char *what, struct status *status);
/* In the same context. Nothing copies from it or to it any more. */
void pinned_memory_close(struct pinned_memory *memory, const struct cuda_driver *driver);

#endif
