/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of tokenizer.json to the image: top level of the file, normalized forms of added tokens, hash tables,
 * assembly. */
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "formats/tokenizer/tokenizer_import.h"
#include "formats/tokenizer/tokenizer_internal.h"

static bool out_of_memory(const struct tokenizer_import *import)
{
    return status_fail(import->status, STATUS_MACHINE, "out of memory");
}

/* Inserts entries 0 .. count - 1 into a table with a power of two of slots, at most half full; doubles it until every
 * entry is within the probe limit. `home` returns the home slot before masking, -1 to leave the entry out. */
static uint32_t *build_slots(const struct tokenizer_import *import, uint32_t count,
                             int64_t (*home)(const struct tokenizer_import *import, uint32_t index),
                             uint32_t *slot_count)
{
    uint32_t slots_needed = 4;
    while (slots_needed < 2 * (uint64_t)count) slots_needed *= 2;
    for (int attempt = 0; attempt < 4; attempt++, slots_needed *= 2) {
        uint32_t *slots = calloc(slots_needed, sizeof *slots), mask = slots_needed - 1;
        bool fits = true;
        if (!slots) {
            out_of_memory(import);
            return NULL;
        }
        for (uint32_t i = 0; i < count && fits; i++) {
            int64_t first = home(import, i);
            uint32_t slot = (uint32_t)first & mask;
            int probe = 0;
            if (first < 0) continue;
            for (; slots[slot] && probe < TOKENIZER_PROBE_LIMIT; probe++) slot = (slot + 1) & mask;
            fits = slots[slot] == 0;
            slots[slot] = i + 1;
        }
        if (fits) {
            *slot_count = slots_needed;
            return slots;
        }
        free(slots);
    }
    tokenizer_import_fail(import, "too many tokens or merges of one hash value");
    return NULL;
}

static int64_t token_home(const struct tokenizer_import *import, uint32_t id)
{
    const struct image_token *token = &import->tokens[id];
    if (!(token->flags & TOKEN_PRESENT)) return -1;
    return (uint32_t)hash64(import->pool.text + token->text_offset, token->text_bytes);
}

static int64_t merge_home(const struct tokenizer_import *import, uint32_t index)
{
    return tokenizer_merge_home(import->merges[index].left, import->merges[index].right);
}

static int compare_merges(const void *a, const void *b)
{
    const uint64_t *left = a, *right = b; /* {pair, rank} */
    if (left[0] != right[0]) return left[0] < right[0] ? -1 : 1;
    return (left[1] > right[1]) - (left[1] < right[1]);
}

/* The last of several merges of one pair counts, as in Hugging Face. */
static bool drop_repeated_merges(struct tokenizer_import *import)
{
    uint32_t count = import->header.merge_count, kept = 0;
    uint64_t(*order)[2] = malloc(((size_t)count + 1) * sizeof *order);
    if (!order) return out_of_memory(import);
    for (uint32_t i = 0; i < count; i++) {
        order[i][0] = (uint64_t)import->merges[i].left << 32 | import->merges[i].right;
        order[i][1] = i;
    }
    qsort(order, count, sizeof *order, compare_merges);
    for (uint32_t i = 0; i + 1 < count; i++)
        if (order[i][0] == order[i + 1][0]) import->merges[order[i][1]].left = UINT32_MAX; /* marks it as dropped */
    for (uint32_t i = 0; i < count; i++)
        if (import->merges[i].left != UINT32_MAX) import->merges[kept++] = import->merges[i];
    import->header.merge_count = kept;
    free(order);
    return true;
}

