/* SPDX-License-Identifier: Apache-2.0 */
/* Opens an engine file: header, section table, padding, checksums, decompression. engine_verify.c then checks the
 * contents of the sections. Nothing of the file is used before it was checked, and every message names the part of the
 * file that is wrong. All sections but the weights are copied first, so that later changes of the file have no effect
 * on what was checked. The manifest comes before the other sections and bounds them, and all memory counts against a
 * limit. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_verify.h"
#include "formats/base/hash.h"

enum {
    /* deflate reaches at most 1032 to 1; a larger raw size is refused before memory is allocated. */
    ZLIB_MAX_RATIO = 1032,
    PIECE_BYTES = 128 << 10, /* size of the buffer for bytes that are hashed only */
};

#define ADVICE_DAMAGED "the file is damaged: copy it again or rebuild it"

/* A few bytes as printable text, for messages about files that are not engines. */
static void printable(const uint8_t *bytes, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++)
        out += sprintf(out, bytes[i] >= 0x20 && bytes[i] < 0x7f ? "%c" : "\\x%02x", bytes[i]);
}

static bool read_bytes(const struct engine *engine, uint64_t offset, void *to, uint64_t bytes, struct status *status)
{
    if (engine->map.data) return file_map_read(&engine->map, offset, to, bytes, status);
    /* An empty file has no address. */
    if (bytes) memcpy(to, engine->bytes + offset, (size_t)bytes);
    return true;
}

/* Checks the immutable prefix, which identifies a file of any version. `bytes`: the part of the file that header and
 * table can occupy, or all of it; `size`: size of the file. */
static bool check_prefix(const uint8_t *bytes, uint64_t size, struct engine_header *header, struct status *status)
{
    if (size == 0) return status_fail(status, STATUS_BAD_INPUT, "header: the file is empty");
    size_t magic_bytes = size < ENGINE_MAGIC_BYTES ? (size_t)size : ENGINE_MAGIC_BYTES;
    if (memcmp(bytes, ENGINE_MAGIC, magic_bytes) != 0) {
        char found[4 * ENGINE_MAGIC_BYTES + 1] = "";
        printable(bytes, magic_bytes, found);
        return status_fail(status, STATUS_BAD_INPUT,
                           "header: not an engine file: expected it to begin with \"\\x89ENG\", found \"%s\"; engine "
                           "files are made by engbuild",
                           found);
    }
    if (size < sizeof *header)
        return status_fail(status, STATUS_CORRUPT,
                           "header: truncated: expected at least %zu bytes, the file has %" PRIu64
                           "; the copy is incomplete",
                           sizeof *header, size);
    memcpy(header, bytes, sizeof *header);
    if (header->header_bytes < sizeof *header || header->header_bytes > ENGINE_HEADER_SPACE)
        return status_fail(status, STATUS_CORRUPT,
                           "header: size of header and table: expected %zu to %d bytes, found %" PRIu32
                           "; " ADVICE_DAMAGED,
                           sizeof *header, ENGINE_HEADER_SPACE, header->header_bytes);
    if (header->header_bytes > size)
        return status_fail(status, STATUS_CORRUPT,
                           "header: truncated: header and section table have %" PRIu32 " bytes, the file has %" PRIu64
                           "; the copy is incomplete",
                           header->header_bytes, size);
    uint8_t copy[ENGINE_HEADER_SPACE];
    memcpy(copy, bytes, header->header_bytes);
    memset(copy + offsetof(struct engine_header, header_hash), 0, sizeof header->header_hash);
    uint64_t hash = hash64(copy, header->header_bytes);
    if (hash != header->header_hash)
        return status_fail(status, STATUS_CORRUPT,
                           "header: checksum of header and section table: expected %016" PRIx64 ", found %016" PRIx64
                           "; " ADVICE_DAMAGED,
                           header->header_hash, hash);
    return true;
}

