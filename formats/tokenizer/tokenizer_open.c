/* SPDX-License-Identifier: Apache-2.0 */
/* Opening an image: every number is checked before use, patterns are compiled, and small tables are computed where that
 * is cheaper than checking stored ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/base/hash.h"
#include "formats/tokenizer/tokenizer_internal.h"

/* Unigram: an unknown character counts as less probable than the least probable token by this (natural logarithm). */
static const double unknown_penalty = 10;

void tokenizer_byte_alphabet(uint16_t characters[256])
{
    uint16_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; byte++) characters[byte] = text_byte_is_itself(byte) ? (uint16_t)byte : next++;
}

static bool corrupt(struct status *status, const char *what)
{
    return status_fail(status, STATUS_CORRUPT, "tokenizer image: %s", what);
}

static bool check_header(const uint8_t *image, size_t image_size, struct status *status)
{
    const struct image_header *header = (const struct image_header *)image;
    if ((uintptr_t)image % 8 != 0) return status_fail(status, STATUS_USAGE, "a tokenizer image must be 8-byte aligned");
    if (image_size < sizeof *header)
        return status_fail(status, STATUS_CORRUPT, "tokenizer image: %zu bytes, shorter than its header of %zu",
                           image_size, sizeof *header);
    if (memcmp(header->magic, TOKENIZER_IMAGE_MAGIC, sizeof header->magic) != 0)
        return corrupt(status, "wrong magic: this is no tokenizer image");
    if (header->version == 0 || header->version > TOKENIZER_IMAGE_VERSION)
        return status_fail(status, STATUS_VERSION, "tokenizer image: version %u, expected 1 to %d", header->version,
                           TOKENIZER_IMAGE_VERSION);
    if (header->header_bytes != sizeof *header) return corrupt(status, "wrong header size");
    if (header->version > 1 && image_size < sizeof *header + sizeof(struct image_extension))
        return corrupt(status, "shorter than its header's extension");
    if (header->image_bytes != image_size)
        return status_fail(status, STATUS_CORRUPT, "tokenizer image: %zu bytes, its header says %llu", image_size,
                           (unsigned long long)header->image_bytes);
    if (header->normalizer_count > TOKENIZER_STEP_LIMIT || header->splitter_count > TOKENIZER_STEP_LIMIT)
        return corrupt(status, "too many steps");
    if (header->prefix_count > TOKENIZER_TEMPLATE_LIMIT || header->suffix_count > TOKENIZER_TEMPLATE_LIMIT)
        return corrupt(status, "too many template tokens");
    if (header->added_plain_count > TOKENIZER_ADDED_LIMIT || header->added_normalized_count > TOKENIZER_ADDED_LIMIT)
        return corrupt(status, "too many added tokens");
    if (header->token_count == 0 || header->token_count > TOKENIZER_TOKEN_LIMIT)
        return corrupt(status, "bad token count");
    if (header->merge_count > TOKENIZER_MERGE_LIMIT) return corrupt(status, "bad merge count");
    if (header->model_flags & ~(uint32_t)MODEL_FLAGS) return corrupt(status, "unknown model flags");
    if (header->decoder_flags & ~(uint32_t)DECODER_FLAGS) return corrupt(status, "unknown decoder flags");
    if (header->reserved[0] || header->reserved[1]) return corrupt(status, "reserved fields are not zero");
    return true;
}

static bool check_model_and_decoder(const struct image_header *header, struct status *status)
{
    if (header->unknown_id < -1 || header->unknown_id >= (int32_t)header->token_count)
        return corrupt(status, "unknown token out of range");
    if ((header->model_flags & MODEL_UNKNOWN_MISSING) && header->unknown_id != -1)
        return corrupt(status, "unknown token both missing and given");
    if (header->strip_stop > TOKENIZER_STRIP_LIMIT) return corrupt(status, "too many trailing characters to strip");
    uint32_t characters[3] = {header->strip_character, header->metaspace_character, header->word_start_character};
    for (size_t i = 0; i < 3; i++)
        if (characters[i] > 0x10FFFF || (characters[i] >= 0xD800 && characters[i] <= 0xDFFF))
            return corrupt(status, "a character of the header is no Unicode scalar value");
    uint32_t flags = header->decoder_flags;
    if ((flags & DECODER_BYTES) && (flags & (DECODER_BYTE_FALLBACK | DECODER_JOIN_SPACE)))
        return corrupt(status, "decoder flags contradict each other");
    if ((flags & DECODER_METASPACE_DROP) && !(flags & DECODER_METASPACE))
        return corrupt(status, "decoder flags contradict each other");
    return true;
}

