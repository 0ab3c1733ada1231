/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the tokenizer: the open tokenizer, the scratch space of one encode call and the stages of the pipeline.
 * Private to formats/tokenizer.
 *
 *   text -> added tokens -> normalizer -> added tokens -> pre-tokenizer steps -> model -> post-processor's template */
#ifndef FORMATS_TOKENIZER_TOKENIZER_INTERNAL_H
#define FORMATS_TOKENIZER_TOKENIZER_INTERNAL_H

#include "formats/tokenizer/tokenizer.h"
#include "formats/tokenizer/tokenizer_added.h"
#include "formats/tokenizer/tokenizer_image.h"
#include "formats/tokenizer/tokenizer_pattern.h"
#include "formats/tokenizer/tokenizer_text.h"
#include "formats/tokenizer/tokenizer_trie.h"

enum { CHARACTER_TABLE = 0x800 }; /* characters of one or two bytes get their model token by direct lookup */

struct tokenizer {
    const struct image_header *header;
    const struct image_extension *extension; /* of zeros for an image of version 1 */
    const struct image_step *normalizers, *splitters;
    const uint32_t *prefix, *suffix; /* template ids */
    const struct image_added *added; /* plain ones, then normalized ones */
    const struct image_token *tokens;
    const uint32_t *token_slots;
    const struct image_merge *merges;
    const uint32_t *merge_slots;
    const char *pool;
    const uint8_t *decoded;
    const double *scores;              /* [score_count] */
    const uint32_t *order;             /* [order_count] */
    const struct image_decoded *first; /* [first_count] */
    const uint8_t *tables;
    struct tokenizer_pattern *patterns[2 * TOKENIZER_STEP_LIMIT]; /* of normalizers, then of splitters; NULL: none */
    uint32_t longest_decoded;                                     /* bytes */
    bool has_holes;                                               /* some id has no token */
    char word_start[TEXT_CHARACTER_BYTES];                        /* header->word_start_character as UTF-8 */
    uint32_t word_start_bytes;                                    /* 0: none                               */
    uint16_t byte_characters[256];
    int32_t character_ids[CHARACTER_TABLE]; /* -1: not in the model's vocabulary */
    int32_t byte_ids[256];                  /* of <0x00> .. <0xFF>, -1: none      */
    struct added_index added_index[2];      /* plain and normalized               */
    struct token_trie trie;                 /* of the tokens in `order`           */
    double unknown_score;                   /* MODEL_UNIGRAM                      */
};

/* A symbol of the word being merged: an element of a doubly linked list in an array; -1 ends it. */
struct merge_symbol {
    int32_t id; /* -1: merged into its left neighbour */
    int32_t previous, next;
};
struct merge_candidate {
    uint32_t rank; /* index into merges */
    uint32_t position;
};
struct merge_scratch {
    struct merge_symbol *symbols;
    size_t symbol_count, symbol_capacity;
    struct merge_candidate *heap;
    size_t heap_count, heap_capacity;
};

struct unigram_place; /* private to tokenizer_unigram.c */

/* Results of added_index_find for a piece of the text being searched. */
enum { ADDED_WINDOW = 1 << 14 };
struct added_window {
    uint32_t *found;
    size_t capacity, begin, end;
};

/* State of one encode call, so that an open tokenizer is never written. */
struct encode_scratch {
    const struct tokenizer *tokenizer;
    struct token_buffer *tokens; /* output, borrowed */
    struct status *status;       /* borrowed         */
    bool plain;                  /* special tokens and the markers are text */
    const int32_t *markers;      /* [marker_count] borrowed                 */
    size_t marker_count;
    /* plain text of two origins, as given and normalized: `foreign` has a byte for each of `text`; NULL: all is foreign */
    struct mixed_text {
        const char *text;
        const uint8_t *foreign;
    } mixed[2];
    struct text_buffer whole, marks; /* tokenizer_mixed.c */
    struct tokenizer_matcher matcher;
    uint64_t work_left;           /* bytes that steps may still write */
    struct added_window added[2]; /* in the text as given, in normalized text */
    struct text_buffer repaired;
    struct text_buffer normalized[2];
    struct text_buffer stages[TOKENIZER_STEP_LIMIT]; /* text written by pre-tokenizer step i */
    struct merge_scratch merge;
    struct unigram_place *places; /* [place_capacity] */
    size_t place_capacity;
    uint64_t trie_left; /* steps in the trie that the call may still take */
};
bool encode_scratch_open(struct encode_scratch *scratch, const struct tokenizer *tokenizer, struct token_buffer *tokens,
                         size_t text_size, struct status *status);
