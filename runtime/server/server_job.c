/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "formats/cli/cli_process.h"
#include "runtime/server/server_chat.h"
#include "runtime/server/server_composed.h"
#include "runtime/server/server_reasoning.h"

enum {
    /* of one request, in numbers of 8 bytes: 32 MiB, twice as much while a list grows, and in JSON several times as much */
    MOST_LOGPROBS = 4 << 20,
    TOKEN_NUMBERS = sizeof(struct server_logprob) / 8,
    /* numbers of one request: 16 MiB, and in JSON about three times as much */
    MOST_EMBEDDED = 4 << 20
};
enum { COMPLETION_NEW_TOKENS = 16 }; /* as OpenAI's API has it */

/* ---- tokens of prompts ---- */

static const char *prompt_field(const struct server_request *request)
{
    if (request->endpoint == SERVER_EMBEDDING) return "input";
    return request->is_chat ? "messages" : "prompt";
}

static enum eng_status convert(const struct eng_engine *engine, const struct server_request *request,
                               const struct server_prompt *prompt, int32_t *tokens, size_t capacity, size_t *count,
                               struct eng_error *error)
{
    if (request->is_chat) return eng_chat_tokens(engine, request->variables, NULL, 0, tokens, capacity, count, error);
    return eng_tokenize(engine, prompt->text, prompt->size, request->add_special ? ENG_TEXT_ADD_SPECIAL : 0, tokens,
                        capacity, count, error);
}

/* A template may refuse an effort itself; its message then names the variable. */
static bool fail_prompt(const struct server_request *request, const struct eng_error *cause, struct server_error *error)
{
    server_fail_eng(error, prompt_field(request), cause);
    if (!request->effort || !strstr(error->message, "reasoning_effort")) return false;
    const struct server_error found = *error;
    return server_fail(error, found.http, "unsupported_parameter", "reasoning_effort",
                       "reasoning_effort: the chat template of this model refuses it: %s", found.message);
}

/* `cause`: as eng_chat_tokens gives it. */
static bool try_prompt(const struct eng_engine *engine, const struct server_request *request,
                       struct server_prompt *prompt, struct eng_error *cause, struct server_error *error)
{
    size_t size = request->is_chat ? strlen(request->variables) : prompt->size;
    size_t capacity = size / 2 + 64, count = 0;
    *cause = (struct eng_error){0};
    /* A prompt seldom has a token for every two bytes: then it is converted once more. */
    for (int attempt = 0; attempt < 2; attempt++) {
        free(prompt->tokens);
        prompt->tokens = malloc(capacity * sizeof *prompt->tokens);
        if (!prompt->tokens) return server_fail_memory(error);
        enum eng_status status = convert(engine, request, prompt, prompt->tokens, capacity, &count, cause);
        if (status == ENG_OK) {
            prompt->count = count;
            return true;
        }
        if (status != ENG_TOO_LONG || count <= capacity) break;
        capacity = count;
    }
    return fail_prompt(request, cause, error);
}

static bool tokenize_prompt(const struct eng_engine *engine, struct server_request *request,
                            struct server_prompt *prompt, struct server_error *error)
{
    struct eng_error cause;
    struct server_error other;
    if (try_prompt(engine, request, prompt, &cause, error)) return true;
    return cause.status == ENG_BAD_INPUT && request->is_chat && server_chat_text_arguments(&request->variables) &&
           try_prompt(engine, request, prompt, &cause, &other);
}

bool server_job_tokenize(const struct server_target *target, struct server_request *request, struct server_error *error)
{
    const struct eng_engine *engine = target->engine;
    /* Without a chat template that is the failure. */
    const bool has_template = request->is_chat && target->facts->has_chat;
    if (has_template && !server_reasoning_apply(&target->voice->dialect, request, error)) return false;
    for (size_t i = 0; i < request->prompt_count; i++)
        if (!request->prompts[i].tokens && !tokenize_prompt(engine, request, &request->prompts[i], error)) return false;
    return true;
}

