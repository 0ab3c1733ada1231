/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_answer.h"

#include "formats/base/json.h"
#include "formats/base/test_support.h"

static struct server_tools tools;
static bool is_bound, is_json;
static struct server_error error;

static void use_tools(const char *choice)
{
    static const char list[] = "[{'type': 'function', 'function': {'name': 'get', 'parameters': {'type': 'object', "
                               "'properties': {'s': {'type':"
                               " 'string'}, 'n': {'type': 'integer'}, 'l': {'type': 'array'}}}}},"
                               " {'type': 'function', 'function': {'name': 'all_of-it', 'description': 'd'}}]";
    json_t *read = json_loads(test_json(list), 0, NULL), *chosen = json_loads(test_json(choice), JSON_DECODE_ANY, NULL);
    server_tools_free(&tools);
    assert_true(server_tools_read(read, &tools, &error));
    assert_true(server_tools_choose(chosen, &tools, &error));
    json_decref(read);
    json_decref(chosen);
}

/* Parts as a text: content as it is, (reasoning), {name arguments}. */
static char *describe(const struct server_parts *parts)
{
    struct server_buffer text = {0};
    for (size_t i = 0; i < parts->count; i++) {
        const struct server_part *part = &parts->items[i];
        const bool call = part->kind == SERVER_PART_CALL, thought = part->kind == SERVER_PART_REASONING;
        if (call) assert_true(part->id[0] && strlen(part->id) < SERVER_CALL_ID_BYTES);
        if (call) server_buffer_format(&text, "{%s ", part->name);
        if (thought) server_buffer_text(&text, "(");
        server_buffer_add(&text, part->text.data, part->text.size);
        if (call || thought) server_buffer_text(&text, call ? "}" : ")");
    }
    server_buffer_add(&text, "", 1);
    return text.data;
}

static bool is_cut;

/* The text in pieces of every length gives the same. */
static void check(const struct server_dialect *dialect, bool in_thought, const char *text, const char *expected)
{
    const size_t size = strlen(text);
    for (size_t piece = 1; piece <= size + 1; piece += piece < 12 ? 1 : 7) {
        struct server_answer answer;
        struct server_parts parts = {0}, all = {0};
        server_answer_begin(&answer, dialect, tools.list ? &tools : NULL, in_thought);
        if (is_bound) server_answer_bind(&answer, is_json);
        for (size_t at = 0; at < size; at += piece)
            assert_true(server_answer_push(&answer, text + at, piece < size - at ? piece : size - at, &parts));
        assert_true(server_answer_finish(&answer, is_cut, &parts));
        char *found = describe(&parts);
        if (strcmp(found, expected) != 0)
            fail_msg("%s, pieces of %zu: '%s': expected '%s', found '%s'", dialect ? dialect->name : "none", piece,
                     text, expected, found);
        free(found);
        server_answer_free(&answer);
        server_parts_free(&parts);
        server_parts_free(&all);
    }
}

static void check_template(const char *signs, bool in_thought, const char *text, const char *expected)
{
    struct server_dialect dialect;
    char *own = strdup(test_json(text));
    server_dialect_find(signs, &dialect);
    check(&dialect, in_thought, own, test_json(expected));
    free(own);
}

