/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that are shared, used again, and taken away: whatever happens to its pages, a sequence gets the tokens that it gets by itself. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <string.h>

enum { LONGEST = 256 };

struct request {
    int32_t prompt[LONGEST], answer[LONGEST];
    uint32_t count, wanted, polled;
    bool sampled;
    uint64_t seed;
    struct eng_sequence *sequence;
};

/* kept_bytes: as in the options. */
static struct eng_session *open_keeping(uint64_t kv_tokens, bool caches, uint64_t kept_bytes)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.kv_tokens = kv_tokens;
    options.no_prefix_cache = !caches;
    options.kept_bytes = kept_bytes;
    return fables_session(fables, &options);
}

static struct eng_session *open_session(uint64_t kv_tokens, bool caches) { return open_keeping(kv_tokens, caches, 0); }

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

static void begin(struct eng_session *session, struct request *request)
{
    const struct eng_sampling sampling = fables_sampling(request->sampled, request->seed);
    struct eng_sequence_options options;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = request->wanted;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    request->sequence = NULL;
    request->polled = 0;
    CHECK(eng_sequence_create(session, &options, &request->sequence, &error));
    CHECK(eng_sequence_submit(request->sequence, request->prompt, request->count, &error));
}

/* True: it is done, and destroyed. */
static bool poll_request(struct request *request, int32_t *answer)
{
    request->polled +=
        (uint32_t)eng_sequence_poll(request->sequence, answer + request->polled, LONGEST - request->polled);
    if (eng_sequence_state(request->sequence) != ENG_STATE_DONE) return false;
    assert_int_equal(request->polled, request->wanted);
    eng_sequence_destroy(&request->sequence);
    return true;
}

static void run_alone(struct eng_session *session, struct request *request)
{
    begin(session, request);
    fables_finish(session);
    assert_true(poll_request(request, request->answer));
}

/* Steps until the first token of the answer. */
static uint32_t steps_to_first(struct eng_session *session, struct request *request)
{
    uint32_t steps = 0;
    begin(session, request);
    while (eng_sequence_state(request->sequence) != ENG_STATE_DECODE) {
        CHECK(eng_step(session, NULL, &error));
        steps++;
    }
    return steps;
}

TEST(two_long_answers_fit_side_by_side)
{
    struct request requests[2] = {{.count = 4, .wanted = 250, .seed = 1},
                                  {.count = 4, .wanted = 250, .sampled = true, .seed = 2}};
    struct eng_session *plain = open_session(0, false), *session = open_session(FABLES_CONTEXT, true);
    for (uint32_t i = 0; i < 2; i++) {
        fables_tokens(40 + i, requests[i].prompt, requests[i].count);
        run_alone(plain, &requests[i]);
        begin(session, &requests[i]);
    }
    for (int i = 0; i < 8; i++) CHECK(eng_step(session, NULL, &error));
    for (int i = 0; i < 2; i++) assert_int_equal(eng_sequence_state(requests[i].sequence), ENG_STATE_DECODE);
    fables_finish(session);
    for (int i = 0; i < 2; i++) {
        int32_t answer[LONGEST];
        assert_true(poll_request(&requests[i], answer));
        assert_memory_equal(answer, requests[i].answer, requests[i].wanted * sizeof *answer);
    }
    assert_in_range(facts_of(session).set_aside, 1, 100); /* 508 tokens do not fit */
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
}

/* Four answers in the room of one and a half. Those that are set aside go on from pages in the host's memory, within its limit, and the last
 * one is cancelled while it has such pages. */
