/* SPDX-License-Identifier: Apache-2.0 */
/* Library plans: their section, the plan that each replaces, and the rule that they come with library calls. */

#define TEST_ENGINE_MAKE test_engine_make_library
#include "formats/engine/test_engine_frame.h"

#define PLANS "section 'library plans': "

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
        open_sample(twins % 2);
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
    const struct plan_launch *matmul = test_engine_launch(&sample, TEST_ENGINE_LIBRARY_PLAN, OP_MATMUL);
    sample.storage[TEST_ENGINE_LIBRARY_PLAN].operands[matmul->first_operand + WORKSPACE_OPERAND].offset = 0;
    library_plans[0].header.arena_bytes = 32768;
    add_library_plan(1);
    add_library_plan(2);
    library_plans[1].header.arena_bytes = UINT64_C(1) << 40;
    open_sample(true);
    assert_int_equal(engine.library_plans[0].header.arena_bytes, 32768);
    assert_int_equal(engine.library_arena_bytes, UINT64_C(1) << 40); /* the largest */
    engine_close(&engine);
}

/* The writer does not compress library plans; a reader also takes compressed ones. */
TEST(library_plans_may_be_compressed)
{
    size_t section_bytes, size;
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
    open_bytes(bytes, size);
    assert_true(test_engine_same_plan(&engine.library_plans[0], &library_plans[0]));
    engine_close(&engine);
    entry->raw_bytes = section_bytes + 64;
    expect_refused_repaired(bytes, size, PLANS "the compressed data do not give the stated");
    free(bytes);
    free(without);
    free(packed);
    free(section);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

#define NO_COUNTERPART "has no counterpart among the plans, or is out of order"

/* The library plan in the sample and its first launch, which has a kernel; then, in the file, counts that the writer
 * uses. */
enum { IN_HEADER = IN_SAMPLE, IN_EMBED, FIRST = sizeof(struct engine_plans_header) };

static void *part(int number)
{
    if (IN_SAMPLE + number == IN_HEADER) return &library_plans[0].header;
    return test_engine_launch(&sample, TEST_ENGINE_LIBRARY_PLAN, OP_EMBED);
}

#define HEADER(field, value, expected) FIELD(IN_HEADER, 0, plan_header, field, value, PLANS "plan 0" expected)
#define EMBED(field, value, expected) \
    FIELD(IN_EMBED, 0, plan_launch, field, value, PLANS "plan 0 (decode, 1 rows): launch 0" expected)
#define IN_FILE(offset, bytes, value, expected)                     \
    {                                                               \
        SECTION_LIBRARY_PLANS, offset, bytes, value, PLANS expected \
    }
#define COUNT(field, value, expected) FIELD(SECTION_LIBRARY_PLANS, FIRST, plan_header, field, value, PLANS expected)

static const struct edit edits[] = {
    /* kernels are checked like those of the plans */
    EMBED(kernel, 3, ": kernel 3 of 3"),
    EMBED(grid[0], 0, ": grid[0]: expected 1 to 2147483647, found 0"),
    EMBED(attributes, 8, ": unknown attributes 0x8"),
    EMBED(attributes, LAUNCH_LIBRARY, ": operands: the library call has 8, found 4"),
    EMBED(op, OP_COUNT, " (?): "),
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
    IN_FILE(0, 4, 0, "header: 0 plans and 0 state fields in "),
    IN_FILE(0, 4, 2, "plan 0: leaves the section"),
    IN_FILE(0, 4, UINT32_MAX, "header: 4294967295 plans and 0 state fields in "),
    IN_FILE(4, 4, 1, "header: 1 state fields, expected none"),
    COUNT(launch_count, UINT32_MAX, "plan 0: leaves the section"),
    COUNT(launch_count, 0, "plan 0: step field 0: "),
    COUNT(operand_count, UINT32_MAX, "plan 0: leaves the section"),
    COUNT(operand_count, 1, "plan 0: step field 0: "),
    COUNT(param_count, 1u << 31, "plan 0: leaves the section"),
    COUNT(dependency_count, 13, "plan 0: leaves the section"),
    COUNT(dependency_count, 8, "expected 3992 bytes for its plans, found 4000"),
};

TEST(every_damage_is_named) { EXPECT_EDITS(edits, part); }

/* The nine dependencies leave four bytes to the next multiple of eight. */
TEST(padding_is_zero)
{
    size_t section_bytes;
    uint64_t body_bytes;
    assert_true(engine_plan_body_bytes(&library_plans[0].header, &body_bytes));
    free(plans_section(&section_bytes));
    assert_int_equal(section_bytes, FIRST + sizeof(struct plan_header) + body_bytes);
    const struct edit ends[] = {IN_FILE(section_bytes - 1, 1, 1, "plan 0: padding is not zero"),
                                IN_FILE(section_bytes - 4, 1, 0x80, "plan 0: padding is not zero")};
    EXPECT_EDITS(ends, NULL);
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
            bytes[section + i] ^= (uint8_t)(1u << bit);
            engine_fix_checksums(bytes, size);
            if (engine_open_memory(&engine, bytes, size, "test", &status)) {
                test_engine_touch(&engine);
                unseen += test_engine_same_plan(&engine.library_plans[0], &library_plans[0]);
                engine_close(&engine);
            } else {
                if (!strstr(status.message, PLANS "")) fail_msg("bit %d of byte %zu: %s", bit, i, status.message);
                refused++;
            }
            bytes[section + i] ^= (uint8_t)(1u << bit);
        }
    }
    assert_true(refused > 0);
    /* The flag that a field is essential, which does not matter to a reader that knows the field. */
    assert_int_equal(unseen, step_field_count(0, 0));
    free(bytes);
}

