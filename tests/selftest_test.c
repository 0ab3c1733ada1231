/* SPDX-License-Identifier: Apache-2.0 */
/* eng_selftest runs every plan of an engine: one that computes something else is found and named, wherever it is. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include "formats/engine/test_engine.h"
#include "kernels/attention/attention.h"

static char changed_path[] = "/tmp/selftest_test.XXXXXX";

/* Copies the engine of the shipped model, with the scale of attention doubled in one layer of one plan. */
static void write_damaged(size_t wrong)
{
    struct engine engine;
    struct status status = {0};
    size_t size;
    uint64_t changes = 0;
    uint8_t *bytes = test_engine_read(fables_path(), &size);
    assert_non_null(bytes);
    if (!engine_open(&engine, fables_path(), &status)) fail_msg("%s", status.message);
    /* The reader's copy of the section begins as the file's does. */
    const struct plan *plan = &engine.plans[wrong];
    const uint8_t *first = (const uint8_t *)engine.plans[0].launches;
    uint8_t *section = bytes + test_engine_entry(bytes, size, SECTION_PLANS)->offset;
    const struct engine_plans_header *header = (const void *)section;
    uint8_t *bodies = section + sizeof *header + header->field_count * sizeof(struct plan_field_entry) +
                      header->plan_count * sizeof(struct plan_header);
    for (uint32_t i = 0; i < plan->header.launch_count; i++) {
        const struct plan_launch *launch = &plan->launches[i];
        if (launch->op != OP_ATTENTION || launch->layer != 2) continue;
        for (uint32_t k = 0; k < launch->param_count; k++) {
            struct plan_param param = plan->params[launch->first_param + k];
            if (param.id != op_attention.params[ATTENTION_SCALE_BITS].id) continue;
            param.value += 1 << 23; /* the exponent */
            memcpy(bodies + ((const uint8_t *)&plan->params[launch->first_param + k] - first), &param, sizeof param);
            changes++;
        }
    }
    assert_int_equal(changes, 1);
    engine_close(&engine);
    engine_fix_checksums(bytes, size);
    FILE *file = fopen(changed_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    free(bytes);
}

static void name_of(size_t plan, char name[GOLDEN_NAME_BYTES])
{
    struct engine engine;
    struct status status = {0};
    if (!engine_open(&engine, fables_path(), &status)) fail_msg("%s", status.message);
    golden_plan_name(&engine.plans[plan].header, name);
    engine_close(&engine);
}

static size_t count_plans(void)
{
    struct engine engine;
    struct status status = {0};
    if (!engine_open(&engine, fables_path(), &status)) fail_msg("%s", status.message);
    const size_t count = engine.plan_count;
    engine_close(&engine);
    return count;
}

static struct eng_session *open_session(const char *path, uint64_t kv_tokens, struct eng_engine **engine)
{
    struct eng_session *session = NULL;
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 2;
    options.kv_tokens = kv_tokens;
    CHECK(eng_open(path, NULL, engine, &error));
    CHECK(eng_session_create(*engine, &options, &session, &error));
    return session;
}

TEST(a_damaged_plan_is_found_and_named)
{
    const size_t plans = count_plans();
    assert_true(plans > 4);
    for (size_t wrong = 0; wrong < plans; wrong++) {
        char name[GOLDEN_NAME_BYTES], expected[128];
        struct eng_engine *engine = NULL;
        struct eng_selftest_result result;
        write_damaged(wrong);
        name_of(wrong, name);
        snprintf(expected, sizeof expected, "selftest: %s: row ", name);
        struct eng_session *session = open_session(changed_path, 0, &engine);
        eng_selftest_result_init(&result);
        assert_int_equal(eng_selftest(session, &result, &error), ENG_INTERNAL);
        if (!strstr(error.message, expected)) fail_msg("expected '%s', found '%s'", expected, error.message);
        assert_non_null(strstr(error.message, ": logit "));
        assert_true(result.largest_error > result.tolerance && result.tokens > 0);
        eng_session_destroy(&session);
        eng_close(&engine);
    }
}

TEST(every_plan_is_reported)
{
    const size_t plans = count_plans();
    struct eng_engine *engine = NULL;
    struct eng_selftest_result result;
    struct eng_selftest_plan plan;
    struct eng_engine_facts facts;
    struct eng_session_facts before, after;
    uint32_t tokens = 0;
    struct eng_session *session = open_session(fables_path(), 0, &engine);
    eng_selftest_result_init(&result);
    eng_selftest_plan_init(&plan);
    eng_engine_facts_init(&facts);
    eng_session_facts_init(&before);
    eng_session_facts_init(&after);
    CHECK(eng_engine_get_facts(engine, &facts, &error));
    assert_true(facts.golden_tokens > plans / 2); /* plans share them */
    CHECK(eng_selftest_plan(session, 0, &plan, &error));
    assert_int_equal(plan.tokens, 0); /* no selftest yet */
    CHECK(eng_session_get_facts(session, &before, &error));
    for (int round = 0; round < 2; round++) { /* the second finds the same */
        tokens = 0;
        CHECK(eng_selftest(session, &result, &error));
        assert_int_equal(result.plans, plans);
        assert_int_equal(result.left_out, 0);
        for (size_t p = 0; p < plans; p++) {
            char name[GOLDEN_NAME_BYTES];
            name_of(p, name);
            CHECK(eng_selftest_plan(session, p, &plan, &error));
            assert_int_equal(plan.is_prefill, strncmp(name, "prefill", 7) == 0);
            assert_int_equal(plan.calls_libraries, 0);
            assert_int_equal(strncmp(name, plan.kind, strlen(plan.kind)), 0);
            const bool is_mixed = strcmp(plan.kind, "mixed") == 0 || strcmp(plan.kind, "verify") == 0;
            const uint32_t batch = is_mixed && plan.rows < FABLES_BATCH ? plan.rows : FABLES_BATCH;
            const uint32_t items = is_mixed && batch > plan.rows / 4 + 2 ? plan.rows / 4 + 2 : batch;
            const bool is_verify = strcmp(plan.kind, "verify") == 0; /* the prompt has one item */
            const uint32_t least = plan.is_prefill ? 3 : is_verify ? items + 1 : 2 * (is_mixed ? items : plan.rows);
            assert_true(plan.tokens >= least && plan.left_out == 0);
            assert_true(plan.is_prefill || plan.longest_context > FABLES_LARGEST_CHUNK);
            assert_true(plan.largest_error <= result.largest_error);
            tokens += plan.tokens;
        }
        assert_int_equal(tokens, result.tokens);
    }
    CHECK(eng_session_get_facts(session, &after, &error)); /* slots and pages are free again */
    assert_int_equal(after.free_slots, before.free_slots);
    assert_int_equal(after.free_pages, before.free_pages);
    assert_int_equal(eng_selftest_plan(session, plans, &plan, &error), ENG_USAGE);
    assert_int_equal(eng_selftest_plan(session, 0, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_selftest_plan(NULL, 0, &plan, &error), ENG_USAGE);
    eng_session_destroy(&session);
    eng_close(&engine);
}

/* With few slots or pages, a decode plan runs with the rows that fit. */
TEST(rows_that_do_not_fit_are_left_out)
{
    struct eng_engine *engine = NULL;
    struct eng_selftest_result result;
    struct eng_selftest_plan plan;
    uint32_t slot, left_out = 0;
    struct eng_session *session = open_session(fables_path(), FABLES_CONTEXT, &engine);
    eng_selftest_result_init(&result);
    eng_selftest_plan_init(&plan);
    for (int taken = 0; taken < FABLES_BATCH - 1; taken++) {
        CHECK(eng_selftest(session, &result, &error));
        assert_true(result.left_out >= left_out);
        left_out = result.left_out;
        for (size_t p = 0; eng_selftest_plan(session, p, &plan, &error) == ENG_OK; p++) assert_true(plan.tokens > 0);
        CHECK(eng_slot_acquire(session, &slot, &error));
    }
    CHECK(eng_selftest(session, &result, &error)); /* one slot: a row of each plan */
    assert_true(result.left_out > left_out);
    CHECK(eng_slot_acquire(session, &slot, &error));
    assert_int_equal(eng_selftest(session, &result, &error), ENG_FULL);
    assert_non_null(strstr(error.message, "no slot or too few KV pages are free"));
    assert_int_equal(result.tokens, 0);
    eng_session_destroy(&session);
    eng_close(&engine);
}

int main(void)
{
    int descriptor = mkstemp(changed_path);
    if (descriptor < 0) return 1;
    close(descriptor);
    int failed = test_run_with(fables_build, NULL, NULL, fables_remove);
    unlink(changed_path);
    return failed;
}