bool server_job_check_tokens(const struct eng_engine_facts *facts, const struct server_prompt *prompt,
                             const char *param, struct server_error *error)
{
    for (size_t i = 0; i < prompt->count; i++)
        if (prompt->tokens[i] < 0 || (uint32_t)prompt->tokens[i] >= facts->vocab_size)
            return server_fail(error, 400, "invalid_value", param,
                               "%s: expected token ids below %" PRIu32 ", the size of the vocabulary, found %" PRId32,
                               param, facts->vocab_size, prompt->tokens[i]);
    return true;
}

static bool check_prompt(const struct server_target *target, const struct server_request *request,
                         const struct server_prompt *prompt, uint64_t max_new_tokens, struct server_error *error)
{
    const char *param = prompt_field(request);
    const uint32_t context = target->facts->max_context;
    const bool embeds = request->endpoint == SERVER_EMBEDDING, alone = embeds || request->no_answer;
    if (!prompt->count)
        return server_fail(error, 400, "invalid_value", param, "%s: expected at least one token, found none", param);
    if (target->max_prompt && prompt->count > target->max_prompt)
        return server_fail(error, 400, "context_length_exceeded", param,
                           "this server takes prompts of at most %" PRIu64 " tokens; %s has %zu; shorten it",
                           target->max_prompt, embeds ? "an input" : "the prompt", prompt->count);
    if (alone && prompt->count > context)
        return server_fail(error, 400, "context_length_exceeded", param,
                           "the context of this model is %" PRIu32 " tokens; %s has %zu; shorten it", context,
                           embeds ? "an input" : "the prompt", prompt->count);
    if (!alone && prompt->count + (max_new_tokens ? max_new_tokens : 1) > context)
        return server_fail(error, 400, "context_length_exceeded", param,
                           "the context of this model is %" PRIu32 " tokens; the prompt has %zu, and %" PRIu64
                           " are requested for the answer; shorten the prompt or ask for fewer tokens",
                           context, prompt->count, max_new_tokens ? max_new_tokens : 1);
    return server_job_check_tokens(target->facts, prompt, param, error);
}

bool server_job_detokenize(const struct eng_engine *engine, const int32_t *tokens, size_t count, uint32_t flags,
                           char **text, size_t *size, struct server_error *error)
{
    struct eng_error cause = {0};
    enum eng_status status = eng_detokenize(engine, tokens, count, flags, NULL, 0, size, &cause);
    if (status != ENG_OK && status != ENG_TOO_LONG) return server_fail_eng(error, "tokens", &cause);
    *text = malloc(*size + 1);
    if (!*text) return server_fail_memory(error);
    if (!eng_detokenize(engine, tokens, count, flags, *text, *size + 1, size, &cause)) return true;
    free(*text);
    *text = NULL;
    return server_fail_eng(error, "tokens", &cause);
}

/* ---- jobs ---- */

static bool check_biases(const struct eng_engine_facts *facts, const struct server_request *request,
                         struct server_error *error)
{
    for (uint32_t i = 0; i < request->bias_count; i++)
        if ((uint32_t)request->biases[i].token >= facts->vocab_size)
            return server_fail(error, 400, "invalid_value", "logit_bias",
                               "logit_bias: expected token ids below %" PRIu32
                               ", the size of the vocabulary, found %" PRId32,
                               facts->vocab_size, request->biases[i].token);
    return true;
}

