/* SPDX-License-Identifier: Apache-2.0 */
/* Normalizer steps that treat each character alone, and SentencePiece's precompiled character maps. */
#include <string.h>
#include <utf8proc.h>

#include "formats/base/checked.h"
#include "formats/tokenizer/tokenizer_internal.h"

enum { MOST_CHARACTERS = 3 }; /* that a step makes of one */

/* The ranges that BERT's code for Chinese characters has. */
static bool is_ideograph(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static size_t map_nmt(uint32_t c, uint32_t *out)
{
    if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
        return 0;
    const bool is_space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                          (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                          c == 0xFFFD;
    out[0] = is_space ? ' ' : c;
    return 1;
}

static size_t map_clean(uint32_t c, uint32_t *out)
{
    const bool is_control = c != '\t' && c != '\n' && c != '\r' && text_is_control(c);
    out[0] = text_is_space(c) ? ' ' : c;
    return c != 0 && c != 0xFFFD && !is_control;
}

/* Characters that one becomes; returns their number. */
static size_t map_character(const struct image_step *step, uint32_t character, uint32_t out[MOST_CHARACTERS])
{
    out[0] = character;
    switch (step->kind) {
    case STEP_LOWERCASE: /* without context, like Rust's char::to_lowercase: only I with dot above becomes two */
        out[0] = character == 0x130 ? 'i' : (uint32_t)utf8proc_tolower((utf8proc_int32_t)character);
        out[1] = 0x307;
        return character == 0x130 ? 2 : 1;
    case STEP_NMT: return map_nmt(character, out);
    case STEP_DROP_MARKS:
        return !(step->flags == MARKS_WITHOUT_WIDTH ? text_is_mark_without_width(character) : text_is_mark(character));
    case STEP_CLEAN: return map_clean(character, out);
    default: /* STEP_SPACE_IDEOGRAPHS */
        if (!is_ideograph(character)) return 1;
        out[0] = out[2] = ' ';
        out[1] = character;
        return 3;
    }
}

static bool map_bytes(struct encode_scratch *scratch, const char *text, size_t size, size_t *origin,
                      struct text_buffer *out)
{
    const uint16_t *characters = scratch->tokenizer->byte_characters;
    size_t new_origin = 0;
    if (!tokenizer_text_reserve(out, size * 2 + TEXT_CHARACTER_BYTES, scratch->status)) return false;
    for (size_t i = 0; i < size; i++) {
        out->size += text_write(characters[(uint8_t)text[i]], out->text + out->size);
        if (i < *origin) new_origin = out->size;
    }
    *origin = new_origin;
    return true;
}

bool tokenizer_map_characters(struct encode_scratch *scratch, const struct image_step *step, const char *text,
                              size_t size, size_t *origin, struct text_buffer *out)
{
    size_t new_origin = 0;
    /* a step at most doubles the text */
    if (step->kind == STEP_BYTE_ALPHABET)
        return map_bytes(scratch, text, size, origin, out) && encode_scratch_charge_growth(scratch, size, out->size);
    for (size_t at = 0; at < size;) {
        uint32_t character, mapped[MOST_CHARACTERS];
        char bytes[MOST_CHARACTERS * TEXT_CHARACTER_BYTES];
        size_t bytes_size = 0, start = at;
        at += text_read(text + at, &character);
        size_t count = map_character(step, character, mapped);
        for (size_t i = 0; i < count; i++) bytes_size += text_write(mapped[i], bytes + bytes_size);
        if (!tokenizer_text_append(out, bytes, bytes_size, scratch->status)) return false;
        if (start < *origin) new_origin = out->size;
    }
    *origin = new_origin;
    return encode_scratch_charge_growth(scratch, size, out->size);
}

/* ---- character maps ---- */

static const struct image_character_map *map_at(const uint8_t *tables, const struct image_step *step)
{
    return (const struct image_character_map *)(tables + step->pattern_offset);
}

static const char *map_text(const struct image_character_map *map)
{
    return (const char *)(map->units + map->unit_count);
}

/* Steps through the array are checked as they are taken: a unit may point anywhere. */
bool tokenizer_check_map(const uint8_t *tables, uint32_t table_bytes, const struct image_step *step)
{
    if (step->pattern_offset % 4 != 0 || !checked_range(step->pattern_offset, step->pattern_bytes, table_bytes) ||
        step->pattern_bytes < sizeof(struct image_character_map))
        return false;
    const struct image_character_map *map = map_at(tables, step);
    const uint64_t bytes = sizeof *map + (uint64_t)map->unit_count * sizeof *map->units + map->text_bytes;
    return map->unit_count > 0 && bytes == step->pattern_bytes &&
           text_is_valid((const uint8_t *)map_text(map), map->text_bytes);
}

/* A unit of the double array: bits 0 to 7 the byte of the edge to it, 8 whether a text ends here, 10 to 30 the offset of
 * the children, which bit 9 scales by 256; a unit with bit 31 is no child and holds a value. */
static uint32_t unit_offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

/* The replacement of the shortest text of the map that `text` begins with; NULL: none. */
static const char *find_replacement(const struct image_character_map *map, const char *text, size_t size,
                                    size_t *replacement_size)
{
    uint32_t at = unit_offset(map->units[0]);
    for (size_t i = 0; i < size && text[i] != '\0'; i++) {
        at ^= (uint8_t)text[i];
        if (at >= map->unit_count) return NULL;
        const uint32_t unit = map->units[at];
        if ((unit & 0x800000FF) != (uint8_t)text[i]) return NULL;
        at ^= unit_offset(unit);
        if ((unit & 0x100) == 0) continue;
        if (at >= map->unit_count) return NULL;
        const uint32_t place = map->units[at] & 0x7FFFFFFF;
        if (place > map->text_bytes) return NULL;
        const char *found = map_text(map) + place;
        if (place < map->text_bytes && ((uint8_t)*found & 0xC0) == 0x80) return NULL;
        const char *end = place < map->text_bytes ? memchr(found, '\0', map->text_bytes - place) : NULL;
        *replacement_size = end ? (size_t)(end - found) : map->text_bytes - place;
        return found;
    }
    return NULL;
}

/* Size of the grapheme cluster at the start of the text. */
static size_t grapheme_size(const char *text, size_t size)
{
    uint32_t character, next;
    utf8proc_int32_t state = 0;
    size_t at = text_read(text, &character);
    while (at < size) {
        const size_t length = text_read(text + at, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)character, (utf8proc_int32_t)next, &state)) break;
        character = next;
        at += length;
    }
    return at;
}

