/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/model_config.h"
#include "formats/base/test_support.h"

static struct status status;

/* A config with vocab_size 512, bos 1 and eos 2, as read from config.json. */
static struct model_config base(void)
{
    return (struct model_config){.vocab_size = 512,
                                 .bos_token = 1,
                                 .pad_token = -1,
                                 .eos_tokens = {2},
                                 .eos_count = 1,
                                 .temperature = 1.0,
                                 .top_p = 1.0,
                                 .repetition_penalty = 1.0};
}

static struct model_config accepted(const char *text)
{
    struct model_config config = base();
    test_expect_success(generation_config_parse(&config, test_json(text), strlen(text), "generation_config.json",
                                                &status),
                        &status);
    return config;
}

TEST(test_nothing_named)
{
    static const char *const texts[] = {
        "{}",
        "{'eos_token_id': null, 'bos_token_id': null, 'do_sample': null, 'top_k': null}",
        "{'_from_model_config': true, 'transformers_version': '5.17.0', 'use_cache': true}",
        "{'max_length': 4096, 'max_new_tokens': 512, 'chat_format': 'chatml', 'max_window_size': 24000}",
        "{'num_beams': 1, 'no_repeat_ngram_size': 0, 'suppress_tokens': [], 'guidance_scale': 1.0}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct model_config config = accepted(texts[i]);
        assert_int_equal(config.bos_token, 1);
        assert_int_equal(config.pad_token, -1);
        assert_int_equal(config.eos_count, 1);
        assert_int_equal(config.eos_tokens[0], 2);
        assert_false(config.do_sample);
        assert_int_equal(config.top_k, 0);
    }
}

TEST(test_token_ids)
{
    struct model_config config = accepted("{'eos_token_id': 7, 'bos_token_id': 0, 'pad_token_id': -1}");
    assert_int_equal(config.eos_count, 1);
    assert_int_equal(config.eos_tokens[0], 7);
    assert_int_equal(config.bos_token, 0);
    assert_int_equal(config.pad_token, -1);
    config = accepted("{'eos_token_id': [9, 8, 9, 511], 'pad_token_id': 600}");
    assert_int_equal(config.eos_count, 3);
    assert_int_equal(config.eos_tokens[0], 9);
    assert_int_equal(config.eos_tokens[1], 8);
    assert_int_equal(config.eos_tokens[2], 511);
    assert_int_equal(config.pad_token, 600);
    assert_int_equal(accepted("{'eos_token_id': []}").eos_count, 0);
}

TEST(test_sampling)
{
    struct model_config config = accepted("{'do_sample': true, 'temperature': 0.6, 'top_p': 0.9}");
    assert_true(config.do_sample);
    assert_true(config.temperature == 0.6 && config.top_p == 0.9 && config.repetition_penalty == 1.0);
    assert_int_equal(config.top_k, 50); /* the default of transformers if it samples */
    config = accepted("{'do_sample': true, 'top_k': 0}");
    assert_int_equal(config.top_k, 0);
    config = accepted("{'do_sample': true, 'top_k': 20, 'repetition_penalty': 1.05, 'temperature': 1}");
    assert_int_equal(config.top_k, 20);
    assert_true(config.repetition_penalty == 1.05);
    /* Fields that only change sampling do not matter to a greedy model. */
    accepted("{'do_sample': false, 'min_p': 0.05, 'typical_p': 0.9, 'eta_cutoff': 0.1}");
    accepted("{'do_sample': true, 'min_p': 0.0, 'typical_p': 1.0, 'epsilon_cutoff': 0}");
}

TEST(test_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"[]", "object|array"},
        {"{", "not valid JSON"},
        {"{'top_k': 1, 'top_k': 2}", "duplicate"},
        {"{'eos_token_id': 512}", "'eos_token_id'|below vocab_size (512)|found 512"},
        {"{'eos_token_id': [1, -1]}", "'eos_token_id'|found -1"},
        {"{'eos_token_id': [1, 'x']}", "'eos_token_id'|found \"x\""},
        {"{'eos_token_id': '</s>'}", "'eos_token_id'|found \"</s>\""},
        {"{'eos_token_id': [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "'eos_token_id'|at most 16|found 17"},
        {"{'bos_token_id': 4294967297}", "'bos_token_id'|found 4294967297"},
        {"{'bos_token_id': [1]}", "'bos_token_id'|an array of 1"},
        {"{'pad_token_id': -2}", "'pad_token_id'|found -2"},
        {"{'pad_token_id': 1.5}", "'pad_token_id'|found 1.5"},
        {"{'do_sample': 1}", "'do_sample'|true or false|found 1"},
        {"{'temperature': -0.1}", "'temperature'|from 0|found -0.1"},
        {"{'temperature': 'hot'}", "'temperature'|a number|\"hot\""},
        {"{'top_p': 1.5}", "'top_p'|from 0 to 1|found 1.5"},
        {"{'top_k': -1}", "'top_k'|found -1"},
        {"{'top_k': 2.0}", "'top_k'|an integer|found 2"},
        {"{'repetition_penalty': 0}", "'repetition_penalty'|found 0"},
        {"{'repetition_penalty': 0.009}", "'repetition_penalty'|from 0.01"},
        {"{'num_beams': 4}", "'num_beams'|expected 1|not implemented|found 4"},
        {"{'no_repeat_ngram_size': 3}", "'no_repeat_ngram_size'|expected 0|found 3"},
        {"{'min_new_tokens': 3}", "'min_new_tokens'|expected 0"},
        {"{'suppress_tokens': [1]}", "'suppress_tokens'|empty|an array of 1"},
        {"{'forced_eos_token_id': 2}", "'forced_eos_token_id'|null|found 2"},
        {"{'guidance_scale': 1.5}", "'guidance_scale'|expected 1|found 1.5"},
        {"{'stop_strings': ['x']}", "'stop_strings'|empty"},
        {"{'token_healing': true}", "'token_healing'|false"},
        {"{'do_sample': true, 'min_p': 0.05}", "'min_p'|expected 0|found 0.05"},
        {"{'do_sample': true, 'typical_p': 0.9}", "'typical_p'|expected 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config config = base();
        bool done =
            generation_config_parse(&config, test_json(cases[i].text), strlen(cases[i].text), "g.json", &status);
        test_expect_failure(done, &status, STATUS_BAD_INPUT, cases[i].words);
        test_expect_message(&status, "g.json: ");
    }
}

int main(void) { return test_run(); }
