/* SPDX-License-Identifier: Apache-2.0 */
/* Normalizer steps: Unicode normal forms (utf8proc), strip, prepend, replace. Steps that treat each character alone are
 * in tokenizer_map.c.
 *
 * utf8proc orders combining marks by exchanging neighbours, quadratic in the length of a run of marks. Text is not
 * trusted, so utf8proc only decomposes and composes here, and the ordering is our own. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "formats/tokenizer/tokenizer_internal.h"

enum { DECOMPOSITION_LIMIT = 32 /* U+FDFA has 18 characters, the most of all */ };

struct characters {
    utf8proc_int32_t *items;
    size_t count, capacity;
};

static bool reserve(struct characters *characters, size_t additional, struct status *status)
{
    if (characters->capacity - characters->count >= additional) return true;
    size_t capacity = characters->capacity * 2 + additional + 64;
    void *items = realloc(characters->items, capacity * sizeof *characters->items);
    if (!items) return status_fail(status, STATUS_MACHINE, "out of memory while normalizing text");
    characters->items = items;
    characters->capacity = capacity;
    return true;
}

static int combining_class(utf8proc_int32_t character)
{
    return (int)utf8proc_get_property(character)->combining_class;
}

/* Stable sort of a run of marks by combining class: insertion for a few, counting for long runs. */
static bool order_run(utf8proc_int32_t *run, size_t count, struct status *status)
{
    if (count <= 16) {
        for (size_t i = 1; i < count; i++) {
            utf8proc_int32_t moving = run[i];
            size_t at = i;
            for (; at > 0 && combining_class(run[at - 1]) > combining_class(moving); at--) run[at] = run[at - 1];
            run[at] = moving;
        }
        return true;
    }
    size_t starts[257] = {0};
    utf8proc_int32_t *copy = malloc(count * sizeof *copy);
    if (!copy) return status_fail(status, STATUS_MACHINE, "out of memory while normalizing text");
    memcpy(copy, run, count * sizeof *copy);
    for (size_t i = 0; i < count; i++) starts[(combining_class(copy[i]) & 0xFF) + 1]++;
    for (size_t i = 1; i < 257; i++) starts[i] += starts[i - 1];
    for (size_t i = 0; i < count; i++) run[starts[combining_class(copy[i]) & 0xFF]++] = copy[i];
    free(copy);
    return true;
}

static bool order_marks(struct characters *characters, struct status *status)
{
    size_t i = 0;
    while (i < characters->count) {
        size_t end = i;
        while (end < characters->count && combining_class(characters->items[end]) != 0) end++;
        if (end - i > 1 && !order_run(characters->items + i, end - i, status)) return false;
        i = end + 1;
    }
    return true;
}

static bool append_character(struct text_buffer *out, uint32_t character, struct status *status)
{
    char bytes[TEXT_CHARACTER_BYTES];
    return tokenizer_text_append(out, bytes, text_write(character, bytes), status);
}

/* Characters below U+0300 do not change under NFC or take part in reordering; those below U+00C0 (ASCII for the
 * compatibility forms) do not change under NFD. */
static bool unchanged(uint32_t kind, const char *text, size_t size)
{
    uint8_t limit = kind == STEP_NFC ? 0xCC : kind == STEP_NFD ? 0xC3 : 0x80; /* lead bytes */
    for (size_t i = 0; i < size; i++)
        if ((uint8_t)text[i] >= limit) return false;
    return true;
}

static bool normal_form(uint32_t kind, const char *text, size_t size, struct text_buffer *out, struct status *status)
{
    bool compatibility = kind == STEP_NFKC || kind == STEP_NFKD, compose = kind == STEP_NFC || kind == STEP_NFKC;
    utf8proc_option_t options =
        UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatibility ? UTF8PROC_COMPAT : 0);
    struct characters characters = {0};
    bool good = false;
    if (unchanged(kind, text, size)) return tokenizer_text_append(out, text, size, status);
    for (size_t at = 0; at < size;) {
        uint32_t character;
        int boundary = 0;
        at += text_read(text + at, &character);
        if (!reserve(&characters, DECOMPOSITION_LIMIT, status)) goto done;
        utf8proc_ssize_t count =
            utf8proc_decompose_char((utf8proc_int32_t)character, characters.items + characters.count,
                                    DECOMPOSITION_LIMIT, options, &boundary);
        if (count < 0 || count > DECOMPOSITION_LIMIT) {
            status_fail(status, STATUS_INTERNAL, "U+%04X does not decompose: %s", (unsigned)character,
                        count < 0 ? utf8proc_errmsg(count) : "too long");
            goto done;
        }
        characters.count += (size_t)count;
    }
    if (!order_marks(&characters, status)) goto done;
    if (compose) {
        utf8proc_ssize_t count =
            utf8proc_normalize_utf32(characters.items, (utf8proc_ssize_t)characters.count, options);
        if (count < 0) {
            status_fail(status, STATUS_INTERNAL, "composing characters failed: %s", utf8proc_errmsg(count));
            goto done;
        }
        characters.count = (size_t)count;
    }
    if (!tokenizer_text_reserve(out, characters.count, status)) goto done;
    for (size_t i = 0; i < characters.count; i++)
        if (!append_character(out, (uint32_t)characters.items[i], status)) goto done;
    good = true;
