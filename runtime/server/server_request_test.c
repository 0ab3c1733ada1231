/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_request.h"

#include "runtime/server/server_chat.h"

#include "formats/base/test_support.h"

static struct server_request request;
static struct server_error error;

static bool read_text(enum server_endpoint endpoint, const char *text)
{
    error = (struct server_error){0};
    return server_request_read(endpoint, text, strlen(text), &request, &error);
}

static void accept(enum server_endpoint endpoint, const char *text)
{
    if (!read_text(endpoint, test_json(text))) fail_msg("%s: refused: %s", text, error.message);
}

TEST(test_completion)
{
    accept(SERVER_COMPLETION,
           "{'model': 'm', 'prompt': 'abc', 'max_tokens': 7, 'temperature': 0.5, 'top_p': 1, 'top_k': -1,"
           " 'seed': -3, 'n': 2, 'stop': ['x', 'yz'], 'stop_token_ids': [4, 5], 'stream': true, 'echo': true,"
           " 'stream_options': {'include_usage': true, 'include_obfuscation': true}, 'ignore_eos': true, "
           "'repetition_penalty': 1.25,"
           " 'skip_special_tokens': false, 'add_special_tokens': false, 'user': 'u'}");
    assert_string_equal(request.model, "m");
    assert_int_equal(request.prompt_count, 1);
    assert_memory_equal(request.prompts[0].text, "abc", 4);
    assert_int_equal(request.prompts[0].size, 3);
    assert_int_equal(server_request_max_tokens(&request), 7);
    assert_true(request.temperature == 0.5 && request.top_p == 1 && request.repetition_penalty == 1.25);
    assert_int_equal(request.top_k, 0);
    assert_true(request.seed_given && request.seed == UINT64_MAX - 2);
    assert_int_equal(request.n, 2);
    assert_int_equal(request.stop_count, 2);
    assert_string_equal(request.stops[1], "yz");
    assert_int_equal(request.stop_token_count, 2);
    assert_int_equal(request.stop_tokens[1], 5);
    assert_true(request.stream && request.include_usage && request.echo && request.ignore_eos);
    assert_false(request.skip_special || request.add_special);
    assert_null(request.variables);
    assert_false(request.is_chat);
    /* What remains while it waits. */
    request.prompts[0].tokens = calloc(3, sizeof *request.prompts[0].tokens);
    request.prompts[0].count = 2;
    assert_true(server_request_shrink(&request));
    assert_true(!request.body && !request.model && !request.prompts[0].text);
    assert_string_equal(request.stops[0], "x");
    assert_string_equal(request.stops[1], "yz");
    assert_int_equal(request.prompts[0].count, 2);
    server_request_free(&request);
}

TEST(test_biases)
{
    accept(SERVER_COMPLETION, "{'prompt': 'x', 'logit_bias': {'5': -100, '2147483647': 0.5}, 'min_p': 0.25,"
                              " 'presence_penalty': -2, 'frequency_penalty': 1.5}");
    assert_true(request.min_p == 0.25 && request.presence_penalty == -2 && request.frequency_penalty == 1.5);
    assert_int_equal(request.bias_count, 2);
    assert_int_equal(request.biases[1].token, INT32_MAX);
    assert_true(request.biases[0].bias == -100.0f && request.biases[1].bias == 0.5f);
    server_request_free(&request);
    accept(SERVER_CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'logit_bias': {}}");
    assert_int_equal(request.bias_count, 0);
    server_request_free(&request);
}

TEST(test_logprobs)
{
    accept(SERVER_COMPLETION, "{'prompt': 'x', 'logprobs': 0}");
    assert_true(request.wants_logprobs && request.top_logprobs == 0);
    server_request_free(&request);
    accept(SERVER_COMPLETION, "{'prompt': 'x', 'logprobs': null}");
    assert_false(request.wants_logprobs);
    server_request_free(&request);
    accept(SERVER_CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'logprobs': true, 'top_logprobs': 20}");
    assert_true(request.wants_logprobs && request.top_logprobs == 20);
    server_request_free(&request);
    accept(SERVER_CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'logprobs': false, 'top_logprobs': 0}");
    assert_false(request.wants_logprobs);
    server_request_free(&request);
}