/* Replaces [start, start + size) of the text if the map has it. Sets *found. */
static bool replace_part(struct encode_scratch *scratch, const struct image_character_map *map, const char *text,
                         size_t size, struct text_buffer *out, bool *found)
{
    size_t replacement_size;
    const char *replacement = find_replacement(map, text, size, &replacement_size);
    *found = replacement != NULL;
    return !replacement || (encode_scratch_charge_growth(scratch, size, replacement_size) &&
                            tokenizer_text_append(out, replacement, replacement_size, scratch->status));
}

/* As SentencePiece does: a short grapheme cluster is looked up as a whole, and replaced as a whole even if the map only
 * has its beginning; any other cluster character by character. */
bool tokenizer_apply_map(struct encode_scratch *scratch, const struct image_step *step, const char *text, size_t size,
                         size_t *origin, struct text_buffer *out)
{
    enum { LONG_GRAPHEME = 6 }; /* bytes */
    const struct image_character_map *map = map_at(scratch->tokenizer->tables, step);
    size_t new_origin = 0;
    for (size_t at = 0; at < size;) {
        const size_t grapheme = grapheme_size(text + at, size - at), end = at + grapheme;
        bool found = false;
        if (grapheme < LONG_GRAPHEME && !replace_part(scratch, map, text + at, grapheme, out, &found)) return false;
        if (found) {
            if (at < *origin) new_origin = out->size;
            at = end;
            continue;
        }
        while (at < end) {
            uint32_t character;
            const size_t start = at, length = text_read(text + at, &character);
            if (!replace_part(scratch, map, text + at, length, out, &found) ||
                (!found && !tokenizer_text_append(out, text + at, length, scratch->status)))
                return false;
            at += length;
            if (start < *origin) new_origin = out->size;
        }
    }
    /* if the map drops the start of the text, Hugging Face takes the first character left for that start */
    if (*origin > 0 && new_origin == 0 && out->size > 0) {
        uint32_t character;
        new_origin = text_read(out->text, &character);
    }
    *origin = new_origin;
    return true;
}
