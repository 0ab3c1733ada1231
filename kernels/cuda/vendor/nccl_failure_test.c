/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL with the fake driver and the fake NCCL (tests/fake_cuda): unsuitable libraries, ranks that do not join or do
 * something else, errors; none of them hangs. */
#include "kernels/cuda/vendor/test_nccl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

/* What ends by itself does so within ENOUGH_SECONDS on a machine that is busy. NCCL takes SLOW_END_SECONDS to end, for which a rank
 * does not wait. */
enum { ENOUGH_SECONDS = 30, SLOW_END_SECONDS = 20 };

static const char incomplete_folder[] = "tests/fake_cuda/incomplete";

static _Atomic uint64_t kernels_before; /* ranks wait in one more */

static bool says(struct test_nccl_rank *self, const char *words)
{
    bool found = self->status.code == STATUS_MACHINE && strstr(self->status.message, words);
    if (found) status_clear(&self->status);
    return found;
}

static void assert_all_zero(const void *object, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) assert_int_equal(((const char *)object)[i], 0);
}

TEST(test_versions)
{
    const struct {
        const char *version, *words; /* NULL: suitable */
    } cases[] = {
        {"21705", "NCCL: expected version 2.18 or later, found 2.17.5; install NCCL 2.18 or later"},
        {"2708", "found 2.7.8"},
        {"21799", "found 2.17.99"},
        {"21800", NULL},
        {"30000", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nccl other;
        struct status status = {0};
        setenv("FAKE_NCCL_VERSION", cases[i].version, 1);
        setenv("NCCL_NVLS_ENABLE", "1", 1);
        bool ok = nccl_open(&other, &status);
        assert_string_equal(getenv("NCCL_NVLS_ENABLE"), "0");
        if (cases[i].words) {
            test_expect_failure(ok, &status, STATUS_MACHINE, cases[i].words);
        } else {
            test_expect_success(ok, &status);
            assert_int_equal(other.version, atoi(cases[i].version));
            nccl_close(&other);
        }
        assert_all_zero(&other, sizeof other);
        nccl_close(&other);
    }
}

/* Output of --open with another folder for the library. */
static void expect_message_with(const char *folder, const char *words)
{
    int ends[2], result = 0;
    struct status status = {.code = STATUS_MACHINE};
    size_t used = 0;
    ssize_t count;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl("/proc/self/exe", "nccl_failure_test", "--open", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while ((count = read(ends[0], status.message + used, sizeof status.message - 1 - used)) > 0) used += (size_t)count;
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(WEXITSTATUS(result), STATUS_MACHINE);
    test_expect_message(&status, words);
}

/* A file of that name that is no library hides the machine's library. */
TEST(test_no_library)
{
    char *folder = test_folder();
    test_write(test_path(folder, "libnccl.so.2"), "no library", 10);
    expect_message_with(folder, "NCCL: expected libnccl.so.2, found none (|); install NCCL 2.18 or later");
    test_folder_remove(folder);
    expect_message_with(incomplete_folder,
                        "NCCL: expected the function ncclCommFinalize, found a libnccl.so.2 without it; install");
}

/* `ranks` are expected, and only some join in time or at all. */
static void expect_no_join(uint32_t ranks, uint32_t joining, const char *words)
{
    struct test_nccl_rank group[TEST_NCCL_RANKS];
    pthread_t threads[TEST_NCCL_RANKS];
    test_nccl_prepare(group, ranks, NULL);
    double start = test_nccl_now();
    for (uint32_t r = 0; r < joining; r++) {
        group[r].join_seconds = 0.3;
        assert_int_equal(pthread_create(&threads[r], NULL, test_nccl_be_rank, &group[r]), 0);
    }
    for (uint32_t r = 0; r < joining; r++) pthread_join(threads[r], NULL);
    assert_true(test_nccl_now() - start >= 0.3 && test_nccl_now() - start < ENOUGH_SECONDS);
    for (uint32_t r = 0; r < joining; r++) {
        test_expect_failure(group[r].failure[0] == 0, &group[r].status, STATUS_MACHINE, words);
        assert_all_zero(&group[r].rank, sizeof group[r].rank);
    }
    test_nccl_expect_no_segment(&group[0].id);
}

TEST(test_joining_without_others)
{
    expect_no_join(2, 1, "NCCL: rank 0 of 2 (GPU 0): expected all ranks to join, found that some had not after 0.3 s");
    expect_no_join(3, 2, "see that each of them runs");
    setenv("FAKE_NCCL_NEVER", "1", 1);
    expect_no_join(2, 2, "after 0.3 s");
}

TEST(test_joining_wrongly)
{
    struct device device;
    struct nccl_rank rank;
    struct status status = {0};
    const struct nccl_id none = {{0}};
    test_expect_success(device_open(&device, 0, &status) && device_enter(&device, &status), &status);
    memset(&rank, 0x55, sizeof rank);
    test_expect_failure(nccl_join(&rank, &test_nccl.nccl, &device, &none, 2, 2, 1, NULL, &status), &status,
                        STATUS_INTERNAL, "rank 2 of 2");
    assert_all_zero(&rank, sizeof rank);
    memset(&rank, 0x55, sizeof rank);
    test_expect_failure(
        nccl_join(&rank, &test_nccl.nccl, &device, &none, 0, 1, 1, NULL, &status), &status, STATUS_MACHINE,
        "NCCL: rank 0 of 1 (GPU 0): joining: error 2 (unhandled system error): a fake one says no more");
    assert_all_zero(&rank, sizeof rank);
    test_expect_failure(nccl_ok(&rank, &status), &status, STATUS_INTERNAL, "has not joined");
    nccl_abort(&rank);
    nccl_leave(&rank);
    device_leave(&device);
    device_close(&device);
}

static bool fail_calls(struct test_nccl_rank *self)
{
    cu_stream stream = self->device.stream;
    struct nccl_rank *rank = &self->rank;
    EXPECT(!nccl_all_reduce(rank, DTYPE_I32, self->from, self->to, 1, stream, &self->status));
    EXPECT(self->status.code == STATUS_INTERNAL);
    setenv("FAKE_NCCL_FAIL", "1", 1);
    EXPECT(!nccl_all_reduce(rank, DTYPE_F32, self->from, self->to, 1, stream, &self->status));
    EXPECT(says(self, "NCCL: rank 0 of 1 (GPU 0): queueing an all_reduce: error 2 (unhandled system error)"));
    EXPECT(!nccl_all_gather(rank, self->from, self->to, 1, stream, &self->status));
    EXPECT(says(self, "queueing an all_gather: error 2"));
    unsetenv("FAKE_NCCL_FAIL");
    EXPECT(nccl_ok(rank, &self->status));
    setenv("FAKE_NCCL_ASYNC_ERROR", "1", 1);
    EXPECT(!nccl_ok(rank, &self->status));
    EXPECT(says(self, "NCCL: rank 0 of 1 (GPU 0): working: error 6 (remote process exited"));
    EXPECT(!nccl_ok(rank, NULL));
    unsetenv("FAKE_NCCL_ASYNC_ERROR");
    rank->longest_seconds = 0.3;
    setenv("FAKE_NCCL_NEVER", "1", 1);
    EXPECT(!nccl_all_gather(rank, self->from, self->to, 1, stream, &self->status));
    EXPECT(says(self, "expected an all_gather to be queued, found it in progress after 0.3 s"));
    EXPECT(nccl_ok(rank, &self->status));
    double start = test_nccl_now();
    nccl_leave(rank); /* work in progress cannot be finalized */
    EXPECT(test_nccl_now() - start < ENOUGH_SECONDS);
    nccl_leave(rank);
    return true;
}

static bool never_finalize(struct test_nccl_rank *self)
{
    setenv("FAKE_NCCL_NEVER", "1", 1);
    double start = test_nccl_now();
    nccl_leave(&self->rank);
    double seconds = test_nccl_now() - start;
    EXPECT(seconds > 1 && seconds < ENOUGH_SECONDS);
    EXPECT(self->rank.gate == NULL);
    return true;
}

TEST(test_failures)
{
    test_nccl_run(1, fail_calls);
    unsetenv("FAKE_NCCL_NEVER");
    test_nccl_run(1, never_finalize);
}

static bool leave_slowly(struct test_nccl_rank *self)
{
    double start = test_nccl_now();
    nccl_leave(&self->rank);
    double seconds = test_nccl_now() - start;
    EXPECT(seconds > 1 && seconds < SLOW_END_SECONDS);
    return true;
}

/* NCCL takes longer to end than a rank waits: it continues after the device is closed. */
TEST(test_slow_end)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    setenv("FAKE_NCCL_SLOW_END", test_text("%d", SLOW_END_SECONDS), 1);
    test_nccl_run(2, leave_slowly);
    assert_int_not_equal(test_nccl.driver.live(-1), 0);
    for (double end = test_nccl_now() + ENOUGH_SECONDS; test_nccl.driver.live(-1) && test_nccl_now() < end;)
        nanosleep(&pause, NULL);
}

static bool differ(struct test_nccl_rank *self)
{
    EXPECT(!nccl_all_reduce(&self->rank, DTYPE_F32, self->from, self->to, 4 + self->number, self->device.stream,
                            &self->status));
    EXPECT(says(self, "error 5 (invalid usage)"));
    EXPECT(!nccl_ok(&self->rank, &self->status));
    EXPECT(says(self, "error 5"));
    return true;
}

/* Rank 0 detects that rank 1, which exists, does not take part. */
static bool keep_away(struct test_nccl_rank *self)
{
    if (self->number == 0) {
        nccl_all_reduce(&self->rank, DTYPE_F32, self->from, self->to, 4, self->device.stream, &self->status);
        atomic_store(&self->phase, 1);
        EXPECT(says(self, "error 6 (remote process exited"));
    }
    test_nccl_wait(self->first, 1);
    return true;
}

TEST(test_ranks_that_differ)
{
    test_nccl_run(2, differ);
    test_nccl_run(TEST_NCCL_RANKS, differ);
    setenv("FAKE_NCCL_TIMEOUT", "1", 1);
    test_nccl_run(2, keep_away);
}

/* Rank 0 waits in a collective, from a stream or a graph of several, which the other does not call: it aborts
 * rank 0. */
static bool wait_alone(struct test_nccl_rank *self, bool from_graph)
{
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    if (from_graph && !test_nccl_capture_three(self, &graph, &exec)) return false;
    uint64_t kernels = test_nccl.driver.kernels();
    atomic_store(&kernels_before, kernels);
    atomic_store(&self->phase, 1);
    double start = test_nccl_now();
    if (from_graph)
        CALL(GraphLaunch, exec, self->device.stream);
    else
        EXPECT(!test_nccl_queue_three(self) && says(self, "NCCL: rank 0 of 2 (GPU 0): aborted; start all ranks again"));
    EXPECT(test_nccl_now() - start < ENOUGH_SECONDS); /* FAKE_NCCL_TIMEOUT is longer */
    EXPECT(test_nccl.driver.kernels() == kernels + (from_graph ? 3 : 1));
    EXPECT(!nccl_ok(&self->rank, &self->status) && says(self, "aborted"));
    EXPECT(!nccl_all_gather(&self->rank, self->from, self->to, 1, self->device.stream, &self->status));
    EXPECT(says(self, "aborted"));
    nccl_abort(&self->rank);
    return !from_graph || test_nccl_release(self, graph, exec);
}

static bool abort_first(struct test_nccl_rank *self, bool from_graph)
{
    const struct timespec pause = {.tv_nsec = 1000000}, while_it_waits = {.tv_nsec = 100000000};
    if (self->number == 0) {
        bool ok = wait_alone(self, from_graph);
        test_nccl_wait(self, 2); /* before it leaves */
        return ok;
    }
    test_nccl_wait(self->first, 1);
    while (test_nccl.driver.kernels() == atomic_load(&kernels_before)) nanosleep(&pause, NULL);
    nanosleep(&while_it_waits, NULL);
    nccl_abort(&self->first->rank);
    atomic_store(&self->first->phase, 2);
    return true;
}

static bool abort_call(struct test_nccl_rank *self) { return abort_first(self, false); }
static bool abort_graph(struct test_nccl_rank *self) { return abort_first(self, true); }

TEST(test_abort)
{
    setenv("FAKE_NCCL_TIMEOUT", "60", 1);
    test_nccl_run(2, abort_call);
    test_nccl_run(2, abort_graph);
}

static int open_and_tell(void)
{
    struct nccl nccl;
    struct status status = {0};
    if (nccl_open(&nccl, &status)) nccl_close(&nccl);
    printf("%s", status.message);
    return (int)status.code;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--open") == 0) return open_and_tell();
    int result;
    if (!test_nccl_with_libraries(argv, &result)) return result;
    return test_run_with(test_nccl_find, test_nccl_begin, test_nccl_end, NULL);
}