TEST(test_formats)
{
    static const struct {
        const char *text, *source;
        enum eng_grammar_kind kind;
    } cases[] = {
        {"'response_format': {'type': 'text'}", NULL, ENG_GRAMMAR_JSON_OBJECT},
        {"'response_format': {'type': 'json_object'}", "", ENG_GRAMMAR_JSON_OBJECT},
        {"'response_format': {'type': 'json_schema', 'json_schema': {'name': 'n', 'strict': true, 'schema': {'z': 1, "
         "'a': 2}}}",
         "{'z':1,'a':2}", ENG_GRAMMAR_JSON_SCHEMA},
        {"'guided_json': {'b': [1]}, 'response_format': {'type': 'text'}", "{'b':[1]}", ENG_GRAMMAR_JSON_SCHEMA},
        {"'guided_json': '{ }'", "{ }", ENG_GRAMMAR_JSON_SCHEMA},
        {"'guided_regex': 'a+'", "a+", ENG_GRAMMAR_REGEX},
        {"'guided_choice': ['x', 'y']", "['x','y']", ENG_GRAMMAR_CHOICES},
        {"'structured_outputs': {'json': {'b': [1]}, 'regex': null}", "{'b':[1]}", ENG_GRAMMAR_JSON_SCHEMA},
        {"'structured_outputs': {'regex': 'a+'}", "a+", ENG_GRAMMAR_REGEX},
        {"'structured_outputs': {'choice': ['x']}", "['x']", ENG_GRAMMAR_CHOICES},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text, "{'prompt': 'x', %s}", cases[i].text);
        accept(SERVER_COMPLETION, text);
        assert_int_equal(request.format.field != NULL, cases[i].source != NULL);
        if (cases[i].source) {
            assert_int_equal(request.format.kind, cases[i].kind);
            assert_string_equal(request.format.text ? request.format.text : "", test_json(cases[i].source));
            assert_int_equal(request.format.size, strlen(cases[i].source));
        }
        server_request_free(&request);
    }
}

TEST(test_defaults)
{
    accept(SERVER_COMPLETION, "{'prompt': 'x', 'temperature': null, 'stop': null, 'unknown': null}");
    assert_null(request.model);
    assert_true(request.temperature < 0 && request.top_p < 0 && request.repetition_penalty < 0 && request.top_k < 0);
    assert_false(request.stream || request.include_usage || request.echo || request.ignore_eos || request.seed_given);
    assert_true(request.skip_special && request.add_special);
    assert_int_equal(request.n, 1);
    assert_int_equal(server_request_max_tokens(&request), 0);
    server_request_free(&request);
}

TEST(test_prompts)
{
    accept(SERVER_COMPLETION, "{'prompt': [[1, 2], 'b', []]}");
    assert_int_equal(request.prompt_count, 3);
    assert_int_equal(request.prompts[0].count, 2);
    assert_int_equal(request.prompts[0].tokens[1], 2);
    assert_string_equal(request.prompts[1].text, "b");
    assert_int_equal(request.prompts[2].count, 0);
    server_request_free(&request);
    accept(SERVER_COMPLETION, "{'prompt': [1, 2147483647]}");
    assert_int_equal(request.prompt_count, 1);
    assert_int_equal(request.prompts[0].tokens[1], INT32_MAX);
    server_request_free(&request);
}

TEST(test_chat)
{
    accept(
        SERVER_CHAT,
        "{'messages': [{'role': 'system', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]},"
        " {'role': 'user', 'content': 'c', 'name': 'd', 'refusal': null}, {'role': 'assistant', 'content': 'e', "
        "'annotations': [], 'parsed': {'x': 1}}, {'role': 'assistant', 'content': null, 'tool_calls': []}, {'role': "
        "'assistant', 'content': []}], "
        "'chat_template_kwargs': "
        "{'thinking': "
        "false}}");
    assert_string_equal(
        request.variables,
        test_json("{'add_generation_prompt':true,'thinking':false,'messages':[{'role':'system','content':'a\\nb'},"
                  "{'role':'user','content':'c','name':'d'},{'role':'assistant','content':'e'},{'role':'assistant',"
                  "'content':''},{'role':'assistant','content':''}]}"));
    assert_int_equal(request.prompt_count, 1);
    server_request_free(&request);
    for (int endpoint = SERVER_CHAT; endpoint <= SERVER_TOKENIZE; endpoint += SERVER_TOKENIZE - SERVER_CHAT) {
        accept((enum server_endpoint)endpoint,
               "{'messages': [{'role': 'developer', 'content': 'd'}, {'role': 'developers', 'content': 'e'}]}");
        assert_non_null(strstr(request.variables, test_json("[{'role':'system','content':'d'},{'role':'developers',")));
        server_request_free(&request);
    }
    accept(SERVER_CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'user': 'u', 'safety_identifier': 's', "
                        "'prompt_cache_key': 'k', 'prompt_cache_retention': '24h', 'verbosity': 'medium'}");
    server_request_free(&request);
    accept(SERVER_TOKENIZE, "{'messages': [{'role': 'user', 'content': ''}], 'add_generation_prompt': false}");
    assert_non_null(strstr(request.variables, test_json("'add_generation_prompt':false")));
    server_request_free(&request);
}

