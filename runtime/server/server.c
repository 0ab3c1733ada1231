/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "formats/cli/cli_process.h"
#include "runtime/server/server_exchange.h"

/* A request must arrive within this time, and the next one on the same connection, however slowly. */
enum { RECEIVE_SECONDS = 30 };
/* Bodies of all requests that are being received or answered, as a multiple of the largest. A request that waits keeps at
 * most twice its body. */
enum { MOST_BODIES = 32 };
enum { CONNECTION_MEMORY_BYTES = 32 << 10, STREAM_BLOCK_BYTES = 16 << 10 };

static bool is_post(const struct server_route *route) { return route->method[0] == 'P'; }

/* ---- replies ---- */

static enum MHD_Result add_headers(const struct server_exchange *exchange, struct MHD_Response *response,
                                   const char *content_type)
{
    enum MHD_Result ok = MHD_add_response_header(response, "Content-Type", content_type);
    if (ok && exchange->http == 401) ok = MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (ok) ok = MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (ok && exchange->policy) {
        ok = MHD_add_response_header(response, "Content-Security-Policy", exchange->policy);
        if (ok) ok = MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
        /* The page and the rest of the server are of one version. */
        if (ok) ok = MHD_add_response_header(response, "Cache-Control", "no-cache");
    }
    if (ok && exchange->http == 405)
        ok = MHD_add_response_header(response, "Allow", is_post(exchange->route) ? "POST" : "GET, HEAD");
    if (ok && (exchange->http == 429 || exchange->http == 503))
        ok = MHD_add_response_header(response, "Retry-After", "1");
    return ok;
}

/* Takes the contents of `out`. */
static enum MHD_Result queue_reply(struct server_exchange *exchange, const char *content_type,
                                   struct server_buffer *out)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(out->size, out->data, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        server_buffer_free(out);
        return MHD_NO;
    }
    enum MHD_Result ok = add_headers(exchange, response, content_type);
    if (ok) ok = MHD_queue_response(exchange->connection, exchange->http, response);
    MHD_destroy_response(response);
    return ok;
}

static enum MHD_Result reply_error(struct server_exchange *exchange)
{
    struct server_buffer out = {0};
    exchange->http = exchange->error.http;
    if (server_reply_error(&exchange->error, exchange->shape, &out))
        return queue_reply(exchange, "application/json", &out);
    server_buffer_free(&out);
    return MHD_NO;
}

/* Gives the library the next bytes of a stream. */
static ssize_t read_stream(void *context, uint64_t position, char *to, size_t capacity)
{
    struct server_exchange *exchange = context;
    struct server_buffer *events = &exchange->events;
    (void)position;
    if (exchange->sent == events->size) {
        events->size = exchange->sent = 0;
        const bool ping = atomic_exchange(&exchange->ping_is_due, false);
        bool ok = server_stream_next(&exchange->stream, exchange->model, exchange->job, events);
        if (ok && ping && !events->size && !exchange->stream.finished)
            ok = server_stream_ping(exchange->job->request.shape, events);
        if (!ok) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (events->size) {
        size_t size = events->size - exchange->sent;
        if (size > capacity) size = capacity;
        memcpy(to, events->data + exchange->sent, size);
        exchange->sent += size;
        return (ssize_t)size;
    }
    if (exchange->stream.finished) return MHD_CONTENT_READER_END_OF_STREAM;
    server_exchange_wait(exchange);
    return 0;
}

static enum MHD_Result queue_stream(struct server_exchange *exchange)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, exchange, NULL);
    if (!response) return MHD_NO;
    exchange->http = MHD_HTTP_OK;
    enum MHD_Result ok = add_headers(exchange, response, "text/event-stream; charset=utf-8");
    if (ok) ok = MHD_add_response_header(response, "Cache-Control", "no-cache");
    if (ok) ok = MHD_queue_response(exchange->connection, exchange->http, response);
    MHD_destroy_response(response);
    return ok;
}

static enum MHD_Result answer(struct server_exchange *exchange)
{
    struct server_buffer out = {0};
    const struct server_route *route = exchange->route;
    if (exchange->error.http) return reply_error(exchange);
    const unsigned http = route->answer(exchange, &out);
    if (http == SERVER_LATER) return exchange->is_streaming ? queue_stream(exchange) : MHD_YES;
    if (!http) {
        server_buffer_free(&out);
        return reply_error(exchange);
    }
    exchange->http = http;
    return queue_reply(exchange, route->content_type, &out);
}

