/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/compile_workers.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/registry.h"

extern char **environ;

enum { MOST_CUBIN_BYTES = 64 << 20, KERNEL_NAME_BYTES = 64 };

struct request {
    char kernel[KERNEL_NAME_BYTES];
    int32_t capability, param_count;
    int64_t params[PLAN_MAX_PARAMS];
};

struct answer {
    int32_t code; /* enum status_code; not STATUS_OK: the message follows */
    int32_t unused;
    uint64_t bytes;
};

struct compile_workers {
    int count;
    struct {
        pid_t process;
        int socket; /* -1: lost */
    } each[COMPILE_MOST_WORKERS];
};

/* ---- messages ---- */

static bool send_all(int socket, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static bool receive_all(int socket, void *data, size_t bytes)
{
    for (char *at = data; bytes > 0;) {
        const ssize_t got = recv(socket, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* ---- the parent ---- */

static bool start_one(const char *program, char *const *words, pid_t *process, int *own)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return false;
    bool ok = posix_spawn_file_actions_init(&actions) == 0;
    if (ok) {
        ok = posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO) == 0 &&
             posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1) == 0 &&
             posix_spawn(process, program, &actions, NULL, words, environ) == 0;
        posix_spawn_file_actions_destroy(&actions);
    }
    close(ends[1]);
    if (!ok) close(ends[0]);
    *own = ends[0];
    return ok;
}

struct compile_workers *compile_workers_start(const char *program, const char *first, const char *cache, int count)
{
    struct compile_workers *workers = calloc(1, sizeof *workers);
    char *words[] = {strdup(program), strdup(first), strdup(cache), NULL};
    const bool ok = workers && words[0] && words[1] && words[2];
    while (ok && workers->count < count && workers->count < COMPILE_MOST_WORKERS &&
           start_one(program, words, &workers->each[workers->count].process, &workers->each[workers->count].socket))
        workers->count++;
    for (int i = 0; i < 3; i++) free(words[i]);
    if (ok && workers->count > 0) return workers;
    free(workers);
    return NULL;
}

static void lose(struct compile_workers *workers, int number)
{
    if (workers->each[number].socket >= 0) close(workers->each[number].socket);
    workers->each[number].socket = -1;
}

void compile_workers_stop(struct compile_workers *workers)
{
    if (!workers) return;
    for (int i = 0; i < workers->count; i++) lose(workers, i);
    for (int i = 0; i < workers->count; i++)
        while (waitpid(workers->each[i].process, NULL, 0) < 0 && errno == EINTR) continue;
    free(workers);
}

int compile_workers_count(const struct compile_workers *workers) { return workers ? workers->count : 0; }

/* False: the worker is of no use any more. */
static bool ask(int socket, const struct request *request, struct answer *answer, char **data)
{
    if (!send_all(socket, request, sizeof *request) || !receive_all(socket, answer, sizeof *answer)) return false;
    if (answer->bytes > MOST_CUBIN_BYTES || answer->code < STATUS_OK || answer->code > STATUS_CANCELLED) return false;
    *data = malloc(answer->bytes + 1);
    if (!*data || !receive_all(socket, *data, answer->bytes)) return false;
    (*data)[answer->bytes] = '\0';
    return true;
}

bool compile_workers_compile(struct compile_workers *workers, int number, const struct device_kernel *kernel,
                             const int64_t *params, int capability, void **cubin, size_t *size, bool *is_lost,
                             struct status *status)
{
    struct request request = {.capability = capability, .param_count = device_param_count(kernel)};
    struct answer answer;
    char *data = NULL;
    *is_lost = true;
    if (workers->each[number].socket < 0 || strlen(kernel->name) >= sizeof request.kernel ||
        request.param_count > PLAN_MAX_PARAMS)
        return false;
    memcpy(request.kernel, kernel->name, strlen(kernel->name));
    memcpy(request.params, params, (size_t)request.param_count * sizeof *params);
    if (!ask(workers->each[number].socket, &request, &answer, &data)) {
        free(data);
        lose(workers, number);
        return false;
    }
    /* Without memory or compiler there: here there may be both. */
    *is_lost = answer.code == STATUS_MACHINE;
    if (answer.code != STATUS_OK) {
        status_fail(status, (enum status_code)answer.code, "%s", data);
        free(data);
        return false;
    }
    *cubin = data;
    *size = answer.bytes;
    return true;
}

/* ---- the worker ---- */

static bool compile_one(struct nvrtc *nvrtc, struct request *request, void **cubin, size_t *size, struct status *status)
{
    request->kernel[sizeof request->kernel - 1] = '\0';
    const struct device_kernel *kernel = device_kernel_find(request->kernel);
    if (!kernel || kernel->library || request->param_count != device_param_count(kernel))
        return status_fail(status, STATUS_INTERNAL, "there is no kernel '%s' of %d parameters", request->kernel,
                           request->param_count);
    return nvrtc_compile(nvrtc, kernel, request->params, request->capability, cubin, size, status);
}

int compile_worker_run(const struct device_source *sources, size_t source_count, const char *cache)
{
    struct request request;
    struct status opened = {0}; /* the main process has told why */
    struct nvrtc *nvrtc = nvrtc_open_anyway(sources, source_count, *cache ? cache : NULL, &opened);
    while (nvrtc && receive_all(STDIN_FILENO, &request, sizeof request)) {
        struct status status = {0};
        void *cubin = NULL;
        size_t size = 0;
        const bool ok = compile_one(nvrtc, &request, &cubin, &size, &status);
        const void *data = ok ? cubin : status.message;
        const struct answer answer = {.code = ok ? STATUS_OK : (int32_t)status.code,
                                      .bytes = ok ? size : strlen(status.message)};
        const bool sent = send_all(STDIN_FILENO, &answer, sizeof answer) && send_all(STDIN_FILENO, data, answer.bytes);
        free(cubin);
        if (!sent) break;
    }
    nvrtc_close(nvrtc);
    return 0;
}
