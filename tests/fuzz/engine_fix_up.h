/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_fix_up for targets that read engine files: recomputes every checksum after a mutation, so that the checks of
 * structure are reached. Included once by each such target. */
#pragma once

#include "formats/engine/test_engine.h"

#include <string.h>

#include "formats/base/checked.h"
#include "tests/fuzz/fuzz.h"

/* Whether each section lies after the previous one and inside the data, so that the padding is defined. */
static bool sections_in_order(const struct engine_section_entry *entries, uint32_t count, size_t size)
{
    uint64_t end = ENGINE_HEADER_SPACE;
    for (uint32_t i = 0; i < count; i++) {
        if (entries[i].offset < end || !checked_range(entries[i].offset, entries[i].stored_bytes, size)) return false;
        end = entries[i].offset + entries[i].stored_bytes;
    }
    return true;
}

/* Moves a byte that a mutation put into padding, where it only ever meets one check, to some place in a section. */
static void move_into_section(uint8_t *data, const struct engine_section_entry *entries, uint32_t count,
                              uint64_t position)
{
    uint64_t choice = position * UINT64_C(0x9e3779b97f4a7c15) >> 20;
    const struct engine_section_entry *entry = &entries[choice % count];
    /* Weights and their hashes have no structure; the manifest's text has a target of its own. */
    bool worth_it =
        entry->type != SECTION_WEIGHTS && entry->type != SECTION_WEIGHT_HASHES && entry->type != SECTION_MANIFEST;
    if (worth_it && entry->stored_bytes) data[entry->offset + (choice >> 8) % entry->stored_bytes] ^= data[position];
    data[position] = 0;
}

static void clear_padding(uint8_t *data, const struct engine_section_entry *entries, uint32_t count)
{
    /* The header's reserved fields are of the same kind, and are where mutations like to go. */
    for (uint64_t i = offsetof(struct engine_header, reserved); i < sizeof(struct engine_header); i++)
        if (data[i]) move_into_section(data, entries, count, i);
    uint64_t position = sizeof(struct engine_header) + count * sizeof *entries;
    for (uint32_t i = 0; i < count; i++) {
        for (; position < entries[i].offset; position++)
            if (data[position]) move_into_section(data, entries, count, position);
        position = entries[i].offset + entries[i].stored_bytes;
    }
}

size_t fuzz_fix_up(uint8_t *data, size_t size)
{
    struct engine_header header;
    if (size <= ENGINE_HEADER_SPACE || (uintptr_t)data % sizeof(uint64_t) != 0) return size;
    memcpy(&header, data, sizeof header);
    struct engine_section_entry *entries = (void *)(data + sizeof header);
    uint32_t count = header.section_count;
    if (count < 1 || count > ENGINE_MAX_SECTIONS) return size;
    header.header_bytes = (uint32_t)(sizeof header + count * sizeof *entries);
    header.file_bytes = size;
    memcpy(data, &header, sizeof header);
    /* Where bytes came or went, the last section takes the difference. */
    struct engine_section_entry *last = &entries[count - 1];
    if (last->offset < size && last->offset + last->stored_bytes != size) {
        last->stored_bytes = size - last->offset;
        if (!(last->flags & SECTION_FLAG_ZLIB)) last->raw_bytes = last->stored_bytes;
    }
    if (sections_in_order(entries, count, size)) clear_padding(data, entries, count);
    engine_fix_checksums(data, size);
    return size;
}
