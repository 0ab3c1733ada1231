/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of a model with longrope that grow past the length for which their rotary frequencies hold: logits are those of
 * a new slot that is given the whole text at once, and draws are those of a model without the switch where both sets of
 * frequencies are the same. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <math.h>
#include <sys/stat.h>

#include "formats/base/test_support.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { ORIGINAL = 40, TEXT = 120, VOCAB = 1536, FACTORS = 16 /* half of the heads' 32 */ };
static const double tolerance = 1e-4;

/* The shipped model with other rotary embeddings. */
enum model { PLAIN, SWITCHING, SAME_SETS, MODELS };
static char *folder;
static char engines[MODELS][300];

static void write_factors(FILE *out, const char *key, double step)
{
    fprintf(out, "\"%s\": [", key);
    for (int i = 0; i < FACTORS; i++) fprintf(out, "%s%.17g", i ? ", " : "", 1 + step * i);
    fprintf(out, "], ");
}

static void write_config(const char *path, enum model model)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "{\"model_type\": \"llama\", \"head_dim\": 32, \"hidden_size\": 192, \"intermediate_size\": 320, "
                 "\"max_position_embeddings\": 1024, \"num_attention_heads\": 6, \"num_hidden_layers\": 5, "
                 "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": true, "
                 "\"vocab_size\": 1536, \"bos_token_id\": 0, \"eos_token_id\": 1, \"dtype\": \"bfloat16\"");
    if (model != PLAIN) {
        fprintf(out, ", \"rope_scaling\": {\"rope_type\": \"longrope\", ");
        write_factors(out, "short_factor", model == SWITCHING ? 0.02 : 0);
        write_factors(out, "long_factor", model == SWITCHING ? 0.4 : 0);
        if (model == SAME_SETS) fprintf(out, "\"attention_factor\": 1.0, ");
        fprintf(out, "\"original_max_position_embeddings\": %d}", ORIGINAL);
    }
    fprintf(out, "}\n");
    assert_int_equal(fclose(out), 0);
}

static int build(void **state)
{
    static const char weights[] = "tests/models/fables/model.safetensors";
    char target[4096];
    folder = test_folder();
    if (!realpath(weights, target)) return -1;
    for (int m = 0; m < MODELS; m++) {
        char model[256], path[300];
        struct status status = {0};
        snprintf(model, sizeof model, "%s/model%d", folder, m);
        if (mkdir(model, 0700)) return -1;
        snprintf(path, sizeof path, "%s/model.safetensors", model);
        if (symlink(target, path)) return -1;
        snprintf(path, sizeof path, "%s/config.json", model);
        write_config(path, (enum model)m);
        snprintf(engines[m], sizeof engines[m], "%s/%d.eng", folder, m);
        if (!fables_build_model(model, engines[m], 1, &status)) {
            fprintf(stderr, "build of model %d: %s\n", m, status.message);
            return -1;
        }
    }
    return 0;
}

static int clean_up(void **state)
{
    test_folder_remove(folder);
    return 0;
}

static struct eng_session *open_session(enum model model, bool ahead, struct eng_engine **engine)
{
    struct eng_session_options options;
    struct eng_session *session = NULL;
    struct status status = {0};
    CHECK(eng_open(engines[model], NULL, engine, &error));
    eng_session_options_init(&options);
    options.threads = 1;
    if (!ahead) return fables_session(*engine, &options);
    if (!session_create(*engine, &test_backend, &options, &session, &status)) fail_msg("%s", status.message);
    return session;
}

static void close_session(struct eng_session *session, struct eng_engine *engine)
{
    eng_session_destroy(&session);
    eng_close(&engine);
}

/* Logits after a text that a new slot is given at once. */
static void at_once(struct eng_session *session, const int32_t *text, size_t count, float logits[VOCAB])
{
    uint32_t slot;
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_prefill(session, slot, text, count, NULL, logits, &error));
    CHECK(eng_slot_release(session, slot, &error));
}

static double difference(const float *a, const float *b)
{
    double largest = 0;
    for (int i = 0; i < VOCAB; i++) largest = fmax(largest, fabs((double)a[i] - (double)b[i]));
    return largest;
}

static void expect_logits(struct eng_session *session, const int32_t *text, size_t count, const float *found,
                          const char *what)
{
    float expected[VOCAB];
    at_once(session, text, count, expected);
    const double largest = difference(found, expected);
    if (!(largest <= tolerance)) fail_msg("%s: after %zu tokens logits differ by %g", what, count, largest);
}

