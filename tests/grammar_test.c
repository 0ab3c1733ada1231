/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that follow a grammar: whatever the model would say, what ends by itself fits, alone and with others, also where pages are
 * few; a grammar that allows everything changes nothing. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 12, MOST = 200, TEXT_BYTES = 8192 };

static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, \"age\": {\"type\": "
    "\"integer\", "
    "\"minimum\": 0, \"maximum\": 120}, \"tags\": {\"type\": \"array\", \"items\": {\"enum\": [\"red\", \"green\"]}, "
    "\"maxItems\": 3}, \"ok\": {\"type\": \"boolean\"}}, \"required\": [\"name\", \"age\", \"tags\", \"ok\"], "
    "\"additionalProperties\": false}";

static struct eng_grammar *make_for(const struct eng_engine *engine, enum eng_grammar_kind kind, const char *text)
{
    struct eng_grammar *grammar = NULL;
    CHECK(eng_grammar_create(engine, kind, text, strlen(text), &grammar, &error));
    return grammar;
}

static struct eng_grammar *make(enum eng_grammar_kind kind, const char *text) { return make_for(fables, kind, text); }

static struct eng_sequence *begin(struct eng_session *session, struct eng_grammar *grammar, uint32_t seed,
                                  uint32_t most)
{
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    int32_t prompt[PROMPT];
    eng_sampling_init(&sampling);
    sampling.temperature = seed % 4 ? 1.5f : 0;
    sampling.seed = seed;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = most;
    options.grammar = grammar;
    fables_tokens(seed, prompt, PROMPT);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    return sequence;
}

/* The answer without its end token; "" if it did not end by itself. */
static void text_of(struct eng_sequence *sequence, char *text)
{
    int32_t tokens[MOST];
    const size_t count = eng_sequence_poll(sequence, tokens, MOST);
    size_t size = 0;
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_DONE);
    if (eng_sequence_end(sequence) == ENG_END_EOS)
        CHECK(eng_detokenize(fables, tokens, count, 0, text, TEXT_BYTES, &size, &error));
    else
        assert_int_equal(eng_sequence_end(sequence), ENG_END_LENGTH);
    text[size] = '\0';
}

static void check_person(const char *text)
{
    json_error_t where;
    json_t *person = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    if (!person) fail_msg("%s: %s", where.text, text);
    size_t i;
    const json_t *tag;
    assert_int_equal(json_object_size(person), 4);
    assert_true(json_is_string(json_object_get(person, "name")));
    assert_in_range(json_integer_value(json_object_get(person, "age")), 0, 120);
    assert_true(json_is_boolean(json_object_get(person, "ok")));
    assert_true(json_array_size(json_object_get(person, "tags")) <= 3);
    json_array_foreach (json_object_get(person, "tags"), i, tag)
        assert_true(!strcmp(json_string_value(tag), "red") || !strcmp(json_string_value(tag), "green"));
    json_decref(person);
}

TEST(answers_are_documents_of_the_schema)
{
    enum { ANSWERS = 24 };
    static char text[TEXT_BYTES], alone[ANSWERS][TEXT_BYTES];
    struct eng_session_options options;
    struct eng_grammar *grammar = make(ENG_GRAMMAR_JSON_SCHEMA, schema);
    eng_session_options_init(&options);
    uint32_t ended = 0;
    for (int round = 0; round < 2; round++) {
        struct eng_sequence *sequences[ANSWERS], *other[ANSWERS];
        options.kv_tokens = round ? FABLES_CONTEXT : 0;
        struct eng_session *session = fables_session(fables, &options);
        for (uint32_t i = 0; i < ANSWERS; i++) {
            sequences[i] = begin(session, grammar, i, MOST);
            if (round) other[i] = begin(session, NULL, 100 + i, 40); /* without a grammar, in the same steps */
            if (!round) fables_finish(session);
        }
        fables_finish(session);
        for (uint32_t i = 0; i < ANSWERS; i++) {
            text_of(sequences[i], text);
            if (text[0]) check_person(text), ended++;
            if (!round) strcpy(alone[i], text);
            assert_string_equal(text, alone[i]);
            eng_sequence_destroy(&sequences[i]);
            if (round) eng_sequence_destroy(&other[i]);
        }
        eng_session_destroy(&session);
    }
    eng_grammar_destroy(&grammar);
    assert_true(ended > ANSWERS);
}