/* The biases stay the request's. */
static bool choose_sampling(const struct eng_engine *engine, const struct eng_engine_facts *facts,
                            const struct server_request *request, struct eng_sampling *sampling,
                            struct server_error *error)
{
    struct eng_error cause = {0};
    if (!check_biases(facts, request, error)) return false;
    eng_sampling_init(sampling);
    if (eng_sampling_recommended(engine, sampling, &cause)) return server_fail_eng(error, NULL, &cause);
    if (request->temperature >= 0) sampling->temperature = (float)request->temperature;
    if (request->top_p >= 0) sampling->top_p = (float)request->top_p;
    if (request->repetition_penalty >= 0) sampling->repetition_penalty = (float)request->repetition_penalty;
    if (request->top_k >= 0) sampling->top_k = (uint32_t)request->top_k;
    sampling->min_p = (float)request->min_p;
    sampling->presence_penalty = (float)request->presence_penalty;
    sampling->frequency_penalty = (float)request->frequency_penalty;
    sampling->logit_bias = request->biases;
    sampling->logit_bias_count = request->bias_count;
    sampling->seed = request->seed;
    if (!request->seed_given && getrandom(&sampling->seed, sizeof sampling->seed, 0) != sizeof sampling->seed)
        return server_fail(error, 503, NULL, "seed", "the system gives no random seed; give one");
    return true;
}

/* A tokenizer's text may depend on the token before, as the space before a word does: the stream starts with the end of
 * the prompt. A chat's answer is a text of its own. */
static bool replay_prompt(struct server_choice *choice, const struct server_prompt *prompt, struct eng_error *error)
{
    enum { MOST_TOKENS = 64 };
    const char *text;
    size_t size, first = prompt->count > MOST_TOKENS ? prompt->count - MOST_TOKENS : 0;
    for (size_t i = first; i < prompt->count; i++)
        if (eng_text_push(choice->text, prompt->tokens[i], &text, &size, error)) return false;
    return true;
}

static bool add_echo(const struct eng_engine *engine, const struct server_request *request,
                     const struct server_prompt *prompt, struct server_choice *choice, struct server_error *error)
{
    char *owned = NULL;
    size_t size = prompt->size;
    if (!prompt->text &&
        !server_job_detokenize(engine, prompt->tokens, prompt->count, request->skip_special ? 0 : ENG_TEXT_KEEP_SPECIAL,
                               &owned, &size, error))
        return false;
    bool ok = server_buffer_add(&choice->out, owned ? owned : prompt->text, size) || server_fail_memory(error);
    if (ok) choice->characters = choice->released = server_count_characters(choice->out.data, choice->out.size);
    free(owned);
    return ok;
}

static bool prepare_choice(const struct eng_engine *engine, struct server_job *job, size_t index,
                           struct server_error *error)
{
    struct eng_error cause = {0};
    const struct server_request *request = &job->request;
    const struct server_prompt *prompt = &request->prompts[server_job_prompt_of(job, index)];
    struct server_choice *choice = &job->choices[index];
    choice->logprobs.top_count = (size_t)request->top_logprobs;
    choice->stop = (struct stop_strings){.strings = request->stops, .count = request->stop_count};
    if (request->endpoint == SERVER_EMBEDDING) return true;
    if (job->voice && job->voice->dialect.thought) server_job_begin_answer(job, &choice->reader);
    if (eng_text_create(engine, request->skip_special && !job->voice ? 0 : ENG_TEXT_KEEP_SPECIAL, &choice->text,
                        &cause) ||
        (!request->is_chat && !replay_prompt(choice, prompt, &cause)))
        return server_fail_eng(error, NULL, &cause);
    return !request->echo || add_echo(engine, request, prompt, choice, error);
}

static bool name_job(struct server_job *job, struct server_error *error)
{
    uint64_t number;
    struct timespec now;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return server_fail(error, 503, NULL, NULL, "the system gives no random numbers");
    static const char *const names[] = {"chatcmpl-", "msg_", "resp_"};
    const char *name = job->request.endpoint == SERVER_EMBEDDING ? "embd-"
                       : job->request.is_chat                    ? names[job->request.shape]
                                                                 : "cmpl-";
    snprintf(job->id, sizeof job->id, "%s%016" PRIx64, name, number);
    clock_gettime(CLOCK_REALTIME, &now);
    job->created = (int64_t)now.tv_sec;
    return true;
}

