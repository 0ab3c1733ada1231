/* SPDX-License-Identifier: Apache-2.0 */
#define TEST_ENGINE_MAKE test_engine_make
#include "formats/engine/test_engine_frame.h"

static struct plan_space_sizes sizes_of(const struct plan *plan)
{
    const struct manifest *manifest = &sample.manifest;
    return (struct plan_space_sizes){.bytes = {
                                         [SPACE_WEIGHTS] = manifest->weights_bytes,
                                         [SPACE_ARENA] = manifest->arena_bytes,
                                         [SPACE_KV] = manifest->geometry.page_bytes,
                                         [SPACE_STEP] = plan->header.step_bytes,
                                         [SPACE_STATE] = manifest->state_bytes,
                                     }};
}

TEST(step_layout_places_fields_in_order)
{
    struct plan_field fields[STEP_FIELD_COUNT];
    uint64_t total;
    assert_true(step_layout(17, 3, 1000, 0, 0, fields, &total));
    const uint64_t offsets[] = {0, 64, 192, 320, 448, 640, 704, 512, 0, 0, 0},
                   bytes[] = {8, 68, 68, 68, 12, 12, 12000, 68, 0, 0, 0};
    for (int i = 0; i < STEP_FIELD_COUNT; i++) {
        assert_int_equal(fields[i].offset, offsets[i]);
        assert_int_equal(fields[i].bytes, bytes[i]);
    }
    assert_int_equal(total, 704 + 12032);
}

TEST(step_layout_with_hidden_states)
{
    struct plan_field fields[STEP_FIELD_COUNT], without[STEP_FIELD_COUNT];
    uint64_t total;
    assert_true(step_layout(17, 3, 1000, 0, 0, without, &total));
    assert_true(step_layout(17, 3, 1000, 40, 0, fields, &total));
    assert_memory_equal(fields, without, STEP_HIDDEN * sizeof *fields);
    assert_int_equal(fields[STEP_HIDDEN].offset, 704 + 12032);
    assert_int_equal(fields[STEP_HIDDEN].bytes, 3 * 40 * sizeof(float));
    assert_int_equal(total, 704 + 12032 + 512);
    assert_int_equal(step_field_count(40, 0), STEP_FIELD_COUNT - 2);
    assert_int_equal(step_field_count(0, 0), STEP_FIELD_COUNT - 3);
}

/* What follows the tokens is one more input. */
TEST(step_layout_with_drafts)
{
    struct plan plan = {.header = {.kind = PLAN_VERIFY, .rows = 17, .out_rows = 17}};
    assert_true(plan_place_step(&plan, 1000, 0, 1));
    assert_int_equal(plan.step[STEP_FOLLOWING].offset, 704);
    assert_int_equal(plan.step[STEP_FOLLOWING].bytes, 68);
    assert_int_equal(plan_input_bytes(&plan), 704 + 68);
    assert_int_equal(plan.step[STEP_NEXT_TOKENS].offset, 832);
    assert_int_equal(plan.step[STEP_DRAFTED].offset, 960);
    assert_int_equal(plan.step[STEP_DRAFTED].bytes, 68);
    assert_int_equal(plan.step[STEP_LOGITS].offset, 1088);
    assert_int_equal(plan.header.field_count, STEP_FIELD_COUNT - 1);
    assert_int_equal(step_field_count(40, 1), STEP_FIELD_COUNT);
    assert_true(plan_place_step(&plan, 1000, 0, 0));
    assert_int_equal(plan_input_bytes(&plan), 576 + 68);
}

/* With several page groups their tables follow each other, each at a multiple of 64. */
TEST(tables_of_page_groups)
{
    struct plan_geometry geometry = {.slots = 3, .pages_per_slot = 7, .vocab_size = 1001, .page_groups = 3};
    struct plan_field fields[STATE_FIELD_COUNT];
    uint64_t total;
    assert_true(state_layout(&geometry, fields, &total));
    assert_int_equal(plan_page_table_stride(&geometry), 128);
    assert_int_equal(fields[STATE_PAGE_TABLE].bytes, 2 * 128 + 84);
    assert_int_equal(plan_page_row(&geometry, 2, 1), 2 * 32 + 7);
    geometry.slots = UINT64_C(1) << 59;
    geometry.pages_per_slot = 1;
    assert_false(state_layout(&geometry, fields, &total));
}

