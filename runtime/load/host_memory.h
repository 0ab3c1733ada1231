/* SPDX-License-Identifier: Apache-2.0 */
/* Zeroed private memory from the system, for large buffers; pages are taken when they are touched. */
#ifndef RUNTIME_LOAD_HOST_MEMORY_H
#define RUNTIME_LOAD_HOST_MEMORY_H

#include <stdint.h>

#include "formats/base/status.h"

struct host_memory {
    void *base; /* page aligned; NULL: none */
    uint64_t bytes;
};

/* `what` is for messages. */
bool host_memory_map(struct host_memory *memory, uint64_t bytes, const char *what, struct status *status);
/* Asks for large pages, where the system has them. Requires: the memory has not been touched. */
void host_memory_use_large_pages(const struct host_memory *memory);
void host_memory_unmap(struct host_memory *memory);

#endif
