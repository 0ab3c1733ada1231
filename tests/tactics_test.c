/* SPDX-License-Identifier: Apache-2.0 */
/* enginfo --tactics for engines of both targets, without a GPU: every launch is counted once, figures follow from the
 * records, and missing measurements are marked. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <jansson.h>
#include <math.h>

#include "formats/base/test_support.h"
#include "formats/tuning/tuning_record.h"
#include "runtime/cli/cli_launch.h"
#include "runtime/cli/cli_tactics.h"
#include "tests/test_lowered_engine.h"

static int build(void **state) { return fables_build(state) || lowered_engine_build(state) ? -1 : 0; }

static int remove_all(void **state)
{
    lowered_engine_remove(state);
    return fables_remove(state);
}

static void open_file(struct engine *file, const char *path)
{
    struct status status = {0};
    test_expect_success(engine_open(file, path, &status), &status);
}

static char *print(const struct engine *file)
{
    char *text = NULL;
    size_t size;
    struct status status = {0};
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    test_expect_success(tactics_print(file, out, &status), &status);
    assert_int_equal(fclose(out), 0);
    return text;
}

static json_t *data(const struct engine *file)
{
    struct status status = {0};
    json_t *plans = tactics_json(file, &status);
    test_expect_success(plans != NULL, &status);
    assert_int_equal(json_array_size(plans), file->plan_count);
    return plans;
}

/* The entry whose shape begins with this text. */
static const json_t *find(const json_t *plan, const char *shape)
{
    size_t index;
    const json_t *entry;
    json_array_foreach (json_object_get(plan, "tactics"), index, entry)
        if (strncmp(json_string_value(json_object_get(entry, "shape")), shape, strlen(shape)) == 0) return entry;
    fail_msg("no launch '%s'", shape);
    return NULL;
}

