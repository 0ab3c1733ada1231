/* SPDX-License-Identifier: Apache-2.0 */
/* A draft engine, whatever it drafts, changes no token: conversations with forks, cancels, files and every sampling option give what each
 * gives alone without speculation, with draft engines that are always right, hardly ever, or smaller than the engine. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include "builder/build.h"
#include "formats/base/file.h"
#include "formats/base/test_folder.h"
#include "formats/base/test_support.h"
#include "formats/tuning/tuning_record.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"
#include "tests/test_overflow_model.h"

enum { TALKS = 12, TURNS = 2, ANSWER = 40, MOST_PROMPT = 120, DRAFTED = 6 };
/* Sanitizers take ten times as long, and fewer hunts. */
#if defined(__SANITIZE_ADDRESS__)
enum { IS_SLOW = 1 };
#else
enum { IS_SLOW = 0 };
#endif
enum draft_kind { DRAFT_SAME, DRAFT_OTHER, DRAFT_SMALL, DRAFT_KINDS };

static char *folder;
static struct eng_engine *drafts[DRAFT_KINDS];
static struct eng_grammar *grammar;

/* ---- engines ---- */

/* The shipped model with half of its weights negated, chosen at random: its tokens have nothing to do with the other's. */
static void write_other_model(const char *to, bool swaps_tokens)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"};
    struct status status = {0};
    assert_int_equal(mkdir(to, 0700), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *data;
        size_t size;
        test_expect_success(file_read(test_path("tests/models/fables", names[i]), 1 << 26, &data, &size, &status),
                            &status);
        if (i == 2 && swaps_tokens) {
            char *first = strstr(data, "\": 700,"), *second = strstr(data, "\": 701,");
            assert_true(first && second);
            first[5] = '1';
            second[5] = '0';
        }
        if (i == 3) {
            uint64_t header, state = 1;
            memcpy(&header, data, sizeof header);
            for (size_t at = 8 + header + 1; at < size; at += 2) {
                state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                if (state >> 63) data[at] = (char)(data[at] ^ -128);
            }
        }
        test_write(test_path(to, names[i]), data, size);
        free(data);
    }
}

static struct eng_engine *open_model(const char *model, uint32_t context, uint32_t batch, uint32_t chunk,
                                     uint32_t ranks)
{
    struct build_options options;
    struct status status = {0};
    struct eng_engine *engine = NULL;
    char path[512];
    static int number;
    snprintf(path, sizeof path, "%s/%d.eng", folder, number++);
    build_options_init(&options);
    options.model = model;
    options.output = path;
    options.gpus = ranks;
    options.max_context = context;
    options.max_batch = batch;
    options.prefill_chunks[0] = chunk;
    options.prefill_chunk_count = 1;
    options.tune = TUNE_OFF;
    options.tuning_cache = NULL;
    options.progress = NULL;
    options.out = fopen("/dev/null", "w");
    assert_non_null(options.out);
    test_expect_success(build_engine(&options, &status), &status);
    fclose(options.out);
    CHECK(eng_open(path, NULL, &engine, &error));
    unlink(path);
    return engine;
}

static struct eng_session_options options_for(struct eng_engine *draft)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.speculate = draft ? DRAFTED : 0;
    options.draft = draft;
    options.threads = 1;
    return options;
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

/* ---- conversations ---- */

struct talk {
    uint32_t index;
    struct eng_sequence *sequence;
    int turn; /* that runs; TURNS: it has ended */
    int32_t answers[TURNS][ANSWER];
    uint32_t counts[TURNS];
};

enum talk_kind { TALK_GREEDY, TALK_SAMPLED, TALK_OPTIONS, TALK_GRAMMAR, TALK_KINDS };

static struct eng_sampling sampling_of(uint32_t index)
{
    struct eng_sampling sampling = fables_sampling(index % TALK_KINDS == TALK_OPTIONS, index);
    if (index % TALK_KINDS != TALK_SAMPLED) return sampling;
    static const struct eng_logit_bias bias = {300, 1};
    sampling.temperature = 0.4f;
    sampling.top_k = 30;
    sampling.min_p = 0.02f;
    sampling.seed = index;
    sampling.logit_bias = &bias;
    sampling.logit_bias_count = 1;
    return sampling;
}

