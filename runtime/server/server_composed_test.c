/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that are either calls or texts of a format: in each dialect, whatever its grammar allows is divided into calls of the tools, or
 * is a text of the format as it is. */
#include "runtime/server/server_composed.h"

#include <string.h>

#include "formats/base/json.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/grammar/grammar_composed.h"
#include "runtime/server/server_answer.h"

enum { MOST_TOKENS = 512 };

static struct server_error error;

/* Texts that have the signs of a dialect. */
static const char *const templates[] = {
    "<|channel|>analysis<|message|>",
    "<|tool_call_argument_begin|>",
    "\xef\xbd\x9c"
    "DSML\xef\xbd\x9c</think>",
    "<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c> ```json",
    "<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>",
    "<seed:tool_call>",
    "<tool_call><function=<parameter=</think>",
    "<function=<|python_tag|>",
    ">>>all recipient",
    "<arg_key ':opensource'",
    "<tool_call><arg_key>",
    "<atem:invoke",
    "<|tool_call:begin|>",
    "[TOOL_CALLS][CALL_ID]",
    "[TOOL_CALLS][ARGS][THINK]",
    "[TOOL_CALLS]",
    "<|tools_prefix|>",
    "<|START_ACTION|>",
    "<|function_call|>",
    "<TOOLCALL>",
    "<tool_calls>",
    "<tool_call></think>",
    "<|tool_call|>",
    "<|start_header_id|>ipython",
    "tools",
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

static const char tools_text[] =
    "[{'type':'function','function':{'name':'get_weather','parameters':{'type':'object','properties':{'place':{'enum':["
    "'Rome','Oslo']},'days':{'$ref':'#/$defs/day'},'note':{'type':'string'},'unit':{'type':'string','enum':['C','F']}},"
    "'required':['days','note'],'$defs':{'day':{'type':'integer','minimum':1,'maximum':7}}}}},"
    "{'type':'function','function':{'name':'now'}}]";

static json_t *read_json(const char *text)
{
    json_t *value = json_loads(test_json(text), JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    return value;
}

static void read_list(const char *text, struct server_tools *tools)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *at = copy; (at = strchr(at, '\''));) *at = '"';
    json_t *list = json_loads(copy, 0, NULL);
    assert_non_null(list);
    *tools = (struct server_tools){0};
    assert_true(server_tools_read(list, tools, &error));
    json_decref(list);
    free(copy);
}

static void read_tools(struct server_tools *tools) { read_list(tools_text, tools); }

static struct server_format read_format(const char *field, const char *text)
{
    struct server_format format = {0};
    json_t *value = read_json(text);
    assert_true(server_format_read(field, value, &format, &error));
    json_decref(value);
    return format;
}

/* ---- random answers ---- */

/* "<|" begins a special token of the tests, which "|>" ends. */
static size_t find_special(const void *context, const char *text, size_t size)
{
    (void)context;
    const char *end = size > 2 && memcmp(text, "<|", 2) == 0 ? memmem(text, size, "|>", 2) : NULL;
    return end ? (size_t)(end - text) + 2 : 0;
}

struct vocabulary {
    struct grammar_token tokens[MOST_TOKENS];
    char bytes[MOST_TOKENS * 64];
    size_t count, used;
    struct grammar_vocabulary *vocabulary;
};

static void add_token(struct vocabulary *v, const char *bytes, size_t size, enum grammar_token_kind kind)
{
    assert_true(v->count < MOST_TOKENS && v->used + size <= sizeof v->bytes);
    memcpy(v->bytes + v->used, bytes, size);
    v->tokens[v->count++] = (struct grammar_token){v->bytes + v->used, (uint32_t)size, kind};
    v->used += size;
}