static bool check_version(const struct engine_header *header, struct status *status)
{
    const char *version = header->builder_version;
    size_t length = strnlen(version, sizeof header->builder_version);
    bool clean = length > 0 && length < sizeof header->builder_version;
    for (size_t i = 0; i < sizeof header->builder_version; i++)
        clean = clean && (i < length ? (version[i] >= 0x20 && version[i] < 0x7f) : version[i] == '\0');
    if (!clean)
        return status_fail(status, STATUS_CORRUPT, "header: the builder version is not a NUL-padded ASCII text");
    if (header->major < ENGINE_MAJOR)
        return status_fail(
            status, STATUS_VERSION,
            "engine format %u.%u (written by engbuild %s) is too old for this runtime, which reads %d.x: "
            "rebuild it with the engbuild of this release (engbuild --model CHECKPOINT -o FILE)",
            header->major, header->minor, version, ENGINE_MAJOR);
    if (header->major > ENGINE_MAJOR)
        return status_fail(
            status, STATUS_VERSION,
            "engine format %u.%u (written by engbuild %s) is too new for this runtime, which reads %d.x: "
            "use the runtime of that release",
            header->major, header->minor, version, ENGINE_MAJOR);
    return true;
}

static bool check_header(const struct engine_header *header, uint64_t size, struct status *status)
{
    if (header->file_bytes > size)
        return status_fail(status, STATUS_CORRUPT,
                           "header: truncated: expected a file of %" PRIu64 " bytes, found %" PRIu64
                           "; the copy is incomplete",
                           header->file_bytes, size);
    if (header->file_bytes < size)
        return status_fail(status, STATUS_CORRUPT,
                           "header: expected a file of %" PRIu64 " bytes, found %" PRIu64
                           ": something was appended; copy it again",
                           header->file_bytes, size);
    if (header->section_count < 1 || header->section_count > ENGINE_MAX_SECTIONS)
        return status_fail(status, STATUS_CORRUPT, "header: section count: expected 1 to %d, found %" PRIu32,
                           ENGINE_MAX_SECTIONS, header->section_count);
    if (header->entry_bytes != sizeof(struct engine_section_entry))
        return status_fail(status, STATUS_CORRUPT, "header: size of a table entry: expected %zu, found %" PRIu32,
                           sizeof(struct engine_section_entry), header->entry_bytes);
    size_t header_bytes = sizeof *header + header->section_count * sizeof(struct engine_section_entry);
    if (header->header_bytes != header_bytes)
        return status_fail(status, STATUS_CORRUPT, "header: size of header and table: expected %zu, found %" PRIu32,
                           header_bytes, header->header_bytes);
    for (size_t i = 0; i < sizeof header->reserved / sizeof header->reserved[0]; i++)
        if (header->reserved[i] != 0)
            return status_fail(status, STATUS_CORRUPT, "header: reserved field %zu: expected 0, found %" PRIu64, i,
                               header->reserved[i]);
    return true;
}

static bool check_flags(const struct engine_header *header, const struct engine_section_entry *entry,
                        struct status *status)
{
    if ((entry->flags & ~(uint32_t)SECTION_FLAGS_KNOWN) != 0 ||
        (!engine_section_traits(entry->type)->is_known && (entry->flags & SECTION_FLAG_REQUIRED)))
        return status_fail(status, STATUS_VERSION,
                           "needs a newer runtime: expected what format %d.%d knows, found type %" PRIu32
                           " with flags 0x%" PRIx32 " in format %u.%u; use a runtime that reads %u.%u, or rebuild the "
                           "engine with the engbuild that came with this runtime",
                           ENGINE_MAJOR, ENGINE_MINOR, entry->type, entry->flags, header->major, header->minor,
                           header->major, header->minor);
    bool in_place = entry->type == SECTION_WEIGHTS || entry->type == SECTION_WEIGHT_HASHES;
    if (in_place && (entry->flags & SECTION_FLAG_ZLIB))
        return status_fail(status, STATUS_CORRUPT, "is compressed, which this section must not be");
    if ((entry->type == SECTION_WEIGHTS) != ((entry->flags & SECTION_FLAG_CHUNKED) != 0))
        return status_fail(status, STATUS_CORRUPT, "chunked checksum: expected %s",
                           entry->type == SECTION_WEIGHTS ? "the flag, found none" : "no flag, found it");
    return true;
}

