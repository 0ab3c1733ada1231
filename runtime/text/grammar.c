/* SPDX-License-Identifier: Apache-2.0 */
/* Grammar functions of the API. A grammar has one matcher, whose caches all sequences of all sessions share under a lock: a step takes
 * microseconds of it. */
#include "runtime/text/grammar.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "formats/grammar/grammar_composed.h"

struct eng_grammar {
    atomic_uint references;
    struct eng_engine *engine;
    struct grammar *rules;
    struct grammar_matcher *matcher;
    pthread_mutex_t lock; /* of the matcher */
    char *bytes;          /* [most_bytes]: of a token, under the lock */
};

/* ---- the vocabulary of an engine ---- */

static enum grammar_token_kind kind_of(const struct eng_engine *engine, int32_t token)
{
    const struct manifest *manifest = &engine->file.manifest;
    for (int i = 0; i < manifest->eos_count; i++)
        if (manifest->eos_tokens[i] == token) return GRAMMAR_TOKEN_END;
    if (token == chat_end_token(engine)) return GRAMMAR_TOKEN_END;
    return tokenizer_is_special(engine->tokenizer, token) ? GRAMMAR_TOKEN_SPECIAL : GRAMMAR_TOKEN_TEXT;
}

/* A token, as grammars know it, has at most so many bytes. */
static size_t most_bytes(const struct eng_engine *engine) { return decode_stream_max_bytes(engine->tokenizer) + 2; }

/* The bytes by which grammars know a token: a special one has GRAMMAR_SPECIAL_BYTE before its own and after them, and another one that has
 * this byte, which is in no text, has none. bytes: [most_bytes]. */
static size_t token_bytes(const struct eng_engine *engine, int32_t token, char *bytes)
{
    const bool special = tokenizer_is_special(engine->tokenizer, token);
    const size_t size = tokenizer_token_bytes(engine->tokenizer, token, bytes + special);
    if (!special) return memchr(bytes, GRAMMAR_SPECIAL_BYTE, size) ? 0 : size;
    if (!size) return 0;
    bytes[0] = bytes[size + 1] = (char)GRAMMAR_SPECIAL_BYTE;
    return size + 2;
}

/* The bytes of all tokens one after the other, in `text`, which the caller frees. */
static bool collect(const struct eng_engine *engine, struct grammar_token *tokens, char **text, struct status *status)
{
    const size_t count = engine->file.manifest.geometry.vocab_size, longest = most_bytes(engine);
    size_t used = 0, room = 0;
    *text = NULL;
    for (size_t t = 0; t < count; t++) {
        if (room - used < longest) {
            room = 2 * room + longest + 65536;
            char *larger = realloc(*text, room);
            if (!larger) return status_fail(status, STATUS_MACHINE, "out of memory");
            *text = larger;
        }
        const size_t size = token_bytes(engine, (int32_t)t, *text + used);
        const bool ends = kind_of(engine, (int32_t)t) == GRAMMAR_TOKEN_END;
        const enum grammar_token_kind kind = ends ? GRAMMAR_TOKEN_END : GRAMMAR_TOKEN_TEXT;
        /* Longer ones are no part of any text that a grammar would be used for. */
        tokens[t] = (struct grammar_token){.size = size <= GRAMMAR_MOST_TOKEN_BYTES ? (uint32_t)size : 0, .kind = kind};
        used += size <= GRAMMAR_MOST_TOKEN_BYTES ? size : 0;
    }
    const char *at = *text;
    for (size_t t = 0; t < count; at += tokens[t++].size) tokens[t].bytes = at;
    return true;
}

static struct grammar_vocabulary *make_vocabulary(const struct eng_engine *engine, struct status *status)
{
    const size_t count = engine->file.manifest.geometry.vocab_size;
    struct grammar_token *tokens = calloc(count, sizeof *tokens);
    struct grammar_vocabulary *vocabulary = NULL;
    char *text = NULL;
    if (!tokens)
        status_fail(status, STATUS_MACHINE, "out of memory");
    else if (collect(engine, tokens, &text, status))
        vocabulary = grammar_vocabulary_open(tokens, count, status);
    free(text);
    free(tokens);
    return vocabulary;
}