static double number(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

/* Every launch of every plan belongs to one entry, and no two entries have the same text. */
static void check_counts(const struct engine *file, const json_t *plans)
{
    size_t p, index;
    const json_t *plan, *entry;
    json_array_foreach (plans, p, plan) {
        double launches = 0;
        json_array_foreach (json_object_get(plan, "tactics"), index, entry) launches += number(entry, "launches");
        assert_int_equal(launches, file->plans[p].header.launch_count);
        assert_int_equal(number(plan, "launches"), file->plans[p].header.launch_count);
        assert_int_equal(number(plan, "rows"), file->plans[p].header.rows);
    }
}

enum { TERMINAL_COLUMNS = 132 };

/* Every line fits a wide terminal, and none ends with spaces. */
static void check_lines(const char *text)
{
    for (const char *line = text; *line;) {
        const size_t size = strcspn(line, "\n");
        if (size > TERMINAL_COLUMNS) fail_msg("%zu columns: %.*s", size, (int)size, line);
        if (size) assert_true(line[size - 1] != ' ');
        line += size + (line[size] == '\n');
    }
}

TEST(test_untuned_cpu_engine)
{
    struct engine file;
    open_file(&file, fables_path());
    json_t *plans = data(&file);
    check_counts(&file, plans);
    const json_t *decode = json_array_get(plans, 0);
    const json_t *matmul = find(decode, "matmul 192 x 320");
    assert_int_equal(number(matmul, "launches"), file.manifest.layers);
    assert_true(json_is_true(json_object_get(matmul, "tuned")));
    assert_true(json_is_false(json_object_get(matmul, "measured")));
    assert_string_equal(json_string_value(json_object_get(matmul, "level")), "model");
    assert_int_equal(number(decode, "measured_launches"), 0);
    assert_true(json_is_false(json_object_get(find(decode, "embed 1536 x 192"), "tuned")));
    assert_null(json_object_get(find(decode, "embed 1536 x 192"), "key"));
    json_decref(plans);
    char *text = print(&file);
    assert_non_null(strstr(text, "decode of 1 row: "));
    assert_non_null(strstr(text, "prefill of 64 rows: "));
    assert_non_null(strstr(text, "none of them measured"));
    assert_non_null(strstr(text, "not measured"));
    assert_non_null(strstr(text, "not tuned"));
    assert_non_null(strstr(text, "attention 6/2 heads of 32"));
    check_lines(text);
    free(text);
    engine_close(&file);
}

/* ---- an engine for a GPU, with records that a tuner might have left ---- */

struct tuned {
    struct engine file;
    struct plan_launch *launches; /* owned: those of the first plan */
    char *tactics;                /* owned */
    size_t size;
};

static void open_tuned(struct tuned *tuned, const char *path)
{
    memset(tuned, 0, sizeof *tuned);
    open_file(&tuned->file, path);
    struct plan *plan = &tuned->file.plans[0];
    size_t bytes = plan->header.launch_count * sizeof *tuned->launches;
    tuned->launches = malloc(bytes);
    assert_non_null(tuned->launches);
    memcpy(tuned->launches, plan->launches, bytes);
    plan->launches = tuned->launches;
}

static void add_record(struct tuned *tuned, const struct tuning_record *record)
{
    struct status status = {0};
    char *line;
    size_t size;
    test_expect_success(tuning_record_format(record, &line, &size, &status), &status);
    tuned->tactics = realloc(tuned->tactics, tuned->size + size);
    assert_non_null(tuned->tactics);
    memcpy(tuned->tactics + tuned->size, line, size);
    tuned->size += size;
    tuned->file.tactics = tuned->tactics;
    tuned->file.tactics_size = tuned->size;
    free(line);
}

static struct tuning_record measured(const char *key, const char *kernel, int64_t stages)
{
    struct tuning_record record = {
        .values = {{"", 0}, {"STAGES", stages}, {"WARPS", 8}},
        .value_count = 3,
        .median_us = 4,
        .spread_us = 0.25,
        .bytes = 8000000,
        .flops = 20000000,
        .roofline_us = 3,
        .level = "quick",
        .candidates = 7,
        .runner_up_us = 4.5,
        .runner_up = {{"", 0}, {"STAGES", stages + 2}, {"WARPS", 8}},
        .runner_up_count = 3,
    };
    snprintf(record.key, sizeof record.key, "%s", key);
    snprintf(record.values[0].name, sizeof record.values[0].name, "%s", kernel);
    snprintf(record.runner_up[0].name, sizeof record.runner_up[0].name, "%s", kernel);
    return record;
}

/* Launches of `op` in the first plan point to the record that is added next; returns how many. */
static uint32_t point(struct tuned *tuned, enum plan_op op, uint32_t line)
{
    uint32_t count = 0;
    for (uint32_t n = 0; n < tuned->file.plans[0].header.launch_count; n++) {
        if (tuned->launches[n].op != op) continue;
        tuned->launches[n].tactic = line;
        count++;
    }
    return count;
}

/* The line that begins with this text, without it; the caller frees it. */
static char *rest_of_line(const char *text, const char *begin)
{
    const char *at = strstr(text, begin);
    if (!at) fail_msg("no line '%s' in\n%s", begin, text);
    at += strlen(begin);
    return strndup(at, strcspn(at, "\n"));
}

static void expect_line(const char *text, const char *begin, const char *words)
{
    char *line = rest_of_line(text, begin);
    if (!strstr(line, words)) fail_msg("'%s' is not in the line '%s%s'", words, begin, line);
    free(line);
}

/* Why a kernel was chosen that was not the fastest, and the text for a rate above that of any memory. */
TEST(test_choices)
{
    static const struct {
        enum plan_op op;
        const char *shape, *kernel, *choice;
        double runner_up_us, roofline_us;
    } cases[] = {
        {OP_ROPE_ATTENTION, "rope_attention 6/2 heads of 32", "rope_attention", "fastest", 4.5, 3},
        {OP_EMBED, "embed 1536 x 192", "embed", "tie", 3.9, 7.64},
        {OP_SAMPLE, "sample 1536", "sample", "tie", 4.0, 4},
        {OP_ROPE_TABLE, "rope_table 32", "rope_table", "only one", 0, 3},
    };
    struct tuned tuned;
    struct engine *file = &tuned.file;
    open_tuned(&tuned, lowered_engine_path());
    uint32_t lines = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char key[64];
        snprintf(key, sizeof key, "gpu; %s; 1", cases[i].kernel);
        struct tuning_record record = measured(key, cases[i].kernel, 4);
        record.runner_up_us = cases[i].runner_up_us;
        record.roofline_us = cases[i].roofline_us;
        if (cases[i].runner_up_us == 0) record.runner_up_count = 0, record.candidates = 1;
        point(&tuned, cases[i].op, lines++);
        add_record(&tuned, &record);
    }
    /* Not the fastest of its race, which has a separate record, but used in the plan. */
    struct tuning_record winner = measured("gpu; matmul; 1", "matmul_gemv", 8), listed = winner;
    winner.median_us = 3.25;
    add_record(&tuned, &winner);
    lines++;
    snprintf(listed.key, sizeof listed.key, "gpu; matmul; 1; matmul_mma 0123456789abcdef");
    snprintf(listed.values[0].name, sizeof listed.values[0].name, "matmul_mma");
    listed.runner_up_count = 0, listed.runner_up_us = 0, listed.candidates = 1;
    point(&tuned, OP_MATMUL, lines++);
    add_record(&tuned, &listed);
    /* A long key of a record that no launch names, and words longer than a line. */
    struct tuning_record other = measured("", "alternative", 1);
    memset(other.key, 'k', sizeof other.key - 1);
    other.key[sizeof other.key - 1] = '\0', other.key[40] = ' ';
    add_record(&tuned, &other);

    char *text = print(file);
    check_lines(text);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char begin[80];
        snprintf(begin, sizeof begin, "\n  %s ", cases[i].shape);
        expect_line(text, begin, cases[i].choice);
        expect_line(text, begin,
                    cases[i].roofline_us > 4   ? " cache "
                    : cases[i].roofline_us < 4 ? " 75.0 "
                                               : " 100.0 ");
    }
    expect_line(text, "\n  matmul 192 x 192 +residual ", " in the plan");
    uint32_t matmul = 0;
    char tactic[160];
    while (tuned.launches[matmul].op != OP_MATMUL) matmul++;
    snprintf(tactic, sizeof tactic, "\n      %s stages=8 warps=8\n", engine_kernel_name(file, &tuned.launches[matmul]));
    assert_non_null(strstr(text, tactic));
    assert_non_null(strstr(text, "\n      fastest by itself 3.25 us: matmul_gemv stages=8 warps=8\n"));
    assert_null(strstr(text, "191"));
    assert_non_null(strstr(text, "cache: ")); /* the words are explained */
    assert_non_null(strstr(text, "tie: "));
    assert_non_null(strstr(text, "in the plan: "));
    free(text);

    json_t *plans = data(file);
    const json_t *decode = json_array_get(plans, 0), *entry = find(decode, "embed 1536 x 192");
    assert_string_equal(json_string_value(json_object_get(entry, "choice")), "tie");
    assert_true(fabs(number(entry, "roofline_percent") - 191) < 1e-9);
    entry = find(decode, "matmul 192 x 192 +residual");
    assert_string_equal(json_string_value(json_object_get(entry, "choice")), "in the plan");
    assert_string_equal(json_string_value(json_object_get(entry, "key")), listed.key);
    assert_true(fabs(number(json_object_get(entry, "race_winner"), "median_us") - 3.25) < 1e-9);
    assert_string_equal(json_string_value(json_object_get(json_object_get(entry, "race_winner"), "kernel")),
                        "matmul_gemv");
    json_decref(plans);
    free(tuned.tactics);
    free(tuned.launches);
    engine_close(file);
}

