/* SPDX-License-Identifier: Apache-2.0 */
/* Writes an engine file from front to back: the header's space first, sections as they come, header and table last. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_layout.h"
#include "formats/base/hash.h"

struct engine_writer {
    struct file_output output;
    struct engine_section_entry entries[ENGINE_MAX_SECTIONS];
    uint32_t section_count;
    uint16_t minor; /* version: the first one that has all that was written */
    char builder_version[sizeof(((struct engine_header *)0)->builder_version)]; /* from the manifest */

    /* the weight section: at most one */
    enum { WEIGHTS_NONE, WEIGHTS_OPEN, WEIGHTS_DONE } weights;
    uint64_t weights_offset; /* in the file */
    uint64_t weights_total, regions;
    uint64_t *chunk_hashes; /* [chunk_count] */
    atomic_bool *chunk_put; /* [chunk_count] */
    uint64_t chunk_count;
    _Atomic uint64_t chunks_put;

    void *map; /* view of the weights for the caller; NULL: none */
    uint64_t map_bytes;
    uint64_t map_skip; /* offset of the weights in the mapping */
};

static bool writer_misused(struct status *status, const char *what)
{
    return status_fail(status, STATUS_INTERNAL, "engine writer: %s", what);
}

struct engine_writer *engine_writer_begin(const char *path, struct status *status)
{
    static const uint8_t zeros[ENGINE_HEADER_SPACE];
    if (!engine_host_check(status)) return NULL;
    struct engine_writer *writer = calloc(1, sizeof *writer);
    if (!writer) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    writer->minor = ENGINE_MINOR_LEAST;
    if (!file_output_open(&writer->output, path, status)) {
        free(writer);
        return NULL;
    }
    if (!file_output_write(&writer->output, zeros, sizeof zeros, status)) {
        engine_writer_abandon(writer);
        return NULL;
    }
    return writer;
}

/* Pads to where the section must begin and adds its entry; the caller fills in sizes and hash. */
static struct engine_section_entry *begin_section(struct engine_writer *writer, enum engine_section type,
                                                  uint64_t stored_bytes, struct status *status)
{
    uint64_t offset, alignment = ENGINE_SECTION_ALIGNMENT;
    if (writer->section_count == ENGINE_MAX_SECTIONS) {
        writer_misused(status, "too many sections");
        return NULL;
    }
    for (uint32_t i = 0; i < writer->section_count; i++)
        if (writer->entries[i].type == type) {
            status_fail(status, STATUS_INTERNAL, "engine writer: section '%s' was written before",
                        engine_section_name(type));
            return NULL;
        }
    /* The offset in an empty file gives the alignment. */
    if (!engine_section_place(type, stored_bytes, 1, &alignment) ||
        !engine_section_place(type, stored_bytes, writer->output.position, &offset)) {
        writer_misused(status, "the file becomes too large");
        return NULL;
    }
    if (!file_output_pad(&writer->output, alignment, status)) return NULL;
    if (type == SECTION_CHAT_TEMPLATES && writer->minor < ENGINE_MINOR_CHAT_TEMPLATES)
        writer->minor = ENGINE_MINOR_CHAT_TEMPLATES;
    struct engine_section_entry *entry = &writer->entries[writer->section_count++];
    *entry = (struct engine_section_entry){.type = type, .offset = offset};
    return entry;
}

bool engine_writer_weights_begin(struct engine_writer *writer, uint64_t total_bytes, uint64_t regions,
                                 struct status *status)
{
    if (writer->weights != WEIGHTS_NONE) return writer_misused(status, "weights begun twice");
    if (total_bytes == 0) return writer_misused(status, "an engine without weights");
    if (regions == 0 || total_bytes % regions != 0) return writer_misused(status, "weights of unequal regions");
    writer->chunk_count = weight_chunk_count(total_bytes, regions);
    writer->chunk_hashes = calloc(writer->chunk_count, sizeof *writer->chunk_hashes);
    writer->chunk_put = calloc(writer->chunk_count, sizeof *writer->chunk_put);
    if (!writer->chunk_hashes || !writer->chunk_put) return status_fail(status, STATUS_MACHINE, "out of memory");
    struct engine_section_entry *entry = begin_section(writer, SECTION_WEIGHTS, total_bytes, status);
    if (!entry || !file_output_reserve(&writer->output, total_bytes, status)) return false;
    entry->flags = SECTION_FLAG_REQUIRED | SECTION_FLAG_CHUNKED;
    entry->stored_bytes = entry->raw_bytes = total_bytes;
    writer->weights_offset = entry->offset;
    writer->weights_total = total_bytes;
    writer->regions = regions;
    writer->weights = WEIGHTS_OPEN;
    return true;
}

