/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache of models with windows and with recurrent state: what a sequence goes on from is found, and whatever is shared,
 * evicted, forked or saved, a sequence gets the tokens that it gets by itself. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/base/test_support.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { VOCAB = 320, PAGE = 16, LONGEST = FABLES_CONTEXT, LEAST = 128 };

#define SIZES SIZES_OF("320")
#define SIZES_OF(vocab)                                                                                        \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, " \
    "\"vocab_size\": " vocab ", \"max_position_embeddings\": 512, \"bos_token_id\": 1, \"eos_token_id\": 2, "  \
    "\"dtype\": \"bfloat16\", \"num_hidden_layers\": 4"
#define ROPE "\"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}"

/* The windows are of several pages and end inside of one. */
#define OLMO3 OLMO3_OF(SIZES)
#define OLMO3_OF(sizes)                                                                                              \
    "\"model_type\": \"olmo3\", " sizes ", " ROPE ", \"pad_token_id\": 1, \"sliding_window\": 40, \"layer_types\": " \
    "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\"]"
#define COHERE2                                                                                              \
    "\"model_type\": \"cohere2\", " SIZES ", " ROPE ", \"layer_norm_eps\": 1e-05, \"logit_scale\": 0.0625, " \
    "\"sliding_window\": 40, \"layer_types\": "                                                              \
    "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\"]"
#define MISTRAL "\"model_type\": \"mistral\", " SIZES ", \"rope_theta\": 10000.0, \"sliding_window\": 40"
#define LFM2    LFM2_OF(SIZES)
#define LFM2_OF(sizes)                                                                                          \
    "\"model_type\": \"lfm2\", " sizes ", " ROPE ", \"conv_L_cache\": 3, \"block_auto_adjust_ff_dim\": false, " \
    "\"layer_types\": [\"conv\", \"full_attention\", \"conv\", \"full_attention\"]"
#define QWEN3_5                                                                                    \
    "\"model_type\": \"qwen3_5_text\", " SIZES ", \"head_dim\": 32, \"linear_num_key_heads\": 2, " \
    "\"linear_num_value_heads\": 4, \"linear_key_head_dim\": 16, \"linear_value_head_dim\": 16, "  \
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.25}"
#define GRANITE                                                                                                \
    "\"model_type\": \"granitemoehybrid\", " SIZES ", \"layer_types\": [\"mamba\", \"attention\", \"mamba\", " \
    "\"mamba\"], \"num_local_experts\": 0, \"shared_intermediate_size\": 96, \"mamba_n_heads\": 8, "           \
    "\"mamba_d_state\": 32"