/* ---- requests ---- */

static const char *header(const struct server_exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name);
}

/* A constant, for the log, which shall not hold what a client has made up. */
static const char *known_method(const char *method)
{
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i], method) == 0) return methods[i];
    return "OTHER";
}

static bool is_json(const char *type)
{
    static const char json[] = "application/json";
    const size_t size = sizeof json - 1;
    return type && strncasecmp(type, json, size) == 0 && (!type[size] || type[size] == ';' || type[size] == ' ');
}

/* The library would receive a body in another coding until the client closes the connection, and then answer nothing. */
static bool has_unknown_coding(const struct server_exchange *exchange)
{
    const char *coding = header(exchange, "Transfer-Encoding");
    return coding && strcasecmp(coding, "chunked") != 0;
}

/* Limits of lengths in headers: a text that is no number is the library's to refuse. */
static uint64_t declared_length(const struct server_exchange *exchange)
{
    const char *length = header(exchange, "Content-Length");
    return length ? strtoull(length, NULL, 10) : 0;
}

/* "Expect: 100-continue" without a body. */
static bool expects_no_body(const struct server_exchange *exchange)
{
    return header(exchange, "Expect") && !header(exchange, "Transfer-Encoding") && declared_length(exchange) == 0;
}

static bool fail_body(struct server_exchange *exchange)
{
    return server_fail(&exchange->error, 413, "body_too_large", NULL,
                       "the body is larger than the %" PRIu64 " bytes that this server takes",
                       exchange->server->options.max_body);
}

/* A client that sends a refused body reads no reply before it has sent it; up to a limit the body is received and
 * dropped. */
static bool is_body_endless(const struct server_exchange *exchange, uint64_t bytes)
{
    const uint64_t most = exchange->server->options.max_body;
    return bytes > (most > UINT64_MAX / 8 ? UINT64_MAX : most * 4 + (1 << 20));
}

/* All that can be refused before the body has arrived. */
static bool check_head(struct server_exchange *exchange)
{
    const struct server_options *options = &exchange->server->options;
    const struct server_route *route = exchange->route;
    struct server_error *error = &exchange->error;
    const char *method = strcmp(exchange->method, "HEAD") == 0 ? "GET" : exchange->method;
    if (options->keys && !(route && route->is_open) &&
        !server_keys_allow(options->keys, header(exchange, "Authorization"), header(exchange, "x-api-key")))
        return server_fail(error, 401, "invalid_api_key", NULL,
                           "expected a valid key in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    if (!route) {
        char paths[SERVER_PATHS_BYTES];
        server_list_paths(paths);
        return server_fail(error, 404, "unknown_url", NULL, "no such path; this server has %s", paths);
    }
    if (has_unknown_coding(exchange))
        return server_fail(error, 501, "unsupported_transfer_encoding", NULL,
                           "expected no header Transfer-Encoding, or 'Transfer-Encoding: chunked'");
    if (strcmp(route->method, method) != 0)
        return server_fail(error, 405, "method_not_allowed", NULL, "expected method %s at this path, found %s",
                           route->method, exchange->method);
    if (!is_post(route)) return !is_body_endless(exchange, declared_length(exchange)) || fail_body(exchange);
    if (!is_json(header(exchange, "Content-Type")))
        return server_fail(error, 415, "unsupported_media_type", NULL,
                           "expected the header 'Content-Type: application/json'");
    const char *encoding = header(exchange, "Content-Encoding");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return server_fail(error, 415, "unsupported_content_encoding", NULL,
                           "expected a body without compression, and no header Content-Encoding");
    return declared_length(exchange) <= options->max_body || fail_body(exchange);
}

static bool take_body(struct server_exchange *exchange, const char *data, size_t size)
{
    struct server *server = exchange->server;
    exchange->received += size;
    if (is_body_endless(exchange, exchange->received)) return false;
    if (exchange->error.http || !is_post(exchange->route)) return true;
    if (exchange->received > server->options.max_body) {
        fail_body(exchange);
    } else if (atomic_fetch_add(&server->body_bytes, size) + size > MOST_BODIES * server->options.max_body) {
        atomic_fetch_sub(&server->body_bytes, size);
        server_fail(&exchange->error, 503, "out_of_memory", NULL,
                    "the server is answering too many large requests; try later");
    } else {
        exchange->counted += size;
        if (!server_buffer_add(&exchange->body, data, size)) server_fail_memory(&exchange->error);
    }
    return true;
}

