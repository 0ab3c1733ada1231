/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/cli/cli_process.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "formats/base/printable.h"

static const char *program = "eng";
static bool reader_left, keeps_interrupts;
static volatile sig_atomic_t caught;

void cli_begin(const char *name)
{
    program = name;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

const char *cli_program(void) { return program; }

int cli_end(int code)
{
    if (!reader_left) return code;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    signal(SIGPIPE, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(SIGPIPE);
    return CLI_SIGNAL + SIGPIPE;
}

static void remember(int number) { caught = number; }

void cli_catch_signals(void)
{
    /* No SA_RESTART: a read from a terminal returns. */
    struct sigaction action = {.sa_handler = remember, .sa_flags = keeps_interrupts ? 0 : (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGTERM, &action, NULL);
}

void cli_keep_interrupts(void)
{
    keeps_interrupts = true;
    cli_catch_signals();
}

int cli_caught_signal(void) { return caught; }

void cli_forget_signal(void)
{
    caught = 0;
    cli_catch_signals();
}

bool cli_wait_for_input(void)
{
    /* A signal may arrive just before the wait or be handled by another thread, so the wait has a time limit. */
    enum { SLICE_MS = 100 };
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!caught && poll(&input, 1, SLICE_MS) == 0) continue;
    return !caught;
}

static void *end_late(void *argument)
{
    enum { SECONDS = 5 };
    const int *code = argument;
    unsigned left = SECONDS;
    while (left) left = sleep(left);
    _exit(*code);
}

void cli_end_soon(int code)
{
    static int kept; /* of the first failure */
    pthread_t thread;
    if (kept) return;
    kept = code;
    if (pthread_create(&thread, NULL, end_late, &kept) == 0) pthread_detach(thread);
}

bool cli_reader_left(void) { return reader_left; }

bool cli_flush(struct status *status)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    int number = errno;
    /* An earlier write may have failed: errno is then of another call. */
    struct pollfd output = {.fd = STDOUT_FILENO};
    reader_left = reader_left || number == EPIPE || (poll(&output, 1, 0) > 0 && (output.revents & POLLERR));
    return status_fail(status, STATUS_MACHINE, "writing to stdout: %s", strerror(number));
}

/* Not by stdio, which loses what it holds where a signal interrupts a write. After a signal a reader that has no room for
 * a tenth of a second is not waited for. */
bool cli_write(const char *text, size_t size, struct status *status)
{
    enum { WAIT_MS = 100 };
    if (!cli_flush(status)) return false;
    while (size) {
        struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
        const ssize_t written = write(STDOUT_FILENO, text, size);
        if (written >= 0) {
            text += written;
            size -= (size_t)written;
        } else if (errno != EINTR || poll(&output, 1, WAIT_MS) <= 0) {
            reader_left = reader_left || errno == EPIPE;
            return status_fail(status, STATUS_MACHINE, "writing to stdout: %s", strerror(errno));
        }
    }
    return true;
}

static bool is_control(const unsigned char *text, size_t length)
{
    return (length == 1 && (text[0] < 0x20 || text[0] == 0x7f)) || (length == 2 && text[0] == 0xc2 && text[1] < 0xa0);
}

static void print_escaped(FILE *out, const char *text, size_t size, bool keeps_direction)
{
    for (size_t at = 0, bytes; at < size; at += bytes) {
        char escape[PRINTABLE_ESCAPE_BYTES];
        bytes = printable_length(text + at, size - at);
        if (!bytes && keeps_direction) bytes = printable_utf8(text + at, size - at);
        if (keeps_direction && is_control((const unsigned char *)text + at, bytes)) bytes = 0;
        if (text[at] == '\n' || text[at] == '\t') bytes = 1;
        if (bytes) {
            fwrite(text + at, 1, bytes, out);
        } else {
            bytes = printable_escape(text + at, size - at, escape);
            fputs(escape, out);
        }
    }
}

void cli_print_text(FILE *out, const char *text, size_t size) { print_escaped(out, text, size, false); }

bool cli_write_terminal(const char *text, size_t size, struct status *status)
{
    char *escaped = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&escaped, &length);
    if (memory) print_escaped(memory, text, size, true);
    bool ok = memory && !ferror(memory);
    if (memory) ok = fclose(memory) == 0 && ok;
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory for %zu bytes of output", size);
    ok = ok && cli_write(escaped, length, status);
    free(escaped);
    return ok;
}

void cli_print_wrapped(FILE *out, int columns, int first, int later, const char *text)
{
    for (int indent = first; *text; indent = later) {
        const size_t room = (size_t)(columns - indent), size = strlen(text);
        size_t end = size <= room ? size : room;
        while (end < size && end > 0 && text[end] != ' ') end--;
        if (end == 0) end = room; /* one long word */
        fprintf(out, "%*s%.*s\n", indent, "", (int)end, text);
        text += end;
        while (*text == ' ') text++;
    }
}

static double clock_seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double cli_seconds(void) { return clock_seconds(CLOCK_MONOTONIC); }

double cli_process_age(void)
{
    enum { START_TIME_FIELD = 22, NAME_FIELD = 2 };
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file) return -1;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    /* the name, in brackets, may contain spaces */
    char *at = strrchr(text, ')');
    for (int field = NAME_FIELD; at && field < START_TIME_FIELD; field++) {
        at = strchr(at, ' ');
        if (at) at++;
    }
    if (!at) return -1;
    double start = (double)strtoull(at, NULL, 10) / (double)sysconf(_SC_CLK_TCK);
    return clock_seconds(CLOCK_BOOTTIME) - start;
}

bool cli_read_stdin(char **text, size_t *size, struct status *status)
{
    size_t used = 0, capacity = 0;
    char *buffer = NULL;
    for (;;) {
        if (used + 1 >= capacity) {
            capacity = capacity ? 2 * capacity : 65536;
            char *larger = realloc(buffer, capacity);
            if (!larger) {
                status_fail(status, STATUS_MACHINE, "out of memory");
                break;
            }
            buffer = larger;
        }
        ssize_t got = -1;
        errno = EINTR;
        if (cli_wait_for_input()) got = read(STDIN_FILENO, buffer + used, capacity - 1 - used);
        if (got < 0) {
            status_fail_errno(status, STATUS_BAD_INPUT, errno, "reading from stdin");
            break;
        }
        if (got == 0) {
            buffer[used] = '\0';
            *text = buffer;
            *size = used;
            return true;
        }
        used += (size_t)got;
    }
    free(buffer);
    return false;
}