done:
    free(characters.items);
    return good;
}

/* Bytes of the first `count` characters. */
static size_t characters_bytes(const char *text, size_t size, size_t count)
{
    size_t at = 0;
    uint32_t character;
    for (; count > 0 && at < size; count--) at += text_read(text + at, &character);
    return at;
}

/* The form of the origin alone has as many characters as the origin has in the form of the text: a mark after it only
 * changes which character the last one is. */
static bool normal_form_origin(uint32_t kind, const char *text, size_t *origin, const struct text_buffer *out,
                               struct status *status)
{
    struct text_buffer alone = {0};
    size_t count = 0;
    if (*origin == 0) return true;
    if (!normal_form(kind, text, *origin, &alone, status)) return false;
    for (size_t i = 0; i < alone.size; i++) count += ((uint8_t)alone.text[i] & 0xC0) != 0x80;
    *origin = characters_bytes(out->text, out->size, count);
    text_buffer_free(&alone);
    return true;
}

static bool strip(uint32_t flags, const char *text, size_t size, size_t *origin, struct text_buffer *out,
                  struct status *status)
{
    size_t start = 0, end = size;
    uint32_t character;
    while ((flags & STRIP_LEFT) && start < end) {
        size_t length = text_read(text + start, &character);
        if (!text_is_space(character)) break;
        start += length;
    }
    while ((flags & STRIP_RIGHT) && end > start) {
        size_t previous = text_previous(text, end);
        text_read(text + previous, &character);
        if (!text_is_space(character)) break;
        end = previous;
    }
    *origin = *origin > end ? end : *origin;
    *origin -= *origin > start ? start : *origin;
    return tokenizer_text_append(out, text + start, end - start, status);
}

struct replacement {
    struct encode_scratch *scratch;
    const char *text, *content;
    size_t content_size;
    struct text_buffer *out;
    size_t origin_before, origin; /* of text and out */
};

static bool replace_segment(void *context, size_t start, size_t end, bool matched)
{
    struct replacement *replacement = context;
    const char *bytes = matched ? replacement->content : replacement->text + start;
    size_t size = matched ? replacement->content_size : end - start;
    /* content stands for the last byte that it replaces, or for the byte before an empty match */
    if (matched ? end <= replacement->origin_before && replacement->origin_before > 0
                : start < replacement->origin_before)
        replacement->origin =
            replacement->out->size +
            (!matched && end > replacement->origin_before ? replacement->origin_before - start : size);
    return encode_scratch_charge_growth(replacement->scratch, end - start, size) &&
           tokenizer_text_append(replacement->out, bytes, size, replacement->scratch->status);
}

static bool apply(struct encode_scratch *scratch, uint32_t index, const char *text, size_t size, size_t *origin,
                  struct text_buffer *out)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    const struct image_step *step = &tokenizer->normalizers[index];
    const char *content = tokenizer->pool + step->content_offset;
    if (!encode_scratch_charge(scratch, size + step->content_bytes)) return false;
    switch (step->kind) {
    case STEP_NFC:
    case STEP_NFD:
    case STEP_NFKC:
    case STEP_NFKD:
        return normal_form(step->kind, text, size, out, scratch->status) &&
               normal_form_origin(step->kind, text, origin, out, scratch->status);
    case STEP_LOWERCASE:
    case STEP_NMT:
    case STEP_DROP_MARKS:
    case STEP_CLEAN:
    case STEP_SPACE_IDEOGRAPHS:
    case STEP_BYTE_ALPHABET: return tokenizer_map_characters(scratch, step, text, size, origin, out);
    case STEP_CHARACTER_MAP: return tokenizer_apply_map(scratch, step, text, size, origin, out);
    case STEP_STRIP: return strip(step->flags, text, size, origin, out, scratch->status);
    case STEP_PREPEND:
        *origin += *origin > 0 ? step->content_bytes : 0;
        return (size == 0 || tokenizer_text_append(out, content, step->content_bytes, scratch->status)) &&
               tokenizer_text_append(out, text, size, scratch->status);
    default: { /* STEP_REPLACE_*: open has checked the kinds */
        struct replacement replacement = {scratch, text, content, step->content_bytes, out, *origin, 0};
        /* for Hugging Face, empty text has one segment, which is not a match */
        if (size > 0 && !tokenizer_pattern_segments(tokenizer->patterns[index], &scratch->matcher, text, size,
                                                    replace_segment, &replacement, scratch->status))
            return false;
        *origin = replacement.origin;
        return true;
    }
    }
}

bool tokenizer_normalize(struct encode_scratch *scratch, const char *text, size_t size, size_t *origin,
                         const char **out, size_t *out_size)
{
    for (uint32_t i = 0; i < scratch->tokenizer->header->normalizer_count; i++) {
        struct text_buffer *next = &scratch->normalized[i % 2];
        next->size = 0;
        if (!apply(scratch, i, text, size, origin, next)) return false;
        text = next->text ? next->text : "";
        size = next->size;
    }
    *out = text;
    *out_size = size;
    return true;
}
