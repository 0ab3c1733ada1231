/* SPDX-License-Identifier: Apache-2.0 */
/* The image under construction, shared by the files that read tokenizer.json. Private to formats/tokenizer. */
#ifndef FORMATS_TOKENIZER_TOKENIZER_IMPORT_H
#define FORMATS_TOKENIZER_TOKENIZER_IMPORT_H

#include "formats/base/json.h"
#include "formats/tokenizer/tokenizer_image.h"
#include "formats/tokenizer/tokenizer_text.h"

/* Decoder steps for single tokens. They are applied to every token at import, and the image stores the results. */
enum decode_step_kind {
    DECODE_REPLACE_STRING,
    DECODE_REPLACE_REGEX,
    DECODE_STRIP,
    DECODE_CONTINUE, /* drops the prefix `pattern`, or adds a space before a token without it; not for the first token */
    DECODE_CLEAN,    /* drops spaces before punctuation, as WordPiece does with "cleanup" */
    DECODE_SUFFIX,   /* the suffix `pattern` becomes a space */
};
struct decode_step {
    enum decode_step_kind kind;
    const char *pattern, *content; /* borrowed from the JSON */
    uint32_t character, start, stop;
};

struct added_token {
    uint32_t id, flags;
    const char *content; /* borrowed from the JSON */
    size_t content_size;
    char *normalized; /* owned: the normalized form; NULL: equal to the content */
    size_t normalized_size;
    bool is_normalized, special;
};

struct tokenizer_import {
    struct status *status;
    struct image_header header;
    struct image_extension extension;
    bool needs_extension; /* some step is newer than the first version of the image */
    struct text_buffer pool, decoded, tables;
    struct image_step normalizers[TOKENIZER_STEP_LIMIT], splitters[TOKENIZER_STEP_LIMIT];
    uint32_t template_ids[2 * TOKENIZER_TEMPLATE_LIMIT]; /* prefix, then suffix */
    struct decode_step decode_steps[TOKENIZER_STEP_LIMIT];
    uint32_t decode_step_count;
    bool decodes_first;      /* some of the steps treat the first token of a text in another way */
    json_t *vocabulary;      /* borrowed: token -> id; also used as hash table */
    json_t *own_vocabulary;  /* the same, owned, where the file has a list */
    const char **texts;      /* [vocabulary_ids] tokens of the model, borrowed from the JSON; NULL: unused id */
    uint32_t vocabulary_ids; /* 1 + highest id in the model */
    size_t vocabulary_count;
    struct added_token *added;
    size_t added_count;
    struct image_added *image_added;
    struct image_token *tokens;
    uint32_t *token_slots;
    struct image_merge *merges;
    uint32_t *merge_slots;
    double *scores;              /* [token_count] for Unigram */
    uint32_t *order;             /* for Unigram and WordPiece */
    struct image_decoded *first; /* [token_count], NULL: the first token decodes like others */
};

/* Each reads one part of tokenizer.json; NULL is JSON null or a missing key. */
bool tokenizer_import_normalizer(struct tokenizer_import *import, json_t *normalizer);
bool tokenizer_import_pre_tokenizer(struct tokenizer_import *import, json_t *pre_tokenizer);
bool tokenizer_import_post_processor(struct tokenizer_import *import, json_t *post_processor);
bool tokenizer_import_decoder(struct tokenizer_import *import, json_t *decoder);
bool tokenizer_import_model(struct tokenizer_import *import, json_t *model);
/* The fields of the models without merges. Requires: "type" was read. */
bool tokenizer_import_unigram(struct tokenizer_import *import, struct json_reader *reader, json_t *vocabulary);
bool tokenizer_import_words(struct tokenizer_import *import, struct json_reader *reader, json_t *vocabulary,
                            bool pieces);
/* Reads token -> id. */
bool tokenizer_import_vocabulary(struct tokenizer_import *import, json_t *vocabulary);
/* Puts text that the model adds to symbols into the pool. */
bool tokenizer_import_affix(struct tokenizer_import *import, struct json_reader *reader, const char *key,
                            const char *affix, uint32_t *offset, uint32_t *bytes);
int64_t tokenizer_import_find(const struct tokenizer_import *import, const char *text);
/* Sorts the model's tokens for its trie. Requires: tokens are placed. */
bool tokenizer_import_order(struct tokenizer_import *import);
bool tokenizer_import_added(struct tokenizer_import *import, json_t *added_tokens);

/* Fills tokens[].decoded_* and TOKEN_BYTE by the decoder's steps for single tokens. */
bool tokenizer_import_decoded(struct tokenizer_import *import);

/* Appends text to the pool and returns its place. */
bool tokenizer_import_pool(struct tokenizer_import *import, const char *text, size_t size, uint32_t *offset,
                           uint32_t *bytes);

/* Builds the image, which the caller frees. */
bool tokenizer_import_assemble(const struct tokenizer_import *import, uint8_t **image, size_t *image_size);

bool tokenizer_import_fail(const struct tokenizer_import *import, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A field of one character; *text is borrowed. */
bool tokenizer_import_character(struct tokenizer_import *import, struct json_reader *reader, const char *key,
                                const char **text, uint32_t *character);

/* The fields of Metaspace, which is a pre-tokenizer and a decoder. */
struct metaspace_fields {
    const char *replacement;    /* borrowed */
    uint32_t character, scheme; /* METASPACE_ALWAYS, _FIRST or _NEVER */
    bool split;
};
bool tokenizer_import_metaspace(struct tokenizer_import *import, struct json_reader *reader,
                                struct metaspace_fields *fields);

/* The fields of ByteLevel where none of them has an effect. */
bool tokenizer_import_byte_level_idle(struct tokenizer_import *import, struct json_reader *reader);

#endif
