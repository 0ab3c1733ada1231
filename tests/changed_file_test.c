/* SPDX-License-Identifier: Apache-2.0 */
/* Effects on an open engine and its sessions when its file is written, truncated, replaced or unlinked. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "formats/engine/engine_layout.h"

enum { PROMPT = 40, NEW_TOKENS = 6, PAUSE_US = 50 * 1000 };

static char copy[512];
static int32_t expected[NEW_TOKENS];

/* A fresh copy of the engine, modified long ago: a change within one tick of the file system's clock would not be
 * detected. */
static const char *fresh_copy(void)
{
    const struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    char command[1200];
    snprintf(copy, sizeof copy, "%s.copy", fables_path());
    snprintf(command, sizeof command, "cp '%s' '%s'", fables_path(), copy);
    assert_int_equal(system(command), 0);
    assert_int_equal(utimensat(AT_FDCWD, copy, long_ago, 0), 0);
    return copy;
}

static int remove_copy(void **state)
{
    unlink(copy);
    return 0;
}

enum change { LEAVE, OVERWRITE, CUT, CUT_HALF, RENAME, UNLINK };

static void change_copy(enum change change)
{
    char other[600], letters[1 << 16];
    struct stat information;
    assert_int_equal(stat(copy, &information), 0);
    switch (change) {
    case LEAVE: break;
    case CUT: assert_int_equal(truncate(copy, 0), 0); break;
    case CUT_HALF: assert_int_equal(truncate(copy, information.st_size / 2), 0); break;
    case UNLINK: assert_int_equal(unlink(copy), 0); break;
    case OVERWRITE: {
        int descriptor = open(copy, O_WRONLY);
        assert_true(descriptor >= 0);
        memset(letters, 0x41, sizeof letters);
        for (off_t at = ENGINE_HEADER_SPACE; at < information.st_size; at += (off_t)sizeof letters) {
            const off_t rest = information.st_size - at;
            const size_t bytes = rest < (off_t)sizeof letters ? (size_t)rest : sizeof letters;
            assert_int_equal(pwrite(descriptor, letters, bytes, at), bytes);
        }
        close(descriptor);
        break;
    }
    case RENAME: {
        snprintf(other, sizeof other, "%s.new", copy);
        FILE *file = fopen(other, "wb");
        assert_non_null(file);
        fputs("another file", file);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(rename(other, copy), 0);
        break;
    }
    }
}

static struct eng_engine *open_copy(uint32_t private_weights)
{
    struct eng_engine *engine = NULL;
    struct eng_open_options options;
    eng_open_options_init(&options);
    options.private_weights = private_weights;
    CHECK(eng_open(copy, &options, &engine, &error));
    return engine;
}

static struct eng_session *make_session(struct eng_engine *engine)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 2;
    return fables_session(engine, &options);
}

static enum eng_status run_sequence(struct eng_session *session, int32_t *tokens)
{
    struct eng_sequence *sequence;
    struct eng_sequence_options options;
    int32_t prompt[PROMPT];
    uint32_t unfinished = 1;
    enum eng_status status = ENG_OK;
    fables_tokens(7, prompt, PROMPT);
    eng_sequence_options_init(&options);
    options.max_new_tokens = NEW_TOKENS;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    status = eng_sequence_create(session, &options, &sequence, &error);
    if (status != ENG_OK) return status;
    status = eng_sequence_submit(sequence, prompt, PROMPT, &error);
    while (status == ENG_OK && unfinished) status = eng_step(session, &unfinished, &error);
    if (status == ENG_OK) assert_int_equal(eng_sequence_poll(sequence, tokens, NEW_TOKENS), NEW_TOKENS);
    eng_sequence_destroy(&sequence);
    return status;
}

static void expect_tokens(struct eng_session *session)
{
    int32_t tokens[NEW_TOKENS];
    CHECK(run_sequence(session, tokens));
    assert_memory_equal(tokens, expected, sizeof tokens);
}

static int build(void **state)
{
    if (fables_build(state)) return -1;
    struct eng_engine *engine = fables_open();
    struct eng_session *session = make_session(engine);
    CHECK(run_sequence(session, expected));
    eng_session_destroy(&session);
    eng_close(&engine);
    return 0;
}

static void expect_changed(enum eng_status status)
{
    if (status != ENG_CORRUPT) fail_msg("status %s: %s", eng_status_name((int)status), error.message);
    for (size_t i = 0; i < 3; i++) {
        const char *words[] = {copy, "the file was changed in place while it was open", "replace a file by rename"};
        if (!strstr(error.message, words[i])) fail_msg("expected '%s', found '%s'", words[i], error.message);
    }
}