static struct eng_sequence_options sequence_options_of(uint32_t index, const struct eng_sampling *sampling)
{
    struct eng_sequence_options options;
    eng_sequence_options_init(&options);
    options.sampling = sampling;
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_KEEP;
    if (index % TALK_KINDS == TALK_GRAMMAR)
        options.grammar = grammar;
    else
        options.flags |= ENG_SEQUENCE_IGNORE_EOS;
    return options;
}

static void submit(struct talk *talk)
{
    int32_t prompt[MOST_PROMPT];
    const size_t common = talk->turn ? 0 : 33, count = 20 + 13 * talk->index % 60;
    fables_tokens(1, prompt, common); /* pages of it are found in the cache */
    fables_tokens(100 + 10 * talk->index + (uint32_t)talk->turn, prompt + common, count);
    talk->counts[talk->turn] = 0;
    CHECK(eng_sequence_submit(talk->sequence, prompt, common + count, &error));
}

static void begin(struct eng_session *session, struct talk *talk, uint32_t index)
{
    const struct eng_sampling sampling = sampling_of(index);
    const struct eng_sequence_options options = sequence_options_of(index, &sampling);
    *talk = (struct talk){.index = index};
    CHECK(eng_sequence_create(session, &options, &talk->sequence, &error));
    submit(talk);
}

static void take(struct talk *talk)
{
    uint32_t *count = &talk->counts[talk->turn];
    *count += (uint32_t)eng_sequence_poll(talk->sequence, talk->answers[talk->turn] + *count, ANSWER - *count);
}

static void expect_same(const struct talk *found, const struct talk *expected)
{
    for (int turn = 0; turn < TURNS; turn++) {
        assert_int_equal(found->counts[turn], expected->counts[turn]);
        assert_memory_equal(found->answers[turn], expected->answers[turn], expected->counts[turn] * sizeof(int32_t));
    }
}

static struct talk expected[TALKS];

static void run_alone(struct eng_session *session, uint32_t index, struct talk *talk)
{
    begin(session, talk, index);
    for (;; submit(talk)) {
        fables_finish(session);
        take(talk);
        if (++talk->turn == TURNS) break;
    }
    eng_sequence_destroy(&talk->sequence);
}

/* ---- hunts ---- */

static uint32_t random_below(uint64_t *state, uint32_t limit)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33) % limit;
}

enum { MOST_RUNNING = 5 };
struct hunt {
    struct eng_session *session;
    uint64_t random;
    struct talk talks[MOST_RUNNING];
    bool used[MOST_RUNNING];
    bool
        is_whole; /* not a small pool, in which restored sequences, which share no pages, find too few; nor on the test's device */
    bool is_greedy; /* only greedy conversations, which are drafted for by the draft engine alone */
    uint32_t begun, forks, cancels, files;
};

static int free_place(const struct hunt *hunt)
{
    for (int i = 0; i < MOST_RUNNING; i++)
        if (!hunt->used[i]) return i;
    return -1;
}

static void fork_talk(struct hunt *hunt, struct talk *talk)
{
    const int place = free_place(hunt);
    if (place < 0 || eng_sequence_state(talk->sequence) == ENG_STATE_DONE) return;
    struct eng_sequence *fork = NULL;
    if (eng_sequence_fork(talk->sequence, NULL, &fork, &error)) return; /* its last token has just been drawn */
    take(talk);
    hunt->talks[place] = *talk;
    hunt->talks[place].sequence = fork;
    hunt->used[place] = true;
    hunt->forks++;
}

/* The conversation goes on from a file. */
static void pass_through_file(struct hunt *hunt, struct talk *talk)
{
    char path[512];
    snprintf(path, sizeof path, "%s/saved.seq", folder);
    struct eng_sequence_options options = sequence_options_of(talk->index, NULL);
    CHECK(eng_sequence_save(talk->sequence, path, &error));
    eng_sequence_destroy(&talk->sequence);
    CHECK(eng_sequence_restore(hunt->session, path, &options, &talk->sequence, &error));
    unlink(path);
    hunt->files++;
}

