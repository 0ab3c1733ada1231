/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer's flat image: what `tokenizer_import` writes, `tokenizer_open` validates and an engine file stores.
 *
 * All numbers are little endian; the image holds no pointers. After the header follow, in images of version 2, its
 * extension, and the sections, in the order of `enum tokenizer_section`, each at the next multiple of 8 bytes, padding
 * zero. Their sizes follow from the counts in header and extension, so that no offset can be wrong. An image of version
 * 1 is as one of version 2 whose extension is zero. The import writes version 1 where that can express the tokenizer.
 *
 * Token ids are 0 .. token_count - 1. An id without a token (unused) has TOKEN_PRESENT clear and all other fields zero.
 * A token's text is unique. Both hash tables use linear probing, hold index + 1 in each used slot and 0 in a free one,
 * have a power of two of slots, and place every entry at most TOKENIZER_PROBE_LIMIT slots after its home: token text by
 * hash64(text), merges by tokenizer_merge_home(left, right). */
#ifndef FORMATS_TOKENIZER_TOKENIZER_IMAGE_H
#define FORMATS_TOKENIZER_TOKENIZER_IMAGE_H

#include <assert.h>
#include <stdint.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the image is used in place, as little endian");

#define TOKENIZER_IMAGE_MAGIC "ENGTOKEN"

enum {
    TOKENIZER_IMAGE_VERSION = 2, /* the highest that is read */
    TOKENIZER_PROBE_LIMIT = 256,
    TOKENIZER_TOKEN_LIMIT = 1 << 24, /* ids                                                    */
    TOKENIZER_MERGE_LIMIT = 1 << 26,
    TOKENIZER_STEP_LIMIT = 32,     /* steps of the normalizer, and of the pre-tokenizer      */
    TOKENIZER_TEMPLATE_LIMIT = 64, /* special tokens before the text, and after it           */
    TOKENIZER_ADDED_LIMIT = 1 << 20,
    TOKENIZER_ADDED_BYTES_LIMIT = 1024,    /* one added token                                       */
    TOKENIZER_ADDED_TOTAL_LIMIT = 1 << 22, /* all added tokens of a list together, in bytes         */
    TOKENIZER_TEXT_LIMIT = 1 << 16,        /* bytes of one token, and of what it decodes to           */
    TOKENIZER_STRIP_LIMIT = 64,            /* trailing characters that a streaming decoder holds back */
    TOKENIZER_AFFIX_LIMIT = 64,            /* bytes of a prefix or suffix of the model                */
    TOKENIZER_TRIE_LIMIT = 1 << 25,        /* nodes of the trie of Unigram and WordPiece              */
    TOKENIZER_TABLE_LIMIT = 1 << 24,       /* bytes of all character maps                             */
};

enum tokenizer_section {
    SECTION_STEPS,       /* struct image_step [normalizer_count + splitter_count]          */
    SECTION_TEMPLATE,    /* uint32_t ids [prefix_count + suffix_count]                     */
    SECTION_ADDED,       /* struct image_added [added_plain_count + added_normalized_count] */
    SECTION_TOKENS,      /* struct image_token [token_count]                               */
    SECTION_TOKEN_SLOTS, /* uint32_t [token_slot_count]                                    */
    SECTION_MERGES,      /* struct image_merge [merge_count], the lowest rank first        */
    SECTION_MERGE_SLOTS, /* uint32_t [merge_slot_count]                                    */
    SECTION_POOL,        /* UTF-8 text that the other sections point into                  */
    SECTION_DECODED,     /* bytes that tokens decode to                                    */
    SECTION_SCORES,      /* double [score_count], by id: log-probabilities of Unigram      */
    SECTION_ORDER,       /* uint32_t [order_count]: ids of the model's tokens, by text     */
    SECTION_FIRST,       /* struct image_decoded [first_count], by id                      */
    SECTION_TABLES,      /* character maps of STEP_CHARACTER_MAP                           */
    SECTION_COUNT,
};

