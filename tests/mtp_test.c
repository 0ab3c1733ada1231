/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that draft by the model's own layer for that: what they predict is what plain code gives, in steps of every kind; whatever they
 * predict, sequences have the tokens that they have without it. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "tests/test_mtp_model.h"

#include <math.h>
#include <string.h>

#include "formats/base/test_folder.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { HIDDEN = MTP_HIDDEN, VOCAB = MTP_VOCAB, TEXT = 150, DRAFTED = 4 };

static struct build_options options;
static struct eng_engine *engine;

/* The engine of a model of these settings, which is built in the test's folder. */
static void open_engine(const struct mtp_settings *settings, uint32_t gpus)
{
    static char output[300];
    struct status status = {0};
    mtp_model_write(settings, folder);
    snprintf(output, sizeof output, "%s", in_folder("mtp.eng"));
    mtp_options(&options, folder, output);
    options.gpus = gpus;
    options.out = fopen("/dev/null", "w");
    assert_non_null(options.out);
    test_expect_success(build_engine(&options, &status), &status);
    fclose(options.out);
    CHECK(eng_open(output, NULL, &engine, &error));
    assert_int_equal(engine->file.manifest.geometry.drafts, 1);
    assert_int_equal(engine->file.manifest.layers, 2);
}

static struct eng_session *open_session(const struct backend_type *type, uint32_t speculate)
{
    struct eng_session_options own;
    eng_session_options_init(&own);
    own.threads = 2;
    own.speculate = speculate;
    own.no_prefix_cache = 1;
    test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
    return fables_session_on(type, engine, &own);
}

/* A text that the model writes, and the predictions after its tokens: predicted[i] for token i + 2. */
static int32_t text[TEXT + 1], predicted[TEXT];

/* Writes the text token by token and compares each prediction with plain code. */
static void check_text(void)
{
    struct eng_session *session = open_session(backend_for(engine), 0);
    struct mtp_layer layer = {0};
    uint32_t slot;
    int different = 0;
    CHECK(eng_slot_acquire(session, &slot, &error));
    text[0] = 7;
    for (int i = 0; i < TEXT; i++) {
        float hidden[HIDDEN];
        double logits[VOCAB];
        CHECK(eng_decode(session, &slot, &text[i], 1, &text[i + 1], NULL, &error));
        CHECK(eng_slot_hidden(session, slot, hidden, &error));
        predicted[i] = session->backend->drafted[0];
        mtp_predict(&layer, hidden, text[i + 1], logits);
        int best = 0;
        for (int t = 1; t < VOCAB; t++)
            if (logits[t] > logits[best]) best = t;
        assert_in_range(predicted[i], 0, VOCAB - 1);
        if (logits[predicted[i]] < logits[best] - 1e-3)
            fail_msg("after %d tokens: predicted %d (%g), expected %d (%g)", i + 1, predicted[i], logits[predicted[i]],
                     best, logits[best]);
        different += i > 0 && predicted[i] != predicted[i - 1];
    }
    assert_true(different > TEXT / 4);
    eng_session_destroy(&session);
}

static struct eng_sequence *begin(struct eng_session *session, size_t prompt, uint32_t seed, uint32_t answer)
{
    struct eng_sequence_options own;
    struct eng_sampling sampling;
    struct eng_sequence *sequence = NULL;
    eng_sequence_options_init(&own);
    eng_sampling_init(&sampling);
    sampling.temperature = seed ? 0.7f : 0;
    sampling.seed = seed;
    own.sampling = &sampling;
    own.max_new_tokens = answer;
    own.flags = ENG_SEQUENCE_IGNORE_EOS; /* ERNIE has some */
    CHECK(eng_sequence_create(session, &own, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, text, prompt, &error));
    return sequence;
}

/* Requires: the sequence is greedy, so that it has the text's tokens. */
static int check_prediction(const struct eng_sequence *sequence)
{
    if (!sequence->count || sequence->predicted_at != sequence->count) return 0;
    if (sequence->predicted != predicted[sequence->count - 2])
        fail_msg("after %u tokens: predicted %d, expected %d", sequence->count, sequence->predicted,
                 predicted[sequence->count - 2]);
    return 1;
}

