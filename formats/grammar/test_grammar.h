/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the grammar tests: an independent validator of documents, schemas with documents, vocabularies and random walks. */
#ifndef FORMATS_GRAMMAR_TEST_GRAMMAR_H
#define FORMATS_GRAMMAR_TEST_GRAMMAR_H

#include <jansson.h>

#include "formats/grammar/grammar.h"

/* Whether the value is valid, by the meaning that draft 2020-12 gives to the keywords. */
bool test_is_valid(const json_t *root, const json_t *schema, const json_t *value);

/* Texts have ' for ". Documents are separated by a line end. */
struct test_schema {
    const char *schema, *valid, *invalid;
};
extern const struct test_schema test_schemas[];
extern const size_t test_schema_count;

/* A vocabulary with all bytes (ids 0 to 255), pieces of JSON and text, an end token and a special one. */
struct test_vocabulary {
    struct grammar_token *tokens;
    size_t count;
    uint32_t end, special;
    struct grammar_vocabulary *vocabulary;
};
void test_vocabulary_open(struct test_vocabulary *vocabulary);
void test_vocabulary_close(struct test_vocabulary *vocabulary);

/* Appends random allowed tokens until the end token; after `most` of them, those that lead to an end soon. Owned, NUL-terminated. Each
 * mask is compared with the answers of grammar_accept_bytes if `compare` is set. */
char *test_walk(struct grammar_matcher *matcher, const struct test_vocabulary *vocabulary, uint64_t *random, int most,
                bool compare, size_t *size);

/* Whether the whole text is an output of the grammar. */
bool test_accepts(struct grammar_matcher *matcher, const char *text, size_t size);

/* A grammar of a schema in which ' stands for ", and a matcher with the vocabulary. They end the test if that fails. */
struct grammar *test_schema_open(const char *text, const struct grammar_options *options);
struct grammar_matcher *test_matcher_open(const struct grammar *grammar, const struct test_vocabulary *vocabulary);

#endif
