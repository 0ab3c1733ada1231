/* SPDX-License-Identifier: Apache-2.0 */
/* What the server answers at each path. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/cli/cli_process.h"
#include "runtime/server/server_embeddings.h"
#include "runtime/server/server_exchange.h"
#include "runtime/server/server_input.h"
#include "runtime/server/server_page.h"

static unsigned reply(struct server_exchange *exchange, bool ok)
{
    if (ok) return MHD_HTTP_OK;
    server_fail_memory(&exchange->error);
    return 0;
}

/* ---- about the server ---- */

static unsigned answer_page(struct server_exchange *exchange, struct server_buffer *out)
{
    exchange->policy = server_page_policy;
    return reply(exchange, server_buffer_add(out, server_page, server_page_bytes));
}

static unsigned answer_health(struct server_exchange *exchange, struct server_buffer *out)
{
    const struct server_options *options = &exchange->server->options;
    if (atomic_load(&exchange->server->draining)) {
        server_fail(&exchange->error, 503, "shutting_down", NULL, "the server is shutting down");
        return 0;
    }
    for (size_t i = 0; i < options->model_count; i++)
        if (!server_model_is_healthy(options->models[i], &exchange->error)) return 0;
    return reply(exchange, server_buffer_text(out, "{\"status\":\"ok\"}"));
}

static unsigned answer_models(struct server_exchange *exchange, struct server_buffer *out)
{
    const struct server *server = exchange->server;
    return reply(exchange,
                 server_reply_models(server->options.models, server->options.model_count, server->created, out));
}

/* The named model; without a name the only one. NULL: exchange->error is set. */
static struct server_model *find_model(struct server_exchange *exchange, const char *name)
{
    const struct server_options *options = &exchange->server->options;
    if (!name && options->model_count == 1) return options->models[0];
    for (size_t i = 0; name && i < options->model_count; i++)
        if (strcmp(server_model_name(options->models[i]), name) == 0) return options->models[i];
    if (name)
        server_fail(&exchange->error, 404, "model_not_found", "model",
                    "model '%.128s' does not exist; GET /v1/models lists those that do", name);
    else
        server_fail(&exchange->error, 400, "missing_required_parameter", "model",
                    "model: expected one of the %zu names that GET /v1/models lists, found nothing",
                    options->model_count);
    return NULL;
}

static unsigned answer_model(struct server_exchange *exchange, struct server_buffer *out)
{
    const struct server_model *model = find_model(exchange, exchange->path + strlen(exchange->route->path));
    return model ? reply(exchange, server_reply_model(model, exchange->server->created, out)) : 0;
}

static unsigned answer_slots(struct server_exchange *exchange, struct server_buffer *out)
{
    const struct server_options *options = &exchange->server->options;
    return reply(exchange, server_reply_slots(options->models, options->model_count, out));
}

static unsigned answer_metrics(struct server_exchange *exchange, struct server_buffer *out)
{
    const struct server_options *options = &exchange->server->options;
    struct server_metrics *metrics = calloc(options->model_count, sizeof *metrics);
    const char **names = calloc(options->model_count, sizeof *names);
    bool ok = metrics && names;
    for (size_t i = 0; ok && i < options->model_count; i++) {
        names[i] = server_model_name(options->models[i]);
        server_model_metrics(options->models[i], &metrics[i]);
    }
    ok = ok && server_metrics_print(metrics, names, options->model_count, out);
    free(metrics);
    free(names);
    return reply(exchange, ok);
}

/* ---- tokens ---- */

static unsigned answer_tokens(struct server_exchange *exchange, enum server_endpoint endpoint,
                              struct server_buffer *out)
{
    struct server_request request;
    struct server_error *error = &exchange->error;
    struct server_model *model = NULL;
    char *text = NULL;
    size_t size;
    bool ok = server_request_read(endpoint, exchange->body.data ? exchange->body.data : "", exchange->body.size,
                                  &request, error);
    if (ok) model = find_model(exchange, request.model);
    ok = model != NULL;
    if (ok && endpoint == SERVER_TOKENIZE) {
        ok = server_job_tokenize(server_model_target(model), &request, error) &&
             (server_reply_tokens(request.prompts, server_model_facts(model)->max_context, out) ||
              server_fail_memory(error));
    } else if (ok) {
        const struct server_prompt *prompt = request.prompts;
        ok = server_job_check_tokens(server_model_facts(model), prompt, "tokens", error) &&
             server_job_detokenize(server_model_engine(model), prompt->tokens, prompt->count, ENG_TEXT_KEEP_SPECIAL,
                                   &text, &size, error) &&
             (server_reply_text(text, size, out) || server_fail_memory(error));
    }
    free(text);
    server_request_free(&request);
    return ok ? MHD_HTTP_OK : 0;
}