static struct server_exchange *begin(struct server_thread *thread, struct MHD_Connection *connection, const char *path,
                                     const char *method)
{
    struct server *server = thread->server;
    const union MHD_ConnectionInfo *peer = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct server_exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange) return NULL;
    exchange->path = strdup(path);
    if (!exchange->path) {
        free(exchange);
        return NULL;
    }
    exchange->server = server;
    exchange->thread = thread;
    exchange->connection = connection;
    exchange->peer = peer ? peer->socket_context : NULL;
    exchange->route = server_find_route(path);
    exchange->shape = server_shape_of(path);
    exchange->method = known_method(method);
    exchange->begin = cli_seconds();
    atomic_fetch_add(&server->exchanges, 1);
    return exchange;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path, const char *method,
                              const char *version, const char *data, size_t *size, void **own)
{
    struct server_exchange *exchange = *own;
    (void)version;
    if (!exchange) {
        *own = exchange = begin(context, connection, path, method);
        if (!exchange) return MHD_NO;
        check_head(exchange);
        if (has_unknown_coding(exchange) || is_body_endless(exchange, declared_length(exchange)))
            return reply_error(exchange);
        /* Later the library calls this function with the bytes after the head, as if they were a body, and then takes no reply. */
        return expects_no_body(exchange) ? answer(exchange) : MHD_YES;
    }
    if (*size) {
        if (!take_body(exchange, data, *size)) return MHD_NO;
        *size = 0;
        return MHD_YES;
    }
    if (!exchange->job) server_peer_begin(exchange->server->peers, exchange->peer);
    enum MHD_Result result = answer(exchange);
    server_buffer_free(&exchange->body);
    return result;
}

/* ---- the end of requests ---- */

/* Requires: the lock of the model, if there is a job. */
static void describe_job(const struct server_exchange *exchange, char *text, size_t size)
{
    const struct server_job *job = exchange->job;
    uint64_t count = 0;
    char first[48] = "";
    for (size_t i = 0; i < job->choice_count; i++) count += job->choices[i].tokens;
    if (job->first_token > 0)
        snprintf(first, sizeof first, ", first token after %.3f s", job->first_token - job->arrival);
    snprintf(text, size, " %.64s: %" PRIu64 " prompt tokens, %" PRIu64 " generated%s,",
             server_model_name(exchange->model), job->prompt_tokens, count, first);
}

/* Names paths of the table alone: no text of a client appears in the log. */
static void log_line(const struct server_exchange *exchange, bool is_sent)
{
    const struct server_error *error = exchange->job ? &exchange->job->failure : &exchange->error;
    char work[256] = "";
    if (exchange->server->options.quiet) return;
    if (exchange->job) describe_job(exchange, work, sizeof work);
    fprintf(stderr, "%s: %s %s %u%s%s%s %.3f s%s\n", cli_program(), exchange->method,
            exchange->route ? exchange->route->path : "(other path)", exchange->http, error->code ? " " : "",
            error->code ? error->code : "", work, cli_seconds() - exchange->begin, is_sent ? "" : ", connection lost");
}

static void complete(void *context, struct MHD_Connection *connection, void **own,
                     enum MHD_RequestTerminationCode reason)
{
    struct server *server = context;
    struct server_exchange *exchange = *own;
    (void)connection;
    if (!exchange) return;
    *own = NULL;
    server_peer_end(server->peers, exchange->peer);
    if (exchange->job) server_model_lock(exchange->model);
    log_line(exchange, reason == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (exchange->job) server_model_unlock(exchange->model);
    if (exchange->job) server_model_release(exchange->model, exchange->job);
    server_stream_close(&exchange->stream);
    server_buffer_free(&exchange->events);
    server_buffer_free(&exchange->body);
    atomic_fetch_sub(&server->body_bytes, exchange->counted);
    free(exchange->path);
    free(exchange);
    atomic_fetch_sub(&server->exchanges, 1);
}

static void watch_connection(void *context, struct MHD_Connection *connection, void **peer,
                             enum MHD_ConnectionNotificationCode what)
{
    struct server_thread *thread = context;
    struct server *server = thread->server;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *peer = socket ? server_peer_add(server->peers, socket->connect_fd) : NULL;
    } else {
        server_peer_remove(server->peers, *peer);
        *peer = NULL;
        thread->has_room = true;
    }
}