/* The special tokens of a literal, and the texts between them. */
static void add_literal(struct vocabulary *v, const char *text, size_t size)
{
    for (size_t at = 0, end; at < size; at = end) {
        char bytes[64] = {(char)GRAMMAR_SPECIAL_BYTE};
        const size_t special = find_special(NULL, text + at, size - at);
        for (end = at + (special ? special : 1); !special && end < size && !find_special(NULL, text + end, size - end);)
            end++;
        memcpy(bytes + (special > 0), text + at, end - at);
        if (special) bytes[special + 1] = (char)GRAMMAR_SPECIAL_BYTE;
        add_token(v, bytes, end - at + (special ? 2 : 0), GRAMMAR_TOKEN_TEXT);
    }
}

/* All bytes of texts, and the literals of the dialect's patterns. */
static void open_vocabulary(struct vocabulary *v, const struct server_dialect *dialect)
{
    struct status status = {0};
    v->count = v->used = 0;
    add_token(v, "", 0, GRAMMAR_TOKEN_END);
    for (int byte = 1; byte < GRAMMAR_SPECIAL_BYTE; byte++) add_token(v, &(char){(char)byte}, 1, GRAMMAR_TOKEN_TEXT);
    add_literal(v, "<|constrain|>", 13);
    for (size_t i = 0; dialect->patterns[i]; i++) {
        for (const char *at = dialect->patterns[i]; *at;) {
            const size_t size = server_pattern_literal(at), word = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz");
            if (size) add_literal(v, at, size);
            at += size ? size : *at == '~' ? 1 : word ? 1 + word : 2;
        }
    }
    v->vocabulary = grammar_vocabulary_open(v->tokens, v->count, &status);
    test_expect_success(v->vocabulary != NULL, &status);
}

static bool is_set(const uint32_t *mask, size_t id) { return mask[id / 32] >> id % 32 & 1; }

/* Any allowed token; the end, markers and brackets more often, above all if `finish` is set. */
static size_t choose(const struct vocabulary *v, const uint32_t *mask, uint64_t *random, bool finish)
{
    size_t allowed[MOST_TOKENS], count = 0, markers[MOST_TOKENS], marker_count = 0;
    if (finish && is_set(mask, 0)) return 0;
    for (size_t id = 0; id < v->count; id++) {
        if (!is_set(mask, id)) continue;
        allowed[count++] = id;
        if (v->tokens[id].size > 2) markers[marker_count++] = id;
    }
    assert_true(count > 0);
    if (marker_count && test_random(random) % (finish ? 2 : 4) == 0) return markers[test_random(random) % marker_count];
    for (size_t i = 0; finish && i < count; i++)
        if (v->tokens[allowed[i]].size == 1 && strchr("\"}]", *v->tokens[allowed[i]].bytes)) return allowed[i];
    size_t id = allowed[test_random(random) % count];
    for (int again = 0; again < 4 && strchr(" \n\t\r", *v->tokens[id].bytes); again++)
        id = allowed[test_random(random) % count];
    return id;
}

/* A random answer, without the signs of special tokens; owned. */
static char *walk(const struct grammar *grammar, const struct vocabulary *v, uint64_t *random, int most)
{
    struct status status = {0};
    struct grammar_state state;
    uint32_t mask[MOST_TOKENS / 32 + 1];
    size_t size;
    char *text = NULL;
    FILE *out = open_memstream(&text, &size);
    struct grammar_matcher *matcher = grammar_matcher_open(grammar, v->vocabulary, &status);
    assert_true(out && matcher);
    test_expect_success(grammar_begin(matcher, &state, &status), &status);
    for (int step = 0;; step++) {
        if (step > most + 3000) {
            fflush(out);
            fail_msg("no end: %.400s", text);
        }
        test_expect_success(grammar_fill_mask(matcher, &state, mask, &status), &status);
        const size_t id = choose(v, mask, random, step >= most);
        if (id == 0) break;
        const struct grammar_token *token = &v->tokens[id];
        const bool special = (uint8_t)*token->bytes == GRAMMAR_SPECIAL_BYTE;
        fwrite(token->bytes + special, 1, token->size - 2 * special, out);
        test_expect_success(grammar_accept_bytes(matcher, &state, token->bytes, token->size, &status), &status);
    }
    fclose(out);
    grammar_matcher_close(matcher);
    return text;
}

