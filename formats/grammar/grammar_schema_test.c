/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars of JSON Schemas: documents are accepted or refused, random outputs are valid, and so is whatever is accepted. */
#include "formats/base/json.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/grammar/test_grammar.h"

static struct test_vocabulary vocabulary;

static char *quoted(const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    return test_quote(copy);
}

static void expect_documents(struct grammar_matcher *matcher, const char *schema, const char *documents, bool expected)
{
    char *copy = quoted(documents), *rest = copy;
    for (char *document; (document = strsep(&rest, "\n"));)
        if (test_accepts(matcher, document, strlen(document)) != expected)
            fail_msg("%s: %s is %s", schema, document, expected ? "refused" : "accepted");
    free(copy);
}

TEST(documents_are_accepted_or_refused)
{
    assert_true(test_schema_count >= 60);
    for (size_t i = 0; i < test_schema_count; i++) {
        struct grammar *grammar = test_schema_open(test_schemas[i].schema, NULL);
        struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
        expect_documents(matcher, test_schemas[i].schema, test_schemas[i].valid, true);
        expect_documents(matcher, test_schemas[i].schema, test_schemas[i].invalid, false);
        grammar_matcher_close(matcher);
        grammar_close(grammar);
    }
}

/* What the tables call valid is valid for the validator of this test, too. */
TEST(the_validator_agrees_with_the_documents)
{
    struct status status = {0};
    for (size_t i = 0; i < test_schema_count; i++) {
        char *text = quoted(test_schemas[i].schema), *documents = quoted(test_schemas[i].valid), *rest = documents;
        json_t *schema = json_parse(text, strlen(text), "schema", &status);
        test_expect_success(schema != NULL, &status);
        for (char *document; (document = strsep(&rest, "\n"));) {
            json_t *value = json_loads(document, JSON_DECODE_ANY, NULL);
            if (!value || !test_is_valid(schema, schema, value)) fail_msg("%s: %s is not valid", text, document);
            json_decref(value);
        }
        json_decref(schema);
        free(text);
        free(documents);
    }
}

static void expect_valid(const json_t *schema, const char *name, const char *text, size_t size)
{
    json_error_t error;
    json_t *value = json_loadb(text, size, JSON_DECODE_ANY, &error);
    if (!value) fail_msg("%s: not JSON: %.*s (%s)", name, (int)size, text, error.text);
    if (!test_is_valid(schema, schema, value)) fail_msg("%s: not valid: %.*s", name, (int)size, text);
    json_decref(value);
}

/* Changes some bytes of a text that is accepted: whatever is accepted then is valid, too. */
static size_t try_changes(struct grammar_matcher *matcher, const json_t *schema, const char *name, const char *text,
                          size_t size, uint64_t *random)
{
    static const char likely[] = "\"{}[],:0123456789.-eEabnulltrue\\ ";
    size_t accepted = 0;
    for (int attempt = 0; attempt < 40 && size > 0; attempt++) {
        char *copy = malloc(size + 1);
        assert_non_null(copy);
        memcpy(copy, text, size);
        size_t length = size, at = test_random(random) % size;
        switch (test_random(random) % 3) {
        case 0: copy[at] = likely[test_random(random) % (sizeof likely - 1)]; break;
        case 1:
            memmove(copy + at, copy + at + 1, size - at - 1);
            length--;
            break;
        default:
            memmove(copy + at + 1, copy + at, size - at);
            copy[at] = likely[test_random(random) % (sizeof likely - 1)];
            length++;
        }
        if (test_accepts(matcher, copy, length)) {
            expect_valid(schema, name, copy, length);
            accepted++;
        }
        free(copy);
    }
    return accepted;
}

TEST(random_outputs_are_valid)
{
    struct status status = {0};
    uint64_t random = 1;
    size_t changed = 0;
    for (size_t i = 0; i < test_schema_count; i++) {
        char *text = quoted(test_schemas[i].schema);
        json_t *schema = json_parse(text, strlen(text), "schema", &status);
        for (uint32_t whitespace = 0; whitespace <= 2; whitespace += 2) {
            struct grammar_options options;
            grammar_options_initialize(&options);
            options.most_whitespace = whitespace;
            struct grammar *grammar = test_schema_open(test_schemas[i].schema, &options);
            struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
            for (int round = 0; round < 30; round++) {
                size_t size;
                char *output = test_walk(matcher, &vocabulary, &random, round * 3, round % 10 == 9, &size);
                expect_valid(schema, text, output, size);
                assert_true(test_accepts(matcher, output, size));
                changed += try_changes(matcher, schema, text, output, size, &random);
                free(output);
            }
            grammar_matcher_close(matcher);
            grammar_close(grammar);
        }
        json_decref(schema);
        free(text);
    }
    assert_true(changed > 1000);
}

