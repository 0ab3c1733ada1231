/* SPDX-License-Identifier: Apache-2.0 */
/* Impossible counts: more tokens than the context holds are refused before any of them is read, and a KV pool larger
 * than all slots can use is reduced. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <sys/mman.h>

enum { SHORT = 3 };

/* The last tokens before memory that cannot be read. */
static int32_t *tokens_before_a_wall(void **page)
{
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *base = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    assert_int_equal(mprotect(base + bytes, bytes, PROT_NONE), 0);
    int32_t *tokens = (int32_t *)(void *)(base + bytes) - SHORT;
    fables_tokens(1, tokens, SHORT);
    *page = base;
    return tokens;
}

static void give_back(void *page) { munmap(page, 2 * (size_t)sysconf(_SC_PAGESIZE)); }

static void expect(enum eng_status status, const char *const *parts)
{
    if (error.status != (int32_t)status) fail_msg("status %d: %s", error.status, error.message);
    for (; *parts; parts++)
        if (!strstr(error.message, *parts)) fail_msg("expected '%s' in '%s'", *parts, error.message);
}

static const size_t counts[] = {FABLES_CONTEXT + 1, (size_t)UINT32_MAX + 2, SIZE_MAX / 4, SIZE_MAX - 1, SIZE_MAX};
enum { COUNTS = sizeof counts / sizeof counts[0] };

TEST(test_submit)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    void *page;
    char found[32];
    int32_t *tokens = tokens_before_a_wall(&page), drawn[4];
    struct eng_session *session = fables_session(fables, NULL);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_KEEP | ENG_SEQUENCE_IGNORE_EOS;
    options.max_new_tokens = 2;
    options.context_tokens = 100;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < COUNTS; i++) {
            snprintf(found, sizeof found, "found %zu", counts[i]);
            eng_sequence_submit(sequence, tokens, counts[i], &error);
            /* Three tokens and two drawn ones exist at the second turn. */
            expect(ENG_TOO_LONG, (const char *[]){turn ? "at most 95" : "at most 100", found, NULL});
        }
        CHECK(eng_sequence_submit(sequence, tokens, SHORT, &error));
        while (eng_sequence_state(sequence) != ENG_STATE_DONE) CHECK(eng_step(session, NULL, &error));
        assert_int_equal(eng_sequence_poll(sequence, drawn, 4), 2);
    }
    eng_session_destroy(&session);
    give_back(page);
}

TEST(test_slots)
{
    void *page;
    char found[32];
    uint32_t slot, position;
    int32_t *tokens = tokens_before_a_wall(&page), next;
    struct eng_session *session = fables_session(fables, NULL);
    CHECK(eng_slot_acquire(session, &slot, &error));
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < COUNTS; i++) {
            snprintf(found, sizeof found, "found %zu", counts[i]);
            eng_prefill(session, slot, tokens, counts[i], &next, NULL, &error);
            expect(ENG_TOO_LONG, (const char *[]){turn ? "at most 381" : "at most 384", found, NULL});
            eng_decode_steps(session, &slot, tokens, 1, counts[i], &next, &error);
            expect(ENG_TOO_LONG, (const char *[]){turn ? "at most 381" : "at most 384", found, NULL});
            /* The number of slots: neither their numbers nor their tokens are read. */
            eng_decode(session, &slot, tokens, counts[i], &next, NULL, &error);
            snprintf(found, sizeof found, "is %zu", counts[i]);
            expect(ENG_USAGE, (const char *[]){found, "at most 8", NULL});
        }
        if (turn == 0) CHECK(eng_prefill(session, slot, tokens, SHORT, &next, NULL, &error));
        CHECK(eng_slot_position(session, slot, &position, &error));
        assert_int_equal(position, SHORT);
    }
    eng_session_destroy(&session);
    give_back(page);
}

TEST(test_a_pool_beyond_use_is_cut)
{
    struct eng_engine_facts engine_facts;
    eng_engine_facts_init(&engine_facts);
    struct eng_engine *engine = fables_open();
    CHECK(eng_engine_get_facts(engine, &engine_facts, &error));
    const uint64_t useful = (uint64_t)FABLES_BATCH * FABLES_CONTEXT;
    const struct {
        uint64_t tokens, bytes, expected_tokens;
    } cases[] = {
        {useful, 0, useful},
        {useful - engine_facts.page_tokens, 0, useful - engine_facts.page_tokens},
        {useful - engine_facts.page_tokens + 1, 0, useful}, /* rounded up to pages */
        {useful + 1, 0, useful},
        {UINT64_MAX, 0, useful},
        {0, UINT64_MAX, useful},
        {0, useful / engine_facts.page_tokens * engine_facts.page_bytes * 2, useful},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct eng_session_options options;
        struct eng_session_facts facts;
        eng_session_options_init(&options);
        eng_session_facts_init(&facts);
        options.kv_tokens = cases[i].tokens;
        options.kv_bytes = cases[i].bytes;
        struct eng_session *session = fables_session(engine, &options);
        CHECK(eng_session_get_facts(session, &facts, &error));
        assert_int_equal((uint64_t)facts.pages * engine_facts.page_tokens, cases[i].expected_tokens);
        eng_session_destroy(&session);
    }
    eng_close(&engine);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