/* ---- what the answer is divided into ---- */

static void check_weather(const json_t *arguments, const char *text)
{
    const json_t *days = json_object_get(arguments, "days"), *unit = json_object_get(arguments, "unit"),
                 *place = json_object_get(arguments, "place");
    const char *c = json_string_value(unit), *name = json_string_value(place);
    if (!json_is_integer(days) || json_integer_value(days) < 1 || json_integer_value(days) > 7 ||
        !json_is_string(json_object_get(arguments, "note")) ||
        (unit && (!c || (strcmp(c, "C") != 0 && strcmp(c, "F") != 0))) ||
        (place && (!name || (strcmp(name, "Rome") != 0 && strcmp(name, "Oslo") != 0))))
        fail_msg("arguments differ from the schema: %s", text);
}

/* Whether the answer is calls. */
static bool check_answer(const struct server_dialect *dialect, const struct server_tools *tools, const char *text,
                         size_t piece)
{
    struct server_answer answer;
    struct server_parts parts = {0};
    const size_t size = strlen(text);
    server_answer_begin(&answer, dialect, tools, false);
    server_answer_bind(&answer, false);
    for (size_t at = 0; at < size; at += piece)
        assert_true(server_answer_push(&answer, text + at, piece < size - at ? piece : size - at, &parts));
    assert_true(server_answer_finish(&answer, false, &parts));
    server_answer_free(&answer);
    size_t calls = 0;
    char content[1 << 16];
    size_t used = 0;
    for (size_t i = 0; i < parts.count; i++) {
        const struct server_part *part = &parts.items[i];
        if (part->kind == SERVER_PART_CALL) {
            calls++;
            json_t *arguments = json_loadb(part->text.data, part->text.size, 0, NULL);
            if (!json_is_object(arguments)) fail_msg("no arguments: %s", text);
            if (strcmp(part->name, "get_weather") == 0)
                check_weather(arguments, text);
            else
                assert_int_equal(json_object_size(arguments), 0);
            json_decref(arguments);
        } else {
            if (part->kind != SERVER_PART_CONTENT || used + part->text.size > sizeof content)
                fail_msg("reasoning: %s", text);
            memcpy(content + used, part->text.data, part->text.size);
            used += part->text.size;
        }
    }
    server_parts_free(&parts);
    if (calls && used) fail_msg("%s: calls and content: %s", dialect->name, text);
    if (calls && tools->one_call) assert_int_equal(calls, 1);
    if (calls) return true;
    if (used != size || memcmp(content, text, size) != 0)
        fail_msg("%s: content is not the text: %s", dialect->name, text);
    json_t *value = json_loadb(content, used, JSON_DECODE_ANY, NULL);
    if (!value || json_object_size(value) != 1 || !json_is_string(json_object_get(value, "name")))
        fail_msg("%s: no document of the schema: %s", dialect->name, text);
    json_decref(value);
    return false;
}

