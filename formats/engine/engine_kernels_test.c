/* SPDX-License-Identifier: Apache-2.0 */
/* Engines for a device: the kernels section, and the launches that refer to it. */

#include <zlib.h>

#define TEST_ENGINE_MAKE test_engine_make_device
#include "formats/engine/test_engine_frame.h"

/* ---- round trip -------------------------------------------------------------------------------------------------- */

/* Numbers of the sample's section, each at its offset. */
TEST(the_section_has_the_documented_form)
{
    static const struct {
        size_t offset, bytes;
        uint64_t value;
    } fields[] = {
        {0, 4, 3},   {4, 4, 22},                                                      /* kernels, bytes of names */
        {8, 4, 0},   {12, 4, 4},  {16, 4, 4}, {20, 4, 0}, {24, 8, 128}, {32, 8, 200}, /* rows */
        {40, 4, 5},  {44, 4, 4},  {48, 4, 8}, {52, 4, 0}, {56, 8, 384}, {64, 8, 64},  /* rows */
        {72, 4, 10}, {76, 4, 11}, {80, 4, 5}, {84, 4, 0}, {88, 8, 448}, {96, 8, 129}, /* matmul_head */
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        uint64_t found = 0;
        memcpy(&found, sample.kernels_section + fields[i].offset, fields[i].bytes);
        assert_int_equal(found, fields[i].value);
    }
    static const char names[24] = "rows\0rows\0matmul_head\0\0"; /* and zeros to 128 */
    assert_memory_equal(sample.kernels_section + 104, names, sizeof names);
}

TEST(round_trip_keeps_everything)
{
    for (int compress = 0; compress < 2; compress++) {
        struct status status = {0};
        struct engine engine;
        if (!test_engine_write(&sample, path, compress, &status)) fail_msg("%s", status.message);
        if (!engine_open(&engine, path, &status)) fail_msg("%s", status.message);
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
        assert_int_equal(engine.plan_count, TEST_ENGINE_PLANS);
        for (int i = 0; i < TEST_ENGINE_PLANS; i++) {
            const struct plan *found = &engine.plans[i], *plan = &sample.plans[i];
            assert_true(test_engine_same_plan(found, plan));
        }
        engine_close(&engine);
    }
}

/* engine_writer_kernels writes the same section as test_engine.c. */
TEST(the_writer_makes_the_same_section)
{
    struct status status = {0};
    size_t size, text_size = 0;
    char *text = NULL;
    struct engine_writer *writer = engine_writer_begin(path, &status);
    assert_true(manifest_format(&sample.manifest, &text, &text_size, &status));
    assert_true(engine_writer_section(writer, SECTION_MANIFEST, text, text_size, false, &status));
    assert_true(engine_writer_weights_begin(writer, 64, 1, &status));
    assert_true(engine_writer_weights_put(writer, 0, sample.weights, 64, &status));
    assert_true(engine_writer_weights_end(writer, &status));
    if (!engine_writer_kernels(writer, sample.kernels, TEST_ENGINE_KERNELS, &status)) fail_msg("%s", status.message);
    assert_false(engine_writer_kernels(writer, sample.kernels, TEST_ENGINE_KERNELS, &status)); /* twice */
    assert_int_equal(status.code, STATUS_INTERNAL);
    assert_true(engine_writer_commit(writer, &status));
    free(text);
    uint8_t *bytes = test_engine_read(path, &size), raw[TEST_ENGINE_KERNELS_BYTES];
    const struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_KERNELS);
    assert_non_null(entry);
    assert_int_equal(entry->flags, SECTION_FLAG_REQUIRED | SECTION_FLAG_ZLIB);
    assert_int_equal(entry->raw_bytes, sizeof raw);
    uLongf raw_bytes = sizeof raw;
    assert_int_equal(uncompress(raw, &raw_bytes, bytes + entry->offset, (uLong)entry->stored_bytes), Z_OK);
    assert_int_equal(raw_bytes, sizeof raw);
    assert_memory_equal(raw, sample.kernels_section, sizeof raw);
    free(bytes);
}

