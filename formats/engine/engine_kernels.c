/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels section of device targets, written and checked, and the checks of a launch against its kernel. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_verify.h"
#include "formats/base/printable.h"

/* Limits of all CUDA devices so far; the loader checks the limits of the actual device. */
enum { MAX_BLOCK_THREADS = 1024, MAX_GRID_YZ = 65535, MAX_CLUSTER = 16, MAX_SHARED_BYTES = 1 << 20 };

/* ---- writing ---- */

static bool section_bytes(const struct engine_kernel *kernels, size_t count, uint64_t *names, uint64_t *total)
{
    uint64_t bytes = sizeof(struct engine_kernels_header) + count * sizeof(struct engine_kernel_entry);
    *names = 0;
    for (size_t i = 0; i < count; i++) *names += strlen(kernels[i].entry) + 1;
    if (!checked_align(bytes + *names, ENGINE_CUBIN_ALIGNMENT, &bytes)) return false;
    for (size_t i = 0; i < count; i++)
        if (!checked_add(bytes, kernels[i].cubin_bytes, &bytes) ||
            !checked_align(bytes, ENGINE_CUBIN_ALIGNMENT, &bytes))
            return false;
    *total = bytes;
    return *names <= UINT32_MAX;
}

bool engine_writer_kernels(struct engine_writer *writer, const struct engine_kernel *kernels, size_t count,
                           struct status *status)
{
    uint64_t names, total;
    if (count == 0 || count > ENGINE_MAX_KERNELS)
        return status_fail(status, STATUS_INTERNAL, "engine writer: %zu kernels, expected 1 to %d", count,
                           ENGINE_MAX_KERNELS);
    if (!section_bytes(kernels, count, &names, &total))
        return status_fail(status, STATUS_BAD_INPUT, "engine: the kernels are too large");
    uint8_t *bytes = calloc(1, total);
    if (!bytes) return status_fail(status, STATUS_MACHINE, "out of memory");
    const struct engine_kernels_header header = {.kernel_count = (uint32_t)count, .name_bytes = (uint32_t)names};
    memcpy(bytes, &header, sizeof header);
    uint8_t *entry_at = bytes + sizeof header;
    char *name_at = (char *)entry_at + count * sizeof(struct engine_kernel_entry);
    uint64_t cubin_at, name_offset = 0;
    checked_align((uint64_t)((uint8_t *)name_at - bytes) + names, ENGINE_CUBIN_ALIGNMENT, &cubin_at);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(kernels[i].entry);
        const struct engine_kernel_entry entry = {
            .name_offset = (uint32_t)name_offset,
            .name_bytes = (uint32_t)length,
            .operand_count = kernels[i].operand_count,
            .offset = cubin_at,
            .bytes = kernels[i].cubin_bytes,
        };
        memcpy(entry_at + i * sizeof entry, &entry, sizeof entry);
        memcpy(name_at + name_offset, kernels[i].entry, length + 1);
        memcpy(bytes + cubin_at, kernels[i].cubin, kernels[i].cubin_bytes);
        name_offset += length + 1;
        checked_align(cubin_at + kernels[i].cubin_bytes, ENGINE_CUBIN_ALIGNMENT, &cubin_at);
    }
    bool done = engine_writer_section(writer, SECTION_KERNELS, bytes, total, true, status);
    free(bytes);
    return done;
}

/* ---- reading ---- */

static bool verify_entry(const struct engine_kernel_entry *entry, const char *names, uint32_t name_bytes,
                         uint32_t name_offset, uint64_t cubin_at, uint64_t size, struct status *status)
{
    if (entry->name_offset != name_offset)
        return status_fail(status, STATUS_CORRUPT, "name offset: expected %" PRIu32 ", found %" PRIu32, name_offset,
                           entry->name_offset);
    if (entry->name_bytes == 0 || !checked_range(name_offset, (uint64_t)entry->name_bytes + 1, name_bytes) ||
        strnlen(names + name_offset, (size_t)entry->name_bytes + 1) != entry->name_bytes ||
        !printable_text(names + name_offset, entry->name_bytes))
        return status_fail(status, STATUS_CORRUPT, "the name is not a text of %" PRIu32 " bytes", entry->name_bytes);
    if (entry->operand_count < 1 || entry->operand_count > PLAN_MAX_OPERANDS)
        return status_fail(status, STATUS_CORRUPT, "operands: expected 1 to %d, found %" PRIu32, PLAN_MAX_OPERANDS,
                           entry->operand_count);
    if (entry->reserved != 0) return status_fail(status, STATUS_CORRUPT, "a reserved field is not zero");
    if (entry->offset != cubin_at || entry->bytes == 0 || !checked_range(entry->offset, entry->bytes, size))
        return status_fail(status, STATUS_CORRUPT,
                           "cubin: %" PRIu64 " bytes at %" PRIu64 ", expected at least 1 at %" PRIu64
                           " inside %" PRIu64,
                           entry->bytes, entry->offset, cubin_at, size);
    return true;
}

static bool all_zero(const uint8_t *bytes, uint64_t from, uint64_t to)
{
    for (; from < to; from++)
        if (bytes[from] != 0) return false;
    return true;
}