static const struct family {
    const char *config;
    uint32_t ranks;
    bool recurrent;
} families[] = {
    {OLMO3, 1, false},   {MISTRAL, 1, false}, {LFM2, 1, true},    {QWEN3_5, 1, true},
    {COHERE2, 2, false}, {QWEN3_5, 2, true},  {GRANITE, 1, true}, {GRANITE, 2, true},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* With the tokenizer of the shipped model, for grammars. */
#define WITH_TEXT SIZES_OF("1536")
static const struct family bound_families[] = {{LFM2_OF(WITH_TEXT), 1, true}, {OLMO3_OF(WITH_TEXT), 1, false}};
enum { BOUND_FAMILIES = sizeof bound_families / sizeof *bound_families };

static char *folder;
static struct eng_engine *engines[FAMILIES], *bound_engines[BOUND_FAMILIES];

/* number: of the model's folder. */
static struct eng_engine *make_engine(const struct family *family, int number, const char *tokenizer)
{
    char config[300], model[300], path[512], command[1200];
    struct eng_engine *engine = NULL;
    struct status status = {0};
    snprintf(config, sizeof config, "%s/config%d", folder, number);
    snprintf(model, sizeof model, "%s/model%d", folder, number);
    snprintf(path, sizeof path, "%s/config.json", config);
    if (mkdir(config, 0700)) return NULL;
    FILE *out = fopen(path, "w");
    if (!out || fprintf(out, "{%s}\n", family->config) < 0 || fclose(out)) return NULL;
    snprintf(command, sizeof command, "tests/make_checkpoint --config %s -o %s 2>/dev/null", config, model);
    if (system(command)) return NULL;
    snprintf(command, sizeof command, "cp %s %s", tokenizer ? tokenizer : "", model);
    if (tokenizer && system(command)) return NULL;
    snprintf(path, sizeof path, "%s/%d.eng", folder, number);
    if (!fables_build_model(model, path, family->ranks, &status)) {
        fprintf(stderr, "%s\n%s\n", family->config, status.message);
        return NULL;
    }
    CHECK(eng_open(path, NULL, &engine, &error));
    return engine;
}

static int build(void **state)
{
    folder = test_folder();
    for (int f = 0; f < FAMILIES; f++)
        if (!(engines[f] = make_engine(&families[f], f, NULL))) return -1;
    for (int f = 0; f < BOUND_FAMILIES; f++)
        if (!(bound_engines[f] = make_engine(&bound_families[f], FAMILIES + f, "tests/models/fables/tokenizer.json")))
            return -1;
    return 0;
}

static int clean_up(void **state)
{
    for (int f = 0; f < FAMILIES; f++) eng_close(&engines[f]);
    for (int f = 0; f < BOUND_FAMILIES; f++) eng_close(&bound_engines[f]);
    test_folder_remove(folder);
    return 0;
}

/* In sessions with a cache. 0: pages of sequences that are set aside are computed again. */
static uint64_t kept_bytes;

static struct eng_session *open_session(struct eng_engine *engine, uint64_t kv_tokens, bool caches)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 2;
    options.kv_tokens = kv_tokens;
    options.no_prefix_cache = !caches;
    if (caches) options.kept_bytes = kept_bytes;
    return fables_session(engine, &options);
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

static void close_session(struct eng_session *session)
{
    const struct eng_session_facts facts = facts_of(session);
    assert_int_equal(facts.free_pages, facts.pages);
    assert_int_equal(facts.free_slots, facts.slots);
    eng_session_destroy(&session);
}

static void some_tokens(uint32_t seed, int32_t *tokens, size_t count)
{
    fables_tokens(seed, tokens, count);
    for (size_t i = 0; i < count; i++) tokens[i] = 3 + tokens[i] % (VOCAB - 3);
}

/* Two prompts and their answers. */
struct request {
    int32_t prompts[2][LONGEST], answers[2][LONGEST];
    uint32_t counts[2], wanted;
    bool sampled;
    uint64_t seed;
};

static struct eng_sequence *create(struct eng_session *session, const struct request *request)
{
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    eng_sampling_init(&sampling);
    if (request->sampled) sampling.temperature = 1, sampling.seed = request->seed, sampling.repetition_penalty = 1.1f;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = request->wanted;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_KEEP;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    return sequence;
}

static void submit(struct eng_sequence *sequence, const struct request *request, int turn)
{
    CHECK(eng_sequence_submit(sequence, request->prompts[turn], request->counts[turn], &error));
}

/* A session without cache says what the answers are. */
static void run_alone(struct eng_session *session, struct request *request)
{
    struct eng_sequence *sequence = create(session, request);
    for (int turn = 0; turn < 2 && request->counts[turn]; turn++) {
        submit(sequence, request, turn);
        fables_finish(session);
        assert_int_equal(eng_sequence_poll(sequence, request->answers[turn], LONGEST), request->wanted);
    }
    eng_sequence_destroy(&sequence);
}

/* Returns how many tokens of the prompt the cache had. */
static uint64_t run_first_turn(struct eng_session *session, const struct request *request)
{
    int32_t answer[LONGEST];
    const uint64_t before = facts_of(session).cached_tokens;
    struct eng_sequence *sequence = create(session, request);
    submit(sequence, request, 0);
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, answer, LONGEST), request->wanted);
    assert_memory_equal(answer, request->answers[0], request->wanted * sizeof *answer);
    eng_sequence_destroy(&sequence);
    return facts_of(session).cached_tokens - before;
}