TEST(the_writer_bounds_the_kernels)
{
    struct status status = {0};
    struct engine_kernel kernels[2] = {sample.kernels[0], sample.kernels[1]};
    struct engine_writer *writer = engine_writer_begin(path, &status);
    assert_false(engine_writer_kernels(writer, kernels, 0, &status));
    assert_int_equal(status.code, STATUS_INTERNAL);
    assert_false(engine_writer_kernels(writer, kernels, ENGINE_MAX_KERNELS + 1, &status));
    assert_non_null(strstr(status.message, "65537 kernels, expected 1 to 65536"));
    kernels[1].cubin_bytes = UINT64_MAX - 100;
    assert_false(engine_writer_kernels(writer, kernels, 2, &status));
    assert_int_equal(status.code, STATUS_BAD_INPUT);
    assert_non_null(strstr(status.message, "the kernels are too large"));
    kernels[0].cubin_bytes = kernels[1].cubin_bytes = UINT64_C(1) << 63;
    assert_false(engine_writer_kernels(writer, kernels, 2, &status));
    assert_non_null(strstr(status.message, "the kernels are too large"));
    engine_writer_abandon(writer);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

/* One field of the sample is overwritten. Launches and operands are those of the first plan. */
enum place { IN_SECTION, IN_EMBED, IN_MATMUL, IN_MATMUL_OPERAND, IN_HEAD_MAP, IN_KV_OPERAND, IN_KV_MAP };
enum { HEAD_OPERAND = 2, KV_OPERAND = 5 };

struct damage {
    enum place place;
    size_t offset, bytes;
    uint64_t value;
    const char *expected;
};

static void *place_of(enum place place)
{
    struct plan_launch *matmul = test_engine_launch(&sample, 0, OP_MATMUL);
    struct plan_launch *attention = test_engine_launch(&sample, 0, OP_ROPE_ATTENTION);
    struct plan_operand *operands = sample.storage[0].operands;
    switch (place) {
    case IN_SECTION: return sample.kernels_section;
    case IN_EMBED: return test_engine_launch(&sample, 0, OP_EMBED);
    case IN_MATMUL: return matmul;
    case IN_MATMUL_OPERAND: return &operands[matmul->first_operand + HEAD_OPERAND];
    case IN_HEAD_MAP: return test_engine_map(&sample, 0, matmul, HEAD_OPERAND);
    case IN_KV_OPERAND: return &operands[attention->first_operand + KV_OPERAND];
    case IN_KV_MAP: return test_engine_map(&sample, 0, attention, KV_OPERAND);
    }
    return NULL;
}

static void apply(enum place place, size_t offset, size_t bytes, uint64_t value)
{
    memcpy((char *)place_of(place) + offset, &value, bytes);
}

#define FIELD(place, base, type, field, value) \
    place, (base) + offsetof(struct type, field), sizeof(((struct type *)0)->field), (uint64_t)(value)
#define SECTION_AT(offset, bytes, value, expected)                                   \
    {                                                                                \
        IN_SECTION, offset, bytes, (uint64_t)(value), "section 'kernels': " expected \
    }
#define SECTION(field, value, expected)                                                           \
    {                                                                                             \
        FIELD(IN_SECTION, 0, engine_kernels_header, field, value), "section 'kernels': " expected \
    }
#define ENTRY(index, field, value, expected)                                                                   \
    {                                                                                                          \
        FIELD(IN_SECTION, sizeof(struct engine_kernels_header) + (index) * sizeof(struct engine_kernel_entry), \
              engine_kernel_entry, field, value),                                                              \
            "section 'kernels': kernel " #index ": " expected                                                  \
    }
#define IN_PLAN(index) "section 'plans': plan 0 (decode, 1 rows): launch " #index ": "
#define EMBED(field, value, expected)                                      \
    {                                                                      \
        FIELD(IN_EMBED, 0, plan_launch, field, value), IN_PLAN(0) expected \
    }
#define MATMUL(field, value, expected)                                      \
    {                                                                       \
        FIELD(IN_MATMUL, 0, plan_launch, field, value), IN_PLAN(8) expected \
    }
#define HEAD_MAP(field, value, expected)                                                                    \
    {                                                                                                       \
        FIELD(IN_HEAD_MAP, 0, plan_tensor_map, field, value), IN_PLAN(8) "operand 2: tensor map: " expected \
    }
#define KV_MAP(field, value, expected)                                                                    \
    {                                                                                                     \
        FIELD(IN_KV_MAP, 0, plan_tensor_map, field, value), IN_PLAN(3) "operand 5: tensor map: " expected \
    }

static const struct damage damages[] = {
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
    SECTION_AT(105, 1, 0, "kernel 0: the name is not a text of 4 bytes"),
    SECTION_AT(108, 1, 'x', "kernel 0: the name is not a text of 4 bytes"),
    SECTION_AT(125, 1, 'x', "kernel 2: the name is not a text of 11 bytes"),
    ENTRY(0, operand_count, 0, "operands: expected 1 to 12, found 0"),
    ENTRY(1, operand_count, 13, "operands: expected 1 to 12, found 13"),
    ENTRY(2, operand_count, UINT32_MAX, "operands: expected 1 to 12, found 4294967295"),
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
    {FIELD(IN_SECTION, 8, engine_kernel_entry, bytes, 199), "section 'kernels': kernel 1: padding is not zero"},
    {FIELD(IN_SECTION, 8, engine_kernel_entry, bytes, 257), "section 'kernels': kernel 1: cubin: 64 bytes at 384, "
                                                            "expected at least 1 at 448"},
    {FIELD(IN_SECTION, 72, engine_kernel_entry, bytes, 64), "section 'kernels': expected 512 bytes for its kernels, "
                                                            "found 640"},
    {FIELD(IN_SECTION, 72, engine_kernel_entry, bytes, 128), "section 'kernels': expected 576 bytes for its kernels, "
                                                             "found 640"},
    SECTION_AT(126, 1, 1, "kernel 0: padding is not zero"),
    SECTION_AT(127, 1, 0x80, "kernel 0: padding is not zero"),
    SECTION_AT(328, 1, 1, "kernel 1: padding is not zero"),
    SECTION_AT(383, 1, 1, "kernel 1: padding is not zero"),
    SECTION_AT(577, 1, 1, "padding after the last kernel is not zero"),
    SECTION_AT(639, 1, 1, "padding after the last kernel is not zero"),
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
    {FIELD(IN_EMBED, 0, plan_launch, reserved, 1), "launch 0 (embed): a reserved field is not zero"},
    /* tensor maps */
    HEAD_MAP(dtype, 0, "dtype: expected F32, F16 or BF16, found 0"),
    HEAD_MAP(dtype, DTYPE_I32, "dtype: expected F32, F16 or BF16, found 8"), /* of 4 bytes, too */
    HEAD_MAP(reserved, 1, "a reserved field is not zero"),
    HEAD_MAP(dtype, DTYPE_I8, "dtype: expected F32, F16 or BF16"),
    HEAD_MAP(dtype, DTYPE_I64, "dtype: expected F32, F16 or BF16"),
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
    {FIELD(IN_MATMUL_OPERAND, 0, plan_operand, bytes, 1023),
     IN_PLAN(8) "operand 2: tensor map: 16 rows of 64 bytes leave the operand's 1023 bytes"},
    {FIELD(IN_MATMUL_OPERAND, 0, plan_operand, tensor_map, 2),
     IN_PLAN(8) "operand 2: tensor map: rows: expected at least 1, found 0"}, /* the map of the pool */
    {FIELD(IN_MATMUL_OPERAND, 0, plan_operand, tensor_map, 3), "launch 8 (matmul): operand 2: tensor map 2 of 2"},
    {FIELD(IN_MATMUL_OPERAND, 0, plan_operand, tensor_map, UINT32_MAX),
     "launch 8 (matmul): operand 2: tensor map 4294967294 of 2"},
    {FIELD(IN_MATMUL, 0, plan_launch, param_count, 65), "65 parameters, at most 64 are possible"},
};

TEST(every_damage_is_named)
{
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const struct damage *damage = &damages[i];
        assert_int_equal(make_sample(NULL), 0);
        apply(damage->place, damage->offset, damage->bytes, damage->value);
        expect_sample_refused(damage->expected);
    }
}