bool engine_verify_kernels(struct engine *engine, const struct engine_part *part, struct status *status)
{
    struct engine_kernels_header header;
    if (!part->bytes) return true;
    if (part->size < sizeof header) return status_fail(status, STATUS_CORRUPT, "too short for its header");
    memcpy(&header, part->bytes, sizeof header);
    uint64_t names_at = sizeof header + (uint64_t)header.kernel_count * sizeof(struct engine_kernel_entry);
    uint64_t names_end = names_at + header.name_bytes, cubin_at;
    if (header.kernel_count < 1 || header.kernel_count > ENGINE_MAX_KERNELS || names_end > part->size)
        return status_fail(status, STATUS_CORRUPT,
                           "header: %" PRIu32 " kernels and %" PRIu32 " bytes of names in %" PRIu64 " bytes",
                           header.kernel_count, header.name_bytes, part->size);
    engine->kernels = engine_take(engine, header.kernel_count, sizeof *engine->kernels, status);
    if (!engine->kernels) return false;
    engine->kernel_count = header.kernel_count;
    const char *names = (const char *)part->bytes + names_at;
    uint64_t end = names_end;
    uint32_t name_offset = 0;
    for (uint32_t i = 0; i < header.kernel_count; i++) {
        struct engine_kernel_entry entry;
        memcpy(&entry, part->bytes + sizeof header + i * sizeof entry, sizeof entry);
        if (!checked_align(end, ENGINE_CUBIN_ALIGNMENT, &cubin_at) ||
            !verify_entry(&entry, names, header.name_bytes, name_offset, cubin_at, part->size, status))
            return status_prefix(status, "kernel %" PRIu32, i);
        if (!all_zero(part->bytes, end, cubin_at))
            return status_fail(status, STATUS_CORRUPT, "kernel %" PRIu32 ": padding is not zero", i);
        engine->kernels[i] = (struct engine_kernel){
            .entry = names + name_offset,
            .cubin = part->bytes + entry.offset,
            .cubin_bytes = entry.bytes,
            .operand_count = entry.operand_count,
        };
        name_offset += entry.name_bytes + 1;
        end = entry.offset + entry.bytes;
    }
    if (name_offset != header.name_bytes)
        return status_fail(status, STATUS_CORRUPT, "names: expected %" PRIu32 " bytes, found %" PRIu32, name_offset,
                           header.name_bytes);
    if (!checked_align(end, ENGINE_CUBIN_ALIGNMENT, &cubin_at) || cubin_at != part->size)
        return status_fail(status, STATUS_CORRUPT, "expected %" PRIu64 " bytes for its kernels, found %" PRIu64,
                           cubin_at, part->size);
    if (!all_zero(part->bytes, end, cubin_at))
        return status_fail(status, STATUS_CORRUPT, "padding after the last kernel is not zero");
    return true;
}

/* ---- launches ---- */

static bool verify_dimensions(const struct plan_launch *launch, struct status *status)
{
    uint64_t threads = 1, cluster = 1;
    for (int i = 0; i < 3; i++) {
        uint32_t most = i == 0 ? INT32_MAX : MAX_GRID_YZ;
        if (launch->grid[i] < 1 || launch->grid[i] > most)
            return status_fail(status, STATUS_CORRUPT, "grid[%d]: expected 1 to %" PRIu32 ", found %" PRIu32, i, most,
                               launch->grid[i]);
        if (launch->block[i] < 1 || launch->block[i] > MAX_BLOCK_THREADS)
            return status_fail(status, STATUS_CORRUPT, "block[%d]: expected 1 to %d, found %" PRIu32, i,
                               MAX_BLOCK_THREADS, launch->block[i]);
        if (launch->cluster[i] < 1 || launch->cluster[i] > MAX_CLUSTER || launch->grid[i] % launch->cluster[i] != 0)
            return status_fail(status, STATUS_CORRUPT,
                               "cluster[%d]: expected 1 to %d and a divisor of grid %" PRIu32 ", found %" PRIu32, i,
                               MAX_CLUSTER, launch->grid[i], launch->cluster[i]);
        threads *= launch->block[i];
        cluster *= launch->cluster[i];
    }
    if (threads > MAX_BLOCK_THREADS)
        return status_fail(status, STATUS_CORRUPT, "block: %" PRIu64 " threads, at most %d are possible", threads,
                           MAX_BLOCK_THREADS);
    if (cluster > MAX_CLUSTER)
        return status_fail(status, STATUS_CORRUPT, "cluster: %" PRIu64 " blocks, at most %d are possible", cluster,
                           MAX_CLUSTER);
    if (launch->shared_bytes > MAX_SHARED_BYTES)
        return status_fail(status, STATUS_CORRUPT, "shared memory: %" PRIu32 " bytes, at most %d are possible",
                           launch->shared_bytes, MAX_SHARED_BYTES);
    return true;
}