/* Whether the bytes are whole chunks; `first`: the number of the first one. */
static bool covers_chunks(const struct engine_writer *writer, uint64_t offset, uint64_t size, uint64_t *first)
{
    const uint64_t region = writer->weights_total / writer->regions;
    uint64_t end = offset, at, bytes;
    *first = offset / region * (writer->chunk_count / writer->regions) + offset % region / ENGINE_WEIGHT_CHUNK_BYTES;
    for (uint64_t chunk = *first; end < offset + size; chunk++, end += bytes) {
        weight_chunk_range(writer->weights_total, writer->regions, chunk, &at, &bytes);
        if (at != end) return false;
    }
    return end == offset + size;
}

bool engine_writer_weights_put(struct engine_writer *writer, uint64_t offset, const void *data, uint64_t size,
                               struct status *status)
{
    uint64_t chunk;
    if (writer->weights != WEIGHTS_OPEN) return writer_misused(status, "weights put outside of begin and end");
    if (!checked_range(offset, size, writer->weights_total))
        return writer_misused(status, "more weights than announced");
    if (!covers_chunks(writer, offset, size, &chunk)) return writer_misused(status, "a part of a chunk");
    if (!file_output_patch(&writer->output, writer->weights_offset + offset, data, size, status)) return false;
    for (uint64_t done = 0, at, bytes; done < size; done += bytes, chunk++) {
        weight_chunk_range(writer->weights_total, writer->regions, chunk, &at, &bytes);
        if (atomic_exchange(&writer->chunk_put[chunk], true)) return writer_misused(status, "a chunk put twice");
        writer->chunk_hashes[chunk] = hash64((const uint8_t *)data + done, (size_t)bytes);
        atomic_fetch_add(&writer->chunks_put, 1);
    }
    return true;
}

bool engine_writer_weights_end(struct engine_writer *writer, struct status *status)
{
    if (writer->weights != WEIGHTS_OPEN) return writer_misused(status, "weights ended outside of begin and end");
    if (writer->chunks_put != writer->chunk_count)
        return status_fail(status, STATUS_INTERNAL,
                           "engine writer: %" PRIu64 " chunks of weights were announced, %" PRIu64 " written",
                           writer->chunk_count, (uint64_t)writer->chunks_put);
    writer->weights = WEIGHTS_DONE;
    struct engine_section_entry *weights_entry = &writer->entries[writer->section_count - 1];
    uint64_t hashes_bytes = writer->chunk_count * sizeof *writer->chunk_hashes;
    weights_entry->hash = hash64(writer->chunk_hashes, (size_t)hashes_bytes);
    return engine_writer_section(writer, SECTION_WEIGHT_HASHES, writer->chunk_hashes, hashes_bytes, false, status);
}

bool engine_writer_map_weights(struct engine_writer *writer, const uint8_t **weights, struct status *status)
{
    if (writer->weights == WEIGHTS_NONE) return writer_misused(status, "weights mapped before they were begun");
    if (!writer->map) {
        /* Weights begin at a multiple of 4 KiB, which
         * need not be a page of this machine. */
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        writer->map_skip = writer->weights_offset % page;
        writer->map_bytes = writer->map_skip + writer->weights_total;
        void *map = mmap(NULL, (size_t)writer->map_bytes, PROT_READ, MAP_SHARED, writer->output.descriptor,
                         (off_t)(writer->weights_offset - writer->map_skip));
        if (map == MAP_FAILED)
            return status_fail_errno(status, STATUS_MACHINE, errno, "cannot map the weights of '%s'",
                                     writer->output.path);
        writer->map = map;
    }
    *weights = (const uint8_t *)writer->map + writer->map_skip;
    return true;
}

/* Compresses into allocated memory, to be freed by the caller; *packed NULL if that gains nothing. */
static bool pack_section(const void *data, uint64_t size, uint8_t **packed, uint64_t *packed_bytes,
                         struct status *status)
{
    uLongf bytes = compressBound((uLong)size);
    *packed = malloc(bytes);
    if (!*packed) return status_fail(status, STATUS_MACHINE, "out of memory");
    int result = compress2(*packed, &bytes, data, (uLong)size, 6);
    if (result != Z_OK) {
        free(*packed);
        *packed = NULL;
        return status_fail(status, STATUS_MACHINE,
                           result == Z_MEM_ERROR ? "out of memory" : "zlib: compression failed");
    }
    *packed_bytes = bytes;
    if (bytes < size) return true;
    free(*packed);
    *packed = NULL;
    return true;
}