static bool check_logprobs(const struct eng_engine_facts *facts, const struct server_job *job,
                           struct server_error *error)
{
    const struct server_request *request = &job->request;
    /* None of the factors is large: 128 answers, 24 numbers, 2^32 tokens. */
    const uint64_t most = job->max_new_tokens ? job->max_new_tokens : facts->max_context,
                   tokens = request->no_answer ? 0 : most, choices = request->prompt_count * request->n;
    uint64_t prompts = 0;
    for (size_t i = 0; request->echo && i < request->prompt_count; i++)
        prompts += request->prompts[i].count * request->n;
    const uint64_t numbers = (choices * tokens + prompts) * (TOKEN_NUMBERS + request->top_logprobs);
    if (!request->wants_logprobs || numbers <= MOST_LOGPROBS) return true;
    return server_fail(error, 400, "invalid_value", "logprobs",
                       "logprobs: %" PRIu64 " answers of up to %" PRIu64 " tokens, and %" PRIu64
                       " tokens of prompts, with %d + %" PRIu64 " numbers each are %" PRIu64
                       ", expected at most %d; lower max_tokens, n or logprobs, or send fewer prompts at once",
                       choices, tokens, prompts, TOKEN_NUMBERS, request->top_logprobs, numbers, MOST_LOGPROBS);
}

/* Whether the engine has embeddings of this size, and the reply so many. */
static bool check_embeddings(const struct eng_engine_facts *facts, const struct server_request *request,
                             struct server_error *error)
{
    if (!facts->hidden_size)
        return server_fail(error, 400, "unsupported_endpoint", "model",
                           "model: its engine gives no hidden states, which embeddings are made of; build it with "
                           "engbuild --hidden");
    if (request->dimensions > facts->hidden_size)
        return server_fail(error, 400, "invalid_value", "dimensions",
                           "dimensions: expected at most %" PRIu32
                           ", the size of this model's embeddings, found %" PRIu64,
                           facts->hidden_size, request->dimensions);
    const uint64_t width = request->dimensions ? request->dimensions : facts->hidden_size;
    if (request->prompt_count * width <= MOST_EMBEDDED) return true;
    return server_fail(error, 400, "invalid_value", "input",
                       "input: expected at most %" PRIu64 " inputs of %" PRIu64
                       " numbers, found %zu; send fewer at once",
                       MOST_EMBEDDED / width, width, request->prompt_count);
}

/* Answers in a format are content as they are, unless they may be calls, and so are those of engines without tools and reasoning. */
static bool choose_voice(const struct server_voice *voice, struct server_job *job, struct server_error *error)
{
    struct server_request *request = &job->request;
    if (server_tools_are_active(&request->tools) && !voice->dialect.name)
        return server_fail(error, 400, "unsupported_parameter", "tools",
                           "tools: the chat template of this model shows no tools; leave them out");
    if (server_tools_are_forced(&request->tools)) {
        server_format_free(&request->format); /* of a text, which there is none */
        return server_tools_format(&request->tools, &request->format, error);
    }
    job->is_bound = request->format.field && server_tools_are_active(&request->tools);
    job->is_json = request->format.kind == ENG_GRAMMAR_JSON_SCHEMA || request->format.kind == ENG_GRAMMAR_JSON_OBJECT;
    if (request->is_chat && (!request->format.field || job->is_bound) &&
        (voice->dialect.thought || voice->dialect.name))
        job->voice = voice;
    return !job->is_bound || server_composed_format(&voice->dialect, &request->tools, &request->format, error);
}

