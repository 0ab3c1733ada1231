/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning of whole plans: each problem once, cached records first, every launch patched, whatever happens to
 * the cache. */
#include "builder/arch/arch.h"
#include "formats/base/test_program.h"
#include "builder/lower/lower.h"
#include "builder/passes/pass.h"
#include "builder/test_model.h"
#include "tuner/cpu/tune_plans.h"
#include "builder/weights/weights.h"
#include "kernels/matmul/matmul.h"

enum { PLANS = 3 }; /* decode of 1 and 3 rows, prefill of 3 */

struct fixture {
    struct model_config config;
    struct graph decode, prefill;
    struct plan plans[PLANS];
    uint8_t *weights; /* zeros */
    struct team *team;
    struct machine machine;
    struct progress progress;
    struct tactics tactics;
    struct status status;
};

static void open_fixture_of(struct fixture *f, const char *text)
{
    *f = (struct fixture){0};
    struct status *status = &f->status;
    uint64_t bytes;
    test_expect_success(model_config_parse(&f->config, text, strlen(text), "config.json", arch_read_config, status),
                        status);
    graph_init(&f->decode, &f->config, PLAN_DECODE);
    graph_init(&f->prefill, &f->config, PLAN_PREFILL);
    test_expect_success(import_graph(&f->decode, status) && run_passes(&f->decode, NULL, NULL, status), status);
    test_expect_success(import_graph(&f->prefill, status) && run_passes(&f->prefill, NULL, NULL, status), status);
    assume_weights(&f->decode, ENCODING_BF16, NULL, NULL);
    test_expect_success(plan_weights(&f->decode, &bytes, status), status);
    test_expect_success(share_weights(&f->prefill, &f->decode, status), status);
    f->weights = aligned_alloc(PLAN_ALIGNMENT, bytes);
    assert_non_null(f->weights);
    memset(f->weights, 0, bytes);
    f->team = team_create(2, status);
    assert_non_null(f->team);
    machine_describe(&f->machine, f->team);
    f->machine.read_gb_s = 10; /* measured elsewhere */
    f->machine.peak_gflops = 100;
    struct lowering lowering = {
        .geometry = {.slots = 3, .max_context = 64, .page_tokens = 16, .pages_per_slot = 4, .vocab_size = TEST_VOCAB},
        .kv_dtype = ENCODING_F32,
        .isa = f->machine.isa,
        .threads = 2,
    };
    lowering.geometry.page_bytes = f->config.layers * kv_layer_bytes(&f->config, 16, ENCODING_F32);
    test_expect_success(lower_plan(&f->decode, &lowering, 1, &f->plans[0], status), status);
    test_expect_success(lower_plan(&f->decode, &lowering, 3, &f->plans[1], status), status);
    test_expect_success(lower_plan(&f->prefill, &lowering, 3, &f->plans[2], status), status);
}

static void open_fixture(struct fixture *f) { open_fixture_of(f, test_family_config(TEST_LLAMA_BIASED_TIED)); }

static void close_fixture(struct fixture *f)
{
    tactics_free(&f->tactics);
    for (int p = 0; p < PLANS; p++) plan_free(&f->plans[p]);
    graph_free(&f->decode);
    graph_free(&f->prefill);
    free(f->weights);
    team_destroy(f->team);
}

static void tune(struct fixture *f, enum tune_level level, const uint8_t *weights, struct tuning_cache *cache)
{
    tactics_free(&f->tactics);
    test_expect_success(tune_plans(f->plans, PLANS, weights, &f->machine, f->team, level, cache, &f->progress,
                                   &f->tactics, &f->status),
                        &f->status);
}

/* q/k/v, gate/up, o and down of both layers, and the LM head, with 1 and 3 rows. */
enum { PROBLEMS = 2 * 5 };

