/* SPDX-License-Identifier: Apache-2.0 */
/* Speculation with recurrent state through the public API: whatever is drafted, kept and taken back, sequences have the tokens that they have
 * without it, also where they end within a draft and go on later. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "builder/build.h"
#include "formats/base/test_folder.h"
#include "formats/engine/test_engine.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { VOCAB = 320, PROMPT = 40, ANSWER = 40, SEQUENCES = 4, TURNS = 6, DRAFTED = 5, MODELS = 3 };

/* Without experts, whose bits depend on what else is in a step. */
static const char *const configs[MODELS] = {
    "{\"model_type\":\"lfm2\",\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":2,\"vocab_size\":320,\"max_position_embeddings\":512,\"bos_token_id\":1,"
    "\"eos_token_id\":2,\"dtype\":\"bfloat16\",\"num_hidden_layers\":4,\"conv_L_cache\":3,"
    "\"rope_parameters\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"},\"block_auto_adjust_ff_dim\":false,"
    "\"layer_types\":[\"conv\",\"full_attention\",\"conv\",\"full_attention\"]}\n",
    "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"head_dim\":32,\"vocab_size\":320,\"max_position_embeddings\":512,"
    "\"dtype\":\"bfloat16\",\"num_hidden_layers\":4,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"
    "\"linear_key_head_dim\":16,\"linear_value_head_dim\":16,\"linear_conv_kernel_dim\":4,"
    "\"tie_word_embeddings\":true,\"mtp_num_hidden_layers\":1,"
    "\"rope_parameters\":{\"rope_theta\":10000.0,\"rope_type\":\"default\",\"partial_rotary_factor\":0.25},"
    "\"layer_types\":[\"linear_attention\",\"full_attention\",\"linear_attention\",\"full_attention\"]}\n",
    "{\"model_type\":\"granitemoehybrid\",\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"vocab_size\":320,\"max_position_embeddings\":512,\"bos_token_id\":1,"
    "\"eos_token_id\":2,\"dtype\":\"bfloat16\",\"num_hidden_layers\":4,\"num_local_experts\":0,"
    "\"shared_intermediate_size\":96,\"mamba_n_heads\":8,\"mamba_d_state\":32,"
    "\"layer_types\":[\"mamba\",\"attention\",\"mamba\",\"mamba\"]}\n",
};

static struct eng_engine *engine;

/* `change`: of the checkpoint, before it is built; NULL: none. */
static void open_engine(int model, bool mixed, bool mtp, void (*change)(const char *path))
{
    char file[300], command[700], made[300], tensors[330];
    static char output[300];
    struct build_options options;
    struct status status = {0};
    snprintf(made, sizeof made, "%s", in_folder("model"));
    snprintf(output, sizeof output, "%s", in_folder("model.eng"));
    mkdir(in_folder("config"), 0700);
    snprintf(file, sizeof file, "%s", in_folder("config/config.json"));
    test_write_text(file, configs[model]);
    snprintf(command, sizeof command, "rm -rf %s; tests/make_checkpoint --config %s -o %s%s 2>/dev/null", made,
             in_folder("config"), made, mtp ? " --mtp" : "");
    assert_int_equal(system(command), 0);
    snprintf(tensors, sizeof tensors, "%s/model.safetensors", made);
    if (change) change(tensors);
    build_options_init(&options);
    options.model = made;
    options.output = output;
    options.max_batch = SEQUENCES;
    options.max_context = 512;
    options.prefill_chunks[0] = 16;
    options.prefill_chunk_count = 1;
    options.verify_rows[0] = 8;
    options.verify_row_count = 1;
    options.mtp = mtp;
    options.mixed_step_count = !mixed; /* of 0 rows: none */
    options.tune = TUNE_OFF;
    options.tuning_cache = NULL;
    options.progress = NULL;
    options.out = fopen("/dev/null", "w");
    assert_non_null(options.out);
    test_expect_success(build_engine(&options, &status), &status);
    fclose(options.out);
    CHECK(eng_open(output, NULL, &engine, &error));
}