TEST(the_long_set_differs)
{
    int32_t text[TEXT];
    float logits[MODELS][VOCAB];
    struct eng_engine *engine[MODELS];
    struct eng_session *session[MODELS];
    fables_tokens(1, text, TEXT);
    for (int m = 0; m < MODELS; m++) session[m] = open_session((enum model)m, false, &engine[m]);
    for (size_t count = ORIGINAL; count <= ORIGINAL + 1; count++) {
        for (int m = 0; m < MODELS; m++) at_once(session[m], text, count, logits[m]);
        assert_true(difference(logits[PLAIN], logits[SAME_SETS]) == 0);
        assert_true(difference(logits[PLAIN], logits[SWITCHING]) > 100 * tolerance);
    }
    /* Without the switch one token more would change little: here it changes all rotations. */
    float kept[VOCAB];
    uint32_t slot;
    CHECK(eng_slot_acquire(session[SWITCHING], &slot, &error));
    CHECK(eng_prefill(session[SWITCHING], slot, text, ORIGINAL, NULL, kept, &error));
    session[SWITCHING]->rope_set[slot] = 1; /* as if the tokens before had been computed with the long set */
    int32_t drawn;
    CHECK(eng_decode(session[SWITCHING], &slot, &text[ORIGINAL], 1, &drawn, kept, &error));
    assert_true(difference(kept, logits[SWITCHING]) > 100 * tolerance);
    for (int m = 0; m < MODELS; m++) close_session(session[m], engine[m]);
}

/* Token by token over the length, and several steps at once. */
TEST(slots_switch_by_decode)
{
    for (int ahead = 0; ahead < 2; ahead++) {
        struct eng_engine *engine;
        struct eng_session *session = open_session(SWITCHING, ahead, &engine);
        int32_t text[TEXT], drawn[3], steps[12];
        uint32_t slots[3], position;
        float logits[3 * VOCAB];
        fables_tokens(2, text, TEXT);
        /* Three slots of the same text, at different places of it: they cross one after the other. */
        static const size_t starts[3] = {ORIGINAL - 6, ORIGINAL - 3, 2};
        for (int i = 0; i < 3; i++) {
            CHECK(eng_slot_acquire(session, &slots[i], &error));
            CHECK(eng_prefill(session, slots[i], text, starts[i], NULL, NULL, &error));
        }
        for (size_t step = 0; step < 12; step++) {
            const int32_t next[3] = {text[starts[0] + step], text[starts[1] + step], text[starts[2] + step]};
            CHECK(eng_decode(session, slots, next, 3, drawn, logits, &error));
            for (int i = 0; i < 3; i++) {
                expect_logits(session, text, starts[i] + step + 1, logits + i * VOCAB, "decode");
                CHECK(eng_slot_position(session, slots[i], &position, &error));
                assert_int_equal(position, starts[i] + step + 1);
                assert_int_equal(session->rope_set[slots[i]], starts[i] + step + 1 > ORIGINAL);
            }
        }
        /* The same draws by one call as by many. */
        uint32_t one, many;
        CHECK(eng_slot_acquire(session, &one, &error));
        CHECK(eng_slot_acquire(session, &many, &error));
        CHECK(eng_prefill(session, one, text, ORIGINAL - 5, NULL, NULL, &error));
        CHECK(eng_prefill(session, many, text, ORIGINAL - 5, NULL, NULL, &error));
        CHECK(eng_decode_steps(session, &one, &text[ORIGINAL - 5], 1, 12, steps, &error));
        int32_t token = text[ORIGINAL - 5];
        for (int i = 0; i < 12; i++) {
            CHECK(eng_decode(session, &many, &token, 1, &token, NULL, &error));
            assert_int_equal(token, steps[i]);
        }
        close_session(session, engine);
    }
}