TEST(answers_are_calls_or_documents)
{
    static struct vocabulary v;
    struct server_tools tools;
    uint64_t random = 5;
    const int rounds = test_sanitized() ? 12 : 60;
    for (size_t i = 0; i < TEMPLATES; i++) {
        struct server_dialect dialect;
        int calls = 0;
        server_dialect_find(templates[i], &dialect);
        read_tools(&tools);
        open_vocabulary(&v, &dialect);
        for (int one = 0; one < 2; one++) {
            struct status status = {0};
            tools.one_call = one;
            struct server_format format =
                read_format("guided_json",
                            "{'type':'object','properties':{'name':{'type':'string'}},'required':['name']}");
            if (!server_composed_format(&dialect, &tools, &format, &error))
                fail_msg("%s: %s", templates[i], error.message);
            struct grammar *grammar = grammar_composed_open(format.text, format.size,
                                                            &(struct grammar_specials){find_special, NULL}, &status);
            if (!grammar) fail_msg("%s: %s: %s", dialect.name, status.message, format.text);
            for (int round = 0; round < rounds; round++) {
                char *text = walk(grammar, &v, &random, round % 20 * 10);
                calls += check_answer(&dialect, &tools, text, round % 3 ? (size_t)(round % 7 + 1) : strlen(text));
                free(text);
            }
            grammar_close(grammar);
            server_format_free(&format);
        }
        if (calls == 0 || calls == 2 * rounds) fail_msg("%s: %d calls of %d", dialect.name, calls, 2 * rounds);
        grammar_vocabulary_close(v.vocabulary);
        server_tools_free(&tools);
    }
}

TEST(other_formats)
{
    static const struct {
        const char *field, *text, *fits, *other;
    } cases[] = {
        {"guided_regex", "'[ab]+c'", "abc", "ab"},
        {"guided_choice", "['yes', 'no']", "no", "maybe"},
        {"response_format", "{'type': 'json_object'}", "{\"a\":[1]}", "[1]"},
        {"guided_json", "'{\\'type\\': \\'null\\'}'", "null", "true"},
    };
    struct server_dialect dialect;
    struct server_tools tools;
    read_tools(&tools);
    server_dialect_find("<tool_call>", &dialect);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        struct server_format format = read_format(cases[i].field, cases[i].text);
        assert_true(server_composed_format(&dialect, &tools, &format, &error));
        assert_string_equal(format.field, cases[i].field);
        struct grammar *grammar = grammar_composed_open(format.text, format.size, NULL, &status);
        test_expect_success(grammar != NULL, &status);
        struct grammar_matcher *matcher = grammar_matcher_open(grammar, NULL, &status);
        const char *const texts[] = {cases[i].fits, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
                                     cases[i].other, "<tool_call>{\"name\": \"never\", \"arguments\": {}}</tool_call>"};
        for (int t = 0; t < 4; t++) {
            struct grammar_state place;
            test_expect_success(grammar_begin(matcher, &place, &status), &status);
            const bool fits = grammar_accept_bytes(matcher, &place, texts[t], strlen(texts[t]), &status) &&
                              grammar_may_end(matcher, &place);
            if (fits != (t < 2)) fail_msg("%s: '%s' is %s", cases[i].field, texts[t], fits ? "allowed" : "refused");
        }
        grammar_matcher_close(matcher);
        grammar_close(grammar);
        server_format_free(&format);
    }
    server_tools_free(&tools);
}

TEST(dialects_without_a_grammar_are_refused)
{
    static const char *const refused[] = {"<|tool_list_start|>", "<|tool_call>call:", "]<]minimax[>[",
                                          "function call<|role_sep|>"};
    struct server_tools tools;
    read_tools(&tools);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct server_dialect dialect;
        struct server_format format = read_format("guided_regex", "'a'");
        error = (struct server_error){0};
        server_dialect_find(refused[i], &dialect);
        assert_false(server_composed_format(&dialect, &tools, &format, &error));
        assert_int_equal(error.http, 400);
        assert_non_null(strstr(error.message, "guided_regex: not with tools"));
        server_format_free(&format);
    }
    struct server_dialect dialect;
    struct server_format format = read_format("guided_json", "'{'");
    server_dialect_find("<tool_call>", &dialect);
    assert_false(server_composed_format(&dialect, &tools, &format, &error));
    assert_string_equal(error.param, "guided_json");
    server_format_free(&format);
    server_tools_free(&tools);
}