/* Accounts for `size` bytes that a step is about to write; fails if a hostile tokenizer lets text grow beyond the
 * limit. */
bool encode_scratch_charge(struct encode_scratch *scratch, size_t size);
/* The same for `before` bytes that become `size` bytes: growth costs more, so that steps that multiply the text end in an
 * error before they use much memory. */
bool encode_scratch_charge_growth(struct encode_scratch *scratch, size_t before, size_t size);
/* The same for steps in the trie: long tokens that begin alike can make each position of a text look far ahead. */
bool encode_scratch_charge_trie(struct encode_scratch *scratch, size_t steps);
void encode_scratch_close(struct encode_scratch *scratch);

/* Whether this call treats the added token as text, where it is foreign. */
bool encode_scratch_is_text(const struct encode_scratch *scratch, int32_t id);

/* tokenizer_mixed.c: an added token that this call treats as text was found in [start, *end) of text as given or normalized.
 * If it is the text's own, or a shorter token is that begins there, *added is that token and *end its end; else *added is NULL
 * and *end is where the search continues. */
void tokenizer_mixed_choose(struct encode_scratch *scratch, bool normalized, const char *text, size_t start,
                            size_t *end, const struct image_added **added);
/* Origins of normalized text: of `normalized`, which tokenizer_normalize has made of `text`. *normalized may move. */
bool tokenizer_mixed_normalized(struct encode_scratch *scratch, const char *text, size_t size, const char **normalized,
                                size_t *normalized_size);

/* `origin`, here and below: bytes at the start of the text that stand for the first byte of the input. Metaspace with
 * the scheme 'first' prepends where there are some: Hugging Face tracks the places of all bytes for it. */

/* Runs the normalizer; *out is `text` itself or in scratch->normalized. */
bool tokenizer_normalize(struct encode_scratch *scratch, const char *text, size_t size, size_t *origin,
                         const char **out, size_t *out_size);
/* One of its steps that work character by character; appends to `out`. */
bool tokenizer_map_characters(struct encode_scratch *scratch, const struct image_step *step, const char *text,
                              size_t size, size_t *origin, struct text_buffer *out);
/* STEP_CHARACTER_MAP. */
bool tokenizer_apply_map(struct encode_scratch *scratch, const struct image_step *step, const char *text, size_t size,
                         size_t *origin, struct text_buffer *out);
bool tokenizer_check_map(const uint8_t *tables, uint32_t table_bytes, const struct image_step *step);

/* Runs the pre-tokenizer from step `step` on and encodes every piece. */
bool tokenizer_split(struct encode_scratch *scratch, uint32_t step, const char *text, size_t size, size_t origin);

/* Each encodes one word, which is not empty, with one kind of model: appends its ids to scratch->tokens. */
bool tokenizer_merge_word(struct encode_scratch *scratch, const char *text, size_t size);
bool tokenizer_unigram_word(struct encode_scratch *scratch, const char *text, size_t size);
bool tokenizer_word_piece(struct encode_scratch *scratch, const char *text, size_t size);
bool tokenizer_word_level(struct encode_scratch *scratch, const char *text, size_t size);

/* Id of a model's token with exactly this text that this call may produce; -1: none. */
int32_t tokenizer_model_token(const struct encode_scratch *scratch, const char *text, size_t size);

/* Id of a token with exactly this text; -1: none. */
int32_t tokenizer_lookup(const struct tokenizer *tokenizer, const char *text, size_t size);
/* The same, given the home slot: hash64(text) masked. */
int32_t tokenizer_lookup_from(const struct tokenizer *tokenizer, uint32_t slot, const char *text, size_t size);
/* Start of the next word after the first character: before a word start that follows another character; `size` if there
 * is none. Requires: the tokenizer has a word start. */
size_t tokenizer_next_word(const struct tokenizer *tokenizer, const char *text, size_t size);
/* Rank of the merge of two adjacent tokens; UINT32_MAX: none. */
uint32_t tokenizer_merge_rank(const struct tokenizer *tokenizer, uint32_t left, uint32_t right);

#endif