static bool check_sizes(const struct engine_section_entry *entry, uint64_t previous_end, uint64_t file_bytes,
                        struct status *status)
{
    uint64_t expected;
    if (entry->stored_bytes == 0)
        return status_fail(status, STATUS_CORRUPT, "stored size: expected at least 1, found 0");
    if (!engine_section_place(entry->type, entry->stored_bytes, previous_end, &expected) || entry->offset != expected)
        return status_fail(status, STATUS_CORRUPT,
                           "offset: expected %" PRIu64 " (the next aligned place), found %" PRIu64, expected,
                           entry->offset);
    if (!checked_range(entry->offset, entry->stored_bytes, file_bytes))
        return status_fail(status, STATUS_CORRUPT,
                           "%" PRIu64 " bytes at offset %" PRIu64 " end after the file's end at %" PRIu64,
                           entry->stored_bytes, entry->offset, file_bytes);
    if (entry->raw_bytes == 0 || entry->raw_bytes > engine_section_traits(entry->type)->limit)
        return status_fail(status, STATUS_CORRUPT, "raw size: expected 1 to %" PRIu64 ", found %" PRIu64,
                           engine_section_traits(entry->type)->limit, entry->raw_bytes);
    if (!(entry->flags & SECTION_FLAG_ZLIB) && entry->raw_bytes != entry->stored_bytes)
        return status_fail(status, STATUS_CORRUPT, "raw size: expected the stored size %" PRIu64 ", found %" PRIu64,
                           entry->stored_bytes, entry->raw_bytes);
    if ((entry->flags & SECTION_FLAG_ZLIB) && entry->raw_bytes / ZLIB_MAX_RATIO > entry->stored_bytes)
        return status_fail(status, STATUS_CORRUPT,
                           "raw size: %" PRIu64 " bytes are more than can be compressed into %" PRIu64,
                           entry->raw_bytes, entry->stored_bytes);
    if (entry->reserved != 0) return status_fail(status, STATUS_CORRUPT, "a reserved field is not zero");
    return true;
}

static bool check_padding(const struct engine *engine, uint64_t from, uint64_t to, struct status *status)
{
    static const uint8_t zeros[ENGINE_HEADER_SPACE];
    uint8_t piece[ENGINE_HEADER_SPACE];
    while (from < to) {
        const uint64_t bytes = to - from < sizeof piece ? to - from : sizeof piece;
        if (!read_bytes(engine, from, piece, bytes, status)) return false;
        if (memcmp(piece, zeros, (size_t)bytes) != 0)
            return status_fail(status, STATUS_CORRUPT, "expected zeros only; " ADVICE_DAMAGED);
        from += bytes;
    }
    return true;
}

/* Table and padding: together with the checksums they cover every byte of the file. */
static bool check_table(const struct engine *engine, const struct engine_header *header,
                        const struct engine_section_entry *entries, struct status *status)
{
    uint64_t previous_end = header->header_bytes;
    for (uint32_t i = 0; i < header->section_count; i++) {
        const struct engine_section_entry *entry = &entries[i];
        const char *name = engine_section_name(entry->type);
        /* The space before byte 4096 belongs to the header, even if the table is short. */
        uint64_t place_from = i == 0 ? ENGINE_HEADER_SPACE : previous_end;
        if (!check_flags(header, entry, status) || !check_sizes(entry, place_from, header->file_bytes, status))
            return status_prefix(status, "section table: entry %" PRIu32 ": section '%s'", i, name);
        for (uint32_t other = 0; other < i; other++)
            if (entries[other].type == entry->type)
                return status_fail(status, STATUS_CORRUPT,
                                   "section table: entry %" PRIu32 ": section '%s' of type %" PRIu32 " appears twice",
                                   i, name, entry->type);
        if (!check_padding(engine, previous_end, entry->offset, status))
            return status_prefix(status, "padding before section '%s'", name);
        previous_end = entry->offset + entry->stored_bytes;
    }
    if (previous_end != header->file_bytes)
        return status_fail(status, STATUS_CORRUPT,
                           "section table: the sections end at byte %" PRIu64 ", the file at %" PRIu64, previous_end,
                           header->file_bytes);
    return true;
}

/* Presence and sizes of the sections, which the manifest is compared with. */
static bool note_sections(const struct engine_header *header, const struct engine_section_entry *entries,
                          struct engine_parts *parts, struct status *status)
{
    for (uint32_t i = 0; i < header->section_count; i++)
        if (engine_section_traits(entries[i].type)->is_known) parts->part[entries[i].type].size = entries[i].raw_bytes;
    static const enum engine_section needed[] = {SECTION_MANIFEST,      SECTION_TENSORS, SECTION_WEIGHTS,
                                                 SECTION_WEIGHT_HASHES, SECTION_PLANS,   SECTION_NAMES};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (parts->part[needed[i]].size == 0)
            return status_fail(status, STATUS_CORRUPT, "section table: section '%s' is missing",
                               engine_section_name(needed[i]));
    return true;
}