/* The message of the refusal of `tools`; NULL: they are composed with a format, and the grammar opens. */
static const char *refusal_of(const char *template_text, const char *tools_json)
{
    struct status status = {0};
    struct server_dialect dialect;
    struct server_tools tools;
    struct server_format format = read_format("guided_regex", "'a'");
    error = (struct server_error){0};
    server_dialect_find(template_text, &dialect);
    read_list(tools_json, &tools);
    const bool composed = server_composed_format(&dialect, &tools, &format, &error);
    if (composed) {
        struct grammar *grammar = grammar_composed_open(format.text, format.size, NULL, &status);
        test_expect_success(grammar != NULL, &status);
        grammar_close(grammar);
    } else {
        assert_int_equal(error.http, 400);
        assert_string_equal(error.param, "guided_regex");
    }
    server_format_free(&format);
    server_tools_free(&tools);
    return composed ? NULL : error.message;
}

static const char hermes[] = "<tool_call>", coder[] = "<tool_call><function=<parameter=";

/* Arguments that are written one by one are bound by their schema, or refused. */
TEST(what_a_grammar_of_single_arguments_cannot_bind_is_refused)
{
    static const struct {
        const char *parameters, *words; /* NULL: it is bound */
    } cases[] = {
        {"{'properties':{'a':{'type':'string','enum':['x','y'],'title':'A'}},'required':['a']}", NULL},
        {"{'type':'object','properties':{'a':{'type':['string','null'],'const':'x'}},'additionalProperties':false}",
         NULL},
        {"{'properties':{'a':{'type':'integer','minimum':1}},'$defs':{'b':{}}}", NULL},
        {"{'properties':{'a':{'type':'string','pattern':'^[0-9]{4}$'}}}", "'pattern' of a"},
        {"{'properties':{'a':{'type':'string','minLength':2}}}", "'minLength' of a"},
        {"{'properties':{'a':{'type':'string','format':'date'}}}", "'format' of a"},
        {"{'properties':{'a':{'type':'string','not':{'const':'b'}}}}", "'not' of a"},
        {"{'properties':{'a':{'type':'string','enum':['b'],'const':'b'}}}", "beside 'enum'"},
        {"{'properties':{'a':{'type':'string','enum':[1]}}}", "has no string"},
        {"{'properties':{'a':{'type':'string','enum':['b</parameter>']}}}", "the mark that ends it"},
        {"{'properties':{'a':{'type':'string','const':'b\\n'}}}", "line feed"},
        {"{'properties':{'a>b':{'type':'integer'}}}", "the name of a property"},
        {"{'properties':{},'required':['a']}", "one of 'properties'"},
        {"{'$ref':'#/$defs/p','$defs':{'p':{'type':'object','properties':{'a':{}},'required':['a']}}}", "'$ref' of"},
        {"{'anyOf':[{'properties':{'a':{}}},{'properties':{'b':{}}}],'type':'object'}", "'anyOf' of"},
        {"{'properties':{'a':{'type':'null'}},'minProperties':1}", "'minProperties' of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char tools[512];
        snprintf(tools, sizeof tools, "[{'type':'function','function':{'name':'f','parameters':%s}}]",
                 cases[i].parameters);
        const char *message = refusal_of(coder, tools);
        if (!message != !cases[i].words || (message && !strstr(message, cases[i].words)))
            fail_msg("%s: %s", tools, message ? message : "not refused");
        if (message) assert_non_null(strstr(message, "guided_regex: not with the tool 'f'"));
    }
    /* A model that writes an object is bound by the whole schema. */
    for (size_t i = 3; i < 6; i++) {
        char tools[512];
        snprintf(tools, sizeof tools, "[{'type':'function','function':{'name':'f','parameters':%s}}]",
                 cases[i].parameters);
        assert_null(refusal_of(hermes, tools));
    }
}

/* `functions` of `properties` each, which are of the schema; every other one is required. Owned. */
static char *many_properties(int functions, int properties, const char *schema, const char *definitions)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    for (int f = 0; f < functions; f++) {
        fprintf(out, "%s{'type':'function','function':{'name':'f%d','parameters':{'type':'object','properties':{",
                f ? "," : "[", f);
        for (int i = 0; i < properties; i++) fprintf(out, "%s'p%d':%s", i ? "," : "", i, schema);
        fprintf(out, "},'required':[");
        for (int i = 0; i < properties; i += 2) fprintf(out, "%s'p%d'", i ? "," : "", i);
        fprintf(out, "],'$defs':{%s}}}}", definitions);
    }
    fprintf(out, "]");
    fclose(out);
    return text;
}