static void follow(struct hunt *hunt, int place)
{
    struct talk *talk = &hunt->talks[place];
    take(talk);
    if (eng_sequence_state(talk->sequence) == ENG_STATE_DONE) {
        if (++talk->turn < TURNS) {
            /* Files do not have logit biases. */
            if (hunt->is_whole && talk->index % TALK_KINDS != TALK_OPTIONS &&
                talk->index % TALK_KINDS != TALK_SAMPLED && random_below(&hunt->random, 2) == 0)
                pass_through_file(hunt, talk);
            submit(talk);
            return;
        }
        expect_same(talk, &expected[talk->index]);
    } else if (random_below(&hunt->random, 100) == 0) {
        hunt->cancels++;
    } else {
        if (random_below(&hunt->random, 40) == 0) fork_talk(hunt, talk);
        return;
    }
    eng_sequence_destroy(&talk->sequence);
    hunt->used[place] = false;
}

/* If the draft engine has drafted for the sequence in the last step, it has computed the tokens that it had before, `before`. */
static void check_drafted(const struct eng_session *session, const struct eng_sequence *sequence, uint32_t before)
{
    uint32_t part = 0;
    while (part < session->geometry->slots && session->part_sequence[part] != sequence) part++;
    if (part == session->geometry->slots || !session->parts[part].of_engine) return;
    const struct session_slot *slot = &session->draft->slots[session->parts[part].slot];
    assert_true(slot->position >= before);
    assert_memory_equal(slot->history, sequence->tokens, before * sizeof *sequence->tokens);
}

static struct eng_session_facts run_hunt(struct eng_session *session, uint32_t count, uint64_t seed, bool is_whole,
                                         bool is_greedy)
{
    struct hunt hunt = {.session = session, .random = seed, .is_whole = is_whole, .is_greedy = is_greedy};
    for (bool runs = true; runs || hunt.begun < count;) {
        const int place = free_place(&hunt);
        if (place >= 0 && hunt.begun < count && random_below(&hunt.random, 6) == 0) {
            begin(session, &hunt.talks[place], (is_greedy ? TALK_KINDS : 1) * hunt.begun++ % TALKS);
            hunt.used[place] = true;
        }
        uint32_t before[MOST_RUNNING] = {0};
        const uint64_t drafts_before = session->draft->steps;
        for (int i = 0; i < MOST_RUNNING; i++) {
            if (!hunt.used[i]) continue;
            if (is_greedy) hunt.talks[i].sequence->hits = -1e9f;
            if (hunt.talks[i].sequence->state == ENG_STATE_DECODE) before[i] = hunt.talks[i].sequence->count;
        }
        CHECK(eng_step(session, NULL, &error));
        runs = false;
        for (int i = 0; i < MOST_RUNNING; i++)
            if (hunt.used[i]) {
                runs = true;
                if (before[i] && session->draft->steps > drafts_before)
                    check_drafted(session, hunt.talks[i].sequence, before[i]);
                follow(&hunt, i);
            }
    }
    assert_true(hunt.forks && hunt.cancels && (hunt.files || !is_whole));
    const struct eng_session_facts facts = facts_of(session);
    assert_int_equal(facts.free_pages, facts.pages);
    assert_int_equal(facts.free_slots, facts.slots);
    return facts;
}

static void check_hunt(enum draft_kind kind)
{
    struct eng_session_options options = options_for(drafts[kind]);
    struct eng_session *session = fables_session(fables, &options);
    struct eng_session_facts facts = run_hunt(session, 2 * TALKS, 5 + kind, true, false);
    assert_in_range(facts.accepted_tokens, kind == DRAFT_SAME ? 300 : 1, facts.drafted_tokens);
    assert_true(facts.cached_tokens > 0);
    assert_true(session->draft->steps > (kind == DRAFT_SAME ? 200 : 20));
    eng_session_destroy(&session);
    options.kv_tokens = 3 * 160; /* sequences are set aside, and pages of the cache are used again */
    session = fables_session(fables, &options);
    facts = run_hunt(session, TALKS, 7 + kind, false, false);
    assert_in_range(facts.set_aside, 1, 10000);
    eng_session_destroy(&session);
}