/* Rules that only two wrong fields break together. */
TEST(dimensions_are_bounded_together)
{
    struct plan_launch *embed = test_engine_launch(&sample, 0, OP_EMBED);
    embed->grid[0] = embed->cluster[0] = 17;
    expect_sample_refused("launch 0: cluster[0]: expected 1 to 16 and a divisor of grid 17, found 17");
    embed->grid[0] = embed->cluster[0] = 16;
    embed->cluster[1] = 2;
    expect_sample_refused("launch 0: cluster: 32 blocks, at most 16 are possible");
    for (int i = 0; i < 3; i++) embed->block[i] = 1024;
    expect_sample_refused("launch 0: block: 1073741824 threads, at most 1024 are possible");
    assert_int_equal(make_sample(NULL), 0);
    apply(FIELD(IN_HEAD_MAP, 0, plan_tensor_map, box_columns, 260));
    apply(FIELD(IN_HEAD_MAP, 0, plan_tensor_map, swizzle, 0));
    expect_sample_refused("operand 2: tensor map: box of 8 x 260 elements, swizzle 0");
}

/* The last kernel's name is shortened to nothing, consistently. */
TEST(a_name_is_not_empty)
{
    memset(sample.kernels_section + 114, 0, 12);
    apply(FIELD(IN_SECTION, 0, engine_kernels_header, name_bytes, 11));
    apply(FIELD(IN_SECTION, 72, engine_kernel_entry, name_bytes, 0));
    expect_sample_refused("section 'kernels': kernel 2: the name is not a text of 0 bytes");
}

