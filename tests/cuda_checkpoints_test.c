/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of recurrent state in a GPU's memory, with the fake driver (tests/fake_cuda): sequences that begin at them, and saved
 * ones, get the tokens that they get by themselves, and memory is as computed. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "runtime/session/session.h"
#include "tests/test_cuda_engine.h"
#include "tests/test_fables.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VOCAB = 320, PAGE = 16, PROMPT = 300, ANSWER = 30, STATES = 3 };

static const char fake_folder[] = "tests/fake_cuda/whole";
/* Without experts, whose bits depend on what else is in a step. */
static const char config[] =
    "{\"model_type\": \"lfm2\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 2, \"vocab_size\": 320, \"max_position_embeddings\": 512, \"bos_token_id\": 1, "
    "\"eos_token_id\": 2, \"dtype\": \"bfloat16\", \"num_hidden_layers\": 4, \"conv_L_cache\": 3, "
    "\"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}, "
    "\"block_auto_adjust_ff_dim\": false, "
    "\"layer_types\": [\"conv\", \"full_attention\", \"conv\", \"full_attention\"]}\n";

static char *folder;
static struct test_fake_cuda fake;
static struct engine cpu_file;
static struct eng_engine *engine;

static int build(void **state)
{
    char from[300], model[300], file[320], path[320], command[700];
    struct status status = {0};
    fake = test_fake_cuda_find();
    folder = test_folder();
    snprintf(from, sizeof from, "%s/config", folder);
    snprintf(model, sizeof model, "%s/model", folder);
    snprintf(file, sizeof file, "%s/config.json", from);
    snprintf(path, sizeof path, "%s/cpu.eng", folder);
    snprintf(command, sizeof command, "tests/make_checkpoint --config %s -o %s 2>/dev/null", from, model);
    if (mkdir(from, 0700)) return -1;
    FILE *out = fopen(file, "w");
    if (!out || fputs(config, out) < 0 || fclose(out) || system(command)) return -1;
    test_expect_success(fables_build_model(model, path, 1, &status), &status);
    test_expect_success(engine_open(&cpu_file, path, &status), &status);
    snprintf(path, sizeof path, "%s/cuda.eng", folder);
    cuda_engine_write(&cpu_file, path);
    CHECK(eng_open(path, NULL, &engine, &error));
    return 0;
}

static int clean_up(void **state)
{
    eng_close(&engine);
    cuda_engine_close();
    engine_close(&cpu_file);
    test_folder_remove(folder);
    return fake.live(-1) || fake.misuse() ? -1 : 0;
}

static struct eng_session *open_session(bool caches)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.no_prefix_cache = !caches;
    options.checkpoint_bytes = STATES * engine->file.manifest.geometry.recurrent_bytes;
    return fables_session(engine, &options);
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

static struct eng_sequence *create(struct eng_session *session)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_KEEP;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    return sequence;
}

/* Prompts of all seeds begin alike. */
static void answer_turn(struct eng_session *session, struct eng_sequence *sequence, uint32_t seed, uint32_t count,
                        int32_t *answer)
{
    int32_t prompt[PROMPT];
    fables_tokens(1, prompt, count);
    fables_tokens(seed, prompt + count - count / 4, count / 4);
    for (uint32_t i = 0; i < count; i++) prompt[i] = 3 + prompt[i] % (VOCAB - 3);
    CHECK(eng_sequence_submit(sequence, prompt, count, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
}

TEST(sequences_go_on_from_states_in_the_memory_of_the_gpu)
{
    enum { PROMPTS = 4, ROUNDS = 3 };
    struct eng_session *plain = open_session(false), *session = open_session(true);
    const uint64_t bytes = facts_of(session).device_bytes - facts_of(plain).device_bytes;
    const uint64_t states = STATES * engine->file.manifest.geometry.recurrent_bytes;
    assert_in_range(bytes, states, states + PLAN_ALIGNMENT);
    for (int round = 0; round < ROUNDS; round++)
        for (uint32_t p = 0; p < PROMPTS; p++) {
            int32_t expected[ANSWER], found[ANSWER];
            struct eng_sequence *sequences[2] = {create(plain), create(session)};
            answer_turn(plain, sequences[0], 10 + p, PROMPT, expected);
            answer_turn(session, sequences[1], 10 + p, PROMPT, found);
            assert_memory_equal(expected, found, sizeof expected);
            for (int i = 0; i < 2; i++) eng_sequence_destroy(&sequences[i]);
        }
    assert_in_range(facts_of(session).cached_tokens, (PROMPTS * ROUNDS - 2) * 128, PROMPTS * ROUNDS * PROMPT);
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
}

TEST(saved_state_is_that_of_the_gpu)
{
    int32_t first[ANSWER], expected[ANSWER], found[ANSWER];
    struct eng_session *session = open_session(true);
    struct eng_sequence *sequence = create(session), *restored = NULL;
    struct eng_sequence_options options;
    char path[300];
    snprintf(path, sizeof path, "%s/saved", folder);
    answer_turn(session, sequence, 1, 100, first);
    CHECK(eng_sequence_save(sequence, path, &error));
    answer_turn(session, sequence, 2, 20, expected);
    eng_session_destroy(&session);
    session = open_session(true);
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_restore(session, path, &options, &restored, &error));
    answer_turn(session, restored, 2, 20, found);
    assert_memory_equal(expected, found, sizeof expected);
    eng_session_destroy(&session);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    return test_run_with(build, NULL, NULL, clean_up);
}
