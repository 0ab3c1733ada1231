/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_input.h"

#include <time.h>

#include "formats/base/test_support.h"
#include "runtime/server/server_buffer.h"

static struct server_request request;
static struct server_error error;

static bool read_text(enum server_shape shape, bool counts, const char *text)
{
    error = (struct server_error){0};
    return server_input_read(shape, SERVER_CHAT, counts, text, strlen(text), &request, &error);
}

static void accept(enum server_shape shape, bool counts, const char *text)
{
    if (!read_text(shape, counts, test_json(text))) fail_msg("%s: refused: %s", text, error.message);
    assert_int_equal(request.shape, shape);
    assert_true(request.is_chat);
}

TEST(test_messages)
{
    accept(SERVER_MESSAGES, false,
           "{'model': 'm', 'max_tokens': 7, 'system': [{'type': 'text', 'text': 's', 'cache_control': {'type': "
           "'ephemeral'}}], 'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': [{'type': "
           "'thinking', 'thinking': 't', 'signature': 'x'}, {'type': 'text', 'text': 'a', 'citations': null}, {'type': "
           "'thinking', 'thinking': 'u'}, {'type': "
           "'tool_use', 'id': 'i', 'name': 'f', 'input': {'n': 1}}]}, {'role': 'user', 'content': [{'type': 'text', "
           "'text': 'b'}, {'type': 'tool_result', 'tool_use_id': 'i', 'content': 'r', 'is_error': true}, {'type': "
           "'tool_result', 'tool_use_id': 'j'}, {'type': 'text', 'text': 'c'}]}], 'stop_sequences': ['x', 'y'], "
           "'temperature': 0.5, 'top_k': 3, 'thinking': {'type': 'adaptive'}, 'stream': true, 'metadata': {'user_id': "
           "'u'}, 'tools': [{'name': 'f', 'description': 'd', 'input_schema': {'type': 'object'}}], 'tool_choice': "
           "{'type': 'auto', 'disable_parallel_tool_use': true}}");
    assert_string_equal(
        request.variables,
        test_json(
            "{'add_generation_prompt':true,'enable_thinking':true,'thinking':true,'thinking_mode':'adaptive','tools':[{"
            "'type':'function','function':{'name':"
            "'f','parameters':{'type':'object'},'description':'d'}}],'messages':[{'role':'system','content':'s'},"
            "{'role':'user','content':'q'},{'role':'assistant','content':'a','reasoning_content':'t\\nu','tool_calls':"
            "[{'type':'function','function':{'name':'f','arguments':{'n':1}},'id':'i'}]},{'role':'user',"
            "'content':'b'},{'role':'tool','content':'Error:\\nr','tool_call_id':'i'},{'role':'tool','content':"
            "'','tool_call_id':'j'},{'role':'user','content':'c'}]}"));
    assert_int_equal(server_request_max_tokens(&request), 7);
    assert_true(request.stream && request.stop_count == 2 && request.temperature == 0.5 && request.top_k == 3);
    assert_true(request.tools.one_call && request.tools.choice == SERVER_TOOLS_AUTO);
    server_request_free(&request);
    accept(SERVER_MESSAGES, false,
           "{'max_tokens': 1, 'messages': [{'role': 'user', 'content': 'q'}], 'output_config': {'format': {'type': "
           "'json_schema', 'schema': {'type': 'null'}}, 'effort': 'low'}, 'thinking': {'type': 'disabled'}}");
    assert_string_equal(request.format.text, test_json("{'type':'null'}"));
    assert_non_null(strstr(request.variables, test_json("'enable_thinking':false,'thinking':false,'thinking_mode':"
                                                        "'disabled','thinking_budget':0")));
    assert_string_equal(request.effort, "low");
    assert_int_equal(request.thinking, SERVER_THINKING_OFF);
    server_request_free(&request);
    accept(SERVER_MESSAGES, true,
           "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': []}, {'role': 'user', "
           "'content': 'r'}]}");
    assert_non_null(strstr(request.variables, test_json("{'role':'assistant','content':''},{'role':'user'")));
    server_request_free(&request);
    accept(SERVER_MESSAGES, true,
           "{'messages': [{'role': 'user', 'content': 'q'}], 'system': 's', 'mcp_servers': [], 'context_management': "
           "{'edits': []}}");
    assert_int_equal(request.thinking, SERVER_THINKING_FREE);
    server_request_free(&request);
    for (int counts = 0; counts < 2; counts++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{%s'messages': [{'role': 'user', 'content': 'q'}], 'thinking': {'type': 'enabled', "
                 "'budget_tokens': 1024}}",
                 counts ? "" : "'max_tokens': 1025, ");
        accept(SERVER_MESSAGES, counts, text);
        assert_int_equal(request.thinking, SERVER_THINKING_ON);
        assert_non_null(strstr(request.variables, test_json("'enable_thinking':true,'thinking':true,'thinking_mode':"
                                                            "'enabled','thinking_budget':1024")));
        server_request_free(&request);
    }
    accept(SERVER_MESSAGES, false,
           "{'max_tokens': 1, 'messages': [{'role': 'user', 'content': 'q'}], 'stop_sequences': "
           "['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p']}");
    assert_int_equal(request.stop_count, 16);
    assert_string_equal(request.stops[15], "p");
    server_request_free(&request);
}

TEST(test_responses)
{
    accept(
        SERVER_RESPONSES, false,
        "{'input': [{'role': 'developer', 'content': 'd'}, {'type': 'reasoning', 'id': 'r', 'summary': [], 'content': "
        "[{'type': 'reasoning_text', 'text': 't'}]}, {'type': 'message', 'role': 'assistant', 'content': [{'type': "
        "'output_text', 'text': 'a', 'annotations': [], 'parsed': {'x': 1}}]}, {'type': 'function_call', 'call_id': "
        "'i', 'name': 'f', "
        "'arguments': '{}', 'parsed_arguments': {}}, {'type': 'function_call', 'call_id': 'j', 'name': 'f', "
        "'arguments': ''}, {'type': "
        "'function_call_output', 'call_id': 'i', 'output': 'r'}, {'role': 'assistant', 'content': 'x'}, {'role': "
        "'assistant', 'content': 'y'}, {'role': 'user', 'content': [{'type': 'input_text', 'text': 'q'}]}],"
        " 'instructions': 's', 'max_output_tokens': 9, 'store': false, 'metadata': {'a': 'b'}, 'reasoning': "
        "{'effort': 'low'}, 'tools': [{'type': 'function', 'name': 'f', 'parameters': {'type': 'object'}, 'strict': "
        "true}], 'tool_choice': {'type': 'function', 'name': 'f'}, 'parallel_tool_calls': false}");
    assert_string_equal(
        request.variables,
        test_json(
            "{'add_generation_prompt':true,'tools':[{'type':'function','function':{'name':"
            "'f','parameters':{'type':'object'},'strict':true}}],'messages':[{'role':'system','content':'s'},"
            "{'role':'system','content':'d'},{'role':'assistant','content':'a','reasoning_content':'t',"
            "'tool_calls':[{'type':'function','function':{'name':'f','arguments':{}},'id':'i'},{'type':'function',"
            "'function':{'name':'f','arguments':{}},'id':'j'}]},{'role':'tool','content':'r','tool_call_id':'i'},"
            "{'role':'assistant','content':'x'},{'role':'assistant','content':'y'},{'role':'user','content':"
            "'q'}]}"));
    assert_int_equal(server_request_max_tokens(&request), 9);
    assert_string_equal(request.tools.named, "f");
    assert_string_equal(request.effort, "low");
    assert_string_equal(json_string_value(json_object_get(request.echo_body, "instructions")), "s");
    assert_true(json_is_false(json_object_get(request.echo_body, "store")));
    server_request_free(&request);
    accept(SERVER_RESPONSES, false,
           "{'input': 'q', 'text': {'format': {'type': 'json_schema', 'name': 'n', 'schema': {'type': 'null'}}}}");
    assert_string_equal(request.format.text, test_json("{'type':'null'}"));
    assert_false(request.wants_logprobs);
    server_request_free(&request);
    accept(SERVER_RESPONSES, false, "{'input': 'q', 'include': ['message.output_text.logprobs'], 'top_logprobs': 0}");
    assert_true(request.wants_logprobs && !request.top_logprobs);
    server_request_free(&request);
    accept(SERVER_RESPONSES, false, "{'input': 'q', 'include': ['reasoning.encrypted_content']}");
    assert_false(request.wants_logprobs);
    server_request_free(&request);
    accept(SERVER_RESPONSES, false, "{'input': 'q', 'include': [], 'top_logprobs': 3}");
    assert_true(request.wants_logprobs && request.top_logprobs == 3);
    assert_int_equal(json_integer_value(json_object_get(request.echo_body, "top_logprobs")), 3);
    server_request_free(&request);
    accept(SERVER_RESPONSES, false, "{'input': 'q', 'include': [], 'top_logprobs': 0}");
    assert_false(request.wants_logprobs);
    server_request_free(&request);
}

TEST(test_what_other_servers_gave)
{
    accept(SERVER_RESPONSES, false,
           "{'input': [{'role': 'user', 'content': 'q'}, {'type': 'reasoning', 'id': 'r', 'summary': [{'type': "
           "'summary_text', 'text': 's'}, {'type': 'summary_text', 'text': 't'}], 'encrypted_content': null}, {'role': "
           "'assistant', 'content': 'a'}, {'type': 'reasoning', 'id': 'r', 'summary': [{'type': 'summary_text', "
           "'text': 's'}], 'content': [{'type': 'reasoning_text', 'text': 'u'}]}, {'role': 'user', 'content': 'p'}], "
           "'reasoning': {'summary': 'detailed'}, 'prompt_cache_options': {'mode': 'implicit'}, 'tools': [{'type': "
           "'function', 'name': 'f'}, {'type': 'function', 'name': 'g'}], 'tool_choice': {'type': 'allowed_tools', "
           "'mode': 'required', 'tools': [{'type': 'function', 'name': 'g'}]}}");
    assert_string_equal(
        request.variables,
        test_json("{'add_generation_prompt':true,'tools':[{'type':'function','function':{'name':'g'}}],'messages':[{"
                  "'role':'user','content':'q'},{'role':'assistant','content':'a','reasoning_content':'s\\nt'},{"
                  "'role':'assistant','content':'','reasoning_content':'u'},{'role':'user','content':'p'}]}"));
    assert_int_equal(request.tools.choice, SERVER_TOOLS_REQUIRED);
    server_request_free(&request);
    accept(SERVER_RESPONSES, false,
           "{'input': [{'role': 'user', 'content': 'q'}, {'type': 'reasoning', 'id': 'r', 'summary': [], "
           "'encrypted_content': 'x'}, {'role': 'user', 'content': 'p'}]}");
    assert_non_null(
        strstr(request.variables, test_json("[{'role':'user','content':'q'},{'role':'user','content':'p'}]")));
    server_request_free(&request);
    accept(
        SERVER_MESSAGES, false,
        "{'max_tokens': 1, 'messages': [{'role': 'user', 'content': 'p'}, {'role': 'assistant', 'content': [{'type': "
        "'redacted_thinking', 'data': 'x'}, {'type': 'text', 'text': 'a', 'citations': [{'type': 'x'}]}, {'type': "
        "'tool_use', 'id': 'i', 'name': 'f', 'input': {}, 'caller': {'type': 'direct'}}]}, {'role': 'user', "
        "'content': 'q'}, {'role': 'system', 'content': 's'}], "
        "'context_management': {'edits': [{'type': 'clear_thinking_20251015', 'keep': 'all'}]}}");
    assert_non_null(strstr(request.variables, test_json("{'role':'assistant','content':'a','tool_calls'")));
    assert_non_null(strstr(request.variables, test_json("{'role':'user','content':'q'},{'role':'system','content':"
                                                        "'s'}]")));
    server_request_free(&request);
}

/* A text for each of many thoughts of one message: the time is linear in them. */
TEST(test_many_thoughts)
{
    enum { COUNT = 20000, MOST_SECONDS = 2 };
    static const struct {
        enum server_shape shape;
        const char *begin, *one, *end;
    } cases[] = {
        {SERVER_MESSAGES, "{'max_tokens': 1, 'messages': [{'role': 'assistant', 'content': [",
         "{'type': 'thinking', 'thinking': 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy'}",
         "]}, {'role': 'user', 'content': 'q'}]}"},
        {SERVER_RESPONSES, "{'input': [{'type': 'reasoning', 'id': 'r', 'summary': [], 'content': [",
         "{'type': 'reasoning_text', 'text': 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy'}",
         "]}, {'role': 'user', 'content': 'q'}]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct server_buffer text = {0};
        server_buffer_text(&text, test_json(cases[i].begin));
        for (int one = 0; one < COUNT; one++) {
            if (one) server_buffer_text(&text, ",");
            server_buffer_text(&text, test_json(cases[i].one));
        }
        server_buffer_text(&text, test_json(cases[i].end));
        server_buffer_add(&text, "", 1);
        const clock_t start = clock();
        assert_true(read_text(cases[i].shape, false, text.data));
        assert_true(clock() - start < (clock_t)MOST_SECONDS * CLOCKS_PER_SEC);
        assert_non_null(strstr(request.variables, "yyy\\nyyy"));
        server_request_free(&request);
        server_buffer_free(&text);
    }
}

#define ASK "'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}]"

TEST(test_refused)
{
    static const struct {
        enum server_shape shape;
        const char *text, *param, *words;
    } cases[] = {
        {SERVER_MESSAGES, "[]", "body", "an object"},
        {SERVER_MESSAGES, "{'max_tokens': 5}", "messages", "found nothing"},
        {SERVER_MESSAGES, "{'messages': [{'role': 'user', 'content': 'x'}]}", "max_tokens", "found nothing"},
        {SERVER_MESSAGES, "{'max_tokens': 0, 'messages': [{'role': 'user', 'content': 'x'}]}", "max_tokens", "1 to"},
        {SERVER_MESSAGES, "{" ASK ", 'n': 2}", "n", "not known"},
        {SERVER_MESSAGES, "{" ASK ", 'container': 'x'}", "container", "not supported"},
        {SERVER_MESSAGES, "{" ASK ", 'service_tier': 'x'}", "service_tier", "'auto'"},
        {SERVER_MESSAGES, "{" ASK ", 'temperature': 'x'}", "temperature", "a number"},
        {SERVER_MESSAGES, "{" ASK ", 'stop_sequences': ['']}", "stop_sequences", "strings"},
        {SERVER_MESSAGES, "{" ASK ", 'system': 1}", "system", "found 1"},
        {SERVER_MESSAGES, "{" ASK ", 'thinking': {'type': 'enabled', 'budget_tokens': 1024}}", "thinking",
         "budget_tokens|max_tokens"},
        {SERVER_MESSAGES, "{" ASK ", 'thinking': {'type': 'enabled', 'budget_tokens': 1023}}", "thinking", "1024|1023"},
        {SERVER_MESSAGES, "{" ASK ", 'thinking': {'type': 'enabled'}}", "thinking", "budget_tokens|nothing"},
        {SERVER_MESSAGES, "{" ASK ", 'thinking': {'type': 'adaptive', 'budget_tokens': 1024}}", "thinking",
         "budget_tokens"},
        {SERVER_MESSAGES, "{" ASK ", 'thinking': {'type': 'much'}}", "thinking", "adaptive|much"},
        {SERVER_MESSAGES,
         "{" ASK ", 'stop_sequences': ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p', "
         "'q']}",
         "stop_sequences", "up to 16"},
        {SERVER_MESSAGES, "{" ASK ", 'metadata': {'x': 1}}", "metadata", "field|not supported"},
        {SERVER_MESSAGES, "{" ASK ", 'tools': [{'type': 'bash_20250124', 'name': 'bash'}]}", "tools.0",
         "bash_20250124"},
        {SERVER_MESSAGES, "{" ASK ", 'tools': [{'name': 'f'}]}", "tools.0", "input_schema"},
        {SERVER_MESSAGES, "{" ASK ", 'tool_choice': {'type': 'tool'}}", "tool_choice", "with a|name"},
        {SERVER_MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'system', 'content': 'x'}]}", "messages.0",
         "assistant"},
        {SERVER_MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': [{'type': 'image'}]}]}",
         "messages.0.content.0", "image"},
        {SERVER_MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': []}]}", "messages.0.content",
         "an array of 0"},
        {SERVER_MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'assistant', 'content': 'x'}]}", "messages",
         "last message"},
        {SERVER_RESPONSES, "{}", "input", "found nothing"},
        {SERVER_RESPONSES, "{'input': []}", "input", "at least one"},
        {SERVER_RESPONSES, "{'input': 'x', 'store': true}", "store", "not supported|false"},
        {SERVER_RESPONSES, "{'input': 'x', 'previous_response_id': 'r'}", "previous_response_id", "not supported"},
        {SERVER_RESPONSES, "{'input': 'x', 'include': ['x']}", "include", "message.output_text.logprobs|'x'"},
        {SERVER_RESPONSES, "{'input': 'x', 'include': {}}", "include", "an array"},
        {SERVER_RESPONSES, "{'input': 'x', 'top_logprobs': 21}", "top_logprobs", "0 to 20"},
        {SERVER_RESPONSES, "{'input': 'x', 'top_logprobs': 'x'}", "top_logprobs", "0 to 20"},
        {SERVER_RESPONSES, "{'input': 'x', 'messages': []}", "messages", "messages|not known"},
        {SERVER_RESPONSES, "{'input': 'x', 'max_completion_tokens': 5}", "max_completion_tokens",
         "max_completion_tokens|not known"},
        {SERVER_RESPONSES, "{'input': 'x', 'max_output_tokens': 0}", "max_output_tokens",
         "max_output_tokens: expected"},
        {SERVER_MESSAGES, "{" ASK ", 'stop': ['x']}", "stop", "stop|not known"},
        {SERVER_RESPONSES, "{'input': 'x', 'tools': [{'type': 'web_search'}]}", "tools[0]", "web_search"},
        {SERVER_RESPONSES, "{'input': 'x', 'text': {'verbosity': 'high'}}", "text", "verbosity"},
        {SERVER_RESPONSES, "{'input': 'x', 'reasoning': {'summary': 'concise'}}", "reasoning", "summary"},
        {SERVER_RESPONSES, "{'input': [{'type': 'reasoning', 'id': 'r', 'summary': ['x']}]}", "input[0]", "text"},
        {SERVER_RESPONSES, "{'input': 'x', 'tool_choice': {'type': 'allowed_tools', 'tools': []}}", "tool_choice",
         "mode"},
        {SERVER_MESSAGES,
         "{'max_tokens': 5, 'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'i', 'name': "
         "'f', 'input': {}, 'caller': {'type': 'code'}}]}, {'role': 'user', 'content': 'x'}]}",
         "messages.0.content.0", "direct|code"},
        {SERVER_MESSAGES, "{" ASK ", 'context_management': {'edits': [{'type': 'clear_tool_uses_20250919'}]}}",
         "context_management", "clear_thinking|clear_tool_uses"},
        {SERVER_MESSAGES,
         "{" ASK ", 'context_management': {'edits': [{'type': 'clear_thinking_20251015', 'keep': {'type': "
         "'thinking_turns', 'value': 1}}]}}",
         "context_management", "all"},
        {SERVER_RESPONSES, "{'input': [{'type': 'item_reference', 'id': 'x'}]}", "input[0]", "item_reference"},
        {SERVER_RESPONSES, "{'input': [{'role': 'user', 'content': [{'type': 'input_image'}]}]}", "input[0]",
         "input_image"},
        {SERVER_RESPONSES, "{'input': [{'type': 'function_call', 'name': 'f', 'arguments': '{}'}]}", "input[0]",
         "call_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        if (read_text(cases[i].shape, false, test_json(cases[i].text))) fail_msg("accepted: %s", cases[i].text);
        assert_string_equal(error.param, cases[i].param);
        assert_int_equal(error.http, 400);
        snprintf(status.message, sizeof status.message, "%s", error.message);
        test_expect_message(&status, test_json(cases[i].words));
        server_request_free(&request);
    }
    assert_false(read_text(SERVER_MESSAGES, true, test_json("{" ASK "}")));
    assert_string_equal(error.param, "max_tokens");
    server_request_free(&request);
}

