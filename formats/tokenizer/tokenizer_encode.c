/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding: repair of invalid UTF-8, added tokens, the pipeline between them, the post-processor's template. */
#include <stdlib.h>
#include <string.h>

#include "formats/tokenizer/tokenizer_internal.h"

static size_t spaces_before(const char *text, size_t floor, size_t at)
{
    while (at > floor) {
        uint32_t character;
        size_t previous = text_previous(text, at);
        text_read(text + previous, &character);
        if (!text_is_space(character)) break;
        at = previous;
    }
    return at;
}

static size_t spaces_after(const char *text, size_t size, size_t at)
{
    while (at < size) {
        uint32_t character;
        size_t length = text_read(text + at, &character);
        if (!text_is_space(character)) break;
        at += length;
    }
    return at;
}

static bool stands_alone(const char *text, size_t size, size_t start, size_t end)
{
    uint32_t character;
    if (start > 0) {
        text_read(text + text_previous(text, start), &character);
        if (text_is_word(character)) return false;
    }
    if (end < size) {
        text_read(text + end, &character);
        if (text_is_word(character)) return false;
    }
    return true;
}

/* The longest added token that begins at `at`; *added is NULL if there is none. Requires: places of one text in
 * increasing order. */
static bool added_at(struct encode_scratch *scratch, bool normalized, const char *text, size_t size, size_t at,
                     const struct image_added **added)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    struct added_window *window = &scratch->added[normalized];
    if (at >= window->end) {
        size_t count = size - at < ADDED_WINDOW ? size - at : ADDED_WINDOW;
        if (count > window->capacity) {
            void *found = realloc(window->found, count * sizeof *window->found);
            if (!found) return status_fail(scratch->status, STATUS_MACHINE, "out of memory while encoding text");
            window->found = found;
            window->capacity = count;
        }
        added_index_find(&tokenizer->added_index[normalized], text, size, at, count, window->found);
        window->begin = at;
        window->end = at + count;
    }
    uint32_t found = window->found[at - window->begin];
    *added = NULL;
    if (found) *added = &tokenizer->added[(normalized ? tokenizer->header->added_plain_count : 0) + found - 1];
    return true;
}

typedef bool (*piece_function)(struct encode_scratch *scratch, const char *text, size_t size, size_t origin);

/* Cuts added tokens out of the text and passes the text between them to `piece`. */
static bool extract_added(struct encode_scratch *scratch, bool normalized, const char *text, size_t size, size_t origin,
                          piece_function piece)
{
    bool any = scratch->tokenizer->added_index[normalized].nodes != NULL;
    size_t covered = 0;
    size_t run_start = SIZE_MAX, run_end = 0; /* the last white space scanned: added tokens may be white space, too */
    if (size == 0) return true;
    scratch->added[normalized].end = 0;
    for (size_t at = 0; at < size && any;) {
        const struct image_added *added = NULL;
        if (!added_at(scratch, normalized, text, size, at, &added)) return false;
        if (!added) {
            at++;
            continue;
        }
        size_t start = at, end = at + added->pattern_bytes;
        if (encode_scratch_is_text(scratch, (int32_t)added->id))
            tokenizer_mixed_choose(scratch, normalized, text, start, &end, &added);
        at = end; /* the search continues here, whatever happens to this match and the spaces after it */
        if (!added) continue;
        if ((added->flags & ADDED_SINGLE_WORD) && !stands_alone(text, size, start, end)) continue;
        /* text of an earlier match is not available */
        if (added->flags & ADDED_STRIP_LEFT) start = start > covered ? spaces_before(text, covered, start) : covered;
        if (added->flags & ADDED_STRIP_RIGHT) {
            if (end < run_start || end > run_end) {
                run_start = end;
                run_end = spaces_after(text, size, end);
            }
            end = run_end;
        }
        if (start > end) continue; /* nothing is left of it */
        if (covered < start &&
            !piece(scratch, text + covered, start - covered, origin > covered ? origin - covered : 0))
            return false;
        /* An earlier match may have stripped the spaces of this one: Hugging Face drops it then */
        if (start < end && !tokenizer_token_append(scratch->tokens, (int32_t)added->id, scratch->status)) return false;
        covered = end;
    }
    return covered == size || piece(scratch, text + covered, size - covered, origin > covered ? origin - covered : 0);
}