static unsigned answer_tokenize(struct server_exchange *exchange, struct server_buffer *out)
{
    return answer_tokens(exchange, SERVER_TOKENIZE, out);
}

static unsigned answer_detokenize(struct server_exchange *exchange, struct server_buffer *out)
{
    return answer_tokens(exchange, SERVER_DETOKENIZE, out);
}

/* ---- answers of models ---- */

/* Requires: the lock of the model is held, and the exchange is suspended. */
static void resume(struct server_exchange *exchange)
{
    exchange->is_suspended = false;
    MHD_resume_connection(exchange->connection);
    server_thread_wake(exchange->thread);
}

/* Called with the lock of the model held. */
static void wake(void *context)
{
    struct server_exchange *exchange = context;
    if (!exchange->is_suspended) return;
    if (exchange->is_streaming ? !server_stream_has_news(&exchange->stream, exchange->job) : !exchange->job->done)
        return;
    resume(exchange);
}

bool server_exchange_wait(struct server_exchange *exchange)
{
    server_model_lock(exchange->model);
    bool wait =
        exchange->is_streaming ? !server_stream_has_news(&exchange->stream, exchange->job) : !exchange->job->done;
    if (wait) {
        exchange->is_suspended = true;
        atomic_store(&exchange->quiet_since, cli_seconds());
        MHD_suspend_connection(exchange->connection);
    }
    server_model_unlock(exchange->model);
    return wait;
}

void server_exchange_abandon(void *context)
{
    struct server_exchange *exchange = context;
    atomic_store(&exchange->job->abandoned, true);
}

void server_exchange_ping(void *context, double now)
{
    struct server_exchange *exchange = context;
    const double since = atomic_load(&exchange->quiet_since);
    if (!exchange->is_streaming || since == 0 || now - since < exchange->server->options.ping) return;
    server_model_lock(exchange->model);
    if (exchange->is_suspended) {
        atomic_store(&exchange->ping_is_due, true);
        resume(exchange);
    }
    server_model_unlock(exchange->model);
}

static bool submit(struct server_exchange *exchange, struct server_request *request)
{
    struct server_error *error = &exchange->error;
    struct server_model *model = find_model(exchange, request->model);
    struct server_job *job = NULL;
    const bool is_stream = request->stream;
    if (!model || !server_job_create(server_model_target(model), request, &job, error)) return false;
    bool ok = !is_stream || server_stream_open(&exchange->stream, job) || server_fail_memory(error);
    job->wake = wake;
    job->context = exchange;
    exchange->is_streaming = is_stream;
    exchange->job = job;
    exchange->model = model;
    if (!ok || !server_model_submit(model, job, error)) {
        exchange->job = NULL;
        server_job_free(job);
        return false;
    }
    server_peer_wait(exchange->server->peers, exchange->peer, exchange);
    return true;
}

static bool read_request(struct server_exchange *exchange, enum server_endpoint endpoint, bool counts,
                         struct server_request *request)
{
    const struct server_buffer *body = &exchange->body;
    return server_input_read(exchange->shape, endpoint, counts, body->data ? body->data : "", body->size, request,
                             &exchange->error);
}

static unsigned begin_answer(struct server_exchange *exchange, enum server_endpoint endpoint)
{
    struct server_request request;
    if (atomic_load(&exchange->server->draining)) {
        server_fail(&exchange->error, 503, "shutting_down", NULL, "the server is shutting down");
        return 0;
    }
    bool ok = read_request(exchange, endpoint, false, &request);
    if (ok && !submit(exchange, &request)) {
        server_input_rename(exchange->shape, &exchange->error);
        ok = false;
    }
    server_request_free(&request);
    return ok ? SERVER_LATER : 0;
}