static void expect_launches_follow_records(const struct fixture *f)
{
    bool used[PROBLEMS] = {false};
    assert_int_equal(f->tactics.count, PROBLEMS);
    for (int p = 0; p < PLANS; p++)
        for (uint32_t n = 0; n < f->plans[p].header.launch_count; n++) {
            const struct plan_launch *launch = &f->plans[p].launches[n];
            int64_t params[MATMUL_PARAMS];
            char key[TUNING_KEY_BYTES];
            struct status status = {0};
            if (launch->op != OP_MATMUL) {
                assert_true(launch->tactic == PLAN_NO_TACTIC);
                continue;
            }
            assert_true(launch->tactic < PROBLEMS);
            used[launch->tactic] = true;
            test_expect_success(op_params(&f->plans[p], launch, MATMUL_TUNABLES, params, &status), &status);
            const struct tuning_record *record = &f->tactics.records[launch->tactic];
            matmul_tuning_key(params, &f->machine, key);
            assert_string_equal(record->key, key);
            for (int i = 0; i < MATMUL_TUNABLES; i++)
                assert_int_equal(params[MATMUL_FIRST_TUNABLE + i], record->values[i].value);
        }
    for (int i = 0; i < PROBLEMS; i++) assert_true(used[i]);
}

TEST(off_gives_defaults)
{
    struct fixture f;
    open_fixture(&f);
    tune(&f, TUNE_OFF, f.weights, NULL);
    expect_launches_follow_records(&f);
    assert_true(f.tactics.measured == 0 && f.tactics.cached == 0);
    /* Without weights nothing can be measured, whatever the level. */
    tune(&f, TUNE_FULL, NULL, NULL);
    expect_launches_follow_records(&f);
    assert_int_equal(f.tactics.measured, 0);
    for (size_t i = 0; i < f.tactics.count; i++) assert_string_equal(f.tactics.records[i].level, "model");
    close_fixture(&f);
}

/* The units of the progress are microseconds: one large problem takes as long as many small ones. */
TEST(progress_counts_time)
{
    struct fixture f;
    struct tuning_cache cache;
    char *folder = test_folder();
    FILE *log = tmpfile();
    open_fixture(&f);
    assert_non_null(log);
    test_expect_success(tuning_cache_open(&cache, test_path(folder, "records"), &f.status), &f.status);
    progress_open(&f.progress, log);
    progress_stage(&f.progress, "tune");
    tune(&f, TUNE_QUICK, f.weights, &cache);
    uint64_t expected_us = 0;
    for (int i = 0; i < PROBLEMS; i++)
        for (int p = 0, found = 0; p < PLANS && !found; p++)
            for (uint32_t n = 0; n < f.plans[p].header.launch_count && !found; n++) {
                const struct plan_launch *launch = &f.plans[p].launches[n];
                const void *weights = f.weights;
                if (launch->op != OP_MATMUL || launch->tactic != (uint32_t)i) continue;
                int64_t params[MATMUL_PARAMS];
                test_expect_success(op_params(&f.plans[p], launch, MATMUL_TUNABLES, params, &f.status), &f.status);
                const struct matmul_problem problem = {params, &weights, NULL, 1};
                expected_us += 1 + (uint64_t)tune_matmul_expected_us(&problem, &f.machine, TUNE_QUICK);
                found = 1;
            }
    assert_true(f.progress.total == expected_us && f.progress.done == expected_us);
    assert_true(expected_us > 2 * PROBLEMS);
    /* What the cache answers takes no time. */
    progress_stage(&f.progress, "tune");
    tune(&f, TUNE_QUICK, f.weights, &cache);
    assert_true(f.progress.total == PROBLEMS && f.progress.done == PROBLEMS);
    progress_close(&f.progress);
    fclose(log);
    tuning_cache_close(&cache);
    close_fixture(&f);
    test_folder_remove(folder);
}