static bool inflate_section(struct engine *engine, const uint8_t *stored, const struct engine_section_entry *entry,
                            uint8_t **raw, struct status *status)
{
    uLongf raw_bytes = (uLongf)entry->raw_bytes;
    uLong stored_bytes = (uLong)entry->stored_bytes;
    *raw = engine_take(engine, entry->raw_bytes, 1, status);
    if (!*raw) return false;
    int result = uncompress2(*raw, &raw_bytes, stored, &stored_bytes);
    if (result == Z_OK && raw_bytes == entry->raw_bytes && stored_bytes == entry->stored_bytes) return true;
    engine_give_back(engine, *raw, entry->raw_bytes);
    *raw = NULL;
    if (result == Z_MEM_ERROR) return status_fail(status, STATUS_MACHINE, "out of memory");
    return status_fail(status, STATUS_CORRUPT,
                       "the compressed data do not give the stated %" PRIu64 " bytes; " ADVICE_DAMAGED,
                       entry->raw_bytes);
}

static bool check_hash(const struct engine_section_entry *entry, uint64_t hash, struct status *status)
{
    if (hash == entry->hash) return true;
    return status_fail(status, STATUS_CORRUPT,
                       "checksum: expected %016" PRIx64 ", found %016" PRIx64 "; " ADVICE_DAMAGED, entry->hash, hash);
}

/* Hashes bytes that are not kept; `hash` is set on success. */
static bool hash_bytes(const struct engine *engine, uint64_t offset, uint64_t bytes, uint64_t *hash,
                       struct status *status)
{
    uint8_t *piece = malloc(PIECE_BYTES);
    struct hash64_stream *stream = hash64_stream_begin();
    bool ok = (piece && stream) || status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint64_t done = 0; ok && done < bytes;) {
        const uint64_t count = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        ok = read_bytes(engine, offset + done, piece, count, status);
        if (ok) hash64_stream_add(stream, piece, (size_t)count);
        done += count;
    }
    free(piece);
    if (stream) *hash = hash64_stream_end(stream);
    return ok;
}

/* Copies one section, checks the copy, and records the location of its raw bytes. */
static bool load_section(struct engine *engine, uint32_t index, const struct engine_section_entry *entry,
                         struct engine_parts *parts, struct status *status)
{
    uint8_t *bytes = engine_take(engine, entry->stored_bytes, 1, status);
    if (!bytes) return false;
    engine->owned[index] = bytes;
    if (!read_bytes(engine, entry->offset, bytes, entry->stored_bytes, status) ||
        !check_hash(entry, hash64(bytes, (size_t)entry->stored_bytes), status))
        return false;
    if (entry->flags & SECTION_FLAG_ZLIB) {
        uint8_t *raw = NULL;
        if (!inflate_section(engine, bytes, entry, &raw, status)) return false;
        engine_give_back(engine, bytes, entry->stored_bytes);
        engine->owned[index] = bytes = raw;
    }
    parts->part[entry->type] = (struct engine_part){bytes, entry->raw_bytes};
    return true;
}