TEST(test_cuda_engine)
{
    struct tuned tuned;
    struct engine *file = &tuned.file;
    open_tuned(&tuned, lowered_engine_path());
    uint32_t attentions = point(&tuned, OP_ROPE_ATTENTION, 0);
    struct tuning_record record = measured("gpu; rope_attention; 1", "rope_attention", 4);
    add_record(&tuned, &record);
    uint32_t embeds = point(&tuned, OP_EMBED, 1);
    record = measured("gpu; embed; 1", "embed", 1);
    snprintf(record.runner_up[0].name, sizeof record.runner_up[0].name, "embed_other");
    add_record(&tuned, &record);
    uint32_t samples = point(&tuned, OP_SAMPLE, 2);
    record = measured("gpu; sample; 1", "sample", 1);
    record.median_us = record.spread_us = record.runner_up_us = record.roofline_us = 0;
    record.runner_up_count = 0;
    snprintf(record.level, sizeof record.level, "model");
    add_record(&tuned, &record);
    record = measured("gpu; decode of 1 rows; plans 1234", "alternative", 1);
    add_record(&tuned, &record);
    assert_true(attentions > 1 && embeds == 1 && samples == 1);

    json_t *plans = data(file);
    check_counts(file, plans);
    const json_t *decode = json_array_get(plans, 0), *entry = find(decode, "rope_attention 6/2 heads of 32");
    assert_int_equal(number(entry, "launches"), attentions);
    assert_string_equal(json_string_value(json_object_get(entry, "kernel")), "rope_attention");
    assert_int_equal(number(json_object_get(entry, "tunables"), "STAGES"), 4);
    assert_true(fabs(number(entry, "gb_per_second") - 2000) < 1e-9);
    assert_true(fabs(number(entry, "tflops") - 5) < 1e-9);
    assert_true(fabs(number(entry, "roofline_percent") - 75) < 1e-9);
    assert_true(fabs(number(json_object_get(entry, "runner_up"), "median_us") - 4.5) < 1e-9);
    assert_string_equal(json_string_value(json_object_get(json_object_get(entry, "runner_up"), "kernel")),
                        "rope_attention");
    assert_true(json_is_false(json_object_get(find(decode, "sample 1536"), "measured")));
    assert_true(json_is_true(json_object_get(find(decode, "sample 1536"), "tuned")));
    assert_true(json_is_false(json_object_get(find(decode, "matmul 192 x 192 +residual"), "tuned")));
    assert_int_equal(number(decode, "measured_launches"), attentions + embeds);
    assert_true(fabs(number(decode, "measured_us") - 4.0 * (attentions + embeds)) < 1e-9);
    json_decref(plans);

    char *text = print(file);
    assert_non_null(strstr(text, "rope_attention stages=4 warps=8"));
    assert_non_null(strstr(text, "runner-up 4.50 us: stages=6\n")); /* only the tunables that differ */
    assert_non_null(strstr(text, "runner-up 4.50 us: embed_other stages=3 warps=8\n"));
    assert_non_null(strstr(text, "not measured"));
    assert_non_null(strstr(text, "other records\n  gpu; decode of 1 rows; plans 1234\n      alternative, 4.00 us\n"));
    free(text);
    json_t *records = records_json(file);
    assert_int_equal(json_array_size(records), 4);
    json_decref(records);

    /* A line with a valid frame, which engine_open accepts, and an invalid record. */
    struct status status = {0};
    tuned.tactics[tuned.size - 20] ^= 1;
    assert_null(tactics_json(file, &status));
    assert_int_equal(status.code, STATUS_BAD_INPUT);
    assert_non_null(strstr(status.message, "tactics: line 3"));
    free(tuned.tactics);
    free(tuned.launches);
    engine_close(file);
}

