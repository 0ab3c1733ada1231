/* SPDX-License-Identifier: Apache-2.0 */
/* eng.h from a caller's side: arguments, struct sizes, ownership, slots, text. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include "builder/build.h"

#include <math.h>
#include <pthread.h>

/* The binary interface: a change of any of these breaks programs that were built before. */
_Static_assert(sizeof(struct eng_error) == 640 && offsetof(struct eng_error, message) == 4, "eng_error");
_Static_assert(offsetof(struct eng_engine_facts, page_bytes) == 24, "eng_engine_facts");
_Static_assert(offsetof(struct eng_engine_facts, eos_tokens) == 56, "eng_engine_facts");
_Static_assert(offsetof(struct eng_engine_facts, open_seconds) == 136, "eng_engine_facts");
_Static_assert(offsetof(struct eng_session_options, instruction_set) == 32, "eng_session_options");
_Static_assert(offsetof(struct eng_session_facts, instruction_set) == 48, "eng_session_facts");
_Static_assert(offsetof(struct eng_sampling, seed) == 24, "eng_sampling");
_Static_assert(offsetof(struct eng_sampling, min_p) == 32, "eng_sampling");
_Static_assert(offsetof(struct eng_sampling, logit_bias) == 48, "eng_sampling");
_Static_assert(sizeof(struct eng_logit_bias) == 8 && sizeof(struct eng_logprob) == 8, "eng_logit_bias, eng_logprob");
_Static_assert(offsetof(struct eng_sequence_options, flags) == 36, "eng_sequence_options");

enum { PROMPT = 100, ANSWER = 12 };

TEST(test_statuses_are_pinned)
{
    assert_int_equal(ENG_BAD_INPUT, 1);
    assert_int_equal(ENG_TOO_LONG, 9);
    assert_int_equal(ENG_NOT_FINITE, 10);
    assert_int_equal(ENG_CANCELLED, 11);
    assert_int_equal(ENG_END_NOT_FINITE, 5);
    assert_int_equal(ENG_END_NONE_ALLOWED, 6);
    assert_string_equal(eng_status_name(ENG_FULL), "full");
    assert_string_equal(eng_status_name(12345), "unknown");
    char text[32];
    assert_string_equal(eng_version(), ENG_VERSION_TEXT);
    snprintf(text, sizeof text, "%d.%d.%d", ENG_VERSION_MAJOR, ENG_VERSION_MINOR, ENG_VERSION_PATCH);
    assert_string_equal(text, ENG_VERSION_TEXT);
    assert_int_equal(eng_version_number(), ENG_VERSION_NUMBER);
    assert_string_equal(BUILDER_VERSION, ENG_VERSION_TEXT); /* one release, one number */
}

/* Fields of later releases are 0, whatever the struct held. */
TEST(test_errors_can_grow)
{
    struct eng_engine *engine = NULL;
    struct eng_error reported;
    for (int i = 0; i < 2; i++) {
        memset(&reported, 0x5a, sizeof reported);
        assert_int_equal(eng_open(i ? fables_path() : NULL, NULL, &engine, &reported), i ? ENG_OK : ENG_USAGE);
        assert_int_equal(reported.status, i ? ENG_OK : ENG_USAGE);
        assert_int_equal(reported.message[0] == '\0', i);
        assert_int_equal(reported.reserved, 0);
        for (size_t k = 0; k < sizeof reported.more_reserved / sizeof *reported.more_reserved; k++)
            assert_int_equal(reported.more_reserved[k], 0);
    }
    eng_close(&engine);
}

TEST(test_struct_init)
{
    struct eng_sampling sampling;
    memset(&sampling, 0x5a, sizeof sampling);
    eng_struct_init(&sampling, offsetof(struct eng_sampling, min_p));
    assert_int_equal(sampling.struct_size, offsetof(struct eng_sampling, min_p));
    assert_int_equal(sampling.seed, 0);
    assert_true(sampling.min_p != 0); /* beyond the size */
    eng_struct_init(&sampling, 3);    /* no room for the size itself */
    assert_int_equal(sampling.struct_size, offsetof(struct eng_sampling, min_p));
    eng_struct_init(NULL, sizeof sampling);
}

