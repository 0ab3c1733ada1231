/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizer steps. Each step cuts or rewrites one piece and passes the results to the next step at once; the
 * model follows the last step. Pieces are never collected, so memory does not grow with their number. */
#include <string.h>

#include "formats/tokenizer/tokenizer_internal.h"

/* A split in progress: the behaviours of Hugging Face, decided one segment at a time. The next segment may still be
 * joined to the one held back. */
struct split {
    struct encode_scratch *scratch;
    uint32_t step;
    const char *text;
    size_t origin;
    uint32_t behavior;
    bool invert;
    bool holds, previous_matched;
    size_t held_start, held_end;
};

static bool emit_piece(struct split *split, size_t start, size_t end)
{
    if (start == end) return true; /* empty pieces are dropped */
    return tokenizer_split(split->scratch, split->step + 1, split->text + start, end - start,
                           split->origin > start ? split->origin - start : 0);
}

static bool release(struct split *split)
{
    bool held = split->holds;
    split->holds = false;
    return !held || emit_piece(split, split->held_start, split->held_end);
}

static bool hold(struct split *split, size_t start, size_t end)
{
    if (!release(split)) return false;
    split->holds = true;
    split->held_start = start;
    split->held_end = end;
    return true;
}

static bool split_segment(void *context, size_t start, size_t end, bool matched)
{
    struct split *split = context;
    bool joins = false;
    if (split->invert) matched = !matched;
    switch (split->behavior) {
    case SPLIT_REMOVED: return matched || emit_piece(split, start, end);
    case SPLIT_MERGED_WITH_PREVIOUS: /* the first match after a word joins it; further ones are separate */
        joins = matched && !split->previous_matched;
        break;
    case SPLIT_MERGED_WITH_NEXT: /* the last match before a word joins it */
        joins = !matched && split->previous_matched;
        break;
    case SPLIT_CONTIGUOUS: /* neighbours of one kind are one piece */ joins = matched == split->previous_matched; break;
    default: /* SPLIT_ISOLATED */ return emit_piece(split, start, end);
    }
    split->previous_matched = matched;
    if (!joins || !split->holds) return hold(split, start, end);
    split->held_end = end;
    return true;
}

static struct split split_begin(struct encode_scratch *scratch, uint32_t step, const char *text, size_t origin)
{
    uint32_t flags = scratch->tokenizer->splitters[step].flags;
    return (struct split){.scratch = scratch,
                          .step = step,
                          .text = text,
                          .origin = origin,
                          .behavior = flags & SPLIT_BEHAVIOR_MASK,
                          .invert = (flags & SPLIT_INVERT) != 0};
}

static bool split_by_pattern(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size,
                             size_t origin)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    struct split split = split_begin(scratch, step, text, origin);
    return tokenizer_pattern_segments(tokenizer->patterns[tokenizer->header->normalizer_count + step],
                                      &scratch->matcher, text, size, split_segment, &split, scratch->status) &&
           release(&split);
}

static bool is_delimiter(uint32_t kind, uint32_t character)
{
    switch (kind) {
    case STEP_DIGITS: return text_is_number(character);
    case STEP_PUNCTUATION: return text_is_punctuation(character);
    default: /* STEP_WHITE_SPACE */ return text_is_space(character);
    }
}

/* Each character of a class is a match. */
static bool split_by_class(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, size_t origin)
{
    struct split split = split_begin(scratch, step, text, origin);
    const uint32_t kind = scratch->tokenizer->splitters[step].kind;
    size_t covered = 0;
    for (size_t at = 0; at < size;) {
        uint32_t character;
        size_t length = text_read(text + at, &character);
        if (is_delimiter(kind, character)) {
            if (covered < at && !split_segment(&split, covered, at, false)) return false;
            if (!split_segment(&split, at, at + length, true)) return false;
            covered = at + length;
        }
        at += length;
    }
    return (covered == size || split_segment(&split, covered, size, false)) && release(&split);
}

enum character_class { CLASS_SPACE, CLASS_WORD, CLASS_OTHER };

/* Runs of the characters of words, and of all others but white space. */
static bool split_words(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, size_t origin)
{
    struct split split = split_begin(scratch, step, text, origin);
    enum character_class current = CLASS_SPACE;
    size_t begin = 0;
    for (size_t at = 0; at < size;) {
        uint32_t character;
        size_t length = text_read(text + at, &character);
        enum character_class class = text_is_word(character)    ? CLASS_WORD
                                     : text_is_space(character) ? CLASS_SPACE
                                                                : CLASS_OTHER;
        if (class != current) {
            if (current != CLASS_SPACE && !emit_piece(&split, begin, at)) return false;
            begin = at;
            current = class;
        }
        at += length;
    }
    return current == CLASS_SPACE || emit_piece(&split, begin, size);
}

