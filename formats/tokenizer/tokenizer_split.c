/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizer steps. Each step cuts or rewrites one piece and passes the results to the next step at once; BPE
 * follows the last step. Pieces are never collected, so memory does not grow with their number. */
#include <string.h>
#include <utf8proc.h>

#include "formats/tokenizer/tokenizer_internal.h"

/* A split in progress: the behaviours of Hugging Face, decided one segment at a time. The next segment may still be
 * joined to the one held back. */
struct split {
    struct encode_scratch *scratch;
    uint32_t step;
    const char *text;
    bool at_start;
    uint32_t behavior;
    bool invert;
    bool holds, previous_matched;
    size_t held_start, held_end;
};

static bool emit_piece(struct split *split, size_t start, size_t end)
{
    if (start == end) return true; /* empty pieces are dropped */
    return tokenizer_split(split->scratch, split->step + 1, split->text + start, end - start,
                           split->at_start && start == 0);
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

static struct split split_begin(struct encode_scratch *scratch, uint32_t step, const char *text, bool at_start)
{
    uint32_t flags = scratch->tokenizer->splitters[step].flags;
    return (struct split){.scratch = scratch,
                          .step = step,
                          .text = text,
                          .at_start = at_start,
                          .behavior = flags & SPLIT_BEHAVIOR_MASK,
                          .invert = (flags & SPLIT_INVERT) != 0};
}

static bool split_by_pattern(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size,
                             bool at_start)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    struct split split = split_begin(scratch, step, text, at_start);
    return tokenizer_pattern_segments(tokenizer->patterns[tokenizer->header->normalizer_count + step],
                                      &scratch->matcher, text, size, split_segment, &split, scratch->status) &&
           release(&split);
}

/* Rust's char::is_numeric: Nd, Nl and No. */
static bool is_numeric(uint32_t character)
{
    if (character < 0x80) return character >= '0' && character <= '9';
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)character);
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

static bool split_by_digits(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, bool at_start)
{
    struct split split = split_begin(scratch, step, text, at_start);
    size_t covered = 0;
    for (size_t at = 0; at < size;) {
        uint32_t character;
        size_t length = text_read(text + at, &character);
        if (is_numeric(character)) {
            if (covered < at && !split_segment(&split, covered, at, false)) return false;
            if (!split_segment(&split, at, at + length, true)) return false;
            covered = at + length;
        }
        at += length;
    }
    return (covered == size || split_segment(&split, covered, size, false)) && release(&split);
}

static bool prepend_space(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, bool at_start)
{
    struct text_buffer *out = &scratch->stages[step];
    if (text[0] == ' ') return tokenizer_split(scratch, step + 1, text, size, at_start);
    out->size = 0;
    return encode_scratch_charge(scratch, size + 1) && tokenizer_text_append(out, " ", 1, scratch->status) &&
           tokenizer_text_append(out, text, size, scratch->status) &&
           tokenizer_split(scratch, step + 1, out->text, out->size, at_start);
}

static bool metaspace(struct encode_scratch *scratch, uint32_t step_index, const char *text, size_t size, bool at_start)
{
    const struct image_step *step = &scratch->tokenizer->splitters[step_index];
    const char *mark = scratch->tokenizer->pool + step->content_offset;
    size_t mark_size = step->content_bytes;
    struct text_buffer *out = &scratch->stages[step_index];
    bool begins = text[0] == ' ' || (size >= mark_size && memcmp(text, mark, mark_size) == 0);
    bool wanted = step->flags == METASPACE_ALWAYS || (step->flags == METASPACE_FIRST && at_start);
    out->size = 0;
    if (!encode_scratch_charge(scratch, size + mark_size)) return false;
    if (wanted && !begins && !tokenizer_text_append(out, mark, mark_size, scratch->status)) return false;
    for (size_t at = 0; at < size;) {
        const char *space = memchr(text + at, ' ', size - at);
        size_t end = space ? (size_t)(space - text) : size;
        if (!tokenizer_text_append(out, text + at, end - at, scratch->status)) return false;
        if (space && !tokenizer_text_append(out, mark, mark_size, scratch->status)) return false;
        at = end + (space ? 1 : 0);
    }
    return tokenizer_split(scratch, step_index + 1, out->text, out->size, at_start);
}

static bool byte_level(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, bool at_start)
{
    const uint16_t *characters = scratch->tokenizer->byte_characters;
    struct text_buffer *out = &scratch->stages[step];
    out->size = 0;
    if (!encode_scratch_charge(scratch, size * 2)) return false;
    if (!tokenizer_text_reserve(out, size * 2 + TEXT_CHARACTER_BYTES, scratch->status)) return false;
    for (size_t i = 0; i < size; i++) out->size += text_write(characters[(uint8_t)text[i]], out->text + out->size);
    return tokenizer_split(scratch, step + 1, out->text, out->size, at_start);
}

bool tokenizer_split(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, bool at_start)
{
    if (size == 0) return true;
    if (step == scratch->tokenizer->header->splitter_count) return tokenizer_merge_word(scratch, text, size);
    switch (scratch->tokenizer->splitters[step].kind) {
    case STEP_SPLIT_STRING:
    case STEP_SPLIT_REGEX: return split_by_pattern(scratch, step, text, size, at_start);
    case STEP_DIGITS: return split_by_digits(scratch, step, text, size, at_start);
    case STEP_SPACE_FIRST: return prepend_space(scratch, step, text, size, at_start);
    case STEP_METASPACE: return metaspace(scratch, step, text, size, at_start);
    default: /* STEP_BYTE_LEVEL: open has checked the kinds */ return byte_level(scratch, step, text, size, at_start);
    }
}