bool tokenizer_import_assemble(const struct tokenizer_import *import, uint8_t **image, size_t *image_size)
{
    struct image_header header = import->header;
    struct image_extension extension = import->extension;
    const bool extended = import->needs_extension || extension.model != MODEL_BPE || extension.prefix_bytes ||
                          extension.suffix_bytes || import->first;
    uint32_t template_ids[2 * TOKENIZER_TEMPLATE_LIMIT];
    struct image_step steps[2 * TOKENIZER_STEP_LIMIT];
    memcpy(template_ids, import->template_ids, header.prefix_count * sizeof *template_ids);
    memcpy(template_ids + header.prefix_count, import->template_ids + TOKENIZER_TEMPLATE_LIMIT,
           header.suffix_count * sizeof *template_ids);
    memcpy(steps, import->normalizers, header.normalizer_count * sizeof *steps);
    memcpy(steps + header.normalizer_count, import->splitters, header.splitter_count * sizeof *steps);
    header.pool_bytes = (uint32_t)import->pool.size;
    header.decoded_bytes = (uint32_t)import->decoded.size;
    extension.score_count = import->scores ? header.token_count : 0;
    extension.first_count = import->first ? header.token_count : 0;
    extension.table_bytes = (uint32_t)import->tables.size;
    const struct {
        const void *bytes;
        size_t size;
    } sections[SECTION_COUNT] = {
        [SECTION_STEPS] = {steps, (header.normalizer_count + header.splitter_count) * sizeof *steps},
        [SECTION_TEMPLATE] = {template_ids, (header.prefix_count + header.suffix_count) * sizeof *template_ids},
        [SECTION_ADDED] = {import->image_added, ((size_t)header.added_plain_count + header.added_normalized_count) *
                                                    sizeof *import->image_added},
        [SECTION_TOKENS] = {import->tokens, (size_t)header.token_count * sizeof *import->tokens},
        [SECTION_TOKEN_SLOTS] = {import->token_slots, (size_t)header.token_slot_count * sizeof *import->token_slots},
        [SECTION_MERGES] = {import->merges, (size_t)header.merge_count * sizeof *import->merges},
        [SECTION_MERGE_SLOTS] = {import->merge_slots, (size_t)header.merge_slot_count * sizeof *import->merge_slots},
        [SECTION_POOL] = {import->pool.text, header.pool_bytes},
        [SECTION_DECODED] = {import->decoded.text, header.decoded_bytes},
        [SECTION_SCORES] = {import->scores, (size_t)extension.score_count * sizeof *import->scores},
        [SECTION_ORDER] = {import->order, (size_t)extension.order_count * sizeof *import->order},
        [SECTION_FIRST] = {import->first, (size_t)extension.first_count * sizeof *import->first},
        [SECTION_TABLES] = {import->tables.text, extension.table_bytes},
    };
    const size_t begin = sizeof header + (extended ? sizeof extension : 0);
    size_t size = begin;
    for (int i = 0; i < SECTION_COUNT; i++) size += (sections[i].size + 7) & ~(size_t)7;
    memcpy(header.magic, TOKENIZER_IMAGE_MAGIC, sizeof header.magic);
    header.version = extended ? 2 : 1; /* older readers take the first version */
    header.header_bytes = sizeof header;
    header.image_bytes = size;
    *image = calloc(1, size); /* allocated memory is aligned for any type; the padding is zero */
    if (!*image) return out_of_memory(import);
    *image_size = size;
    memcpy(*image, &header, sizeof header);
    if (extended) memcpy(*image + sizeof header, &extension, sizeof extension);
    uint8_t *at = *image + begin;
    for (int i = 0; i < SECTION_COUNT; i++) {
        if (sections[i].size) memcpy(at, sections[i].bytes, sections[i].size);
        at += (sections[i].size + 7) & ~(size_t)7;
    }
    return true;
}

/* Normalizes the added tokens that require it. This needs an open tokenizer: an image with the normalizer and one
 * token, since there must be one. */