static uint64_t below(uint64_t *random, uint64_t limit) { return test_random(random) % limit; }

/* What references may name. A schema that refers to itself within its own negation has no meaning. */
static const char *const targets[] = {"#/$defs/q", "#/$defs/p", "#"};
static size_t target_count;
static bool has_conditions;

static json_t *random_schema(uint64_t *random, int depth);

static json_t *random_list(uint64_t *random, int depth)
{
    json_t *list = json_array();
    for (uint64_t count = 1 + below(random, 3); count > 0; count--) json_add(list, random_schema(random, depth));
    return list;
}

static void add_object_keywords(json_t *schema, uint64_t *random, int depth)
{
    static const char *const names[] = {"a", "b", "ab"};
    json_t *properties = json_object(), *required = json_array();
    for (int i = 0; i < 3; i++) {
        if (below(random, 2)) continue;
        json_put(properties, names[i], random_schema(random, depth));
        if (below(random, 2)) json_add(required, json_string(names[i]));
    }
    if (below(random, 6) == 0) json_add(required, json_string(below(random, 2) ? "a" : "c"));
    json_put(schema, "properties", properties);
    json_put(schema, "required", required);
    if (below(random, 3) == 0)
        json_put(schema, "additionalProperties", below(random, 2) ? json_false() : random_schema(random, depth));
}

static json_t *random_value(uint64_t *random)
{
    static const char *const values[] = {"1",
                                         "2",
                                         "1.5",
                                         "\"x\"",
                                         "\"y\"",
                                         "null",
                                         "true",
                                         "[1]",
                                         "[1.0]",
                                         "{\"a\":1}",
                                         "9007199254740992",
                                         "9007199254740993"};
    return json_loads(values[below(random, sizeof values / sizeof *values)], JSON_DECODE_ANY, NULL);
}

/* Elements that are different, of few values. */
static void add_few_elements(json_t *schema, uint64_t *random)
{
    json_put(schema, "type", json_string("array"));
    json_put(schema, "uniqueItems", json_true());
    json_put(schema, "items",
             json_pack("{s:[o,o,o]}", "enum", random_value(random), random_value(random), random_value(random)));
    if (below(random, 3) == 0) json_put(schema, "contains", json_pack("{s:o}", "const", random_value(random)));
}

/* Keywords that become alternatives, and those that count. */
static void add_conditions(json_t *schema, uint64_t *random, int depth)
{
    if (below(random, 8) == 0) json_put(schema, "not", random_schema(random, depth));
    if (below(random, 10) == 0) json_put(schema, "not", json_pack("{s:s}", "pattern", below(random, 2) ? "^x" : "y|z"));
    if (below(random, 10) == 0) add_few_elements(schema, random);
    if (below(random, 16) == 0) json_put(schema, "maximum", json_integer(9007199254740992));
    if (below(random, 10) == 0) {
        json_put(schema, "if", random_schema(random, depth));
        if (below(random, 4)) json_put(schema, "then", random_schema(random, depth));
        if (below(random, 2)) json_put(schema, "else", random_schema(random, depth));
    }
    if (below(random, 12) == 0)
        json_put(schema, "dependentRequired",
                 json_pack("{s:[s]}", below(random, 2) ? "a" : "b", below(random, 2) ? "ab" : "b"));
    if (below(random, 16) == 0)
        json_put(schema, "dependentSchemas",
                 json_pack("{s:o}", below(random, 2) ? "a" : "c", random_schema(random, depth)));
    if (below(random, 8) == 0)
        json_put(schema, "patternProperties",
                 json_pack("{s:o, s:o}", "^a", random_schema(random, depth), "b|x", random_schema(random, depth)));
    if (below(random, 10) == 0) {
        static const char *const names[] = {"{\"maxLength\":1}",          "{\"pattern\":\"^[a-c]\",\"minLength\":2}",
                                            "{\"enum\":[\"a\",\"c\",1]}", "{\"not\":{\"pattern\":\"b\"}}",
                                            "{\"type\":\"integer\"}",     "{\"not\":{\"const\":\"ab\"}}"};
        json_put(schema, "propertyNames", json_loads(names[below(random, sizeof names / sizeof *names)], 0, NULL));
    }
    if (below(random, 10) == 0) json_put(schema, "minLength", json_integer((json_int_t)below(random, 4)));
    if (below(random, 10) == 0) json_put(schema, "minProperties", json_integer((json_int_t)below(random, 3)));
    if (below(random, 10) == 0) json_put(schema, "maxProperties", json_integer((json_int_t)below(random, 4)));
    if (below(random, 10) == 0) json_put(schema, "uniqueItems", json_true());
    if (below(random, 12) == 0) json_put(schema, "contains", random_schema(random, depth));
}

