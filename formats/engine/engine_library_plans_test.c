/* SPDX-License-Identifier: Apache-2.0 */
/* Library plans: their section, the plan that each replaces, and the rule that they come with library calls. */

#include <zlib.h>

#define TEST_ENGINE_MAKE test_engine_make_library
#include "formats/engine/test_engine_frame.h"

static struct plan *const library_plans = &sample.plans[TEST_ENGINE_LIBRARY_PLAN];

/* The sample's library plans as the writer stores them; free() them. */
static uint8_t *plans_section(size_t *section_bytes)
{
    size_t size;
    uint8_t *bytes = written(false, &size);
    const struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_LIBRARY_PLANS);
    assert_non_null(entry);
    *section_bytes = entry->stored_bytes;
    uint8_t *section = test_engine_copy(bytes + entry->offset, entry->stored_bytes);
    free(bytes);
    return section;
}

/* The library plan again, as replacement of another plan: its operands are also inside the steps of more rows. */
static void add_library_plan(size_t twin)
{
    struct plan *plan = &library_plans[sample.library_plan_count++];
    *plan = library_plans[0];
    plan->header.kind = sample.plans[twin].header.kind;
    plan->header.rows = sample.plans[twin].header.rows;
    plan->header.out_rows = sample.plans[twin].header.out_rows;
    plan->header.step_bytes = sample.plans[twin].header.step_bytes;
    memcpy(plan->step, sample.plans[twin].step, sizeof plan->step);
}

/* ---- round trip -------------------------------------------------------------------------------------------------- */

TEST(any_plan_may_have_one_in_its_place)
{
    for (unsigned twins = 1; twins < 1u << TEST_ENGINE_PLANS; twins++) {
        struct engine engine;
        struct plan plans[TEST_ENGINE_PLANS];
        assert_int_equal(make_sample(NULL), 0);
        size_t count = 0;
        /* The first is the sample's; the others are made from it. */
        for (size_t twin = 1; twin < TEST_ENGINE_PLANS; twin++)
            if (twins & 1u << twin) add_library_plan(twin);
        if (!(twins & 1)) {
            sample.library_plan_count--;
            memmove(library_plans, library_plans + 1, sample.library_plan_count * sizeof *library_plans);
        }
        memcpy(plans, library_plans, sizeof plans);
        open_sample(&engine, twins % 2);
        for (size_t twin = 0; twin < TEST_ENGINE_PLANS; twin++) {
            if (twins & 1u << twin)
                assert_true(test_engine_same_plan(&engine.library_plans[twin], &plans[count++]));
            else
                assert_int_equal(engine.library_plans[twin].header.launch_count, 0);
        }
        assert_int_equal(engine.library_arena_bytes, 36864);
        engine_close(&engine);
    }
}

/* A library plan may need less arena than the plans, or much more. */
TEST(each_has_its_own_arena)
{
    enum { WORKSPACE_OPERAND = 4 };
    (void)state;
    struct engine engine;
    const struct plan_launch *matmul = test_engine_launch(&sample, TEST_ENGINE_LIBRARY_PLAN, OP_MATMUL);
    sample.storage[TEST_ENGINE_LIBRARY_PLAN].operands[matmul->first_operand + WORKSPACE_OPERAND].offset = 0;
    library_plans[0].header.arena_bytes = 32768;
    add_library_plan(1);
    add_library_plan(2);
    library_plans[1].header.arena_bytes = UINT64_C(1) << 40;
    open_sample(&engine, true);
    assert_int_equal(engine.library_plans[0].header.arena_bytes, 32768);
    assert_int_equal(engine.library_arena_bytes, UINT64_C(1) << 40); /* the largest */
    engine_close(&engine);
}