static bool check_extension(const struct image_header *header, const struct image_extension *extension,
                            struct status *status)
{
    const uint32_t model = extension->model;
    const bool has_trie = model == MODEL_UNIGRAM || model == MODEL_WORD_PIECE;
    if (model >= MODEL_COUNT) return corrupt(status, "unknown kind of model");
    if (extension->score_count != (model == MODEL_UNIGRAM ? header->token_count : 0))
        return corrupt(status, "bad count of scores");
    if (extension->order_count > header->token_count || (!has_trie && extension->order_count > 0))
        return corrupt(status, "bad count of ordered tokens");
    if (extension->first_count != 0 && extension->first_count != header->token_count)
        return corrupt(status, "bad count of first tokens");
    if (model != MODEL_BPE && (header->merge_count || header->word_start_character ||
                               (header->model_flags & (MODEL_FUSE_UNKNOWN | MODEL_IGNORE_MERGES))))
        return corrupt(status, "parts of BPE in another model");
    if (extension->table_bytes > TOKENIZER_TABLE_LIMIT) return corrupt(status, "character maps too long");
    if (extension->prefix_bytes > TOKENIZER_AFFIX_LIMIT || extension->suffix_bytes > TOKENIZER_AFFIX_LIMIT)
        return corrupt(status, "a prefix or suffix too long");
    if ((extension->prefix_bytes || extension->suffix_bytes) && header->word_start_character)
        return corrupt(status, "a word start in a model with a prefix or suffix");
    if (extension->reserved[0] || extension->reserved[1]) return corrupt(status, "reserved fields are not zero");
    return true;
}