/* That of the engine, made when it is first needed. */
static const struct grammar_vocabulary *find_vocabulary(struct eng_engine *engine, struct status *status)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!engine->vocabulary) engine->vocabulary = make_vocabulary(engine, status);
    pthread_mutex_unlock(&lock);
    return engine->vocabulary;
}

/* ---- grammars ---- */

static struct grammar *open_choices(const char *text, size_t size, struct status *status)
{
    json_error_t where;
    json_t *list = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    const size_t count = json_array_size(list);
    struct grammar_text *choices = calloc(count + 1, sizeof *choices);
    struct grammar *rules = NULL;
    bool ok = list && count > 0 && choices;
    for (size_t i = 0; ok && i < count; i++) {
        const json_t *one = json_array_get(list, i);
        ok = json_is_string(one);
        if (ok) choices[i] = (struct grammar_text){json_string_value(one), json_string_length(one)};
    }
    if (!choices)
        status_fail(status, STATUS_MACHINE, "out of memory");
    else if (!ok)
        status_fail(status, STATUS_BAD_INPUT, "choices: expected a JSON array of at least one string");
    else
        rules = grammar_choices_open(choices, count, status);
    free(choices);
    json_decref(list);
    return rules;
}

/* Special tokens by name: their bytes one after the other, the longest first. */
struct specials {
    struct special {
        const char *bytes;
        size_t size;
    } * tokens; /* [count] */
    size_t count;
};

static size_t find_special(const void *context, const char *text, size_t size)
{
    const struct specials *specials = context;
    for (size_t i = 0; i < specials->count; i++) {
        const struct special *token = &specials->tokens[i];
        if (token->size <= size && memcmp(token->bytes, text, token->size) == 0) return token->size;
    }
    return 0;
}

static int compare_specials(const void *left, const void *right)
{
    const struct special *a = left, *b = right;
    return (a->size < b->size) - (a->size > b->size);
}

static struct grammar *open_composed(const struct eng_engine *engine, const char *text, size_t size,
                                     struct status *status)
{
    const size_t count = engine->file.manifest.geometry.vocab_size;
    struct grammar_token *tokens = calloc(count, sizeof *tokens);
    struct specials specials = {.tokens = calloc(count, sizeof *specials.tokens)};
    struct grammar *rules = NULL;
    char *bytes = NULL;
    if (!tokens || !specials.tokens) {
        status_fail(status, STATUS_MACHINE, "out of memory");
    } else if (collect(engine, tokens, &bytes, status)) {
        for (size_t t = 0; t < count; t++)
            if (tokens[t].size && (uint8_t)*tokens[t].bytes == GRAMMAR_SPECIAL_BYTE)
                specials.tokens[specials.count++] = (struct special){tokens[t].bytes + 1, tokens[t].size - 2};
        qsort(specials.tokens, specials.count, sizeof *specials.tokens, compare_specials);
        rules = grammar_composed_open(text, size, &(struct grammar_specials){find_special, &specials}, status);
    }
    free(bytes);
    free(specials.tokens);
    free(tokens);
    return rules;
}

static struct grammar *open_rules(const struct eng_engine *engine, enum eng_grammar_kind kind, const char *text,
                                  size_t size, struct status *status)
{
    switch (kind) {
    case ENG_GRAMMAR_JSON_SCHEMA: return grammar_schema_open(text, size, NULL, status);
    case ENG_GRAMMAR_JSON_OBJECT: return grammar_object_open(NULL, status);
    case ENG_GRAMMAR_REGEX: return grammar_regex_open(text, size, status);
    case ENG_GRAMMAR_CHOICES: return open_choices(text, size, status);
    case ENG_GRAMMAR_COMPOSED: return open_composed(engine, text, size, status);
    }
    status_fail(status, STATUS_USAGE, "kind is %d, expected one of enum eng_grammar_kind", (int)kind);
    return NULL;
}