/* The same prompt; one that branches off, which is found where it does by a third one; and a conversation that goes on. */
static void check_places(struct eng_engine *engine)
{
    enum { PROMPT = 300, COMMON = 215, WHOLE = COMMON / PAGE * PAGE };
    static struct request first, other, third, later;
    struct eng_session *plain = open_session(engine, 0, false), *session = open_session(engine, 0, true);
    first = (struct request){.counts = {PROMPT, 0}, .wanted = 40};
    some_tokens(1, first.prompts[0], PROMPT);
    other = third = later = first;
    some_tokens(2, other.prompts[0] + COMMON, PROMPT - COMMON);
    some_tokens(3, third.prompts[0] + COMMON, PROMPT - COMMON);
    run_alone(plain, &first);
    run_alone(plain, &other);
    run_alone(plain, &third);
    memcpy(later.prompts[0] + PROMPT, first.answers[0], 40 * sizeof *first.answers[0]);
    later.counts[0] = PROMPT + 41;
    later.prompts[0][PROMPT + 40] = 7;
    later.wanted = 10;
    run_alone(plain, &later);
    assert_int_equal(run_first_turn(session, &first), 0);
    assert_int_equal(run_first_turn(session, &first), (PROMPT - 1) / PAGE * PAGE);
    assert_in_range(run_first_turn(session, &other), LEAST, WHOLE);
    assert_int_equal(run_first_turn(session, &third), WHOLE);
    assert_in_range(run_first_turn(session, &later), (PROMPT - 1) / PAGE * PAGE, PROMPT + 40);
    assert_int_equal(facts_of(plain).cached_tokens, 0);
    assert_true(facts_of(session).cached_pages > 0);
    close_session(session);
    close_session(plain);
}

TEST(prompts_begin_where_earlier_ones_were)
{
    for (int f = 0; f < FAMILIES; f++) check_places(engines[f]);
}

/* ---- logits that are not finite ---- */

/* A step of a sequence has no finite logits. A second sequence finds no page and no checkpoint beyond the tokens after which the first one had
 * drawn, and gets the tokens that it gets by itself. Returns whether the first sequence had ended before that step. */
static bool check_failure(struct eng_engine *engine, const struct request *request, const struct request *later,
                          int failing_step)
{
    int32_t answer[LONGEST];
    struct eng_session_options options;
    struct eng_session *session = NULL;
    struct status status = {0};
    eng_session_options_init(&options);
    test_expect_success(session_create(engine, &test_backend, &options, &session, &status), &status);
    struct eng_sequence *sequence = create(session, request);
    test_backend_settings.not_finite = failing_step;
    submit(sequence, request, 0);
    fables_finish(session);
    const bool had_ended = test_backend_settings.not_finite > 0;
    test_backend_settings.not_finite = 0;
    const uint32_t drawn = (uint32_t)eng_sequence_poll(sequence, answer, LONGEST);
    const bool failed = eng_sequence_end(sequence) == ENG_END_NOT_FINITE;
    eng_sequence_destroy(&sequence);
    assert_memory_equal(answer, request->answers[0], drawn * sizeof *answer);
    const uint64_t found = run_first_turn(session, later);
    if (failed) assert_in_range(found, 0, drawn ? request->counts[0] + drawn - 1 : 0);
    if (!failed) assert_in_range(found, LEAST, later->counts[0]);
    close_session(session);
    return had_ended;
}

TEST(what_led_to_logits_that_are_not_finite_is_not_found)
{
    enum { PROMPT = 150, WANTED = 2 * PAGE + 4 };
    static struct request request, later;
    for (int f = 0; f < FAMILIES; f++) {
        if (families[f].ranks > 1) continue;
        struct eng_session *plain = open_session(engines[f], 0, false);
        request = (struct request){.counts = {PROMPT, 0}, .wanted = WANTED};
        some_tokens(5, request.prompts[0], PROMPT);
        run_alone(plain, &request);
        later = (struct request){.counts = {PROMPT + WANTED + 1, 0}, .wanted = 4};
        memcpy(later.prompts[0], request.prompts[0], PROMPT * sizeof(int32_t));
        memcpy(later.prompts[0] + PROMPT, request.answers[0], WANTED * sizeof(int32_t));
        later.prompts[0][PROMPT + WANTED] = 7;
        run_alone(plain, &later);
        close_session(plain);
        test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
        int steps = 1;
        while (!check_failure(engines[f], &request, &later, steps)) steps++;
        assert_true(steps > WANTED);
    }
}