enum {
    MODEL_FUSE_UNKNOWN = 1 << 0,    /* adjacent unknown characters become one unknown token          */
    MODEL_BYTE_FALLBACK = 1 << 1,   /* unknown characters become <0xNN> tokens                        */
    MODEL_IGNORE_MERGES = 1 << 2,   /* a whole word that is a token is not split and merged           */
    MODEL_UNKNOWN_MISSING = 1 << 3, /* the unknown token has no id: text that needs it is refused     */
    MODEL_FLAGS = (1 << 4) - 1,
};

enum {
    DECODER_JOIN_SPACE = 1 << 0,     /* no decoder: tokens joined by single spaces                     */
    DECODER_BYTES = 1 << 1,          /* ByteLevel: decoded bytes form characters across tokens         */
    DECODER_BYTE_FALLBACK = 1 << 2,  /* runs of TOKEN_BYTE tokens form characters                      */
    DECODER_METASPACE = 1 << 3,      /* metaspace_character becomes a space ...                        */
    DECODER_METASPACE_DROP = 1 << 4, /* ... or, in the first token, nothing                           */
    DECODER_FLAGS = (1 << 5) - 1,
};

struct image_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; /* sizeof(struct image_header) */
    uint64_t image_bytes;  /* whole image                 */
    uint32_t normalizer_count, splitter_count;
    uint32_t prefix_count, suffix_count;
    uint32_t added_plain_count, added_normalized_count;
    uint32_t token_count, token_slot_count;
    uint32_t merge_count, merge_slot_count;
    uint32_t pool_bytes, decoded_bytes;
    uint32_t model_flags;
    int32_t unknown_id; /* -1: none */
    uint32_t decoder_flags;
    uint32_t metaspace_character;     /* used with DECODER_METASPACE                                     */
    uint32_t strip_character;         /* stripped from the whole decoded text:                            */
    uint32_t strip_start, strip_stop; /* at most so many at its start and at its end                  */
    /* A character that, in the results of merges, only follows itself (0: none known). Merges cannot extend over the
     * place before it, so a long text can be merged word by word. U+2581 in SentencePiece vocabularies. */
    uint32_t word_start_character;
    uint32_t reserved[2]; /* zero */
};
static_assert(sizeof(struct image_header) == 112 && sizeof(struct image_header) % 8 == 0, "part of the format");

enum tokenizer_model { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORD_PIECE, MODEL_WORD_LEVEL, MODEL_COUNT };

/* Follows the header in images of version 2. */
struct image_extension {
    uint32_t model;       /* enum tokenizer_model                                                               */
    uint32_t score_count; /* token_count for MODEL_UNIGRAM, else 0                                              */
    uint32_t order_count; /* tokens of the model that are not empty, for MODEL_UNIGRAM and _WORD_PIECE; else 0 */
    uint32_t first_count; /* token_count if the first token of a text decodes in its own way, else 0            */
    uint32_t table_bytes;
    uint32_t word_limit;                  /* MODEL_WORD_PIECE: longer words, in characters, are unknown */
    uint32_t prefix_offset, prefix_bytes; /* in the pool: before each symbol but the first of a word   */
    uint32_t suffix_offset, suffix_bytes; /* in the pool, MODEL_BPE: after the last symbol of a word   */
    uint32_t reserved[2];                 /* zero */
};
static_assert(sizeof(struct image_extension) == 48 && sizeof(struct image_extension) % 8 == 0, "part of the format");

