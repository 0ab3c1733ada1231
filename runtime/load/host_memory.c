/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/host_memory.h"

#include <inttypes.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

/* Kernels read whole vectors, and advice is given for whole pages. */
static bool check_hook(const struct host_memory_hooks *hooks, void *base, uint64_t bytes, const char *what,
                       struct status *status)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!base)
        return status_fail(status, STATUS_MACHINE, "%s: memory_take has no %" PRIu64 " bytes of memory", what, bytes);
    if ((uintptr_t)base % page == 0) return true;
    hooks->give(hooks->context, base, bytes);
    return status_fail(status, STATUS_USAGE,
                       "%s: memory_take returned %p, expected an address that is a multiple of %u", what, base,
                       (unsigned)page);
}

bool host_memory_map(struct host_memory *memory, uint64_t bytes, const char *what,
                     const struct host_memory_hooks *hooks, struct status *status)
{
    void *base;
    const bool is_hooked = hooks && hooks->take;
    if (is_hooked) {
        base = hooks->take(hooks->context, bytes);
        if (!check_hook(hooks, base, bytes, what, status)) return false;
    } else {
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED)
            return status_fail(status, STATUS_MACHINE, "%s: the system refuses %" PRIu64 " bytes of memory", what,
                               bytes);
    }
    *memory = (struct host_memory){.base = base, .bytes = bytes};
    if (is_hooked) memory->hooks = *hooks;
    return true;
}

void host_memory_use_large_pages(const struct host_memory *memory)
{
    (void)madvise(memory->base, memory->bytes, MADV_HUGEPAGE); /* advice only */
}

void host_memory_unmap(struct host_memory *memory)
{
    if (memory->base && memory->hooks.give)
        memory->hooks.give(memory->hooks.context, memory->base, memory->bytes);
    else if (memory->base)
        munmap(memory->base, memory->bytes);
    *memory = (struct host_memory){0};
}
