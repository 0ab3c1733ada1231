/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of an open engine, counted against the caller's limit. */
#include <inttypes.h>
#include <stdlib.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_verify.h"

void *engine_take(struct engine *engine, uint64_t count, uint64_t size, struct status *status)
{
    uint64_t bytes, total;
    if (!checked_mul(count, size, &bytes)) bytes = UINT64_MAX;
    if (!checked_add(engine->host_bytes, bytes, &total) || total > engine->host_limit) {
        status_fail(status, STATUS_MACHINE,
                    "needs %" PRIu64 " bytes of memory; opening this file may take %" PRIu64
                    " in all and has taken %" PRIu64 "; for a trusted file, raise the limit (max_host_bytes)",
                    bytes, engine->host_limit, engine->host_bytes);
        return NULL;
    }
    void *memory = calloc((size_t)count, (size_t)size);
    if (!memory) {
        status_fail(status, STATUS_MACHINE, "out of memory for %" PRIu64 " bytes", bytes);
        return NULL;
    }
    engine->host_bytes = total;
    return memory;
}

void engine_give_back(struct engine *engine, void *memory, uint64_t bytes)
{
    if (!memory) return;
    free(memory);
    engine->host_bytes -= bytes;
}
