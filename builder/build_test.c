/* SPDX-License-Identifier: Apache-2.0 */
/* Whole builds: the contents of the engine, the reports, equal bytes for equal input, and no files after a failure. */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "builder/build.h"
#include "formats/base/test_program.h"
#include "builder/test_model.h"
#include "formats/engine/engine_file.h"

/* One folder with a checkpoint, and the streams of a build. */
struct fixture {
    char *folder;
    struct build_options options;
    char model[300], output[300], cache[300];
    char *out, *warnings;
    size_t out_bytes, warnings_bytes;
    struct status status;
};

static void open_fixture(struct fixture *fixture, enum test_family family, enum dtype dtype)
{
    struct test_model model;
    *fixture = (struct fixture){.folder = test_folder()};
    snprintf(fixture->model, sizeof fixture->model, "%s/tiny model", fixture->folder);
    snprintf(fixture->output, sizeof fixture->output, "%s/out/x.eng", fixture->folder);
    snprintf(fixture->cache, sizeof fixture->cache, "%s/cache/a/records", fixture->folder);
    assert_int_equal(mkdir(fixture->model, 0777), 0);
    assert_int_equal(mkdir(test_path(fixture->folder, "out"), 0777), 0);
    assert_int_equal(mkdir(test_path(fixture->folder, "cache"), 0777), 0);
    test_model_init(&model, family, dtype);
    test_model_write(&model, fixture->model);
    build_options_init(&fixture->options);
    fixture->options.model = fixture->model;
    fixture->options.output = fixture->output;
    fixture->options.tune = TUNE_OFF;
    fixture->options.threads = 2;
}

static void close_fixture(struct fixture *fixture)
{
    free(fixture->out);
    free(fixture->warnings);
    test_folder_remove(fixture->folder);
}

static bool build(struct fixture *fixture)
{
    free(fixture->out);
    free(fixture->warnings);
    fixture->status = (struct status){0};
    fixture->options.out = open_memstream(&fixture->out, &fixture->out_bytes);
    fixture->options.warnings = open_memstream(&fixture->warnings, &fixture->warnings_bytes);
    assert_true(fixture->options.out && fixture->options.warnings);
    bool ok = build_engine(&fixture->options, &fixture->status);
    fclose(fixture->options.out);
    fclose(fixture->options.warnings);
    return ok;
}

static void expect_build(struct fixture *fixture) { test_expect_success(build(fixture), &fixture->status); }

static void expect_nothing_written(const struct fixture *fixture)
{
    assert_int_equal(test_count_entries(test_path(fixture->folder, "out")), 0);
}

static void expect_out(const struct fixture *fixture, const char *words)
{
    if (!strstr(fixture->out, words)) fail_msg("'%s' is not in: %s", words, fixture->out);
}

static char *read_output(const struct fixture *fixture, size_t *size)
{
    char *bytes;
    struct status status = {0};
    test_expect_success(file_read(fixture->output, 1 << 26, &bytes, size, &status), &status);
    return bytes;
}

TEST(engine_holds_what_was_asked_for)
{
    for (int family = 0; family < TEST_FAMILIES; family++) {
        struct fixture fixture;
        struct engine engine;
        open_fixture(&fixture, (enum test_family)family, DTYPE_BF16);
        expect_build(&fixture);
        test_expect_success(engine_open(&engine, fixture.output, &fixture.status), &fixture.status);
        test_expect_success(engine_verify_weights(&engine, 0, engine.weight_chunks, &fixture.status), &fixture.status);
        const struct manifest *m = &engine.manifest;
        assert_string_equal(m->model_name, "tiny model");
        assert_string_equal(m->builder_version, BUILDER_VERSION);
        assert_true(m->hidden_size == TEST_HIDDEN && m->intermediate_size == TEST_INNER && m->layers == TEST_LAYERS);
        assert_true(m->heads == TEST_HEADS && m->kv_heads == TEST_KV_HEADS && m->head_dim == TEST_HEAD_DIM);
        assert_true(m->weight_encoding == ENCODING_BF16 && m->kv_dtype == ENCODING_F32 && m->target == TARGET_CPU);
        assert_true(m->geometry.slots == 8 && m->geometry.max_context == 64 && m->geometry.pages_per_slot == 4);
        assert_int_equal(m->geometry.page_bytes, TEST_LAYERS * 2 * TEST_KV_HEADS * TEST_HEAD_DIM * 16 * 4);
        assert_true(m->bos_token == 1 && m->eos_count == 1 && m->eos_tokens[0] == 2 && m->temperature == 0);
        assert_false(m->has_tokenizer);
        const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 16, 64, 4, 8}; /* no chunk of 256: the context is 64 */
        assert_int_equal(engine.plan_count, 10);
        for (size_t p = 0; p < 10; p++) {
            const struct plan_header *header = &engine.plans[p].header;
            assert_int_equal(header->rows, rows[p]);
            assert_int_equal(header->kind, p < 4   ? PLAN_DECODE
                                           : p < 6 ? PLAN_PREFILL
                                           : p < 8 ? PLAN_MIXED
                                                   : PLAN_VERIFY);
            assert_int_equal(header->out_rows, p < 4 || p >= 8 ? rows[p] : p < 6 ? 1 : 8);
            assert_true(engine.plans[p].header.arena_bytes <= m->arena_bytes);
        }
        assert_int_equal(engine.plans[0].header.arena_bytes < m->arena_bytes, true);
        expect_out(&fixture, "written");
        engine_close(&engine);
        close_fixture(&fixture);
    }
}

