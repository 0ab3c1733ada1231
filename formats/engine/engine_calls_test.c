/* SPDX-License-Identifier: Apache-2.0 */
/* Library calls: their section, and the launches that refer to them. Their plans: engine_library_plans_test.c. */

#define TEST_ENGINE_MAKE test_engine_make_library
#include "formats/engine/test_engine_frame.h"

static struct plan *const library_plans = &sample.plans[TEST_ENGINE_LIBRARY_PLAN];

/* ---- round trip -------------------------------------------------------------------------------------------------- */

/* Numbers of the sample's sections, each at its offset. */
TEST(the_sections_have_the_documented_form)
{
    static const struct number version[] = {{8, 2, 2}, {10, 2, 3}};
    static const struct number calls[] = {
        {0, 4, 2},      {4, 4, 0},                                                            /* calls */
        {8, 4, 2},      {12, 4, 91300},  {16, 4, 8},  {20, 4, 0},  {24, 8, 128}, {32, 8, 40}, /* cuDNN */
        {40, 4, 1},     {44, 4, 130200}, {48, 4, 5},  {52, 4, 0},  {56, 8, 192}, {64, 8, 72}, /* cuBLASLt */
        {72, 8, 0},     {120, 8, 0},     {168, 8, 0}, {184, 8, 0}, {264, 8, 0},  {312, 8, 0}, /* padding */
        {192, 8, 4096},                                                                       /* workspace */
    };
    enum { LAUNCHES = 64, LAUNCH_BYTES = 96 };
    static const struct number plans[] = {
        {0, 4, 1},   {4, 4, 0},  {8, 4, 1},  {12, 4, 1},     {16, 4, 1},
        {20, 4, 10}, {36, 4, 8}, {44, 4, 0}, {48, 8, 36864}, {56, 8, 512},
    };
    static const struct number attention[] = {
        {0, 2, 11}, {2, 2, 8}, {28, 4, 0}, {32, 8, 0}, {40, 8, 0}, {48, 8, 0}, {56, 8, 0}, {64, 8, 0}, {72, 4, 2},
    };
    static const struct number matmul[] = {
        {0, 2, 4}, {2, 2, 5}, {28, 4, 1}, {32, 8, 0}, {40, 8, 0}, {48, 8, 0}, {56, 8, 0}, {64, 8, 0}, {72, 4, 2},
    };
    for (int compress = 0; compress < 2; compress++) {
        size_t size;
        uint8_t *bytes = written(compress, &size);
        const struct engine_section_entry *entry = test_engine_entry(bytes, size, 12);
        assert_non_null(entry);
        assert_int_equal(entry->flags, compress ? SECTION_FLAG_ZLIB : 0);
        assert_int_equal(entry->raw_bytes, TEST_ENGINE_CALLS_BYTES);
        if (!compress) EXPECT_NUMBERS(bytes + entry->offset, calls);
        entry = test_engine_entry(bytes, size, 13);
        assert_non_null(entry);
        assert_int_equal(entry->flags, 0);
        EXPECT_NUMBERS(bytes + entry->offset, plans);
        EXPECT_NUMBERS(bytes + entry->offset + LAUNCHES + 3 * LAUNCH_BYTES, attention);
        EXPECT_NUMBERS(bytes + entry->offset + LAUNCHES + 8 * LAUNCH_BYTES, matmul);
        EXPECT_NUMBERS(bytes, version);
        free(bytes);
    }
}

TEST(round_trip_keeps_everything)
{
    for (int compress = 0; compress < 2; compress++) {
        open_sample(compress);
        assert_int_equal(engine.call_count, TEST_ENGINE_CALLS);
        for (size_t i = 0; i < engine.call_count; i++) {
            const struct engine_call *found = &engine.calls[i], *call = &sample.calls[i];
            assert_int_equal(found->library, call->library);
            assert_int_equal(found->version, call->version);
            assert_int_equal(found->operand_count, call->operand_count);
            assert_int_equal(found->bytes, call->bytes);
            assert_memory_equal(found->data, call->data, call->bytes);
            assert_int_equal((uintptr_t)found->data % 16, 0);
        }
        expect_content();
        assert_non_null(engine.library_plans);
        assert_true(test_engine_same_plan(&engine.library_plans[0], &library_plans[0]));
        for (int i = 1; i < TEST_ENGINE_PLANS; i++) assert_int_equal(engine.library_plans[i].header.launch_count, 0);
        /* The manifest gives the arena of the plans; library plans may need more. */
        assert_int_equal(engine.manifest.arena_bytes, 32768);
        assert_int_equal(engine.library_arena_bytes, 36864);
        engine_close(&engine);
    }
}