static void check_choice(enum eng_grammar_kind kind, const char *source, const char *const *expected, size_t count)
{
    char text[TEXT_BYTES];
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_grammar *grammar = make(kind, source);
    uint32_t found[4] = {0};
    for (uint32_t seed = 0; seed < 30; seed++) {
        struct eng_sequence *sequence = begin(session, grammar, seed, MOST);
        fables_finish(session);
        text_of(sequence, text);
        size_t i = 0;
        while (i < count && strcmp(text, expected[i]) != 0) i++;
        if (i == count) fail_msg("'%s' is none of the choices", text);
        found[i]++;
        eng_sequence_destroy(&sequence);
    }
    assert_true(found[0] && found[1]); /* both ways were gone */
    eng_grammar_destroy(&grammar);
    eng_session_destroy(&session);
}

TEST(answers_are_choices)
{
    static const char *const words[] = {"yes", "no, never"}, *const codes[] = {"a1", "a2"};
    check_choice(ENG_GRAMMAR_CHOICES, "[\"yes\", \"no, never\"]", words, 2);
    check_choice(ENG_GRAMMAR_REGEX, "a[12]", codes, 2);
}

/* A composed grammar may ask for special tokens, which no other one allows. */
TEST(special_tokens_come_where_a_marker_asks_for_them)
{
    static const char source[] =
        "{\"sequence\": [{\"text\": \"a\"}, {\"marker\": \"<|begin|>\"}, {\"text\": \"<|begin|>\"}]}";
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_grammar *grammar = make(ENG_GRAMMAR_COMPOSED, source), *missing = NULL;
    char text[TEXT_BYTES];
    size_t size;
    int32_t tokens[MOST], special;
    CHECK(eng_token_find(fables, "<|begin|>", strlen("<|begin|>"), &special, &error));
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct eng_sequence *sequence = begin(session, grammar, seed, MOST);
        fables_finish(session);
        const size_t count = eng_sequence_poll(sequence, tokens, MOST);
        size_t found = 0;
        for (size_t i = 0; i < count; i++) found += tokens[i] == special;
        assert_int_equal(eng_sequence_end(sequence), ENG_END_EOS);
        assert_int_equal(found, 1);
        CHECK(eng_detokenize(fables, tokens, count, 0, text, sizeof text, &size, &error));
        text[size] = '\0';
        assert_string_equal(text, "a<|begin|>");
        eng_sequence_destroy(&sequence);
    }
    assert_int_equal(eng_grammar_create(fables, ENG_GRAMMAR_COMPOSED, "{\"a\": 1}", 8, &missing, &error),
                     ENG_BAD_INPUT);
    eng_grammar_destroy(&grammar);
    eng_session_destroy(&session);
}

/* Gives the model's last token, which its last merge makes, another text: a special token's. Returns its id. */
static int32_t replace_last_token(const char *path, const char *text)
{
    json_t *root = json_load_file(path, 0, NULL), *model = json_object_get(root, "model");
    json_t *vocabulary = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    const int32_t id = (int32_t)json_object_size(vocabulary) - 1;
    const char *key, *last = NULL;
    json_t *value;
    json_object_foreach (vocabulary, key, value)
        if (json_integer_value(value) == id) last = key;
    assert_non_null(last);
    assert_int_equal(json_object_del(vocabulary, last), 0);
    assert_int_equal(json_array_remove(merges, json_array_size(merges) - 1), 0);
    json_t *added = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text, "single_word", 0,
                              "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    assert_int_equal(json_array_append_new(json_object_get(root, "added_tokens"), added), 0);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return id;
}

/* The engine's answers to a composed grammar are these tokens and the end token, whatever the model would say. */
static void check_tokens(struct eng_session *session, const struct eng_engine *engine, const char *source,
                         const int32_t *expected, size_t count)
{
    struct eng_grammar *grammar = make_for(engine, ENG_GRAMMAR_COMPOSED, source);
    for (uint32_t seed = 0; seed < 16; seed++) {
        struct eng_sequence *sequence = begin(session, grammar, seed, MOST);
        int32_t tokens[MOST];
        fables_finish(session);
        assert_int_equal(eng_sequence_poll(sequence, tokens, MOST), count + 1);
        assert_memory_equal(tokens, expected, count * sizeof *tokens);
        eng_sequence_destroy(&sequence);
    }
    eng_grammar_destroy(&grammar);
}

