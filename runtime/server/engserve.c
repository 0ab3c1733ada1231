/* SPDX-License-Identifier: Apache-2.0 */
/* engserve: an HTTP server that answers with engines, in the form of OpenAI's API. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/cli/cli_args.h"
#include "runtime/server/server.h"
#include "runtime/server/server_listen.h"
#include "runtime/server/server_names.h"
#include "runtime/server/server_thread.h"

enum {
    MOST_MODELS = 64,
    DEFAULT_PORT = 8080,
    DEFAULT_CONNECTIONS = 1024,
    DEFAULT_QUEUE = 1024,
    DEFAULT_BODY_BYTES = 4 << 20,
    DEFAULT_TIMEOUT = 600,
    DEFAULT_PING = 15, /* proxies close a connection without a byte for a minute, some for half of one */
    DEFAULT_HTTP_THREADS = 4,
    /* descriptors besides those of connections and of threads that serve them: files, GPUs */
    OTHER_DESCRIPTORS = 128,
    CHECK_MS = 50,
    /* after --timeout, for replies that are being sent */
    LAST_SECONDS = 5
};

static const char usage[] = "usage: engserve FILE... [flags]\n"
                            "\n"
                            "Answers HTTP requests in the form of OpenAI's API with engines made by engbuild. A model "
                            "has the name of its FILE\n"
                            "without .eng; NAME=FILE gives it another one. SIGINT or SIGTERM: requests that have "
                            "arrived are answered, then the\n"
                            "program ends; a second signal ends it at once.\n"
                            "\n";

struct arguments {
    const char *host, *key_file, *draft_path;
    uint64_t port, prompt_step, step_ms, kv_tokens, kv_bytes, kept_bytes, speculate;
    uint64_t max_queue, max_connections, max_body, max_prompt, http_threads;
    double timeout, ping;
    bool quiet, finished, speculate_given;
    struct cli_devices devices;
    struct server_name names[MOST_MODELS];
    size_t model_count;
};

struct program {
    struct arguments arguments;
    struct server_keys *keys;
    struct server_model *models[MOST_MODELS];
    struct server_address address;
    struct server *server;
};

static int read_flags(int argc, char **argv, struct arguments *arguments)
{
    struct cli_flag device_flags[CLI_DEVICE_FLAGS];
    const struct cli_flag flags[] = {
        {.help = "network:"},
        {"host", 0, "HOST", .text = &arguments->host, .help = "address to listen at (127.0.0.1: this machine alone)"},
        {"port", 0, "PORT", .number = &arguments->port, .most = 65535,
         .help = "port to listen at (8080); 0: a free one, which is printed"},
        {"api-key-file", 0, "FILE", .text = &arguments->key_file,
         .help = "keys of clients, one a line; without it no key is needed"},
        {.help = "limits:"},
        {"max-connections", 0, "N", .number = &arguments->max_connections, .least = 8, .most = 100000,
         .help = "connections at the same time (1024); others wait"},
        {"max-queue", 0, "N", .number = &arguments->max_queue, .least = 1, .most = 1000000,
         .help = "requests that wait for a model (1024); others are refused (429)"},
        {"max-body", 0, "BYTES", .number = &arguments->max_body, .least = 1024, .most = 1 << 30,
         .help = "largest body of a request (4194304)"},
        {"max-prompt", 0, "TOKENS", .number = &arguments->max_prompt, .least = 1, .most = INT32_MAX,
         .help = "most tokens of a prompt, of each input of embeddings, too (as many as the engine's context has room "
                 "for); longer ones are refused (400)"},
        {"timeout", 0, "S", .real = &arguments->timeout, .most = 1000000, .above_zero = "above 0",
         .help =
             "seconds in which a request must be answered (600); also, how long the end of the program waits for them"},
        {"ping", 0, "S", .real = &arguments->ping, .most = 1000000, .above_zero = "above 0",
         .help = "seconds without an event after which a stream has a ping or a comment, which clients skip, so that "
                 "proxies keep the connection (15)"},
        {"http-threads", 0, "N", .number = &arguments->http_threads, .least = 1, .most = 64,
         .help = "threads that receive requests and send answers (4)"},
        {.help = "memory:"},
        {"kv-tokens", 0, "N", .number = &arguments->kv_tokens, .least = 1, .most = UINT64_C(1) << 50,
         .help = "size of each model's KV cache in tokens, at most a full context for every slot (as --kv-bytes)"},
        {"kv-bytes", 0, "BYTES", .number = &arguments->kv_bytes, .least = 1, .most = UINT64_C(1) << 50,
         .help = "size of each model's KV cache in bytes, on each of its GPUs (a full context for every slot or, if "
                 "less, nine tenths of a GPU's free memory, half of a machine's): needed for several models on one "
                 "GPU, since the first would leave the others too little"},
        {"kept-bytes", 0, "BYTES", .number = &arguments->kept_bytes, .least = 1, .most = UINT64_C(1) << 50,
         .help =
             "host memory of each model for requests that give way to older ones where the KV cache is full, so that "
             "they are not computed again (as much as the cache has on a GPU, at most 4 GiB; else none)"},
        {.help = "steps:"},
        {"prompt-step", 0, "N", .number = &arguments->prompt_step, .least = 1, .most = INT32_MAX,
         .help = "most tokens of prompts that one step computes while others are answered (a quarter of the engine's "
                 "largest chunk, at least 16): fewer delay answers less, more compute prompts faster"},
        {"step-ms", 0, "N", .number = &arguments->step_ms, .least = 1, .most = INT32_MAX,
         .help = "milliseconds that such a step should take: sets how many tokens it computes by the time that earlier "
                 "ones took, at most --prompt-step where that is given"},
        {"speculate", 0, "N", .number = &arguments->speculate, .most = INT32_MAX, .given = &arguments->speculate_given,
         .help = "draft up to N tokens of an answer where its last ones have occurred before, and verify them in one "
                 "step, while few requests are answered: the same answers in less time where they repeat text "
                 "(0, the default: off)"},
        {"draft", 0, "FILE", .text = &arguments->draft_path,
         .help = "engine of a smaller model with the same tokens, on the same machine or GPU, which drafts where text "
                 "is not repeated (--speculate 4 unless given); with one model alone"},
        {.help = "output:"},
        {"quiet", .set = &arguments->quiet, .help = "no notes and no line for each request on stderr"},
        {.help = "machine:"},
        {"no-jit", .set = &arguments->devices.no_jit,
         .help = "do not compile patterns of the tokenizer to machine code"},
        {.name = NULL},
    };
    const struct cli_command command = {usage, {flags, device_flags}, "\n" CLI_EXIT_CODES "\n", eng_version()};
    cli_device_flags(&arguments->devices, device_flags);
    return cli_read_flags(&command, argc, argv, &arguments->finished);
}