TEST(an_engine_needs_no_libraries)
{
    sample.call_count = sample.library_plan_count = 0; /* a section of size 0 is left out */
    for (int compress = 0; compress < 2; compress++) {
        open_sample(compress);
        assert_int_equal(engine.call_count, 0);
        assert_null(engine.calls);
        assert_null(engine.library_plans);
        assert_int_equal(engine.library_arena_bytes, 0);
        engine_close(&engine);
    }
}

static bool write_calls(struct engine_writer *writer)
{
    return engine_writer_calls(writer, sample.calls, TEST_ENGINE_CALLS, &status);
}

/* As test_engine_device.c does. */
TEST(the_writer_makes_the_same_section)
{
    expect_compressed_section(SECTION_LIBRARY_CALLS, 0, sample.calls_section, TEST_ENGINE_CALLS_BYTES, write_calls);
}

TEST(the_writer_bounds_the_calls)
{
    struct engine_call calls[2] = {sample.calls[0], sample.calls[1]};
    struct engine_writer *writer = engine_writer_begin(path, &status);
    assert_true(engine_writer_calls(writer, calls, 0, &status)); /* left out */
    assert_true(engine_writer_calls(writer, calls, 0, &status));
    assert_true(engine_writer_library_plans(writer, library_plans, 0, &status));
    test_expect_failure(engine_writer_calls(writer, calls, ENGINE_MAX_KERNELS + 1, &status), &status, STATUS_INTERNAL,
                        "65537 library calls, expected at most 65536");
    calls[1].bytes = UINT64_MAX - 100;
    test_expect_failure(engine_writer_calls(writer, calls, 2, &status), &status, STATUS_BAD_INPUT,
                        "the library calls are too large");
    calls[0].bytes = calls[1].bytes = UINT64_C(1) << 63;
    test_expect_failure(engine_writer_calls(writer, calls, 2, &status), &status, STATUS_BAD_INPUT,
                        "the library calls are too large");
    test_expect_failure(engine_writer_library_plans(writer, library_plans, (size_t)UINT32_MAX + 1, &status), &status,
                        STATUS_BAD_INPUT, "too many plans");
    engine_writer_abandon(writer);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

/* Launches and operands are those of the library plan, but for PLAIN_MATMUL. */
enum { IN_CALLS = IN_SAMPLE, IN_ATTENTION, IN_MATMUL, IN_PLAIN_MATMUL, IN_MATMUL_OPERANDS };
enum { HEAD_OPERAND = 2, WORKSPACE_OPERAND = 4 };

static void *part(int number)
{
    enum { PLAN = TEST_ENGINE_LIBRARY_PLAN };
    struct plan_launch *matmul = test_engine_launch(&sample, PLAN, OP_MATMUL);
    switch (IN_SAMPLE + number) {
    case IN_CALLS: return sample.calls_section;
    case IN_ATTENTION: return test_engine_launch(&sample, PLAN, OP_ROPE_ATTENTION);
    case IN_MATMUL: return matmul;
    case IN_PLAIN_MATMUL: return test_engine_launch(&sample, 0, OP_MATMUL);
    default: return &sample.storage[PLAN].operands[matmul->first_operand];
    }
}

#define PLANS                               "section 'library plans': "
#define TABLE(type, field, value, expected) FIELD(IN_ENTRY + (type), 0, engine_section_entry, field, value, expected)
#define CALLS                               "section 'library calls': "
#define SECTION_AT(offset, value, expected)        \
    {                                              \
        IN_CALLS, offset, 1, value, CALLS expected \
    }
#define SECTION(field, value, expected) FIELD(IN_CALLS, 0, engine_calls_header, field, value, CALLS expected)
#define CALL(index, field, value, expected)                                                          \
    FIELD(IN_CALLS, sizeof(struct engine_calls_header) + (index) * sizeof(struct engine_call_entry), \
          engine_call_entry, field, value, expected)
#define ENTRY(index, field, value, expected) CALL(index, field, value, CALLS "library call " #index ": " expected)
#define PLAN(index)                          "section 'library plans': plan 0 (decode, 1 rows): launch " #index ": "
#define ATTENTION(field, value, expected)    FIELD(IN_ATTENTION, 0, plan_launch, field, value, PLAN(3) expected)
#define MATMUL(field, value, expected)       FIELD(IN_MATMUL, 0, plan_launch, field, value, PLAN(8) expected)
#define PLAIN_MATMUL(field, value, expected)             \
    FIELD(IN_PLAIN_MATMUL, 0, plan_launch, field, value, \
          "section 'plans': plan 0 (decode, 1 rows): launch 8: " expected)
#define OPERAND(index, field, value, expected) \
    FIELD(IN_MATMUL_OPERANDS, (index) * sizeof(struct plan_operand), plan_operand, field, value, expected)
#define NOT_ZERO "library call: a field for kernels is not zero"

static const struct edit edits[] = {
    SECTION(call_count, 0, "header: 0 library calls in 320 bytes"),
    SECTION(call_count, 1, "library call 0: data: 40 bytes at 128, expected at least 1 at 64 inside 320"),
    SECTION(call_count, 3, "library call 2: unknown library 0"),
    SECTION(call_count, 10, "header: 10 library calls in 320 bytes"), /* 328 bytes of entries */
    SECTION(call_count, 65537, "header: 65537 library calls in 320 bytes"),
    SECTION(call_count, UINT32_MAX, "header: 4294967295 library calls in 320 bytes"),
    SECTION(reserved, 1, "header: 2 library calls in 320 bytes"),
    SECTION(reserved, 0x80000000, "header: 2 library calls in 320 bytes"),
    ENTRY(0, library, 0, "unknown library 0"),
    ENTRY(1, library, UINT32_MAX, "unknown library 4294967295"),
    ENTRY(0, operand_count, 0, "operands: expected 1 to 16, found 0"),
    ENTRY(1, operand_count, 17, "operands: expected 1 to 16, found 17"),
    ENTRY(1, operand_count, UINT32_MAX, "operands: expected 1 to 16, found 4294967295"),
    ENTRY(0, reserved, 1, "a reserved field is not zero"),
    ENTRY(1, reserved, 0x80000000, "a reserved field is not zero"),
    ENTRY(0, offset, 0, "data: 40 bytes at 0, expected at least 1 at 128 inside 320"),
    ENTRY(0, offset, 192, "data: 40 bytes at 192, expected at least 1 at 128"),
    ENTRY(1, offset, 128, "data: 72 bytes at 128, expected at least 1 at 192"), /* entries must not share data */
    ENTRY(1, offset, UINT64_MAX, "data: 72 bytes at 18446744073709551615, expected at least 1 at 192"),
    ENTRY(0, bytes, 0, "data: 0 bytes at 128"),
    ENTRY(1, bytes, 0, "data: 0 bytes at 192"),
    ENTRY(1, bytes, 129, "data: 129 bytes at 192, expected at least 1 at 192 inside 320"),
    ENTRY(1, bytes, UINT64_MAX, "data: 18446744073709551615 bytes at 192"),
    ENTRY(1, bytes, UINT64_MAX - 191, "data: 18446744073709551424 bytes at 192"), /* to 0 */
    /* A size that is wrong within the padding shows as padding that is not zero, or as an unexpected offset of the next
     * entry. */
    CALL(0, bytes, 39, CALLS "library call 1: padding is not zero"),
    CALL(0, bytes, 65, CALLS "library call 1: data: 72 bytes at 192, expected at least 1 at 256"),
    CALL(1, bytes, 71, CALLS "padding is not zero"),
    CALL(1, bytes, 64, CALLS "expected 256 bytes for its library calls, found 320"),
    SECTION_AT(72, 1, "library call 0: padding is not zero"),
    SECTION_AT(127, 0x80, "library call 0: padding is not zero"),
    SECTION_AT(168, 1, "library call 1: padding is not zero"),
    SECTION_AT(191, 1, "library call 1: padding is not zero"),
    SECTION_AT(264, 1, "padding is not zero"),
    SECTION_AT(319, 1, "padding is not zero"),
    /* launches */
    CALL(0, operand_count, 7, PLAN(3) "operands: the library call has 7, found 8"),
    CALL(1, operand_count, 12, PLAN(8) "operands: the library call has 12, found 5"),
    MATMUL(kernel, 0, "operands: the library call has 8, found 5"),
    MATMUL(kernel, 2, "library call 2 of 2"),
    ATTENTION(kernel, UINT32_MAX, "library call 4294967295 of 2"),
    MATMUL(operand_count, 4, "operands: the library call has 5, found 4"),
    MATMUL(grid[0], 1, NOT_ZERO),
    MATMUL(grid[1], 1, NOT_ZERO),
    MATMUL(grid[2], UINT32_MAX, NOT_ZERO),
    MATMUL(block[0], 128, NOT_ZERO),
    MATMUL(block[1], 1, NOT_ZERO),
    MATMUL(block[2], 0x80000000, NOT_ZERO),
    MATMUL(cluster[0], 1, NOT_ZERO),
    ATTENTION(cluster[1], 1, NOT_ZERO),
    ATTENTION(cluster[2], 16, NOT_ZERO),
    ATTENTION(shared_bytes, 1, NOT_ZERO),
    ATTENTION(attributes, LAUNCH_LIBRARY | LAUNCH_PROGRAMMATIC, NOT_ZERO), /* a library call cannot wait for its
                                                                            * predecessor itself */
    ATTENTION(attributes, LAUNCH_LIBRARY | LAUNCH_CORESIDENT, NOT_ZERO),
    ATTENTION(attributes, LAUNCH_LIBRARY | 0x80000000, NOT_ZERO),
    OPERAND(0, tensor_map, 1, PLAN(8) "operand 0: a tensor map for a library call"),
    OPERAND(HEAD_OPERAND, tensor_map, 2, PLAN(8) "operand 2: a tensor map for a library call"),
    OPERAND(WORKSPACE_OPERAND, tensor_map, 1, PLAN(8) "operand 4: a tensor map for a library call"),
    OPERAND(HEAD_OPERAND, tensor_map, 10, "launch 8 (matmul): operand 2: tensor map 9 of 2"),
    MATMUL(attributes, 0, "operands: kernel 'rows' has 8, found 5"), /* now the kernel of that number */
    MATMUL(attributes, LAUNCH_PROGRAMMATIC, "operands: kernel 'rows' has 8, found 5"),
    MATMUL(attributes, 4, "operands: kernel 'rows' has 8, found 5"),
    MATMUL(tactic, 2, "tactic 2 of 2"),
    FIELD(IN_MATMUL, 0, plan_launch, reserved, 1, "launch 8 (matmul): a reserved field is not zero"),
    PLAIN_MATMUL(attributes, LAUNCH_LIBRARY, "library call 2 of 0"),
    PLAIN_MATMUL(attributes, LAUNCH_LIBRARY | LAUNCH_PROGRAMMATIC, "library call 2 of 0"),
    OPERAND(WORKSPACE_OPERAND, offset, 32768 + 64,
            "launch 8 (matmul): operand 4: 4096 bytes at offset 32832 do not lie in the 36864 bytes of space 'arena'"),
    /* The section table; the writer sets no flag. */
    TABLE(SECTION_LIBRARY_CALLS, flags, SECTION_FLAG_REQUIRED, NULL),
    TABLE(SECTION_LIBRARY_PLANS, flags, SECTION_FLAG_REQUIRED, NULL),
    TABLE(SECTION_LIBRARY_CALLS, flags, SECTION_FLAG_CHUNKED, CALLS "chunked checksum: expected no flag"),
    TABLE(SECTION_LIBRARY_PLANS, flags, SECTION_FLAG_CHUNKED, PLANS "chunked checksum: expected no flag"),
    TABLE(SECTION_LIBRARY_CALLS, raw_bytes, (UINT64_C(1) << 30) + 1,
          CALLS "raw size: expected 1 to 1073741824, found 1073741825"),
    TABLE(SECTION_LIBRARY_PLANS, raw_bytes, (UINT64_C(1) << 30) + 1,
          PLANS "raw size: expected 1 to 1073741824, found 1073741825"),
    /* Values at the bounds, and fields without rules here. */
    CALL(0, version, 0, NULL),
    CALL(1, version, UINT32_MAX, NULL),
    CALL(0, library, LIBRARY_CUBLASLT, NULL),
    CALL(1, library, LIBRARY_CUDNN, NULL),
    CALL(1, library, LIBRARY_COUNT, NULL), /* of a later minor version */
    CALL(0, bytes, 64, NULL),
    CALL(1, bytes, 128, NULL),
    FIELD(IN_MATMUL, 0, plan_launch, tactic, 1, NULL),
    FIELD(IN_MATMUL, 0, plan_launch, tactic, PLAN_NO_TACTIC, NULL),
    FIELD(IN_MATMUL, 0, plan_launch, param_count, 0, NULL),
    OPERAND(WORKSPACE_OPERAND, bytes, 1, NULL),
};

TEST(every_damage_is_named) { EXPECT_EDITS(edits, part); }

/* Whether the byte belongs to a version or to a call's data, where any value is valid. */
static bool is_content(size_t position)
{
    bool content = false;
    for (size_t i = 0; i < TEST_ENGINE_CALLS; i++) {
        size_t version_at = sizeof(struct engine_calls_header) + i * sizeof(struct engine_call_entry) +
                            offsetof(struct engine_call_entry, version);
        size_t data_at = (size_t)((const uint8_t *)sample.calls[i].data - sample.calls_section);
        content |= position >= version_at && position < version_at + sizeof(uint32_t);
        content |= position >= data_at && position < data_at + sample.calls[i].bytes;
    }
    return content;
}

/* Whether the only difference is that a call's data include some of the zeros after them. */
static bool takes_padding(const uint8_t *section)
{
    for (size_t i = 0; i < TEST_ENGINE_CALLS; i++) {
        struct engine_call_entry entry;
        memcpy(&entry, section + sizeof(struct engine_calls_header) + i * sizeof entry, sizeof entry);
        uint64_t bytes = sample.calls[i].bytes, padded = (bytes + 63) / 64 * 64;
        if (entry.bytes > bytes && entry.bytes <= padded) return true;
    }
    return false;
}

/* Whether the byte belongs to a call's library and still holds the number of one. */
static bool names_a_library(const uint8_t *section, size_t position)
{
    const size_t first = sizeof(struct engine_calls_header), entry_bytes = sizeof(struct engine_call_entry);
    struct engine_call_entry entry;
    size_t i = position < first ? TEST_ENGINE_CALLS : (position - first) / entry_bytes;
    if (i >= TEST_ENGINE_CALLS || (position - first) % entry_bytes >= sizeof entry.library) return false;
    memcpy(&entry, section + first + i * entry_bytes, sizeof entry);
    /* NCCL is for several ranks. */
    return entry.library >= 1 && entry.library <= INT32_MAX && entry.library != LIBRARY_NCCL;
}

static size_t with_padding; /* sections accepted with a call whose data include zeros after them */

/* Only libraries, versions and data may change. */
static bool may_be(const uint8_t *section, size_t position)
{
    const bool padding = takes_padding(section);
    with_padding += padding;
    return padding || is_content(position) || names_a_library(section, position);
}

TEST(every_bit_of_the_calls_counts)
{
    with_padding = 0;
    expect_every_bit_counts(SECTION_LIBRARY_CALLS, may_be, "the library call has ");
    assert_int_equal(with_padding, 9); /* 4 bits of the first size, 5 of the second */
}

TEST(every_other_length_is_refused)
{
    sample.call_count = 0; /* a section of size 0 is left out */
    expect_one_length(SECTION_LIBRARY_CALLS, sample.calls_section, TEST_ENGINE_CALLS_BYTES,
                      sizeof(struct engine_calls_header));
}

/* Calls of one byte; the first ones with the operands that the sample's launches have. */
static uint8_t *many_calls(size_t count, size_t *section_bytes)
{
    struct engine_calls_header header = {.call_count = (uint32_t)count};
    size_t head = sizeof header + count * sizeof(struct engine_call_entry);
    size_t data_at = (head + ENGINE_CUBIN_ALIGNMENT - 1) / ENGINE_CUBIN_ALIGNMENT;
    *section_bytes = (data_at + count) * ENGINE_CUBIN_ALIGNMENT;
    uint8_t *section = calloc(1, *section_bytes);
    assert_non_null(section);
    memcpy(section, &header, sizeof header);
    for (size_t i = 0; i < count; i++) {
        const struct engine_call_entry entry = {
            .library = LIBRARY_CUBLASLT,
            .operand_count = i < TEST_ENGINE_CALLS ? sample.calls[i].operand_count : PLAN_MAX_OPERANDS,
            .offset = (data_at + i) * ENGINE_CUBIN_ALIGNMENT,
            .bytes = 1,
        };
        memcpy(section + sizeof header + i * sizeof entry, &entry, sizeof entry);
    }
    return section;
}

TEST(there_are_at_most_65536_calls)
{
    sample.call_count = 0;
    for (size_t more = 0; more < 2; more++) {
        size_t section_bytes;
        uint8_t *section = many_calls(ENGINE_MAX_KERNELS + more, &section_bytes);
        expect_section(SECTION_LIBRARY_CALLS, section, section_bytes,
                       more ? CALLS "header: 65537 library calls in" : NULL);
        free(section);
    }
}

/* 1 to 16 operands; a call of several launches, and one without launches. */
TEST(calls_are_shared_and_have_few_or_many_operands)
{
    static const uint16_t counts[] = {1, 5, PLAN_MAX_OPERANDS};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        assert_int_equal(make_sample(NULL), 0);
        struct plan_launch *attention = part(IN_ATTENTION - IN_SAMPLE), *matmul = part(IN_MATMUL - IN_SAMPLE);
        attention->kernel = 1;
        attention->operand_count = matmul->operand_count = counts[i];
        attention->first_operand = matmul->first_operand = 0; /* from which on there are that many */
        const struct edit edit = CALL(1, operand_count, counts[i], NULL);
        make_edit(&edit, sample.calls_section);
        open_sample(false);
        assert_true(test_engine_same_plan(&engine.library_plans[0], &library_plans[0]));
        assert_int_equal(engine.calls[1].operand_count, counts[i]);
        engine_close(&engine);
    }
}

