/* SPDX-License-Identifier: Apache-2.0 */
/* Answers several prompts at the same time, as a server does: threads ENGINE PROMPT...
 * One thread runs the steps; a thread for each prompt submits it, waits for tokens, and writes its answer when it is whole. A lock makes it
 * one thread at a time in the session; cancelling needs no lock. */
#include <eng.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 1024, ANSWER = 60 };

struct server {
    struct eng_engine *engine;
    struct eng_session *session; /* under the lock, as its sequences and the next fields */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* tokens, a new sequence, or the end */
    bool ended;             /* no sequence will come */
    enum eng_status failure;
};

struct client {
    struct server *server;
    const char *prompt;
    pthread_t thread;
    bool has_thread;
    struct eng_error error;
};

/* After each step that gave tokens; with the lock. */
static void tell(void *context, struct eng_sequence *sequence)
{
    struct server *server = context;
    (void)sequence;
    pthread_cond_broadcast(&server->changed);
}

static void *run_steps(void *argument)
{
    struct server *server = argument;
    uint32_t unfinished = 0;
    pthread_mutex_lock(&server->lock);
    while (!server->failure) {
        server->failure = eng_step(server->session, &unfinished, NULL);
        if (unfinished == 0 && server->ended) break;
        if (unfinished == 0) {
            pthread_cond_wait(&server->changed, &server->lock);
        } else {
            /* Between two steps it is the turn of others. */
            pthread_mutex_unlock(&server->lock);
            sched_yield();
            pthread_mutex_lock(&server->lock);
        }
    }
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* Waits for the next token. False: the sequence has ended. Requires: the lock is held. */
static bool next_token(struct server *server, struct eng_sequence *sequence, int32_t *token)
{
    while (!eng_sequence_poll(sequence, token, 1)) {
        if (server->failure || eng_sequence_state(sequence) == ENG_STATE_DONE) return false;
        pthread_cond_wait(&server->changed, &server->lock);
    }
    return true;
}

static bool answer(struct client *client, struct eng_text *stream, const int32_t *tokens, size_t count)
{
    struct server *server = client->server;
    struct eng_sequence *sequence = NULL;
    struct eng_sequence_options options;
    char text[16384] = "";
    const char *piece;
    size_t size, used = 0;
    int32_t token;
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    pthread_mutex_lock(&server->lock);
    bool ok = !eng_sequence_create(server->session, &options, &sequence, &client->error) &&
              !eng_sequence_submit(sequence, tokens, count, &client->error);
    pthread_cond_broadcast(&server->changed);
    while (ok && next_token(server, sequence, &token)) {
        pthread_mutex_unlock(&server->lock); /* text needs no lock: the stream is this thread's */
        ok = !eng_text_push(stream, token, &piece, &size, &client->error);
        if (ok && used + size < sizeof text) {
            memcpy(text + used, piece, size);
            used += size;
        }
        if (ok && eng_text_stopped(stream) >= 0) eng_sequence_cancel_async(sequence);
        pthread_mutex_lock(&server->lock);
    }
    eng_sequence_destroy(&sequence);
    pthread_mutex_unlock(&server->lock);
    if (ok) ok = !eng_text_finish(stream, &piece, &size, &client->error);
    if (ok) printf("%s%.*s%s\n", client->prompt, (int)used, text, piece);
    return ok;
}

static void *run_client(void *argument)
{
    static const char *const stops[] = {"The end", "\n\n"};
    struct client *client = argument;
    struct eng_engine *engine = client->server->engine;
    struct eng_text *stream = NULL;
    struct eng_error *error = &client->error;
    int32_t tokens[MOST_TOKENS];
    const char *text;
    size_t count, size;
    bool ok = !eng_tokenize(engine, client->prompt, strlen(client->prompt), ENG_TEXT_ADD_SPECIAL, tokens, MOST_TOKENS,
                            &count, error) &&
              !eng_text_create(engine, 0, &stream, error);
    for (size_t i = 0; ok && i < count; i++) ok = !eng_text_push(stream, tokens[i], &text, &size, error);
    ok = ok && !eng_text_set_stops(stream, stops, 2, error);
    if (ok) answer(client, stream, tokens, count);
    eng_text_destroy(&stream);
    return NULL;
}

int main(int argc, char **argv)
{
    struct server server = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct eng_error error = {0};
    pthread_t steps;
    int failed = 1, count = argc - 2;
    struct client *clients = count > 0 ? calloc((size_t)count, sizeof *clients) : NULL;

    if (!clients) return 2;
    if (eng_open(argv[1], NULL, &server.engine, &error) ||
        eng_session_create(server.engine, NULL, &server.session, &error) ||
        eng_session_set_callback(server.session, tell, &server, &error) ||
        pthread_create(&steps, NULL, run_steps, &server))
        goto done;
    failed = 0;
    for (int i = 0; i < count; i++) {
        clients[i].server = &server;
        clients[i].prompt = argv[i + 2];
        clients[i].has_thread = !pthread_create(&clients[i].thread, NULL, run_client, &clients[i]);
        if (!clients[i].has_thread) run_client(&clients[i]);
    }
    for (int i = 0; i < count; i++) {
        if (clients[i].has_thread) pthread_join(clients[i].thread, NULL);
        if (clients[i].error.status) fprintf(stderr, "%s: %s\n", clients[i].prompt, clients[i].error.message);
        failed |= clients[i].error.status != 0;
    }
    pthread_mutex_lock(&server.lock);
    server.ended = true;
    pthread_cond_broadcast(&server.changed);
    pthread_mutex_unlock(&server.lock);
    pthread_join(steps, NULL);
    failed |= server.failure != 0;
done:
    if (error.status) fprintf(stderr, "%s\n", error.message);
    eng_session_destroy(&server.session);
    eng_close(&server.engine);
    free(clients);
    return failed;
}