/* Most raw bytes of a section in an engine with this manifest. */
static uint64_t raw_bound(const struct engine *engine, unsigned type)
{
    enum { TENSOR_NAME_BYTES = 256, TOKEN_BYTES = 1024, TOKENIZER_BYTES = 16 << 20 };
    const struct manifest *manifest = &engine->manifest;
    const uint64_t context = manifest->geometry.max_context, vocabulary = manifest->geometry.vocab_size,
                   limit = engine_section_traits(type)->limit;
    uint64_t bound = limit;
    if (type == SECTION_TENSORS) {
        /* Each begins at a multiple of the alignment. */
        const uint64_t most = manifest_rank_weights(manifest) / PLAN_ALIGNMENT + 1;
        bound = sizeof(struct engine_tensors_header) +
                (most < limit ? most : limit) * (sizeof(struct engine_tensor_entry) + TENSOR_NAME_BYTES);
    } else if (type == SECTION_TOKENIZER) {
        bound = TOKENIZER_BYTES + (vocabulary < limit ? vocabulary : limit) * TOKEN_BYTES;
    } else if (type == SECTION_GOLDEN) {
        const uint64_t factors[] = {context, vocabulary + 1, sizeof(float)};
        if (!checked_product(factors, 3, &bound) || !checked_add(bound, ENGINE_GOLDEN_MOST_HEADER, &bound))
            bound = limit;
    } else if (type == SECTION_GOLDEN_PLANS) {
        const struct engine_golden_plans_header most = {
            .vocab_size = vocabulary < UINT32_MAX ? (uint32_t)vocabulary : UINT32_MAX,
            .sequence_count = GOLDEN_MOST_SEQUENCES,
            .row_count = GOLDEN_MOST_ROWS,
            .case_count = GOLDEN_MOST_CASES,
            .item_count = GOLDEN_MOST_ITEMS,
        };
        const uint64_t tokens[] = {context, GOLDEN_MOST_SEQUENCES, sizeof(int32_t)};
        uint64_t token_bytes;
        if (!engine_golden_plans_bytes(&most, &bound) || !checked_product(tokens, 3, &token_bytes) ||
            !checked_add(bound, token_bytes, &bound) || !checked_add(bound, ENGINE_GOLDEN_MOST_HEADER, &bound))
            bound = limit;
    } else if (type == SECTION_GOLDEN_DRAFTS) {
        const struct engine_golden_drafts_header most = {
            .vocab_size = vocabulary < UINT32_MAX ? (uint32_t)vocabulary : UINT32_MAX,
            .token_count = context < UINT32_MAX ? (uint32_t)context : UINT32_MAX,
            .row_count = GOLDEN_MOST_ROWS,
        };
        if (!engine_golden_drafts_bytes(&most, &bound) || !checked_add(bound, ENGINE_GOLDEN_MOST_HEADER, &bound))
            bound = limit;
    }
    return bound < limit ? bound : limit;
}

static bool check_bound(const struct engine *engine, const struct engine_section_entry *entry, struct status *status)
{
    if (entry->type == SECTION_WEIGHT_HASHES) {
        const uint64_t weights_bytes = engine->manifest.weights_bytes, bytes = engine->weight_chunks * sizeof(uint64_t);
        return entry->raw_bytes == bytes ||
               status_fail(status, STATUS_CORRUPT,
                           "expected %" PRIu64 " bytes for %" PRIu64 " bytes of weights, found %" PRIu64, bytes,
                           weights_bytes, entry->raw_bytes);
    }
    const uint64_t bound = raw_bound(engine, entry->type);
    return entry->raw_bytes <= bound ||
           status_fail(status, STATUS_CORRUPT,
                       "raw size: expected at most %" PRIu64 " in an engine with this manifest, found %" PRIu64, bound,
                       entry->raw_bytes);
}

/* Reads all sections but the manifest, which has been read, and the weights (engine_verify_weights). */
static bool load_other(struct engine *engine, uint32_t index, const struct engine_section_entry *entry,
                       struct engine_parts *parts, struct status *status)
{
    uint64_t hash = 0;
    if (!engine_section_traits(entry->type)->is_known)
        return hash_bytes(engine, entry->offset, entry->stored_bytes, &hash, status) && check_hash(entry, hash, status);
    return check_bound(engine, entry, status) && load_section(engine, index, entry, parts, status);
}

static const struct engine_section_entry *find_entry(const struct engine_header *header,
                                                     const struct engine_section_entry *entries, unsigned type)
{
    uint32_t i = 0;
    while (i < header->section_count && entries[i].type != type) i++;
    return &entries[i];
}

/* The chunk hashes represent the weights: their own hash is the weight section's checksum. */
static bool check_weight_hashes(const struct engine_section_entry *weights, const struct engine_part *hashes,
                                struct status *status)
{
    uint64_t hash = hash64(hashes->bytes, (size_t)hashes->size);
    if (weights->hash == hash) return true;
    return status_fail(status, STATUS_CORRUPT,
                       "section 'weights': checksum of the chunk hashes: expected %016" PRIx64 ", found %016" PRIx64
                       "; " ADVICE_DAMAGED,
                       weights->hash, hash);
}

/* Memory that a regular file needs; more is taken for an attack. */
static uint64_t default_limit(const struct engine_header *header, const struct engine_section_entry *weights)
{
    uint64_t bytes;
    if (!checked_mul(header->file_bytes - weights->stored_bytes, ENGINE_HOST_RATIO, &bytes) ||
        !checked_add(bytes, ENGINE_HOST_BASE_BYTES, &bytes))
        return UINT64_MAX;
    return bytes;
}