/* The most pages that window + chunk - 1 tokens in a row touch, found by trying every place of the first of them. */
TEST(pages_of_a_window)
{
    for (uint64_t page_tokens = 1; page_tokens < 9; page_tokens++)
        for (uint64_t window = 1; window < 40; window++)
            for (uint64_t chunk = 1; chunk < 20; chunk++) {
                const struct plan_geometry geometry = {.page_tokens = page_tokens, .page_window = {window}};
                uint64_t most = 0;
                for (uint64_t first = 0; first < page_tokens; first++) {
                    const uint64_t pages = (first + window + chunk - 2) / page_tokens + 1;
                    if (pages > most) most = pages;
                }
                assert_int_equal(plan_ring_pages(&geometry, 0, chunk), most);
            }
}

TEST(pages_of_a_sequence)
{
    const struct plan_geometry geometry = {.page_tokens = 16, .page_groups = 3, .page_window = {64, 0, 128}};
    assert_int_equal(plan_sequence_pages(&geometry, 0, 16), 0);
    assert_int_equal(plan_sequence_pages(&geometry, 17, 16), 6);
    assert_int_equal(plan_sequence_pages(&geometry, 1600, 16), 6 + 100 + 10);
    assert_int_equal(plan_group_pages(&geometry, 0, 1600, UINT64_MAX), 100);
    assert_int_equal(plan_sequence_pages(&geometry, UINT64_MAX, UINT64_MAX), 3 * (UINT64_MAX / 16 + 1));
    const struct plan_geometry tiny = {.page_tokens = 1, .page_groups = 2};
    assert_int_equal(plan_sequence_pages(&tiny, UINT64_MAX, 1), UINT64_MAX);
    const struct plan plans[] = {{.header = {.kind = PLAN_DECODE, .rows = 64}},
                                 {.header = {.kind = PLAN_PREFILL, .rows = 16}},
                                 {.header = {.kind = PLAN_PREFILL, .rows = 8}}};
    assert_int_equal(plan_longest_chunk(plans, 1), 1);
    assert_int_equal(plan_longest_chunk(plans, 3), 16);
}

TEST(state_layout_places_fields_in_order)
{
    const struct plan_geometry geometry = {.slots = 3, .pages_per_slot = 7, .vocab_size = 1001};
    struct plan_field fields[STATE_FIELD_COUNT];
    uint64_t total;
    assert_true(state_layout(&geometry, fields, &total));
    assert_int_equal(fields[STATE_PAGE_TABLE].bytes, 84);
    assert_int_equal(fields[STATE_SAMPLERS].offset, 128);
    assert_int_equal(fields[STATE_SAMPLERS].bytes, 192);
    assert_int_equal(fields[STATE_SEEN].offset, 320);
    assert_int_equal(fields[STATE_SEEN].bytes, 3 * 126);
    assert_int_equal(total, 320 + 384);
    assert_true(fields[STATE_ROPE_SET].offset == 0 && fields[STATE_ROPE_SET].bytes == 0);
    struct plan_field_entry listed[STATE_FIELD_COUNT];
    assert_int_equal(plan_list_fields(fields, STATE_FIELD_COUNT, listed), STATE_ALWAYS_COUNT);
    struct plan_geometry two_sets = geometry;
    two_sets.rope_original = 4096;
    two_sets.recurrent_bytes = 1000;
    assert_true(state_layout(&two_sets, fields, &total));
    assert_int_equal(fields[STATE_RECURRENT].offset, 320 + 384 + 64);
    assert_int_equal(fields[STATE_RECURRENT].bytes, 3000);
    assert_int_equal(fields[STATE_SEEN].offset, 320);
    assert_int_equal(fields[STATE_ROPE_SET].offset, 320 + 384);
    assert_int_equal(fields[STATE_ROPE_SET].bytes, 12);
    assert_int_equal(total, 320 + 384 + 64 + 3008);
    assert_int_equal(plan_list_fields(fields, STATE_FIELD_COUNT, listed), STATE_RECURRENT + 1);
    assert_int_equal(listed[STATE_ROPE_SET].id, 4);
    assert_int_equal(listed[STATE_ROPE_SET].flags, PLAN_FIELD_ESSENTIAL);
    /* A reader takes the list as it is, with the field and without it. */
    assert_true(plan_read_fields(listed, STATE_RECURRENT + 1, SPACE_STATE, total, fields, STATE_FIELD_COUNT, &status));
    assert_false(plan_read_fields(listed, STATE_ALWAYS_COUNT, SPACE_STATE, total, fields, STATE_FIELD_COUNT, &status));
    assert_non_null(strstr(status.message, "has 3 of its 5 fields"));
    status_clear(&status);
    assert_true(state_layout(&geometry, fields, &total));
    assert_true(plan_read_fields(listed, STATE_ALWAYS_COUNT, SPACE_STATE, total, fields, STATE_FIELD_COUNT, &status));
    assert_int_equal(fields[STATE_ROPE_SET].bytes, 0);
}