static void expect_kind(const struct engine *engine, enum plan_kind kind, const uint32_t *rows, size_t count)
{
    size_t found = 0;
    for (size_t p = 0; p < engine->plan_count; p++) {
        if (engine->plans[p].header.kind != kind) continue;
        assert_true(found < count);
        assert_int_equal(engine->plans[p].header.rows, rows[found++]);
    }
    assert_int_equal(found, count);
}

/* With several slots, mixed plans have the rows of prefill plans, but not one. */
static void expect_plans(struct fixture *fixture, const uint32_t *decode, size_t decode_count, const uint32_t *prefill,
                         size_t prefill_count)
{
    struct engine engine;
    expect_build(fixture);
    test_expect_success(engine_open(&engine, fixture->output, &fixture->status), &fixture->status);
    expect_kind(&engine, PLAN_DECODE, decode, decode_count);
    expect_kind(&engine, PLAN_PREFILL, prefill, prefill_count);
    const size_t mixes = engine.manifest.geometry.slots > 1 ? prefill_count : 0, ones = prefill[0] == 1;
    expect_kind(&engine, PLAN_MIXED, prefill + ones, mixes - (mixes ? ones : 0));
    engine_close(&engine);
}

TEST(limits_make_plans)
{
    struct fixture fixture;
    open_fixture(&fixture, TEST_QWEN2, DTYPE_F32);
    struct build_options *options = &fixture.options;
    options->max_batch = 1;
    options->max_context = 1;
    expect_plans(&fixture, (const uint32_t[]){1}, 1, (const uint32_t[]){16}, 1);
    options->max_context = 17;
    expect_plans(&fixture, (const uint32_t[]){1}, 1, (const uint32_t[]){16, 64}, 2);
    options->max_batch = 6;
    options->prefill_chunk_count = 2;
    options->prefill_chunks[0] = 1;
    options->prefill_chunks[1] = 7;
    expect_plans(&fixture, (const uint32_t[]){1, 2, 4, 6}, 4, (const uint32_t[]){1, 7}, 2);
    /* A sequence alone and all of them at once can always be decoded. */
    options->batch_size_count = 2;
    options->batch_sizes[0] = 3;
    options->batch_sizes[1] = 5;
    expect_plans(&fixture, (const uint32_t[]){1, 3, 5, 6}, 4, (const uint32_t[]){1, 7}, 2);
    options->max_batch = 0;
    expect_plans(&fixture, (const uint32_t[]){1, 3, 5}, 3, (const uint32_t[]){1, 7}, 2);
    close_fixture(&fixture);
}

/* Asks for no plans of the kind, for plans of 2 rows and of `more`, and for one of more rows than the largest chunk has. */
static void check_asked_rows(struct fixture *fixture, enum plan_kind kind, int *count, uint32_t *list, uint32_t more,
                             const char *refused)
{
    const uint32_t asked[][2] = {{0}, {2, more}};
    struct engine engine;
    for (size_t i = 0; i < 2; i++) {
        *count = 1 + (int)i;
        memcpy(list, asked[i], sizeof asked[i]);
        expect_build(fixture);
        test_expect_success(engine_open(&engine, fixture->output, &fixture->status), &fixture->status);
        expect_kind(&engine, kind, asked[i], 2 * i);
        engine_close(&engine);
    }
    list[1] = 65;
    test_expect_failure(build(fixture), &fixture->status, STATUS_USAGE, refused);
}

TEST(mixed_plans_as_asked)
{
    struct fixture fixture;
    open_fixture(&fixture, TEST_QWEN2, DTYPE_F32);
    check_asked_rows(&fixture, PLAN_MIXED, &fixture.options.mixed_step_count, fixture.options.mixed_steps, 40,
                     "--mixed-steps: expected at most the largest prefill chunk (64), found 65");
    close_fixture(&fixture);
}