/* A further prompt that crosses the length, and a truncation to below it. */
TEST(slots_switch_by_prompt_and_truncation)
{
    for (int ahead = 0; ahead < 2; ahead++) {
        struct eng_engine *engine;
        struct eng_session *session = open_session(SWITCHING, ahead, &engine);
        int32_t text[TEXT], drawn;
        uint32_t slot;
        float logits[VOCAB], expected[VOCAB];
        fables_tokens(3, text, TEXT);
        CHECK(eng_slot_acquire(session, &slot, &error));
        CHECK(eng_prefill(session, slot, text, 30, NULL, NULL, &error));
        CHECK(eng_prefill(session, slot, text + 30, ORIGINAL - 30, NULL, logits, &error));
        expect_logits(session, text, ORIGINAL, logits, "up to the length");
        CHECK(eng_prefill(session, slot, text + ORIGINAL, 60, NULL, logits, &error));
        at_once(session, text, ORIGINAL + 60, expected);
        assert_memory_equal(logits, expected, sizeof logits); /* chunks are the same */
        /* Still above: nothing changes. */
        CHECK(eng_slot_truncate(session, slot, ORIGINAL + 4, &error));
        CHECK(eng_decode(session, &slot, &text[ORIGINAL + 4], 1, &drawn, logits, &error));
        expect_logits(session, text, ORIGINAL + 5, logits, "truncated above the length");
        /* Below, and a few tokens more; below by decode; to nothing. */
        CHECK(eng_slot_truncate(session, slot, 20, &error));
        CHECK(eng_prefill(session, slot, text + 20, 5, NULL, logits, &error));
        at_once(session, text, 25, expected);
        assert_memory_equal(logits, expected, sizeof logits);
        CHECK(eng_prefill(session, slot, text + 25, 40, NULL, NULL, &error));
        CHECK(eng_slot_truncate(session, slot, ORIGINAL - 1, &error));
        CHECK(eng_decode(session, &slot, &text[ORIGINAL - 1], 1, &drawn, logits, &error));
        expect_logits(session, text, ORIGINAL, logits, "truncated below the length");
        CHECK(eng_decode(session, &slot, &text[ORIGINAL], 1, &drawn, logits, &error));
        expect_logits(session, text, ORIGINAL + 1, logits, "above again");
        CHECK(eng_slot_truncate(session, slot, 0, &error));
        CHECK(eng_prefill(session, slot, text, 9, NULL, logits, &error));
        expect_logits(session, text, 9, logits, "truncated to nothing");
        /* A slot that is used again begins with the short set. */
        CHECK(eng_prefill(session, slot, text + 9, 60, NULL, NULL, &error));
        CHECK(eng_slot_release(session, slot, &error));
        CHECK(eng_slot_acquire(session, &slot, &error));
        CHECK(eng_prefill(session, slot, text, 9, NULL, logits, &error));
        expect_logits(session, text, 9, logits, "used again");
        close_session(session, engine);
    }
}

/* What a sequence is given and draws, in two turns. */
struct talk {
    size_t prompts[2];
    uint32_t answer;
    bool sampled, logits;
};
static const struct talk talks[] = {
    {{ORIGINAL - 4, 9}, 12, false, true}, /* crosses in its first answer */
    {{5, 6}, 7, false, true},             /* never */
    {{20, 30}, 6, false, true},           /* by its second prompt */
    {{ORIGINAL - 10, 20}, 20, true, false},
    {{ORIGINAL + 8, 3}, 9, true, false}, /* long from the start */
    {{10, 12}, 14, true, false},         /* in its second answer */
    {{ORIGINAL, 3}, 9, true, false},     /* with the first token that is drawn */
};
enum { TALKS = sizeof talks / sizeof *talks, MOST_TOKENS = 120 };

struct told {
    int32_t tokens[2][MOST_TOKENS];
    size_t counts[2];
};

static struct eng_sequence *begin(struct eng_session *session, size_t index)
{
    const struct talk *talk = &talks[index];
    const struct eng_sampling sampling = fables_sampling(talk->sampled, 7 + index);
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = talk->answer;
    options.context_tokens = 150;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_KEEP | (talk->logits ? ENG_SEQUENCE_LOGITS : 0);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    return sequence;
}

static void say(struct eng_sequence *sequence, size_t index, int turn, int32_t *prompt)
{
    fables_tokens(100 + 2 * (uint32_t)index + (uint32_t)turn, prompt, talks[index].prompts[turn]);
    CHECK(eng_sequence_submit(sequence, prompt, talks[index].prompts[turn], &error));
}

/* One after the other; with `check`, the logits of every draw are compared. */
static void talk_alone(struct eng_session *session, struct eng_session *check, struct told told[TALKS])
{
    for (size_t i = 0; i < TALKS; i++) {
        struct eng_sequence *sequence = begin(session, i);
        int32_t text[2 * MOST_TOKENS];
        size_t count = 0;
        for (int turn = 0; turn < 2; turn++) {
            uint32_t unfinished = 1;
            say(sequence, i, turn, text + count);
            count += talks[i].prompts[turn];
            told[i].counts[turn] = 0;
            while (unfinished) {
                int32_t token;
                CHECK(eng_step(session, &unfinished, &error));
                const float *logits = eng_sequence_logits(sequence);
                if (!eng_sequence_poll(sequence, &token, 1)) continue;
                if (check && talks[i].logits) expect_logits(check, text, count, logits, "sequence");
                told[i].tokens[turn][told[i].counts[turn]++] = token;
                text[count++] = token;
            }
            told[i].counts[turn] +=
                eng_sequence_poll(sequence, told[i].tokens[turn] + told[i].counts[turn], MOST_TOKENS);
            assert_int_equal(told[i].counts[turn], talks[i].answer);
        }
        eng_sequence_destroy(&sequence);
    }
}