TEST(every_other_length_is_refused)
{
    size_t section_bytes;
    uint8_t *section = plans_section(&section_bytes);
    sample.library_plan_count = 0; /* a section of size 0 is left out */
    expect_one_length(SECTION_LIBRARY_PLANS, section, section_bytes, sizeof(struct engine_plans_header));
    free(section);
}

/* ---- counterparts and calls -------------------------------------------------------------------------------------- */

TEST(library_plans_stand_in_the_order_of_the_plans)
{
    add_library_plan(0);
    expect_refused_and_renew(PLANS "plan 1: kind 1 of 1 rows " NO_COUNTERPART); /* twice */
    add_library_plan(2);
    add_library_plan(1);
    expect_refused_and_renew(PLANS "plan 2: kind 1 of 2 rows " NO_COUNTERPART);
    add_library_plan(2);
    add_library_plan(2);
    expect_refused_and_renew(PLANS "plan 2: kind 2 of 4 rows " NO_COUNTERPART);
    add_library_plan(2);
    library_plans[1].header.rows = 8;
    assert_true(plan_place_step(&library_plans[1], TEST_ENGINE_VOCAB, 0, 0));
    expect_refused_and_renew(PLANS "plan 1: kind 2 of 8 rows " NO_COUNTERPART);
    add_library_plan(2);
    library_plans[1].header.out_rows = 4;
    assert_true(plan_place_step(&library_plans[1], TEST_ENGINE_VOCAB, 0, 0));
    expect_refused_and_renew(PLANS "plan 1: kind 2 of 4 rows " NO_COUNTERPART);
    library_plans[0].step[STEP_SLOTS] = sample.plans[0].step[STEP_TOKENS];
    library_plans[0].step[STEP_TOKENS] = sample.plans[0].step[STEP_SLOTS];
    expect_sample_refused(PLANS "plan 0: its step fields are not those of its counterpart");
}

TEST(a_library_plan_calls_a_library)
{
    library_plans[0] = sample.plans[0];
    expect_refused_and_renew(PLANS "plan 0: calls no library");
    add_library_plan(1);
    library_plans[1] = sample.plans[1];
    expect_sample_refused(PLANS "plan 1: calls no library");
}

TEST(calls_and_plans_need_each_other)
{
    sample.library_plan_count = 0; /* a section of size 0 is left out */
    expect_refused_and_renew(PLANS "expected one, since there are library calls, found none");
    sample.call_count = 0;
    expect_sample_refused(PLANS "plan 0 (decode, 1 rows): launch 3: library call 0 of 0");
    library_plans[0] = sample.plans[0];
    expect_sample_refused(PLANS "plan 0: calls no library");
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