TEST(pages_of_sequences_that_are_set_aside_are_kept)
{
    enum { COUNT = 4, ROOM = FABLES_CONTEXT * 3 / 2 };
    static struct request requests[COUNT];
    struct eng_session *plain = open_session(0, false);
    for (uint32_t i = 0; i < COUNT; i++) {
        requests[i] = (struct request){.count = 40, .wanted = 200, .sampled = i % 2, .seed = i};
        fables_tokens(60 + i, requests[i].prompt, requests[i].count);
        run_alone(plain, &requests[i]);
    }
    const uint64_t page = facts_of(plain).kv_bytes / facts_of(plain).pages, limits[] = {1 << 24, 14 * page, 1};
    for (int l = 0; l < 3; l++)
        for (int caches = 0; caches < 2; caches++) {
            struct eng_session *session = open_keeping(ROOM, caches, limits[l]);
            struct eng_session_facts facts;
            uint64_t most = 0;
            for (uint32_t i = 0; i < COUNT; i++) begin(session, &requests[i]);
            uint32_t unfinished = COUNT;
            while (unfinished) {
                CHECK(eng_step(session, &unfinished, &error));
                facts = facts_of(session);
                if (facts.kept_bytes > most) most = facts.kept_bytes;
                struct eng_sequence **last = &requests[COUNT - 1].sequence;
                if (*last && facts.kept && eng_sequence_state(*last) == ENG_STATE_WAITING) eng_sequence_destroy(last);
            }
            for (uint32_t i = 0; i < COUNT; i++) {
                int32_t answer[LONGEST];
                if (!requests[i].sequence) continue;
                assert_true(poll_request(&requests[i], answer));
                assert_memory_equal(answer, requests[i].answer, requests[i].wanted * sizeof *answer);
            }
            assert_true(facts.set_aside > 0);
            assert_int_equal(facts.kept_bytes, 0);
            assert_true(most <= limits[l]);
            if (l < 2) assert_true(facts.kept > 0 && most > 0);
            if (l == 2) assert_int_equal(facts.kept, 0);
            eng_session_destroy(&session);
        }
    eng_session_destroy(&plain);
}

TEST(a_prompt_with_a_known_beginning_is_not_computed_again)
{
    struct request first = {.count = 250, .wanted = 20, .seed = 3}, second;
    struct eng_session *plain = open_session(0, false), *session = open_session(0, true);
    fables_tokens(50, first.prompt, first.count);
    second = first;
    fables_tokens(51, second.prompt + 240, 10);
    run_alone(plain, &first);
    run_alone(plain, &second);
    assert_int_equal(facts_of(plain).cached_tokens, 0);
    for (int round = 0; round < 2; round++) {
        int32_t answer[LONGEST];
        const uint32_t steps[2] = {steps_to_first(session, &first), steps_to_first(session, &second)};
        assert_in_range(steps[1], 1, 2); /* a chunk, and perhaps a token of the other */
        if (round == 0) assert_true(steps[0] > 3);
        fables_finish(session);
        assert_true(poll_request(&first, answer));
        assert_memory_equal(answer, first.answer, first.wanted * sizeof *answer);
        assert_true(poll_request(&second, answer));
        assert_memory_equal(answer, second.answer, second.wanted * sizeof *answer);
    }
    const struct eng_session_facts facts = facts_of(session);
    assert_in_range(facts.cached_tokens, 3 * 200, 2 * 250 + 2 * 240);
    assert_true(facts.cached_pages > 0);
    assert_int_equal(facts.free_pages, facts.pages);
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
}