static struct eng_session *open_session(const struct backend_type *type, uint32_t speculate, bool caches)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 2;
    options.speculate = speculate;
    options.no_prefix_cache = !caches;
    test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
    return fables_session_on(type, engine, &options);
}

struct conversation {
    struct eng_sequence *sequence;
    int32_t answers[TURNS][ANSWER];
    size_t counts[TURNS];
};

/* Few tokens repeat themselves, often in another way than before. */
static const struct eng_logit_bias few[] = {{50, 30}, {60, 30}, {70, 30}};
enum { FEW = sizeof few / sizeof *few };
static bool has_few(int index) { return index >= SEQUENCES / 2; }

/* A prompt repeats itself, so that there are drafts for what follows. */
static void submit(struct eng_sequence *sequence, int index, int turn)
{
    int32_t prompt[PROMPT];
    fables_tokens((uint32_t)(7 * index + turn), prompt, PROMPT / 2);
    for (int i = 0; i < PROMPT / 2; i++)
        prompt[i] = has_few(index) ? few[prompt[i] % FEW].token : 3 + prompt[i] % (VOCAB - 3);
    memcpy(prompt + PROMPT / 2, prompt, sizeof prompt / 2);
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
}

/* `stops`: a token that ends each turn of a conversation; NULL: none. */
static void talk(struct eng_session *session, int first, int count, const int32_t (*stops)[TURNS],
                 struct conversation *conversations)
{
    for (int i = first; i < first + count; i++) {
        struct eng_sequence_options options;
        struct eng_sampling sampling;
        eng_sequence_options_init(&options);
        eng_sampling_init(&sampling);
        if (i % 2) sampling.temperature = i / 2 ? 1 : 0.05f, sampling.seed = (uint64_t)i + 1;
        if (has_few(i)) sampling.logit_bias = few, sampling.logit_bias_count = FEW;
        options.sampling = &sampling;
        options.max_new_tokens = ANSWER;
        options.flags = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_KEEP;
        options.stop_tokens = stops ? stops[i] : NULL;
        options.stop_count = stops ? TURNS : 0;
        CHECK(eng_sequence_create(session, &options, &conversations[i].sequence, &error));
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = first; i < first + count; i++) submit(conversations[i].sequence, i, turn);
        fables_finish(session);
        for (int i = first; i < first + count; i++)
            conversations[i].counts[turn] =
                eng_sequence_poll(conversations[i].sequence, conversations[i].answers[turn], ANSWER);
    }
    for (int i = first; i < first + count; i++) eng_sequence_destroy(&conversations[i].sequence);
}