static int read_models(int argc, char **argv, struct arguments *arguments)
{
    struct status status = {0};
    if (optind == argc) return cli_usage("expected an engine file, found none");
    if (argc - optind > MOST_MODELS)
        return cli_usage("expected at most %d engine files, found %d", MOST_MODELS, argc - optind);
    for (int i = optind; i < argc; i++) {
        struct server_name *name = &arguments->names[arguments->model_count];
        if (!server_name_read(argv[i], name, &status)) return cli_usage("%s", status.message);
        for (size_t other = 0; other < arguments->model_count; other++)
            if (strcmp(arguments->names[other].name, name->name) == 0)
                return cli_usage("two models are named '%s'; give one another name (NAME=FILE)", name->name);
        arguments->model_count++;
    }
    return CLI_DONE;
}

static int read_arguments(int argc, char **argv, struct arguments *arguments)
{
    arguments->host = "127.0.0.1";
    arguments->port = DEFAULT_PORT;
    arguments->max_connections = DEFAULT_CONNECTIONS;
    arguments->max_queue = DEFAULT_QUEUE;
    arguments->max_body = DEFAULT_BODY_BYTES;
    arguments->timeout = DEFAULT_TIMEOUT;
    arguments->ping = DEFAULT_PING;
    arguments->http_threads = DEFAULT_HTTP_THREADS;
    int code = read_flags(argc, argv, arguments);
    if (code || arguments->finished) return code;
    if (arguments->devices.launched) return cli_usage("--launched: not with engserve, which is one process");
    if (cli_check_devices(&arguments->devices)) return CLI_USAGE;
    if (arguments->kv_tokens && arguments->kv_bytes)
        return cli_usage("--kv-tokens and --kv-bytes: expected one of them, found both");
    /* The connections are divided among the threads. */
    if (arguments->http_threads > arguments->max_connections)
        return cli_usage("--http-threads: expected at most --max-connections");
    code = read_models(argc, argv, arguments);
    if (code || !arguments->draft_path) return code;
    if (arguments->model_count > 1)
        return cli_usage("--draft: expected one engine file to draft for, found %zu", arguments->model_count);
    if (!arguments->speculate_given) arguments->speculate = CLI_DRAFTED_TOKENS;
    return CLI_DONE;
}

static int open_models(struct program *program, struct eng_engine *draft)
{
    const struct arguments *arguments = &program->arguments;
    struct eng_open_options open;
    struct eng_session_options session;
    struct eng_error error = {0};
    eng_session_options_init(&session);
    session.threads = (uint32_t)arguments->devices.threads;
    session.prompt_step = (uint32_t)arguments->prompt_step;
    session.step_ms = (uint32_t)arguments->step_ms;
    session.kv_tokens = arguments->kv_tokens;
    session.kv_bytes = arguments->kv_bytes;
    session.kept_bytes = arguments->kept_bytes;
    session.speculate = (uint32_t)arguments->speculate;
    session.draft = draft;
    session.instruction_set = arguments->devices.instruction_set;
    for (size_t i = 0; i < arguments->model_count && !cli_caught_signal(); i++) {
        const struct server_name *name = &arguments->names[i];
        eng_open_options_init(&open);
        if (cli_use_devices(&arguments->devices, &open, &error)) return cli_fail_error(&error);
        /* Several engines are several users of CUDA. */
        open.only_cuda_user = arguments->model_count == 1 && !draft;
        const struct server_model_options options = {.name = name->name,
                                                     .path = name->path,
                                                     .open = &open,
                                                     .session = &session,
                                                     .max_queue = arguments->max_queue,
                                                     .max_prompt = arguments->max_prompt,
                                                     .timeout = arguments->timeout,
                                                     .quiet = arguments->quiet};
        if (!server_model_open(&options, &program->models[i], &error)) return cli_fail_error(&error);
    }
    return CLI_DONE;
}

