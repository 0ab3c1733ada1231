/* SPDX-License-Identifier: Apache-2.0 */
/* A server of which a later thread cannot start, while a client already sends a request: server_start fails and says why, and nothing is left of
 * it. pthread_create below comes before the C library's for the whole program. */
#include "runtime/server/server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "runtime/server/server_listen.h"
#include "runtime/server/server_thread.h"
#include "tests/test_fables.h"

enum { THREADS = 4, CONNECTIONS = 16, SECONDS = 60 };

static struct server_model *model;
static struct server_address address;
static struct {
    atomic_int countdown; /* this start of a thread from now fails; 0: none */
    int client;           /* a socket with a request; -1: none */
} injected = {.client = -1};

/* ---- a client ---- */

static int connect_client(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *colon = strrchr(address.url, ':');
    const struct timeval limit = {.tv_sec = SECONDS};
    to.sin_port = htons((uint16_t)atoi(colon + 1));
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(descriptor >= 0);
    assert_int_equal(setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(connect(descriptor, (struct sockaddr *)&to, sizeof to), 0);
    return descriptor;
}

static void send_request(int descriptor, int choices, int max_tokens)
{
    char body[128], text[512];
    const int size = snprintf(body, sizeof body, "{\"prompt\":\"Once\",\"n\":%d,\"max_tokens\":%d,\"ignore_eos\":true}",
                              choices, max_tokens);
    const int length = snprintf(text, sizeof text,
                                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                "Content-Length: %d\r\n\r\n%s",
                                size, body);
    assert_int_equal(send(descriptor, text, (size_t)length, MSG_NOSIGNAL), length);
}

/* A client is sooner than the thread: its request is answered, as far as a thread has taken it, when the start fails. */
static void ask(void)
{
    enum { MOMENTS = 30, MOMENT_MS = 10 };
    injected.client = connect_client();
    send_request(injected.client, 64, 300);
    for (int i = 0; i < MOMENTS && !server_model_is_busy(model); i++) poll(NULL, 0, MOMENT_MS);
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*function)(void *), void *argument)
{
    typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    create *next;
    if (atomic_load(&injected.countdown) && atomic_fetch_sub(&injected.countdown, 1) == 1) {
        ask();
        return EAGAIN;
    }
    *(void **)(void *)&next = dlsym(RTLD_NEXT, "pthread_create");
    return next(thread, attributes, function, argument);
}

/* ---- what a process has ---- */

static int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;
    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static int count_descriptors(void) { return count_entries("/proc/self/fd"); }

/* The system forgets a thread a moment after it was waited for. */
static void expect_threads(int count)
{
    for (int i = 0; i < 1000 && count_entries("/proc/self/task") != count; i++) poll(NULL, 0, 10);
    assert_int_equal(count_entries("/proc/self/task"), count);
}

/* ---- servers ---- */

static int listen_somewhere(void)
{
    struct status status = {0};
    test_expect_success(server_listen("127.0.0.1", 0, &address, &status), &status);
    return address.descriptor;
}

static bool start(int listener, struct server **server, struct status *status)
{
    const struct server_options options = {.models = &model,
                                           .model_count = 1,
                                           .listener = listener,
                                           .max_connections = CONNECTIONS,
                                           .max_body = 1 << 20,
                                           .http_threads = THREADS,
                                           .timeout = SECONDS,
                                           .ping = SECONDS,
                                           .quiet = true};
    return server_start(&options, server, status);
}

/* The server answers on every connection, more than one thread can have. */
static void expect_answers(void)
{
    int clients[CONNECTIONS];
    char reply[16] = "";
    for (int i = 0; i < CONNECTIONS; i++) clients[i] = connect_client();
    for (int i = 0; i < CONNECTIONS; i++) send_request(clients[i], 1, 1);
    for (int i = 0; i < CONNECTIONS; i++) {
        assert_int_equal(recv(clients[i], reply, 12, MSG_WAITALL), 12);
        assert_memory_equal(reply, "HTTP/1.1 200", 12);
        close(clients[i]);
    }
}

static void stop(struct server **server)
{
    server_drain(*server);
    while (server_model_is_busy(model) || server_is_busy(*server)) poll(NULL, 0, 10);
    server_stop(server);
}

TEST(a_later_thread_does_not_start)
{
    char rest[64], named[200];
    const int descriptors = count_descriptors(), threads = count_entries("/proc/self/task");
    for (int nth = 1; nth <= THREADS; nth++) {
        struct server *server = NULL;
        struct status status = {0};
        const int listener = listen_somewhere();
        atomic_store(&injected.countdown, nth);
        assert_false(start(listener, &server, &status));
        assert_null(server);
        assert_int_equal(atomic_load(&injected.countdown), 0);
        snprintf(named, sizeof named,
                 "HTTP thread %d of %d cannot start: the system refuses a thread: %s; raise the limits", nth, THREADS,
                 strerror(EAGAIN));
        assert_int_equal(status_exit_code(&status), 3);
        if (!strstr(status.message, named)) fail_msg("%s", status.message);
        assert_true(recv(injected.client, rest, sizeof rest, 0) <= 0); /* the connection is closed */
        assert_false(server_model_is_busy(model));
        close(injected.client);
        assert_int_equal(count_descriptors(), descriptors);
        expect_threads(threads);
    }
    struct server *server = NULL;
    struct status status = {0};
    test_expect_success(start(listen_somewhere(), &server, &status), &status);
    expect_answers();
    stop(&server);
    assert_int_equal(count_descriptors(), descriptors);
    expect_threads(threads);
}

TEST(descriptors_run_out)
{
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int descriptors = count_descriptors(), threads = count_entries("/proc/self/task");
    int failures = 0;
    for (bool has_started = false; !has_started; failures += !has_started) {
        struct server *server = NULL;
        struct status status = {0};
        const int listener = listen_somewhere(), free = dup(listener); /* the lowest one that is free */
        assert_true(free >= 0);
        close(free);
        const struct rlimit limit = {.rlim_cur = (rlim_t)(free + failures), .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        has_started = start(listener, &server, &status);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (has_started) {
            expect_answers();
            stop(&server);
        } else {
            assert_null(server);
            assert_int_equal(status_exit_code(&status), 3);
            test_expect_message(&status, "HTTP thread |cannot start: |; raise the limits of open files");
        }
        assert_int_equal(count_descriptors(), descriptors);
        expect_threads(threads);
    }
    assert_in_range(failures, THREADS, THREADS * SERVER_THREAD_DESCRIPTORS);
}

static int open_model(void **state)
{
    struct eng_open_options open;
    struct eng_session_options session;
    if (fables_build(state)) return -1;
    eng_open_options_init(&open);
    eng_session_options_init(&session);
    session.threads = 1;
    const struct server_model_options options = {.name = "fables",
                                                 .path = fables_path(),
                                                 .open = &open,
                                                 .session = &session,
                                                 .max_queue = 1000,
                                                 .timeout = SECONDS,
                                                 .quiet = true};
    return server_model_open(&options, &model, &error) ? 0 : -1;
}

static int close_model(void **state)
{
    server_model_close(&model);
    return fables_remove(state);
}

int main(void) { return test_run_with(open_model, NULL, NULL, close_model); }