/* Section sizes follow from the counts, whose limits prevent overflow. */
static bool locate(struct tokenizer *tokenizer, const uint8_t *image, size_t image_size, struct status *status)
{
    static const struct image_extension no_extension;
    const struct image_header *header = (const struct image_header *)image;
    const struct image_extension *extension =
        header->version > 1 ? (const struct image_extension *)(image + sizeof *header) : &no_extension;
    const uint64_t bytes[SECTION_COUNT] = {
        [SECTION_STEPS] = (uint64_t)(header->normalizer_count + header->splitter_count) * sizeof(struct image_step),
        [SECTION_TEMPLATE] = (uint64_t)(header->prefix_count + header->suffix_count) * sizeof(uint32_t),
        [SECTION_ADDED] =
            (uint64_t)(header->added_plain_count + header->added_normalized_count) * sizeof(struct image_added),
        [SECTION_TOKENS] = (uint64_t)header->token_count * sizeof(struct image_token),
        [SECTION_TOKEN_SLOTS] = (uint64_t)header->token_slot_count * sizeof(uint32_t),
        [SECTION_MERGES] = (uint64_t)header->merge_count * sizeof(struct image_merge),
        [SECTION_MERGE_SLOTS] = (uint64_t)header->merge_slot_count * sizeof(uint32_t),
        [SECTION_POOL] = header->pool_bytes,
        [SECTION_DECODED] = header->decoded_bytes,
        [SECTION_SCORES] = (uint64_t)extension->score_count * sizeof(double),
        [SECTION_ORDER] = (uint64_t)extension->order_count * sizeof(uint32_t),
        [SECTION_FIRST] = (uint64_t)extension->first_count * sizeof(struct image_decoded),
        [SECTION_TABLES] = extension->table_bytes,
    };
    const uint8_t *sections[SECTION_COUNT];
    uint64_t at = sizeof *header + (header->version > 1 ? sizeof *extension : 0);
    if (!check_extension(header, extension, status)) return false;
    for (int i = 0; i < SECTION_COUNT; i++) {
        if (!checked_range(at, bytes[i], image_size)) return corrupt(status, "a section reaches past the end");
        sections[i] = image + at;
        uint64_t end = at + bytes[i];
        at = (end + 7) & ~(uint64_t)7;
        if (at > image_size) return corrupt(status, "a section reaches past the end");
        for (; end < at; end++)
            if (image[end] != 0) return corrupt(status, "padding is not zero");
    }
    if (at != image_size) return corrupt(status, "bytes after the last section");
    tokenizer->header = header;
    tokenizer->extension = extension;
    tokenizer->normalizers = (const struct image_step *)sections[SECTION_STEPS];
    tokenizer->splitters = tokenizer->normalizers + header->normalizer_count;
    tokenizer->prefix = (const uint32_t *)sections[SECTION_TEMPLATE];
    tokenizer->suffix = tokenizer->prefix + header->prefix_count;
    tokenizer->added = (const struct image_added *)sections[SECTION_ADDED];
    tokenizer->tokens = (const struct image_token *)sections[SECTION_TOKENS];
    tokenizer->token_slots = (const uint32_t *)sections[SECTION_TOKEN_SLOTS];
    tokenizer->merges = (const struct image_merge *)sections[SECTION_MERGES];
    tokenizer->merge_slots = (const uint32_t *)sections[SECTION_MERGE_SLOTS];
    tokenizer->pool = (const char *)sections[SECTION_POOL];
    tokenizer->decoded = sections[SECTION_DECODED];
    tokenizer->scores = (const double *)sections[SECTION_SCORES];
    tokenizer->order = (const uint32_t *)sections[SECTION_ORDER];
    tokenizer->first = (const struct image_decoded *)sections[SECTION_FIRST];
    tokenizer->tables = sections[SECTION_TABLES];
    return true;
}

/* True if [offset, offset + bytes) lies in the pool and does not divide a character. */
static bool pool_text(const struct tokenizer *tokenizer, uint32_t offset, uint32_t bytes)
{
    uint32_t limit = tokenizer->header->pool_bytes;
    if (!checked_range(offset, bytes, limit)) return false;
    uint32_t end = offset + bytes;
    return (offset == limit || ((uint8_t)tokenizer->pool[offset] & 0xC0) != 0x80) &&
           (end == limit || ((uint8_t)tokenizer->pool[end] & 0xC0) != 0x80);
}

/* Most vocabularies have no unused ids: checking the range is then sufficient. */
static bool has_token(const struct tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->header->token_count &&
           (!tokenizer->has_holes || (tokenizer->tokens[id].flags & TOKEN_PRESENT));
}

static bool check_decoded(struct tokenizer *tokenizer, uint32_t offset, uint32_t bytes)
{
    if (bytes > tokenizer->longest_decoded) tokenizer->longest_decoded = bytes;
    return checked_range(offset, bytes, tokenizer->header->decoded_bytes) && bytes <= TOKENIZER_TEXT_LIMIT;
}

