/* SPDX-License-Identifier: Apache-2.0 */
/* Engines for a device: the kernels section, and the launches that refer to it. */

#define TEST_ENGINE_MAKE test_engine_make_device
#include "formats/engine/test_engine_frame.h"

/* ---- round trip -------------------------------------------------------------------------------------------------- */

/* Numbers of the sample's section, each at its offset. */
TEST(the_section_has_the_documented_form)
{
    static const struct number fields[] = {
        {0, 4, 3},   {4, 4, 22},                                                      /* kernels, bytes of names */
        {8, 4, 0},   {12, 4, 4},  {16, 4, 4}, {20, 4, 0}, {24, 8, 128}, {32, 8, 200}, /* rows */
        {40, 4, 5},  {44, 4, 4},  {48, 4, 8}, {52, 4, 0}, {56, 8, 384}, {64, 8, 64},  /* rows */
        {72, 4, 10}, {76, 4, 11}, {80, 4, 5}, {84, 4, 0}, {88, 8, 448}, {96, 8, 129}, /* matmul_head */
    };
    EXPECT_NUMBERS(sample.kernels_section, fields);
    static const char names[24] = "rows\0rows\0matmul_head\0\0"; /* and zeros to 128 */
    assert_memory_equal(sample.kernels_section + 104, names, sizeof names);
}

TEST(round_trip_keeps_everything)
{
    for (int compress = 0; compress < 2; compress++) {
        open_sample(compress);
        assert_int_equal(engine.manifest.target, TARGET_CUDA);
        assert_int_equal(engine.manifest.target_capability, 90);
        assert_string_equal(engine.manifest.target_name, "a GPU");
        assert_int_equal(engine.kernel_count, TEST_ENGINE_KERNELS);
        for (size_t i = 0; i < engine.kernel_count; i++) {
            const struct engine_kernel *found = &engine.kernels[i], *kernel = &sample.kernels[i];
            assert_string_equal(found->entry, kernel->entry);
            assert_int_equal(found->operand_count, kernel->operand_count);
            assert_int_equal(found->cubin_bytes, kernel->cubin_bytes);
            assert_memory_equal(found->cubin, kernel->cubin, kernel->cubin_bytes);
            assert_int_equal((uintptr_t)found->cubin % 16, 0);
        }
        expect_content();
        engine_close(&engine);
    }
}

static bool write_kernels(struct engine_writer *writer)
{
    return engine_writer_kernels(writer, sample.kernels, TEST_ENGINE_KERNELS, &status);
}

/* As test_engine_device.c does. */
TEST(the_writer_makes_the_same_section)
{
    expect_compressed_section(SECTION_KERNELS, SECTION_FLAG_REQUIRED, sample.kernels_section, TEST_ENGINE_KERNELS_BYTES,
                              write_kernels);
}

