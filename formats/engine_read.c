/* Opens an engine file: header, section table, padding, checksums, inflation. What lies inside the sections is then
 * checked by engine_verify.c. Nothing of the file is believed before it was checked, and every message names the part
 * of the file that is wrong. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "formats/checked.h"
#include "formats/engine_verify.h"
#include "formats/hash.h"

/* deflate cannot do better than 1032 to 1, so a larger raw size is a lie that would only cost memory. */
enum { ZLIB_MAX_RATIO = 1032 };

#define ADVICE_DAMAGED "the file is damaged: copy it again or rebuild it"

/* A few bytes as printable text, for messages about files that are something else. */
static void printable(const uint8_t *bytes, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++)
        out += sprintf(out, bytes[i] >= 0x20 && bytes[i] < 0x7f ? "%c" : "\\x%02x", bytes[i]);
}

/* The immutable prefix: says what the file is, whatever its version. */
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
    if (header->major != ENGINE_MAJOR)
        return status_fail(status, STATUS_VERSION,
                           "header: engine format: expected major version %d, found %u.%u (written by engbuild %s); "
                           "rebuild the engine with the engbuild that came with this runtime, or use a runtime that "
                           "reads format %u",
                           ENGINE_MAJOR, header->major, header->minor, version, header->major);
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

/* What this version does with a section: used in place, used, or passed over. */
static bool section_is_known(uint32_t type)
{
    switch (type) {
    case SECTION_MANIFEST:
    case SECTION_TENSORS:
    case SECTION_WEIGHTS:
    case SECTION_WEIGHT_HASHES:
    case SECTION_KERNELS:
    case SECTION_PLANS:
    case SECTION_TACTICS:
    case SECTION_TOKENIZER:
    case SECTION_GOLDEN:
    case SECTION_LIBRARY_CALLS:
    case SECTION_LIBRARY_PLANS: return true;
    default: return false; /* among them those whose numbers are reserved for device targets */
    }
}

static bool check_flags(const struct engine_header *header, const struct engine_section_entry *entry,
                        struct status *status)
{
    if ((entry->flags & ~(uint32_t)SECTION_FLAGS_KNOWN) != 0 ||
        (!section_is_known(entry->type) && (entry->flags & SECTION_FLAG_REQUIRED)))
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
                           "%" PRIu64 " bytes at offset %" PRIu64 " end behind the file's end at %" PRIu64,
                           entry->stored_bytes, entry->offset, file_bytes);
    if (entry->raw_bytes == 0 || entry->raw_bytes > engine_section_limit(entry->type))
        return status_fail(status, STATUS_CORRUPT, "raw size: expected 1 to %" PRIu64 ", found %" PRIu64,
                           engine_section_limit(entry->type), entry->raw_bytes);
    if (!(entry->flags & SECTION_FLAG_ZLIB) && entry->raw_bytes != entry->stored_bytes)
        return status_fail(status, STATUS_CORRUPT, "raw size: expected the stored size %" PRIu64 ", found %" PRIu64,
                           entry->stored_bytes, entry->raw_bytes);
    if ((entry->flags & SECTION_FLAG_ZLIB) && entry->raw_bytes / ZLIB_MAX_RATIO > entry->stored_bytes)
        return status_fail(status, STATUS_CORRUPT, "raw size: %" PRIu64 " bytes cannot come out of %" PRIu64,
                           entry->raw_bytes, entry->stored_bytes);
    if (entry->reserved != 0) return status_fail(status, STATUS_CORRUPT, "a reserved field is not zero");
    return true;
}

static bool is_zero(const uint8_t *bytes, uint64_t size)
{
    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, (size_t)size - 1) == 0);
}