/* The writer does not compress library plans; a reader also takes compressed ones. */
TEST(library_plans_may_be_compressed)
{
    size_t section_bytes, size;
    struct status status = {0};
    struct engine engine;
    uint8_t *section = plans_section(&section_bytes);
    uLongf stored = compressBound((uLong)section_bytes);
    uint8_t *packed = malloc(stored);
    assert_non_null(packed);
    assert_int_equal(compress2(packed, &stored, section, (uLong)section_bytes, 9), Z_OK);
    sample.library_plan_count = 0;
    uint8_t *without = written(false, &size);
    uint8_t *bytes = test_engine_with_section(without, &size, SECTION_LIBRARY_PLANS, packed, stored);
    struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_LIBRARY_PLANS);
    entry->flags = SECTION_FLAG_ZLIB;
    entry->raw_bytes = section_bytes;
    engine_fix_checksums(bytes, size);
    if (!engine_open_memory(&engine, bytes, size, "test", &status)) fail_msg("%s", status.message);
    assert_true(test_engine_same_plan(&engine.library_plans[0], &library_plans[0]));
    engine_close(&engine);
    entry->raw_bytes = section_bytes + 64;
    engine_fix_checksums(bytes, size);
    expect_refused(bytes, size, "section 'library plans': the compressed data do not give the stated");
    free(bytes);
    free(without);
    free(packed);
    free(section);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

#define IN_PLANS       "section 'library plans': "
#define NO_COUNTERPART "has no counterpart among the plans, or is out of order"

/* One field of the library plan is overwritten, in its header or in its first launch, which has a kernel. */
enum place { IN_HEADER, IN_EMBED };

#define FIELD(place, type, field, value) \
    place, offsetof(struct type, field), sizeof(((struct type *)0)->field), (uint64_t)(value)
#define HEADER(field, value, expected)                                          \
    {                                                                           \
        FIELD(IN_HEADER, plan_header, field, value), IN_PLANS "plan 0" expected \
    }
#define EMBED(field, value, expected)                                                                       \
    {                                                                                                       \
        FIELD(IN_EMBED, plan_launch, field, value), IN_PLANS "plan 0 (decode, 1 rows): launch 0: " expected \
    }

static const struct damage {
    enum place place;
    size_t offset, bytes;
    uint64_t value;
    const char *expected;
} damages[] = {
    /* kernels are checked like those of the plans */
    EMBED(kernel, 3, "kernel 3 of 3"),
    EMBED(grid[0], 0, "grid[0]: expected 1 to 2147483647, found 0"),
    EMBED(attributes, 8, "unknown attributes 0x8"),
    EMBED(attributes, LAUNCH_LIBRARY, "operands: the library call has 8, found 4"),
    {FIELD(IN_EMBED, plan_launch, op, OP_COUNT), IN_PLANS "plan 0 (decode, 1 rows): launch 0 (?): "},
    HEADER(kind, 0, ": kind 0 of 1 rows " NO_COUNTERPART),
    HEADER(kind, PLAN_PREFILL, ": kind 2 of 1 rows " NO_COUNTERPART),
    HEADER(kind, UINT32_MAX, ": kind 4294967295 of 1 rows " NO_COUNTERPART),
    HEADER(rows, 0, ": kind 1 of 0 rows " NO_COUNTERPART),
    HEADER(rows, 4, ": step field of id 2: expected at least 16 bytes, found 4"),
    HEADER(rows, 2, ": step field of id 2: expected at least 8 bytes, found 4"),
    HEADER(out_rows, 0, ": kind 1 of 1 rows " NO_COUNTERPART),
    HEADER(out_rows, 2, ": step field of id 5: expected at least 8 bytes, found 4"),
    HEADER(use, 2, " (decode, 1 rows): use: expected 0 or 1, found 2"),
    HEADER(use, PLAN_USE_APART, ": use: expected 0 in an engine of one rank, found 1"),
    HEADER(launch_count, 3, ": calls no library"), /* the remaining launches have no call; the rest is not used */
    /* Each is checked against its own arena, not the manifest's. */
    HEADER(arena_bytes, 36863,
           " (decode, 1 rows): launch 8 (matmul): operand 4: 4096 bytes at offset 32768 do not lie in the 36863 bytes "
           "of space 'arena'"),
    HEADER(arena_bytes, 0, " (decode, 1 rows): launch 0 (embed): operand 3: 4096 bytes at offset 0 do not lie in"),
};