static bool split_piece(struct encode_scratch *scratch, const char *text, size_t size, size_t origin)
{
    return tokenizer_split(scratch, 0, text, size, origin);
}

static bool normalize_piece(struct encode_scratch *scratch, const char *text, size_t size, size_t origin)
{
    const char *normalized;
    size_t normalized_size;
    return tokenizer_normalize(scratch, text, size, &origin, &normalized, &normalized_size) &&
           tokenizer_mixed_normalized(scratch, text, size, &normalized, &normalized_size) &&
           extract_added(scratch, true, normalized, normalized_size, origin, split_piece);
}

static bool append_template(struct encode_scratch *scratch, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!tokenizer_token_append(scratch->tokens, (int32_t)ids[i], scratch->status)) return false;
    return true;
}

static bool encode(struct encode_scratch *scratch, const char *text, size_t size, bool add_special)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    const struct image_header *header = tokenizer->header;
    if (!text_is_valid((const uint8_t *)text, size)) {
        if (!tokenizer_text_repair(&scratch->repaired, text, size, scratch->status)) return false;
        text = scratch->repaired.text;
        size = scratch->repaired.size;
    }
    uint32_t character;
    const size_t origin = size ? text_read(text, &character) : 0;
    return (!add_special || append_template(scratch, tokenizer->prefix, header->prefix_count)) &&
           extract_added(scratch, false, text, size, origin, normalize_piece) &&
           (!add_special || append_template(scratch, tokenizer->suffix, header->suffix_count));
}

static bool encode_text(const struct tokenizer *tokenizer, const char *text, size_t size, bool add_special, bool plain,
                        const uint8_t *foreign, const int32_t *markers, size_t marker_count,
                        struct token_buffer *tokens, struct status *status)
{
    struct encode_scratch scratch;
    tokens->count = 0;
    if (size > INT32_MAX) return status_fail(status, STATUS_TOO_LONG, "text of %zu bytes (limit %d)", size, INT32_MAX);
    if (!encode_scratch_open(&scratch, tokenizer, tokens, size, status)) return false;
    scratch.plain = plain;
    scratch.mixed[0] = (struct mixed_text){text, foreign};
    scratch.markers = markers;
    scratch.marker_count = marker_count;
    bool good = encode(&scratch, text, size, add_special);
    encode_scratch_close(&scratch);
    return good;
}

bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, bool add_special,
                      struct token_buffer *tokens, struct status *status)
{
    return encode_text(tokenizer, text, size, add_special, false, NULL, NULL, 0, tokens, status);
}

bool tokenizer_encode_plain(const struct tokenizer *tokenizer, const char *text, size_t size, bool add_special,
                            const int32_t *markers, size_t marker_count, struct token_buffer *tokens,
                            struct status *status)
{
    return encode_text(tokenizer, text, size, add_special, true, NULL, markers, marker_count, tokens, status);
}

bool tokenizer_encode_mixed(const struct tokenizer *tokenizer, const char *text, size_t size, const uint8_t *foreign,
                            const int32_t *markers, size_t marker_count, struct token_buffer *tokens,
                            struct status *status)
{
    /* Repaired text would no longer agree with `foreign`. */
    if (!text_is_valid((const uint8_t *)text, size))
        return status_fail(status, STATUS_BAD_INPUT, "expected a text in UTF-8");
    return encode_text(tokenizer, text, size, false, true, foreign, markers, marker_count, tokens, status);
}