/* What others had drawn after stays for them when a text that goes on from it fails. */
TEST(a_beginning_from_which_finite_logits_came_stays)
{
    enum { PROMPT = 300, COMMON = 215, WHOLE = COMMON / PAGE * PAGE, WANTED = 40 };
    static struct request first, others[3], later;
    for (int f = 0; f < FAMILIES; f++) {
        struct eng_session_options options;
        struct eng_session *plain = open_session(engines[f], 0, false), *session = NULL;
        struct status status = {0};
        if (families[f].ranks > 1) {
            close_session(plain);
            continue;
        }
        first = (struct request){.counts = {PROMPT, 0}, .wanted = WANTED};
        some_tokens(1, first.prompts[0], PROMPT);
        for (uint32_t i = 0; i < 3; i++) {
            others[i] = first;
            some_tokens(2 + i, others[i].prompts[0] + COMMON, PROMPT - COMMON);
            run_alone(plain, &others[i]);
        }
        run_alone(plain, &first);
        later = (struct request){.counts = {PROMPT + WANTED + 1, 0}, .wanted = 4};
        memcpy(later.prompts[0], first.prompts[0], PROMPT * sizeof(int32_t));
        memcpy(later.prompts[0] + PROMPT, first.answers[0], WANTED * sizeof(int32_t));
        later.prompts[0][PROMPT + WANTED] = 7;
        run_alone(plain, &later);
        close_session(plain);
        test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
        eng_session_options_init(&options);
        test_expect_success(session_create(engines[f], &test_backend, &options, &session, &status), &status);
        run_first_turn(session, &first);
        run_first_turn(session, &others[0]); /* shows where texts branch off */
        struct eng_sequence *failing = create(session, &others[1]);
        submit(failing, &others[1], 0);
        while (eng_sequence_state(failing) != ENG_STATE_DONE) {
            test_backend_settings.not_finite = 1;
            CHECK(eng_step(session, NULL, &error));
        }
        test_backend_settings.not_finite = 0;
        assert_int_equal(eng_sequence_end(failing), ENG_END_NOT_FINITE);
        eng_sequence_destroy(&failing);
        assert_int_equal(run_first_turn(session, &others[2]), WHOLE);
        assert_in_range(run_first_turn(session, &later), (PROMPT - 1) / PAGE * PAGE, PROMPT + WANTED);
        close_session(session);
    }
}

/* ---- ends of answers ---- */

/* How an answer comes to an end that no step before it has foreseen: by a stop token alone; where the sampler waits for masks of the
 * caller, or of a grammar. */
enum ending { ENDING_STOP, ENDING_ALLOWED, ENDING_GRAMMAR };

/* Draws an answer of at most `wanted` tokens, which ends with the token `stop` if that is not negative. Returns its length. */
static uint32_t draw_until(struct eng_session *session, const struct request *request, struct eng_grammar *grammar,
                           enum ending ending, int32_t stop, int32_t *answer)
{
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    eng_sampling_init(&sampling);
    eng_sequence_options_init(&options);
    sampling.temperature = 1;
    sampling.seed = request->seed;
    options.sampling = &sampling;
    options.max_new_tokens = request->wanted;
    options.stop_tokens = &stop;
    options.stop_count = stop >= 0;
    if (ending == ENDING_GRAMMAR)
        options.grammar = grammar;
    else
        options.flags = ENG_SEQUENCE_IGNORE_EOS | (ending == ENDING_ALLOWED ? (unsigned)ENG_SEQUENCE_ALLOWED : 0);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    submit(sequence, request, 0);
    fables_finish(session);
    const uint32_t count = (uint32_t)eng_sequence_poll(sequence, answer, LONGEST);
    eng_sequence_destroy(&sequence);
    return count;
}