/* What clients send beside what matters: hints for caches, labels, and reasoning under the name that newer releases of vLLM give it. */
TEST(test_hints)
{
    accept(SERVER_CHAT,
           "{'messages': [{'role': 'system', 'content': [{'type': 'text', 'text': 'a', 'cache_control': {'type': "
           "'ephemeral'}}]}, {'role': 'user', 'content': 'b', 'cache_control': {'type': 'ephemeral'}}, {'role': "
           "'assistant', 'content': 'c', 'reasoning': 'r'}, {'role': 'assistant', 'content': 'd', 'reasoning': 'r', "
           "'reasoning_content': 's'}, {'role': 'user', 'content': [{'type': 'text', 'text': 'e', "
           "'prompt_cache_breakpoint': {'mode': 'explicit'}}]}], 'tools': [{'type': 'function', 'cache_control': "
           "{'type': 'ephemeral'}, 'function': {'name': 'f', 'cache_control': {'type': 'ephemeral'}}}], 'metadata': "
           "{'a': 'b'}, 'prompt_cache_options': {'mode': 'implicit'}, 'prediction': {'type': 'content', 'content': "
           "'x'}}");
    assert_string_equal(
        request.variables,
        test_json("{'add_generation_prompt':true,'tools':[{'type':'function','function':{'name':'f'}}],'messages':[{"
                  "'role':'system','content':'a'},{'role':'user','content':'b'},{'role':'assistant','content':'c',"
                  "'reasoning_content':'r'},{'role':'assistant','content':'d','reasoning_content':'s'},{'role':'user',"
                  "'content':'e'}]}"));
    server_request_free(&request);
}

#define TOOLS                                                                                \
    "'messages': [{'role': 'user', 'content': 'x'}], 'tools': [{'type': 'function', "        \
    "'function': {'name': 'f'}}, {'type': 'function', 'function': {'name': 'g'}}, {'type': " \
    "'function', 'function': {'name': 'h'}}]"

/* What a limit has cut can be sent back. */
TEST(test_cut_arguments)
{
    accept(
        SERVER_CHAT,
        "{'messages': [{'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': '{'}}, "
        "{'function': {'name': 'f', 'arguments': ' {\\'a\\': 1, \\'b'}}]}], 'length_penalty': 1.0, 'use_beam_search': "
        "false, 'include_stop_str_in_output': false, 'spaces_between_special_tokens': true, 'priority': 0, "
        "'include_reasoning': true, 'best_of': 1}");
    assert_non_null(strstr(request.variables, test_json("{'name':'f','arguments':{}}")));
    assert_non_null(strstr(request.variables, test_json("{'name':'f','arguments':{'a':1}}")));
    server_request_free(&request);
}

/* The tools that are not allowed are left out. */
TEST(test_allowed_tools)
{
    static const char *const modes[] = {"auto", "required"};
    for (int i = 0; i < 2; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{" TOOLS ", 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': '%s', 'tools': "
                 "[{'type': 'function', 'function': {'name': 'h'}}, {'type': 'function', 'function': {'name': "
                 "'f'}}]}}}",
                 modes[i]);
        accept(SERVER_CHAT, text);
        assert_int_equal(request.tools.choice, i ? SERVER_TOOLS_REQUIRED : SERVER_TOOLS_AUTO);
        assert_non_null(strstr(request.variables, test_json("'tools':[{'type':'function','function':{'name':'f'}},{"
                                                            "'type':'function','function':{'name':'h'}}]")));
        server_request_free(&request);
    }
}