/* ---- target and table -------------------------------------------------------------------------------------------- */

TEST(processors_have_no_libraries)
{
    static struct test_engine device;
    assert_true(test_engine_make_library(&device, &status));
    assert_true(test_engine_make(&sample, &status));
    memcpy(sample.calls_section, device.calls_section, sizeof sample.calls_section);
    sample.call_count = TEST_ENGINE_CALLS;
    expect_sample_refused(CALLS "expected none in an engine for a CPU");
    library_plans[0] = device.plans[TEST_ENGINE_LIBRARY_PLAN];
    sample.library_plan_count = 1;
    expect_sample_refused(CALLS "expected none in an engine for a CPU");
    sample.call_count = 0;
    expect_sample_refused(PLAN(0) "a field for device targets is not zero");
    /* A plan for the CPU has no library calls, and a change of the file cannot add one. */
    library_plans[0] = sample.plans[0];
    expect_sample_refused("section 'library plans': plan 0: calls no library");
    test_engine_launch(&sample, 0, OP_MATMUL)->attributes = LAUNCH_LIBRARY;
    expect_sample_refused("section 'plans': plan 0 (decode, 1 rows): launch 8: a field for device targets is not zero");
    sample.storage[TEST_ENGINE_LIBRARY_PLAN] = sample.storage[0];
    library_plans[0].launches = sample.storage[TEST_ENGINE_LIBRARY_PLAN].launches;
    test_engine_launch(&sample, 0, OP_MATMUL)->attributes = 0;
    expect_sample_refused(PLAN(8) "a field for device targets is not zero");
}