/* The grammar is linear in the properties, and refused before it takes more memory than it may. */
TEST(functions_of_many_properties)
{
    static const char *const dialects[] = {coder, "<tool_call><arg_key>", hermes};
    static char large[60000];
    size_t used = (size_t)sprintf(large, "'n':{'type':'integer'},'e':{'enum':[0");
    for (int i = 1; used < sizeof large - 20; i++) used += (size_t)sprintf(large + used, ",%d", i);
    sprintf(large + used, "]}");
    const struct {
        int functions, properties;
        const char *schema, *definitions, *words; /* of all dialects but the last */
    } cases[] = {
        {1, 60, "{'type':'integer','description':'How many of them there are.'}", "", NULL},
        {1, 60, "{'$ref':'#/$defs/n'}", large, NULL},
        {10, 12, "{'type':'array','items':{'type':'boolean'}}", "", NULL},
        {1, 129, "{'type':'integer'}", "", "at most 128"},
        {1, 60, "{'$ref':'#/$defs/e'}", large, "takes more than"},
        {100, 128, "{'type':'integer'}", "", "takes more than"},
    };
    for (size_t d = 0; d < sizeof dialects / sizeof *dialects; d++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (dialects[d] == hermes && cases[i].words) continue;
            char *tools =
                many_properties(cases[i].functions, cases[i].properties, cases[i].schema, cases[i].definitions);
            const char *message = refusal_of(dialects[d], tools);
            if (!message != !cases[i].words || (message && !strstr(message, cases[i].words)))
                fail_msg("%s, case %zu: %s", dialects[d], i, message ? message : "not refused");
            free(tools);
        }
    }
}

/* An open object may have a name twice: that is a call, too. */
TEST(names_that_come_twice)
{
    static const struct {
        const char *template_text, *answer;
    } cases[] = {
        {hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"o\": {\"a\": 1, \"a\": 2}}}</tool_call>"},
        {"[TOOL_CALLS][ARGS]", "[TOOL_CALLS]f[ARGS]{\"o\": {\"a\": 1, \"a\": 2}}"},
        {coder, "<tool_call><function=f><parameter=o>{\"a\": 1, \"a\": 2}</parameter></function></tool_call>"},
    };
    struct server_tools tools;
    read_list("[{'type':'function','function':{'name':'f','parameters':{'properties':{'o':{'type':'object'}}}}}]",
              &tools);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct server_dialect dialect;
        struct server_answer answer;
        struct server_parts parts = {0};
        server_dialect_find(cases[i].template_text, &dialect);
        server_answer_begin(&answer, &dialect, &tools, false);
        server_answer_bind(&answer, false);
        assert_true(server_answer_push(&answer, cases[i].answer, strlen(cases[i].answer), &parts));
        assert_true(server_answer_finish(&answer, false, &parts));
        server_answer_free(&answer);
        assert_int_equal(parts.count, 1);
        assert_int_equal(parts.items[0].kind, SERVER_PART_CALL);
        json_t *arguments = json_loadb(parts.items[0].text.data, parts.items[0].text.size, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(arguments, "o"), "a")), 2);
        json_decref(arguments);
        server_parts_free(&parts);
    }
    server_tools_free(&tools);
}

int main(void) { return test_run(); }