/* Every launch of every plan on a device has a shape and a kernel, for each op. */
TEST(test_shapes)
{
    const char *const paths[] = {fables_path(), lowered_engine_path()};
    for (int i = 0; i < 2; i++) {
        struct engine file;
        bool seen[OP_COUNT] = {false};
        open_file(&file, paths[i]);
        for (size_t p = 0; p < file.plan_count; p++)
            for (uint32_t n = 0; n < file.plans[p].header.launch_count; n++) {
                char shape[LAUNCH_TEXT_BYTES];
                const struct plan_launch *launch = &file.plans[p].launches[n];
                int64_t rows;
                launch_shape(&file, &file.plans[p], launch, shape);
                assert_non_null(strchr(shape, ' ')); /* more than the op */
                assert_true(strlen(shape) < LAUNCH_TEXT_BYTES - 1);
                assert_true(engine_param(&file, &file.plans[p], launch, "ROWS", &rows) && rows > 0);
                assert_false(engine_param(&file, &file.plans[p], launch, "nothing", &rows));
                assert_true(strlen(engine_kernel_name(&file, launch)) > 0);
                seen[launch->op] = true;
            }
        int ops = 0;
        for (int op = 0; op < OP_COUNT; op++) ops += seen[op];
        assert_true(ops >= 7);
        engine_close(&file);
    }
}