/* ---- the server ---- */

/* The library leaves its socket open after some failures. `original`: a descriptor of the same socket. */
static void close_if_open(int descriptor, int original)
{
    struct stat own, same;
    if (fstat(descriptor, &own) == 0 && fstat(original, &same) == 0 && own.st_dev == same.st_dev &&
        own.st_ino == same.st_ino)
        close(descriptor);
}

/* The threads share the connections that are allowed. */
static bool start_thread(struct server *server, size_t index, struct status *status)
{
    const struct server_options *options = &server->options;
    const uint64_t share = options->max_connections / options->http_threads;
    const uint64_t connections = share + (index < options->max_connections % options->http_threads);
    struct server_thread *thread = &server->threads[index];
    thread->server = server;
    const int listener = fcntl(options->listener, F_DUPFD_CLOEXEC, 0);
    if (listener < 0)
        return status_fail_errno(status, STATUS_MACHINE, errno, "the system refuses a descriptor of its socket");
    struct MHD_Daemon *daemon =
        MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, handle, thread,
                         MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT, (unsigned)connections,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)RECEIVE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)CONNECTION_MEMORY_BYTES, MHD_OPTION_NOTIFY_COMPLETED, complete, server,
                         MHD_OPTION_NOTIFY_CONNECTION, watch_connection, thread, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
                         MHD_OPTION_END);
    if (!daemon) {
        close_if_open(listener, options->listener);
        return status_fail(status, STATUS_MACHINE, "too few descriptors, or too little memory");
    }
    return server_thread_start(thread, daemon, status);
}

/* *status: why. */
static bool fail_start(size_t index, uint64_t count, struct status *status)
{
    const struct status cause = *status;
    return status_fail(status, cause.code,
                       "HTTP thread %zu of %" PRIu64 " cannot start: %s; raise the limits of open files and of "
                       "processes (ulimit -n, ulimit -u), or lower --http-threads",
                       index + 1, count, cause.message);
}

/* None of the threads receives anything before all of them are there: a request that waits could not be given up. */
static bool start_threads(struct server *server, struct status *status)
{
    const uint64_t count = server->options.http_threads;
    for (size_t i = 0; i < count; i++)
        if (!start_thread(server, i, status)) return fail_start(i, count, status);
    for (size_t i = 0; i < count; i++) server_thread_release(&server->threads[i]);
    return true;
}

bool server_start(const struct server_options *options, struct server **server, struct status *status)
{
    struct server *made = calloc(1, sizeof *made);
    struct timespec now;
    if (!made) {
        close(options->listener);
        return status_fail(status, STATUS_MACHINE, "out of memory");
    }
    clock_gettime(CLOCK_REALTIME, &now);
    made->options = *options;
    made->created = (int64_t)now.tv_sec;
    double receive = options->timeout < RECEIVE_SECONDS ? options->timeout : RECEIVE_SECONDS;
    made->peers =
        server_peers_create(receive, options->timeout + RECEIVE_SECONDS, server_exchange_abandon, server_exchange_ping);
    made->threads = calloc(options->http_threads, sizeof *made->threads);
    const bool ok = made->peers && made->threads ? start_threads(made, status)
                                                 : status_fail(status, STATUS_MACHINE, "out of memory");
    close(options->listener); /* each thread has a descriptor of the socket */
    if (!ok) server_stop(&made);
    *server = made;
    return ok;
}

void server_check(struct server *server) { server_peers_check(server->peers); }

void server_drain(struct server *server)
{
    if (atomic_exchange(&server->draining, true)) return;
    for (size_t i = 0; i < server->options.http_threads; i++) server_thread_drain(&server->threads[i]);
}

bool server_is_busy(struct server *server) { return atomic_load(&server->exchanges) > 0; }

void server_stop(struct server **server)
{
    struct server *stopped = *server;
    *server = NULL;
    if (!stopped) return;
    for (size_t i = 0; stopped->threads && i < stopped->options.http_threads; i++)
        server_thread_stop(&stopped->threads[i]);
    server_peers_destroy(stopped->peers);
    free(stopped->threads);
    free(stopped);
}
