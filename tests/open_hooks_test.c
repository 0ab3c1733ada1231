/* SPDX-License-Identifier: Apache-2.0 */
/* What a program can give eng_open: a descriptor instead of a path, and functions for progress, messages and large memory. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void answer(struct eng_engine *engine, int32_t *tokens, size_t count)
{
    struct eng_session *session = fables_session(engine, NULL);
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    int32_t prompt[20];
    eng_sequence_options_init(&options);
    options.max_new_tokens = (uint32_t)count;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    fables_tokens(3, prompt, 20);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, 20, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, tokens, count), count);
    eng_session_destroy(&session);
}

/* ---- descriptors ---- */

TEST(a_descriptor_is_as_good_as_a_path)
{
    int32_t expected[12], found[12];
    struct eng_engine *engine = fables_open();
    answer(engine, expected, 12);
    eng_close(&engine);
    /* Renamed and unlinked since. */
    char other[320];
    snprintf(other, sizeof other, "%s.other", fables_path());
    assert_int_equal(link(fables_path(), other), 0);
    const int descriptor = open(other, O_RDONLY | O_CLOEXEC);
    assert_true(descriptor >= 0);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(lseek(descriptor, 77, SEEK_SET), 77);
    CHECK(eng_open_descriptor(descriptor, NULL, &engine, &error));
    assert_int_equal(lseek(descriptor, 0, SEEK_CUR), 77);
    assert_int_equal(close(descriptor), 0);
    answer(engine, found, 12);
    assert_memory_equal(found, expected, sizeof found);
    eng_close(&engine);
}

static void expect_refused(int descriptor, enum eng_status status, const char *text)
{
    struct eng_engine *engine = NULL;
    assert_int_equal(eng_open_descriptor(descriptor, NULL, &engine, &error), status);
    if (!strstr(error.message, text)) fail_msg("%s", error.message);
    assert_null(engine);
}

TEST(a_wrong_descriptor_is_named)
{
    int ends[2];
    char name[32];
    expect_refused(-1, ENG_USAGE, "descriptor is -1");
    expect_refused(-3, ENG_USAGE, "descriptor is -3");
    assert_int_equal(pipe(ends), 0);
    snprintf(name, sizeof name, "descriptor %d", ends[0]);
    expect_refused(ends[0], ENG_BAD_INPUT, name);
    close(ends[0]);
    close(ends[1]);
    expect_refused(ends[0], ENG_BAD_INPUT, "Bad file descriptor");
    const int empty = memfd_create("empty", MFD_CLOEXEC);
    expect_refused(empty, ENG_BAD_INPUT, "descriptor");
    close(empty);
    const int text = open("tests/models/fables/config.json", O_RDONLY | O_CLOEXEC);
    expect_refused(text, ENG_BAD_INPUT, "descriptor");
    close(text);
    char other[320];
    snprintf(other, sizeof other, "%s.written", fables_path());
    const int written = open(other, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(written, "x", 1), 1);
    expect_refused(written, ENG_BAD_INPUT, "cannot map");
    close(written);
    unlink(other);
}

/* ---- progress ---- */

struct progress {
    pthread_t thread;
    uint64_t last, total, calls, stop_after; /* calls; 0: never */
};

static int hear_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress *progress = context;
    assert_true(pthread_equal(progress->thread, pthread_self()));
    assert_in_range(done, progress->last, total);
    assert_true(progress->calls == 0 ? done == 0 : total == progress->total);
    progress->last = done;
    progress->total = total;
    return ++progress->calls == progress->stop_after;
}

static enum eng_status open_with_progress(struct progress *progress, uint32_t private_weights, uint64_t stop_after,
                                          struct eng_engine **engine)
{
    struct eng_open_options options;
    eng_open_options_init(&options);
    *progress = (struct progress){.thread = pthread_self(), .stop_after = stop_after};
    options.progress = hear_progress;
    options.progress_context = progress;
    options.private_weights = private_weights;
    return eng_open(fables_path(), &options, engine, &error);
}

TEST(progress_is_heard_from_nothing_to_all)
{
    for (uint32_t private_weights = 0; private_weights < 2; private_weights++) {
        struct progress progress;
        struct eng_engine_facts facts;
        struct eng_engine *engine = NULL;
        CHECK(open_with_progress(&progress, private_weights, 0, &engine));
        eng_engine_facts_init(&facts);
        CHECK(eng_engine_get_facts(engine, &facts, &error));
        assert_true(progress.calls >= 2);
        assert_int_equal(progress.total, facts.weights_bytes);
        assert_int_equal(progress.last, facts.weights_bytes);
        eng_close(&engine);
        const uint64_t calls = progress.calls;
        for (uint64_t stop_after = 1; stop_after <= calls; stop_after++) {
            assert_int_equal(open_with_progress(&progress, private_weights, stop_after, &engine), ENG_CANCELLED);
            assert_null(engine);
            assert_int_equal(progress.calls, stop_after);
            assert_non_null(strstr(error.message, "progress function"));
        }
    }
}

/* ---- messages ---- */

struct messages {
    char text[4096];
    int warnings;
};