/* The count is that of the latest prompt. */
TEST(tokens_of_prompts_from_the_cache_are_counted)
{
    enum { PAGE = 16, COUNT = 100, KNOWN = COUNT / PAGE * PAGE, TURN = 3 * PAGE };
    struct request first = {.count = COUNT, .wanted = 4, .seed = 5};
    struct eng_session *session = open_session(0, true);
    struct eng_sequence *fork = NULL;
    int32_t answer[LONGEST];
    fables_tokens(58, first.prompt, first.count);
    for (int round = 0; round < 2; round++) {
        begin(session, &first);
        assert_int_equal(eng_sequence_cached_tokens(first.sequence), 0);
        fables_finish(session);
        assert_int_equal(eng_sequence_cached_tokens(first.sequence), round ? KNOWN : 0);
        assert_true(poll_request(&first, answer));
    }
    /* A conversation: what it has itself is not found again. Its second prompt is known from another one. */
    struct eng_sequence_options options;
    struct eng_sequence *talk[2] = {NULL};
    eng_sequence_options_init(&options);
    options.max_new_tokens = 2 * PAGE - COUNT % PAGE + 1; /* so that all but the last token are in whole pages */
    options.flags = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_KEEP;
    for (int i = 0; i < 2; i++) {
        CHECK(eng_sequence_create(session, &options, &talk[i], &error));
        for (int turn = 0; turn < 2; turn++) {
            CHECK(eng_sequence_submit(talk[i], turn ? first.prompt + 1 : first.prompt, turn ? TURN : COUNT, &error));
            fables_finish(session);
            assert_int_equal(eng_sequence_poll(talk[i], answer, LONGEST), options.max_new_tokens);
            /* The first token of a page is the last one that was drawn before. */
            assert_int_equal(eng_sequence_cached_tokens(talk[i]), !turn ? KNOWN : i ? TURN / PAGE * PAGE - 1 : 0);
        }
    }
    CHECK(eng_sequence_fork(talk[1], NULL, &fork, &error));
    assert_int_equal(eng_sequence_cached_tokens(fork), TURN / PAGE * PAGE - 1);
    CHECK(eng_sequence_submit(fork, first.prompt + 7, 5, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_cached_tokens(fork), 0);
    assert_int_equal(eng_sequence_cached_tokens(NULL), 0);
    eng_session_destroy(&session);
}

TEST(tokens_of_a_sequence_that_was_set_aside_count_once)
{
    enum { PROMPT = 100, ANSWER = 150, KNOWN = (PROMPT - 1) / 16 * 16 };
    static struct request requests[3];
    struct eng_session *session = open_session(FABLES_CONTEXT, true);
    for (uint32_t i = 0; i < 3; i++) {
        requests[i] = (struct request){.count = PROMPT, .wanted = i ? ANSWER : 1, .seed = i};
        fables_tokens(59 + i / 2, requests[i].prompt, PROMPT);
    }
    int32_t answer[LONGEST];
    begin(session, &requests[0]); /* the same prompt as the next */
    fables_finish(session);
    assert_true(poll_request(&requests[0], answer));
    /* The younger of two that do not fit side by side knows its prompt from the first. */
    begin(session, &requests[2]);
    CHECK(eng_step(session, NULL, &error));
    begin(session, &requests[1]);
    fables_finish(session);
    assert_in_range(facts_of(session).set_aside, 1, 100);
    assert_int_equal(eng_sequence_cached_tokens(requests[1].sequence), KNOWN);
    assert_int_equal(eng_sequence_cached_tokens(requests[2].sequence), 0);
    assert_true(facts_of(session).cached_tokens > KNOWN); /* which counts tokens that are found again */
    eng_session_destroy(&session);
}

TEST(what_begins_together_is_computed_once)
{
    enum { TOGETHER = 4 };
    static struct request requests[TOGETHER];
    struct eng_session *plain = open_session(0, false), *session = open_session(0, true);
    for (uint32_t i = 0; i < TOGETHER; i++) {
        requests[i] = (struct request){.count = 250, .wanted = 12, .sampled = true, .seed = i};
        fables_tokens(55, requests[i].prompt, requests[i].count);
        run_alone(plain, &requests[i]);
        begin(session, &requests[i]);
    }
    fables_finish(session);
    for (int i = 0; i < TOGETHER; i++) {
        int32_t answer[LONGEST];
        assert_true(poll_request(&requests[i], answer));
        assert_memory_equal(answer, requests[i].answer, requests[i].wanted * sizeof *answer);
    }
    assert_in_range(facts_of(session).cached_tokens, (TOGETHER - 1) * 200, (TOGETHER - 1) * 250);
    assert_int_equal(facts_of(session).free_pages, facts_of(session).pages);
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
}

/* A prompt that comes while another answers is divided into small parts, each beside a token of the other. */
TEST(a_long_prompt_lets_others_speak)
{
    struct request talker = {.count = 4, .wanted = 200, .seed = 8}, reader = {.count = 240, .wanted = 8, .seed = 9};
    struct eng_session *plain = open_session(0, false), *session;
    struct eng_session_options options;
    int32_t answer[LONGEST];
    eng_session_options_init(&options);
    options.prompt_step = 16;
    session = fables_session(fables, &options);
    fables_tokens(70, talker.prompt, talker.count);
    fables_tokens(71, reader.prompt, reader.count);
    run_alone(plain, &talker);
    run_alone(plain, &reader);
    assert_int_equal(steps_to_first(session, &talker), 1);
    const uint32_t steps = steps_to_first(session, &reader);
    assert_int_equal(steps, 240 / 16);
    assert_int_equal(eng_sequence_poll(talker.sequence, answer, LONGEST), 1 + steps);
    talker.polled = 1 + steps;
    fables_finish(session);
    assert_true(poll_request(&talker, answer));
    assert_memory_equal(answer, talker.answer, talker.wanted * sizeof *answer);
    assert_true(poll_request(&reader, answer));
    assert_memory_equal(answer, reader.answer, reader.wanted * sizeof *answer);
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
}

/* An answer is part of the next prompt. */
TEST(a_conversation_goes_on_where_it_was)
{
    struct request request = {.count = 30, .wanted = 60, .seed = 4};
    struct eng_session *plain = open_session(0, false), *session = open_session(0, true);
    fables_tokens(60, request.prompt, request.count);
    for (int turn = 0; turn < 3; turn++) {
        int32_t answer[LONGEST];
        const uint64_t before = facts_of(session).cached_tokens;
        run_alone(plain, &request);
        begin(session, &request);
        fables_finish(session);
        assert_true(poll_request(&request, answer));
        assert_memory_equal(answer, request.answer, request.wanted * sizeof *answer);
        if (turn) assert_true(facts_of(session).cached_tokens - before > request.count / 2);
        memcpy(request.prompt + request.count, answer, request.wanted * sizeof *answer);
        request.count += request.wanted;
        fables_tokens(61 + (uint32_t)turn, request.prompt + request.count, 9);
        request.count += 9;
        request.wanted = 30;
    }
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
}

/* Prompts are made of few pieces, so that many begin alike and some differ in one token alone, and the pool holds a few of them. */
static void make_prompt(struct request *request, uint64_t *random)
{
    enum { PIECES = 4 };
    *request = (struct request){.wanted = 1 + (uint32_t)(test_random(random) % 120),
                                .sampled = test_random(random) % 2,
                                .seed = test_random(random) % 3};
    const uint32_t pieces = 1 + (uint32_t)(test_random(random) % 4);
    for (uint32_t i = 0; i < pieces; i++) {
        const uint32_t length = 16 * (1 + (uint32_t)(test_random(random) % 3));
        fables_tokens((uint32_t)(test_random(random) % PIECES), request->prompt + request->count, length);
        request->count += length;
    }
    request->count -= (uint32_t)(test_random(random) % 9);
    if (test_random(random) % 4 == 0) fables_tokens(99, request->prompt + test_random(random) % request->count, 1);
}

TEST(no_text_of_another_sequence_after_evictions)
{
    enum { REQUESTS = 160, AT_ONCE = 12 };
    const uint32_t count = test_sanitized() ? REQUESTS / 4 : REQUESTS;
    static struct request requests[REQUESTS];
    struct eng_session *plain = open_session(0, false), *session = open_session(FABLES_CONTEXT, true);
    uint64_t random = 11;
    struct request *running[AT_ONCE] = {NULL};
    static int32_t answers[AT_ONCE][LONGEST];
    uint32_t begun = 0, done = 0;
    for (uint32_t i = 0; i < count; i++) {
        make_prompt(&requests[i], &random);
        run_alone(plain, &requests[i]);
    }
    while (done < count) {
        struct request **place = &running[test_random(&random) % AT_ONCE];
        int32_t *answer = answers[place - running];
        if (*place && test_random(&random) % 64 == 0) {
            eng_sequence_destroy(&(*place)->sequence);
            *place = NULL;
            done++;
        } else if (!*place && begun < count) {
            *place = &requests[begun++];
            begin(session, *place);
        } else if (*place && poll_request(*place, answer)) {
            assert_memory_equal(answer, (*place)->answer, (*place)->wanted * sizeof *answer);
            *place = NULL;
            done++;
        }
        if (test_random(&random) % 2) CHECK(eng_step(session, NULL, &error));
    }
    const struct eng_session_facts facts = facts_of(session);
    assert_int_equal(facts.free_pages, facts.pages);
    assert_true(facts.cached_tokens > count);
    assert_in_range(facts.set_aside, 1, 1000);
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