TEST(the_writer_bounds_the_kernels)
{
    struct engine_kernel kernels[2] = {sample.kernels[0], sample.kernels[1]};
    struct engine_writer *writer = engine_writer_begin(path, &status);
    test_expect_failure(engine_writer_kernels(writer, kernels, 0, &status), &status, STATUS_INTERNAL, "");
    test_expect_failure(engine_writer_kernels(writer, kernels, ENGINE_MAX_KERNELS + 1, &status), &status,
                        STATUS_INTERNAL, "65537 kernels, expected 1 to 65536");
    kernels[1].cubin_bytes = UINT64_MAX - 100;
    test_expect_failure(engine_writer_kernels(writer, kernels, 2, &status), &status, STATUS_BAD_INPUT,
                        "the kernels are too large");
    kernels[0].cubin_bytes = kernels[1].cubin_bytes = UINT64_C(1) << 63;
    test_expect_failure(engine_writer_kernels(writer, kernels, 2, &status), &status, STATUS_BAD_INPUT,
                        "the kernels are too large");
    engine_writer_abandon(writer);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

/* Launches and operands are those of the first plan. */
enum { IN_KERNELS = IN_SAMPLE, IN_EMBED, IN_MATMUL, IN_MATMUL_OPERAND, IN_HEAD_MAP, IN_KV_MAP };
enum { HEAD_OPERAND = 2, KV_OPERAND = 5 };

static void *part(int number)
{
    struct plan_launch *matmul = test_engine_launch(&sample, 0, OP_MATMUL);
    switch (IN_SAMPLE + number) {
    case IN_KERNELS: return sample.kernels_section;
    case IN_EMBED: return test_engine_launch(&sample, 0, OP_EMBED);
    case IN_MATMUL: return matmul;
    case IN_MATMUL_OPERAND: return &sample.storage[0].operands[matmul->first_operand + HEAD_OPERAND];
    case IN_HEAD_MAP: return test_engine_map(&sample, 0, matmul, HEAD_OPERAND);
    default: return test_engine_map(&sample, 0, test_engine_launch(&sample, 0, OP_ROPE_ATTENTION), KV_OPERAND);
    }
}

#define KERNELS "section 'kernels': "
#define SECTION_AT(offset, value, expected)            \
    {                                                  \
        IN_KERNELS, offset, 1, value, KERNELS expected \
    }
#define SECTION(field, value, expected) FIELD(IN_KERNELS, 0, engine_kernels_header, field, value, KERNELS expected)
#define KERNEL(index, field, value, expected)                                                              \
    FIELD(IN_KERNELS, sizeof(struct engine_kernels_header) + (index) * sizeof(struct engine_kernel_entry), \
          engine_kernel_entry, field, value, expected)
#define ENTRY(index, field, value, expected) KERNEL(index, field, value, KERNELS "kernel " #index ": " expected)
#define TABLE(field, value, expected)        FIELD(IN_ENTRY + SECTION_KERNELS, 0, engine_section_entry, field, value, expected)
#define PLAN(index)                          "section 'plans': plan 0 (decode, 1 rows): launch " #index ": "
#define EMBED(field, value, expected)        FIELD(IN_EMBED, 0, plan_launch, field, value, PLAN(0) expected)
#define MATMUL(field, value, expected)       FIELD(IN_MATMUL, 0, plan_launch, field, value, PLAN(8) expected)
#define IN_MAP(map, field, value, expected)  FIELD(map, 0, plan_tensor_map, field, value, expected)
#define HEAD_MAP(field, value, expected)     IN_MAP(IN_HEAD_MAP, field, value, PLAN(8) "operand 2: tensor map: " expected)
#define EMBED_OK(field, value)               FIELD(IN_EMBED, 0, plan_launch, field, value, NULL)
#define EMBED_WITH(field, value)             FIELD(IN_EMBED, 0, plan_launch, field, value, TOGETHER)
#define HEAD_MAP_OK(field, value)            IN_MAP(IN_HEAD_MAP, field, value, NULL)
#define HEAD_MAP_WITH(field, value)          IN_MAP(IN_HEAD_MAP, field, value, TOGETHER)
#define KV_MAP(field, value, expected)       IN_MAP(IN_KV_MAP, field, value, PLAN(3) "operand 5: tensor map: " expected)
#define OPERAND(field, value, expected)      FIELD(IN_MATMUL_OPERAND, 0, plan_operand, field, value, expected)

static const struct edit edits[] = {
    SECTION(kernel_count, 0, "header: 0 kernels and 22 bytes of names in 640 bytes"),
    SECTION(kernel_count, 2, "kernel 0: the name is not a text of 4 bytes"),
    SECTION(kernel_count, 4, "kernel 0: the name is not a text of 4 bytes"),
    SECTION(kernel_count, 65537, "header: 65537 kernels"),
    SECTION(kernel_count, UINT32_MAX, "header: 4294967295 kernels"),
    SECTION(name_bytes, 0, "kernel 0: the name is not a text of 4 bytes"),
    SECTION(name_bytes, 21, "kernel 2: the name is not a text of 11 bytes"),
    SECTION(name_bytes, 23, "names: expected 22 bytes, found 23"),
    SECTION(name_bytes, UINT32_MAX, "header: 3 kernels and 4294967295 bytes of names in 640 bytes"),
    ENTRY(0, name_offset, 1, "name offset: expected 0, found 1"),
    ENTRY(1, name_offset, 0, "name offset: expected 5, found 0"), /* entries must not share a name */
    ENTRY(2, name_offset, UINT32_MAX, "name offset: expected 10, found 4294967295"),
    ENTRY(0, name_bytes, 0, "the name is not a text of 0 bytes"),
    ENTRY(0, name_bytes, 3, "the name is not a text of 3 bytes"),
    ENTRY(0, name_bytes, 9, "the name is not a text of 9 bytes"), /* both names: a NUL inside */
    ENTRY(2, name_bytes, 12, "the name is not a text of 12 bytes"),
    ENTRY(2, name_bytes, UINT32_MAX, "the name is not a text of 4294967295 bytes"),
    SECTION_AT(105, 0, "kernel 0: the name is not a text of 4 bytes"),
    SECTION_AT(108, 'x', "kernel 0: the name is not a text of 4 bytes"),
    SECTION_AT(125, 'x', "kernel 2: the name is not a text of 11 bytes"),
    ENTRY(0, operand_count, 0, "operands: expected 1 to 16, found 0"),
    ENTRY(1, operand_count, 17, "operands: expected 1 to 16, found 17"),
    ENTRY(2, operand_count, UINT32_MAX, "operands: expected 1 to 16, found 4294967295"),
    ENTRY(1, reserved, 1, "a reserved field is not zero"),
    ENTRY(0, offset, 0, "cubin: 200 bytes at 0, expected at least 1 at 128 inside 640"),
    ENTRY(0, offset, 192, "cubin: 200 bytes at 192, expected at least 1 at 128"),
    ENTRY(1, offset, 128, "cubin: 64 bytes at 128, expected at least 1 at 384"), /* nor data */
    ENTRY(2, offset, UINT64_MAX, "cubin: 129 bytes at 18446744073709551615, expected at least 1 at 448"),
    ENTRY(0, bytes, 0, "cubin: 0 bytes at 128"),
    ENTRY(2, bytes, 0, "cubin: 0 bytes at 448"),
    ENTRY(2, bytes, 193, "cubin: 193 bytes at 448, expected at least 1 at 448 inside 640"),
    ENTRY(2, bytes, UINT64_MAX, "cubin: 18446744073709551615 bytes at 448"),
    ENTRY(2, bytes, UINT64_MAX - 447, "cubin: 18446744073709551168 bytes at 448"), /* to 0 */
    /* A size that is wrong within the padding shows as padding that is not zero, or as an unexpected offset of the next
     * entry. */
    KERNEL(0, bytes, 199, "section 'kernels': kernel 1: padding is not zero"),
    KERNEL(0, bytes, 257, "section 'kernels': kernel 1: cubin: 64 bytes at 384, expected at least 1 at 448"),
    KERNEL(2, bytes, 64, "section 'kernels': expected 512 bytes for its kernels, found 640"),
    KERNEL(2, bytes, 128, "section 'kernels': expected 576 bytes for its kernels, found 640"),
    SECTION_AT(126, 1, "kernel 0: padding is not zero"),
    SECTION_AT(127, 0x80, "kernel 0: padding is not zero"),
    SECTION_AT(328, 1, "kernel 1: padding is not zero"),
    SECTION_AT(383, 1, "kernel 1: padding is not zero"),
    SECTION_AT(577, 1, "padding after the last kernel is not zero"),
    SECTION_AT(639, 1, "padding after the last kernel is not zero"),
    /* launches */
    EMBED(kernel, 1, "operands: kernel 'rows' has 8, found 4"),
    EMBED(kernel, 3, "kernel 3 of 3"),
    EMBED(kernel, UINT32_MAX, "kernel 4294967295 of 3"),
    MATMUL(kernel, 0, "operands: kernel 'rows' has 4, found 5"),
    MATMUL(operand_count, 4, "operands: kernel 'matmul_head' has 5, found 4"),
    EMBED(grid[0], 0, "grid[0]: expected 1 to 2147483647, found 0"),
    EMBED(grid[0], 0x80000000, "grid[0]: expected 1 to 2147483647, found 2147483648"),
    EMBED(grid[1], 0, "grid[1]: expected 1 to 65535, found 0"),
    EMBED(grid[1], 65536, "grid[1]: expected 1 to 65535, found 65536"),
    EMBED(grid[2], UINT32_MAX, "grid[2]: expected 1 to 65535, found 4294967295"),
    EMBED(block[0], 0, "block[0]: expected 1 to 1024, found 0"),
    EMBED(block[0], 1025, "block[0]: expected 1 to 1024, found 1025"),
    EMBED(block[1], 33, "block: 1056 threads, at most 1024 are possible"),
    EMBED(block[2], 9, "block: 1152 threads, at most 1024 are possible"),
    EMBED(block[2], UINT32_MAX, "block[2]: expected 1 to 1024"),
    EMBED(cluster[0], 0, "cluster[0]: expected 1 to 16 and a divisor of grid 4, found 0"),
    EMBED(cluster[0], 3, "cluster[0]: expected 1 to 16 and a divisor of grid 4, found 3"),
    EMBED(cluster[0], 8, "cluster[0]: expected 1 to 16 and a divisor of grid 4, found 8"),
    EMBED(cluster[2], 2, "cluster[2]: expected 1 to 16 and a divisor of grid 1, found 2"),
    EMBED(grid[0], 5, "cluster[0]: expected 1 to 16 and a divisor of grid 5, found 2"),
    EMBED(shared_bytes, (1 << 20) + 1, "shared memory: 1048577 bytes, at most 1048576 are possible"),
    EMBED(attributes, 8, "unknown attributes 0x8"),
    EMBED(attributes, LAUNCH_LIBRARY, "library call 0 of 0"),
    EMBED(attributes, 0x80000001, "unknown attributes 0x80000001"),
    FIELD(IN_EMBED, 0, plan_launch, reserved, 1, "launch 0 (embed): a reserved field is not zero"),
    /* tensor maps */
    HEAD_MAP(dtype, 0, "dtype: expected F32, F16 or BF16, found 0"),
    HEAD_MAP(dtype, DTYPE_I32, "dtype: expected F32, F16 or BF16, found 8"), /* of 4 bytes, too */
    HEAD_MAP(reserved, 1, "a reserved field is not zero"),
    HEAD_MAP(dtype, DTYPE_I16, "dtype: expected F32, F16 or BF16"),
    HEAD_MAP(dtype, DTYPE_COUNT, "dtype: expected F32, F16 or BF16"),
    HEAD_MAP(dtype, -1, "dtype: expected F32, F16 or BF16, found -1"),
    HEAD_MAP(dtype, INT64_MIN + DTYPE_F32, "dtype: expected F32, F16 or BF16, found -9223372036854775807"),
    HEAD_MAP(dtype, (1ll << 32) + DTYPE_F32, "dtype: expected F32, F16 or BF16, found 4294967297"),
    HEAD_MAP(columns, 0, "16 x 0 elements, 64 bytes a row"),
    HEAD_MAP(columns, -1, "16 x -1 elements, 64 bytes a row"),
    HEAD_MAP(columns, 17, "16 x 17 elements, 64 bytes a row"), /* a row is longer than the pitch */
    HEAD_MAP(columns, INT64_MAX, "16 x 9223372036854775807 elements"),
    HEAD_MAP(columns, 1ll << 62, "16 x 4611686018427387904 elements"), /* 0 bytes, modulo 2^64 */
    HEAD_MAP(rows, 0, "rows: expected at least 1, found 0"),
    HEAD_MAP(rows, -1, "-1 x 16 elements, 64 bytes a row"),
    HEAD_MAP(rows, 17, "17 rows of 64 bytes leave the operand's 1024 bytes"),
    HEAD_MAP(rows, INT32_MAX, "2147483647 rows of 64 bytes leave the operand's 1024 bytes"),
    HEAD_MAP(rows, INT64_MAX, "9223372036854775807 x 16 elements"),
    HEAD_MAP(pitch, 0, "16 x 16 elements, 0 bytes a row"),
    HEAD_MAP(pitch, 48, "16 x 16 elements, 48 bytes a row"),
    HEAD_MAP(pitch, 72, "16 x 16 elements, 72 bytes a row"),
    HEAD_MAP(pitch, 80, "16 rows of 80 bytes leave the operand's 1024 bytes"),
    HEAD_MAP(pitch, -64, "16 x 16 elements, -64 bytes a row"),
    HEAD_MAP(pitch, 1ll << 39, "16 rows of 549755813888 bytes leave the operand's 1024 bytes"),
    HEAD_MAP(pitch, (1ll << 39) + 16, "16 x 16 elements, 549755813904 bytes a row"),
    HEAD_MAP(pitch, INT64_MAX - 15, "16 x 16 elements, 9223372036854775792 bytes a row"),
    HEAD_MAP(box_columns, 0, "box of 8 x 0 elements, swizzle 64"),
    HEAD_MAP(box_columns, -4, "box of 8 x -4 elements"),
    HEAD_MAP(box_columns, 257, "box of 8 x 257 elements"),
    HEAD_MAP(box_columns, 3, "box of 8 x 3 elements"),               /* 12 bytes */
    HEAD_MAP(box_columns, 20, "box of 8 x 20 elements, swizzle 64"), /* 80 bytes */
    HEAD_MAP(box_rows, 0, "box of 0 x 16 elements"),
    HEAD_MAP(box_rows, 257, "box of 257 x 16 elements"),
    HEAD_MAP(box_rows, INT64_MIN, "box of -9223372036854775808 x 16 elements"),
    HEAD_MAP(swizzle, 32, "box of 8 x 16 elements, swizzle 32"),
    HEAD_MAP(swizzle, 96, "box of 8 x 16 elements, swizzle 96"),
    HEAD_MAP(swizzle, 256, "box of 8 x 16 elements, swizzle 256"),
    HEAD_MAP(swizzle, -128, "box of 8 x 16 elements, swizzle -128"),
    KV_MAP(rows, 1, "rows: expected 0 in the page pool, whose size the loader picks, found 1"),
    KV_MAP(columns, 9, "0 x 9 elements, 32 bytes a row"),
    KV_MAP(box_rows, 0, "box of 0 x 8 elements"),
    OPERAND(bytes, 1023, PLAN(8) "operand 2: tensor map: 16 rows of 64 bytes leave the operand's 1023 bytes"),
    OPERAND(tensor_map, 2,
            PLAN(8) "operand 2: tensor map: rows: expected at least 1, found 0"), /* the map of the pool */
    OPERAND(tensor_map, 3, "launch 8 (matmul): operand 2: tensor map 2 of 2"),
    OPERAND(tensor_map, UINT32_MAX, "launch 8 (matmul): operand 2: tensor map 4294967294 of 2"),
    FIELD(IN_MATMUL, 0, plan_launch, param_count, 65, "65 parameters, at most 64 are possible"),
    /* The section's entry. A reader that does not know section kernels must refuse the file. Today's reader ignores the
     * flag, which the writer sets. */
    TABLE(flags, 0, NULL),
    TABLE(flags, SECTION_FLAG_CHUNKED, KERNELS "chunked checksum: expected no flag"),
    TABLE(raw_bytes, (UINT64_C(1) << 30) + 1, KERNELS "raw size: expected 1 to 1073741824, found 1073741825"),
    /* Rules that only several wrong fields break together. */
    EMBED_WITH(grid[0], 17),
    EMBED(cluster[0], 17, "cluster[0]: expected 1 to 16 and a divisor of grid 17, found 17"),
    EMBED_WITH(grid[0], 16),
    EMBED_WITH(cluster[0], 16),
    EMBED(cluster[1], 2, "cluster: 32 blocks, at most 16 are possible"),
    EMBED_WITH(block[0], 1024),
    EMBED_WITH(block[1], 1024),
    EMBED(block[2], 1024, "block: 1073741824 threads, at most 1024 are possible"),
    HEAD_MAP_WITH(swizzle, 0),
    HEAD_MAP(box_columns, 260, "box of 8 x 260 elements, swizzle 0"),
    /* The last kernel's name is shortened to nothing, consistently. */
    {IN_KERNELS, 114, 8, 0, TOGETHER},
    {IN_KERNELS, 118, 8, 0, TOGETHER},
    FIELD(IN_KERNELS, 0, engine_kernels_header, name_bytes, 11, TOGETHER),
    ENTRY(2, name_bytes, 0, "the name is not a text of 0 bytes"),
    /* Values at the bounds. */
    EMBED_OK(block[1], 32),
    EMBED_WITH(block[0], 1),
    EMBED_OK(block[1], 1024),
    EMBED_WITH(grid[0], INT32_MAX),
    EMBED_OK(cluster[0], 1),
    EMBED_WITH(grid[1], 65535),
    EMBED_OK(grid[2], 65535),
    EMBED_WITH(grid[0], 16),
    EMBED_OK(cluster[0], 16),
    EMBED_OK(shared_bytes, 1 << 20),
    EMBED_OK(attributes, LAUNCH_PROGRAMMATIC),
    /* An address instead of a map, which no operand refers to then. */
    OPERAND(tensor_map, 0, NULL),
    /* 32 columns of 16 bits, box as wide as the swizzle. */
    HEAD_MAP_WITH(dtype, DTYPE_BF16),
    HEAD_MAP_WITH(columns, 32),
    HEAD_MAP_OK(box_columns, 32),
    HEAD_MAP_WITH(dtype, DTYPE_F16),
    HEAD_MAP_OK(box_columns, 8),
    /* One row: no other row follows it at any pitch. */
    HEAD_MAP_WITH(rows, 1),
    HEAD_MAP_OK(pitch, 1ll << 39),
    HEAD_MAP_WITH(rows, 1),
    HEAD_MAP_WITH(columns, 256),
    HEAD_MAP_WITH(pitch, 1024),
    HEAD_MAP_WITH(box_columns, 256),
    HEAD_MAP_WITH(box_rows, 256),
    HEAD_MAP_OK(swizzle, 0),
    HEAD_MAP_OK(swizzle, 128),
    HEAD_MAP_WITH(rows, 13),
    HEAD_MAP_OK(pitch, 80),
    IN_MAP(IN_KV_MAP, pitch, 1ll << 39, NULL),
};

TEST(every_damage_is_named) { EXPECT_EDITS(edits, part); }

/* Whether the byte may have this value: in a name, which is text, or in a cubin, where any value is valid. */
static bool is_content(size_t position, uint8_t value)
{
    static const char names[] = "rows\0rows\0matmul_head";
    bool content = position >= 104 && position < 104 + sizeof names && names[position - 104] != '\0' && value >= 0x20 &&
                   value < 0x7f;
    for (int i = 0; i < TEST_ENGINE_KERNELS; i++) {
        size_t cubin_at = (size_t)((const uint8_t *)sample.kernels[i].cubin - sample.kernels_section);
        content |= position >= cubin_at && position < cubin_at + sample.kernels[i].cubin_bytes;
    }
    return content;
}

/* Whether the only difference is that a cubin includes some of the zeros after it. */
static bool takes_padding(const uint8_t *section)
{
    for (size_t i = 0; i < TEST_ENGINE_KERNELS; i++) {
        struct engine_kernel_entry entry;
        memcpy(&entry, section + sizeof(struct engine_kernels_header) + i * sizeof entry, sizeof entry);
        uint64_t bytes = sample.kernels[i].cubin_bytes, padded = (bytes + 63) / 64 * 64;
        if (entry.bytes > bytes && entry.bytes <= padded) return true;
    }
    return false;
}

static size_t with_padding; /* sections accepted with a cubin that includes zeros after it */

/* Only names (while they are text) and cubins may change. */
static bool may_be(const uint8_t *section, size_t position)
{
    const bool padding = takes_padding(section);
    with_padding += padding;
    return padding || is_content(position, section[position]);
}

TEST(every_bit_of_structure_counts)
{
    with_padding = 0;
    expect_every_bit_counts(SECTION_KERNELS, may_be, "has ");
    assert_int_equal(with_padding, 10); /* 5 bits of either size with room after it */
}

TEST(every_other_length_is_refused)
{
    sample.kernel_count = 0; /* a section of size 0 is left out */
    expect_one_length(SECTION_KERNELS, sample.kernels_section, TEST_ENGINE_KERNELS_BYTES,
                      sizeof(struct engine_kernels_header));
}

/* Kernels of one byte under the name "k"; the first ones with the operands that the sample's launches have. */
static uint8_t *many_kernels(size_t count, size_t *section_bytes)
{
    struct engine_kernels_header header = {.kernel_count = (uint32_t)count, .name_bytes = (uint32_t)(2 * count)};
    size_t names_at = sizeof header + count * sizeof(struct engine_kernel_entry);
    size_t cubins_at = (names_at + 2 * count + ENGINE_CUBIN_ALIGNMENT - 1) / ENGINE_CUBIN_ALIGNMENT;
    *section_bytes = (cubins_at + count) * ENGINE_CUBIN_ALIGNMENT;
    uint8_t *section = calloc(1, *section_bytes);
    assert_non_null(section);
    memcpy(section, &header, sizeof header);
    for (size_t i = 0; i < count; i++) {
        const struct engine_kernel_entry entry = {
            .name_offset = (uint32_t)(2 * i),
            .name_bytes = 1,
            .operand_count = i < TEST_ENGINE_KERNELS ? sample.kernels[i].operand_count : PLAN_MAX_OPERANDS,
            .offset = (cubins_at + i) * ENGINE_CUBIN_ALIGNMENT,
            .bytes = 1,
        };
        memcpy(section + sizeof header + i * sizeof entry, &entry, sizeof entry);
        section[names_at + 2 * i] = 'k';
    }
    return section;
}

TEST(there_are_at_most_65536_kernels)
{
    sample.kernel_count = 0;
    for (size_t more = 0; more < 2; more++) {
        size_t section_bytes;
        uint8_t *section = many_kernels(ENGINE_MAX_KERNELS + more, &section_bytes);
        expect_section(SECTION_KERNELS, section, section_bytes,
                       more ? KERNELS "header: 65537 kernels and 131074 bytes of names in" : NULL);
        free(section);
    }
}

/* ---- target and section ------------------------------------------------------------------------------------------ */

TEST(the_section_goes_with_the_target)
{
    sample.kernel_count = 0; /* a section of size 0 is left out */
    expect_sample_refused("section 'manifest': target 'cuda': section 'kernels' is missing");
    assert_true(test_engine_make_device(&sample, &status));
    static struct test_engine processor;
    assert_true(test_engine_make(&processor, &status));
    sample.manifest = processor.manifest;
    expect_sample_refused(
        "section 'manifest': target 'cpu': section 'kernels' is present, but only device targets have one");
}

TEST(processors_have_no_device_fields)
{
    /* The device's sections under the target CPU: the first launch is refused. */
    sample.kernel_count = 0;
    sample.manifest.target = TARGET_CPU;
    sample.manifest.target_capability = 0;
    expect_sample_refused("launch 0: a field for device targets is not zero");
    assert_true(test_engine_make(&sample, &status));
    struct plan_launch *matmul = test_engine_launch(&sample, 0, OP_MATMUL);
    sample.storage[0].operands[matmul->first_operand + HEAD_OPERAND].tensor_map = 1;
    sample.plans[0].header.tensor_map_count = 1;
    expect_sample_refused("launch 8: operand 2: a tensor map, which only device targets have");
}

TEST(a_wrong_raw_size_is_refused)
{
    size_t size;
    uint8_t *bytes = written(true, &size);
    test_engine_entry(bytes, size, SECTION_KERNELS)->raw_bytes = TEST_ENGINE_KERNELS_BYTES + 64;
    expect_refused_repaired(bytes, size, "section 'kernels': the compressed data do not give the stated 704 bytes");
    free(bytes);
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