/* Values at the bounds. */
TEST(edges_are_accepted)
{
    static const struct {
        enum place place;
        size_t offset, bytes;
        uint64_t value;
    } edits[][7] = {
        {{FIELD(IN_EMBED, 0, plan_launch, block[1], 32)}},
        {{FIELD(IN_EMBED, 0, plan_launch, block[0], 1)}, {FIELD(IN_EMBED, 0, plan_launch, block[1], 1024)}},
        {{FIELD(IN_EMBED, 0, plan_launch, grid[0], INT32_MAX)}, {FIELD(IN_EMBED, 0, plan_launch, cluster[0], 1)}},
        {{FIELD(IN_EMBED, 0, plan_launch, grid[1], 65535)}, {FIELD(IN_EMBED, 0, plan_launch, grid[2], 65535)}},
        {{FIELD(IN_EMBED, 0, plan_launch, grid[0], 16)}, {FIELD(IN_EMBED, 0, plan_launch, cluster[0], 16)}},
        {{FIELD(IN_EMBED, 0, plan_launch, shared_bytes, 1 << 20)}},
        {{FIELD(IN_EMBED, 0, plan_launch, attributes, LAUNCH_PROGRAMMATIC)}},
        /* An address instead of a map, which no operand refers to then. */
        {{FIELD(IN_MATMUL_OPERAND, 0, plan_operand, tensor_map, 0)}},
        /* 32 columns of 16 bits, box as wide as the swizzle. */
        {{FIELD(IN_HEAD_MAP, 0, plan_tensor_map, dtype, DTYPE_BF16)},
         {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, columns, 32)},
         {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, box_columns, 32)}},
        {{FIELD(IN_HEAD_MAP, 0, plan_tensor_map, dtype, DTYPE_F16)},
         {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, box_columns, 8)}},
        /* One row: no other row follows it at any pitch. */
        {{FIELD(IN_HEAD_MAP, 0, plan_tensor_map, rows, 1)}, {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, pitch, 1ll << 39)}},
        {{FIELD(IN_HEAD_MAP, 0, plan_tensor_map, rows, 1)},
         {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, columns, 256)},
         {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, pitch, 1024)},
         {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, box_columns, 256)},
         {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, box_rows, 256)},
         {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, swizzle, 0)}},
        {{FIELD(IN_HEAD_MAP, 0, plan_tensor_map, swizzle, 128)}},
        {{FIELD(IN_HEAD_MAP, 0, plan_tensor_map, rows, 13)}, {FIELD(IN_HEAD_MAP, 0, plan_tensor_map, pitch, 80)}},
        {{FIELD(IN_KV_MAP, 0, plan_tensor_map, pitch, 1ll << 39)}},
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        assert_int_equal(make_sample(NULL), 0);
        for (size_t edit = 0; edit < 7 && edits[i][edit].bytes; edit++)
            apply(edits[i][edit].place, edits[i][edit].offset, edits[i][edit].bytes, edits[i][edit].value);
        size_t size;
        struct status status;
        uint8_t *bytes = written(i % 2, &size);
        if (!accepts(bytes, size, &status)) fail_msg("case %zu: %s", i, status.message);
        free(bytes);
    }
}

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

