/* SPDX-License-Identifier: Apache-2.0 */
/* The library calls section of device targets, written and checked. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_verify.h"

bool engine_writer_calls(struct engine_writer *writer, const struct engine_call *calls, size_t count,
                         struct status *status)
{
    uint64_t head = sizeof(struct engine_calls_header) + count * sizeof(struct engine_call_entry), total, at;
    if (count == 0) return true;
    if (count > ENGINE_MAX_KERNELS)
        return status_fail(status, STATUS_INTERNAL, "engine writer: %zu library calls, expected at most %d", count,
                           ENGINE_MAX_KERNELS);
    bool fits = checked_align(head, ENGINE_CUBIN_ALIGNMENT, &total);
    at = total;
    for (size_t i = 0; fits && i < count; i++)
        fits = checked_add(total, calls[i].bytes, &total) && checked_align(total, ENGINE_CUBIN_ALIGNMENT, &total);
    if (!fits) return status_fail(status, STATUS_BAD_INPUT, "engine: the library calls are too large");
    uint8_t *bytes = calloc(1, total);
    if (!bytes) return status_fail(status, STATUS_MACHINE, "out of memory");
    const struct engine_calls_header header = {.call_count = (uint32_t)count};
    memcpy(bytes, &header, sizeof header);
    for (size_t i = 0; i < count; i++) {
        const struct engine_call_entry entry = {
            .library = calls[i].library,
            .version = calls[i].version,
            .operand_count = calls[i].operand_count,
            .offset = at,
            .bytes = calls[i].bytes,
        };
        memcpy(bytes + sizeof header + i * sizeof entry, &entry, sizeof entry);
        memcpy(bytes + at, calls[i].data, calls[i].bytes);
        checked_align(at + calls[i].bytes, ENGINE_CUBIN_ALIGNMENT, &at);
    }
    bool done = engine_writer_section(writer, SECTION_LIBRARY_CALLS, bytes, total, true, status);
    free(bytes);
    return done;
}

static bool verify_entry(const struct engine_call_entry *entry, uint64_t expected_offset, uint64_t size,
                         struct status *status)
{
    /* A later minor version may know more libraries: the code that opens libraries reports unknown ones. */
    if (entry->library < 1 || entry->library > INT32_MAX)
        return status_fail(status, STATUS_CORRUPT, "unknown library %" PRIu32, entry->library);
    if (entry->operand_count < 1 || entry->operand_count > PLAN_MAX_OPERANDS)
        return status_fail(status, STATUS_CORRUPT, "operands: expected 1 to %d, found %" PRIu32, PLAN_MAX_OPERANDS,
                           entry->operand_count);
    if (entry->reserved != 0) return status_fail(status, STATUS_CORRUPT, "a reserved field is not zero");
    if (entry->offset != expected_offset || entry->bytes == 0 || !checked_range(entry->offset, entry->bytes, size))
        return status_fail(status, STATUS_CORRUPT,
                           "data: %" PRIu64 " bytes at %" PRIu64 ", expected at least 1 at %" PRIu64 " inside %" PRIu64,
                           entry->bytes, entry->offset, expected_offset, size);
    return true;
}

static bool padding_is_zero(const struct engine_part *part, uint64_t from, uint64_t to, struct status *status)
{
    for (; from < to; from++)
        if (part->bytes[from] != 0) return status_fail(status, STATUS_CORRUPT, "padding is not zero");
    return true;
}

bool engine_verify_calls(struct engine *engine, const struct engine_part *part, struct status *status)
{
    struct engine_calls_header header;
    if (!part->bytes) return true;
    if (engine->manifest.target != TARGET_CUDA)
        return status_fail(status, STATUS_CORRUPT, "expected none in an engine for a CPU");
    if (part->size < sizeof header) return status_fail(status, STATUS_CORRUPT, "too short for its header");
    memcpy(&header, part->bytes, sizeof header);
    uint64_t end = sizeof header + (uint64_t)header.call_count * sizeof(struct engine_call_entry), next;
    if (header.call_count < 1 || header.call_count > ENGINE_MAX_KERNELS || header.reserved != 0 || end > part->size)
        return status_fail(status, STATUS_CORRUPT, "header: %" PRIu32 " library calls in %" PRIu64 " bytes",
                           header.call_count, part->size);
    engine->calls = engine_take(engine, header.call_count, sizeof *engine->calls, status);
    if (!engine->calls) return false;
    engine->call_count = header.call_count;
    for (uint32_t i = 0; i < header.call_count; i++) {
        struct engine_call_entry entry;
        memcpy(&entry, part->bytes + sizeof header + i * sizeof entry, sizeof entry);
        if (!checked_align(end, ENGINE_CUBIN_ALIGNMENT, &next) || !verify_entry(&entry, next, part->size, status) ||
            !padding_is_zero(part, end, next, status))
            return status_prefix(status, "library call %" PRIu32, i);
        engine->calls[i] = (struct engine_call){
            .library = (enum plan_library)entry.library,
            .version = entry.version,
            .operand_count = entry.operand_count,
            .data = part->bytes + entry.offset,
            .bytes = entry.bytes,
        };
        end = entry.offset + entry.bytes;
    }
    if (!checked_align(end, ENGINE_CUBIN_ALIGNMENT, &next) || next != part->size)
        return status_fail(status, STATUS_CORRUPT, "expected %" PRIu64 " bytes for its library calls, found %" PRIu64,
                           next, part->size);
    return padding_is_zero(part, end, next, status);
}
