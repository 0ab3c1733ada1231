/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of grammars: the first byte chooses a JSON Schema ('s'), one with white space ('w'), a list of choices, one a line ('c'), or
 * a regular expression (any other byte). Any text is refused with a message or makes a grammar whose masks agree with its matcher, and
 * whose outputs are UTF-8 and, for a schema, JSON. */
#include <jansson.h>
#include <string.h>

#include "formats/grammar/grammar.h"
#include "formats/tokenizer/tokenizer_text.h"
#include "tests/fuzz/fuzz.h"

/* A short text may use all the steps and all the memory that grammars have. */
const struct fuzz_cost fuzz_cost = {.base_ms = 20000,
                                    .us_per_byte = 100,
                                    .base_bytes = 320 << 20,
                                    .bytes_per_byte = 1024};

enum { BYTES = 256, TOKENS = BYTES + 6, END = TOKENS - 1, MOST_STEPS = 60, MOST_CHOICES = 64 };

static struct grammar *open_grammar(const uint8_t *data, size_t size, struct status *status)
{
    const char *text = (const char *)data + 1;
    struct grammar_options options;
    grammar_options_initialize(&options);
    options.most_whitespace = data[0] == 'w' ? 3 : 0;
    if (data[0] == 's' || data[0] == 'w') return grammar_schema_open(text, size - 1, &options, status);
    if (data[0] != 'c') return grammar_regex_open(text, size - 1, status);
    struct grammar_text choices[MOST_CHOICES];
    size_t count = 0;
    for (const char *at = text, *end = text + size - 1; at <= end && count < MOST_CHOICES;) {
        const char *line = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        if (!line) line = end;
        choices[count++] = (struct grammar_text){at, (size_t)(line - at)};
        at = line + 1;
    }
    return grammar_choices_open(choices, count, status);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static bool is_set(const uint32_t *mask, uint32_t id) { return mask[id / 32] >> id % 32 & 1; }

/* An allowed token; most often one that is likely to lead to an end. */
static uint32_t choose(const uint32_t *mask, uint64_t *random)
{
    static const char likely[] = "\"}]0n,:{[ea";
    if (is_set(mask, END) && next_random(random) % 4) return END;
    for (const char *c = likely; *c; c++)
        if (next_random(random) % 2 && is_set(mask, (uint8_t)*c)) return (uint8_t)*c;
    const uint32_t start = next_random(random) % TOKENS;
    for (uint32_t i = 0; i < TOKENS; i++)
        if (is_set(mask, (start + i) % TOKENS)) return (start + i) % TOKENS;
    return TOKENS;
}

static bool follow(struct grammar_matcher *matcher, const struct grammar_token *tokens, uint64_t *random,
                   bool is_schema)
{
    struct status status = {0};
    struct grammar_state state;
    uint32_t mask[(TOKENS + 31) / 32];
    char output[MOST_STEPS * 8];
    size_t size = 0;
    if (!grammar_begin(matcher, &state, &status)) return status.code == STATUS_FULL;
    for (int step = 0; step < MOST_STEPS; step++) {
        /* Every byte is a token, and so there is always one that can follow. */
        if (!grammar_fill_mask(matcher, &state, mask, &status)) return status.code == STATUS_FULL;
        for (int probe = 0; probe < 8; probe++) {
            const uint32_t id = next_random(random) % END;
            struct grammar_state copy = state;
            const bool accepted = grammar_accept_bytes(matcher, &copy, tokens[id].bytes, tokens[id].size, &status);
            if (!accepted && status.code == STATUS_FULL) return true;
            require(accepted == is_set(mask, id));
        }
        const uint32_t id = choose(mask, random);
        require(id < TOKENS);
        if (id == END) {
            require(text_is_valid((const uint8_t *)output, size));
            json_t *value = is_schema ? json_loadb(output, size, JSON_DECODE_ANY, NULL) : NULL;
            require(!is_schema || value != NULL);
            json_decref(value);
            return true;
        }
        memcpy(output + size, tokens[id].bytes, tokens[id].size);
        size += tokens[id].size;
        if (!grammar_accept_bytes(matcher, &state, tokens[id].bytes, tokens[id].size, &status))
            return status.code == STATUS_FULL;
    }
    return true;
}

int fuzz_try(const uint8_t *data, size_t size)
{
    static char bytes[BYTES];
    static const char *const pieces[] = {"\",\"", "\":\"", "true", "aaa", "\xC3\xA9"};
    struct grammar_token tokens[TOKENS];
    struct status status = {0};
    uint64_t random = size;
    if (size == 0) return 0;
    struct grammar *grammar = open_grammar(data, size, &status);
    if (!grammar) {
        require(status.code != STATUS_OK && status.code != STATUS_INTERNAL && status.message[0]);
        return 0;
    }
    for (uint32_t i = 0; i < BYTES; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct grammar_token){&bytes[i], 1, GRAMMAR_TOKEN_TEXT};
    }
    for (uint32_t i = BYTES; i < END; i++)
        tokens[i] = (struct grammar_token){pieces[i - BYTES], (uint32_t)strlen(pieces[i - BYTES]), GRAMMAR_TOKEN_TEXT};
    tokens[END] = (struct grammar_token){"", 0, GRAMMAR_TOKEN_END};
    struct grammar_vocabulary *vocabulary = grammar_vocabulary_open(tokens, TOKENS, &status);
    struct grammar_matcher *matcher = vocabulary ? grammar_matcher_open(grammar, vocabulary, &status) : NULL;
    require(matcher != NULL);
    for (int round = 0; round < 3; round++) require(follow(matcher, tokens, &random, data[0] == 's' || data[0] == 'w'));
    grammar_matcher_close(matcher);
    grammar_vocabulary_close(vocabulary);
    grammar_close(grammar);
    return 0;
}