static int start(struct program *program)
{
    const struct arguments *arguments = &program->arguments;
    struct status status = {0};
    const uint64_t descriptors =
        arguments->max_connections + arguments->http_threads * SERVER_THREAD_DESCRIPTORS + OTHER_DESCRIPTORS;
    if (!server_allow_descriptors(descriptors, &status)) return cli_fail_status(&status);
    if (arguments->key_file && !server_keys_read(arguments->key_file, &program->keys, &status))
        return cli_fail_status(&status);
    /* Before the engines are opened, which may take long. */
    if (!server_listen(arguments->host, (unsigned)arguments->port, &program->address, &status))
        return cli_fail_status(&status);
    struct eng_engine *draft = NULL;
    struct eng_error error = {0};
    if (cli_open_draft(arguments->draft_path, &arguments->devices, &draft, &error)) return cli_fail_error(&error);
    int code = open_models(program, draft);
    eng_close(&draft);
    if (code || cli_caught_signal()) return code;
    if (!program->address.is_loopback && !program->keys)
        fprintf(stderr, "%s: warning: other machines can reach %s, and no key is needed; give --api-key-file\n",
                cli_program(), program->address.url);
    const struct server_options options = {.models = program->models,
                                           .model_count = arguments->model_count,
                                           .keys = program->keys,
                                           .listener = program->address.descriptor,
                                           .max_connections = arguments->max_connections,
                                           .max_body = arguments->max_body,
                                           .http_threads = arguments->http_threads,
                                           .timeout = arguments->timeout,
                                           .ping = arguments->ping,
                                           .quiet = arguments->quiet};
    if (!server_start(&options, &program->server, &status)) return cli_fail_status(&status);
    printf("%s: ready at %s\n", cli_program(), program->address.url);
    return cli_flush(&status) || cli_reader_left() ? CLI_DONE : cli_fail_status(&status);
}

static void wait_a_moment(void)
{
    const struct timespec moment = {.tv_nsec = CHECK_MS * 1000000L};
    nanosleep(&moment, NULL);
}

static bool is_busy(struct program *program)
{
    bool busy = server_is_busy(program->server);
    for (size_t i = 0; i < program->arguments.model_count; i++) busy = server_model_is_busy(program->models[i]) || busy;
    return busy;
}

static void cancel_all(struct program *program)
{
    struct server_error reason;
    server_fail(&reason, 503, "shutting_down", NULL, "the server has shut down before the answer was complete");
    for (size_t i = 0; i < program->arguments.model_count; i++) server_model_cancel_all(program->models[i], &reason);
}

static void wait_until_idle(struct program *program, double seconds)
{
    const double end = cli_seconds() + seconds;
    while (is_busy(program) && cli_seconds() < end) {
        server_check(program->server);
        wait_a_moment();
    }
}

/* What has arrived is answered, within a time. */
static void drain(struct program *program)
{
    /* Any second signal ends the process. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    server_drain(program->server);
    wait_until_idle(program, program->arguments.timeout);
    cancel_all(program);
    wait_until_idle(program, LAST_SECONDS);
}

static void serve(struct program *program)
{
    while (!cli_caught_signal()) {
        server_check(program->server);
        wait_a_moment();
    }
    if (!program->arguments.quiet) fprintf(stderr, "%s: shutting down\n", cli_program());
    drain(program);
}

/* A step that has begun runs to its end, and libmicrohttpd ends the process if a connection still waits for it. */
static void finish_steps(struct program *program)
{
    cancel_all(program);
    for (size_t i = 0; i < program->arguments.model_count; i++)
        while (server_model_is_busy(program->models[i])) wait_a_moment();
    wait_until_idle(program, LAST_SECONDS);
}

static void stop(struct program *program)
{
    if (program->server) {
        server_drain(program->server); /* where serving did not begin */
        finish_steps(program);
    }
    server_stop(&program->server);
    for (size_t i = 0; i < program->arguments.model_count; i++) server_model_close(&program->models[i]);
    server_keys_free(program->keys);
}

int main(int argc, char **argv)
{
    static struct program program;
    struct status status = {0};
    cli_begin("engserve");
    cli_catch_signals();
    int code = read_arguments(argc, argv, &program.arguments);
    if (code || program.arguments.finished) {
        if (!code && !cli_flush(&status)) code = cli_fail_status(&status);
        return cli_end(code);
    }
    code = start(&program);
    if (!code && program.server) serve(&program);
    stop(&program);
    return cli_end(code);
}
