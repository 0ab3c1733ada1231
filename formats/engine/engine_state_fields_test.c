/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that some engines have. In the STATE space, sampling options are there where the section lists both of their fields, and a
 * reader that does not know these may pass over them. In the STEP space, all plans have hidden states, or none. */
#include "formats/engine/test_engine.h"
#include "formats/base/test_folder.h"
#include "formats/engine/engine_layout.h"

static struct status status;
static struct test_engine sample;
static struct engine engine;

/* The sample with or without options, in memory; its state fields are at *entries. */
static uint8_t *write_sample(bool options, size_t *size, struct engine_plans_header **header,
                             struct plan_field_entry **entries)
{
    const char *path = in_folder("a.eng");
    test_expect_success(test_engine_make(&sample, &status), &status);
    sample.manifest.geometry.sampling_options = options;
    assert_true(geometry_place_state(&sample.manifest.geometry, &sample.manifest.state_bytes));
    test_expect_success(test_engine_write(&sample, path, false, &status), &status);
    uint8_t *bytes = test_engine_read(path, size);
    struct engine_section_entry *entry = test_engine_entry(bytes, *size, SECTION_PLANS);
    assert_non_null(entry);
    *header = (void *)(bytes + entry->offset);
    *entries = (void *)(*header + 1);
    return bytes;
}

TEST(options_are_there_where_their_fields_are_listed)
{
    for (int options = 0; options < 2; options++) {
        size_t size;
        struct engine_plans_header *header;
        struct plan_field_entry *entries;
        uint8_t *bytes = write_sample(options, &size, &header, &entries);
        assert_int_equal(header->field_count, STATE_ALWAYS_COUNT + 2 * options);
        for (uint32_t i = 0; i < header->field_count; i++)
            assert_int_equal(entries[i].flags, i < STATE_ALWAYS_COUNT ? PLAN_FIELD_ESSENTIAL : 0);
        assert_true(engine_open_memory(&engine, bytes, size, "memory", &status));
        const struct plan_geometry *geometry = &engine.manifest.geometry;
        assert_int_equal(geometry->sampling_options, options);
        for (int i = 0; i < STATE_FIELD_COUNT; i++) {
            assert_int_equal(geometry->state[i].offset, sample.manifest.geometry.state[i].offset);
            assert_int_equal(geometry->state[i].bytes, sample.manifest.geometry.state[i].bytes);
        }
        engine_close(&engine);
        free(bytes);
    }
}

static void expect_refused(uint8_t *bytes, size_t size, const char *text)
{
    engine_fix_checksums(bytes, size);
    test_expect_failure(engine_open_memory(&engine, bytes, size, "memory", &status), &status, STATUS_CORRUPT, text);
}

TEST(fields_of_options_are_checked)
{
    size_t size;
    struct engine_plans_header *header;
    struct plan_field_entry *entries;
    uint8_t *bytes = write_sample(true, &size, &header, &entries);
    struct plan_field_entry *adjustments = &entries[STATE_ALWAYS_COUNT], *allowed = &entries[STATE_ALWAYS_COUNT + 1];
    const struct plan_field_entry kept = *adjustments;
    assert_int_equal(adjustments->id, STATE_ADJUSTMENTS + 1);
    assert_int_equal(allowed->id, STATE_ALLOWED + 1);
    allowed->id = 50; /* unknown, and not essential: the other one is alone */
    expect_refused(bytes, size, "section 'plans': the state space has 4 of its 5 fields");
    allowed->id = STATE_ALLOWED + 1;
    adjustments->bytes -= 4;
    expect_refused(bytes, size, "section 'plans': state field of id 6: expected at least");
    *adjustments = kept;
    adjustments->offset = entries[0].offset;
    expect_refused(bytes, size, "section 'plans': state field 3");
    *adjustments = kept;
    engine_fix_checksums(bytes, size);
    assert_true(engine_open_memory(&engine, bytes, size, "memory", &status));
    engine_close(&engine);
    free(bytes);
}