/* A plan that calls libraries stands beside its counterpart, and its calls are named as such, not as the kernels that have
 * their numbers. */
TEST(test_library_plans)
{
    struct engine file;
    open_file(&file, lowered_engine_path());
    struct engine_call call = {.library = LIBRARY_CUBLASLT, .version = 130100};
    const struct plan *own = &file.plans[0];
    const uint32_t launch_count = own->header.launch_count;
    struct plan *plans = calloc(file.plan_count, sizeof *plans);
    struct plan_launch *launches = calloc(launch_count, sizeof *launches);
    assert_true(plans && launches);
    memcpy(launches, own->launches, launch_count * sizeof *launches);
    char shape[LAUNCH_TEXT_BYTES], expected[LAUNCH_TEXT_BYTES];
    uint32_t calls = 0;
    for (uint32_t n = 0; n < launch_count; n++) {
        if (launches[n].op != OP_MATMUL) continue;
        launches[n].attributes = LAUNCH_LIBRARY;
        launches[n].kernel = 0;
        calls++;
    }
    plans[0] = *own;
    plans[0].launches = launches;
    file.calls = &call;
    file.call_count = 1;
    file.library_plans = plans;
    for (uint32_t n = 0; n < launch_count; n++) {
        const bool is_call = launches[n].op == OP_MATMUL;
        launch_shape(&file, &plans[0], &launches[n], shape);
        launch_shape(&file, own, &own->launches[n], expected);
        assert_string_equal(shape, expected);
        assert_string_equal(engine_kernel_name(&file, &launches[n]),
                            is_call ? "cuBLASLt" : engine_kernel_name(&file, &own->launches[n]));
    }
    struct status status = {0};
    json_t *found = tactics_json(&file, &status);
    test_expect_success(found != NULL, &status);
    assert_int_equal(json_array_size(found), file.plan_count + 1);
    for (size_t p = 0; p < json_array_size(found); p++)
        assert_int_equal(json_is_true(json_object_get(json_array_get(found, p), "with_libraries")), p == 1);
    const json_t *library = json_array_get(found, 1), *entry;
    size_t index;
    double launches_of_calls = 0;
    assert_int_equal(number(library, "rows"), own->header.rows);
    json_array_foreach (json_object_get(library, "tactics"), index, entry)
        if (strcmp(json_string_value(json_object_get(entry, "kernel")), "cuBLASLt") == 0)
            launches_of_calls += number(entry, "launches");
    assert_int_equal(launches_of_calls, calls);
    json_decref(found);
    char *text = print(&file);
    const char *first = strstr(text, "\ndecode of 1 row: "),
               *second = strstr(text, "\ndecode of 1 row with libraries: ");
    assert_true(first && second && first < second);
    assert_non_null(strstr(second, "cuBLASLt"));
    check_lines(text);
    free(text);
    file.calls = NULL;
    file.call_count = 0;
    file.library_plans = NULL;
    free(plans);
    free(launches);
    engine_close(&file);
}

int main(void) { return test_run_with(build, NULL, NULL, remove_all); }