static bool normalize_added(struct tokenizer_import *import)
{
    struct image_token lone = {.flags = TOKEN_PRESENT};
    struct tokenizer_import draft = {.status = import->status,
                                     .needs_extension = import->needs_extension,
                                     .pool = import->pool,
                                     .tables = import->tables,
                                     .tokens = &lone};
    uint8_t *image = NULL;
    size_t image_size = 0, text_size = 0;
    struct tokenizer *tokenizer = NULL;
    struct encode_scratch scratch;
    bool open = false, good = false;
    if (import->header.normalizer_count == 0) return true;
    memcpy(draft.normalizers, import->normalizers, sizeof draft.normalizers);
    draft.header.normalizer_count = import->header.normalizer_count;
    draft.header.token_count = 1;
    draft.header.unknown_id = -1;
    draft.token_slots = build_slots(&draft, 1, token_home, &draft.header.token_slot_count);
    draft.merge_slots = build_slots(&draft, 0, merge_home, &draft.header.merge_slot_count);
    if (!draft.token_slots || !draft.merge_slots || !tokenizer_import_assemble(&draft, &image, &image_size)) goto done;
    tokenizer = tokenizer_open(image, image_size, false, import->status);
    if (!tokenizer) goto done;
    for (size_t i = 0; i < import->added_count; i++) text_size += import->added[i].content_size;
    open = encode_scratch_open(&scratch, tokenizer, NULL, text_size, import->status);
    if (!open) goto done;
    for (size_t i = 0; i < import->added_count; i++) {
        struct added_token *added = &import->added[i];
        const char *text;
        size_t size, origin = 0;
        if (!added->is_normalized) continue;
        if (!tokenizer_normalize(&scratch, added->content, added->content_size, &origin, &text, &size)) goto done;
        if (size == 0 || size > TOKENIZER_ADDED_BYTES_LIMIT) {
            tokenizer_import_fail(import,
                                  "added token '%.80s' has %zu bytes after normalization (1 to %d are supported)",
                                  added->content, size, TOKENIZER_ADDED_BYTES_LIMIT);
            goto done;
        }
        if (size == added->content_size && memcmp(text, added->content, size) == 0) continue;
        added->normalized = malloc(size);
        added->normalized_size = size;
        if (!added->normalized) {
            out_of_memory(import);
            goto done;
        }
        memcpy(added->normalized, text, size);
    }
    good = true;
done:
    if (open) encode_scratch_close(&scratch);
    tokenizer_close(tokenizer);
    free(draft.token_slots);
    free(draft.merge_slots);
    free(image);
    return good;
}

/* qsort has no context argument: elements carry their text. */
struct sortable {
    struct image_added added;
    const char *text;
    bool normalized;
};

static int compare_added(const void *a, const void *b)
{
    const struct sortable *left = a, *right = b;
    uint32_t sizes[2] = {left->added.pattern_bytes, right->added.pattern_bytes};
    if (left->normalized != right->normalized) return left->normalized ? 1 : -1;
    int order = memcmp(left->text, right->text, sizes[0] < sizes[1] ? sizes[0] : sizes[1]);
    return order != 0 ? order : (sizes[0] > sizes[1]) - (sizes[0] < sizes[1]);
}

static bool sort_added(struct tokenizer_import *import)
{
    struct sortable *sortables = calloc(import->added_count + 1, sizeof *sortables);
    uint64_t total = 1; /* in bytes, as tokenizer_open counts */
    bool good = false;
    import->image_added = calloc(import->added_count + 1, sizeof *import->image_added);
    if (!sortables || !import->image_added) {
        out_of_memory(import);
        goto done;
    }
    for (size_t i = 0; i < import->added_count; i++) {
        const struct added_token *added = &import->added[i];
        struct sortable *sortable = &sortables[i];
        const struct image_token *token = &import->tokens[added->id];
        *sortable = (struct sortable){{added->id, added->flags, token->text_offset, token->text_bytes},
                                      added->content,
                                      added->is_normalized};
        if (added->is_normalized)
            import->header.added_normalized_count++;
        else
            import->header.added_plain_count++;
        if (!added->normalized) continue;
        sortable->text = added->normalized;
        if (!tokenizer_import_pool(import, added->normalized, added->normalized_size, &sortable->added.pattern_offset,
                                   &sortable->added.pattern_bytes))
            goto done;
    }
    qsort(sortables, import->added_count, sizeof *sortables, compare_added);
    for (size_t i = 0; i < import->added_count; i++) {
        if (i > 0 && compare_added(&sortables[i - 1], &sortables[i]) == 0) {
            tokenizer_import_fail(import, "added tokens %u and %u are the same after normalization",
                                  sortables[i - 1].added.id, sortables[i].added.id);
            goto done;
        }
        import->image_added[i] = sortables[i].added;
        total += sortables[i].added.pattern_bytes;
        if (total > TOKENIZER_ADDED_TOTAL_LIMIT) {
            tokenizer_import_fail(import, "added tokens of more than %d bytes together are not supported",
                                  TOKENIZER_ADDED_TOTAL_LIMIT);
            goto done;
        }
    }
    good = true;
done:
    free(sortables);
    return good;
}

static bool check_template(const struct tokenizer_import *import)
{
    for (uint32_t i = 0; i < import->header.prefix_count + import->header.suffix_count; i++) {
        uint32_t place =
            i < import->header.prefix_count ? i : TOKENIZER_TEMPLATE_LIMIT + i - import->header.prefix_count;
        uint32_t id = import->template_ids[place];
        if (id >= import->header.token_count || !(import->tokens[id].flags & TOKEN_PRESENT))
            return tokenizer_import_fail(import, "post_processor: token id %u does not exist", id);
    }
    return true;
}