static bool split_by_length(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, size_t origin)
{
    struct split split = split_begin(scratch, step, text, origin);
    const uint32_t length = scratch->tokenizer->splitters[step].flags;
    size_t begin = 0, at = 0;
    uint32_t count = 0, character;
    while (at < size) {
        at += text_read(text + at, &character);
        if (++count < length && at < size) continue;
        if (!emit_piece(&split, begin, at)) return false;
        begin = at;
        count = 0;
    }
    return true;
}

static bool prepend_space(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, size_t origin)
{
    struct text_buffer *out = &scratch->stages[step];
    if (text[0] == ' ') return tokenizer_split(scratch, step + 1, text, size, origin);
    out->size = 0;
    origin += origin > 0;
    return encode_scratch_charge(scratch, size + 1) && tokenizer_text_append(out, " ", 1, scratch->status) &&
           tokenizer_text_append(out, text, size, scratch->status) &&
           tokenizer_split(scratch, step + 1, out->text, out->size, origin);
}

static bool metaspace(struct encode_scratch *scratch, uint32_t step_index, const char *text, size_t size, size_t origin)
{
    const struct image_step *step = &scratch->tokenizer->splitters[step_index];
    const char *mark = scratch->tokenizer->pool + step->content_offset;
    size_t mark_size = step->content_bytes;
    struct text_buffer *out = &scratch->stages[step_index];
    bool begins = text[0] == ' ' || (size >= mark_size && memcmp(text, mark, mark_size) == 0);
    bool wanted = step->flags == METASPACE_ALWAYS || (step->flags == METASPACE_FIRST && origin > 0);
    size_t new_origin = wanted && !begins && origin > 0 ? mark_size : 0;
    out->size = 0;
    if (!encode_scratch_charge(scratch, size + mark_size)) return false;
    if (wanted && !begins && !tokenizer_text_append(out, mark, mark_size, scratch->status)) return false;
    for (size_t at = 0; at < size;) {
        const char *space = memchr(text + at, ' ', size - at);
        size_t end = space ? (size_t)(space - text) : size;
        if (!tokenizer_text_append(out, text + at, end - at, scratch->status)) return false;
        if (space && !tokenizer_text_append(out, mark, mark_size, scratch->status)) return false;
        if (at < origin) { /* the mark stands for the space */
            size_t until = end < origin ? end : origin;
            new_origin += until - at + (space && end < origin ? mark_size : 0);
        }
        at = end + (space ? 1 : 0);
    }
    origin = new_origin;
    return tokenizer_split(scratch, step_index + 1, out->text, out->size, origin);
}

static bool byte_level(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, size_t origin)
{
    const uint16_t *characters = scratch->tokenizer->byte_characters;
    struct text_buffer *out = &scratch->stages[step];
    out->size = 0;
    if (!encode_scratch_charge(scratch, size * 2)) return false;
    if (!tokenizer_text_reserve(out, size * 2 + TEXT_CHARACTER_BYTES, scratch->status)) return false;
    size_t new_origin = 0;
    for (size_t i = 0; i < size; i++) {
        out->size += text_write(characters[(uint8_t)text[i]], out->text + out->size);
        if (i < origin) new_origin = out->size;
    }
    origin = new_origin;
    return tokenizer_split(scratch, step + 1, out->text, out->size, origin);
}

static bool encode_word(struct encode_scratch *scratch, const char *text, size_t size)
{
    switch (scratch->tokenizer->extension->model) {
    case MODEL_UNIGRAM: return tokenizer_unigram_word(scratch, text, size);
    case MODEL_WORD_PIECE: return tokenizer_word_piece(scratch, text, size);
    case MODEL_WORD_LEVEL: return tokenizer_word_level(scratch, text, size);
    default: /* MODEL_BPE */ return tokenizer_merge_word(scratch, text, size);
    }
}

bool tokenizer_split(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, size_t origin)
{
    if (size == 0) return true;
    if (step == scratch->tokenizer->header->splitter_count) return encode_word(scratch, text, size);
    switch (scratch->tokenizer->splitters[step].kind) {
    case STEP_SPLIT_STRING:
    case STEP_SPLIT_REGEX: return split_by_pattern(scratch, step, text, size, origin);
    case STEP_DIGITS:
    case STEP_PUNCTUATION:
    case STEP_WHITE_SPACE: return split_by_class(scratch, step, text, size, origin);
    case STEP_WORDS: return split_words(scratch, step, text, size, origin);
    case STEP_FIXED_LENGTH: return split_by_length(scratch, step, text, size, origin);
    case STEP_SPACE_FIRST: return prepend_space(scratch, step, text, size, origin);
    case STEP_METASPACE: return metaspace(scratch, step, text, size, origin);
    default: /* STEP_BYTE_LEVEL: open has checked the kinds */ return byte_level(scratch, step, text, size, origin);
    }
}