TEST(hunt_with_the_same_model) { check_hunt(DRAFT_SAME); }
TEST(hunt_with_another_model) { check_hunt(DRAFT_OTHER); }

/* Whatever slots held before, and whatever was rejected, forked, set aside or restored: the draft engine has computed the sequence's own tokens, so
 * that it is right where its model is the same. */
TEST(drafts_of_the_same_model_are_right)
{
    for (enum draft_kind kind = DRAFT_SAME; kind < DRAFT_KINDS; kind++)
        for (int is_small = 0; kind != DRAFT_OTHER && is_small < 2; is_small++) {
            struct eng_session_options options = options_for(drafts[kind]);
            if (is_small) options.kv_tokens = 3 * 160;
            struct eng_session *session = fables_session(fables, &options);
            const struct eng_session_facts facts = run_hunt(session, TALKS, 11 + kind, !is_small, true);
            assert_int_equal(facts.accepted_tokens, facts.drafted_tokens);
            assert_in_range(facts.accepted_tokens, kind == DRAFT_SMALL ? 50 : 200, UINT32_MAX);
            eng_session_destroy(&session);
        }
}

TEST(hunt_on_a_device)
{
    static const enum test_backend_pace paces[] = {PACE_EAGER, PACE_LAZY, PACE_RANDOM};
    const struct eng_session_options options = options_for(drafts[DRAFT_SAME]);
    for (size_t p = IS_SLOW ? 2 : 0; p < sizeof paces / sizeof *paces; p++) {
        test_backend_settings = (struct test_backend_settings){.pace = paces[p]};
        struct eng_session *session = fables_session_on(&test_backend, fables, &options);
        assert_in_range(run_hunt(session, TALKS, 20 + p, false, false).accepted_tokens, 100, UINT32_MAX);
        eng_session_destroy(&session);
    }
}

/* ---- how much is drafted ---- */

/* Steps of one greedy answer of `count` tokens after its first one; no text of it has occurred before. */
static uint32_t count_steps(struct eng_session *session, uint32_t count, int32_t *answer)
{
    enum { PROMPT = 40 };
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[PROMPT];
    uint32_t steps = 0, unfinished = 1;
    fables_tokens(3, prompt, PROMPT);
    eng_sequence_options_init(&options);
    options.max_new_tokens = count + 1;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    while (eng_sequence_state(sequence) != ENG_STATE_DECODE) CHECK(eng_step(session, NULL, &error));
    for (; unfinished; steps++) CHECK(eng_step(session, &unfinished, &error));
    assert_int_equal(eng_sequence_poll(sequence, answer, count + 1), count + 1);
    eng_sequence_destroy(&sequence);
    return steps;
}

TEST(steps_of_good_and_bad_drafts)
{
    enum { COUNT = 200 };
    int32_t plain_answer[COUNT + 1], answer[COUNT + 1];
    const struct eng_session_options none = options_for(NULL);
    struct eng_session *plain = fables_session(fables, &none);
    assert_int_equal(count_steps(plain, COUNT, plain_answer), COUNT);
    eng_session_destroy(&plain);
    for (enum draft_kind kind = DRAFT_SAME; kind <= DRAFT_OTHER; kind++) {
        const struct eng_session_options options = options_for(drafts[kind]);
        struct eng_session *session = fables_session(fables, &options);
        const uint32_t steps = count_steps(session, COUNT, answer);
        const struct eng_session_facts facts = facts_of(session);
        assert_memory_equal(answer, plain_answer, sizeof answer);
        assert_int_equal(steps + facts.accepted_tokens, COUNT);
        /* Right: from one token to DRAFTED in a dozen steps. Wrong: four at first, then one after 16, 32, 64 tokens. */
        if (kind == DRAFT_SAME)
            assert_in_range(steps, COUNT / (DRAFTED + 1), COUNT / 3);
        else
            assert_in_range(session->draft->steps, 4, 20);
        eng_session_destroy(&session);
    }
}