/* The text's beginnings as prompts, of several sequences together: the rest of the text follows, with the same predictions. */
static void check_sequences(const struct backend_type *type, uint32_t speculate)
{
    static const size_t prompts[] = {2, 70, 33, 41, 8, 100};
    enum { SEQUENCES = sizeof prompts / sizeof *prompts };
    struct eng_session *session = open_session(type, speculate);
    struct eng_sequence *sequences[SEQUENCES];
    int checked = 0;
    uint32_t unfinished = 1;
    for (int i = 0; i < SEQUENCES; i++) sequences[i] = begin(session, prompts[i], 0, (uint32_t)(TEXT - prompts[i]));
    while (unfinished) {
        CHECK(eng_step(session, &unfinished, &error));
        for (int i = 0; i < SEQUENCES; i++) checked += check_prediction(sequences[i]);
    }
    assert_true(checked > TEXT);
    for (int i = 0; i < SEQUENCES; i++) {
        int32_t answer[TEXT];
        const size_t count = TEXT - prompts[i];
        assert_int_equal(eng_sequence_poll(sequences[i], answer, TEXT), count);
        assert_memory_equal(answer, text + prompts[i], count * sizeof *answer);
        eng_sequence_destroy(&sequences[i]);
    }
    eng_session_destroy(&session);
}

TEST(predictions_are_those_of_plain_code)
{
    for (int knows = 0; knows < 2; knows++) {
        open_engine(&(struct mtp_settings){.cycles = true, .knows = knows, .layers = 1}, 1);
        check_text();
        for (uint32_t speculate = 0; speculate <= DRAFTED; speculate += DRAFTED) {
            check_sequences(&backend_cpu, speculate);
            check_sequences(&test_backend, speculate);
        }
        eng_close(&engine);
    }
}

TEST(the_layer_may_have_its_own_embedding_and_head)
{
    open_engine(&(struct mtp_settings){.cycles = true, .has_own = true, .layers = 3}, 1);
    check_text();
    check_sequences(&backend_cpu, DRAFTED);
    eng_close(&engine);
}

TEST(layers_of_other_names)
{
    for (int knows = 0; knows < 2; knows++) {
        open_engine(&(struct mtp_settings){.is_ernie = true, .cycles = true, .knows = knows, .layers = 1}, 1);
        check_text();
        check_sequences(&backend_cpu, DRAFTED);
        eng_close(&engine);
    }
    open_engine(&(struct mtp_settings){.is_ernie = true, .cycles = true, .layers = 2}, 2);
    check_text();
    eng_close(&engine);
}