/* All at the same time; each begins its second turn when its first is done. */
static void talk_together(struct eng_session *session, struct told told[TALKS])
{
    struct eng_sequence *sequences[TALKS];
    int turns[TALKS] = {0};
    int32_t prompt[MOST_TOKENS];
    size_t done = 0;
    for (size_t i = 0; i < TALKS; i++) {
        sequences[i] = begin(session, i);
        say(sequences[i], i, 0, prompt);
        told[i].counts[0] = told[i].counts[1] = 0;
    }
    while (done < TALKS) {
        CHECK(eng_step(session, NULL, &error));
        for (size_t i = 0; i < TALKS; i++) {
            if (turns[i] == 2) continue;
            size_t *count = &told[i].counts[turns[i]];
            *count += eng_sequence_poll(sequences[i], told[i].tokens[turns[i]] + *count, MOST_TOKENS - *count);
            if (eng_sequence_state(sequences[i]) != ENG_STATE_DONE) continue;
            if (++turns[i] == 1)
                say(sequences[i], i, 1, prompt);
            else
                done++;
        }
    }
    for (size_t i = 0; i < TALKS; i++) eng_sequence_destroy(&sequences[i]);
}

static void expect_same(const struct told a[TALKS], const struct told b[TALKS], const char *what)
{
    for (size_t i = 0; i < TALKS; i++)
        for (int turn = 0; turn < 2; turn++) {
            assert_int_equal(a[i].counts[turn], talks[i].answer);
            assert_int_equal(b[i].counts[turn], talks[i].answer);
            for (size_t t = 0; t < a[i].counts[turn]; t++)
                if (a[i].tokens[turn][t] != b[i].tokens[turn][t])
                    fail_msg("%s: sequence %zu, turn %d, token %zu: %d and %d", what, i, turn, t, a[i].tokens[turn][t],
                             b[i].tokens[turn][t]);
        }
}

TEST(sequences_switch)
{
    static struct told told[TALKS], other[TALKS];
    struct eng_engine *engine, *second;
    struct eng_session *session = open_session(SWITCHING, false, &engine);
    struct eng_session *check = open_session(SWITCHING, false, &second);
    talk_alone(session, check, told);
    talk_together(session, other);
    expect_same(told, other, "together");
    close_session(session, engine);
    close_session(check, second);
    for (int pace = PACE_EAGER; pace <= PACE_RANDOM; pace++) {
        test_backend_settings = (struct test_backend_settings){.pace = (enum test_backend_pace)pace};
        session = open_session(SWITCHING, true, &engine);
        talk_alone(session, NULL, other);
        expect_same(told, other, "alone, with steps queued ahead");
        talk_together(session, other);
        expect_same(told, other, "together, with steps queued ahead");
        assert_true(test_backend_settings.submits_ahead > 0);
        close_session(session, engine);
    }
}

/* Where both sets are that of the plain model, the switch changes nothing: no draw is lost or made twice, and penalties
 * see the same tokens. */
TEST(a_switch_between_equal_sets_changes_nothing)
{
    static struct told told[TALKS], other[TALKS];
    struct eng_engine *engine;
    struct eng_session *session = open_session(PLAIN, false, &engine);
    assert_null(session->rope_set);
    talk_alone(session, NULL, told);
    close_session(session, engine);
    for (int ahead = 0; ahead < 2; ahead++) {
        session = open_session(SAME_SETS, ahead, &engine);
        assert_non_null(session->rope_set);
        talk_alone(session, NULL, other);
        expect_same(told, other, "alone");
        talk_together(session, other);
        expect_same(told, other, "together");
        close_session(session, engine);
    }
}

/* A sequence that is cancelled while its tokens are computed again gives back its slot, which then begins anew. */
TEST(a_switch_can_be_cancelled)
{
    struct eng_engine *engine;
    struct eng_session *session = open_session(SWITCHING, false, &engine);
    struct eng_session_facts facts;
    int32_t text[TEXT];
    float logits[VOCAB];
    struct eng_sequence *sequence = begin(session, 0);
    say(sequence, 0, 0, text);
    while (eng_sequence_state(sequence) != ENG_STATE_DECODE) CHECK(eng_step(session, NULL, &error));
    while (eng_sequence_state(sequence) == ENG_STATE_DECODE) CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_PREFILL);
    eng_sequence_destroy(&sequence);
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_true(facts.free_pages == facts.pages && facts.free_slots == facts.slots);
    fables_tokens(4, text, TEXT);
    at_once(session, text, 20, logits);
    struct eng_engine *second;
    struct eng_session *check = open_session(SWITCHING, false, &second);
    expect_logits(check, text, 20, logits, "slot of a cancelled sequence");
    close_session(check, second);
    close_session(session, engine);
}

int main(void) { return test_run_with(build, NULL, NULL, clean_up); }