enum tokenizer_step_kind {
    /* normalizers */
    STEP_NFC = 1,
    STEP_NFD,
    STEP_NFKC,
    STEP_NFKD,
    STEP_LOWERCASE,
    STEP_STRIP,          /* flags: STRIP_*                          */
    STEP_PREPEND,        /* content before text that is not empty   */
    STEP_REPLACE_STRING, /* pattern -> content                      */
    STEP_REPLACE_REGEX,
    /* from version 2 on */
    STEP_NMT,              /* SentencePiece's "nmt": drops controls, makes spaces of other characters */
    STEP_DROP_MARKS,       /* flags: MARKS_*                                                          */
    STEP_CLEAN,            /* drops controls and unassigned characters, white space becomes ' '       */
    STEP_SPACE_IDEOGRAPHS, /* spaces around each CJK ideograph                                        */
    STEP_BYTE_ALPHABET,    /* bytes become characters of GPT-2's byte alphabet                        */
    STEP_CHARACTER_MAP,    /* pattern: place in the tables; 4-aligned: struct image_character_map     */
    STEP_NORMALIZER_END,
    /* pre-tokenizers */
    STEP_SPLIT_STRING = 32, /* flags: enum tokenizer_split_behavior, SPLIT_INVERT */
    STEP_SPLIT_REGEX,
    STEP_DIGITS,      /* flags: enum tokenizer_split_behavior                                     */
    STEP_SPACE_FIRST, /* a space before a piece that does not begin with one                      */
    STEP_METASPACE,   /* spaces become content, one character; flags: METASPACE_*                 */
    STEP_BYTE_LEVEL,  /* bytes become characters of GPT-2's byte alphabet                         */
    /* from version 2 on */
    STEP_PUNCTUATION,  /* flags: enum tokenizer_split_behavior        */
    STEP_WHITE_SPACE,  /* flags: enum tokenizer_split_behavior        */
    STEP_WORDS,        /* words and other runs, without white space   */
    STEP_FIXED_LENGTH, /* flags: characters of a piece, not 0         */
    STEP_SPLITTER_END,
};

enum { MARKS_ALL, MARKS_WITHOUT_WIDTH };

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
enum { METASPACE_NEVER = 0, METASPACE_FIRST = 1, METASPACE_ALWAYS = 2 }; /* where content is prepended */

enum tokenizer_split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
    SPLIT_BEHAVIOR_MASK = 7,
    SPLIT_INVERT = 8, /* the pattern matches the words, not what stands between them */
};

struct image_step {
    uint32_t kind, flags;
    uint32_t pattern_offset, pattern_bytes; /* in the pool; Hugging Face's pattern, not that of PCRE2 */
    uint32_t content_offset, content_bytes; /* in the pool                                      */
};
static_assert(sizeof(struct image_step) == 24, "part of the format");

enum { ADDED_SINGLE_WORD = 1, ADDED_STRIP_LEFT = 2, ADDED_STRIP_RIGHT = 4, ADDED_FLAGS = 7 };

/* Two lists: tokens searched in the original text, then tokens searched in normalized text. Each is sorted by the
 * pattern's bytes, without duplicates. */
struct image_added {
    uint32_t id, flags;
    uint32_t pattern_offset, pattern_bytes; /* in the pool; not empty */
};
static_assert(sizeof(struct image_added) == 16, "part of the format");

enum {
    TOKEN_PRESENT = 1 << 0,
    TOKEN_MODEL = 1 << 1, /* in the model's vocabulary (an added token need not be)  */
    TOKEN_SPECIAL = 1 << 2,
    TOKEN_BYTE = 1 << 3, /* stands for one byte to DECODER_BYTE_FALLBACK: the one decoded byte */
    TOKEN_FLAGS = (1 << 4) - 1,
};

struct image_token {
    uint32_t text_offset, text_bytes;       /* in the pool                                                 */
    uint32_t decoded_offset, decoded_bytes; /* in the decoded section: after the decoder's per-token steps */
    uint32_t flags;
};
static_assert(sizeof(struct image_token) == 20, "part of the format");

/* What a token decodes to as the first one of a text. */
struct image_decoded {
    uint32_t offset, bytes; /* in the decoded section */
};
static_assert(sizeof(struct image_decoded) == 8, "part of the format");

/* SentencePiece's precompiled_charsmap: a double array, as the library Darts-clone lays it out (units of 32 bits), from
 * texts to places in `text`, which holds replacements that each end with NUL. */
struct image_character_map {
    uint32_t unit_count, text_bytes;
    uint32_t units[]; /* [unit_count], then char text[text_bytes], valid UTF-8 */
};

struct image_merge {
    uint32_t left, right, result; /* ids */
};
static_assert(sizeof(struct image_merge) == 12, "part of the format");

/* Home slot of a merge before masking. The multipliers are odd and near the golden ratio: ids are small and dense, and
 * the high half of the product mixes both. */
static inline uint32_t tokenizer_merge_home(uint32_t left, uint32_t right)
{
    uint64_t mixed = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    mixed ^= mixed >> 29;
    return (uint32_t)((mixed * 0xBF58476D1CE4E5B9u) >> 32);
}

#endif