/* The text of a special token begins with that of another: the longest is meant, and neither stands for the other. */
TEST(special_tokens_that_begin_alike)
{
    static const char shorter[] = "<|begin|>", longer[] = "<|begin|>x";
    char *folder = test_folder(), command[400], path[300];
    struct eng_engine *engine = NULL;
    struct status status = {0};
    int32_t ids[8], begin_token, x;
    size_t count;
    snprintf(command, sizeof command, "cp -rL tests/models/fables/. %s && chmod -R u+w %s", folder, folder);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    const int32_t special = replace_last_token(path, longer);
    snprintf(path, sizeof path, "%s/alike.eng", folder);
    test_expect_success(fables_build_model(folder, path, 1, &status), &status);
    CHECK(eng_open(path, NULL, &engine, &error));
    CHECK(eng_token_find(engine, shorter, strlen(shorter), &begin_token, &error));
    CHECK(eng_token_find(engine, "x", 1, &x, &error));
    CHECK(eng_tokenize(engine, "<|begin|>x<|begin|>", 19, 0, ids, 8, &count, &error));
    assert_int_equal(count, 2);
    assert_int_equal(ids[0], special);
    assert_int_equal(ids[1], begin_token);
    struct eng_session *session = fables_session(engine, NULL);
    check_tokens(session, engine, "{\"marker\": \"<|begin|>x<|begin|>\"}", ids, 2);
    check_tokens(session, engine, "{\"sequence\": [{\"marker\": \"<|begin|>\"}, {\"text\": \"x\"}]}",
                 (const int32_t[]){begin_token, x}, 2);
    eng_session_destroy(&session);
    eng_close(&engine);
    test_folder_remove(folder);
}

TEST(a_grammar_that_allows_everything_changes_nothing)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_grammar *grammar = make(ENG_GRAMMAR_REGEX, "(.|\\n|\\r)*");
    for (uint32_t seed = 0; seed < 8; seed++) {
        int32_t expected[MOST], found[MOST];
        struct eng_sequence *plain = begin(session, NULL, 4 * seed, 60), *bound = begin(session, grammar, 4 * seed, 60);
        fables_finish(session);
        const size_t count = eng_sequence_poll(plain, expected, MOST);
        assert_int_equal(eng_sequence_poll(bound, found, MOST), count);
        assert_memory_equal(expected, found, count * sizeof *found);
        eng_sequence_destroy(&plain);
        eng_sequence_destroy(&bound);
    }
    eng_grammar_destroy(&grammar);
    eng_session_destroy(&session);
}

TEST(refusals)
{
    struct eng_grammar *grammar = NULL;
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    static const struct {
        enum eng_grammar_kind kind;
        const char *text, *words;
    } cases[] = {{ENG_GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\", \"unevaluatedProperties\": {}}",
                  "unevaluatedProperties"},
                 {ENG_GRAMMAR_JSON_SCHEMA, "{", "eng_grammar_create"},
                 {ENG_GRAMMAR_REGEX, "(?=a)b", "eng_grammar_create"},
                 {ENG_GRAMMAR_CHOICES, "[1]", "array of at least one string"},
                 {ENG_GRAMMAR_CHOICES, "[]", "array of at least one string"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(eng_grammar_create(fables, cases[i].kind, cases[i].text, strlen(cases[i].text), &grammar,
                                            &error),
                         ENG_BAD_INPUT);
        if (!strstr(error.message, cases[i].words)) fail_msg("%s", error.message);
        assert_null(grammar);
    }
    assert_int_equal(eng_grammar_create(fables, (enum eng_grammar_kind)9, "", 0, &grammar, &error), ENG_USAGE);
    grammar = make(ENG_GRAMMAR_JSON_OBJECT, "");
    eng_sequence_options_init(&options);
    options.grammar = grammar;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    assert_int_equal(eng_sequence_create(session, &options, &sequence, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "end token"));
    struct eng_engine *another = fables_open();
    struct eng_session *elsewhere = fables_session(another, NULL);
    options.flags = 0;
    assert_int_equal(eng_sequence_create(elsewhere, &options, &sequence, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "another engine"));
    eng_session_destroy(&elsewhere);
    eng_close(&another);
    eng_grammar_destroy(&grammar);
    eng_session_destroy(&session);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