TEST(every_damage_is_named)
{
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const struct damage *damage = &damages[i];
        assert_int_equal(make_sample(NULL), 0);
        void *embed = test_engine_launch(&sample, TEST_ENGINE_LIBRARY_PLAN, OP_EMBED);
        void *base = damage->place == IN_HEADER ? (void *)&library_plans[0].header : embed;
        memcpy((char *)base + damage->offset, &damage->value, damage->bytes);
        expect_sample_refused(damage->expected);
    }
}

/* Counts that the writer uses are overwritten in the file. */
TEST(every_damage_of_the_frame_is_named)
{
    enum { FIRST = sizeof(struct engine_plans_header) };
    size_t size, section_bytes;
    uint64_t body_bytes;
    assert_true(engine_plan_body_bytes(&library_plans[0].header, &body_bytes));
    free(plans_section(&section_bytes));
    const struct {
        size_t offset, bytes;
        uint64_t value;
        const char *expected;
    } edits[] = {
        {0, 4, 0, "header: 0 plans and 0 state fields in "},
        {0, 4, 2, "plan 0: leaves the section"},
        {0, 4, UINT32_MAX, "header: 4294967295 plans and 0 state fields in "},
        {4, 4, 1, "header: 1 state fields, expected none"},
        {FIRST + offsetof(struct plan_header, launch_count), 4, UINT32_MAX, "plan 0: leaves the section"},
        {FIRST + offsetof(struct plan_header, launch_count), 4, 0, "plan 0: step field 0: "},
        {FIRST + offsetof(struct plan_header, operand_count), 4, UINT32_MAX, "plan 0: leaves the section"},
        {FIRST + offsetof(struct plan_header, operand_count), 4, 1, "plan 0: step field 0: "},
        {FIRST + offsetof(struct plan_header, param_count), 4, 1u << 31, "plan 0: leaves the section"},
        {FIRST + offsetof(struct plan_header, dependency_count), 4, 13, "plan 0: leaves the section"},
        /* The nine dependencies leave four bytes to the next multiple of eight. */
        {FIRST + offsetof(struct plan_header, dependency_count), 4, 8, " bytes for its plans, found "},
        {FIRST + sizeof(struct plan_header) + body_bytes - 1, 1, 1, "plan 0: padding is not zero"},
        {FIRST + sizeof(struct plan_header) + body_bytes - 4, 1, 0x80, "plan 0: padding is not zero"},
    };
    assert_int_equal(section_bytes, FIRST + sizeof(struct plan_header) + body_bytes);
    uint8_t *bytes = written(false, &size), *changed = test_engine_copy(bytes, size);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        memcpy(changed, bytes, size);
        struct engine_section_entry *entry = test_engine_entry(changed, size, SECTION_LIBRARY_PLANS);
        memcpy(changed + entry->offset + edits[i].offset, &edits[i].value, edits[i].bytes);
        engine_fix_checksums(changed, size);
        expect_refused(changed, size, "section 'library plans': ");
        expect_refused(changed, size, edits[i].expected);
    }
    free(changed);
    free(bytes);
}

/* Every bit of the library plans flipped: refused, or part of the plan that the engine then has. */
TEST(every_bit_of_the_plans_counts)
{
    size_t size, refused = 0, unseen = 0;
    uint8_t *bytes = written(false, &size);
    const struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_LIBRARY_PLANS);
    size_t section = entry->offset, section_bytes = entry->stored_bytes;
    for (size_t i = 0; i < section_bytes; i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct status status = {0};
            struct engine engine;
            bytes[section + i] ^= (uint8_t)(1u << bit);
            engine_fix_checksums(bytes, size);
            if (engine_open_memory(&engine, bytes, size, "test", &status)) {
                test_engine_touch(&engine);
                unseen += test_engine_same_plan(&engine.library_plans[0], &library_plans[0]);
                engine_close(&engine);
            } else {
                if (!strstr(status.message, "section 'library plans': "))
                    fail_msg("bit %d of byte %zu: %s", bit, i, status.message);
                refused++;
            }
            bytes[section + i] ^= (uint8_t)(1u << bit);
        }
    }
    assert_true(refused > 0);
    assert_int_equal(unseen,
                     STEP_FIELD_COUNT); /* the flag that a field is essential, which does not matter to a reader that
                                         * knows the field */
    free(bytes);
}