TEST(on_ranks)
{
    open_engine(&(struct mtp_settings){.cycles = true, .layers = 1}, 2);
    check_text();
    eng_close(&engine);
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

/* Tokens of a sequence alone; returns its steps. */
static int answer_of(struct eng_session *session, uint32_t seed, int32_t *answer, uint32_t count)
{
    struct eng_sequence *sequence = begin(session, 4, seed, count);
    uint32_t unfinished = 1;
    int steps = 0;
    for (; unfinished; steps++) CHECK(eng_step(session, &unfinished, &error));
    assert_int_equal(eng_sequence_poll(sequence, answer, count), count);
    eng_sequence_destroy(&sequence);
    return steps;
}

/* Right predictions halve the number of steps; wrong ones are soon left alone. Tokens are the same, whatever was sampled. */
TEST(tokens_are_the_same)
{
    enum { ANSWER = 45 }; /* fewer than the cycle has: nothing repeats itself */
    for (int cycles = 0; cycles < 2; cycles++) {
        open_engine(&(struct mtp_settings){.cycles = cycles, .knows = cycles, .layers = 1}, 1);
        for (int i = 0; i < 4; i++) text[i] = cycles ? i : 11 * i;
        struct eng_session *plain = open_session(&backend_cpu, 0), *own = open_session(&backend_cpu, DRAFTED);
        for (uint32_t seed = 0; seed < 12; seed++) {
            const uint64_t before = facts_of(own).accepted_tokens;
            int32_t expected[ANSWER], found[ANSWER];
            const int most = answer_of(plain, seed, expected, ANSWER), steps = answer_of(own, seed, found, ANSWER);
            assert_memory_equal(found, expected, sizeof found);
            if (cycles && seed == 0) {
                assert_in_range(steps, ANSWER / 2, ANSWER / 2 + 2);
                assert_in_range(facts_of(own).accepted_tokens - before, ANSWER / 2 - 1, ANSWER / 2);
            }
            assert_true(steps <= most);
        }
        const struct eng_session_facts facts = facts_of(own);
        assert_int_equal(facts_of(plain).drafted_tokens, 0);
        assert_true(facts.drafted_tokens > 0 && facts.accepted_tokens <= facts.drafted_tokens);
        eng_session_destroy(&plain);
        eng_session_destroy(&own);
        eng_close(&engine);
    }
}

static void expect_refused(const struct mtp_settings *settings, uint32_t verify_rows, enum status_code code,
                           const char *words)
{
    struct status status = {0};
    mtp_model_write(settings, folder);
    mtp_options(&options, folder, in_folder("mtp.eng"));
    options.verify_row_count = 1;
    options.verify_rows[0] = verify_rows;
    test_expect_failure(build_engine(&options, &status), &status, code, words);
}

TEST(what_is_missing_is_named)
{
    static const char *const needed[] =
        {"enorm", "hnorm", "eh_proj", "shared_head.norm", "self_attn.k_proj", "mlp.experts.0.down_proj"};
    char name[80];
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        snprintf(name, sizeof name, "model.layers.1.%s.weight", needed[i]);
        expect_refused(&(struct mtp_settings){.layers = 1, .left_out = name}, 4, STATUS_BAD_INPUT, name);
        expect_refused(&(struct mtp_settings){.layers = 1, .misshapen = name}, 4, STATUS_BAD_INPUT, name);
    }
    static const char *const of_ernie[] = {"model.mtp_emb_norm.0.weight", "model.mtp_hidden_norm.0.weight",
                                           "model.mtp_linear_proj.0.weight", "model.mtp_block.0.mlp.up_proj.weight"};
    for (size_t i = 0; i < sizeof of_ernie / sizeof *of_ernie; i++) {
        const char *one = of_ernie[i];
        expect_refused(&(struct mtp_settings){.is_ernie = true, .layers = 1, .left_out = one}, 4, STATUS_BAD_INPUT,
                       one);
        expect_refused(&(struct mtp_settings){.is_ernie = true, .layers = 1, .misshapen = one}, 4, STATUS_BAD_INPUT,
                       one);
    }
    expect_refused(
        &(struct mtp_settings){.layers = 0}, 4, STATUS_BAD_INPUT,
        "--mtp: config.json: fields 'num_nextn_predict_layers' and 'mtp_num_hidden_layers': expected a layer");
    expect_refused(&(struct mtp_settings){.layers = 1}, 0, STATUS_USAGE, "--mtp: expected plans that verify");
}

TEST(other_families_are_refused)
{
    struct status status = {0};
    mtp_options(&options, "tests/models/fables", in_folder("mtp.eng"));
    test_expect_failure(build_engine(&options, &status), &status, STATUS_BAD_INPUT,
                        "is supported (ernie4_5_moe, glm4_moe, deepseek_v3, kimi_k2, glm4_moe_lite, qwen3_next, "
                        "qwen3_5_text), found '");
}

/* Without the option the layer's tensors are passed over. */
TEST(the_layer_is_left_out_unless_asked_for)
{
    struct status status = {0};
    mtp_model_write(&(struct mtp_settings){.layers = 1}, folder);
    mtp_options(&options, folder, in_folder("plain.eng"));
    options.mtp = false;
    options.out = fopen("/dev/null", "w");
    assert_non_null(options.out);
    test_expect_success(build_engine(&options, &status), &status);
    fclose(options.out);
    CHECK(eng_open(options.output, NULL, &engine, &error));
    assert_int_equal(engine->file.manifest.geometry.drafts, 0);
    assert_int_equal(engine->file.manifest.layers, 1);
    struct eng_session *session = open_session(&backend_cpu, DRAFTED);
    int32_t answer[20];
    answer_of(session, 0, answer, 20);
    assert_null(session->backend->drafted);
    eng_session_destroy(&session);
    eng_close(&engine);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