/* A text that goes on after an answer is found as far as there are checkpoints: at a distance, or at the end alone where there are few. */
static void check_end(struct eng_engine *engine, struct eng_grammar *grammar, enum ending ending, bool has_few)
{
    enum { PROMPT = 150, FIRST = (PROMPT - 1) / PAGE * PAGE, WANTED = 220, FEW = 3, SEED = 1 };
    static struct request request, later;
    int32_t found[LONGEST], *answer = request.answers[0];
    struct eng_session_options options;
    struct eng_session *plain = open_session(engine, 0, false), *session = NULL;
    struct status status = {0};
    eng_session_options_init(&options);
    if (has_few) options.checkpoint_bytes = FEW * engine->file.manifest.geometry.recurrent_bytes;
    test_expect_success(session_create(engine, &test_backend, &options, &session, &status), &status);
    request = (struct request){.counts = {PROMPT, 0}, .wanted = WANTED, .seed = SEED};
    some_tokens(SEED, request.prompts[0], PROMPT);
    /* Ends where a page does, with a token that has not been drawn before, and is not computed any more. */
    uint32_t count = draw_until(plain, &request, grammar, ending, -1, answer), end = FIRST + LEAST + PAGE - PROMPT;
    for (; end < count; end += PAGE) {
        uint32_t i = 0;
        while (answer[i] != answer[end]) i++;
        if (i == end) break;
    }
    assert_true(end < count);
    assert_int_equal(draw_until(session, &request, grammar, ending, answer[end], found), end + 1);
    assert_memory_equal(found, answer, (end + 1) * sizeof *found);
    later = (struct request){.counts = {PROMPT + end + 2, 0}, .wanted = 10, .seed = SEED};
    memcpy(later.prompts[0], request.prompts[0], PROMPT * sizeof *found);
    memcpy(later.prompts[0] + PROMPT, answer, (end + 1) * sizeof *found);
    later.prompts[0][PROMPT + end + 1] = 7;
    count = draw_until(plain, &later, grammar, ending, -1, later.answers[0]);
    const uint64_t before = facts_of(session).cached_tokens;
    assert_int_equal(draw_until(session, &later, grammar, ending, -1, found), count);
    assert_memory_equal(found, later.answers[0], count * sizeof *found);
    assert_int_equal(facts_of(session).cached_tokens - before, has_few ? PROMPT + end : FIRST + LEAST);
    close_session(session);
    close_session(plain);
}

TEST(ends_of_answers_where_steps_are_queued_ahead)
{
    for (int f = 0; f < FAMILIES; f++)
        for (int pace = PACE_EAGER; families[f].ranks == 1 && pace <= PACE_RANDOM; pace++) {
            test_backend_settings = (struct test_backend_settings){.pace = (enum test_backend_pace)pace};
            check_end(engines[f], NULL, ENDING_STOP, false);
            if (families[f].recurrent) check_end(engines[f], NULL, ENDING_STOP, true);
            assert_int_equal(test_backend_settings.submits_up_to_sampler, 0);
            check_end(engines[f], NULL, ENDING_ALLOWED, false);
            if (families[f].recurrent) check_end(engines[f], NULL, ENDING_ALLOWED, true);
            assert_true(test_backend_settings.submits_up_to_sampler > LEAST);
        }
}

TEST(ends_of_answers_with_a_grammar)
{
    static const char expression[] = "(.|\\n|\\r)*";
    for (int f = 0; f < BOUND_FAMILIES; f++) {
        struct eng_grammar *grammar = NULL;
        CHECK(
            eng_grammar_create(bound_engines[f], ENG_GRAMMAR_REGEX, expression, strlen(expression), &grammar, &error));
        for (int pace = PACE_EAGER; pace <= PACE_RANDOM; pace++) {
            test_backend_settings = (struct test_backend_settings){.pace = (enum test_backend_pace)pace};
            check_end(bound_engines[f], grammar, ENDING_GRAMMAR, false);
            if (f == 0) check_end(bound_engines[f], grammar, ENDING_GRAMMAR, true);
            assert_true(test_backend_settings.submits_up_to_sampler > LEAST);
        }
        eng_grammar_destroy(&grammar);
    }
}