static bool read_file(struct tokenizer_import *import, struct json_reader *reader)
{
    const char *version = "1.0";
    if (!json_reader_string(reader, "version", false, &version, import->status)) return false;
    if (strcmp(version, "1.0") != 0)
        return tokenizer_import_fail(import, "version '%.40s' is not supported (supported: 1.0)", version);
    (void)json_reader_get(reader, "truncation"); /* not applied: see tokenizer.h */
    (void)json_reader_get(reader, "padding");
    return tokenizer_import_normalizer(import, json_reader_get(reader, "normalizer")) &&
           tokenizer_import_pre_tokenizer(import, json_reader_get(reader, "pre_tokenizer")) &&
           tokenizer_import_post_processor(import, json_reader_get(reader, "post_processor")) &&
           tokenizer_import_decoder(import, json_reader_get(reader, "decoder")) &&
           tokenizer_import_model(import, json_reader_get(reader, "model")) &&
           tokenizer_import_added(import, json_reader_get(reader, "added_tokens")) &&
           json_reader_all_consumed(reader, import->status);
}

/* Determines whether U+2581 can be header.word_start_character; tokenizer_open checks it again. */
static void find_word_start(struct tokenizer_import *import)
{
    static const char mark[] = "\xE2\x96\x81";
    if (import->extension.model != MODEL_BPE || import->extension.prefix_bytes || import->extension.suffix_bytes)
        return;
    if (!json_object_get(import->vocabulary, mark)) return;
    for (uint32_t i = 0; i < import->header.merge_count; i++) {
        const char *text = import->texts[import->merges[i].result];
        for (const char *found = text; (found = strstr(found, mark)) != NULL; found += sizeof mark - 1)
            if (found > text && (found - text < 3 || memcmp(found - 3, mark, 3) != 0)) return;
    }
    import->header.word_start_character = 0x2581;
}

static bool build_tables(struct tokenizer_import *import)
{
    struct image_header *header = &import->header;
    if (!drop_repeated_merges(import) || !tokenizer_import_order(import)) return false;
    find_word_start(import);
    import->token_slots = build_slots(import, header->token_count, token_home, &header->token_slot_count);
    if (!import->token_slots) return false;
    import->merge_slots = build_slots(import, header->merge_count, merge_home, &header->merge_slot_count);
    return import->merge_slots != NULL;
}

static void import_free(struct tokenizer_import *import)
{
    text_buffer_free(&import->pool);
    text_buffer_free(&import->decoded);
    text_buffer_free(&import->tables);
    json_decref(import->own_vocabulary);
    free(import->scores);
    free(import->order);
    free(import->first);
    for (size_t i = 0; i < import->added_count; i++) free(import->added[i].normalized);
    free(import->added);
    free(import->image_added);
    free(import->texts);
    free(import->tokens);
    free(import->token_slots);
    free(import->merges);
    free(import->merge_slots);
}

bool tokenizer_import(const char *json, size_t size, const char *name, uint8_t **image, size_t *image_size,
                      struct status *status)
{
    struct tokenizer_import import = {.status = status};
    struct json_reader reader = {0};
    struct tokenizer *tokenizer = NULL;
    bool good = false;
    json_t *root = json_parse(json, size, name, status);
    *image = NULL;
    *image_size = 0;
    if (!root || !json_reader_open(&reader, root, name, status)) goto done;
    if (!read_file(&import, &reader) || !check_template(&import) || !normalize_added(&import) || !sort_added(&import) ||
        !tokenizer_import_decoded(&import) || !build_tables(&import) ||
        !tokenizer_import_assemble(&import, image, image_size))
        goto done;
    /* The image must open: this also compiles the patterns, so that an invalid one is refused now */
    tokenizer = tokenizer_open(*image, *image_size, false, status);
    good = tokenizer != NULL;
done:
    if (!good) {
        free(*image);
        *image = NULL;
        *image_size = 0;
        /* messages about the file as JSON name it already */
        const size_t length = strlen(name);
        if (status && (strncmp(status->message, name, length) != 0 || status->message[length] != ':'))
            status_prefix(status, "%s", name);
    }
    tokenizer_close(tokenizer);
    json_reader_close(&reader);
    json_decref(root);
    import_free(&import);
    return good;
}