/* Between engine_open_begin and engine_open_finish. */
struct engine_opening {
    struct engine_header header;
    struct engine_section_entry entries[ENGINE_MAX_SECTIONS];
    struct engine_parts parts;
};

static bool read_manifest(struct engine *engine, struct engine_opening *opening, struct status *status)
{
    const struct engine_header *header = &opening->header;
    struct engine_parts *parts = &opening->parts;
    if (!note_sections(header, opening->entries, parts, status)) return false;
    const struct engine_section_entry *weights = find_entry(header, opening->entries, SECTION_WEIGHTS),
                                      *manifest = find_entry(header, opening->entries, SECTION_MANIFEST);
    if (!engine->host_limit) engine->host_limit = default_limit(header, weights);
    memcpy(parts->builder_version, header->builder_version, sizeof parts->builder_version);
    if (!load_section(engine, (uint32_t)(manifest - opening->entries), manifest, parts, status) ||
        !engine_verify_manifest(engine, parts, status))
        return status_prefix(status, "section 'manifest'");
    engine->weights = engine->bytes + weights->offset;
    return true;
}

static bool read_other_sections(struct engine *engine, struct engine_opening *opening, struct status *status)
{
    const struct engine_section_entry *entries = opening->entries;
    for (uint32_t i = 0; i < opening->header.section_count; i++)
        if (entries[i].type != SECTION_MANIFEST && entries[i].type != SECTION_WEIGHTS &&
            !load_other(engine, i, &entries[i], &opening->parts, status))
            return status_prefix(status, "section '%s'", engine_section_name(entries[i].type));
    return check_weight_hashes(find_entry(&opening->header, entries, SECTION_WEIGHTS),
                               &opening->parts.part[SECTION_WEIGHT_HASHES], status) &&
           engine_verify_parts(engine, &opening->parts, status);
}

static bool begin(struct engine *engine, struct status *status)
{
    uint8_t head[ENGINE_HEADER_SPACE];
    struct engine_opening *opening = engine->opening = calloc(1, sizeof *opening);
    struct engine_header *header = &opening->header;
    if (!opening) return status_fail(status, STATUS_MACHINE, "out of memory");
    if (!engine_host_check(status)) return false;
    if (!read_bytes(engine, 0, head, engine->size < sizeof head ? engine->size : sizeof head, status))
        return status_prefix(status, "header");
    if (!check_prefix(head, engine->size, header, status)) return false;
    if (!check_version(header, status)) return false;
    if (!check_header(header, engine->size, status)) return false;
    engine->format_minor = header->minor;
    engine->checksum = header->header_hash;
    memcpy(opening->entries, head + sizeof *header, header->section_count * sizeof opening->entries[0]);
    return check_table(engine, header, opening->entries, status) && read_manifest(engine, opening, status);
}

bool engine_open_begin(struct engine *engine, const char *path, int descriptor, uint64_t max_host_bytes,
                       struct status *status)
{
    *engine = (struct engine){.host_limit = max_host_bytes};
    if (descriptor == ENGINE_BY_PATH ? !file_map_open(&engine->map, path, status)
                                     : !file_map_open_descriptor(&engine->map, descriptor, path, status))
        return false;
    engine->bytes = engine->map.data;
    engine->size = engine->map.size;
    if (begin(engine, status)) return true;
    engine_close(engine);
    return status_prefix(status, "%s", path);
}

bool engine_open_finish(struct engine *engine, struct status *status)
{
    if (!read_other_sections(engine, engine->opening, status)) return false;
    free(engine->opening);
    engine->opening = NULL;
    return true;
}

bool engine_open(struct engine *engine, const char *path, struct status *status)
{
    if (!engine_open_begin(engine, path, ENGINE_BY_PATH, 0, status)) return false;
    if (engine_open_finish(engine, status)) return true;
    engine_close(engine);
    return status_prefix(status, "%s", path);
}

bool engine_open_memory(struct engine *engine, const void *data, uint64_t size, const char *name, struct status *status)
{
    *engine = (struct engine){0};
    if ((uintptr_t)data % PLAN_ALIGNMENT != 0)
        return status_fail(status, STATUS_USAGE, "%s: an engine in memory must be aligned to %d bytes", name,
                           PLAN_ALIGNMENT);
    engine->bytes = data;
    engine->size = size;
    if (begin(engine, status) && engine_open_finish(engine, status)) return true;
    engine_close(engine);
    return status_prefix(status, "%s", name);
}