TEST(state_layout_has_sampling_options)
{
    struct plan_geometry geometry = {.slots = 3,
                                     .pages_per_slot = 7,
                                     .vocab_size = 1001,
                                     .recurrent_bytes = 64,
                                     .sampling_options = 1};
    uint64_t total;
    assert_true(geometry_place_state(&geometry, &total));
    assert_int_equal(geometry.state[STATE_ADJUSTMENTS].offset, 320 + 384);
    assert_int_equal(geometry.state[STATE_ADJUSTMENTS].bytes, 3 * (1028 + 1001) * 4);
    assert_int_equal(geometry.state[STATE_ALLOWED].offset, 704 + 24384);
    assert_int_equal(geometry.state[STATE_ALLOWED].bytes, 3 * 32 * 4);
    assert_int_equal(geometry.state[STATE_RECURRENT].offset, 704 + 24384 + 384); /* the host writes all before it */
    assert_int_equal(plan_host_state_bytes(&geometry), 704 + 24384 + 384);
    geometry.vocab_size = UINT64_MAX - 100;
    assert_false(geometry_place_state(&geometry, &total));
    uint32_t row[PLAN_BIAS_WORDS + 2] = {[PLAN_BIAS_WORDS] = PLAN_COUNT_MOST - 1};
    for (int i = 0; i < 3; i++) plan_count_token(row, 0);
    assert_int_equal(row[PLAN_BIAS_WORDS], PLAN_COUNT_MOST); /* the bias above it stays */
}

TEST(layouts_refuse_overflow)
{
    struct plan_field fields[STEP_FIELD_COUNT];
    uint64_t total;
    assert_false(step_layout(UINT64_MAX / 2, 1, 1, 0, 0, fields, &total));
    assert_false(step_layout(1, UINT64_MAX / 8, 1, 0, 0, fields, &total));
    assert_false(step_layout(1, UINT64_C(1) << 31, UINT64_C(1) << 31, 0, 0, fields, &total));
    assert_false(step_layout(UINT64_MAX / 8, 1, 1, 0, 0, fields, &total));
    assert_false(step_layout(1, 1, 1, UINT64_MAX / 4, 0, fields, &total));
    struct plan_geometry geometry = {.slots = UINT64_C(1) << 32, .pages_per_slot = UINT64_C(1) << 32, .vocab_size = 8};
    assert_false(state_layout(&geometry, fields, &total));
    geometry = (struct plan_geometry){.slots = UINT64_C(1) << 59, .pages_per_slot = 1, .vocab_size = 8};
    assert_false(state_layout(&geometry, fields, &total));
    geometry = (struct plan_geometry){.slots = 1, .pages_per_slot = UINT64_C(1) << 61, .vocab_size = UINT64_MAX};
    assert_true(state_layout(&geometry, fields, &total));
    geometry = (struct plan_geometry){.slots = 9, .pages_per_slot = 1, .vocab_size = UINT64_MAX};
    assert_false(state_layout(&geometry, fields, &total));
}