/* By the times in the files, a token of the draft engine takes as long as a step: it is not asked. */
TEST(drafts_that_take_too_long)
{
    int32_t answer[21];
    const struct eng_session_options options = options_for(drafts[DRAFT_SAME]);
    struct eng_session *session = fables_session(fables, &options);
    assert_true(session->draft_cost > 0 && session->draft_cost < 0.5f);
    session->draft_cost = 0.8f;
    count_steps(session, 20, answer);
    assert_int_equal(session->draft->steps, 0);
    eng_session_destroy(&session);
}

/* The file's tuning records are replaced by ones of this time. */
static char *give_times(struct eng_engine *engine, double us)
{
    struct tuning_record record = {.key = "a launch", .median_us = us, .level = "quick", .candidates = 1};
    struct status status = {0};
    size_t lines = 0, size;
    char *line;
    for (size_t i = 0; i < engine->file.tactics_size; i++) lines += engine->file.tactics[i] == '\n';
    assert_true(lines > 0);
    test_expect_success(tuning_record_format(&record, &line, &size, &status), &status);
    char *text = malloc(lines * size);
    for (size_t i = 0; i < lines; i++) memcpy(text + i * size, line, size);
    free(line);
    engine->file.tactics = text;
    engine->file.tactics_size = lines * size;
    return text;
}

TEST(costs_follow_the_times_of_the_files)
{
    struct status status = {0};
    float cost = 0;
    struct eng_engine *engine = fables_open(), *draft = fables_open();
    assert_true(draft_find_cost(engine, draft, &cost, &status));
    assert_float_equal(cost, 0.1, 1e-6); /* nothing was measured */
    char *texts[] = {give_times(engine, 8), give_times(draft, 2)};
    assert_true(draft_find_cost(engine, draft, &cost, &status));
    assert_float_equal(cost, 0.25, 1e-6);
    for (size_t i = 0; i < draft->file.tactics_size; i++) texts[1][i] = '\n';
    assert_false(draft_find_cost(engine, draft, &cost, &status));
    assert_non_null(strstr(status.message, "tactics: line"));
    eng_close(&engine);
    eng_close(&draft);
    for (int i = 0; i < 2; i++) free(texts[i]);
}

/* ---- other models ---- */

/* Sliding windows, latent attention, experts and longrope, each drafted for by the same model, which is right, also in slots with tokens of
 * other sequences. */
static void check_model(const char *name, uint32_t ranks, uint32_t draft_ranks)
{
    enum { SEQUENCES = 3, ROUNDS = 2 };
    int32_t prompts[SEQUENCES * ROUNDS][MOST_PROMPT], answers[2][SEQUENCES * ROUNDS][ANSWER];
    struct eng_session_facts facts = {0};
    struct eng_engine *engine = open_model(name, 256, 4, 16, ranks);
    struct eng_engine *draft = ranks == draft_ranks ? engine : open_model(name, 256, 4, 16, draft_ranks);
    for (int turn = 0; turn < 2; turn++) {
        const struct eng_session_options options = options_for(turn ? draft : NULL);
        struct eng_session *session = fables_session(engine, &options);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            struct eng_sequence *sequences[SEQUENCES];
            for (uint32_t i = 0; i < SEQUENCES; i++) {
                const uint32_t number = round * SEQUENCES + i, count = 10 + 13 * number;
                struct eng_sequence_options own;
                eng_sequence_options_init(&own);
                own.max_new_tokens = ANSWER;
                own.flags = ENG_SEQUENCE_IGNORE_EOS;
                fables_tokens(number, prompts[number], count);
                for (uint32_t t = 0; t < count; t++) prompts[number][t] %= (int32_t)session->geometry->vocab_size;
                CHECK(eng_sequence_create(session, &own, &sequences[i], &error));
                CHECK(eng_sequence_submit(sequences[i], prompts[number], count, &error));
                sequences[i]->hits = -1e9f;
            }
            fables_finish(session);
            for (uint32_t i = 0; i < SEQUENCES; i++) {
                assert_int_equal(eng_sequence_poll(sequences[i], answers[turn][round * SEQUENCES + i], ANSWER), ANSWER);
                eng_sequence_destroy(&sequences[i]);
            }
        }
        facts = facts_of(session);
        eng_session_destroy(&session);
    }
    if (draft != engine) eng_close(&draft);
    eng_close(&engine);
    assert_memory_equal(answers[1], answers[0], sizeof answers[0]);
    /* With another number of ranks sums are rounded otherwise. */
    const uint64_t least = ranks == draft_ranks ? facts.drafted_tokens : facts.drafted_tokens / 10 * 9;
    if (facts.accepted_tokens < least || facts.drafted_tokens < 2 * ANSWER)
        fail_msg("%s: %u drafted, %u accepted", name, (unsigned)facts.drafted_tokens, (unsigned)facts.accepted_tokens);
}