static void note(void *context, int32_t level, const char *message)
{
    struct messages *messages = context;
    assert_true(level == ENG_LOG_INFO || level == ENG_LOG_WARNING);
    messages->warnings += level == ENG_LOG_WARNING;
    assert_null(strchr(message, '\n'));
    assert_true(strlen(messages->text) + strlen(message) + 2 < sizeof messages->text);
    strcat(strcat(messages->text, message), "\n");
}

TEST(messages_tell_what_happened)
{
    struct messages messages = {.warnings = 0};
    struct eng_open_options options;
    struct eng_session_options small;
    struct eng_engine *engine = NULL;
    eng_open_options_init(&options);
    options.log = note;
    options.log_context = &messages;
    assert_int_equal(eng_open("/no/such.eng", &options, &engine, &error), ENG_NOT_FOUND);
    assert_int_equal(messages.warnings, 1);
    assert_non_null(strstr(messages.text, "/no/such.eng"));
    messages = (struct messages){.warnings = 0};
    CHECK(eng_open(fables_path(), &options, &engine, &error));
    assert_non_null(strstr(messages.text, ": opened in "));
    eng_session_options_init(&small);
    small.kv_tokens = FABLES_CONTEXT;
    struct eng_session *session = fables_session(engine, &small);
    eng_close(&engine);
    assert_non_null(strstr(messages.text, "session: 8 slots, 24 KV pages, "));
    struct eng_sequence_options sequence_options;
    eng_sequence_options_init(&sequence_options);
    sequence_options.max_new_tokens = 250;
    sequence_options.flags = ENG_SEQUENCE_IGNORE_EOS;
    for (uint32_t i = 0; i < 2; i++) {
        struct eng_sequence *sequence = NULL;
        int32_t prompt[4];
        fables_tokens(i, prompt, 4);
        CHECK(eng_sequence_create(session, &sequence_options, &sequence, &error));
        CHECK(eng_sequence_submit(sequence, prompt, 4, &error));
    }
    fables_finish(session);
    assert_non_null(strstr(messages.text, "was set aside"));
    assert_int_equal(messages.warnings, 0);
    eng_session_destroy(&session);
}

/* ---- memory ---- */

struct arena {
    uint64_t taken, given, calls, refuse; /* refuse: the call that gets none; 0: each gets some */
    uint64_t skew;                        /* added to addresses */
};

static void *take(void *context, uint64_t bytes)
{
    struct arena *arena = context;
    if (++arena->calls == arena->refuse) return NULL;
    void *base = mmap(NULL, bytes + arena->skew, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    arena->taken += bytes;
    return (char *)base + arena->skew;
}

static void give(void *context, void *memory, uint64_t bytes)
{
    struct arena *arena = context;
    assert_int_equal(munmap((char *)memory - arena->skew, bytes + arena->skew), 0);
    arena->given += bytes;
}

static struct eng_open_options arena_options(struct arena *arena)
{
    struct eng_open_options options;
    eng_open_options_init(&options);
    options.private_weights = 1;
    options.memory_take = take;
    options.memory_give = give;
    options.memory_context = arena;
    return options;
}

TEST(large_memory_is_the_callers)
{
    struct arena arena = {.skew = 0};
    struct eng_open_options options = arena_options(&arena);
    struct eng_engine_facts facts;
    struct eng_session_facts session_facts;
    struct eng_engine *engine = NULL, *plain = fables_open();
    int32_t expected[12], found[12];
    answer(plain, expected, 12);
    eng_close(&plain);
    CHECK(eng_open(fables_path(), &options, &engine, &error));
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(engine, &facts, &error));
    assert_int_equal(arena.taken, facts.weights_bytes);
    struct eng_session *session = fables_session(engine, NULL);
    eng_session_facts_init(&session_facts);
    CHECK(eng_session_get_facts(session, &session_facts, &error));
    assert_in_range(arena.taken - facts.weights_bytes, session_facts.kv_bytes + 1, session_facts.memory_bytes);
    assert_int_equal(arena.given, 0);
    answer(engine, found, 12);
    assert_memory_equal(found, expected, sizeof found);
    eng_close(&engine);
    eng_session_destroy(&session);
    assert_int_equal(arena.given, arena.taken);
}

TEST(memory_that_is_refused_is_an_error)
{
    struct arena arena = {.skew = 0};
    struct eng_open_options options = arena_options(&arena);
    struct eng_engine *engine = NULL;
    struct eng_session *session = NULL;
    for (uint64_t refuse = 1; refuse <= 4; refuse++) {
        arena = (struct arena){.refuse = refuse};
        if (refuse == 1) {
            assert_int_equal(eng_open(fables_path(), &options, &engine, &error), ENG_MACHINE);
        } else {
            CHECK(eng_open(fables_path(), &options, &engine, &error));
            assert_int_equal(eng_session_create(engine, NULL, &session, &error), ENG_MACHINE);
            eng_close(&engine);
        }
        assert_non_null(strstr(error.message, "memory_take has no"));
        assert_int_equal(arena.given, arena.taken);
    }
    arena = (struct arena){.skew = 64};
    assert_int_equal(eng_open(fables_path(), &options, &engine, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "multiple of"));
    assert_int_equal(arena.given, arena.taken);
    options.memory_give = NULL;
    assert_int_equal(eng_open(fables_path(), &options, &engine, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "both or none"));
}

int main(void) { return test_run_with(fables_build, NULL, NULL, fables_remove); }