/* Every bit of the section flipped, with all checksums right: only names (while they are text) and cubins may
 * change. */
TEST(every_bit_of_structure_counts)
{
    size_t size;
    uint8_t *bytes = written(false, &size);
    uint64_t section = test_engine_entry(bytes, size, SECTION_KERNELS)->offset;
    size_t taken = 0;
    for (size_t i = 0; i < TEST_ENGINE_KERNELS_BYTES; i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct status status;
            bytes[section + i] ^= (uint8_t)(1u << bit);
            engine_fix_checksums(bytes, size);
            bool accepted = accepts(bytes, size, &status);
            bool padding = takes_padding(bytes + section);
            taken += padding;
            if (accepted != (is_content(i, bytes[section + i]) || padding))
                fail_msg("bit %d of byte %zu: %s", bit, i, status.message);
            if (!accepted && !strstr(status.message, "section 'kernels': ") && !strstr(status.message, "has "))
                fail_msg("bit %d of byte %zu: %s", bit, i, status.message);
            bytes[section + i] ^= (uint8_t)(1u << bit);
        }
    }
    assert_int_equal(taken, 10); /* 5 bits of either size with room after it */
    free(bytes);
}

/* A plain engine with another kernels section, the last one; free() it. */
static uint8_t *with_section(const void *section, size_t section_bytes, size_t *size)
{
    size_t old_size;
    uint8_t *old = written(false, &old_size);
    uint64_t offset = test_engine_entry(old, old_size, SECTION_KERNELS)->offset;
    uint8_t *whole = calloc(1, offset + section_bytes + 1);
    memcpy(whole, old, offset);
    memcpy(whole + offset, section, section_bytes);
    *size = offset + section_bytes;
    struct engine_header header;
    memcpy(&header, whole, sizeof header);
    header.file_bytes = *size;
    memcpy(whole, &header, sizeof header);
    struct engine_section_entry *last = (void *)(whole + header.header_bytes - sizeof *last);
    assert_int_equal(last->type, SECTION_KERNELS);
    last->stored_bytes = last->raw_bytes = section_bytes;
    engine_fix_checksums(whole, *size);
    uint8_t *copy = test_engine_copy(whole, *size);
    free(whole);
    free(old);
    return copy;
}

/* A section that is too short, or too long with zeros. */
TEST(every_other_length_is_refused)
{
    uint8_t section[TEST_ENGINE_KERNELS_BYTES + 128] = {0};
    memcpy(section, sample.kernels_section, TEST_ENGINE_KERNELS_BYTES);
    for (size_t length = 1; length <= sizeof section; length++) {
        if (length == TEST_ENGINE_KERNELS_BYTES) continue;
        size_t size;
        uint8_t *bytes = with_section(section, length, &size);
        expect_refused(bytes, size,
                       length < sizeof(struct engine_kernels_header) ? "section 'kernels': too short for its header"
                                                                     : "section 'kernels': ");
        free(bytes);
    }
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
    struct status status;
    size_t section_bytes, size;
    uint8_t *section = many_kernels(ENGINE_MAX_KERNELS, &section_bytes);
    uint8_t *bytes = with_section(section, section_bytes, &size);
    if (!accepts(bytes, size, &status)) fail_msg("%s", status.message);
    free(bytes);
    free(section);
    section = many_kernels(ENGINE_MAX_KERNELS + 1, &section_bytes);
    bytes = with_section(section, section_bytes, &size);
    expect_refused(bytes, size, "section 'kernels': header: 65537 kernels and 131074 bytes of names in");
    free(bytes);
    free(section);
}