TEST(names_are_known_and_safe)
{
    assert_string_equal(plan_space_name(SPACE_KV), "kv");
    assert_string_equal(plan_space_name(SPACE_NONE), "none");
    assert_string_equal(plan_space_name(99), "?");
    assert_string_equal(plan_op_name(OP_SELECT_ROWS), "select_rows");
    assert_string_equal(plan_op_name(0), "?");
    assert_string_equal(plan_op_name(65535), "?");
    for (unsigned op = 1; op < OP_COUNT; op++) assert_string_not_equal(plan_op_name(op), "?");
}

TEST(good_plans_pass)
{
    for (int i = 0; i < TEST_ENGINE_PLANS; i++) {
        struct plan_space_sizes sizes = sizes_of(&sample.plans[i]);
        if (!plan_verify(&sample.plans[i], &sizes, "plan", &status)) fail_msg("%s", status.message);
    }
}

/* Parts of the first plan; the message begins with "a plan: ". */
enum { IN_HEADER, IN_LAUNCH, IN_OPERAND, IN_PARAM, IN_DEPENDENCY };

static void *part(int number)
{
    struct test_plan *storage = &sample.storage[0];
    void *const parts[] = {&sample.plans[0].header, storage->launches, storage->operands, storage->params,
                           storage->dependencies};
    return parts[number];
}

#define HEADER(field, value, expected) FIELD(IN_HEADER, 0, plan_header, field, value, expected)
#define IN_LIST(place, index, type, field, value, expected) \
    FIELD(place, (index) * sizeof(struct type), type, field, value, expected)
#define LAUNCH(index, field, value, expected)  IN_LIST(IN_LAUNCH, index, plan_launch, field, value, expected)
#define OPERAND(index, field, value, expected) IN_LIST(IN_OPERAND, index, plan_operand, field, value, expected)
#define PARAM(index, field, value, expected)   IN_LIST(IN_PARAM, index, plan_param, field, value, expected)

