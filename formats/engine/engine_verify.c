/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the inside of an engine's sections and every reference from one to another; plans: engine_plans.c. */
#include "formats/engine/engine_verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/base/printable.h"

/* ---- manifest ---------------------------------------------------------------------------------------------------- */

bool engine_verify_manifest(struct engine *engine, const struct engine_parts *parts, struct status *status)
{
    const struct engine_part *part = &parts->part[SECTION_MANIFEST];
    struct manifest *manifest = &engine->manifest;
    if (!manifest_parse(manifest, (const char *)part->bytes, (size_t)part->size, status)) {
        /* Inside an engine a bad manifest is damage, unless it is of an unknown version. */
        if (status && status->code == STATUS_BAD_INPUT) status->code = STATUS_CORRUPT;
        return false;
    }
    engine->manifest_text = (const char *)part->bytes;
    engine->manifest_text_size = (size_t)part->size;
    if (strcmp(manifest->builder_version, parts->builder_version) != 0)
        return status_fail(status, STATUS_CORRUPT, "builder version: expected '%s' as in the header, found '%s'",
                           parts->builder_version, manifest->builder_version);
    if ((manifest->target == TARGET_CUDA) != (parts->part[SECTION_KERNELS].size != 0))
        return status_fail(status, STATUS_CORRUPT, "target '%s': section 'kernels' is %s",
                           engine_target_name(manifest->target),
                           manifest->target == TARGET_CUDA ? "missing" : "present, but only device targets have one");
    uint64_t weights_bytes = parts->part[SECTION_WEIGHTS].size;
    if (manifest->weights_bytes != weights_bytes)
        return status_fail(status, STATUS_CORRUPT,
                           "weights_bytes: expected %" PRIu64 " as the weight section has, found %" PRIu64,
                           weights_bytes, manifest->weights_bytes);
    if (manifest->has_tokenizer != (parts->part[SECTION_TOKENIZER].size != 0))
        return status_fail(status, STATUS_CORRUPT, "says that there is %s tokenizer, but there is %s",
                           manifest->has_tokenizer ? "a" : "no", manifest->has_tokenizer ? "none" : "one");
    engine->weight_chunks = weight_chunk_count(weights_bytes, plan_ranks(&manifest->geometry));
    return true;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* The name must begin where the previous one ends, and be text without a NUL inside. */
static bool verify_tensor_name(const struct engine_tensor_entry *entry, const char *names, uint32_t name_bytes,
                               uint32_t name_offset, struct status *status)
{
    if (entry->name_offset != name_offset)
        return status_fail(status, STATUS_CORRUPT, "name offset: expected %" PRIu32 ", found %" PRIu32, name_offset,
                           entry->name_offset);
    if (entry->name_bytes == 0 || !checked_range(name_offset, (uint64_t)entry->name_bytes + 1, name_bytes) ||
        names[name_offset + entry->name_bytes] != '\0' ||
        strnlen(names + name_offset, entry->name_bytes) != entry->name_bytes ||
        !printable_text(names + name_offset, entry->name_bytes))
        return status_fail(status, STATUS_CORRUPT, "the name is not a text of %" PRIu32 " bytes", entry->name_bytes);
    return true;
}

static bool verify_tensor_shape(const struct engine_tensor_entry *entry, struct status *status)
{
    uint64_t rows, rank_shape[4];
    struct encoding_layout encoded;
    const struct encoding *encoding = encoding_find(entry->dtype);
    if (!encoding) return status_fail(status, STATUS_CORRUPT, "unknown encoding %" PRIu32, entry->dtype);
    const bool packed = entry->layout == LAYOUT_PANEL16 || entry->layout == LAYOUT_FRAGMENT16;
    if (entry->layout != LAYOUT_ROW_MAJOR && !packed)
        return status_fail(status, STATUS_CORRUPT, "unknown layout %u", entry->layout);
    if (entry->rank < 1 || entry->rank > 4 || (packed && entry->rank != 2))
        return status_fail(status, STATUS_CORRUPT, "rank: expected %s, found %u", packed ? "2" : "1 to 4", entry->rank);
    memcpy(rank_shape, entry->shape, sizeof rank_shape);
    for (unsigned i = 0; i < 4; i++)
        if ((i < entry->rank) != (rank_shape[i] != 0))
            return status_fail(status, STATUS_CORRUPT, "dimension %u of %u: unexpected size %" PRIu64, i, entry->rank,
                               rank_shape[i]);
    /* All dimensions but the last are rows; a vector has a column. */
    const unsigned last = entry->rank - 1u;
    if (!checked_product(rank_shape, entry->rank > 1 ? last : 1, &rows) ||
        !encoding_layout(encoding->id, rows, entry->rank > 1 ? rank_shape[last] : 1, &encoded))
        return status_fail(status, STATUS_CORRUPT, "the product of its shape overflows");
    /* A packed layout has padding, whose amount only the kernels know; it never has less than the codes. */
    const uint64_t expected = packed ? encoded.planes[PLANE_CODES].bytes : encoded.bytes;
    if (packed ? entry->bytes < expected : entry->bytes != expected)
        return status_fail(status, STATUS_CORRUPT, "size: expected %s%" PRIu64 " bytes for its shape, found %" PRIu64,
                           packed ? "at least " : "", expected, entry->bytes);
    return true;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static bool verify_unique_names(struct engine *engine, struct status *status)
{
    const char **names = engine_take(engine, engine->tensor_count, sizeof *names, status);
    if (!names) return false;
    for (size_t i = 0; i < engine->tensor_count; i++) names[i] = engine->tensors[i].name;
    qsort(names, engine->tensor_count, sizeof *names, compare_names);
    bool done = true;
    for (size_t i = 1; done && i < engine->tensor_count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            done = status_fail(status, STATUS_CORRUPT, "the name '%.120s' appears twice", names[i]);
    engine_give_back(engine, names, engine->tensor_count * sizeof *names);
    return done;
}

static bool verify_tensors(struct engine *engine, const struct engine_part *part, struct status *status)
{
    struct engine_tensors_header header;
    if (part->size < sizeof header) return status_fail(status, STATUS_CORRUPT, "too short for its header");
    memcpy(&header, part->bytes, sizeof header);
    uint64_t entries_end = sizeof header + (uint64_t)header.tensor_count * sizeof(struct engine_tensor_entry);
    if (header.tensor_count == 0 || entries_end + header.name_bytes != part->size)
        return status_fail(status, STATUS_CORRUPT,
                           "expected the size for %" PRIu32 " tensors and %" PRIu32 " bytes of names, found %" PRIu64
                           " bytes",
                           header.tensor_count, header.name_bytes, part->size);
    const struct engine_tensor_entry *entries = (const void *)(part->bytes + sizeof header);
    const char *names = (const char *)part->bytes + entries_end;
    engine->tensors = engine_take(engine, header.tensor_count, sizeof *engine->tensors, status);
    if (!engine->tensors) return false;
    engine->tensor_count = header.tensor_count;
    uint32_t name_offset = 0;
    uint64_t end = 0;
    for (uint32_t i = 0; i < header.tensor_count; i++) {
        const struct engine_tensor_entry *entry = &entries[i];
        if (!verify_tensor_name(entry, names, header.name_bytes, name_offset, status) ||
            !verify_tensor_shape(entry, status))
            return status_prefix(status, "tensor %" PRIu32, i);
        const char *name = names + name_offset;
        name_offset += entry->name_bytes + 1;
        if (entry->offset % PLAN_ALIGNMENT != 0 || entry->offset < end)
            return status_fail(status, STATUS_CORRUPT,
                               "tensor %" PRIu32 " '%.120s': offset: expected a multiple of %d from %" PRIu64
                               " on, found %" PRIu64,
                               i, name, PLAN_ALIGNMENT, end, entry->offset);
        if (!checked_range(entry->offset, entry->bytes, manifest_rank_weights(&engine->manifest)))
            return status_fail(status, STATUS_CORRUPT,
                               "tensor %" PRIu32 " '%.120s': %" PRIu64 " bytes at %" PRIu64 " leave the %" PRIu64
                               " bytes of weights",
                               i, name, entry->bytes, entry->offset, manifest_rank_weights(&engine->manifest));
        end = entry->offset + entry->bytes;
        struct engine_tensor *tensor = &engine->tensors[i];
        *tensor = (struct engine_tensor){
            .name = name,
            .dtype = (enum dtype)entry->dtype,
            .layout = (enum tensor_layout)entry->layout,
            .rank = entry->rank,
            .offset = entry->offset,
            .bytes = entry->bytes,
        };
        memcpy(tensor->shape, entry->shape, sizeof tensor->shape);
    }
    if (name_offset != header.name_bytes)
        return status_fail(status, STATUS_CORRUPT, "names: expected %" PRIu32 " bytes, found %" PRIu32, name_offset,
                           header.name_bytes);
    return verify_unique_names(engine, status);
}

/* ---- tactics ----------------------------------------------------------------------------------------------------- */

/* One tuning record per line. Only the frame is checked here: each line has its own checksum, which the reader of
 * records (tuning_record_parse) checks, and no plan depends on the content. */
static bool verify_tactics(struct engine *engine, const struct engine_part *part, uint64_t *line_count,
                           struct status *status)
{
    static const char digits[] = "0123456789abcdef";
    enum { HASH_DIGITS = 16 };
    *line_count = 0;
    if (!part->bytes) return true;
    const char *text = (const char *)part->bytes, *end = text + part->size;
    while (text < end) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        bool framed = line_end && line_end - text > HASH_DIGITS + 2 && text[HASH_DIGITS] == ' ' &&
                      text[HASH_DIGITS + 1] == '{' && line_end[-1] == '}' &&
                      !memchr(text, '\0', (size_t)(line_end - text));
        for (int i = 0; framed && i < HASH_DIGITS; i++) framed = memchr(digits, text[i], sizeof digits - 1) != NULL;
        if (!framed) return status_fail(status, STATUS_CORRUPT, "line %" PRIu64 " is not a tuning record", *line_count);
        text = line_end + 1;
        ++*line_count;
    }
    engine->tactics = (const char *)part->bytes;
    engine->tactics_size = (size_t)part->size;
    return true;
}

/* ---- all together ------------------------------------------------------------------------------------------------ */

/* Absent from engines before 2.2, and where the checkpoint had none. */
static bool verify_chat_templates(struct engine *engine, const struct engine_part *part, struct status *status)
{
    if (!part->size) return true;
    engine->chat_templates = chat_templates_open((const char *)part->bytes, (size_t)part->size, "templates", status);
    if (!engine->chat_templates) return false;
    size_t count;
    const int32_t *turns = chat_templates_turn_tokens(engine->chat_templates, &count);
    const uint64_t vocabulary = engine->manifest.geometry.vocab_size;
    bool known = chat_templates_answer_end(engine->chat_templates) < (int64_t)vocabulary;
    for (size_t i = 0; known && i < count; i++) known = (uint64_t)turns[i] < vocabulary;
    return known || status_fail(status, STATUS_CORRUPT, "expected token ids below %" PRIu64, vocabulary);
}

/* Names the section in the message unless it is right. */
static bool in_section(enum engine_section section, bool is_right, struct status *status)
{
    return is_right || status_prefix(status, "section '%s'", engine_section_name(section));
}

bool engine_verify_parts(struct engine *engine, const struct engine_parts *parts, struct status *status)
{
    uint64_t tactic_count;
    engine->weight_hashes = (const void *)parts->part[SECTION_WEIGHT_HASHES].bytes;
    /* Borrowed unchecked: tokenizer_open checks an image from any source. */
    engine->tokenizer = parts->part[SECTION_TOKENIZER].bytes;
    engine->tokenizer_size = (size_t)parts->part[SECTION_TOKENIZER].size;
    const struct engine_part *part = parts->part;
    return in_section(SECTION_TENSORS, verify_tensors(engine, &part[SECTION_TENSORS], status), status) &&
           in_section(SECTION_TACTICS, verify_tactics(engine, &part[SECTION_TACTICS], &tactic_count, status), status) &&
           in_section(SECTION_KERNELS, engine_verify_kernels(engine, &part[SECTION_KERNELS], status), status) &&
           in_section(SECTION_PLANS, engine_verify_plans(engine, &part[SECTION_PLANS], tactic_count, status), status) &&
           in_section(SECTION_LIBRARY_CALLS, engine_verify_calls(engine, &part[SECTION_LIBRARY_CALLS], status),
                      status) &&
           in_section(SECTION_LIBRARY_PLANS,
                      engine_verify_library_plans(engine, &part[SECTION_LIBRARY_PLANS], tactic_count, status),
                      status) &&
           in_section(SECTION_NAMES, engine_verify_names(engine, &part[SECTION_NAMES], status), status) &&
           (engine_verify_exchange(engine, status) || status_prefix(status, "collectives")) &&
           in_section(SECTION_GOLDEN, engine_verify_golden(engine, &part[SECTION_GOLDEN], status), status) &&
           in_section(SECTION_GOLDEN_PLANS, engine_verify_golden_plans(engine, &part[SECTION_GOLDEN_PLANS], status),
                      status) &&
           in_section(SECTION_GOLDEN_DRAFTS, engine_verify_golden_drafts(engine, &part[SECTION_GOLDEN_DRAFTS], status),
                      status) &&
           in_section(SECTION_CHAT_TEMPLATES, verify_chat_templates(engine, &part[SECTION_CHAT_TEMPLATES], status),
                      status);
}