TEST(verification_plans_as_asked)
{
    struct fixture fixture;
    open_fixture(&fixture, TEST_QWEN2, DTYPE_F32);
    fixture.options.max_batch = 1; /* more rows than slots */
    check_asked_rows(&fixture, PLAN_VERIFY, &fixture.options.verify_row_count, fixture.options.verify_rows, 5,
                     "--verify-rows: expected at most the largest prefill chunk and the context (64), found 65");
    close_fixture(&fixture);
}

TEST(every_dtype_builds)
{
    static const enum encoding_id kv_encodings[] = {ENCODING_F32, ENCODING_F16, ENCODING_BF16, ENCODING_INT8_CHANNEL,
                                                    ENCODING_E4M3_CHANNEL};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct fixture fixture;
    open_fixture(&fixture, TEST_LLAMA_BIASED_TIED, DTYPE_F32);
    for (size_t w = 0; w < 3; w++)
        for (size_t k = 0; k < 5; k++) {
            struct engine engine;
            fixture.options.types.matrices = (enum encoding_id)dtypes[w];
            fixture.options.kv_dtype = kv_encodings[k];
            expect_build(&fixture);
            test_expect_success(engine_open(&engine, fixture.output, &fixture.status), &fixture.status);
            assert_true((int)engine.manifest.weight_encoding == (int)dtypes[w] &&
                        engine.manifest.kv_dtype == kv_encodings[k]);
            engine_close(&engine);
        }
    close_fixture(&fixture);
}

TEST(same_input_same_bytes)
{
    struct fixture fixture;
    size_t first_bytes, second_bytes;
    open_fixture(&fixture, TEST_QWEN3, DTYPE_BF16);
    fixture.options.tune = TUNE_QUICK;
    fixture.options.tuning_cache = fixture.cache;
    fixture.options.max_batch = 2;
    expect_build(&fixture);
    if (strstr(fixture.out, "(0 measured")) fail_msg("nothing was measured: %s", fixture.out);
    expect_out(&fixture, ", 0 from the cache)");
    char *first = read_output(&fixture, &first_bytes);
    /* Over the old file, with the records that the first build left. */
    for (int round = 0; round < 2; round++) {
        fixture.options.threads = 2;
        expect_build(&fixture);
        expect_out(&fixture, "(0 measured");
        char *second = read_output(&fixture, &second_bytes);
        assert_int_equal(first_bytes, second_bytes);
        assert_memory_equal(first, second, first_bytes);
        free(second);
    }
    assert_int_equal(test_count_entries(test_path(fixture.folder, "out")), 1);
    free(first);
    close_fixture(&fixture);
}

TEST(cache_is_no_condition)
{
    struct fixture fixture;
    open_fixture(&fixture, TEST_LLAMA, DTYPE_BF16);
    fixture.options.tune = TUNE_QUICK;
    fixture.options.max_batch = 1;
    fixture.options.prefill_chunk_count = 1;
    fixture.options.prefill_chunks[0] = 4;
    /* No user can write it, not even root. */
    fixture.options.tuning_cache = "/proc/no/such/folder/records";
    expect_build(&fixture);
    if (!strstr(fixture.warnings, "tuning cache")) fail_msg("no warning: %s", fixture.warnings);
    if (!strstr(fixture.warnings, "not kept")) fail_msg("no warning: %s", fixture.warnings);
    /* A folder cannot be read. */
    fixture.options.tuning_cache = fixture.folder;
    expect_build(&fixture);
    if (!strstr(fixture.warnings, "without a tuning cache")) fail_msg("no warning: %s", fixture.warnings);
    /* Damage costs the record. */
    test_write_text(test_path(fixture.folder, "damaged"), "0123456789abcdef {\"key\": \"x\"}\nnonsense\n");
    fixture.options.tuning_cache = test_path(fixture.folder, "damaged");
    expect_build(&fixture);
    if (!strstr(fixture.warnings, "2 damaged records")) fail_msg("no warning: %s", fixture.warnings);
    close_fixture(&fixture);
}