void engine_chunk(const struct engine *engine, uint64_t chunk, uint64_t *offset, uint64_t *bytes)
{
    weight_chunk_range(engine->manifest.weights_bytes, plan_ranks(&engine->manifest.geometry), chunk, offset, bytes);
}

/* Verifies one chunk, in the file or, if `to` is not NULL, copied to its place there. */
static bool hash_chunk(const struct engine *engine, uint64_t offset, uint64_t bytes, uint8_t *to, uint64_t *hash,
                       struct status *status)
{
    if (to) {
        if (!engine_read_weights(engine, offset, to + offset, bytes, status)) return false;
        *hash = hash64(to + offset, (size_t)bytes);
    } else {
        /* Reads through the mapping, where the weights will be used; a copy would take three times as long. A
         * truncation of the file is detected before the read, except within the last millisecond. */
        if (!engine_unchanged(engine, status)) return status_prefix(status, "section 'weights'");
        *hash = hash64(engine->weights + offset, (size_t)bytes);
    }
    return true;
}

bool engine_copy_weights(const struct engine *engine, uint64_t first_chunk, uint64_t chunk_count, uint8_t *to,
                         struct status *status)
{
    if (!checked_range(first_chunk, chunk_count, engine->weight_chunks))
        return status_fail(status, STATUS_USAGE, "weight chunks %" PRIu64 " + %" PRIu64 " of %" PRIu64, first_chunk,
                           chunk_count, engine->weight_chunks);
    for (uint64_t chunk = first_chunk; chunk < first_chunk + chunk_count; chunk++) {
        uint64_t offset, bytes, hash = 0;
        engine_chunk(engine, chunk, &offset, &bytes);
        if (!hash_chunk(engine, offset, bytes, to, &hash, status)) return false;
        if (hash != engine->weight_hashes[chunk])
            return status_fail(status, STATUS_CORRUPT,
                               "section 'weights': chunk %" PRIu64 " of %" PRIu64 " (%" PRIu64 " bytes at %" PRIu64
                               "): checksum: expected %016" PRIx64 ", found %016" PRIx64 "; " ADVICE_DAMAGED
                               " with engbuild %s",
                               chunk, engine->weight_chunks, bytes, offset, engine->weight_hashes[chunk], hash,
                               engine->manifest.builder_version);
    }
    return true;
}

bool engine_verify_weights(const struct engine *engine, uint64_t first_chunk, uint64_t chunk_count,
                           struct status *status)
{
    return engine_copy_weights(engine, first_chunk, chunk_count, NULL, status);
}

bool engine_unchanged(const struct engine *engine, struct status *status)
{
    return file_map_unchanged(&engine->map, status);
}

void engine_use_weights(struct engine *engine, const uint8_t *weights)
{
    engine->weights = weights;
    engine->bytes = NULL;
    file_map_close(&engine->map);
}

bool engine_read_weights(const struct engine *engine, uint64_t offset, void *to, uint64_t bytes, struct status *status)
{
    if (!checked_range(offset, bytes, engine->manifest.weights_bytes))
        return status_fail(status, STATUS_USAGE, "weights: bytes %" PRIu64 " + %" PRIu64 " of %" PRIu64, offset, bytes,
                           engine->manifest.weights_bytes);
    if (engine->map.data)
        return file_map_read(&engine->map, (uint64_t)(engine->weights - engine->map.data) + offset, to, bytes,
                             status) ||
               status_prefix(status, "section 'weights'");
    memcpy(to, engine->weights + offset, bytes);
    return true;
}

void engine_read_ahead(const struct engine *engine, uint64_t offset, uint64_t bytes)
{
    const uint64_t all = engine->manifest.weights_bytes;
    if (offset < all) file_map_read_ahead(engine->weights + offset, bytes < all - offset ? bytes : all - offset);
}

void engine_close(struct engine *engine)
{
    for (size_t i = 0; i < ENGINE_MAX_SECTIONS; i++) free(engine->owned[i]);
    free(engine->tensors);
    free(engine->kernels);
    free(engine->calls);
    free(engine->plans);
    free(engine->library_plans);
    json_decref(engine->names);
    chat_templates_close(engine->chat_templates);
    free(engine->opening);
    file_map_close(&engine->map);
    *engine = (struct engine){0};
}
