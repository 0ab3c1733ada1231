/* SPDX-License-Identifier: Apache-2.0 */
/* Zeroed private memory from the system, for large buffers; pages are taken when they are touched. */
#ifndef RUNTIME_LOAD_HOST_MEMORY_H
#define RUNTIME_LOAD_HOST_MEMORY_H

#include <stdint.h>

#include "formats/base/status.h"
#include "runtime/eng.h"

/* The caller's functions, as in struct eng_open_options; both NULL: the system. */
struct host_memory_hooks {
    eng_memory_take *take;
    eng_memory_give *give;
    void *context;
};

struct host_memory {
    void *base; /* page aligned; NULL: none */
    uint64_t bytes;
    struct host_memory_hooks hooks; /* that it came from */
};

/* `what` is for messages. hooks: NULL, or where it is taken. */
bool host_memory_map(struct host_memory *memory, uint64_t bytes, const char *what,
                     const struct host_memory_hooks *hooks, struct status *status);
/* Asks for large pages, where the system has them. Requires: the memory has not been touched. */
void host_memory_use_large_pages(const struct host_memory *memory);
void host_memory_unmap(struct host_memory *memory);

#endif