TEST(ranks)
{
    check_model("tests/models/fables", 2, 1);
    if (!IS_SLOW) check_model("tests/models/fables", 1, 2);
}

TEST(other_models)
{
    static const char *const names[] = {"deepseek_v2", "gpt_oss", "phi3-longrope", "gemma3"};
    const char *shared = test_shared();
    char path[512];
    for (size_t i = IS_SLOW ? 3 : 0; shared && i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/models/hf-tiny/%s", shared, names[i]);
        check_model(path, 1, 1);
    }
}

/* ---- failures ---- */

static void answer(struct eng_session *session, int32_t last_token, int32_t *tokens)
{
    enum { PROMPT = 30 };
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[PROMPT];
    fables_tokens(9, prompt, PROMPT);
    prompt[PROMPT - 1] = last_token;
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, tokens, ANSWER), ANSWER);
    eng_sequence_destroy(&sequence);
}

/* A draft engine whose logits are not finite drafts nothing for that sequence, and goes on with the next one in its slot. */
TEST(drafts_that_are_not_finite)
{
    static const int32_t last_tokens[] = {OVERFLOW_VALUES, 400, OVERFLOW_PLUS, 500};
    int32_t plain_answer[ANSWER], drafted_answer[ANSWER];
    char model[512];
    snprintf(model, sizeof model, "%s/overflow", folder);
    assert_int_equal(mkdir(model, 0700), 0);
    overflow_model_write(model);
    struct eng_engine *draft = open_model(model, FABLES_CONTEXT, FABLES_BATCH, 64, 1);
    const struct eng_session_options with = options_for(draft), without = options_for(NULL);
    struct eng_session *session = fables_session(fables, &with), *plain = fables_session(fables, &without);
    for (size_t i = 0; i < sizeof last_tokens / sizeof *last_tokens; i++) {
        const uint64_t before = session->draft->steps;
        answer(plain, last_tokens[i], plain_answer);
        answer(session, last_tokens[i], drafted_answer);
        assert_memory_equal(drafted_answer, plain_answer, sizeof plain_answer);
        if (last_tokens[i] == OVERFLOW_VALUES)
            assert_int_equal(session->draft->steps, before + 1);
        else
            assert_true(session->draft->steps > before + 1);
    }
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
    eng_close(&draft);
}

TEST(a_failed_draft_engine_fails_the_session)
{
    const struct eng_session_options options = options_for(drafts[DRAFT_SAME]);
    struct eng_session *session = fables_session(fables, &options);
    struct eng_sequence *sequence;
    int32_t prompt[20];
    enum eng_status status = ENG_OK;
    fables_tokens(9, prompt, 20);
    CHECK(eng_sequence_create(session, NULL, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, 20, &error));
    status_fail(&session->draft->failure, STATUS_MACHINE, "it is broken");
    for (int i = 0; i < 5 && !status; i++) status = eng_step(session, NULL, &error);
    assert_int_equal(status, ENG_MACHINE);
    assert_string_equal(error.message, "draft engine: it is broken");
    assert_int_equal(eng_step(session, NULL, &error), ENG_MACHINE); /* and so on */
    eng_session_destroy(&session);
}