TEST(test_open_refuses)
{
    struct eng_engine *engine = (void *)(uintptr_t)1;
    assert_int_equal(eng_open(NULL, NULL, &engine, &error), ENG_USAGE);
    assert_ptr_equal(engine, (void *)(uintptr_t)1); /* a call that failed changed nothing */
    assert_int_equal(eng_open(fables_path(), NULL, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_open("/nonexistent/x.eng", NULL, &engine, &error), ENG_NOT_FOUND);
    assert_int_equal(error.status, ENG_NOT_FOUND);
    assert_non_null(strstr(error.message, "/nonexistent/x.eng"));
    assert_int_equal(eng_open("/nonexistent/x.eng", NULL, &engine, NULL), ENG_NOT_FOUND); /* error may be NULL */
    assert_int_not_equal(eng_open("tests/models/fables/config.json", NULL, &engine, &error), ENG_OK);
    struct eng_open_options options;
    eng_open_options_init(&options);
    options.threads = 100000;
    assert_int_equal(eng_open(fables_path(), &options, &engine, &error), ENG_USAGE);
    assert_ptr_equal(engine, (void *)(uintptr_t)1);
    /* Options for GPUs, which an engine for processors refuses. */
    const uint32_t devices[] = {0};
    for (int i = 0; i < 3; i++) {
        eng_open_options_init(&options);
        if (i == 0) options.device = 1;
        if (i == 1) options.device_count = 1, options.devices = devices;
        if (i == 2) options.no_peer_access = 1;
        assert_int_equal(eng_open(fables_path(), &options, &engine, &error), ENG_USAGE);
        assert_non_null(strstr(error.message, "runs on processors"));
        assert_ptr_equal(engine, (void *)(uintptr_t)1);
    }
}

/* One bit of the weights: found by their hashes. */
TEST(test_open_verifies_weights)
{
    char path[400];
    snprintf(path, sizeof path, "%s.changed", fables_path());
    FILE *in = fopen(fables_path(), "rb"), *out = fopen(path, "wb");
    assert_non_null(in);
    assert_non_null(out);
    fseek(in, 0, SEEK_END);
    size_t size = (size_t)ftell(in);
    rewind(in);
    char *bytes = malloc(size);
    assert_int_equal(fread(bytes, 1, size, in), size);
    bytes[size / 2] = (char)(bytes[size / 2] ^ 4);
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    fclose(in);
    fclose(out);
    free(bytes);
    struct eng_engine *engine;
    assert_int_equal(eng_open(path, NULL, &engine, &error), ENG_CORRUPT);
    assert_non_null(strstr(error.message, "weights"));
    unlink(path);
}

TEST(test_struct_sizes)
{
    struct eng_session *session = NULL;
    struct {
        struct eng_session_options known;
        uint64_t newer[2];
    } options;
    memset(&options, 0, sizeof options);
    options.known.threads = 1;

    options.known.struct_size = 0; /* never initialised */
    assert_int_equal(eng_session_create(fables, &options.known, &session, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "eng_session_options_init"));
    assert_null(session);
    options.known.struct_size = 1u << 20;
    assert_int_equal(eng_session_create(fables, &options.known, &session, &error), ENG_USAGE);

    /* An older caller's struct ends after `threads`: later memory is not read. */
    options.known.struct_size = offsetof(struct eng_session_options, max_sequences);
    options.known.max_sequences = UINT32_MAX;
    CHECK(eng_session_create(fables, &options.known, &session, &error));
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.threads, 1);
    assert_int_equal(facts.max_sequences, 64);
    eng_session_destroy(&session);

    /* A newer caller's struct is longer: allowed while the rest is zero. */
    options.known.max_sequences = 3;
    options.known.struct_size = sizeof options;
    CHECK(eng_session_create(fables, &options.known, &session, &error));
    eng_session_destroy(&session);
    options.newer[1] = 1;
    assert_int_equal(eng_session_create(fables, &options.known, &session, &error), ENG_USAGE);

    struct {
        struct eng_engine_facts known;
        uint64_t newer;
    } newer_facts;
    memset(&newer_facts, 0xff, sizeof newer_facts);
    newer_facts.known.struct_size = sizeof newer_facts;
    CHECK(eng_engine_get_facts(fables, &newer_facts.known, &error));
    assert_int_equal(newer_facts.newer, 0);
    assert_int_equal(newer_facts.known.struct_size, sizeof newer_facts);
    struct eng_engine_facts older_facts;
    memset(&older_facts, 0xff, sizeof older_facts);
    older_facts.struct_size = offsetof(struct eng_engine_facts, slots);
    CHECK(eng_engine_get_facts(fables, &older_facts, &error));
    assert_int_equal(older_facts.max_context, FABLES_CONTEXT);
    assert_int_equal(older_facts.slots, UINT32_MAX); /* untouched */
}