/* A reader that does not know these section types uses the plans and skips the rest. */
TEST(other_readers_pass_over_the_sections)
{
    for (int compress = 0; compress < 2; compress++) {
        size_t size;
        uint8_t *bytes = written(compress, &size);
        struct engine_section_entry *calls = test_engine_entry(bytes, size, SECTION_LIBRARY_CALLS);
        struct engine_section_entry *plans = test_engine_entry(bytes, size, SECTION_LIBRARY_PLANS);
        calls->type = 77;
        expect_refused_repaired(bytes, size, PLAN(3) "library call 0 of 0");
        plans->type = 78;
        engine_fix_checksums(bytes, size);
        open_bytes(bytes, size);
        test_engine_touch(&engine);
        assert_int_equal(engine.call_count, 0);
        assert_null(engine.library_plans);
        expect_content();
        engine_close(&engine);
        calls->type = SECTION_LIBRARY_CALLS;
        expect_refused_repaired(bytes, size, "section 'library plans': expected one");
        /* Calls that the writer must refuse. */
        plans->flags |= SECTION_FLAG_REQUIRED;
        expect_refused_repaired(bytes, size, "needs a newer runtime");
        free(bytes);
    }
}

TEST(no_section_appears_twice)
{
    expect_section(SECTION_LIBRARY_CALLS, "12345678", 8, "section 'library calls' of type 12 appears twice");
    expect_section(SECTION_LIBRARY_PLANS, "12345678", 8, "section 'library plans' of type 13 appears twice");
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