static bool check_engine(const struct eng_engine *engine, struct status *status)
{
    if (!engine->tokenizer)
        return status_fail(status, STATUS_BAD_INPUT, "the engine has no tokenizer, and so its tokens have no text");
    if (!engine->file.manifest.eos_count)
        return status_fail(status, STATUS_BAD_INPUT, "the engine has no end token, with which an answer could end");
    return engine->file.manifest.geometry.sampling_options ||
           status_fail(
               status, STATUS_VERSION,
               "the engine was built before it could restrict tokens; build it again with this release's engbuild");
}

void grammar_retain(struct eng_grammar *grammar)
{
    atomic_fetch_add_explicit(&grammar->references, 1, memory_order_relaxed);
}

void grammar_release(struct eng_grammar *grammar)
{
    if (!grammar || atomic_fetch_sub_explicit(&grammar->references, 1, memory_order_acq_rel) != 1) return;
    if (grammar->matcher) grammar_matcher_close(grammar->matcher);
    if (grammar->rules) grammar_close(grammar->rules);
    pthread_mutex_destroy(&grammar->lock);
    free(grammar->bytes);
    load_release(grammar->engine);
    free(grammar);
}

const struct eng_engine *grammar_engine(const struct eng_grammar *grammar) { return grammar->engine; }

static struct eng_grammar *make(struct eng_engine *engine, enum eng_grammar_kind kind, const char *text, size_t size,
                                struct status *status)
{
    struct eng_grammar *grammar = calloc(1, sizeof *grammar);
    if (!grammar || pthread_mutex_init(&grammar->lock, NULL)) {
        free(grammar);
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    atomic_init(&grammar->references, 1);
    load_retain(engine);
    grammar->engine = engine;
    grammar->rules = open_rules(engine, kind, text, size, status);
    const struct grammar_vocabulary *vocabulary = grammar->rules ? find_vocabulary(engine, status) : NULL;
    if (vocabulary) grammar->matcher = grammar_matcher_open(grammar->rules, vocabulary, status);
    grammar->bytes = malloc(most_bytes(engine));
    if (grammar->matcher && grammar->bytes) return grammar;
    if (status->code == STATUS_OK) status_fail(status, STATUS_MACHINE, "out of memory");
    grammar_release(grammar);
    return NULL;
}

enum eng_status eng_grammar_create(const struct eng_engine *engine, enum eng_grammar_kind kind, const char *text,
                                   size_t size, struct eng_grammar **grammar, struct eng_error *error)
{
    static const char function[] = "eng_grammar_create";
    struct status status = {0};
    struct eng_grammar *made = NULL;
    if (report_not_null(engine, function, "engine", &status) &&
        report_not_null(size ? text : "", function, "text", &status) &&
        report_not_null((const void *)grammar, function, "grammar", &status)) {
        /* Only its reference count and its vocabulary change. */
        struct eng_engine *own = (struct eng_engine *)(uintptr_t)engine;
        if (check_engine(engine, &status)) made = make(own, kind, size ? text : "", size, &status);
        if (!made) status_prefix(&status, "%s", function);
    }
    if (!made) return report_status(&status, error);
    *grammar = made;
    return report_ok(error);
}

void eng_grammar_destroy(struct eng_grammar **grammar)
{
    if (!grammar) return;
    grammar_release(*grammar);
    *grammar = NULL;
}

/* ---- sequences ---- */

bool grammar_start(struct eng_grammar *grammar, struct grammar_state *state, uint32_t *mask, struct status *status)
{
    pthread_mutex_lock(&grammar->lock);
    bool ok =
        grammar_begin(grammar->matcher, state, status) && grammar_fill_mask(grammar->matcher, state, mask, status);
    pthread_mutex_unlock(&grammar->lock);
    return ok;
}

bool grammar_follow(struct eng_grammar *grammar, struct grammar_state *state, int32_t token, uint32_t *mask,
                    struct status *status)
{
    pthread_mutex_lock(&grammar->lock);
    const size_t size = token_bytes(grammar->engine, token, grammar->bytes);
    bool ok = grammar_accept_bytes(grammar->matcher, state, grammar->bytes, size, status) &&
              grammar_fill_mask(grammar->matcher, state, mask, status);
    pthread_mutex_unlock(&grammar->lock);
    return ok;
}