TEST(test_calls)
{
    static const struct {
        const char *signs, *text, *expected;
    } cases[] = {
        {"<tool_call>", "<tool_call>\n{'name': 'get', 'arguments': {'s': 'x', 'n': 1}}\n</tool_call>",
         "{get {'s':'x','n':1}}"},
        {"<tool_call>",
         "I look.\n\n<tool_call>{'name': 'get', 'arguments': {}}</tool_call>\n<tool_call>\n{'name': "
         "'all_of-it', 'arguments': '{}'}</tool_call>\n",
         "I look.{get {}}{all_of-it {}}"},
        {"<tool_call>", "<tool_call>{'name': 'get', 'arguments': {'s': '</tool_call>'}}", "{get {'s':'</tool_call>'}}"},
        {"<tool_call>",
         "<tool_call>{'name': 'get', 'arguments': {}} {'name': 'get', 'arguments': {'n': 2}}</tool_call> ok",
         "{get {}}{get {'n':2}} ok"},
        {"<function=<parameter=<tool_call>",
         "<tool_call>\n<function=get>\n<parameter=s>\n1\n</parameter>\n<parameter=n>\n12\n</"
         "parameter>\n<parameter=l>\n[1, "
         "'</p>']\n</parameter>\n</function>\n</tool_call>",
         "{get {'s':'1','n':12,'l':[1,'</p>']}}"},
        {"<function=<parameter=<tool_call>", "<function=get></function>", "{get {}}"},
        {"<tool_call><arg_key>", "<tool_call>get\n<arg_key>n</arg_key>\n<arg_value>x y</arg_value>\n</tool_call>",
         "{get {'n':'x y'}}"},
        {"[TOOL_CALLS]", "[TOOL_CALLS] [{'name': 'get', 'arguments': {'n': 1}, 'id': 'abcdefghi'}]", "{get {'n':1}}"},
        {"[TOOL_CALLS][ARGS]", "[TOOL_CALLS]get[ARGS]{'n': 1}[TOOL_CALLS]get[ARGS]{'n': 2}",
         "{get {'n': 1}}{get {'n': 2}}"},
        {"<|start_header_id|>ipython", " {'name': 'get', 'parameters': {'n': 1}}", "{get {'n':1}}"},
        {"<|start_header_id|>ipython", "<|python_tag|>{'name': 'get', 'parameters': {'n': 1}}", "{get {'n':1}}"},
        {"<|tool_call_argument_begin|>",
         "Yes.<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{'n': "
         "1}<|tool_call_end|><|tool_call_begin|>functions.get:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
         "<|tool_calls_section_end|>",
         "Yes.{get {'n': 1}}{get {}}"},
        {"<|tool_call|>", "<|tool_call|>[{'name': 'get', 'arguments': {'s': 'y'}}]", "{get {'s':'y'}}"},
        {"<|tool_list_start|>",
         "<|tool_call_start|>[get(s='it\\'s', n=-2, l=[True, None, {'a': \"b\"}]), all_of-it()]<|tool_call_end|>ok",
         "{get {'s':'it\\'s','n':-2,'l':[true,null,{'a':'b'}]}}{all_of-it {}}ok"},
        {"<|tool_call>call:", "<|tool_call>call:get{l:[1,{a:<|'|>x}<|'|>}],s:<|'|>y, z<|'|>}<tool_call|>",
         "{get {'l':[1,{'a':'x}'}],'s':'y, z'}}"},
        {">>>all recipient", "all\nHello", "Hello"},
        {">>>all recipient", "get\n{'n': 1}>>>all_of-it\n{}", "{get {'n': 1}}{all_of-it {}}"},
        {">>>all recipient", "all_of-it\n{}", "{all_of-it {}}"},
        {">>>all recipient", "almost", "almost"},
        {">>>all recipient", ">>>all\nHello", "Hello"},
        {">>>all recipient", "a >>>al", "a >>>al"},
        {"<|tools_prefix|>", "<|tools_prefix|>[{'get': {'n': 1}}, {'get': {}}]<|tools_suffix|>",
         "{get {'n':1}}{get {}}"},
        {"<|channel|>analysis<|message|>",
         "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get "
         "<|constrain|>json<|message|>{'n': 1}",
         "(Hm.){get {'n': 1}}"},
        {"<|channel|>analysis<|message|>",
         "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
         "<|start|>assistant<|channel|>analysis<|message|>So.<|end|><|start|>assistant "
         "to=functions.get<|channel|>commentary "
         "json<|message|>{}",
         "(Hm.)I look.(So.){get {}}"},
        {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>Hello.", "Hello."},
        {"<|tool_call:begin|>",
         "<|tool_calls|><|tool_call:begin|>7<|tool_call:name|>get<|tool_call:args|>{}\n<|tool_call:end|>\n",
         "{get {}}"},
    };
    use_tools("'auto'");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_template(cases[i].signs, false, cases[i].text, cases[i].expected);
    server_tools_free(&tools);
}

/* All of the text stays. */
TEST(test_no_calls)
{
    static const struct {
        const char *signs, *text;
    } cases[] = {
        {"<tool_call>", " plain \n text \n"},
        {"<tool_call>", "<tool_call>{'name': 'other', 'arguments': {}}</tool_call>"},
        {"<tool_call>", "<tool_call>{'name': 'get'}</tool_call>"},
        {"<tool_call>", "<tool_call>{'name': 'get', 'arguments': [1]}</tool_call>"},
        {"<tool_call>", "<tool_call>{'name': 'get', 'arguments': {'n': 1"},
        {"<tool_call>", "<tool_call>{'name': 'get', 'arguments': {'n': }}</tool_call>"},
        {"<tool_call>", "<tool_call> a <tool_cal"},
        {"<tool_call>", "<tool_call>"},
        {"<tool_call>", "<tool_call>]]</tool_call>"},
        {"<function=<parameter=<tool_call>", "<tool_call>\n<function=get>\n<parameter=s>1</parameter>\n</functio"},
        {"<function=<parameter=<tool_call>",
         "<tool_call><function=get><parameter=s>1</parameter><parameter=s>1</parameter>"
         "</function></tool_call>"},
        {"<tool_call><arg_key>", "<tool_call>get<arg_key>n</arg_key><arg_value>x"},
        {"[TOOL_CALLS][ARGS]", "[TOOL_CALLS]get[ARGS]no"},
        {"<|start_header_id|>ipython", "{'name': 'other', 'parameters': {'n': 1}}"},
        {"<|start_header_id|>ipython", "{'name': 'get', 'parameters': {'n': 1}"},
        {"<|start_header_id|>ipython", "a {'name': 'get', 'parameters': {'n': 1}}"},
        {"<|tool_list_start|>", "<|tool_call_start|>[get(1)]<|tool_call_end|>"},
        {"<|tool_list_start|>", "<|tool_call_start|>[get(s='x]<|tool_call_end|>"},
        {"<|tool_call>call:", "<|tool_call>call:get{a:<|'|>}"},
        {"none", "<tool_call>{'name': 'get', 'arguments': {}}</tool_call>"},
    };
    use_tools("'auto'");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_template(cases[i].signs, false, cases[i].text, cases[i].text);
    server_tools_free(&tools);
    check_template("<tool_call>", false, "<tool_call>{'name': 'get', 'arguments': {}}</tool_call>",
                   "<tool_call>{'name': 'get', 'arguments': {}}</tool_call>");
}

TEST(test_reasoning)
{
    check_template("</think>", false, "\n<think>\n a b \n</think>\n\nc <think> d\n", "(a b)c <think> d\n");
    check_template("</think>", true, "\na\n\nb</thinks>\n</think>\n c", "(a\n\nb</thinks>)c");
    check_template("</think>", true, "a\n", "(a)");
    check_template("</think>", true, "</think>", "");
    check_template("</think>", false, "a</think>b", "a</think>b");
    check_template("[THINK]", false, "[THINK]x[/THINK]y", "(x)y");
    check_template("'':opensource''", false, "a", "a");
    use_tools("'auto'");
    check_template("</think> <tool_call>", true, "x</think>\n<tool_call>{'name': 'get', 'arguments': {}}</tool_call>",
                   "(x){get {}}");
    server_tools_free(&tools);
}

/* A grammar makes the answer calls or a document: what begins as neither is content as it is. */
TEST(test_bound)
{
    static const struct {
        const char *template_text, *text, *expected;
    } cases[] = {
        {"</think> <tool_call>", "{'a': '<think> <tool_call>{} '}", "{'a': '<think> <tool_call>{} '}"},
        {"</think> <tool_call>", "<tool_call>\n{'name': 'get', 'arguments': {}}\n</tool_call>", "{get {}}"},
        {"</think> <tool_call>", "<tool_call>{'name': 'got'}</tool_call>", "<tool_call>{'name': 'got'}</tool_call>"},
        {"</think> <tool_call>", "<tool", "<tool"},
        {"</think> <tool_call>", " x <tool_call>{'name': 'get', 'arguments': {}}</tool_call>",
         " x <tool_call>{'name': 'get', 'arguments': {}}</tool_call>"},
        {"<|start_header_id|>ipython", "{'name': 'got'} ", "{'name': 'got'} "},
        {"<|start_header_id|>ipython", "{'name': 'get', 'parameters': {}}", "{get {}}"},
    };
    is_bound = true;
    use_tools("'auto'");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_template(cases[i].template_text, i % 2, cases[i].text, cases[i].expected);
    server_tools_free(&tools);
    is_bound = false;
}

/* The limit of tokens has ended the answer: complete calls stay, and one that is not is no text. */
TEST(test_cut)
{
    static const struct {
        const char *signs, *text, *expected;
    } cases[] = {
        {"<tool_call>", "I look.\n\n<tool_call>{'name': 'get', 'argum", "I look."},
        {"<tool_call>", "<tool_call>", ""},
        {"<tool_call>", "a <tool_cal", "a <tool_cal"},
        {"<tool_call>", "<tool_call> a", "<tool_call> a"},
        {"<tool_call>", "a \n", "a \n"},
        {"<tool_call>", "<tool_call>{'name': 'get', 'arguments': {}}</tool_call>\n<tool_call>{'na", "{get {}}"},
        {"<tool_call>", "<tool_call>{'name': 'get', 'arguments': {}}</tool_call>\n<tool_ca", "{get {}}"},
        {"<tool_call>", "<tool_call>{'name': 'get', 'arguments': {}}</tool_call> ok", "{get {}} ok"},
        {"<tool_call></think>", "<think>a</thi", "(a</thi)"},
        {"<function=<parameter=<tool_call>", "<tool_call>\n<function=get>\n<parameter=s>1</parameter>\n</functio", ""},
        {"[TOOL_CALLS]",
         "[TOOL_CALLS][{'name': 'get', 'arguments': {'l': [{}]}}, {'name': 'all_of-it', 'arguments': {}}, {'name': 'g",
         "{get {'l':[{}]}}{all_of-it {}}"},
        {"[TOOL_CALLS]", "[TOOL_CALLS][{'name': 'get', 'arguments': {'s': '}', 'l': [{}", ""},
        {"<TOOLCALL>", "<TOOLCALL>[{'name': 'get', 'arguments': {}}, {", "{get {}}"},
        {"<TOOLCALL>", "<TOOLCALL>[{'name': 'get', 'arguments': {}}]</TOOLC", "{get {}}"},
        {"<|tools_prefix|>", "<|tools_prefix|>[{'get': {'n': 1}}, {'all_of-it': {}}", "{get {'n':1}}{all_of-it {}}"},
        {"[TOOL_CALLS][ARGS]", "[TOOL_CALLS]get[ARGS]{'n': 1}[TOOL_CALLS]get[ARGS]{'n'", "{get {'n': 1}}"},
        {"<|start_header_id|>ipython", "[{'name': 'get', 'parameters': {'n': 1}},", "{get {'n':1}}"},
        {"<|start_header_id|>ipython", "[{'name': 'got', 'parameters': {'n': 1}},",
         "[{'name': 'got', 'parameters': {'n': 1}},"},
        {"<|start_header_id|>ipython", "{'name': 'get', 'parameters': {'n': 1}",
         "{'name': 'get', 'parameters': {'n': 1}"},
        {"<|tool_list_start|>", "<|tool_call_start|>[get(s='(', l=[1]), all_of-it(), get(s='x]",
         "{get {'s':'(','l':[1]}}{all_of-it {}}"},
        {"<|tool_call>call:", "a<|tool_call>call:get{a:<|'|>}", "a"},
        /* The name tells whether a piece is content. */
        {"<tool_call><arg_key>", "Wrap the name in <tool_call> tags", "Wrap the name in <tool_call> tags"},
        {"<tool_call><arg_key>", "a <tool_call>ge", "a"},
        {"<function=<parameter=<tool_call>", "Put it in <function=NAME>", "Put it in <function=NAME>"},
        {"<function=<parameter=<tool_call>", "Put it in <function=all_of-it><param", "Put it in"},
        {"<tool_call>", "So: <tool_call>{'foo': {'x': 1}, 'bar': ", "So: <tool_call>{'foo': {'x': 1}, 'bar': "},
        {"<tool_call>", "<tool_call>{'name': 'got', 'argum", "<tool_call>{'name': 'got', 'argum"},
        {"<tool_call>", "<tool_call>{'name': 'ge", ""},
        {"<tool_call>", "<tool_call>{'name': 1, 'x", "<tool_call>{'name': 1, 'x"},
        {"<tool_call>", "<tool_call>{'type': 'function', 'id': 1, 'function': {'name': 'get', 'a", ""},
        {"<tool_call>", "<tool_call>{'id': 'get', 'function': {'name': 'got', 'a",
         "<tool_call>{'id': 'get', 'function': {'name': 'got', 'a"},
        {"<tool_call>", "<tool_call>{'arguments': {'got': 1", ""},
        {"<tool_call>", "<tool_call>{'all_of-it': {'got': 1", ""},
        {"<tool_call>", "<tool_call> [ {", ""},
        {"<tool_call>", "<tool_call>[name", "<tool_call>[name"},
        {"<TOOLCALL>", "<TOOLCALL>[{'name': 'got', 'arguments': {}}, {'na",
         "<TOOLCALL>[{'name': 'got', 'arguments': {}}, {'na"},
        {"<TOOLCALL>", "<TOOLCALL>[{'name': 'get', 'arguments': {}}, {'name': 'got', 'arguments': {}}, {'na",
         "<TOOLCALL>[{'name': 'get', 'arguments': {}}, {'name': 'got', 'arguments': {}}, {'na"},
        {"<|tool_list_start|>", "<|tool_call_start|>[got(s='x", "<|tool_call_start|>[got(s='x"},
        {"<|tool_list_start|>", "<|tool_call_start|>[ge", ""},
        {"<|tool_call_argument_begin|>",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{'n", ""},
        {"<|tool_call_argument_begin|>",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.got:0<|tool_call_argument_begin|>{'n",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.got:0<|tool_call_argument_begin|>{'n"},
        {"<|tool_call:begin|>", "<|tool_calls|><|tool_call:begin|>7<|tool_call:name|>ge", ""},
        /* Markers. */
        {"<|channel|>analysis<|message|>",
         "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=fun", "(Hm.)"},
        {"<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>I look.<|end|><|start|>", "I look."},
        {"<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions",
         "(Hm.)"},
        {"<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to", "(Hm.)"},
        {"<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to",
         "I look."},
        {"<|channel|>analysis<|message|>", " to=functions", ""},
        {"<|channel|>analysis<|message|>", " to", ""},
        {"<|channel|>analysis<|message|>", "<|channel|>final<|message|> to", "to"},
        {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>Set it to", "Set it to"},
        {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>Set it to=fun", "Set it to=fun"},
        {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>a <", "a <"},
        {"<|channel|>analysis<|message|>", "<|channel|>", ""},
        {"<|channel|>analysis<|message|>", "<|channel|>analysis", ""},
        {"<|channel|>analysis<|message|>", "<|channel|>final <|constrain|>json", ""},
        {"<|tool_call>call:", "a<|tool_call>", "a"},
        {"\xef\xbd\x9c"
         "DSML\xef\xbd\x9c",
         "a\n\n<\xef\xbd\x9c"
         "DSML\xef\xbd\x9ctool",
         "a"},
    };
    is_cut = true;
    use_tools("'auto'");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_template(cases[i].signs, false, cases[i].text, cases[i].expected);
    use_tools("'required'");
    check(NULL, false, "[{\"name\":\"get\",\"arguments\":{\"n\":[1", "");
    check(NULL, false, "[{\"name\":\"get\",\"arguments\":{}},{\"name\":\"get\",\"argum", "{get {}}");
    check(NULL, false, "[", "");
    check(NULL, false, " \n", "");
    use_tools("{'type': 'function', 'function': {'name': 'get'}}");
    check(NULL, true, "{\"n\":", "{get {\"n\":}");
    server_tools_free(&tools);
    check_template("<tool_call>", false, "<tool_call>{'na", "<tool_call>{'na");
    check_template("<|channel|>analysis<|message|>", false, "<|channel|>anal", "");
    is_cut = false;
}

/* What begins as a marker is no JSON, but may be another text of a format. */
TEST(test_cut_of_bound)
{
    static const char *const texts[] = {"<", "<tool", "<tool_call"};
    is_bound = is_cut = true;
    use_tools("'auto'");
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        is_json = i % 2;
        check_template("<tool_call></think>", false, texts[i / 2], is_json ? "" : texts[i / 2]);
    }
    check_template("<tool_call>", false, "{'a': '<tool", "{'a': '<tool");
    check_template("[TOOL_CALLS]", false, "[", "[");
    server_tools_free(&tools);
    is_bound = is_cut = is_json = false;
}

static size_t count_calls(const char *text)
{
    struct server_answer answer;
    struct server_parts parts = {0};
    server_answer_begin(&answer, NULL, &tools, false);
    assert_true(server_answer_push(&answer, text, strlen(text), &parts));
    assert_true(server_answer_finish(&answer, false, &parts));
    const size_t calls = server_answer_calls(&answer);
    server_answer_free(&answer);
    server_parts_free(&parts);
    return calls;
}

/* Whatever has ended it: a named function's arguments are a call only if they are whole. */
TEST(test_calls_that_count)
{
    use_tools("{'type': 'function', 'function': {'name': 'get'}}");
    assert_int_equal(count_calls(""), 0);
    assert_int_equal(count_calls("{\"n\": {}"), 0);
    assert_int_equal(count_calls("{\"n\": {}}"), 1);
    use_tools("'required'");
    assert_int_equal(count_calls("[{\"name\":\"get\",\"arguments\":{}}"), 0);
    assert_int_equal(count_calls("[{\"name\":\"get\",\"arguments\":{}}]"), 1);
    server_tools_free(&tools);
}

TEST(test_forced)
{
    use_tools("'required'");
    check(NULL, false, test_json("[{'name':'get','arguments':{'n':1}},{'name':'all_of-it','arguments':{}}]"),
          "{get {\"n\":1}}{all_of-it {}}");
    check(NULL, false, "[{\"name\":\"get\"", "[{\"name\":\"get\"");
    tools.one_call = true;
    check(NULL, false, "[{\"name\":\"get\",\"arguments\":{}},{\"name\":\"get\",\"arguments\":{}}]", "{get {}}");
    use_tools("{'type': 'function', 'function': {'name': 'get'}}");
    check(NULL, true, "{\"n\":1}", "{get {\"n\":1}}");
    check(NULL, false, "", "");
    server_tools_free(&tools);
}

static void expect_format(const char *expected)
{
    struct server_format format = {0};
    assert_true(server_tools_format(&tools, &format, &error));
    assert_string_equal(format.text, test_json(expected));
    assert_int_equal(format.kind, ENG_GRAMMAR_JSON_SCHEMA);
    server_format_free(&format);
}

TEST(test_formats)
{
    use_tools("{'type': 'function', 'function': {'name': 'all_of-it'}}");
    expect_format("{'type':'object','properties':{},'additionalProperties':false}");
    server_tools_free(&tools);
    json_t *list =
        json_loads(test_json(
                       "[{'type': 'function', 'function': {'name': 'f', 'parameters': {'properties': {'a': {'$ref': "
                       "'#/$defs/x'}, 'b': {'$ref': '/$defs/x'}, '$ref': {'const': {'$ref': '#'}}}, '$defs': {'x': "
                       "{'type': 'null'}}}}}]"),
                   0, NULL);
    assert_true(server_tools_read(list, &tools, &error));
    tools.choice = SERVER_TOOLS_REQUIRED;
    tools.one_call = true;
    expect_format("{'type':'array','minItems':1,'items':{'anyOf':[{'type':'object','properties':{'name':{'const':'f'},"
                  "'arguments':{'$ref':'#/$defs/0'}},'required':['name','arguments'],'additionalProperties':false}]},"
                  "'$defs':{'0':{'properties':{'a':{'$ref':'#/$defs/0/$defs/x'},'b':{'$ref':'#/$defs/0/$defs/"
                  "x'},'$ref':{'const':{'$ref':'#'}}},"
                  "'$defs':{'x':{'type':'null'}},'type':'object'}},'maxItems':1}");
    server_tools_free(&tools);
    json_decref(list);
    /* Functions with anchors of the same name. */
    list = json_loads(
        test_json(
            "[{'type': 'function', 'function': {'name': 'f', 'parameters': {'$anchor': 'x', 'type': 'object'}}},"
            "{'type': 'function', 'function': {'name': 'g', 'parameters': {'$ref': '#x', '$defs': {'a': {'$anchor': "
            "'x'}}}}}]"),
        0, NULL);
    assert_true(server_tools_read(list, &tools, &error));
    tools.choice = SERVER_TOOLS_REQUIRED;
    tools.one_call = false;
    struct server_format format = {0};
    assert_true(server_tools_format(&tools, &format, &error));
    assert_non_null(
        strstr(format.text, test_json("{'0':{'$anchor':'x-0','type':'object'},'1':{'$ref':'#x-1','$defs':{'a':"
                                      "{'$anchor':'x-1'}}}}")));
    server_format_free(&format);
    server_tools_free(&tools);
    json_decref(list);
}

TEST(test_refused_tools)
{
    static const struct {
        const char *list, *param;
    } cases[] = {
        {"{}", "tools"},
        {"[1]", "tools[0]"},
        {"[{'type': 'web_search'}]", "tools[0]"},
        {"[{'type': 'function', 'function': 1}]", "tools[0]"},
        {"[{'type': 'function', 'function': {'name': 'a b'}}]", "tools[0]"},
        {"[{'type': 'function', 'function': {'name': 'a', 'parameters': 1}}]", "tools[0]"},
        {"[{'type': 'function', 'function': {'name': 'a', 'x': 1}}]", "tools[0]"},
        {"[{'type': 'function', 'function': {'name': 'a'}}, {'type': 'function', 'function': {'name': 'a'}}]",
         "tools[1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *list = json_loads(test_json(cases[i].list), 0, NULL);
        if (server_tools_read(list, &tools, &error)) fail_msg("accepted: %s", cases[i].list);
        assert_string_equal(error.param, cases[i].param);
        server_tools_free(&tools);
        json_decref(list);
    }
    static const char *const choices[] = {"'any'", "1", "{'type': 'function', 'function': {'name': 'x'}}",
                                          "{'type': 'function', 'function': 1}", "{'type': 'x'}"};
    use_tools("'auto'");
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        json_t *choice = json_loads(test_json(choices[i]), JSON_DECODE_ANY, NULL);
        if (server_tools_choose(choice, &tools, &error)) fail_msg("accepted: %s", choices[i]);
        assert_string_equal(error.param, "tool_choice");
        json_decref(choice);
    }
    server_tools_free(&tools);
}

TEST(test_tokens_of_reasoning)
{
    static const struct {
        const char *text;
        bool is_thought;
    } tokens[] = {{"<th", false},    {"ink>", true}, {"I", true},      {" <look", true},  {"", true},
                  {"</think", true}, {">", true},    {"Hello", false}, {"<think>", false}};
    for (int in_thought = 0; in_thought < 2; in_thought++) {
        struct server_dialect dialect = {0};
        struct server_answer answer;
        server_dialect_find("<think></think>", &dialect);
        server_answer_begin(&answer, &dialect, NULL, in_thought);
        for (size_t i = in_thought ? 2 : 0; i < sizeof tokens / sizeof *tokens; i++) {
            bool is_thought;
            assert_true(server_answer_follow(&answer, tokens[i].text, strlen(tokens[i].text), &is_thought));
            assert_int_equal(is_thought, tokens[i].is_thought);
        }
        assert_int_equal(answer.state, SERVER_ANSWER_PLAIN);
        assert_null(answer.held.data);
        server_answer_free(&answer);
    }
}

/* How many of the text's bytes, each a token, are of reasoning; *state: after them. */
static size_t count_thought(const char *signs, const char *choice, const char *text, enum server_answer_state *state)
{
    struct server_dialect dialect;
    struct server_answer answer;
    size_t count = 0;
    char *own = strdup(test_json(text));
    server_dialect_find(signs, &dialect);
    if (choice) use_tools(choice);
    server_answer_begin(&answer, &dialect, choice ? &tools : NULL, false);
    if (is_bound) server_answer_bind(&answer, is_json);
    for (size_t i = 0; own[i]; i++) {
        bool is_thought;
        assert_true(server_answer_follow(&answer, own + i, 1, &is_thought));
        count += is_thought;
    }
    *state = answer.state;
    server_answer_free(&answer);
    server_tools_free(&tools);
    free(own);
    return count;
}

TEST(test_tokens_of_reasoning_around_calls)
{
    static const char call[] = "<tool_call>{'name': 'get', 'arguments': {'s': '<think>'}}</tool_call><think>ab";
    static const char special[] = "<|tool_call>call:get{s:<|'|><|channel>thought<|'|>}<tool_call|>";
    enum server_answer_state end;
    /* The last byte of a marker that begins reasoning, and what follows. */
    assert_int_equal(count_thought("<tool_call><think></think>", "'auto'", call, &end), 3);
    assert_int_equal(end, SERVER_ANSWER_THOUGHT);
    /* Without tools the call is content, in which no reasoning begins. */
    assert_int_equal(count_thought("<tool_call><think></think>", NULL, call, &end), 0);
    assert_int_equal(end, SERVER_ANSWER_PLAIN);
    assert_int_equal(count_thought("<tool_call><think></think>", "'required'", "[<think>ab", &end), 0);
    assert_int_equal(end, SERVER_ANSWER_PLAIN);
    is_bound = true;
    assert_int_equal(count_thought("<tool_call><think></think>", "'auto'", "<think>ab", &end), 0);
    assert_int_equal(end, SERVER_ANSWER_PLAIN);
    is_bound = false;
    /* A special marker begins reasoning after content, too, but not in a call. */
    assert_int_equal(count_thought("<|tool_call>call:<|channel>thought", "'auto'", special, &end), 0);
    assert_int_equal(count_thought("<|tool_call>call:<|channel>thought", "'auto'", "a<|channel>thoughtb", &end), 2);
}

int main(void) { return test_run(); }