TEST(prompts_of_other_families)
{
    static const char *const names[] = {"cohere2", "exaone4",        "gemma2", "gemma3",    "gpt_oss",
                                        "lfm2",    "mistral-window", "olmo3",  "qwen3_next"};
    if (!test_shared()) skip();
    for (size_t i = 0; i < sizeof names / sizeof *names; i += test_sanitized() ? 4 : 1) {
        char model[4096], path[512];
        struct status status = {0};
        struct eng_engine *engine;
        snprintf(model, sizeof model, "%s/models/hf-tiny/%s", test_shared(), names[i]);
        snprintf(path, sizeof path, "%s/%s.eng", folder, names[i]);
        test_expect_success(fables_build_model(model, path, 1, &status), &status);
        CHECK(eng_open(path, NULL, &engine, &error));
        check_places(engine);
        eng_close(&engine);
    }
}

TEST(what_begins_together_is_computed_once)
{
    enum { TOGETHER = 4, PROMPT = 290, COMMON = 280 };
    static struct request requests[TOGETHER];
    for (int f = 0; f < FAMILIES; f++) {
        struct eng_session *plain = open_session(engines[f], 0, false), *session = open_session(engines[f], 0, true);
        struct eng_sequence *sequences[TOGETHER];
        for (uint32_t i = 0; i < TOGETHER; i++) {
            requests[i] = (struct request){.counts = {PROMPT, 0}, .wanted = 12, .sampled = true, .seed = i};
            some_tokens(9, requests[i].prompts[0], PROMPT);
            some_tokens(20 + i, requests[i].prompts[0] + COMMON, PROMPT - COMMON);
            run_alone(plain, &requests[i]);
        }
        for (int i = 0; i < TOGETHER; i++) {
            sequences[i] = create(session, &requests[i]);
            submit(sequences[i], &requests[i], 0);
        }
        fables_finish(session);
        for (int i = 0; i < TOGETHER; i++) {
            int32_t answer[LONGEST];
            assert_int_equal(eng_sequence_poll(sequences[i], answer, LONGEST), requests[i].wanted);
            assert_memory_equal(answer, requests[i].answers[0], requests[i].wanted * sizeof *answer);
            eng_sequence_destroy(&sequences[i]);
        }
        assert_int_equal(facts_of(session).cached_tokens, (TOGETHER - 1) * (COMMON / PAGE * PAGE));
        close_session(session);
        close_session(plain);
    }
}

/* ---- the hunt ---- */

struct runner {
    const struct request *request;
    struct eng_sequence *sequence, *fork;
    int32_t answers[2][LONGEST]; /* of the sequence, of its fork */
    uint32_t polled[2];
    int turn;
};

/* Few pieces, so that many prompts begin alike; some differ in one token alone. */
static void make_request(struct request *request, uint64_t *random)
{
    enum { PIECES = 2 };
    *request = (struct request){.wanted = 1 + (uint32_t)(test_random(random) % 20),
                                .sampled = test_random(random) % 2,
                                .seed = test_random(random) % 3};
    const uint32_t pieces = 2 + (uint32_t)(test_random(random) % 4);
    for (uint32_t i = 0; i < pieces; i++) {
        const uint32_t length = 16 * (3 + (uint32_t)(test_random(random) % 2));
        some_tokens((uint32_t)(test_random(random) % PIECES), request->prompts[0] + request->counts[0], length);
        request->counts[0] += length;
    }
    request->counts[0] -= (uint32_t)(test_random(random) % 9);
    if (test_random(random) % 4 == 0)
        some_tokens(99, request->prompts[0] + test_random(random) % request->counts[0], 1);
    request->counts[1] = test_random(random) % 3 ? 0 : 1 + (uint32_t)(test_random(random) % 20);
    some_tokens(50, request->prompts[1], request->counts[1]);
}

static void end_runner(struct runner *runner)
{
    eng_sequence_destroy(&runner->sequence);
    eng_sequence_destroy(&runner->fork);
    runner->request = NULL;
}