static void compare(const struct conversation *expected, const struct conversation *found)
{
    for (int i = 0; i < SEQUENCES; i++)
        for (int turn = 0; turn < TURNS; turn++) {
            assert_int_equal(found[i].counts[turn], expected[i].counts[turn]);
            assert_memory_equal(found[i].answers[turn], expected[i].answers[turn],
                                expected[i].counts[turn] * sizeof(int32_t));
        }
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

static uint64_t accepted, rejected, together; /* drafted tokens: of all, and of several sequences at once */

/* Alone and together, by the processor and, with the prefix cache, by a device that runs steps late. */
static void check(const int32_t (*stops)[TURNS], struct conversation *expected)
{
    static struct conversation found[SEQUENCES];
    struct eng_session *plain = open_session(&backend_cpu, 0, false);
    for (int i = 0; i < SEQUENCES; i++) talk(plain, i, 1, stops, expected);
    eng_session_destroy(&plain);
    for (int caches = 0; caches < 2; caches++) {
        struct eng_session *session = open_session(caches ? &test_backend : &backend_cpu, DRAFTED, caches);
        for (int i = 0; i < SEQUENCES; i++) talk(session, i, 1, stops, found);
        compare(expected, found);
        const uint64_t alone = facts_of(session).drafted_tokens;
        talk(session, 0, SEQUENCES, stops, found);
        compare(expected, found);
        const struct eng_session_facts facts = facts_of(session);
        accepted += facts.accepted_tokens;
        rejected += facts.drafted_tokens - facts.accepted_tokens;
        together += facts.drafted_tokens - alone;
        eng_session_destroy(&session);
    }
}

TEST(tokens_are_the_same)
{
    static struct conversation expected[SEQUENCES];
    int32_t stops[SEQUENCES][TURNS];
    for (int model = 0; model < MODELS; model++)
        for (int mixed = model > 0; mixed < 2; mixed++) {
            struct eng_selftest_result result;
            accepted = rejected = together = 0;
            open_engine(model, mixed, false, NULL);
            assert_true(engine->file.manifest.geometry.recurrent_bytes > 0);
            check(NULL, expected);
            for (int i = 0; i < SEQUENCES; i++)
                for (int turn = 0; turn < TURNS; turn++)
                    stops[i][turn] = has_few(i) ? few[2].token : expected[i].answers[turn][20 + 7 * i];
            check(stops, expected);
            assert_true(accepted > 20 && rejected > 20 && (!mixed || together > 20));
            struct eng_session *session = open_session(&backend_cpu, DRAFTED, true);
            eng_selftest_result_init(&result);
            CHECK(eng_selftest(session, &result, &error));
            eng_session_destroy(&session);
            eng_close(&engine);
        }
}

/* Sets elements of a tensor, bf16, to `value`: all, or of the rows' first half the diagonal. */
static void set_tensor(uint8_t *file, const char *name, uint64_t columns, bool diagonal, uint16_t value)
{
    uint64_t header_bytes, begin, end;
    memcpy(&header_bytes, file, sizeof header_bytes);
    const char *header = (const char *)file + sizeof header_bytes;
    char *text = strndup(header, header_bytes), *entry = strstr(text, test_text("\"%s\"", name));
    assert_non_null(entry);
    const char *offsets = strstr(entry, "\"data_offsets\":[");
    assert_non_null(offsets);
    assert_int_equal(sscanf(offsets + strlen("\"data_offsets\":["), "%lu,%lu", &begin, &end), 2);
    uint16_t *values = (uint16_t *)(void *)(file + sizeof header_bytes + header_bytes + begin);
    for (uint64_t i = 0; i < (end - begin) / sizeof *values; i++)
        values[i] = !diagonal || i / columns == i % columns ? value : 0;
    free(text);
}

/* What the layer adds is nothing, and of its two inputs it passes on that of the token that follows. */
static void pass_tokens_on(const char *path)
{
    size_t size;
    uint8_t *file = test_engine_read(path, &size);
    assert_non_null(file);
    set_tensor(file, "mtp.fc.weight", 2 * 64, true, 0x3f80);
    set_tensor(file, "mtp.layers.0.self_attn.o_proj.weight", 64, false, 0);
    set_tensor(file, "mtp.layers.0.mlp.down_proj.weight", 96, false, 0);
    set_tensor(file, "mtp.pre_fc_norm_embedding.weight", 64, false, 0);
    set_tensor(file, "mtp.norm.weight", 64, false, 0);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(file, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
    free(file);
}

/* With a tied embedding such a layer predicts the token again that was drawn, whatever it was. */
TEST(the_layer_of_qwen_sees_the_token_that_follows)
{
    struct eng_sampling sampling;
    uint32_t slot;
    int32_t token = 7;
    int changes = 0;
    open_engine(1, true, true, pass_tokens_on);
    struct eng_session *session = open_session(&backend_cpu, 0, false);
    eng_sampling_init(&sampling);
    sampling.temperature = 2;
    sampling.seed = 3;
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_slot_set_sampling(session, slot, &sampling, &error));
    for (int i = 0; i < 60; i++) {
        int32_t drawn;
        CHECK(eng_decode(session, &slot, &token, 1, &drawn, NULL, &error));
        assert_int_equal(session->backend->drafted[0], drawn);
        changes += drawn != token;
        token = drawn;
    }
    assert_true(changes > 40);
    eng_session_destroy(&session);
    eng_close(&engine);
}

TEST(predictions_change_no_token)
{
    static struct conversation expected[SEQUENCES];
    accepted = rejected = together = 0;
    open_engine(1, true, true, NULL);
    assert_int_equal(engine->file.manifest.geometry.drafts, 1);
    check(NULL, expected);
    assert_true(accepted > 20 && rejected > 20);
    eng_close(&engine);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