/* The map must stay inside its operand. In the KV pool, whose size the loader picks, the loader checks the rows. */
static bool verify_tensor_map(const struct plan_operand *operand, const struct plan_tensor_map *maps,
                              struct status *status)
{
    const struct plan_tensor_map map = maps[operand->tensor_map - 1];
    const uint64_t element = plan_tensor_map_element_bytes(&map);
    if (element == 0)
        return status_fail(status, STATUS_CORRUPT, "tensor map: dtype: expected F32, F16 or BF16, found %" PRId64,
                           map.dtype);
    if (map.reserved != 0) return status_fail(status, STATUS_CORRUPT, "tensor map: a reserved field is not zero");
    if (map.columns < 1 || map.columns > INT32_MAX || map.rows < 0 || map.rows > INT32_MAX || map.pitch < 16 ||
        map.pitch % 16 != 0 || map.pitch > INT64_C(1) << 39 || (uint64_t)map.columns * element > (uint64_t)map.pitch)
        return status_fail(status, STATUS_CORRUPT,
                           "tensor map: %" PRId64 " x %" PRId64 " elements, %" PRId64 " bytes a row", map.rows,
                           map.columns, map.pitch);
    bool swizzle = map.swizzle == 0 || map.swizzle == 32 || map.swizzle == 64 || map.swizzle == 128;
    if (!swizzle || map.box_columns < 1 || map.box_columns > 256 || map.box_rows < 1 || map.box_rows > 256 ||
        (uint64_t)map.box_columns * element % 16 != 0 ||
        (map.swizzle != 0 && (int64_t)((uint64_t)map.box_columns * element) > map.swizzle))
        return status_fail(status, STATUS_CORRUPT,
                           "tensor map: box of %" PRId64 " x %" PRId64 " elements, swizzle %" PRId64, map.box_rows,
                           map.box_columns, map.swizzle);
    if ((map.rows == 0) != (operand->space == SPACE_KV))
        return status_fail(status, STATUS_CORRUPT, "tensor map: rows: expected %s, found %" PRId64,
                           map.rows == 0 ? "at least 1" : "0 in the page pool, whose size the loader picks", map.rows);
    if (map.rows == 0) return true;
    const uint64_t before_last[] = {(uint64_t)map.rows - 1, (uint64_t)map.pitch};
    uint64_t bytes;
    if (!checked_product(before_last, 2, &bytes) || !checked_add(bytes, (uint64_t)map.columns * element, &bytes) ||
        bytes > operand->bytes)
        return status_fail(status, STATUS_CORRUPT,
                           "tensor map: %" PRId64 " rows of %" PRId64 " bytes leave the operand's %" PRIu64 " bytes",
                           map.rows, map.pitch, operand->bytes);
    return true;
}

/* A call takes plain addresses, and the library picks its own launch dimensions. */
static bool verify_library_launch(const struct engine *engine, const struct plan *plan,
                                  const struct plan_launch *launch, struct status *status)
{
    if (launch->kernel >= engine->call_count)
        return status_fail(status, STATUS_CORRUPT, "library call %" PRIu32 " of %zu", launch->kernel,
                           engine->call_count);
    const struct engine_call *call = &engine->calls[launch->kernel];
    if (launch->operand_count != call->operand_count)
        return status_fail(status, STATUS_CORRUPT, "operands: the library call has %" PRIu32 ", found %u",
                           call->operand_count, launch->operand_count);
    uint32_t device = launch->shared_bytes | (launch->attributes & ~(uint32_t)LAUNCH_LIBRARY);
    for (int i = 0; i < 3; i++) device |= launch->grid[i] | launch->block[i] | launch->cluster[i];
    if (device != 0) return status_fail(status, STATUS_CORRUPT, "library call: a field for kernels is not zero");
    for (uint32_t i = 0; i < launch->operand_count; i++)
        if (plan->operands[launch->first_operand + i].tensor_map != 0)
            return status_fail(status, STATUS_CORRUPT, "operand %" PRIu32 ": a tensor map for a library call", i);
    return true;
}

bool engine_verify_device_launch(const struct engine *engine, const struct plan *plan, const struct plan_launch *launch,
                                 struct status *status)
{
    if (launch->attributes & LAUNCH_LIBRARY) return verify_library_launch(engine, plan, launch, status);
    if (launch->kernel >= engine->kernel_count)
        return status_fail(status, STATUS_CORRUPT, "kernel %" PRIu32 " of %zu", launch->kernel, engine->kernel_count);
    const struct engine_kernel *kernel = &engine->kernels[launch->kernel];
    if (launch->operand_count != kernel->operand_count)
        return status_fail(status, STATUS_CORRUPT, "operands: kernel '%s' has %" PRIu32 ", found %u", kernel->entry,
                           kernel->operand_count, launch->operand_count);
    if ((launch->attributes & ~(uint32_t)LAUNCH_ATTRIBUTES_KNOWN) != 0)
        return status_fail(status, STATUS_CORRUPT, "unknown attributes 0x%" PRIx32, launch->attributes);
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        const struct plan_operand *operand = &plan->operands[launch->first_operand + i];
        if (operand->tensor_map != 0 && !verify_tensor_map(operand, plan->tensor_maps, status))
            return status_prefix(status, "operand %" PRIu32, i);
    }
    return verify_dimensions(launch, status);
}