static bool check_tokens(struct tokenizer *tokenizer, struct status *status)
{
    const struct image_header *header = tokenizer->header;
    if (!text_is_valid((const uint8_t *)tokenizer->pool, header->pool_bytes))
        return corrupt(status, "text is not valid UTF-8");
    for (uint32_t id = 0; id < header->token_count; id++) {
        const struct image_token *token = &tokenizer->tokens[id];
        if (token->flags & ~(uint32_t)TOKEN_FLAGS) return corrupt(status, "unknown token flags");
        if (!(token->flags & TOKEN_PRESENT)) {
            if (token->flags || token->text_offset || token->text_bytes || token->decoded_offset ||
                token->decoded_bytes)
                return corrupt(status, "an id without a token has fields");
            tokenizer->has_holes = true;
            continue;
        }
        if (token->text_bytes > TOKENIZER_TEXT_LIMIT || !pool_text(tokenizer, token->text_offset, token->text_bytes))
            return status_fail(status, STATUS_CORRUPT, "tokenizer image: text of token %u out of range", id);
        if (!check_decoded(tokenizer, token->decoded_offset, token->decoded_bytes) ||
            ((token->flags & TOKEN_BYTE) && token->decoded_bytes != 1))
            return status_fail(status, STATUS_CORRUPT, "tokenizer image: decoded text of token %u out of range", id);
        if (tokenizer->extension->first_count > 0 &&
            !check_decoded(tokenizer, tokenizer->first[id].offset, tokenizer->first[id].bytes))
            return status_fail(status, STATUS_CORRUPT,
                               "tokenizer image: decoded text of token %u as the first one out of range", id);
    }
    if (header->unknown_id >= 0 && !has_token(tokenizer, (uint32_t)header->unknown_id))
        return corrupt(status, "the unknown token does not exist");
    for (uint32_t i = 0; i < header->prefix_count + header->suffix_count; i++)
        if (!has_token(tokenizer, tokenizer->prefix[i])) return corrupt(status, "a template token does not exist");
    return true;
}

static bool check_slots(const uint32_t *slots, uint32_t slot_count, uint32_t entry_count, struct status *status)
{
    if (slot_count == 0 || (slot_count & (slot_count - 1)) != 0)
        return corrupt(status, "hash slots are no power of two");
    for (uint32_t i = 0; i < slot_count; i++)
        if (slots[i] > entry_count) return corrupt(status, "a hash slot is out of range");
    return true;
}

/* Every entry must be found, so that a damaged table cannot silently change the encoding. The slots of a block are
 * prefetched: successive cache misses would dominate the time of opening. */
enum { PREFETCH_BLOCK = 16 };

static bool check_token_slots(const struct tokenizer *tokenizer, struct status *status)
{
    const struct image_header *header = tokenizer->header;
    uint32_t homes[PREFETCH_BLOCK];
    if (!check_slots(tokenizer->token_slots, header->token_slot_count, header->token_count, status)) return false;
    for (uint32_t block = 0; block < header->token_count; block += PREFETCH_BLOCK) {
        uint32_t end = header->token_count - block < PREFETCH_BLOCK ? header->token_count : block + PREFETCH_BLOCK;
        for (uint32_t id = block; id < end; id++) {
            const struct image_token *token = &tokenizer->tokens[id];
            uint32_t home = (uint32_t)hash64(tokenizer->pool + token->text_offset, token->text_bytes);
            homes[id - block] = home & (header->token_slot_count - 1);
            __builtin_prefetch(&tokenizer->token_slots[homes[id - block]]);
        }
        for (uint32_t id = block; id < end; id++) {
            const struct image_token *token = &tokenizer->tokens[id];
            if ((token->flags & TOKEN_PRESENT) &&
                tokenizer_lookup_from(tokenizer, homes[id - block], tokenizer->pool + token->text_offset,
                                      token->text_bytes) != (int32_t)id)
                return status_fail(status, STATUS_CORRUPT, "tokenizer image: token %u is not where its hash says", id);
        }
    }
    for (uint32_t i = 0; i < header->token_slot_count; i++)
        if (tokenizer->token_slots[i] && !has_token(tokenizer, tokenizer->token_slots[i] - 1))
            return corrupt(status, "a hash slot names a token that does not exist");
    return true;
}