TEST(test_inputs_of_embeddings)
{
    accept(SERVER_EMBEDDING, "{'input': ['a', [5, 6]], 'encoding_format': 'base64', 'dimensions': 7, 'user': 'u'}");
    assert_int_equal(request.prompt_count, 2);
    assert_string_equal(request.prompts[0].text, "a");
    assert_int_equal(request.prompts[1].count, 2);
    assert_int_equal(request.prompts[1].tokens[1], 6);
    assert_true(request.is_base64);
    assert_int_equal(request.dimensions, 7);
    server_request_free(&request);
    accept(SERVER_EMBEDDING, "{'input': 'x', 'encoding_format': 'float', 'dimensions': null}");
    assert_true(!request.is_base64 && !request.dimensions);
    server_request_free(&request);
}

TEST(test_tools)
{
    accept(SERVER_CHAT,
           "{'messages': [{'role': 'assistant', 'content': null, 'reasoning_content': 'r', 'tool_calls': [{'id': 'i', "
           "'type': 'function', 'function': {'name': 'f', 'arguments': '{\\'a\\': 1}'}}]}, {'role': 'tool', "
           "'tool_call_id': "
           "'i', 'content': [{'type': 'text', 'text': '7'}]}], 'reasoning_effort': 'low', 'parallel_tool_calls': false,"
           " 'tools': [{'type': 'function', 'function': {'name': 'f'}}]}");
    assert_string_equal(
        request.variables,
        test_json("{'add_generation_prompt':true,'tools':[{'type':'function','function':{'name':"
                  "'f'}}],'messages':[{'role':'assistant','content':'','reasoning_content':'r','tool_calls':[{'type':"
                  "'function','function':{'name':'f','arguments':{'a':1}},'id':'i'}]},{'role':'tool','content':'7',"
                  "'tool_call_id':'i'}]}"));
    assert_true(server_tools_are_active(&request.tools) && !server_tools_are_forced(&request.tools));
    assert_true(request.tools.one_call);
    assert_string_equal(request.effort, "low");
    assert_true(server_chat_text_arguments(&request.variables));
    assert_non_null(strstr(request.variables, "\"arguments\":\"{\\\"a\\\": 1}\""));
    assert_false(server_chat_text_arguments(&request.variables));
    server_request_free(&request);
    accept(SERVER_CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'tool_choice': 'none',"
                        " 'tools': [{'type': 'function', 'function': {'name': 'f'}}]}");
    assert_null(strstr(request.variables, "tools"));
    server_request_free(&request);
    accept(SERVER_CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'response_format': {'type': 'json_object'},"
                        " 'tools': [{'type': 'function', 'function': {'name': 'f'}}]}");
    assert_true(server_tools_are_active(&request.tools) && request.format.kind == ENG_GRAMMAR_JSON_OBJECT);
    server_request_free(&request);
}