static const struct edit edits[] = {
    HEADER(kind, 0, "kind: expected 1 (decode), 2 (prefill), 3 (mixed) or 4 (verify), found 0"),
    HEADER(kind, 5, "kind: expected 1 (decode), 2 (prefill), 3 (mixed) or 4 (verify), found 5"),
    HEADER(rows, 0, "rows: expected 1 to"),
    HEADER(rows, UINT32_MAX, "rows: expected 1 to"),
    HEADER(out_rows, 0, "out_rows: expected 1, found 0"),
    HEADER(launch_count, 0, "launch count: expected 1 to 65536, found 0"),
    HEADER(launch_count, UINT32_MAX, "launch count: expected 1 to 65536"),
    HEADER(operand_count, UINT32_MAX, "operand count"),
    HEADER(operand_count, 3, "outside the plan's 3"),
    HEADER(param_count, UINT32_MAX, "parameter count"),
    HEADER(param_count, 2, "outside the plan's 2"),
    HEADER(dependency_count, UINT32_MAX, "dependency count"),
    HEADER(dependency_count, 1, "outside the plan's 1"),
    HEADER(tensor_map_count, UINT32_MAX, "tensor map count"),
    HEADER(step_bytes, 1 << 20, "needs 1048576 step bytes, the engine has 512"),
    HEADER(step_bytes, 64, "in the 64 bytes of space 'step'"),
    HEADER(use, 2, "use: expected 0 or 1, found 2"),
    HEADER(arena_bytes, 1 << 20, "needs 1048576 arena bytes, the engine has 32768"),
    HEADER(arena_bytes, 64, "in the 64 bytes of space 'arena'"),
    LAUNCH(2, op, 0, "launch 2 (?): unknown op 0"),
    LAUNCH(2, operand_count, PLAN_MAX_OPERANDS + 1, "17 operands, at most 16"),
    LAUNCH(2, param_count, PLAN_MAX_PARAMS + 1, "65 parameters, at most 64"),
    LAUNCH(2, dependency_count, PLAN_MAX_DEPENDENCIES + 1, "17 dependencies, at most 16"),
    LAUNCH(2, first_operand, UINT32_MAX, "operands 4294967295 + 8 lie outside"),
    LAUNCH(2, first_param, UINT32_MAX, "parameters 4294967295 + 14 lie outside"),
    LAUNCH(2, first_dependency, UINT32_MAX, "dependencies 4294967295 + 1 lie outside"),
    LAUNCH(9, operand_count, 9, "lie outside the plan's"),
    LAUNCH(2, reserved, 1, "launch 2 (rope_append): a reserved field is not zero"),
    OPERAND(0, space, SPACE_NONE, "launch 0 (embed): operand 0: is absent, but a field of it is not zero"),
    OPERAND(0, space, SPACE_COUNT, "unknown memory space 7"),
    OPERAND(0, space, 255, "unknown memory space 255"),
    OPERAND(0, access, 0, "unknown access 0"),
    OPERAND(0, access, 4, "unknown access 4"),
    OPERAND(2, access, ACCESS_READ_WRITE, "operand 2: writes to the weights"),
    OPERAND(0, reserved0, 1, "a reserved field is not zero"),
    OPERAND(0, tensor_map, 1, "tensor map 0 of 0"),
    OPERAND(0, tensor_map, UINT32_MAX, "tensor map 4294967294 of 0"),
    PARAM(0, id, 0, "launch 0 (embed): parameter 0: id 0 is not above the id before it"),
    PARAM(1, id, 1, "launch 0 (embed): parameter 1: id 1 is not above the id before it"),
    PARAM(1, id, 3, "launch 0 (embed): parameter 2: id 3 is not above the id before it"),
    PARAM(1, flags, 2, "launch 0 (embed): parameter 1: unknown flags 0x2"),
    PARAM(1, reserved, 1, "launch 0 (embed): parameter 1: unknown flags 0x1, or a reserved field"),
    OPERAND(0, offset, 32, "offset 32 is not a multiple of 64"),
    OPERAND(0, offset, UINT64_MAX & ~UINT64_C(63), "do not lie in"),
    OPERAND(0, bytes, 0, "0 bytes at offset 0 do not lie in"),
    OPERAND(0, bytes, UINT64_MAX, "do not lie in"),
    OPERAND(2, bytes, TEST_ENGINE_WEIGHTS + 1, "do not lie in the 2304 bytes of space 'weights'"),
    OPERAND(2, offset, 1344, "do not lie in the 2304 bytes of space 'weights'"),
    OPERAND(3, bytes, 32769, "of space 'arena'"),
    {IN_DEPENDENCY, 0, 4, 1, "launch 1 (rope_table): dependency 0: launch 1 is not earlier"},
    {IN_DEPENDENCY, 0, 4, UINT32_MAX, "dependency 0: launch 4294967295 is not earlier"},
};

TEST(every_damage_is_named)
{
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        const struct edit *edit = &edits[i];
        assert_int_equal(make_sample(NULL), 0);
        struct plan_space_sizes sizes = sizes_of(&sample.plans[0]);
        make_edit(edit, part(edit->place));
        if (plan_verify(&sample.plans[0], &sizes, "a plan", &status)) fail_msg("edit %zu: %s", i, edit->expected);
        assert_int_equal(status.code, STATUS_CORRUPT);
        if (!strstr(status.message, edit->expected) || strncmp(status.message, "a plan: ", 8) != 0)
            fail_msg("edit %zu: expected '%s', found '%s'", i, edit->expected, status.message);
    }
}