/* The header repeats the builder's version, so that even a reader of another major version can name it. */
static bool take_builder_version(struct engine_writer *writer, const char *text, uint64_t size, struct status *status)
{
    struct manifest manifest;
    if (!manifest_parse(&manifest, text, (size_t)size, status)) return status_prefix(status, "engine writer");
    _Static_assert(sizeof manifest.builder_version == sizeof writer->builder_version, "one text, two places");
    memset(writer->builder_version, 0, sizeof writer->builder_version);
    memcpy(writer->builder_version, manifest.builder_version, strlen(manifest.builder_version));
    return true;
}

bool engine_writer_section(struct engine_writer *writer, enum engine_section id, const void *data, uint64_t size,
                           bool compress, struct status *status)
{
    uint8_t *packed = NULL;
    uint64_t stored_bytes = size;
    bool done = false;
    if (size == 0) return true; /* an empty section is left out */
    if (writer->weights == WEIGHTS_OPEN) return writer_misused(status, "a section inside the weights");
    if (id == SECTION_WEIGHTS) return writer_misused(status, "weights are written by engine_writer_weights_*");
    if (size > engine_section_traits(id)->limit)
        return status_fail(status, STATUS_BAD_INPUT,
                           "engine: section '%s' would have %" PRIu64 " bytes, at most %" PRIu64 " are possible",
                           engine_section_name(id), size, engine_section_traits(id)->limit);
    if (id == SECTION_MANIFEST && !take_builder_version(writer, data, size, status)) return false;
    if (compress && !pack_section(data, size, &packed, &stored_bytes, status)) goto cleanup;
    if (!packed) stored_bytes = size;
    struct engine_section_entry *entry = begin_section(writer, id, stored_bytes, status);
    if (!entry) goto cleanup;
    entry->flags = (packed ? (uint32_t)SECTION_FLAG_ZLIB : 0u) |
                   (engine_section_traits(id)->is_required ? (uint32_t)SECTION_FLAG_REQUIRED : 0u);
    entry->stored_bytes = stored_bytes;
    entry->raw_bytes = size;
    entry->hash = hash64(packed ? packed : data, (size_t)stored_bytes);
    done = file_output_write(&writer->output, packed ? packed : data, stored_bytes, status);
cleanup:
    free(packed);
    return done;
}

bool engine_writer_finish(struct engine_writer *writer, struct status *status)
{
    uint8_t space[ENGINE_HEADER_SPACE] = {0};
    if (writer->weights != WEIGHTS_DONE) return writer_misused(status, "committed without weights");
    if (writer->builder_version[0] == '\0') return writer_misused(status, "committed without a manifest");
    const struct engine_section_entry *last = &writer->entries[writer->section_count - 1];
    if (last->offset + last->stored_bytes != writer->output.position)
        return writer_misused(status, "committed after a section had failed");
    size_t table_bytes = writer->section_count * sizeof writer->entries[0];
    struct engine_header header = {
        .magic = ENGINE_MAGIC,
        .major = ENGINE_MAJOR,
        .minor = writer->minor,
        .header_bytes = (uint32_t)(sizeof header + table_bytes),
        .file_bytes = writer->output.position,
        .section_count = writer->section_count,
        .entry_bytes = sizeof writer->entries[0],
    };
    memcpy(header.builder_version, writer->builder_version, sizeof header.builder_version);
    memcpy(space, &header, sizeof header);
    memcpy(space + sizeof header, writer->entries, table_bytes);
    header.header_hash = hash64(space, header.header_bytes);
    memcpy(space, &header, sizeof header);
    return file_output_patch(&writer->output, 0, space, sizeof space, status) &&
           file_output_sync(&writer->output, status);
}

bool engine_writer_commit(struct engine_writer *writer, struct status *status)
{
    bool done = engine_writer_finish(writer, status) && file_output_commit(&writer->output, status);
    engine_writer_abandon(writer);
    return done;
}

uint64_t engine_writer_bytes(const struct engine_writer *writer) { return writer->output.position; }

void engine_writer_abandon(struct engine_writer *writer)
{
    if (!writer) return;
    if (writer->map) munmap(writer->map, (size_t)writer->map_bytes);
    file_output_abandon(&writer->output);
    free(writer->chunk_put);
    free(writer->chunk_hashes);
    free(writer);
}