static bool fill(const struct server_target *target, struct server_job *job, struct server_error *error)
{
    const struct eng_engine *engine = target->engine;
    const struct eng_engine_facts *facts = target->facts;
    struct server_request *request = &job->request;
    if (!choose_voice(target->voice, job, error)) return false;
    if (request->format.field &&
        !server_grammars_take(target->grammars, engine, &request->format, &job->grammar, error))
        return false;
    const bool embeds = request->endpoint == SERVER_EMBEDDING;
    if (embeds && !check_embeddings(facts, request, error)) return false;
    uint64_t most = embeds || request->no_answer ? 1 : server_request_max_tokens(request);
    if (!most && !request->is_chat) most = COMPLETION_NEW_TOKENS;
    job->max_new_tokens = (uint32_t)most;
    if (!server_job_tokenize(target, request, error) || !check_logprobs(facts, job, error) ||
        !choose_sampling(engine, facts, request, &job->sampling, error) || !name_job(job, error))
        return false;
    for (size_t i = 0; i < request->prompt_count; i++) {
        if (!check_prompt(target, request, &request->prompts[i], most, error)) return false;
        job->prompt_tokens += request->prompts[i].count;
    }
    if (job->voice)
        job->in_thought =
            server_voice_is_in_thought(job->voice, engine, request->prompts->tokens, request->prompts->count);
    job->choices = calloc(request->prompt_count * request->n, sizeof *job->choices);
    if (!job->choices) return server_fail_memory(error);
    job->choice_count = request->prompt_count * request->n;
    for (size_t i = 0; i < job->choice_count; i++)
        if (!prepare_choice(engine, job, i, error)) return false;
    return server_request_shrink(request) || server_fail_memory(error);
}

bool server_job_create(const struct server_target *target, struct server_request *request, struct server_job **job,
                       struct server_error *error)
{
    struct server_job *made = calloc(1, sizeof *made);
    if (!made) return server_fail_memory(error);
    made->request = *request;
    made->arrival = cli_seconds();
    made->references = 1;
    *request = (struct server_request){0};
    if (!fill(target, made, error)) {
        server_job_free(made);
        return false;
    }
    *job = made;
    return true;
}

void server_job_free(struct server_job *job)
{
    for (size_t i = 0; i < job->choice_count; i++) {
        eng_text_destroy(&job->choices[i].text);
        server_answer_free(&job->choices[i].reader);
        stop_strings_free(&job->choices[i].stop);
        server_buffer_free(&job->choices[i].out);
        server_logprobs_free(&job->choices[i].logprobs);
    }
    free(job->choices);
    server_grammars_give_back(job->grammar);
    server_request_free(&job->request);
    free(job);
}

size_t server_job_prompt_of(const struct server_job *job, size_t choice) { return choice / job->request.n; }

uint64_t server_job_tokens(const struct server_job *job, uint64_t *reasoning)
{
    uint64_t tokens = 0;
    *reasoning = 0;
    for (size_t i = 0; i < job->choice_count; i++) {
        tokens += job->choices[i].tokens;
        *reasoning += job->choices[i].reasoning_tokens;
    }
    return tokens;
}

uint64_t server_job_cached_tokens(const struct server_job *job)
{
    uint64_t tokens = 0;
    /* Further choices of a prompt find it as the first one has left it. */
    for (size_t i = 0; i < job->choice_count; i += job->request.n) tokens += job->choices[i].cached_tokens;
    return tokens;
}

bool server_job_is_cut(const struct server_choice *choice)
{
    return choice->finish == SERVER_FINISH_LENGTH || choice->stop.found || choice->at_own_token;
}

void server_job_begin_answer(const struct server_job *job, struct server_answer *answer)
{
    const struct server_tools *tools = &job->request.tools;
    server_answer_begin(answer, job->voice ? &job->voice->dialect : NULL, server_tools_are_active(tools) ? tools : NULL,
                        job->in_thought);
    if (job->is_bound) server_answer_bind(answer, job->is_json);
}

bool server_job_divide(const struct server_job *job, size_t choice, struct server_parts *parts, size_t *calls)
{
    struct server_answer answer;
    const struct server_choice *divided = &job->choices[choice];
    const struct server_buffer *text = &divided->out;
    server_job_begin_answer(job, &answer);
    bool ok = server_answer_push(&answer, text->data, text->size, parts) &&
              server_answer_finish(&answer, server_job_is_cut(divided), parts);
    *calls = server_answer_calls(&answer);
    server_answer_free(&answer);
    return ok;
}