/* A section that is too short, or too long with zeros. */
TEST(every_other_length_is_refused)
{
    size_t section_bytes, size;
    uint8_t *plans = plans_section(&section_bytes), *section = calloc(1, section_bytes + 128);
    assert_non_null(section);
    memcpy(section, plans, section_bytes);
    sample.library_plan_count = 0; /* a section of size 0 is left out */
    uint8_t *without = written(false, &size);
    for (size_t length = 1; length <= section_bytes + 128; length++) {
        size_t whole = size;
        uint8_t *bytes = test_engine_with_section(without, &whole, SECTION_LIBRARY_PLANS, section, length);
        if (length == section_bytes)
            expect_accepted(bytes, whole);
        else
            expect_refused(bytes, whole,
                           length < sizeof(struct engine_plans_header) ? IN_PLANS "too short for its header"
                                                                       : IN_PLANS);
        free(bytes);
    }
    free(without);
    free(section);
    free(plans);
}

/* ---- counterparts and calls -------------------------------------------------------------------------------------- */

TEST(library_plans_stand_in_the_order_of_the_plans)
{
    add_library_plan(0);
    expect_sample_refused("section 'library plans': plan 1: kind 1 of 1 rows " NO_COUNTERPART); /* twice */
    assert_int_equal(make_sample(NULL), 0);
    add_library_plan(2);
    add_library_plan(1);
    expect_sample_refused("section 'library plans': plan 2: kind 1 of 2 rows " NO_COUNTERPART);
    assert_int_equal(make_sample(NULL), 0);
    add_library_plan(2);
    add_library_plan(2);
    expect_sample_refused("section 'library plans': plan 2: kind 2 of 4 rows " NO_COUNTERPART);
    assert_int_equal(make_sample(NULL), 0);
    add_library_plan(2);
    library_plans[1].header.rows = 8;
    assert_true(plan_place_step(&library_plans[1], TEST_ENGINE_VOCAB));
    expect_sample_refused("section 'library plans': plan 1: kind 2 of 8 rows " NO_COUNTERPART);
    assert_int_equal(make_sample(NULL), 0);
    add_library_plan(2);
    library_plans[1].header.out_rows = 4;
    assert_true(plan_place_step(&library_plans[1], TEST_ENGINE_VOCAB));
    expect_sample_refused("section 'library plans': plan 1: kind 2 of 4 rows " NO_COUNTERPART);
    assert_int_equal(make_sample(NULL), 0);
    library_plans[0].step[STEP_SLOTS] = sample.plans[0].step[STEP_TOKENS];
    library_plans[0].step[STEP_TOKENS] = sample.plans[0].step[STEP_SLOTS];
    expect_sample_refused("section 'library plans': plan 0: its step fields are not those of its counterpart");
}

TEST(a_library_plan_calls_a_library)
{
    library_plans[0] = sample.plans[0];
    expect_sample_refused("section 'library plans': plan 0: calls no library");
    assert_int_equal(make_sample(NULL), 0);
    add_library_plan(1);
    library_plans[1] = sample.plans[1];
    expect_sample_refused("section 'library plans': plan 1: calls no library");
}

TEST(calls_and_plans_need_each_other)
{
    sample.library_plan_count = 0; /* a section of size 0 is left out */
    expect_sample_refused("section 'library plans': expected one, since there are library calls, found none");
    assert_int_equal(make_sample(NULL), 0);
    sample.call_count = 0;
    expect_sample_refused(IN_PLANS "plan 0 (decode, 1 rows): launch 3: library call 0 of 0");
    library_plans[0] = sample.plans[0];
    expect_sample_refused("section 'library plans': plan 0: calls no library");
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
