/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of fuzz targets: an input within them passes, one that costs more ends the process and says so. */
#include "formats/base/test_support.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/fuzz/fuzz.h"
#include "formats/base/test_program.h"

/* The first byte says what to do. */
enum { NOTHING, KEEP_BELOW, KEEP_ABOVE, ONE_AFTER_THE_OTHER, GROW, WORK_SHORT, WORK_LONG, WORK_LONG_ONCE, SLEEP };

const struct fuzz_cost fuzz_cost = {.base_ms = 100,
                                    .us_per_byte = 1000,
                                    .base_bytes = 1 << 20,
                                    .bytes_per_byte = 1 << 10};

static void work(double ms)
{
    struct timespec now, begun;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begun);
    do clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    while ((double)(now.tv_sec - begun.tv_sec) * 1e3 + (double)(now.tv_nsec - begun.tv_nsec) * 1e-6 < ms);
}

/* Both at once. */
static void keep(size_t first, size_t second)
{
    char *volatile one = malloc(first), *volatile other = malloc(second);
    assert_non_null(one);
    assert_non_null(other);
    free(one);
    free(other);
}

static int times; /* that an input was tried */

int fuzz_try(const uint8_t *data, size_t size)
{
    const struct timespec pause = {.tv_nsec = 300000000};
    char *volatile block = NULL;
    times++;
    switch (size ? data[0] : NOTHING) {
    case KEEP_BELOW: keep(500 << 10, 500 << 10); break;
    case KEEP_ABOVE: keep(600 << 10, 600 << 10); break;
    case ONE_AFTER_THE_OTHER:
        for (int i = 0; i < 100; i++) keep(600 << 10, 1);
        break;
    case GROW:
        for (size_t bytes = 1; bytes <= 2 << 20; bytes *= 2) block = realloc(block, bytes);
        free(block);
        break;
    case WORK_SHORT: work(50); break;
    case WORK_LONG: work(150); break;
    case WORK_LONG_ONCE: work(times == 1 ? 150 : 1); break;
    case SLEEP: nanosleep(&pause, NULL); break;
    default: break;
    }
    return 0;
}

/* How a process that tries it ends, and what it says. */
static int run(uint8_t what, size_t size, char *text, size_t text_bytes)
{
    uint8_t *data = calloc(size, 1);
    int ends[2], result;
    assert_non_null(data);
    data[0] = what;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        dup2(ends[1], STDERR_FILENO);
        LLVMFuzzerTestOneInput(data, size);
        _exit(0);
    }
    close(ends[1]);
    ssize_t got = 0, used = 0;
    while ((got = read(ends[0], text + used, text_bytes - 1 - (size_t)used)) > 0) used += got;
    text[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    free(data);
    return result;
}

static void expect_pass(uint8_t what, size_t size)
{
    char text[1000];
    int result = run(what, size, text, sizeof text);
    if (!WIFEXITED(result) || WEXITSTATUS(result)) fail_msg("%d ended with %#x: %s", what, (unsigned)result, text);
}

static void expect_end(uint8_t what, size_t size, const char *words)
{
    char text[1000];
    int result = run(what, size, text, sizeof text);
    if (!WIFSIGNALED(result) || WTERMSIG(result) != SIGABRT) fail_msg("%d passed", what);
    if (!strstr(text, words)) fail_msg("'%s' is not in: %s", words, text);
}

TEST(memory)
{
    expect_pass(KEEP_BELOW, 1);
    expect_pass(ONE_AFTER_THE_OTHER, 1);
    expect_end(KEEP_ABOVE, 1, "fuzz: an input of 1 bytes took 1");
    expect_end(KEEP_ABOVE, 1, "bytes of memory, expected at most 1049600");
    expect_end(GROW, 1, "bytes of memory");
    expect_pass(KEEP_ABOVE, 400); /* a larger one may take more */
}

TEST(time_of_the_processor)
{
    expect_pass(WORK_SHORT, 1);
    expect_pass(SLEEP, 1); /* as it seems to a process on a busy machine */
    expect_pass(WORK_LONG_ONCE, 1);
    expect_end(WORK_LONG, 1, "ms, expected at most 101.0");
    expect_pass(WORK_LONG, 100);
}

int main(void) { return test_run(); }