/* ---- refusals ---- */

static void expect_refused(const struct eng_session_options *options, const char *message)
{
    struct eng_session *session = NULL;
    assert_int_equal(eng_session_create(fables, options, &session, &error), ENG_USAGE);
    assert_null(session);
    if (!strstr(error.message, message)) fail_msg("expected '%s', found '%s'", message, error.message);
}

TEST(unusable_draft_engines_are_refused)
{
    struct eng_engine *draft = drafts[DRAFT_OTHER];
    struct plan_geometry *geometry = &draft->file.manifest.geometry;
    const struct plan_geometry kept = *geometry;
    struct eng_session_options options = options_for(draft);
    options.speculate = 0;
    expect_refused(&options, "speculate is 0");
    options.speculate = UINT32_MAX;
    geometry->vocab_size--;
    expect_refused(&options, "has 1535 tokens, expected the same 1536");
    *geometry = kept;
    geometry->recurrent_bytes = 64;
    expect_refused(&options, "recurrent layers");
    *geometry = kept;
    options.draft = drafts[DRAFT_SMALL];
    geometry = &options.draft->file.manifest.geometry;
    geometry->page_window[0] = 16;
    expect_refused(&options, "sliding window");
    geometry->page_window[0] = 0;
    options.draft->process_group = (struct process_group *)options.draft;
    expect_refused(&options, "several processes share the draft engine");
    options.draft->process_group = NULL;
    options.threads = UINT32_MAX;
    expect_refused(&options, "threads");
    options.threads = 1;

    char model[512];
    snprintf(model, sizeof model, "%s/words", folder);
    write_other_model(model, true);
    struct eng_engine *words = open_model(model, 64, 1, 8, 1);
    options.draft = words;
    expect_refused(&options, "token 700 of the draft engine");
    eng_close(&words);
}

/* The draft engine may be closed first, and the session's memory counts that of both. */
TEST(engines_stay_open)
{
    int32_t answer[31];
    char model[512];
    snprintf(model, sizeof model, "%s/other", folder);
    struct eng_engine *draft = open_model(model, 128, 2, 8, 1);
    const struct eng_session_options with = options_for(draft), without = options_for(NULL);
    struct eng_session *session = fables_session(fables, &with), *plain = fables_session(fables, &without);
    eng_close(&draft);
    assert_true(facts_of(session).memory_bytes > facts_of(plain).memory_bytes + session->draft->backend->kv_bytes);
    count_steps(session, 30, answer);
    assert_true(session->draft->steps > 0);
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
}

static int start(void **state)
{
    static const char regex[] = "(.|\\n|\\r)*";
    char other[512];
    if (fables_start(state)) return -1;
    folder = test_folder();
    snprintf(other, sizeof other, "%s/other", folder);
    write_other_model(other, false);
    drafts[DRAFT_SAME] = fables_open();
    drafts[DRAFT_OTHER] = open_model(other, FABLES_CONTEXT, FABLES_BATCH, 64, 1);
    drafts[DRAFT_SMALL] = open_model("tests/models/fables", 128, 2, 4, 1);
    CHECK(eng_grammar_create(fables, ENG_GRAMMAR_REGEX, regex, strlen(regex), &grammar, &error));
    const struct eng_session_options options = options_for(NULL);
    struct eng_session *session = fables_session(fables, &options);
    for (uint32_t i = 0; i < TALKS; i++) run_alone(session, i, &expected[i]);
    assert_int_equal(facts_of(session).drafted_tokens, 0);
    eng_session_destroy(&session);
    return 0;
}

static int stop(void **state)
{
    eng_grammar_destroy(&grammar);
    for (int kind = 0; kind < DRAFT_KINDS; kind++) eng_close(&drafts[kind]);
    test_folder_remove(folder);
    return fables_stop(state);
}

int main(void) { return test_run_with(start, NULL, NULL, stop); }