TEST(failures_leave_nothing)
{
    struct fixture fixture;
    struct test_model model;
    open_fixture(&fixture, TEST_LLAMA, DTYPE_BF16);
    struct build_options *options = &fixture.options;

    options->max_context = 65;
    test_expect_failure(build(&fixture), &fixture.status, STATUS_BAD_INPUT, "--max-context|64|65");
    options->max_context = 0;
    options->compute = ENCODING_E4M3_CHANNEL;
    test_expect_failure(build(&fixture), &fixture.status, STATUS_USAGE,
                        "--compute|f32, bf16 or int8|found fp8|--target cuda");
    options->compute = ENCODING_NONE;
    options->dump_after = "nonsense";
    test_expect_failure(build(&fixture), &fixture.status, STATUS_USAGE, "nonsense|last_position");
    options->dump_after = NULL;
    options->model = "/no/such/model";
    test_expect_failure(build(&fixture), &fixture.status, STATUS_NOT_FOUND, "/no/such/model");
    options->model = fixture.model;
    options->output = "/no/such/folder/x.eng";
    test_expect_failure(build(&fixture), &fixture.status, STATUS_NOT_FOUND, "/no/such/folder");
    options->output = test_path(fixture.folder, "out");
    test_expect_failure(build(&fixture), &fixture.status, STATUS_BAD_INPUT, "directory");
    options->output = fixture.output;

    /* The tokenizer is looked at before the long work begins. */
    test_write_text(test_path(fixture.model, "tokenizer.json"), "{\"model\": {\"type\": \"Unigram\"}}");
    test_expect_failure(build(&fixture), &fixture.status, STATUS_BAD_INPUT, "tokenizer.json");
    options->dry_run = true;
    test_expect_failure(build(&fixture), &fixture.status, STATUS_BAD_INPUT, "tokenizer.json");
    options->dry_run = false;
    assert_int_equal(unlink(test_path(fixture.model, "tokenizer.json")), 0);

    test_model_init(&model, TEST_LLAMA, DTYPE_BF16);
    test_model_remove(&model, "model.norm.weight");
    test_model_write(&model, fixture.model);
    test_expect_failure(build(&fixture), &fixture.status, STATUS_BAD_INPUT, "model.norm.weight|missing");

    test_model_init(&model, TEST_LLAMA, DTYPE_F32);
    struct test_tensor *head = test_model_find(&model, "lm_head.weight");
    head->has_odd_value = true;
    head->odd_index = 3 * TEST_HIDDEN + 5;
    head->odd_value = NAN;
    test_model_write(&model, fixture.model);
    test_expect_failure(build(&fixture), &fixture.status, STATUS_BAD_INPUT, "'lm_head.weight': row 3, column 5 is NaN");
    expect_nothing_written(&fixture);

    /* A model that computes infinities, of finite weights, would give an engine that no loader accepts. */
    test_model_init(&model, TEST_LLAMA, DTYPE_F32);
    test_model_find(&model, "lm_head.weight")->scale = 3e38f;
    test_model_write(&model, fixture.model);
    test_expect_failure(build(&fixture), &fixture.status, STATUS_BAD_INPUT, "logits are not finite");
    expect_nothing_written(&fixture);
    close_fixture(&fixture);
}

/* The disk is full at any point: the limit on file sizes stands in for it. */
TEST(full_disk_leaves_nothing)
{
    struct fixture fixture;
    struct rlimit saved, limit;
    open_fixture(&fixture, TEST_LLAMA, DTYPE_BF16);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    for (rlim_t bytes = 0; bytes < 24000; bytes += 4000) {
        limit = (struct rlimit){bytes, saved.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        bool ok = build(&fixture);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
        test_expect_failure(ok, &fixture.status, STATUS_MACHINE, "cannot write");
        expect_nothing_written(&fixture);
    }
    /* What was there before stays. */
    test_write_text(fixture.output, "an older engine");
    limit = (struct rlimit){8000, saved.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_false(build(&fixture));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    size_t size;
    char *text = read_output(&fixture, &size);
    assert_string_equal(text, "an older engine");
    free(text);
    close_fixture(&fixture);
}

TEST(looking_writes_nothing)
{
    struct fixture fixture;
    open_fixture(&fixture, TEST_QWEN2, DTYPE_BF16);
    fixture.options.dry_run = true;
    fixture.options.tuning_cache = fixture.cache;
    expect_build(&fixture);
    expect_out(&fixture, "nothing was written");
    expect_out(&fixture, "prefill    64");
    fixture.options.json = true;
    expect_build(&fixture);
    expect_out(&fixture, "\"pages_per_sequence\": 4");
    /* A configuration alone can be planned too. */
    assert_int_equal(unlink(test_path(fixture.model, "model.safetensors")), 0);
    expect_build(&fixture);
    expect_out(&fixture, "\"model\": \"tiny model\"");
    fixture.options.json = false;
    fixture.options.dry_run = false;
    fixture.options.list_candidates = true;
    expect_build(&fixture);
    expect_out(&fixture, "illegal: ");
    expect_out(&fixture, "n=37 "); /* the LM head, too */
    fixture.options.list_candidates = false;
    assert_false(build(&fixture));
    expect_nothing_written(&fixture);
    assert_int_equal(test_count_entries(test_path(fixture.folder, "cache")), 0);
    close_fixture(&fixture);
}

int main(void) { return test_run(); }