TEST(test_refused)
{
    static const struct {
        enum server_endpoint endpoint;
        const char *text, *param, *words;
        unsigned http;
    } cases[] = {
        {SERVER_COMPLETION, "{'prompt': 'x', 'temperature': 'a'}", "temperature", "temperature|number|'a'", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'top_p': 0}", "top_p", "above 0|found 0", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'n': 2.0}", "n", "integer from 1 to 128", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'logprobs': 21}", "logprobs", "0 to 20", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'logprobs': true}", "logprobs", "0 to 20", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'max_tokens': 0}", "max_tokens", "echo", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'max_tokens': 0, 'echo': false}", "max_tokens", "echo", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'max_tokens': -1, 'echo': true}", "max_tokens", "0 to", 400},
        {SERVER_CHAT, "{'messages': [], 'max_tokens': 0}", "max_tokens", "1 to", 400},
        {SERVER_EMBEDDING, "{'input': 'x', 'pooling': 'cls'}", "pooling", "mean", 400},
        {SERVER_EMBEDDING, "{'input': 'x', 'pooling': true}", "pooling", "mean", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'pooling': 'mean'}", "pooling", "not known", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x'}], 'logprobs': 1}", "logprobs", "true or false", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x'}], 'logprobs': true, 'top_logprobs': 21}",
         "top_logprobs", "0 to 20", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x'}], 'top_logprobs': 1}", "top_logprobs",
         "only with logprobs", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'logit_bias': {'-1': 1}}", "logit_bias", "token ids|found", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'logit_bias': {'2147483648': 1}}", "logit_bias", "2147483648", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'logit_bias': {'1': 101}}", "logit_bias", "-100 to 100|101", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'tools': []}", "tools", "not known", 400},
        {SERVER_CHAT, "{'messages': [], 'stream_options': {'include_obfuscation': 1}}",
         "stream_options.include_obfuscation", "true or false", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'stream_options': {'include_usage': 1}}", "stream_options.include_usage",
         "true or false", 400},
        {SERVER_COMPLETION, "{'prompt': 5}", "prompt", "found 5", 400},
        {SERVER_COMPLETION, "{'prompt': [[1.5]]}", "prompt", "token ids", 400},
        {SERVER_COMPLETION, "{'prompt': [2147483648]}", "prompt", "token ids", 400},
        {SERVER_COMPLETION, "{}", "prompt", "found nothing", 400},
        {SERVER_COMPLETION, "[]", "body", "expected an object", 400},
        {SERVER_COMPLETION, "{", "", "not valid JSON", 400},
        {SERVER_CHAT, "{'messages': []}", "messages", "at least one", 400},
        {SERVER_CHAT, "{'messages': [], 'metadata': {'a': 1}}", "metadata", "an object of strings|found 1", 400},
        {SERVER_CHAT, "{'messages': [], 'metadata': 'a'}", "metadata", "an object", 400},
        {SERVER_CHAT, "{'messages': [], 'prediction': 'a'}", "prediction", "an object", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'assistant', 'content': 'x', 'reasoning': 1}]}", "messages[0].reasoning",
         "a string", 400},
        {SERVER_CHAT, "{" TOOLS ", 'tool_choice': {'type': 'allowed_tools'}}", "tool_choice", "allowed_tools", 400},
        {SERVER_CHAT,
         "{" TOOLS ", 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': 'none', 'tools': []}}}",
         "tool_choice", "mode|'none'", 400},
        {SERVER_CHAT,
         "{" TOOLS ", 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto', 'tools': []}}}",
         "tool_choice", "at least one", 400},
        {SERVER_CHAT,
         "{" TOOLS ", 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto', 'tools': [{'type': "
         "'function', 'function': {'name': 'i'}}]}}}",
         "tool_choice", "one of the tools|'i'", 400},
        {SERVER_CHAT, "{'messages': [], 'verbosity': 'low'}", "verbosity", "not supported|medium", 400},
        {SERVER_CHAT, "{'messages': [], 'prompt_cache_key': 1}", "prompt_cache_key", "a string", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'safety_identifier': 's'}", "safety_identifier", "not known", 400},
        {SERVER_CHAT, "{'messages': {}}", "messages", "found an object", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'a b', 'content': 'x'}]}", "messages[0].role", "letters", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': [{'type': 'image_url'}]}]}", "messages[0].content",
         "image_url", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x', 'tool_calls': 1}]}", "messages[0].tool_calls",
         "array|found 1", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'tool_calls': [{'function': {'name': 'f', 'arguments': '[]'}}]}]}",
         "messages[0].tool_calls", "JSON object", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'tool_calls': [{'function': {'name': 'f', 'arguments': '{a}'}}]}]}",
         "messages[0].tool_calls", "JSON object", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': null}]}", "messages[0].content", "found null", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x', 'tool_call_id': 1}]}", "messages[0].tool_call_id",
         "a string", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'assistant', 'content': null}]}", "messages[0].content", "found null",
         400},
        {SERVER_CHAT, "{'messages': [{'role': 'user', 'content': null, 'tool_calls': []}]}", "messages[0].content",
         "found null", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'user', 'content': []}]}", "messages[0].content", "an array of 0", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'user', 'content': 'x', 'images': []}]}", "messages[0].images",
         "not supported", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'user', 'content': 'x', 'parsed': {}}]}", "messages[0].parsed",
         "not supported", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x', 'audio': {}}]}", "messages[0].audio",
         "tool_call_id|reasoning_content", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x'}], 'tools': [1]}", "tools[0]", "an object", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x'}], 'tool_choice': 'required'}", "tool_choice",
         "only with tools", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x'}], 'parallel_tool_calls': 1}", "parallel_tool_calls",
         "true or false", 400},
        {SERVER_CHAT,
         "{'messages': [{'role': 'u', 'content': 'x'}], 'ignore_eos': true, 'tool_choice': 'required', 'tools': "
         "[{'type': "
         "'function', 'function': {'name': 'f'}}]}",
         "ignore_eos", "required", 400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x'}], 'functions': [1]}", "functions", "not supported",
         400},
        {SERVER_CHAT, "{'messages': [{'role': 'u', 'content': 'x'}], 'response_format': {'type': 'json_schema'}}",
         "response_format", "json_schema|found nothing", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'response_format': {'type': 'xml'}}", "response_format",
         "json_object|found 'xml'", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'response_format': {'type': 'json_object', 'json_schema': {}}}",
         "response_format", "json_schema", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'response_format': {'type': 'json_schema', 'json_schema': {'schema': 1}}}",
         "response_format", "json_schema.schema|found 1", 400},
        {SERVER_COMPLETION,
         "{'prompt': 'x', 'response_format': {'type': 'json_schema', 'json_schema': {'schema': {}, 'strict': 'x'}}}",
         "response_format", "json_schema.strict", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'guided_regex': 'a', 'guided_choice': ['b']}", "guided_choice",
         "guided_regex|both", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'structured_outputs': {}}", "structured_outputs", "json, regex", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'structured_outputs': {'grammar': 'a'}}", "structured_outputs", "grammar",
         400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'structured_outputs': {'regex': 'a', 'choice': ['a']}}",
         "structured_outputs", "both", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'length_penalty': 0.5}", "length_penalty", "set it to 1", 400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'guided_json': '{}', 'ignore_eos': true}", "ignore_eos", "guided_json",
         400},
        {SERVER_COMPLETION, "{'prompt': 'x', 'guided_json': 5}", "guided_json", "JSON Schema", 400},
        {SERVER_TOKENIZE, "{'prompt': ['x']}", "prompt", "a string", 400},
        {SERVER_TOKENIZE, "{'prompt': 'x', 'add_generation_prompt': true}", "messages", "only with messages", 400},
        {SERVER_TOKENIZE, "{'messages': [{'role': 'u', 'content': 'x'}], 'add_special_tokens': true}",
         "add_special_tokens", "template", 400},
        {SERVER_EMBEDDING, "{'model': 'm'}", "input", "expected this field", 400},
        {SERVER_EMBEDDING, "{'input': []}", "input", "1 to 2048 inputs", 400},
        {SERVER_EMBEDDING, "{'input': {'text': 'x'}}", "input", "a string", 400},
        {SERVER_EMBEDDING, "{'input': ['x', 7]}", "input", "found 7", 400},
        {SERVER_EMBEDDING, "{'input': 'x', 'encoding_format': 'hex'}", "encoding_format", "base64|'hex'", 400},
        {SERVER_EMBEDDING, "{'input': 'x', 'dimensions': 0}", "dimensions", "integer from 1", 400},
        {SERVER_EMBEDDING, "{'input': 'x', 'temperature': 1}", "temperature", "not known", 400},
        {SERVER_DETOKENIZE, "{'tokens': 'x'}", "tokens", "array of token ids", 400},
        {SERVER_DETOKENIZE, "{'tokens': [], 'prompt': 'x'}", "prompt", "not known", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        if (read_text(cases[i].endpoint, test_json(cases[i].text))) fail_msg("accepted: %s", cases[i].text);
        assert_string_equal(error.param, cases[i].param);
        assert_int_equal(error.http, cases[i].http);
        snprintf(status.message, sizeof status.message, "%s", error.message);
        test_expect_message(&status, test_json(cases[i].words));
        server_request_free(&request);
    }
}