/* Table and padding: together with the checksums they account for every byte of the file. */
static bool check_table(const uint8_t *bytes, const struct engine_header *header,
                        const struct engine_section_entry *entries, struct status *status)
{
    uint64_t previous_end = header->header_bytes;
    for (uint32_t i = 0; i < header->section_count; i++) {
        const struct engine_section_entry *entry = &entries[i];
        const char *name = engine_section_name(entry->type);
        /* The header's space belongs to the header, even if the table is short. */
        uint64_t place_from = i == 0 ? ENGINE_HEADER_SPACE : previous_end;
        if (!check_flags(header, entry, status) || !check_sizes(entry, place_from, header->file_bytes, status))
            return status_prefix(status, "section table: entry %" PRIu32 ": section '%s'", i, name);
        for (uint32_t other = 0; other < i; other++)
            if (entries[other].type == entry->type)
                return status_fail(status, STATUS_CORRUPT,
                                   "section table: entry %" PRIu32 ": section '%s' of type %" PRIu32 " appears twice",
                                   i, name, entry->type);
        if (!is_zero(bytes + previous_end, entry->offset - previous_end))
            return status_fail(status, STATUS_CORRUPT,
                               "padding before section '%s': expected zeros only; " ADVICE_DAMAGED, name);
        previous_end = entry->offset + entry->stored_bytes;
    }
    if (previous_end != header->file_bytes)
        return status_fail(status, STATUS_CORRUPT,
                           "section table: the sections end at byte %" PRIu64 ", the file at %" PRIu64, previous_end,
                           header->file_bytes);
    return true;
}

static bool inflate_section(const uint8_t *stored, const struct engine_section_entry *entry, uint8_t **raw,
                            struct status *status)
{
    uLongf raw_bytes = (uLongf)entry->raw_bytes;
    uLong stored_bytes = (uLong)entry->stored_bytes;
    *raw = malloc((size_t)entry->raw_bytes);
    if (!*raw) return status_fail(status, STATUS_MACHINE, "out of memory for %" PRIu64 " bytes", entry->raw_bytes);
    int result = uncompress2(*raw, &raw_bytes, stored, &stored_bytes);
    if (result == Z_OK && raw_bytes == entry->raw_bytes && stored_bytes == entry->stored_bytes) return true;
    free(*raw);
    *raw = NULL;
    if (result == Z_MEM_ERROR) return status_fail(status, STATUS_MACHINE, "out of memory");
    return status_fail(status, STATUS_CORRUPT,
                       "the compressed data do not give the stated %" PRIu64 " bytes; " ADVICE_DAMAGED,
                       entry->raw_bytes);
}

/* Checks the checksum of one section and notes where its raw bytes are. Weights are left to engine_verify_weights. */
static bool load_section(struct engine *engine, uint32_t index, const struct engine_section_entry *entry,
                         struct engine_parts *parts, struct status *status)
{
    const uint8_t *stored = engine->bytes + entry->offset;
    if (entry->type == SECTION_PLANS || entry->type == SECTION_LIBRARY_PLANS) {
        /* What is bound again for every session must stay what was verified, whatever becomes of the file. */
        uint8_t *copy = malloc((size_t)entry->stored_bytes);
        if (!copy)
            return status_fail(status, STATUS_MACHINE, "out of memory for %" PRIu64 " bytes", entry->stored_bytes);
        memcpy(copy, stored, (size_t)entry->stored_bytes);
        engine->owned[index] = copy;
        stored = copy;
    }
    if (entry->type != SECTION_WEIGHTS) {
        uint64_t hash = hash64(stored, (size_t)entry->stored_bytes);
        if (hash != entry->hash)
            return status_fail(status, STATUS_CORRUPT,
                               "checksum: expected %016" PRIx64 ", found %016" PRIx64 "; " ADVICE_DAMAGED, entry->hash,
                               hash);
    }
    if (!section_is_known(entry->type)) return true;
    struct engine_part part = {stored, entry->raw_bytes};
    if (entry->flags & SECTION_FLAG_ZLIB) {
        uint8_t *raw = NULL;
        if (!inflate_section(stored, entry, &raw, status)) return false;
        free(engine->owned[index]);
        engine->owned[index] = raw;
        part.bytes = raw;
    }
    parts->part[entry->type] = part;
    return true;
}