/* Text that comes from the file of an open engine. */
static void check_text(const struct eng_engine *engine)
{
    static const char text[] = "Once upon a time, a fox";
    int32_t tokens[64];
    char back[128];
    size_t count, size;
    CHECK(eng_tokenize(engine, text, strlen(text), 0, tokens, 64, &count, &error));
    assert_true(count > 3);
    CHECK(eng_detokenize(engine, tokens, count, 0, back, sizeof back, &size, &error));
    assert_string_equal(back, text);
    assert_non_null(strstr(eng_info(engine), "\"vocab_size\": 1536"));
}

TEST(a_changed_file_fails_sessions_for_good)
{
    static const enum change changes[] = {OVERWRITE, CUT, CUT_HALF};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        int32_t tokens[NEW_TOKENS];
        fresh_copy();
        struct eng_engine *engine = open_copy(0);
        struct eng_session *session = make_session(engine), *raw = make_session(engine), *late = NULL;
        uint32_t slot;
        CHECK(eng_slot_acquire(raw, &slot, &error));
        expect_tokens(session);
        change_copy(changes[i]);
        usleep(PAUSE_US);
        expect_changed(run_sequence(session, tokens));
        expect_changed(eng_step(session, NULL, &error));
        expect_changed(eng_prefill(raw, slot, expected, 2, tokens, NULL, &error));
        expect_changed(eng_decode(raw, &slot, expected, 1, tokens, NULL, &error));
        expect_changed(eng_selftest(raw, NULL, &error));
        expect_changed(eng_session_create(engine, NULL, &late, &error));
        check_text(engine);
        eng_session_destroy(&session);
        eng_session_destroy(&raw);
        eng_close(&engine);
    }
}

TEST(decode_steps_look_in_between)
{
    int32_t next[300], token = 300;
    uint32_t slot;
    fresh_copy();
    struct eng_engine *engine = open_copy(0);
    struct eng_session *session = make_session(engine);
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_decode_steps(session, &slot, &token, 1, 3, next, &error));
    change_copy(OVERWRITE);
    usleep(PAUSE_US);
    expect_changed(eng_decode_steps(session, &slot, &token, 1, 3, next, &error));
    eng_session_destroy(&session);
    eng_close(&engine);
}

/* The engine continues as if its file had not changed, in sessions made before and after. */
static void expect_no_effect(uint32_t private_weights, enum change change)
{
    fresh_copy();
    struct eng_engine *engine = open_copy(private_weights);
    struct eng_session *session = make_session(engine);
    change_copy(change);
    usleep(PAUSE_US);
    expect_tokens(session);
    CHECK(eng_selftest(session, NULL, &error));
    struct eng_session *late = make_session(engine);
    expect_tokens(late);
    check_text(engine);
    eng_session_destroy(&late);
    eng_session_destroy(&session);
    eng_close(&engine);
}

TEST(a_replaced_or_nameless_file_lives_on)
{
    for (enum change change = RENAME; change <= UNLINK; change++) expect_no_effect(0, change);
}

TEST(private_weights_do_not_depend_on_the_file)
{
    for (enum change change = LEAVE; change <= UNLINK; change++) expect_no_effect(1, change);
}

TEST(private_weights_are_verified)
{
    struct eng_engine *engine = NULL;
    struct eng_open_options options;
    struct engine file;
    fresh_copy();
    assert_true(engine_open(&file, copy, NULL));
    const off_t at = file.weights - file.bytes + 12345;
    engine_close(&file);
    int descriptor = open(copy, O_RDWR);
    char byte;
    assert_int_equal(pread(descriptor, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(descriptor, &byte, 1, at), 1);
    close(descriptor);
    eng_open_options_init(&options);
    options.private_weights = 1;
    assert_int_equal(eng_open(copy, &options, &engine, &error), ENG_CORRUPT);
    assert_non_null(strstr(error.message, "section 'weights': chunk 0 of "));
}

TEST(a_caller_lowers_the_limit)
{
    struct eng_engine *engine = NULL;
    struct eng_open_options options;
    eng_open_options_init(&options);
    options.max_host_bytes = 10000;
    assert_int_equal(eng_open(fables_path(), &options, &engine, &error), ENG_MACHINE);
    for (size_t i = 0; i < 3; i++) {
        const char *words[] = {"section '", "opening this file may take 10000", "max_host_bytes"};
        if (!strstr(error.message, words[i])) fail_msg("expected '%s', found '%s'", words[i], error.message);
    }
    options.max_host_bytes = 16 << 20;
    CHECK(eng_open(fables_path(), &options, &engine, &error));
    eng_close(&engine);
}

int main(void) { return test_run_with(build, NULL, remove_copy, fables_remove); }