static bool check_merge_slots(const struct tokenizer *tokenizer, struct status *status)
{
    const struct image_header *header = tokenizer->header;
    if (!check_slots(tokenizer->merge_slots, header->merge_slot_count, header->merge_count, status)) return false;
    for (uint32_t block = 0; block < header->merge_count; block += PREFETCH_BLOCK) {
        uint32_t end = header->merge_count - block < PREFETCH_BLOCK ? header->merge_count : block + PREFETCH_BLOCK;
        for (uint32_t i = block; i < end; i++) {
            const struct image_merge *merge = &tokenizer->merges[i];
            __builtin_prefetch(&tokenizer->merge_slots[tokenizer_merge_home(merge->left, merge->right) &
                                                       (header->merge_slot_count - 1)]);
            if (!has_token(tokenizer, merge->left) || !has_token(tokenizer, merge->right) ||
                !has_token(tokenizer, merge->result))
                return status_fail(status, STATUS_CORRUPT,
                                   "tokenizer image: merge %u names a token that does not exist", i);
        }
        for (uint32_t i = block; i < end; i++)
            if (tokenizer_merge_rank(tokenizer, tokenizer->merges[i].left, tokenizer->merges[i].right) != i)
                return status_fail(status, STATUS_CORRUPT, "tokenizer image: merge %u is not where its hash says", i);
    }
    return true;
}

/* Scores are finite, and the trie has all tokens of the model. */
static bool open_model(struct tokenizer *tokenizer, struct status *status)
{
    const struct image_extension *extension = tokenizer->extension;
    uint32_t expected = 0;
    double least = INFINITY;
    if (!pool_text(tokenizer, extension->prefix_offset, extension->prefix_bytes) ||
        !pool_text(tokenizer, extension->suffix_offset, extension->suffix_bytes))
        return corrupt(status, "the model's prefix or suffix out of range");
    if (extension->model != MODEL_UNIGRAM && extension->model != MODEL_WORD_PIECE) return true;
    for (uint32_t id = 0; id < tokenizer->header->token_count; id++) {
        const struct image_token *token = &tokenizer->tokens[id];
        if (!(token->flags & TOKEN_MODEL)) continue;
        expected += token->text_bytes > 0;
        if (extension->model != MODEL_UNIGRAM) continue;
        if (!isfinite(tokenizer->scores[id])) return corrupt(status, "a score is no number");
        if (tokenizer->scores[id] < least) least = tokenizer->scores[id];
    }
    tokenizer->unknown_score = least - unknown_penalty;
    if (expected != extension->order_count) return corrupt(status, "not all tokens are ordered");
    for (uint32_t i = 0; i < expected; i++)
        if (!has_token(tokenizer, tokenizer->order[i]) ||
            !(tokenizer->tokens[tokenizer->order[i]].flags & TOKEN_MODEL) ||
            tokenizer->tokens[tokenizer->order[i]].text_bytes == 0)
            return corrupt(status, "an ordered token is none of the model");
    return token_trie_build(&tokenizer->trie, tokenizer->tokens, tokenizer->order, expected, tokenizer->pool,
                            tokenizer->header->pool_bytes, status);
}

/* Also that the character is a token: an unknown character before it is then complete at the end of the word. */
static bool check_word_start(struct tokenizer *tokenizer, struct status *status)
{
    uint32_t character = tokenizer->header->word_start_character;
    if (character == 0) return true;
    tokenizer->word_start_bytes = (uint32_t)text_write(character, tokenizer->word_start);
    int32_t id = tokenizer_lookup(tokenizer, tokenizer->word_start, tokenizer->word_start_bytes);
    if (id < 0 || !(tokenizer->tokens[id].flags & TOKEN_MODEL)) return corrupt(status, "the word start is no token");
    for (uint32_t i = 0; i < tokenizer->header->merge_count; i++) {
        const struct image_token *token = &tokenizer->tokens[tokenizer->merges[i].result];
        const char *text = tokenizer->pool + token->text_offset;
        if (tokenizer_next_word(tokenizer, text, token->text_bytes) != token->text_bytes)
            return status_fail(status, STATUS_CORRUPT, "tokenizer image: merge %u reaches over a word start", i);
    }
    return true;
}

static int compare_patterns(const struct tokenizer *tokenizer, const struct image_added *a, const struct image_added *b)
{
    uint32_t shorter = a->pattern_bytes < b->pattern_bytes ? a->pattern_bytes : b->pattern_bytes;
    int order = memcmp(tokenizer->pool + a->pattern_offset, tokenizer->pool + b->pattern_offset, shorter);
    if (order != 0) return order;
    return (a->pattern_bytes > b->pattern_bytes) - (a->pattern_bytes < b->pattern_bytes);
}