/* What a fork answers after it is the end of what the sequence answers. */
static bool poll_runner(struct runner *runner)
{
    const struct request *request = runner->request;
    bool done = true;
    for (int i = 0; i < 2; i++) {
        struct eng_sequence *sequence = i ? runner->fork : runner->sequence;
        if (!sequence) continue;
        int32_t *answer = runner->answers[i];
        const uint32_t more =
            (uint32_t)eng_sequence_poll(sequence, answer + runner->polled[i], LONGEST - runner->polled[i]);
        assert_true(runner->polled[i] + more <= request->wanted);
        assert_memory_equal(answer + runner->polled[i], request->answers[runner->turn] + runner->polled[i],
                            more * sizeof *answer);
        runner->polled[i] += more;
        if (eng_sequence_state(sequence) == ENG_STATE_DONE)
            assert_int_equal(runner->polled[i], request->wanted);
        else
            done = false;
    }
    return done;
}

static void fork_runner(struct runner *runner)
{
    poll_runner(runner);
    if (runner->fork || eng_sequence_state(runner->sequence) == ENG_STATE_DONE) return;
    CHECK(eng_sequence_fork(runner->sequence, NULL, &runner->fork, &error));
    poll_runner(runner); /* the fork has waited for a step that was queued */
    runner->polled[1] = runner->polled[0];
}

/* False: there is none, or it could not be restored. */
static bool second_turn(struct eng_session *session, struct runner *runner, bool saves)
{
    const struct request *request = runner->request;
    char path[300];
    eng_sequence_destroy(&runner->fork);
    if (runner->turn || !request->counts[1]) return false;
    if (saves) {
        struct eng_sequence_options options;
        eng_sequence_options_init(&options);
        options.max_new_tokens = request->wanted;
        options.flags = ENG_SEQUENCE_IGNORE_EOS;
        snprintf(path, sizeof path, "%s/saved", folder);
        CHECK(eng_sequence_save(runner->sequence, path, &error));
        eng_sequence_destroy(&runner->sequence);
        if (eng_sequence_restore(session, path, &options, &runner->sequence, &error) != ENG_OK) {
            assert_non_null(strstr(error.message, "free"));
            return false;
        }
    }
    runner->turn = 1;
    runner->polled[0] = 0;
    submit(runner->sequence, request, 1);
    return true;
}

/* What all hunts of a test have seen. */
static struct {
    uint64_t cached_tokens, set_aside, kept;
} seen;

static void hunt(struct eng_engine *engine, struct eng_session *session, uint64_t seed, bool saves, bool forks)
{
    enum { MOST = 60, AT_ONCE = 6 };
    static struct request requests[MOST];
    static struct runner runners[AT_ONCE];
    const uint32_t count = test_sanitized() ? MOST / 3 : MOST;
    struct eng_session *plain = open_session(engine, 0, false);
    uint64_t random = seed;
    uint32_t begun = 0, done = 0;
    for (uint32_t i = 0; i < count; i++) {
        make_request(&requests[i], &random);
        run_alone(plain, &requests[i]);
    }
    memset(runners, 0, sizeof runners);
    while (done < count) {
        struct runner *runner = &runners[test_random(&random) % AT_ONCE];
        const uint64_t event = test_random(&random) % 40;
        if (!runner->request) {
            if (begun == count) goto step;
            *runner = (struct runner){.request = &requests[begun++]};
            runner->sequence = create(session, runner->request);
            submit(runner->sequence, runner->request, 0);
        } else if (event == 0) {
            end_runner(runner), done++;
        } else if (event == 1 && forks) {
            fork_runner(runner);
        } else if (poll_runner(runner) && !second_turn(session, runner, saves && event % 2)) {
            end_runner(runner), done++;
        }
    step:
        /* Sequences that are done and kept may leave too few pages, until their turn comes. */
        if (test_random(&random) % 2 && eng_step(session, NULL, &error) != ENG_OK)
            assert_non_null(strstr(error.message, "none can run"));
    }
    const struct eng_session_facts facts = facts_of(session);
    seen.cached_tokens += facts.cached_tokens;
    seen.set_aside += facts.set_aside;
    seen.kept += facts.kept;
    assert_int_equal(facts.kept_bytes, 0);
    close_session(session);
    close_session(plain);
}