/* Ops have numbers in the order in which they came. */
TEST(ops_of_newer_builders_are_no_damage)
{
    static const unsigned ops[] = {OP_COUNT, 65535};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        char expected[96];
        assert_int_equal(make_sample(NULL), 0);
        const struct plan_space_sizes sizes = sizes_of(&sample.plans[0]);
        sample.storage[0].launches[2].op = (uint16_t)ops[i];
        snprintf(expected, sizeof expected, "a plan: launch 2 (?): needs a newer runtime: unknown op %u; use", ops[i]);
        test_expect_failure(plan_verify(&sample.plans[0], &sizes, "a plan", &status), &status, STATUS_VERSION,
                            expected);
    }
}

/* How many rows of a mixed plan get logits is the engine's affair. */
TEST(out_rows_of_mixed_plans)
{
    static const struct {
        uint32_t out_rows;
        const char *expected; /* NULL: good */
    } cases[] = {{1, NULL},
                 {4, NULL},
                 {0, "out_rows: expected 1 to 4, found 0"},
                 {5, "out_rows: expected 1 to 4, found 5"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(make_sample(NULL), 0);
        struct plan *plan = &sample.plans[2];
        struct plan_space_sizes sizes = sizes_of(plan);
        plan->header.kind = PLAN_MIXED;
        plan->header.out_rows = cases[i].out_rows;
        assert_int_equal(plan_verify(plan, &sizes, "a plan", &status), !cases[i].expected);
        if (cases[i].expected) assert_non_null(strstr(status.message, cases[i].expected));
        status_clear(&status);
    }
    assert_int_equal(plan_out_rows(PLAN_DECODE, 8, 4), 8);
    assert_int_equal(plan_out_rows(PLAN_PREFILL, 8, 4), 1);
    assert_int_equal(plan_out_rows(PLAN_MIXED, 8, 4), 4);
    assert_int_equal(plan_out_rows(PLAN_MIXED, 8, 16), 8);
}

/* An optional operand that is absent: all its fields are 0. */
TEST(operands_may_be_absent)
{
    struct plan *plan = &sample.plans[0];
    struct plan_space_sizes sizes = sizes_of(plan);
    for (int field = 0; field < 4; field++) {
        struct plan_operand absent = {0};
        sample.storage[0].operands[5] = absent;
        if (!plan_verify(plan, &sizes, "plan", &status)) fail_msg("%s", status.message);
        if (field == 0) absent.access = ACCESS_READ;
        if (field == 1) absent.tensor_map = 1;
        if (field == 2) absent.offset = 64;
        if (field == 3) absent.bytes = 1;
        sample.storage[0].operands[5] = absent;
        assert_false(plan_verify(plan, &sizes, "plan", &status));
        assert_non_null(strstr(status.message, "is absent, but a field of it is not zero"));
    }
}

/* ---- fields of a space as a file lists them ---- */

enum { FIELDS = 3, SPACE_BYTES = 1024 };

/* Three fields that a reader needs, of 64, 100 and 8 bytes; the file lists them in another order, with an additional
 * one. */
static const struct plan_field_entry good_fields[] = {
    {.id = 1, .flags = PLAN_FIELD_ESSENTIAL, .offset = 512, .bytes = 64},
    {.id = 2, .offset = 0, .bytes = 128},
    {.id = 3, .flags = PLAN_FIELD_ESSENTIAL, .offset = 192, .bytes = 8},
    {.id = 9, .offset = 256, .bytes = 200},
};
enum { ENTRIES = sizeof good_fields / sizeof *good_fields };

static bool read_fields(const struct plan_field_entry *entries, uint32_t count, struct plan_field found[FIELDS])
{
    const struct plan_field needed[FIELDS] = {{0, 64}, {0, 100}, {0, 8}};
    status_clear(&status);
    memcpy(found, needed, sizeof needed);
    return plan_read_fields(entries, count, SPACE_STEP, SPACE_BYTES, found, FIELDS, &status);
}

TEST(fields_are_where_the_file_says)
{
    struct plan_field found[FIELDS], again[FIELDS];
    struct plan_field_entry listed[FIELDS];
    if (!read_fields(good_fields, ENTRIES, found)) fail_msg("%s", status.message);
    for (int i = 0; i < FIELDS; i++) {
        assert_int_equal(found[i].offset, good_fields[i].offset);
        assert_int_equal(found[i].bytes, good_fields[i].bytes);
    }
    assert_int_equal(plan_list_fields(found, FIELDS, listed), FIELDS);
    if (!read_fields(listed, FIELDS, again)) fail_msg("%s", status.message);
    assert_memory_equal(again, found, sizeof found);
}

TEST(damaged_fields_are_refused)
{
    static const struct {
        int entry;
        struct plan_field_entry value;
        enum status_code code;
        const char *expected;
    } cases[] = {
        {0, {.id = 0, .offset = 512, .bytes = 64}, STATUS_CORRUPT, "step field 0: id 0 is not above"},
        {1, {.id = 1, .bytes = 128}, STATUS_CORRUPT, "step field 1: id 1 is not above"},
        {2, {.id = 2, .offset = 192, .bytes = 8}, STATUS_CORRUPT, "step field 2: id 2 is not above"},
        {2, {.id = 8, .offset = 192, .bytes = 8}, STATUS_CORRUPT, "the step space has 2 of its 3 fields"},
        {1, {.id = 2, .flags = 2, .bytes = 128}, STATUS_CORRUPT, "step field 1: unknown flags 0x2"},
        {1, {.id = 2, .reserved = 1, .bytes = 128}, STATUS_CORRUPT, "or a reserved field is not zero"},
        {1, {.id = 2, .offset = 32, .bytes = 128}, STATUS_CORRUPT, "at a multiple of 64"},
        {1, {.id = 2, .bytes = 0}, STATUS_CORRUPT, "0 bytes at offset 0: expected at least 1"},
        {1, {.id = 2, .offset = 960, .bytes = 128}, STATUS_CORRUPT, "inside 1024 bytes"},
        {1, {.id = 2, .offset = UINT64_MAX - 63, .bytes = 128}, STATUS_CORRUPT, "inside 1024 bytes"},
        {1, {.id = 2, .offset = 448, .bytes = 128}, STATUS_CORRUPT, "step field 1: overlaps the field of id 1"},
        {3, {.id = 9, .offset = 64, .bytes = 65}, STATUS_CORRUPT, "step field 3: overlaps the field of id 2"},
        {1, {.id = 2, .bytes = 99}, STATUS_CORRUPT, "id 2: expected at least 100 bytes, found 99"},
        {3,
         {.id = 9, .flags = PLAN_FIELD_ESSENTIAL, .offset = 256, .bytes = 200},
         STATUS_VERSION,
         "needs a newer runtime: step field 3 has id 9 and is essential"},
    };
    struct plan_field found[FIELDS];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan_field_entry entries[ENTRIES];
        memcpy(entries, good_fields, sizeof entries);
        entries[cases[i].entry] = cases[i].value;
        test_expect_failure(read_fields(entries, ENTRIES, found), &status, cases[i].code, cases[i].expected);
    }
    test_expect_failure(read_fields(good_fields, 2, found), &status, STATUS_CORRUPT, "has 2 of its 3 fields");
    test_expect_failure(read_fields(good_fields, UINT32_MAX, found), &status, STATUS_CORRUPT,
                        "4294967295 fields of the step space, at most 64");
}

TEST(dependencies_must_rise)
{
    struct plan *plan = &sample.plans[0];
    struct plan_space_sizes sizes = sizes_of(plan);
    struct plan_launch *last = &sample.storage[0].launches[9];
    /* The last launch also takes the two dependencies of the previous launch: 6, 7, 8. */
    last->first_dependency -= 2;
    last->dependency_count = 3;
    assert_true(plan_verify(plan, &sizes, "plan", &status));
    sample.storage[0].dependencies[last->first_dependency + 1] = 6;
    assert_false(plan_verify(plan, &sizes, "plan", &status));
    assert_non_null(strstr(status.message, "dependency 1: launch 6 is not earlier, or not in rising order"));
}

int main(void) { return test_run_with(setup, make_sample, NULL, remove_folder); }
