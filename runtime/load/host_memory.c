/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/host_memory.h"

#include <inttypes.h>
#include <stddef.h>
#include <sys/mman.h>

bool host_memory_map(struct host_memory *memory, uint64_t bytes, const char *what, struct status *status)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return status_fail(status, STATUS_MACHINE, "%s: the system refuses %" PRIu64 " bytes of memory", what, bytes);
    memory->base = base;
    memory->bytes = bytes;
    return true;
}

void host_memory_use_large_pages(const struct host_memory *memory)
{
    (void)madvise(memory->base, memory->bytes, MADV_HUGEPAGE); /* advice only */
}

void host_memory_unmap(struct host_memory *memory)
{
    if (memory->base) munmap(memory->base, memory->bytes);
    *memory = (struct host_memory){0};
}
