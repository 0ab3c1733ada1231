/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of HTTP requests: any bytes are refused with a message and a status of HTTP, or give a request within its limits.
 * The first byte selects the endpoint, and what a chat template has for reasoning. */
#include "runtime/server/server_input.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/server/server_reasoning.h"

#include "tests/fuzz/fuzz.h"

static void check_options(const struct server_request *request)
{
    const struct server_format *format = &request->format;
    require(request->min_p >= 0 && request->min_p <= 1);
    require(request->presence_penalty >= -2 && request->presence_penalty <= 2);
    require(request->frequency_penalty >= -2 && request->frequency_penalty <= 2);
    require(request->bias_count <= ENG_MAX_LOGIT_BIASES);
    for (uint32_t i = 0; i < request->bias_count; i++)
        require(request->biases[i].token >= 0 && request->biases[i].bias >= -100 && request->biases[i].bias <= 100);
    require(request->top_logprobs <= (request->wants_logprobs ? ENG_MAX_LOGPROBS : 0));
    require(!request->no_answer || (request->echo && request->n == 1));
    require(!request->is_mean || request->endpoint == SERVER_EMBEDDING);
    require(format->field ? !request->ignore_eos : !format->text);
    require(!format->text || strlen(format->text) == format->size);
}

static void check_request(const struct server_request *request)
{
    require(request->n >= 1 && request->prompt_count >= 1);
    require(request->prompt_count * request->n <=
            (request->endpoint == SERVER_EMBEDDING ? SERVER_MOST_INPUTS : SERVER_MOST_CHOICES));
    require(request->endpoint == SERVER_EMBEDDING || (!request->is_base64 && !request->dimensions));
    require(request->is_chat == (request->variables != NULL));
    require(request->stop_count <= SERVER_MOST_STOPS && request->stop_token_count < ENG_MAX_STOP_TOKENS);
    for (size_t i = 0; i < request->stop_count; i++)
        require(request->stops[i][0] && strlen(request->stops[i]) <= SERVER_MOST_STOP_BYTES);
    for (size_t i = 0; i < request->prompt_count; i++) {
        const struct server_prompt *prompt = &request->prompts[i];
        require(!!prompt->text + !!prompt->tokens == (request->is_chat ? 0 : 1));
        for (size_t t = 0; t < prompt->count; t++) require(prompt->tokens[t] >= 0);
        require(!prompt->text || strlen(prompt->text) == prompt->size);
    }
    require(request->temperature == -1 || request->temperature >= 0);
    require(request->top_p == -1 || (request->top_p > 0 && request->top_p <= 1));
    require(request->repetition_penalty == -1 || request->repetition_penalty > 0);
    require(server_request_max_tokens(request) <= INT32_MAX);
    check_options(request);
}

/* Nodes of a JSON tree: a byte of text may be one. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 20, .base_bytes = 256 << 10, .bytes_per_byte = 512};

static void check_tools(const struct server_request *request)
{
    const struct server_tools *tools = &request->tools;
    struct server_format format = {0};
    struct server_error error = {0};
    require(tools->list || tools->choice == SERVER_TOOLS_AUTO || tools->choice == SERVER_TOOLS_NONE);
    require((tools->named != NULL) == (tools->choice == SERVER_TOOLS_NAMED));
    if (!server_tools_are_forced(tools)) return;
    require(server_tools_format(tools, &format, &error) && strlen(format.text) == format.size);
    server_format_free(&format);
}

/* The variables of a chat, owned, with those of its reasoning; NULL: no chat, or an effort that is refused. */
static char *add_reasoning(const char *template_text, struct server_request *request)
{
    struct server_dialect dialect;
    struct server_error error = {0};
    if (!request->is_chat) return NULL;
    server_dialect_find(template_text, &dialect);
    if (server_reasoning_apply(&dialect, request, &error)) return strdup(request->variables);
    require(error.http == 400 && error.message[0] && (request->effort || request->thinking != SERVER_THINKING_FREE));
    return NULL;
}

/* No variable is there twice. */
static void check_variables(const char *variables)
{
    json_t *read = json_loads(variables, JSON_REJECT_DUPLICATES, NULL);
    require(json_array_size(json_object_get(read, "messages")));
    json_decref(read);
}

int fuzz_try(const uint8_t *data, size_t size)
{
    static const struct {
        enum server_shape shape;
        enum server_endpoint endpoint;
        bool counts;
    } kinds[] = {{SERVER_OPENAI, SERVER_CHAT, false},     {SERVER_OPENAI, SERVER_COMPLETION, false},
                 {SERVER_OPENAI, SERVER_TOKENIZE, false}, {SERVER_OPENAI, SERVER_DETOKENIZE, false},
                 {SERVER_MESSAGES, SERVER_CHAT, false},   {SERVER_MESSAGES, SERVER_CHAT, true},
                 {SERVER_RESPONSES, SERVER_CHAT, false},  {SERVER_OPENAI, SERVER_EMBEDDING, false}};
    static const char *const templates[] = {"{{ enable_thinking }}{{ reasoning_effort }}</think>'none'", "",
                                            "{{ enable_thinking }}", "{{ reasoning_effort }}</think>"};
    struct server_request request;
    struct server_error error = {0};
    char *variables = NULL;
    if (!size) return 0;
    const size_t kind = data[0] % 8 % (sizeof kinds / sizeof *kinds);
    if (server_input_read(kinds[kind].shape, kinds[kind].endpoint, kinds[kind].counts, (const char *)data + 1, size - 1,
                          &request, &error)) {
        check_request(&request);
        check_tools(&request);
        require((request.echo_body != NULL) == (kinds[kind].shape == SERVER_RESPONSES));
        variables = add_reasoning(templates[data[0] / 8 % (sizeof templates / sizeof *templates)], &request);
    } else {
        require(error.http >= 400 && error.http < 500 && error.message[0]);
    }
    server_request_free(&request);
    if (variables) check_variables(variables);
    free(variables);
    return 0;
}
