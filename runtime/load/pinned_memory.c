/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/pinned_memory.h"

#include <inttypes.h>

#include "formats/base/memory_limit.h"

/* A system may refuse to pin it although the driver can still allocate some. */
static bool pin_large_pages(struct pinned_memory *memory, const struct cuda_driver *driver, uint64_t bytes)
{
    struct status ignored = {0};
    if (!host_memory_map(&memory->registered, bytes, "pinned memory", &ignored)) return false;
    host_memory_use_large_pages(&memory->registered);
    memory->base = memory->registered.base;
    if (driver->MemHostRegister(memory->base, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CU_SUCCESS) return true;
    host_memory_unmap(&memory->registered);
    memory->base = NULL;
    return false;
}

bool pinned_memory_open(struct pinned_memory *memory, const struct cuda_driver *driver, uint64_t bytes,
                        const char *what, struct status *status)
{
    void *base = NULL;
    *memory = (struct pinned_memory){0};
    if (!memory_limit_check(what, bytes, bytes, "free memory or use fewer threads", status)) return false;
    if (pin_large_pages(memory, driver, bytes)) return true;
    if (!cuda_ok(driver, driver->MemHostAlloc(&base, bytes, CU_MEMHOSTALLOC_PORTABLE), status,
                 "%s: %" PRIu64 " bytes of pinned memory", what, bytes))
        return false;
    memory->base = base;
    return true;
}

void pinned_memory_close(struct pinned_memory *memory, const struct cuda_driver *driver)
{
    if (memory->registered.base) {
        driver->MemHostUnregister(memory->base);
        host_memory_unmap(&memory->registered);
    } else if (memory->base) {
        driver->MemFreeHost(memory->base);
    }
    memory->base = NULL;
}
