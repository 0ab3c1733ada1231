/* SPDX-License-Identifier: Apache-2.0 */
/* Text of two origins: where it is foreign, special tokens and markers are ordinary characters. */
#include <string.h>

#include "formats/tokenizer/tokenizer_internal.h"

/* The end of the run of one origin that contains `at`, at most `size`. */
static size_t run_end(const uint8_t *foreign, size_t at, size_t size)
{
    const bool is_foreign = foreign[at] != 0;
    while (at < size && (foreign[at] != 0) == is_foreign) at++;
    return at;
}

/* What the normalizer puts before every text. */
static size_t prefix_bytes(const struct tokenizer *tokenizer)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < tokenizer->header->normalizer_count; i++)
        if (tokenizer->normalizers[i].kind == STEP_PREPEND) bytes += tokenizer->normalizers[i].content_bytes;
    return bytes;
}

void tokenizer_mixed_choose(struct encode_scratch *scratch, bool normalized, const char *text, size_t start,
                            size_t *end, const struct image_added **added)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    const struct mixed_text *mixed = &scratch->mixed[normalized];
    const struct image_added *found = *added;
    *added = NULL;
    if (!mixed->foreign) return;
    const uint8_t *foreign = mixed->foreign + (text - mixed->text);
    /* What the normalizer puts before the token's own text, it finds in any text. */
    const size_t prefix = normalized ? prefix_bytes(tokenizer) : 0,
                 first = prefix < *end - start ? start + prefix : start;
    const size_t run = run_end(foreign, first, *end);
    if (run == *end) { /* all of one origin */
        if (!foreign[first]) *added = found;
        return;
    }
    /* The token is both: the search continues where the origin changes, unless a shorter one is the text's own. */
    *end = run;
    if (foreign[first]) return;
    uint32_t number = 0;
    added_index_find(&tokenizer->added_index[normalized], text, run, start, 1, &number);
    if (!number) return;
    *added = &tokenizer->added[(normalized ? tokenizer->header->added_plain_count : 0) + number - 1];
    *end = start + (*added)->pattern_bytes;
}

static bool mark(struct encode_scratch *scratch, size_t size, bool foreign)
{
    struct text_buffer *marks = &scratch->marks;
    if (!size) return true;
    if (!tokenizer_text_reserve(marks, size, scratch->status)) return false;
    memset(marks->text + marks->size, foreign, size);
    marks->size += size;
    return true;
}

bool tokenizer_mixed_normalized(struct encode_scratch *scratch, const char *text, size_t size, const char **normalized,
                                size_t *normalized_size)
{
    struct mixed_text *mixed = &scratch->mixed[0];
    const struct tokenizer *tokenizer = scratch->tokenizer;
    scratch->mixed[1] = (struct mixed_text){0};
    if (!mixed->foreign || !tokenizer->added_index[1].nodes || size == 0) return true;
    const uint8_t *foreign = mixed->foreign + (text - mixed->text);
    if (*normalized == text) {
        scratch->mixed[1] = (struct mixed_text){text, foreign};
        return true;
    }
    /* Normalizes each run alone and finds it again in the whole. Where that fails, since a step has joined characters of two
     * runs, the rest counts as foreign. */
    const size_t prefix = prefix_bytes(tokenizer);
    scratch->whole.size = scratch->marks.size = 0;
    if (!tokenizer_text_append(&scratch->whole, *normalized, *normalized_size, scratch->status)) return false;
    for (size_t at = 0; at < size;) {
        const size_t end = run_end(foreign, at, size);
        const char *part;
        size_t part_size, origin = 0;
        if (!tokenizer_normalize(scratch, text + at, end - at, &origin, &part, &part_size)) return false;
        if (at > 0 && part_size >= prefix) {
            part += prefix;
            part_size -= prefix;
        }
        const size_t left = scratch->whole.size - scratch->marks.size;
        if (part_size > left || (part_size && memcmp(scratch->whole.text + scratch->marks.size, part, part_size) != 0))
            break;
        if (!mark(scratch, part_size, foreign[at] != 0)) return false;
        at = end;
    }
    if (!mark(scratch, scratch->whole.size - scratch->marks.size, true)) return false;
    *normalized = scratch->whole.text ? scratch->whole.text : "";
    *normalized_size = scratch->whole.size;
    scratch->mixed[1] = (struct mixed_text){*normalized, (const uint8_t *)scratch->marks.text};
    return true;
}