TEST(records_are_kept_and_used)
{
    struct fixture f;
    struct tuning_cache cache, again;
    char *folder = test_folder();
    open_fixture(&f);
    test_expect_success(tuning_cache_open(&cache, test_path(folder, "records"), &f.status), &f.status);
    tune(&f, TUNE_QUICK, f.weights, &cache);
    expect_launches_follow_records(&f);
    assert_true(f.tactics.measured == PROBLEMS && f.tactics.cached == 0 && f.tactics.unsaved == 0);
    struct tuning_record *measured = calloc(PROBLEMS, sizeof *measured);
    assert_non_null(measured);
    memcpy(measured, f.tactics.records, PROBLEMS * sizeof *measured);

    /* From the file, exactly as they were measured; also where nothing may be measured. */
    test_expect_success(tuning_cache_open(&again, test_path(folder, "records"), &f.status), &f.status);
    assert_int_equal(again.count, PROBLEMS);
    for (int level = TUNE_OFF; level <= TUNE_QUICK; level++) {
        tune(&f, (enum tune_level)level, f.weights, &again);
        expect_launches_follow_records(&f);
        assert_true(f.tactics.measured == 0 && f.tactics.cached == PROBLEMS);
        for (int i = 0; i < PROBLEMS; i++) {
            assert_true(f.tactics.records[i].median_us == measured[i].median_us);
            assert_true(f.tactics.records[i].spread_us == measured[i].spread_us);
            assert_true(f.tactics.records[i].roofline_us == measured[i].roofline_us);
        }
    }
    /* Quick records do not answer a full search, and records without a measurement answer nothing. */
    tune(&f, TUNE_FULL, f.weights, &again);
    assert_int_equal(f.tactics.measured, PROBLEMS);
    snprintf(again.records[0].level, sizeof again.records[0].level, "model");
    tune(&f, TUNE_QUICK, f.weights, &again);
    assert_true(f.tactics.measured == 1 && f.tactics.cached == PROBLEMS - 1);
    /* Nor do records that do not fit the op. */
    again.records[3].values[0].value = 5;
    tune(&f, TUNE_QUICK, f.weights, &again);
    assert_true(f.tactics.measured == 1 && f.tactics.cached == PROBLEMS - 1);
    expect_launches_follow_records(&f);
    free(measured);
    tuning_cache_close(&cache);
    tuning_cache_close(&again);
    test_folder_remove(folder);
    close_fixture(&f);
}

/* Matmuls over experts are measured as all others, with every row's choices. */
TEST(experts_are_measured)
{
    static const char text[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 37, "
        "\"max_position_embeddings\": 64, \"num_experts\": 8, \"num_experts_per_tok\": 2, "
        "\"moe_intermediate_size\": 48}";
    enum { MATMULS = 6 }; /* q/k/v, o, the router's logits, gate/up and down of experts, and the LM head */
    struct fixture f;
    open_fixture_of(&f, text);
    tune(&f, TUNE_QUICK, f.weights, NULL);
    assert_int_equal(f.tactics.count, 2 * MATMULS);
    assert_int_equal(f.tactics.measured, 2 * MATMULS);
    int over_experts = 0;
    for (size_t i = 0; i < f.tactics.count; i++) {
        const struct tuning_record *record = &f.tactics.records[i];
        assert_string_equal(record->level, "quick");
        assert_true(record->median_us > 0);
        over_experts += strstr(record->key, " experts=8 top_k=2") != NULL;
    }
    assert_int_equal(over_experts, 2 * 2);
    close_fixture(&f);
}

TEST(cache_file_may_fail)
{
    struct fixture f;
    struct tuning_cache cache;
    open_fixture(&f);
    test_expect_success(tuning_cache_open(&cache, "/proc/no/such/folder/records", &f.status), &f.status);
    tune(&f, TUNE_QUICK, f.weights, &cache);
    expect_launches_follow_records(&f);
    assert_true(f.tactics.measured == PROBLEMS && f.tactics.unsaved == PROBLEMS);
    test_expect_message(&f.tactics.cache_status, "/proc/no/such/folder/records");
    tuning_cache_close(&cache);
    close_fixture(&f);
}

TEST(tactics_are_record_lines)
{
    struct fixture f;
    struct tuning_cache parsed;
    char *text;
    size_t size;
    open_fixture(&f);
    tune(&f, TUNE_QUICK, f.weights, NULL);
    test_expect_success(tactics_format(&f.tactics, &text, &size, &f.status), &f.status);
    test_expect_success(tuning_cache_open(&parsed, NULL, &f.status), &f.status);
    test_expect_success(tuning_cache_parse(&parsed, text, size, &f.status), &f.status);
    assert_true(parsed.count == PROBLEMS && parsed.damaged == 0);
    for (size_t i = 0; i < f.tactics.count; i++) assert_non_null(tuning_cache_find(&parsed, f.tactics.records[i].key));
    tuning_cache_close(&parsed);
    free(text);
    close_fixture(&f);
}

int main(void) { return test_run(); }