TEST(test_handles)
{
    struct eng_engine *engine = fables_open(), *none = NULL;
    struct eng_session *session = fables_session(engine, NULL), *no_session = NULL;
    struct eng_text *stream, *no_stream = NULL;
    struct eng_sequence *sequence, *no_sequence = NULL;
    CHECK(eng_text_create(engine, 0, &stream, &error));
    eng_close(&engine);
    assert_null(engine);
    eng_close(&engine); /* twice */
    eng_close(&none);
    eng_close(NULL);
    /* Session and stream keep the engine open. */
    int32_t token = 300;
    const char *text;
    size_t size;
    CHECK(eng_text_push(stream, token, &text, &size, &error));
    CHECK(eng_sequence_create(session, NULL, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, &token, 1, &error));
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_poll(sequence, &token, 1), 1);
    eng_sequence_destroy(&sequence);
    eng_sequence_destroy(&sequence);
    eng_sequence_destroy(&no_sequence);
    eng_sequence_destroy(NULL);
    eng_text_destroy(&stream);
    eng_text_destroy(&stream);
    eng_text_destroy(&no_stream);
    eng_text_destroy(NULL);
    eng_session_destroy(&session);
    eng_session_destroy(&session);
    eng_session_destroy(&no_session);
    eng_session_destroy(NULL);
}