/* Keywords of every kind beside one another. */
static json_t *random_schema(uint64_t *random, int depth)
{
    static const char *const types[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
    json_t *schema = json_object();
    if (below(random, 2)) {
        json_put(schema, "type", json_string(types[below(random, 7)]));
    } else if (below(random, 2)) {
        json_put(schema, "type", json_pack("[s,s]", types[below(random, 7)], types[below(random, 7)]));
    }
    if (depth > 0 && below(random, 2)) add_object_keywords(schema, random, depth - 1);
    if (depth > 0 && below(random, 4) == 0) json_put(schema, "items", random_schema(random, depth - 1));
    if (depth > 0 && below(random, 6) == 0) json_put(schema, "prefixItems", random_list(random, depth - 1));
    if (below(random, 5) == 0) json_put(schema, "minItems", json_integer((json_int_t)below(random, 3)));
    if (below(random, 5) == 0) json_put(schema, "maxItems", json_integer((json_int_t)below(random, 4)));
    if (below(random, 5) == 0) json_put(schema, "minimum", json_integer((json_int_t)below(random, 30) - 15));
    if (below(random, 5) == 0) json_put(schema, "exclusiveMaximum", json_real((double)below(random, 100) / 8));
    if (below(random, 9) == 0) json_put(schema, "multipleOf", json_integer(1 + (json_int_t)below(random, 12)));
    if (below(random, 5) == 0) json_put(schema, "maxLength", json_integer((json_int_t)below(random, 6)));
    if (below(random, 9) == 0) json_put(schema, "pattern", json_string(below(random, 2) ? "^[ab]+" : "x|^y$"));
    if (below(random, 12) == 0)
        json_put(schema, "enum",
                 json_pack("[o,o,o]", random_value(random), random_value(random), random_value(random)));
    if (below(random, 20) == 0) json_put(schema, "const", random_value(random));
    if (depth > 0 && has_conditions) add_conditions(schema, random, depth - 1);
    if (depth > 0 && below(random, 4) == 0) json_put(schema, "anyOf", random_list(random, depth - 1));
    if (depth > 0 && below(random, 6) == 0) json_put(schema, "oneOf", random_list(random, depth - 1));
    if (depth > 0 && below(random, 4) == 0) json_put(schema, "allOf", random_list(random, depth - 1));
    if (below(random, 6) == 0 && target_count)
        json_put(schema, "$ref", json_string(targets[below(random, target_count)]));
    return schema;
}

/* Schemas of all kinds of keywords beside one another: a schema that is accepted gives valid outputs. */
TEST(outputs_of_random_schemas_are_valid)
{
    uint64_t random = 12;
    size_t opened = 0;
    const size_t schemas = test_sanitized() ? 300 : 6000;
    for (size_t i = 0; i < schemas; i++) {
        struct status status = {0};
        has_conditions = i % 2;
        target_count = has_conditions ? 2 : 3;
        json_t *schema = random_schema(&random, 3);
        target_count = has_conditions ? 1 : 3;
        json_t *definition = random_schema(&random, 2);
        target_count = has_conditions ? 0 : 3;
        json_put(schema, "$defs", json_pack("{s:o, s:o}", "p", definition, "q", random_schema(&random, 1)));
        char *text = json_format(schema, 0);
        assert_non_null(text);
        struct grammar *grammar = grammar_schema_open(text, strlen(text), NULL, &status);
        if (!grammar) {
            assert_int_equal(status.code, STATUS_BAD_INPUT);
        } else {
            struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
            for (int round = 0; round < 3; round++) {
                size_t size;
                char *output = test_walk(matcher, &vocabulary, &random, round * 12, false, &size);
                expect_valid(schema, text, output, size);
                try_changes(matcher, schema, text, output, size, &random);
                free(output);
            }
            grammar_matcher_close(matcher);
            opened++;
        }
        grammar_close(grammar);
        free(text);
        json_decref(schema);
    }
    assert_true(opened > schemas / 4);
}

TEST(white_space_is_bounded)
{
    struct grammar_options options;
    grammar_options_initialize(&options);
    options.most_whitespace = 2;
    struct grammar *grammar =
        test_schema_open("{'properties':{'a':{'type':'array','items':{'type':'integer'}}}}", &options);
    struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
    expect_documents(matcher, "white space", "{ 'a' : [ 1 , 2  ] }\n{  }\n{'a':[1]}", true);
    expect_documents(matcher, "white space", "{   'a':[1]}\n{'a':   [1]}\n{'a':[1,   2]}\n {}", false);
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

TEST(any_object)
{
    struct status status = {0};
    uint64_t random = 2;
    struct grammar *grammar = grammar_object_open(NULL, &status);
    test_expect_success(grammar != NULL, &status);
    struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
    expect_documents(matcher, "object", "{}\n{'a':{'b':[1,2,{'c':null}]}}", true);
    expect_documents(matcher, "object", "[]\n1\n{'a'}\n{}{}", false);
    for (int round = 0; round < 50; round++) {
        size_t size;
        char *output = test_walk(matcher, &vocabulary, &random, 60, round % 10 == 0, &size);
        json_t *value = json_loadb(output, size, 0, NULL);
        if (!json_is_object(value)) fail_msg("no object: %s", output);
        json_decref(value);
        free(output);
    }
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

/* As in "#/$defs/a". */
TEST(references_without_a_hash)
{
    struct grammar *grammar =
        test_schema_open("{'type':'array','items':{'$ref':'/$defs/a~1b'},'minItems':1,'$defs':{'a/b':{'enum':[7]}}}",
                         NULL);
    struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
    assert_true(test_accepts(matcher, "[7]", 3));
    assert_false(test_accepts(matcher, "[8]", 3));
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

/* Outputs cannot nest deeper than the bound, and near it the masks still lead to an end. */
TEST(depth_is_bounded_without_a_dead_end)
{
    struct grammar *grammar = test_schema_open("{'type':'array','items':{'$ref':'#'}}", NULL);
    struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
    struct grammar_state place;
    struct status status = {0};
    uint32_t mask[64];
    int depth = 0;
    test_expect_success(grammar_begin(matcher, &place, &status), &status);
    while (grammar_accept_bytes(matcher, &place, "[", 1, &status)) depth++;
    test_expect_failure(false, &status, STATUS_BAD_INPUT, "0x5B|not allowed");
    assert_int_equal(depth, GRAMMAR_MOST_DEPTH);
    test_expect_success(grammar_fill_mask(matcher, &place, mask, &status), &status);
    assert_false(mask['[' / 32] >> '[' % 32 & 1);
    assert_true(mask[']' / 32] >> ']' % 32 & 1);
    for (; depth > 0; depth--) test_expect_success(grammar_accept_bytes(matcher, &place, "]", 1, &status), &status);
    assert_true(grammar_must_end(matcher, &place));
    /* A walk that opens whenever it can, with every mask compared. */
    uint64_t random = 3;
    for (int round = 0; round < 3; round++) {
        size_t size;
        free(test_walk(matcher, &vocabulary, &random, 400, true, &size));
    }
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

static void expect_refusal(const char *text, const char *words)
{
    struct status status = {0};
    char *json = quoted(text);
    struct grammar *grammar = grammar_schema_open(json, strlen(json), NULL, &status);
    test_expect_failure(grammar != NULL, &status, STATUS_BAD_INPUT, words);
    free(json);
}

TEST(unsupported_and_wrong_schemas_are_refused_by_name)
{
    expect_refusal("{'type':'object','properties':{'a':{'not':{}}}}", "'#/properties/a'|'not'|not supported");
    expect_refusal("{'patternProperties':[]}", "'patternProperties'|array");
    expect_refusal("{'patternProperties':{'(?=a)':{}}}", "look-around");
    expect_refusal("{'patternProperties':{'(a|b)*a(a|b){14}':{}}}", "too complex");
    expect_refusal("{'propertyNames':{'anyOf':[{'pattern':'a'},{'maxLength':2}]}}", "'propertyNames'");
    expect_refusal("{'allOf':[{'patternProperties':{'a':{}}},{'additionalProperties':{'type':'null'}}]}",
                   "'patternProperties'");
    expect_refusal("{'type':'array','uniqueItems':true}", "'uniqueItems'|an enum of at most");
    expect_refusal("{'type':'array','uniqueItems':true,'items':{'enum':[1,2,3,4,5,6,7]}}",
                   "'uniqueItems'|an enum of at most");
    expect_refusal("{'type':'array','contains':{},'prefixItems':[{}]}", "'contains'|'prefixItems'");
    expect_refusal("{'type':'array','items':{'enum':['a','b']},'uniqueItems':true,'contains':{'const':'a'}}",
                   "'contains'|'uniqueItems'");
    expect_refusal("{'type':'string','enum':['apple','bear'],'not':{'pattern':'^a'}}", "'not'|'enum'");
    expect_refusal("{'enum':['apple','bear'],'if':{'pattern':'^a'},'then':false}", "'not'|'enum'");
    expect_refusal("{'properties':{'k':{'enum':['apple','bear']},'x':{'type':'null'}},'required':['k'],"
                   "'if':{'properties':{'k':{'pattern':'^a'}}},'then':{'required':['x']}}",
                   "'#/anyOf/0/properties/k'|'pattern'|'enum'");
    expect_refusal("{'oneOf':[{'enum':['apple','bear']},{'type':'string','pattern':'^a'}]}", "'not'|'enum'");
    expect_refusal("{'unevaluatedProperties':false}", "'unevaluatedProperties'|not supported");
    expect_refusal("{'type':'array','contains':{},'maxContains':1}", "'maxContains'");
    expect_refusal("{'type':'object','properties':{'a':{},'b':{},'c':{}},'minProperties':2}",
                   "'minProperties'|one more");
    expect_refusal("{'type':'object','properties':{'a':{},'b':{},'c':{}},'maxProperties':2}",
                   "'maxProperties'|one more");
    expect_refusal("{'type':'object','minProperties':2}", "'minProperties'|one more");
    expect_refusal("{'type':'string','not':{'format':'date'}}", "'not' is not supported");
    expect_refusal("{'if':{'format':'date'},'then':{}}", "'if'");
    expect_refusal("{'type':'text'}", "'type'|text");
    expect_refusal("{'type':'object','properties':{'a':{}},'required':[5]}", "'required'|integer");
    expect_refusal("{'$ref':'#here'}", "#here|$anchor");
    expect_refusal("{'$ref':'http://example.com/x'}", "$ref|http://example.com/x");
    expect_refusal("{'$ref':'#/$defs/missing'}", "#/$defs/missing");
    expect_refusal("{'$ref':'/$defs/missing'}", "/$defs/missing");
    expect_refusal("{'properties':{'a':{'$ref':'#/$defs/missing'}}}", "#/properties/a");
    expect_refusal("{'type':'string','format':'iri'}", "'format'|iri");
    expect_refusal("{'type':'string','pattern':'(?=a)b'}", "/pattern|look-around|byte 2");
    expect_refusal("{'type':'string','minLength':-1}", "'minLength'|-1");
    expect_refusal("{'type':'string','maxLength':1.5}", "'maxLength'");
    expect_refusal("{'type':'number','multipleOf':0.01}", "'multipleOf'|0.01");
    expect_refusal("{'type':'integer','multipleOf':5000}", "'multipleOf'");
    expect_refusal("{'oneOf':[{'format':'date'},{'format':'time'}]}", "'#/oneOf/0'|'oneOf'");
    expect_refusal("{'oneOf':[{'type':'number'},{'type':'integer'}]}", "no output");
    expect_refusal("{'if':{'const':[0]},'then':{'type':'null'},'else':{'type':'array'}}", "no output|'if'");
    expect_refusal("{'enum':['a','bbb'],'minLength':2.0}", "'minLength'|'enum'");
    expect_refusal("{'enum':[1],'minimum':'5'}", "'minimum'|'enum'");
    expect_refusal("{'enum':[9007199254740993],'multipleOf':2.0}", "'multipleOf'|'enum'");
    expect_refusal("{'propertyNames':{'enum':'a'}}", "'propertyNames'|'enum'|string");
    expect_refusal("{'type':'array','uniqueItems':true,'items':{'enum':5}}", "'uniqueItems'");
    expect_refusal("{'enum':['a','b'],'pattern':'a'}", "'pattern'|'enum'");
    expect_refusal("{'allOf':[{'pattern':'a'},{'pattern':'b'}]}", "'pattern'|differs");
    expect_refusal("{'properties':{'a':5}}", "#/properties/a|integer");
    expect_refusal("{'anyOf':[]}", "'anyOf'");
    expect_refusal("{'a':", "not valid JSON|line 1");
    expect_refusal("7", "not valid JSON");
}

TEST(schemas_without_output_are_refused)
{
    expect_refusal("{'type':'object','required':['a'],'dependentRequired':{'a':['b']},'maxProperties':1}", "no output");
    expect_refusal("{'type':'array','uniqueItems':true,'items':{'type':'boolean'},'minItems':3}", "no output");
    expect_refusal("{'type':'string','pattern':'^abc$','maxLength':2}", "no output");
    expect_refusal("{'type':'string','enum':[1,2]}", "no output");
    expect_refusal("{'type':'integer','minimum':5,'maximum':4}", "no output");
    expect_refusal("{'type':'integer','minimum':8,'maximum':13,'multipleOf':7}", "no output");
    expect_refusal("{'properties':{'a':false},'required':['a']}", "no output");
    expect_refusal("{'properties':{'a':{'$ref':'#'}},'required':['a']}", "no output");
    expect_refusal("{'$ref':'#'}", "refers to itself");
    expect_refusal("{'anyOf':[{'$ref':'#'},{'type':'string'}]}", "refers to itself");
    expect_refusal("{'$ref':'#/$defs/a','$defs':{'a':{'$ref':'#/$defs/b'},'b':{'$ref':'#/$defs/a'}}}",
                   "refers to itself");
    expect_refusal("{'allOf':[{'$ref':'#'}]}", "refer to themselves");
}

/* A tree that merges grow without end, a schema that doubles at each level, and one that is nested too deeply. */
TEST(hostile_schemas_are_bounded)
{
    expect_refusal("{'$defs':{'a':{'properties':{'x':{'$ref':'#/$defs/a'},'y':{'$ref':'#/$defs/a'}}}},"
                   "'allOf':[{'$ref':'#/$defs/a'},{'properties':{'x':{'$ref':'#'},'y':{'$ref':'#'}}}]}",
                   "JSON Schema");
    char *text = malloc(1 << 16);
    assert_non_null(text);
    char *at = stpcpy(text, "{'type':'object','properties':{'a':");
    for (int i = 0; i < 300; i++) at = stpcpy(at, "{'type':'array','items':");
    at = stpcpy(at, "{}");
    for (int i = 0; i < 300; i++) at = stpcpy(at, "}");
    stpcpy(at, "}}");
    expect_refusal(text, "schemas within schemas");
    /* Each definition refers to the next one twice: 2^60 texts, 60 rules. */
    at = stpcpy(text, "{'$ref':'#/$defs/d0','$defs':{");
    for (int i = 0; i < 40; i++)
        at += sprintf(at, "'d%d':{'properties':{'a':{'$ref':'#/$defs/d%d'},'b':{'$ref':'#/$defs/d%d'}}},", i, i + 1,
                      i + 1);
    stpcpy(at, "'d40':{'type':'null'}}}");
    struct grammar *grammar = test_schema_open(text, NULL);
    assert_true(grammar_bytes(grammar) < 1 << 20);
    grammar_close(grammar);
    at = stpcpy(text, "{'type':'string','maxLength':2000,'minLength':1000}");
    grammar = test_schema_open(text, NULL);
    grammar_close(grammar);
    expect_refusal("{'type':'string','maxLength':1000000}", "too large|states");
    free(text);
}

/* A pattern with more alternatives, or parts within parts, than a set of states keeps: the strings left out would be allowed. */
TEST(excluded_patterns_are_whole)
{
    char *words = malloc(1 << 14), *text = malloc(1 << 16), *at = words;
    assert_true(words && text);
    for (int i = 1; i <= 1200; i++) at += sprintf(at, "%sw%04d", i > 1 ? "|" : "", i);
    sprintf(text, "{'type':'string','not':{'pattern':'^(%s)$'}}", words);
    expect_refusal(text, "too complex");
    sprintf(text, "{'patternProperties':{'^(%s)$':{'type':'null'}},'additionalProperties':{'type':'integer'}}", words);
    expect_refusal(text, "too complex");
    sprintf(text, "{'properties':{'w0001':{}},'patternProperties':{'^(%s)$':{'type':'null'}}}", words);
    expect_refusal(text, "too complex");
    at = stpcpy(text, "{'type':'string','not':{'pattern':'^(x|");
    for (int i = 0; i < 70; i++) at = stpcpy(at, "(...");
    for (int i = 0; i < 70; i++) at = stpcpy(at, ")+");
    stpcpy(at, ")$'}}");
    expect_refusal(text, "too complex");
    free(words);
    free(text);
}

/* References that are looked up by name, each in the whole document, and patterns with many states at once. */
TEST(searches_and_products_are_bounded)
{
    char *text = malloc(1 << 20), *at = stpcpy(text, "{'anyOf':[");
    assert_non_null(text);
    for (int i = 0; i < 30000; i++) at += sprintf(at, "%s{'$ref':'#z'}", i ? "," : "");
    stpcpy(at, "],'$defs':{'q':{'$anchor':'z'}}}");
    expect_refusal(text, "steps");
    at = stpcpy(text, "{'patternProperties':{");
    for (int i = 0; i < 22; i++) at += sprintf(at, "%s'^((a|b)?){450}(a|b)*a(a|b){14}%d$':{}", i ? "," : "", i);
    stpcpy(at, "}}");
    expect_refusal(text, "steps");
    free(text);
}

/* Names that are required and lists that are compared: no work grows with the square of the text's length. */
TEST(long_lists_are_fast)
{
    enum { NAMES = 20000 };
    char *text = malloc(1 << 20), *at = stpcpy(text, "{'type':'object','properties':{");
    assert_non_null(text);
    for (int i = 0; i < NAMES; i++) at += sprintf(at, "%s'p%d':{'type':'null'}", i ? "," : "", i);
    at = stpcpy(at, "},'required':[");
    for (int i = 0; i < NAMES; i++) at += sprintf(at, "%s'p%d'", i ? "," : "", i);
    stpcpy(at, "]}");
    struct grammar *grammar = test_schema_open(text, NULL);
    grammar_close(grammar);
    at = stpcpy(text, "{'allOf':[");
    for (int side = 0; side < 2; side++) {
        at = stpcpy(at, side ? ",{'enum':[" : "{'enum':[");
        for (int i = 0; i < NAMES; i++) at += sprintf(at, "%s%d", i ? "," : "", i * 2 + side);
        at = stpcpy(at, "]}");
    }
    stpcpy(at, "]}");
    expect_refusal(text, "apply together|steps");
    free(text);
}

/* Alternatives that stay possible together while they recurse: 2^n stacks. Some are dropped, and outputs stay valid. */
TEST(ambiguous_recursion_stays_bounded)
{
    const char *text =
        "{'$defs':{'n':{'anyOf':[{'type':'null'},"
        "{'type':'object','properties':{'a':{'$ref':'#/$defs/n'},'b':{'const':1}},'required':['a','b']},"
        "{'type':'object','properties':{'a':{'$ref':'#/$defs/n'},'c':{'const':2}},'required':['a','c']}]}},"
        "'$ref':'#/$defs/n'}";
    struct status status = {0};
    struct grammar *grammar = test_schema_open(text, NULL);
    struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
    char *json = quoted(text);
    json_t *schema = json_parse(json, strlen(json), "schema", &status);
    uint64_t random = 4;
    expect_documents(matcher, text, "null\n{'a':{'a':null,'c':2},'b':1}", true);
    for (int round = 0; round < 10; round++) {
        size_t size;
        char *output = test_walk(matcher, &vocabulary, &random, 400, false, &size);
        expect_valid(schema, text, output, size);
        free(output);
    }
    free(json);
    json_decref(schema);
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

int main(void)
{
    test_vocabulary_open(&vocabulary);
    const int result = test_run();
    test_vocabulary_close(&vocabulary);
    return result;
}