/* Names that a client has made up: long, and cut within a character. */
TEST(test_unknown_names)
{
    char text[512];
    snprintf(text, sizeof text, "{\"prompt\": \"x\", \"%090d\xc3\xa9\": 1}", 7);
    assert_false(read_text(SERVER_COMPLETION, text));
    assert_int_equal(strlen(error.param), 92);
    server_request_free(&request);
    snprintf(text, sizeof text, "{\"prompt\": \"x\", \"%094d\xc3\xa9\": 1}", 7);
    assert_false(read_text(SERVER_COMPLETION, text));
    assert_int_equal(error.param[94], '?');
    server_request_free(&request);
}

TEST(test_number_of_values)
{
    enum { COUNT = 500001 };
    char *text = malloc(2 * COUNT + 64);
    assert_non_null(text);
    for (int strings = 0; strings < 2; strings++) {
        size_t size = (size_t)sprintf(text, strings ? "{\"prompt\":\"" : "{\"prompt\":[1");
        for (int i = 0; i < COUNT; i++) size += (size_t)sprintf(text + size, ",1");
        size += (size_t)sprintf(text + size, strings ? "\"}" : "]}");
        error = (struct server_error){0};
        assert_int_equal(server_request_read(SERVER_COMPLETION, text, size, &request, &error), strings);
        assert_int_equal(error.http, strings ? 0 : 413);
        server_request_free(&request);
    }
    free(text);
}

int main(void) { return test_run(); }