enum { HIDDEN = 16 };

/* The sample whose plans, of these bits, have hidden states. */
static uint8_t *write_hidden(unsigned plans, size_t *size)
{
    const char *path = in_folder("a.eng");
    test_expect_success(test_engine_make(&sample, &status), &status);
    assert_int_equal(sample.manifest.hidden_size, HIDDEN);
    for (unsigned p = 0; p < TEST_ENGINE_PLANS; p++) {
        if (!(plans >> p & 1)) continue;
        assert_true(plan_place_step(&sample.plans[p], TEST_ENGINE_VOCAB, HIDDEN, 0));
        if (sample.plans[p].header.step_bytes > sample.manifest.step_bytes)
            sample.manifest.step_bytes = sample.plans[p].header.step_bytes;
    }
    test_expect_success(test_engine_write(&sample, path, false, &status), &status);
    return test_engine_read(path, size);
}

TEST(hidden_states_are_those_of_all_plans)
{
    enum { ALL = (1 << TEST_ENGINE_PLANS) - 1 };
    size_t size;
    uint8_t *bytes = write_hidden(ALL, &size);
    assert_true(engine_open_memory(&engine, bytes, size, "memory", &status));
    assert_int_equal(engine.manifest.geometry.hidden_size, HIDDEN);
    for (size_t p = 0; p < engine.plan_count; p++)
        assert_int_equal(engine.plans[p].step[STEP_HIDDEN].bytes,
                         engine.plans[p].header.out_rows * HIDDEN * sizeof(float));
    engine_close(&engine);
    free(bytes);
    bytes = write_hidden(0, &size);
    assert_true(engine_open_memory(&engine, bytes, size, "memory", &status));
    assert_int_equal(engine.manifest.geometry.hidden_size, 0);
    engine_close(&engine);
    free(bytes);
    bytes = write_hidden(1, &size);
    expect_refused(bytes, size, "plan 1: the step space has 8 of its 9 fields");
    free(bytes);
    bytes = write_hidden(ALL & ~1u, &size);
    expect_refused(bytes, size, "plan 1: step field of id 9 (hidden states): the first plan has none");
    free(bytes);
}

/* Plans of these bits list the fields of drafts. */
static uint8_t *write_drafts(unsigned plans, size_t *size)
{
    const char *path = in_folder("a.eng");
    test_expect_success(test_engine_make(&sample, &status), &status);
    for (unsigned p = 0; p < TEST_ENGINE_PLANS; p++) {
        assert_true(plan_place_step(&sample.plans[p], TEST_ENGINE_VOCAB, 0, plans >> p & 1));
        if (sample.plans[p].header.step_bytes > sample.manifest.step_bytes)
            sample.manifest.step_bytes = sample.plans[p].header.step_bytes;
    }
    test_expect_success(test_engine_write(&sample, path, false, &status), &status);
    return test_engine_read(path, size);
}

TEST(drafts_are_those_of_all_plans)
{
    enum { ALL = (1 << TEST_ENGINE_PLANS) - 1 };
    size_t size;
    uint8_t *bytes = write_drafts(ALL, &size);
    assert_true(engine_open_memory(&engine, bytes, size, "memory", &status));
    assert_int_equal(engine.manifest.geometry.drafts, 1);
    for (size_t p = 0; p < engine.plan_count; p++) {
        assert_int_equal(engine.plans[p].step[STEP_FOLLOWING].bytes, engine.plans[p].header.rows * sizeof(int32_t));
        assert_int_equal(engine.plans[p].step[STEP_DRAFTED].bytes, engine.plans[p].header.out_rows * sizeof(int32_t));
    }
    engine_close(&engine);
    free(bytes);
    bytes = write_drafts(1, &size);
    expect_refused(bytes, size, "plan 1: the step space has 8 of its 10 fields");
    free(bytes);
    bytes = write_drafts(ALL & ~1u, &size);
    expect_refused(bytes, size, "plan 1: step field of id 11 (drafts): the first plan has none");
    free(bytes);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