/* ---- target and section ------------------------------------------------------------------------------------------ */

TEST(the_section_goes_with_the_target)
{
    sample.kernel_count = 0; /* a section of size 0 is left out */
    expect_sample_refused("section 'manifest': target 'cuda': section 'kernels' is missing");
    struct status status = {0};
    assert_true(test_engine_make_device(&sample, &status));
    static struct test_engine processor;
    assert_true(test_engine_make(&processor, &status));
    sample.manifest = processor.manifest;
    expect_sample_refused(
        "section 'manifest': target 'cpu': section 'kernels' is present, but only device targets have "
        "one");
}

TEST(processors_have_no_device_fields)
{
    struct status status = {0};
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
    static const size_t fields[] = {
        offsetof(struct plan_launch, kernel),     offsetof(struct plan_launch, grid[0]),
        offsetof(struct plan_launch, grid[2]),    offsetof(struct plan_launch, block[0]),
        offsetof(struct plan_launch, block[1]),   offsetof(struct plan_launch, cluster[0]),
        offsetof(struct plan_launch, cluster[2]), offsetof(struct plan_launch, shared_bytes),
        offsetof(struct plan_launch, attributes),
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        assert_true(test_engine_make(&sample, &status));
        apply(IN_EMBED, fields[i], sizeof(uint32_t), 1);
        expect_sample_refused("launch 0: a field for device targets is not zero");
    }
}

/* Replaces `from` by `to`, which is as long. */
static void replace(uint8_t *bytes, size_t size, const char *from, const char *to)
{
    size_t length = strlen(from);
    assert_int_equal(strlen(to), length);
    uint8_t *at = memmem(bytes, size, from, length);
    assert_non_null(at);
    memcpy(at, to, length);
    engine_fix_checksums(bytes, size);
}

TEST(capability_goes_with_the_target)
{
#define TARGET "section 'manifest': manifest: target: "
    static const struct {
        const char *from, *to, *expected;
    } edits[] = {
        {"\"capability\":90,", "                ", TARGET "field 'capability': expected an integer"},
        {"\"capability\":90,", "\"capability\":0, ", TARGET "capability: expected 50 to 999, found 0"},
        {"\"capability\":90,", "\"capability\":49,", TARGET "capability: expected 50 to 999, found 49"},
        {"\"capability\":90,\"kind\":\"cuda\",\"name\":\"a GPU\"",
         "\"capability\":1000,\"kind\":\"cuda\",\"name\":\"GPU\"", TARGET "capability: expected 50 to 999, found 1000"},
        {"\"kind\":\"cuda\"", "\"kind\":\"cpu\" ", TARGET "field 'capability' is not understood"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        size_t size;
        uint8_t *bytes = written(false, &size);
        replace(bytes, size, edits[i].from, edits[i].to);
        expect_refused(bytes, size, edits[i].expected);
        free(bytes);
    }
}

/* A reader that does not know section kernels must refuse the file. Today's reader ignores the flag, which the writer
 * sets. */
TEST(the_section_need_not_be_marked_required)
{
    size_t size;
    struct status status;
    uint8_t *bytes = written(false, &size);
    struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_KERNELS);
    entry->flags = 0;
    engine_fix_checksums(bytes, size);
    if (!accepts(bytes, size, &status)) fail_msg("%s", status.message);
    entry->flags = SECTION_FLAG_CHUNKED;
    engine_fix_checksums(bytes, size);
    expect_refused(bytes, size, "section 'kernels': chunked checksum: expected no flag");
    free(bytes);

    bytes = written(true, &size);
    entry = test_engine_entry(bytes, size, SECTION_KERNELS);
    entry->raw_bytes = (UINT64_C(1) << 30) + 1;
    engine_fix_checksums(bytes, size);
    expect_refused(bytes, size, "section 'kernels': raw size: expected 1 to 1073741824, found 1073741825");
    entry->raw_bytes = TEST_ENGINE_KERNELS_BYTES + 64;
    engine_fix_checksums(bytes, size);
    expect_refused(bytes, size, "section 'kernels': the compressed data do not give the stated 704 bytes");
    free(bytes);
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