/* The chunk hashes stand for the weights: their own hash is the weight section's checksum. */
static bool check_weight_hashes(const struct engine_header *header, const struct engine_section_entry *entries,
                                const struct engine_parts *parts, struct status *status)
{
    for (int type = SECTION_MANIFEST; type <= SECTION_PLANS; type++)
        if (type != SECTION_KERNELS && !parts->part[type].bytes)
            return status_fail(status, STATUS_CORRUPT, "section table: section '%s' is missing",
                               engine_section_name((unsigned)type));
    const struct engine_part *hashes = &parts->part[SECTION_WEIGHT_HASHES];
    uint64_t weights_bytes = parts->part[SECTION_WEIGHTS].size;
    uint64_t chunks = weights_bytes / ENGINE_WEIGHT_CHUNK_BYTES + (weights_bytes % ENGINE_WEIGHT_CHUNK_BYTES != 0);
    if (hashes->size != chunks * sizeof(uint64_t))
        return status_fail(status, STATUS_CORRUPT,
                           "section 'weight hashes': expected %" PRIu64 " bytes for %" PRIu64
                           " bytes of weights, found %" PRIu64,
                           chunks * sizeof(uint64_t), weights_bytes, hashes->size);
    uint64_t hash = hash64(hashes->bytes, (size_t)hashes->size);
    for (uint32_t i = 0; i < header->section_count; i++)
        if (entries[i].type == SECTION_WEIGHTS && entries[i].hash != hash)
            return status_fail(status, STATUS_CORRUPT,
                               "section 'weights': checksum of the chunk hashes: expected %016" PRIx64
                               ", found %016" PRIx64 "; " ADVICE_DAMAGED,
                               entries[i].hash, hash);
    return true;
}

static bool read_engine(struct engine *engine, struct status *status)
{
    struct engine_header header;
    struct engine_section_entry entries[ENGINE_MAX_SECTIONS];
    struct engine_parts parts = {0};
    if (!engine_host_check(status)) return false;
    if (!check_prefix(engine->bytes, engine->size, &header, status)) return false;
    if (!check_version(&header, status)) return false;
    if (!check_header(&header, engine->size, status)) return false;
    engine->checksum = header.header_hash;
    memcpy(entries, engine->bytes + sizeof header, header.section_count * sizeof entries[0]);
    if (!check_table(engine->bytes, &header, entries, status)) return false;
    for (uint32_t i = 0; i < header.section_count; i++)
        if (!load_section(engine, i, &entries[i], &parts, status))
            return status_prefix(status, "section '%s'", engine_section_name(entries[i].type));
    if (!check_weight_hashes(&header, entries, &parts, status)) return false;
    memcpy(parts.builder_version, header.builder_version, sizeof parts.builder_version);
    return engine_verify_parts(engine, &parts, status);
}

bool engine_open(struct engine *engine, const char *path, struct status *status)
{
    *engine = (struct engine){0};
    if (!file_map_open(&engine->map, path, status)) return false;
    engine->bytes = engine->map.data;
    engine->size = engine->map.size;
    if (read_engine(engine, status)) return true;
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
    if (read_engine(engine, status)) return true;
    engine_close(engine);
    return status_prefix(status, "%s", name);
}

bool engine_verify_weights(const struct engine *engine, uint64_t first_chunk, uint64_t chunk_count,
                           struct status *status)
{
    if (!checked_range(first_chunk, chunk_count, engine->weight_chunks))
        return status_fail(status, STATUS_USAGE, "weight chunks %" PRIu64 " + %" PRIu64 " of %" PRIu64, first_chunk,
                           chunk_count, engine->weight_chunks);
    for (uint64_t chunk = first_chunk; chunk < first_chunk + chunk_count; chunk++) {
        uint64_t offset = chunk * ENGINE_WEIGHT_CHUNK_BYTES, rest = engine->manifest.weights_bytes - offset;
        uint64_t bytes = rest < ENGINE_WEIGHT_CHUNK_BYTES ? rest : ENGINE_WEIGHT_CHUNK_BYTES;
        uint64_t hash = hash64(engine->weights + offset, (size_t)bytes);
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
    file_map_close(&engine->map);
    *engine = (struct engine){0};
}