TEST(test_null_arguments)
{
    struct eng_session *session = fables_session(fables, NULL);
    uint32_t slot = 0;
    int32_t token = 300;
    size_t count;
    char text[8];
    assert_int_equal(eng_engine_get_facts(NULL, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_engine_get_facts(fables, NULL, &error), ENG_USAGE);
    assert_null(eng_info(NULL));
    struct eng_session *other = session;
    assert_int_equal(eng_session_create(NULL, NULL, &other, &error), ENG_USAGE);
    assert_ptr_equal(other, session);
    assert_int_equal(eng_session_create(fables, NULL, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_tokenize(NULL, "a", 1, 0, &token, 1, &count, &error), ENG_USAGE);
    assert_int_equal(eng_tokenize(fables, NULL, 1, 0, &token, 1, &count, &error), ENG_USAGE);
    assert_int_equal(eng_tokenize(fables, "a", 1, 0, NULL, 1, &count, &error), ENG_USAGE);
    assert_int_equal(eng_tokenize(fables, "a", 1, 64, &token, 1, &count, &error), ENG_USAGE);
    assert_int_equal(eng_detokenize(fables, NULL, 1, 0, text, 8, &count, &error), ENG_USAGE);
    assert_int_equal(eng_text_create(fables, 0, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_sequence_create(NULL, NULL, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_sequence_submit(NULL, &token, 1, &error), ENG_USAGE);
    assert_int_equal(eng_sequence_poll(NULL, &token, 1), 0);
    assert_null(eng_sequence_logits(NULL));
    eng_sequence_cancel(NULL);
    assert_int_equal(eng_step(NULL, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_slot_acquire(session, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_prefill(session, 0, &token, 1, NULL, NULL, &error), ENG_USAGE); /* not acquired */
    assert_int_equal(eng_prefill(session, 99, &token, 1, NULL, NULL, &error), ENG_USAGE);
    CHECK(eng_slot_acquire(session, &slot, &error));
    assert_int_equal(eng_prefill(session, slot, NULL, 1, NULL, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_prefill(session, slot, &token, 0, NULL, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_decode(session, &slot, &token, 1, NULL, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_selftest(NULL, NULL, &error), ENG_USAGE);
    eng_session_destroy(&session);
}

TEST(test_session_limits)
{
    struct eng_session *session;
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 5000;
    assert_int_equal(eng_session_create(fables, &options, &session, &error), ENG_USAGE);
    eng_session_options_init(&options);
    options.instruction_set = "sse9";
    assert_int_equal(eng_session_create(fables, &options, &session, &error), ENG_USAGE);
    eng_session_options_init(&options);
    options.kv_bytes = 1;
    assert_int_equal(eng_session_create(fables, &options, &session, &error), ENG_USAGE);
    eng_session_options_init(&options);
    options.max_sequences = 2;
    CHECK(eng_session_create(fables, &options, &session, &error));
    struct eng_sequence *sequences[3];
    CHECK(eng_sequence_create(session, NULL, &sequences[0], &error));
    CHECK(eng_sequence_create(session, NULL, &sequences[1], &error));
    assert_int_equal(eng_sequence_create(session, NULL, &sequences[2], &error), ENG_FULL);
    eng_sequence_destroy(&sequences[0]);
    CHECK(eng_sequence_create(session, NULL, &sequences[2], &error));
    eng_session_destroy(&session);
}

TEST(test_sampling_is_checked)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sampling good, bad;
    uint32_t slot;
    CHECK(eng_slot_acquire(session, &slot, &error));
    eng_sampling_init(&good);
    CHECK(eng_sampling_recommended(fables, &good, &error));
    CHECK(eng_slot_set_sampling(session, slot, &good, &error));
    CHECK(eng_slot_set_sampling(session, slot, NULL, &error)); /* greedy */
    bad = good, bad.temperature = -1;
    assert_int_equal(eng_slot_set_sampling(session, slot, &bad, &error), ENG_USAGE);
    bad = good, bad.temperature = 0.0f / 0.0f;
    assert_int_equal(eng_slot_set_sampling(session, slot, &bad, &error), ENG_USAGE);
    bad = good, bad.top_p = 1.5f;
    assert_int_equal(eng_slot_set_sampling(session, slot, &bad, &error), ENG_USAGE);
    bad = good, bad.top_k = UINT32_MAX;
    assert_int_equal(eng_slot_set_sampling(session, slot, &bad, &error), ENG_USAGE);
    static const float penalties[] = {-2, 1e-40f, 0.0099f, 1.1e6f, INFINITY, NAN};
    for (size_t i = 0; i < sizeof penalties / sizeof *penalties; i++) {
        bad = good, bad.repetition_penalty = penalties[i];
        assert_int_equal(eng_slot_set_sampling(session, slot, &bad, &error), ENG_USAGE);
        assert_non_null(strstr(error.message, "expected 0.01 to 1000000, or 0"));
    }
    bad = good, bad.repetition_penalty = 0.01f;
    CHECK(eng_slot_set_sampling(session, slot, &bad, &error));
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t token = 1 << 30;
    eng_sequence_options_init(&options);
    options.flags = 1u << 20;
    assert_int_equal(eng_sequence_create(session, &options, &sequence, &error), ENG_USAGE);
    eng_sequence_options_init(&options);
    options.context_tokens = FABLES_CONTEXT + 1;
    assert_int_equal(eng_sequence_create(session, &options, &sequence, &error), ENG_TOO_LONG);
    CHECK(eng_sequence_create(session, NULL, &sequence, &error));
    assert_int_equal(eng_sequence_submit(sequence, &token, 1, &error), ENG_BAD_INPUT);
    assert_int_equal(eng_prefill(session, slot, &token, 1, NULL, NULL, &error), ENG_BAD_INPUT);
    eng_session_destroy(&session);
}

/* The slot level in several ways: the whole prompt, pieces, pieces with a wrong end that is truncated, beside other
 * slots. */
TEST(test_slots)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(fables, &facts, &error));
    size_t row = facts.vocab_size * sizeof(float);
    float *logits[3] = {malloc(row), malloc(row), malloc(2 * row)};
    uint32_t slots[3], position;
    int32_t prompt[PROMPT], next[2];
    fables_tokens(3, prompt, PROMPT);
    for (int i = 0; i < 3; i++) CHECK(eng_slot_acquire(session, &slots[i], &error));

    CHECK(eng_prefill(session, slots[0], prompt, PROMPT, &next[0], logits[0], &error));
    CHECK(eng_prefill(session, slots[1], prompt, 33, NULL, NULL, &error));
    CHECK(eng_prefill(session, slots[1], prompt + 40, 30, &next[1], NULL, &error)); /* the wrong tokens */
    CHECK(eng_slot_truncate(session, slots[1], 33, &error));
    CHECK(eng_prefill(session, slots[1], prompt + 33, PROMPT - 33, &next[1], logits[1], &error));
    assert_int_equal(next[0], next[1]);
    assert_memory_equal(logits[0], logits[1], row);

    /* Decodes two slots at the same time, and the third token by token from the start. */
    CHECK(eng_decode(session, slots, next, 2, next, logits[2], &error));
    assert_memory_equal(logits[2], logits[2] + facts.vocab_size, row);
    for (size_t i = 0; i < PROMPT; i++)
        CHECK(eng_decode(session, &slots[2], &prompt[i], 1, &next[1], logits[1], &error));
    assert_memory_equal(logits[0], logits[1], row);
    CHECK(eng_slot_position(session, slots[2], &position, &error));
    assert_int_equal(position, PROMPT);

    uint32_t twice[2] = {slots[0], slots[0]};
    int32_t pair[2] = {300, 301};
    assert_int_equal(eng_decode(session, twice, pair, 2, next, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_slot_truncate(session, slots[0], PROMPT + 2, &error), ENG_USAGE);
    CHECK(eng_slot_release(session, slots[0], &error));
    assert_int_equal(eng_slot_release(session, slots[0], &error), ENG_USAGE);
    assert_int_equal(eng_decode(session, slots, pair, 1, next, NULL, &error), ENG_USAGE);
    for (int i = 0; i < 3; i++) free(logits[i]);
    eng_session_destroy(&session);
}

TEST(test_slots_run_out)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.kv_tokens = 48; /* three pages */
    struct eng_session *session = fables_session(fables, &options);
    uint32_t slots[FABLES_BATCH + 1], position;
    int32_t prompt[FABLES_CONTEXT + 1], next;
    fables_tokens(3, prompt, FABLES_CONTEXT + 1);
    for (int i = 0; i < FABLES_BATCH; i++) CHECK(eng_slot_acquire(session, &slots[i], &error));
    assert_int_equal(eng_slot_acquire(session, &slots[FABLES_BATCH], &error), ENG_FULL);
    CHECK(eng_prefill(session, slots[0], prompt, 32, &next, NULL, &error));
    CHECK(eng_prefill(session, slots[1], prompt, 1, &next, NULL, &error));
    assert_int_equal(eng_prefill(session, slots[2], prompt, 1, &next, NULL, &error), ENG_FULL);
    assert_int_equal(eng_decode(session, slots, &next, 1, &next, NULL, &error), ENG_FULL);
    CHECK(eng_slot_position(session, slots[0], &position, &error));
    assert_int_equal(position, 32);
    CHECK(eng_slot_truncate(session, slots[0], 16, &error)); /* a page comes back */
    CHECK(eng_prefill(session, slots[2], prompt, 1, &next, NULL, &error));
    eng_session_destroy(&session);

    session = fables_session(fables, NULL);
    CHECK(eng_slot_acquire(session, &slots[0], &error));
    assert_int_equal(eng_prefill(session, slots[0], prompt, FABLES_CONTEXT + 1, &next, NULL, &error), ENG_TOO_LONG);
    CHECK(eng_prefill(session, slots[0], prompt, FABLES_CONTEXT, &next, NULL, &error));
    assert_int_equal(eng_decode(session, slots, &next, 1, &next, NULL, &error), ENG_TOO_LONG);
    eng_session_destroy(&session);
}

/* The penalty applies to repeated tokens of prompt and answer, and no longer to tokens that were truncated. */
TEST(test_penalty_follows_truncation)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sampling sampling;
    uint32_t slots[2];
    int32_t prompt[PROMPT], next[2], greedy;
    fables_tokens(3, prompt, PROMPT);
    eng_sampling_init(&sampling);
    for (int i = 0; i < 2; i++) CHECK(eng_slot_acquire(session, &slots[i], &error));
    CHECK(eng_prefill(session, slots[0], prompt, 50, &greedy, NULL, &error));
    CHECK(eng_slot_truncate(session, slots[0], 0, &error));
    sampling.repetition_penalty = 1e6f;
    for (int i = 0; i < 2; i++) CHECK(eng_slot_set_sampling(session, slots[i], &sampling, &error));
    /* With the greedy answer in the prompt, another token must be drawn. */
    int32_t with[51];
    memcpy(with + 1, prompt, 50 * sizeof *prompt);
    with[0] = greedy;
    CHECK(eng_prefill(session, slots[0], with, 51, &next[0], NULL, &error));
    for (int i = 0; i < 51; i++) assert_int_not_equal(next[0], with[i]);
    CHECK(eng_slot_truncate(session, slots[0], 0, &error));
    CHECK(eng_prefill(session, slots[0], prompt, 50, &next[0], NULL, &error));
    CHECK(eng_prefill(session, slots[1], prompt, 50, &next[1], NULL, &error));
    assert_int_equal(next[0], next[1]);
    eng_session_destroy(&session);
}

static const char sample[] = "Once upon a time, there was a café in Genève \xf0\x9f\xa6\x8a.\nThe end";

static void check_text(const struct eng_engine *engine)
{
    int32_t tokens[128], few[2];
    size_t count, size, used = 0;
    char text[256], streamed[256];
    CHECK(eng_tokenize(engine, sample, strlen(sample), ENG_TEXT_ADD_SPECIAL, tokens, 128, &count, &error));
    size_t needed;
    assert_int_equal(eng_tokenize(engine, sample, strlen(sample), ENG_TEXT_ADD_SPECIAL, few, 2, &needed, &error),
                     ENG_TOO_LONG);
    assert_int_equal(needed, count);
    CHECK(eng_detokenize(engine, tokens, count, 0, text, sizeof text, &size, &error));
    assert_string_equal(text, sample);
    assert_int_equal(size, strlen(sample));
    assert_int_equal(eng_detokenize(engine, tokens, count, 0, text, size, &needed, &error), ENG_TOO_LONG);
    assert_int_equal(needed, size);

    /* The bytes of the tokens are those of the text, also where a token ends within a character. */
    uint32_t is_special;
    for (size_t i = count; i-- > 1; size -= needed) {
        CHECK(eng_token_bytes(engine, tokens[i], streamed, sizeof streamed, &needed, &is_special, &error));
        assert_memory_equal(text + size - needed, streamed, needed);
        assert_int_equal(is_special, 0);
        if (needed) assert_int_equal(eng_token_bytes(engine, tokens[i], NULL, 0, &needed, NULL, &error), ENG_TOO_LONG);
    }
    assert_int_equal(eng_token_bytes(engine, -1, streamed, sizeof streamed, &needed, NULL, &error), ENG_BAD_INPUT);
    assert_int_equal(eng_token_find(engine, "no such token", 13, &few[0], &error), ENG_NOT_FOUND);

    struct eng_text *stream;
    const char *piece;
    CHECK(eng_text_create(engine, 0, &stream, &error));
    for (int round = 0; round < 2; round++) { /* finish restarts the stream */
        used = 0;
        for (size_t i = 0; i < count; i++) {
            CHECK(eng_text_push(stream, tokens[i], &piece, &size, &error));
            assert_true(size == 0 || ((unsigned char)piece[0] & 0xc0) != 0x80); /* begins a character */
            memcpy(streamed + used, piece, size);
            used += size;
        }
        CHECK(eng_text_finish(stream, &piece, &size, &error));
        memcpy(streamed + used, piece, size + 1);
        assert_string_equal(streamed, sample);
    }
    assert_int_equal(eng_text_push(stream, -1, &piece, &size, &error), ENG_BAD_INPUT);
    eng_text_destroy(&stream);
}

TEST(test_text)
{
    check_text(fables);
    size_t count;
    char text[64];
    CHECK(eng_tokenize(fables, "", 0, 0, NULL, 0, &count, &error));
    assert_int_equal(count, 0);
    CHECK(eng_detokenize(fables, NULL, 0, 0, text, sizeof text, &count, &error));
    assert_int_equal(count, 0);
    int32_t bad = -7;
    assert_int_equal(eng_detokenize(fables, &bad, 1, 0, text, sizeof text, &count, &error), ENG_BAD_INPUT);
    struct eng_message message = {"user", "hello"};
    assert_int_equal(eng_chat(fables, &message, 1, ENG_CHAT_ANSWER, NULL, 0, &count, &error), ENG_BAD_INPUT);
    assert_non_null(strstr(error.message, "no chat template"));
}

static void *text_thread(void *engine)
{
    for (int i = 0; i < 50; i++) check_text(engine);
    return NULL;
}

TEST(test_text_on_two_threads)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, text_thread, fables), 0);
    text_thread(fables);
    pthread_join(thread, NULL);
}

TEST(test_selftest_and_info)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_selftest_result result;
    eng_selftest_result_init(&result);
    CHECK(eng_selftest(session, &result, &error));
    assert_true(result.tokens > 0);
    assert_true(result.largest_error <= result.tolerance);
    CHECK(eng_selftest(session, NULL, &error));
    const char *info = eng_info(fables);
    assert_non_null(strstr(info, "\"manifest\""));
    assert_non_null(strstr(info, "\"open_seconds\""));
    uint32_t slot;
    for (int i = 0; i < FABLES_BATCH; i++) CHECK(eng_slot_acquire(session, &slot, &error));
    assert_int_equal(eng_selftest(session, &result, &error), ENG_FULL);
    eng_session_destroy(&session);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
