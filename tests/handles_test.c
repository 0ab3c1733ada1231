/* SPDX-License-Identifier: Apache-2.0 */
/* A failed call changes nothing: the handle passed to a create function keeps its value and still works. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

struct handles {
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_sequence *sequence;
    struct eng_text *stream;
};

static int set_up(void **state)
{
    static struct handles handles;
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.max_sequences = 1;
    handles.engine = fables_open();
    handles.session = fables_session(handles.engine, &options);
    CHECK(eng_sequence_create(handles.session, NULL, &handles.sequence, &error));
    CHECK(eng_text_create(handles.engine, 0, &handles.stream, &error));
    *state = &handles;
    return 0;
}

static int tear_down(void **state)
{
    struct handles *handles = *state;
    eng_text_destroy(&handles->stream);
    eng_sequence_destroy(&handles->sequence);
    eng_session_destroy(&handles->session);
    eng_close(&handles->engine);
    return 0;
}

/* A prompt through all four handles. */
static void expect_working(struct handles *handles)
{
    struct eng_engine_facts facts;
    int32_t tokens[4];
    const char *text;
    size_t size;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(handles->engine, &facts, &error));
    fables_tokens(1, tokens, 4);
    CHECK(eng_sequence_submit(handles->sequence, tokens, 4, &error));
    CHECK(eng_step(handles->session, NULL, &error));
    assert_int_equal(eng_sequence_poll(handles->sequence, tokens, 1), 1);
    CHECK(eng_text_push(handles->stream, tokens[0], &text, &size, &error));
}

TEST(test_engine)
{
    struct handles *handles = *state;
    struct eng_engine *const before = handles->engine;
    struct eng_open_options options;
    eng_open_options_init(&options);
    options.threads = 100000;
    assert_int_equal(eng_open(NULL, NULL, &handles->engine, &error), ENG_USAGE);
    assert_int_equal(eng_open("/nonexistent/x.eng", NULL, &handles->engine, &error), ENG_NOT_FOUND);
    assert_int_not_equal(eng_open("tests/models/fables/config.json", NULL, &handles->engine, &error), ENG_OK);
    assert_int_equal(eng_open(fables_path(), &options, &handles->engine, &error), ENG_USAGE);
    assert_ptr_equal(handles->engine, before);
    expect_working(handles);
}

TEST(test_session)
{
    struct handles *handles = *state;
    struct eng_session *const before = handles->session;
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.instruction_set = "none such";
    assert_int_equal(eng_session_create(NULL, NULL, &handles->session, &error), ENG_USAGE);
    assert_int_equal(eng_session_create(handles->engine, &options, &handles->session, &error), ENG_USAGE);
    options.struct_size = 1;
    assert_int_equal(eng_session_create(handles->engine, &options, &handles->session, &error), ENG_USAGE);
    assert_ptr_equal(handles->session, before);
    expect_working(handles);
}

TEST(test_sequence)
{
    struct handles *handles = *state;
    struct eng_sequence *const before = handles->sequence;
    assert_int_equal(eng_sequence_create(NULL, NULL, &handles->sequence, &error), ENG_USAGE);
    assert_int_equal(eng_sequence_create(handles->session, NULL, &handles->sequence, &error), ENG_FULL);
    assert_ptr_equal(handles->sequence, before);
    expect_working(handles);
}

TEST(test_text)
{
    struct handles *handles = *state;
    struct eng_text *const before = handles->stream;
    assert_int_equal(eng_text_create(NULL, 0, &handles->stream, &error), ENG_USAGE);
    assert_int_equal(eng_text_create(handles->engine, UINT32_C(1) << 31, &handles->stream, &error), ENG_USAGE);
    assert_ptr_equal(handles->stream, before);
    expect_working(handles);
}

int main(void) { return test_run_with(fables_build, set_up, tear_down, fables_remove); }