static unsigned answer_generation(struct server_exchange *exchange, enum server_endpoint endpoint,
                                  struct server_buffer *out)
{
    if (!exchange->job && begin_answer(exchange, endpoint) != SERVER_LATER) return 0;
    if (exchange->is_streaming || server_exchange_wait(exchange)) return SERVER_LATER;
    if (exchange->job->failure.http) {
        exchange->error = exchange->job->failure;
        return 0;
    }
    const char *model = server_model_name(exchange->model);
    if (endpoint == SERVER_EMBEDDING) return reply(exchange, server_embeddings_reply(model, exchange->job, out));
    switch (exchange->shape) {
    case SERVER_MESSAGES: return reply(exchange, server_messages_reply(model, exchange->job, out));
    case SERVER_RESPONSES:
        return reply(exchange, server_responses_reply(model, server_model_engine(exchange->model), exchange->job, out));
    default: return reply(exchange, server_reply_job(model, server_model_engine(exchange->model), exchange->job, out));
    }
}

static bool print_count(enum server_shape shape, uint64_t tokens, struct server_buffer *out)
{
    return shape == SERVER_MESSAGES ? server_messages_count(tokens, out) : server_responses_count(tokens, out);
}

static unsigned answer_count(struct server_exchange *exchange, struct server_buffer *out)
{
    struct server_request request;
    const struct server_model *model = NULL;
    bool ok = read_request(exchange, SERVER_CHAT, true, &request);
    if (ok && !((model = find_model(exchange, request.model)) &&
                server_job_tokenize(server_model_target(model), &request, &exchange->error) &&
                (print_count(exchange->shape, request.prompts->count, out) || server_fail_memory(&exchange->error)))) {
        server_input_rename(exchange->shape, &exchange->error);
        ok = false;
    }
    server_request_free(&request);
    return ok ? MHD_HTTP_OK : 0;
}

static unsigned answer_chat(struct server_exchange *exchange, struct server_buffer *out)
{
    return answer_generation(exchange, SERVER_CHAT, out);
}

static unsigned answer_completion(struct server_exchange *exchange, struct server_buffer *out)
{
    return answer_generation(exchange, SERVER_COMPLETION, out);
}

static unsigned answer_embeddings(struct server_exchange *exchange, struct server_buffer *out)
{
    return answer_generation(exchange, SERVER_EMBEDDING, out);
}

/* ---- the table ---- */

#define JSON_TYPE "application/json"

static const struct server_route routes[] = {
    {"/", "GET", true, answer_page, "text/html; charset=utf-8"},
    {"/health", "GET", true, answer_health, JSON_TYPE},
    {"/metrics", "GET", false, answer_metrics, "text/plain; version=0.0.4; charset=utf-8"},
    {"/slots", "GET", false, answer_slots, JSON_TYPE},
    {"/v1/models", "GET", false, answer_models, JSON_TYPE},
    {"/v1/models/", "GET", false, answer_model, JSON_TYPE},
    {"/v1/chat/completions", "POST", false, answer_chat, JSON_TYPE},
    {"/v1/completions", "POST", false, answer_completion, JSON_TYPE},
    {"/v1/messages", "POST", false, answer_chat, JSON_TYPE},
    {"/v1/messages/count_tokens", "POST", false, answer_count, JSON_TYPE},
    {"/v1/responses", "POST", false, answer_chat, JSON_TYPE},
    {"/v1/responses/input_tokens", "POST", false, answer_count, JSON_TYPE},
    {"/v1/embeddings", "POST", false, answer_embeddings, JSON_TYPE},
    {"/tokenize", "POST", false, answer_tokenize, JSON_TYPE},
    {"/detokenize", "POST", false, answer_detokenize, JSON_TYPE},
};

const struct server_route *server_find_route(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const size_t size = strlen(routes[i].path);
        const bool is_beginning = size > 1 && routes[i].path[size - 1] == '/';
        if (is_beginning ? strncmp(path, routes[i].path, size) == 0 && path[size] : strcmp(path, routes[i].path) == 0)
            return &routes[i];
    }
    return NULL;
}

void server_list_paths(char text[SERVER_PATHS_BYTES])
{
    int used = 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes && used < SERVER_PATHS_BYTES; i++)
        used += snprintf(text + used, (size_t)(SERVER_PATHS_BYTES - used), "%s%s %s", i ? ", " : "", routes[i].method,
                         routes[i].path);
}

enum server_shape server_shape_of(const char *path)
{
    static const char messages[] = "/v1/messages", responses[] = "/v1/responses";
    if (strncmp(path, messages, sizeof messages - 1) == 0) return SERVER_MESSAGES;
    return strncmp(path, responses, sizeof responses - 1) == 0 ? SERVER_RESPONSES : SERVER_OPENAI;
}
