/* SPDX-License-Identifier: Apache-2.0 */
/* Zeroed memory straight from the system: large, private, taken as it is touched. */
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
/* Before it is touched: where the system has large pages, it takes them. */
void host_memory_use_large_pages(const struct host_memory *memory);
void host_memory_unmap(struct host_memory *memory);

#endif