TEST(test_names_of_fields)
{
    static const struct {
        enum server_shape shape;
        const char *param, *message, *own, *renamed;
    } cases[] = {
        {SERVER_RESPONSES, "max_completion_tokens", "max_completion_tokens: x", "max_output_tokens",
         "max_output_tokens: x"},
        {SERVER_RESPONSES, "messages", "messages: x", "input", "input: x"},
        {SERVER_RESPONSES, "response_format", "a keyword", "text", "a keyword"},
        {SERVER_RESPONSES, "temperature", "temperature: x", "temperature", "temperature: x"},
        {SERVER_RESPONSES, "text", "text: x", "text", "text: x"},
        {SERVER_RESPONSES, "", ": x", "", ": x"},
        {SERVER_MESSAGES, "stop", "stop: x", "stop_sequences", "stop_sequences: x"},
        {SERVER_MESSAGES, "stop", "stopping: x", "stop_sequences", "stopping: x"},
        {SERVER_MESSAGES, "response_format", "a keyword", "output_config", "a keyword"},
        {SERVER_MESSAGES, "messages", "messages: x", "messages", "messages: x"},
        {SERVER_OPENAI, "messages", "messages: x", "messages", "messages: x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        server_fail(&error, 400, "invalid_value", cases[i].param, "%s", cases[i].message);
        server_input_rename(cases[i].shape, &error);
        assert_string_equal(error.param, cases[i].own);
        assert_string_equal(error.message, cases[i].renamed);
        assert_true(error.http == 400 && error.code);
    }
    /* A message of the largest size. */
    server_fail(&error, 400, NULL, "stop", "stop: %0600d", 1);
    server_input_rename(SERVER_MESSAGES, &error);
    assert_memory_equal(error.message, "stop_sequences: 0000", 20);
    assert_true(strlen(error.message) < sizeof error.message);
}

int main(void) { return test_run(); }