TEST(no_text_of_another_sequence_after_evictions)
{
    memset(&seen, 0, sizeof seen);
    for (int f = 0; f < FAMILIES; f++)
        for (uint32_t fulls = 2; fulls < 5; fulls += 2) /* contexts that the pool has room for */
            hunt(engines[f], open_session(engines[f], fulls * FABLES_CONTEXT, true), 100 * fulls + (uint64_t)f, true,
                 true);
    assert_true(seen.cached_tokens > 5000);
    if (!test_sanitized()) assert_true(seen.set_aside > 0);
}

TEST(pages_of_sequences_that_are_set_aside_are_kept)
{
    memset(&seen, 0, sizeof seen);
    kept_bytes = 1 << 24;
    for (int f = 0; f < FAMILIES; f++)
        hunt(engines[f], open_session(engines[f], 2 * FABLES_CONTEXT, true), 50 + (uint64_t)f, true, true);
    kept_bytes = 0;
    if (!test_sanitized()) assert_true(seen.kept > 0);
}

/* Checkpoints make room for others all the time. */
TEST(few_states_of_recurrent_layers)
{
    memset(&seen, 0, sizeof seen);
    for (int f = 0; f < FAMILIES; f++) {
        if (!families[f].recurrent) continue;
        struct eng_session_options options;
        const uint64_t block = engines[f]->file.manifest.geometry.recurrent_bytes;
        eng_session_options_init(&options);
        options.threads = 2;
        options.checkpoint_bytes = 2 * block + block / 2;
        hunt(engines[f], fables_session(engines[f], &options), 300 + (uint64_t)f, false, true);
    }
    assert_true(seen.cached_tokens > 500);
}

/* Steps that are queued ahead, and two copies of the recurrent state for each slot. */
TEST(the_same_on_a_device)
{
    memset(&seen, 0, sizeof seen);
    for (int f = 0; f < FAMILIES; f++) {
        if (families[f].ranks > 1) continue;
        struct eng_session_options options;
        struct eng_session *session = NULL;
        struct status status = {0};
        eng_session_options_init(&options);
        options.kv_tokens = 3 * FABLES_CONTEXT;
        test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
        test_expect_success(session_create(engines[f], &test_backend, &options, &session, &status), &status);
        hunt(engines[f], session, 500 + (uint64_t)f, false, true);
    }
    assert_true(seen.cached_tokens > 2000);
}

TEST(memory_of_checkpoints_is_bounded_and_counted)
{
    enum { STATES = 5 };
    for (int f = 0; f < FAMILIES; f++) {
        if (!families[f].recurrent) continue;
        struct eng_session_options options;
        uint64_t bytes[3];
        const uint64_t block = engines[f]->file.manifest.geometry.recurrent_bytes * families[f].ranks;
        static struct request request;
        request = (struct request){.counts = {300, 0}, .wanted = 2};
        some_tokens(1, request.prompts[0], 300);
        for (int i = 0; i < 3; i++) {
            eng_session_options_init(&options);
            options.no_prefix_cache = i == 0;
            options.checkpoint_bytes = i == 1 ? STATES * block / families[f].ranks : i == 2; /* one byte: no state */
            struct eng_session *session = fables_session(engines[f], &options);
            bytes[i] = facts_of(session).memory_bytes;
            if (i == 0) run_alone(session, &request);
            run_first_turn(session, &request);
            assert_int_equal(run_first_turn(session, &request), i == 1 ? 288 : 0);
            close_session(session);
        }
        const uint64_t tokens = STATES * (FABLES_CONTEXT + 1) * sizeof(int32_t), page = 4096;
        assert_in_range(bytes[1], bytes[0] + STATES * block, bytes[0] + STATES * block + tokens + 4 * page);
        assert_int_equal(bytes[2], bytes[0]);
    }
}

int main(void) { return test_run_with(build, NULL, NULL, clean_up); }