static bool index_added(struct tokenizer *tokenizer, struct status *status)
{
    const struct image_header *header = tokenizer->header;
    for (int list = 0; list < 2; list++) {
        const struct image_added *added = tokenizer->added + (list ? header->added_plain_count : 0);
        uint32_t count = list ? header->added_normalized_count : header->added_plain_count;
        for (uint32_t i = 0; i < count; i++) {
            if (!has_token(tokenizer, added[i].id) || (added[i].flags & ~(uint32_t)ADDED_FLAGS))
                return corrupt(status, "a bad added token");
            if (added[i].pattern_bytes == 0 || added[i].pattern_bytes > TOKENIZER_ADDED_BYTES_LIMIT ||
                !pool_text(tokenizer, added[i].pattern_offset, added[i].pattern_bytes))
                return corrupt(status, "text of an added token out of range");
            if (i > 0 && compare_patterns(tokenizer, &added[i - 1], &added[i]) >= 0)
                return corrupt(status, "added tokens are not sorted");
        }
        if (!added_index_build(&tokenizer->added_index[list], added, count, tokenizer->pool, status)) return false;
    }
    return true;
}

static bool check_split_flags(const struct image_step *step, bool may_invert)
{
    return (step->flags & SPLIT_BEHAVIOR_MASK) <= SPLIT_CONTIGUOUS &&
           (step->flags & ~(uint32_t)(SPLIT_BEHAVIOR_MASK | (may_invert ? SPLIT_INVERT : 0))) == 0;
}

/* Flags must be valid for the kind, and the kind for its list. */
/* Images of version 1 have no such steps. */
static bool step_is_newer(const struct image_step *step)
{
    return (step->kind >= STEP_NMT && step->kind < STEP_NORMALIZER_END) ||
           (step->kind >= STEP_PUNCTUATION && step->kind < STEP_SPLITTER_END);
}

static bool check_step(const struct tokenizer *tokenizer, const struct image_step *step, bool splitter)
{
    uint32_t character;
    if (tokenizer->header->version < 2 && step_is_newer(step)) return false;
    switch (step->kind) {
    case STEP_NFC:
    case STEP_NFD:
    case STEP_NFKC:
    case STEP_NFKD:
    case STEP_LOWERCASE:
    case STEP_PREPEND:
    case STEP_REPLACE_STRING:
    case STEP_REPLACE_REGEX: return !splitter && step->flags == 0;
    case STEP_NMT:
    case STEP_CLEAN:
    case STEP_SPACE_IDEOGRAPHS:
    case STEP_BYTE_ALPHABET: return !splitter && step->flags == 0;
    case STEP_DROP_MARKS: return !splitter && step->flags <= MARKS_WITHOUT_WIDTH;
    case STEP_CHARACTER_MAP:
        return !splitter && step->flags == 0 &&
               tokenizer_check_map(tokenizer->tables, tokenizer->extension->table_bytes, step);
    case STEP_STRIP: return !splitter && step->flags <= (STRIP_LEFT | STRIP_RIGHT);
    case STEP_SPLIT_STRING:
    case STEP_SPLIT_REGEX: return splitter && check_split_flags(step, true);
    case STEP_DIGITS:
    case STEP_PUNCTUATION:
    case STEP_WHITE_SPACE: return splitter && check_split_flags(step, false);
    case STEP_WORDS: return splitter && step->flags == 0;
    case STEP_FIXED_LENGTH: return splitter && step->flags > 0;
    case STEP_SPACE_FIRST:
    case STEP_BYTE_LEVEL: return splitter && step->flags == 0;
    case STEP_METASPACE:
        return splitter && step->flags <= METASPACE_ALWAYS && step->content_bytes > 0 &&
               text_read(tokenizer->pool + step->content_offset, &character) == step->content_bytes;
    default: return false;
    }
}

static bool open_steps(struct tokenizer *tokenizer, bool just_in_time, struct status *status)
{
    const struct image_header *header = tokenizer->header;
    for (uint32_t i = 0; i < header->normalizer_count + header->splitter_count; i++) {
        const struct image_step *step = &tokenizer->normalizers[i];
        if ((step->kind != STEP_CHARACTER_MAP && !pool_text(tokenizer, step->pattern_offset, step->pattern_bytes)) ||
            !pool_text(tokenizer, step->content_offset, step->content_bytes))
            return status_fail(status, STATUS_CORRUPT, "tokenizer image: text of step %u out of range", i);
        if (!check_step(tokenizer, step, i >= header->normalizer_count))
            return status_fail(status, STATUS_CORRUPT, "tokenizer image: step %u is malformed", i);
        const char *text = tokenizer->pool + step->pattern_offset;
        if (step->kind == STEP_REPLACE_REGEX || step->kind == STEP_SPLIT_REGEX)
            tokenizer->patterns[i] = tokenizer_pattern_regex(text, step->pattern_bytes, just_in_time, status);
        else if (step->kind == STEP_REPLACE_STRING || step->kind == STEP_SPLIT_STRING)
            tokenizer->patterns[i] = tokenizer_pattern_string(text, step->pattern_bytes, status);
        else
            continue;
        if (!tokenizer->patterns[i]) return false;
    }
    return true;
}

static void fill_tables(struct tokenizer *tokenizer)
{
    char text[8];
    tokenizer_byte_alphabet(tokenizer->byte_characters);
    for (uint32_t i = 0; i < CHARACTER_TABLE; i++) {
        int32_t id = tokenizer_lookup(tokenizer, text, text_write(i, text));
        tokenizer->character_ids[i] = id >= 0 && (tokenizer->tokens[id].flags & TOKEN_MODEL) ? id : -1;
    }
    for (uint32_t i = 0; i < 256; i++) {
        int32_t id = tokenizer_lookup(tokenizer, text, (size_t)snprintf(text, sizeof text, "<0x%02X>", i));
        tokenizer->byte_ids[i] = id >= 0 && (tokenizer->tokens[id].flags & TOKEN_MODEL) ? id : -1;
    }
}

struct tokenizer *tokenizer_open(const uint8_t *image, size_t image_size, bool just_in_time, struct status *status)
{
    struct tokenizer *tokenizer = NULL;
    if (!check_header(image, image_size, status)) return NULL;
    if (!check_model_and_decoder((const struct image_header *)image, status)) return NULL;
    tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer) {
        status_fail(status, STATUS_MACHINE, "out of memory while opening the tokenizer");
        return NULL;
    }
    if (locate(tokenizer, image, image_size, status) && check_tokens(tokenizer, status) &&
        check_token_slots(tokenizer, status) && check_merge_slots(tokenizer, status) && open_model(tokenizer, status) &&
        check_word_start(tokenizer, status) && index_added(tokenizer, status) &&
        open_steps(tokenizer, just_in_time, status)) {
        fill_tables(tokenizer);
        return tokenizer;
    }
    tokenizer_close(tokenizer);
    return NULL;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer) return;
    for (size_t i = 0; i < 2 * TOKENIZER_STEP_LIMIT; i++) tokenizer_pattern_free(tokenizer->patterns[i]);
    for (size_t i = 0; i < 2; i++) added_index_free(&tokenizer->added_index[i]);
    token_trie_free(&tokenizer->trie);
    free(tokenizer);
}

uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer) { return tokenizer->header->token_count; }

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    return tokenizer_lookup(tokenizer, text, size);
}

bool tokenizer_token_text(const struct tokenizer *tokenizer, int32_t id, const char **text, size_t *size)
{
    if (id < 0 || !has_token(tokenizer, (uint32_t)id)) return false;
    *text = tokenizer->pool + tokenizer->tokens[id].text_offset;
    *size = tokenizer->tokens[id].text_bytes;
    return true;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && has_token(tokenizer, (uint32_t)id) && (tokenizer->tokens[id].flags & TOKEN_SPECIAL);
}
