/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/safetensors.h"

#include <inttypes.h>

#include "formats/base/test_support.h"

static struct status status;
static struct safetensors file;
static struct image {
    uint8_t *bytes;
    uint64_t size;
} image;

static int free_image(void **state)
{
    safetensors_free(&file);
    free(image.bytes);
    image.bytes = NULL;
    return 0;
}

/* A file: length of the header, header, data bytes counting up. The heap block has the exact size, so that a sanitizer
 * detects any access beyond it. */
static void make_image(const char *header, size_t header_bytes, size_t data_bytes)
{
    free_image(NULL);
    image = (struct image){malloc(8 + header_bytes + data_bytes), 8 + header_bytes + data_bytes};
    assert_non_null(image.bytes);
    for (int i = 0; i < 8; i++) image.bytes[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    for (size_t i = 0; i < header_bytes; i++) image.bytes[8 + i] = header[i] == '\'' ? '"' : (uint8_t)header[i];
    for (size_t i = 0; i < data_bytes; i++) image.bytes[8 + header_bytes + i] = (uint8_t)i;
}

static bool parse(const char *header, size_t header_bytes, size_t data_bytes)
{
    make_image(header, header_bytes, data_bytes);
    return safetensors_parse(&file, image.bytes, image.size, "m.safetensors", &status);
}

static void expect_refused(const char *header, size_t data_bytes, const char *words)
{
    test_expect_failure(parse(header, strlen(header), data_bytes), &status, STATUS_BAD_INPUT, words);
    test_expect_message(&status, "m.safetensors");
    assert_null(file.tensors);
}

TEST(test_good)
{
    static const char header[] = "{'__metadata__': {'format': 'pt', 'note': 'x'},"
                                 " 'b': {'dtype': 'BF16', 'shape': [2, 3], 'data_offsets': [4, 16]},"
                                 " 'a': {'dtype': 'F32', 'shape': [], 'data_offsets': [0, 4]},"
                                 " 'z': {'dtype': 'I64', 'shape': [5, 0], 'data_offsets': [16, 16]},"
                                 " 'c': {'dtype': 'U8', 'shape': [1,1,1,1,1,1,1,3], 'data_offsets': [16, 19]}}  \n";
    test_expect_success(parse(header, sizeof header - 1, 19), &status);
    assert_int_equal(file.tensor_count, 4);
    assert_string_equal(file.format, "pt");
    static const char *const names[] = {"a", "b", "c", "z"};
    for (size_t i = 0; i < 4; i++) assert_string_equal(file.tensors[i].name, names[i]);

    const struct tensor_view *b = safetensors_find(&file, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, DTYPE_BF16);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->bytes, 12);
    assert_int_equal(*(const uint8_t *)b->data, 4);
    assert_int_equal(safetensors_find(&file, "a")->rank, 0);
    assert_int_equal(safetensors_find(&file, "z")->bytes, 0);
    assert_int_equal(safetensors_find(&file, "c")->rank, 8);
    assert_null(safetensors_find(&file, "bb"));
    assert_null(safetensors_find(&file, "__metadata__"));
    safetensors_free(&file);
    assert_null(safetensors_find(&file, "b"));
}

TEST(test_every_dtype)
{
    for (int dtype = DTYPE_NONE + 1; dtype < DTYPE_COUNT; dtype++) {
        size_t bytes = 3 * dtype_bytes((enum dtype)dtype);
        const char *header =
            test_text("{'t':{'dtype':'%s','shape':[3],'data_offsets':[0,%zu]}}", dtype_name((enum dtype)dtype), bytes);
        test_expect_success(parse(header, strlen(header), bytes), &status);
        assert_int_equal(file.tensors[0].dtype, dtype);
        assert_int_equal(file.tensors[0].bytes, bytes);
    }
}

TEST(test_spaces)
{
    static const char *const headers[] = {"{}", "   {}", "{}     ", "  {} "};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        test_expect_success(parse(headers[i], strlen(headers[i]), 0), &status);
        assert_int_equal(file.tensor_count, 0);
        assert_null(file.format);
    }
}

TEST(test_header_length)
{
    uint8_t bytes[16] = {0};
    for (uint64_t size = 0; size < 8; size++)
        test_expect_failure(safetensors_parse(&file, size ? bytes : NULL, size, "m", &status), &status,
                            STATUS_BAD_INPUT, "at least 8 bytes");
    test_expect_failure(safetensors_parse(&file, bytes, 8, "m", &status), &status, STATUS_BAD_INPUT, "begin with '{'");
    bytes[0] = 9;
    test_expect_failure(safetensors_parse(&file, bytes, 16, "m", &status), &status, STATUS_BAD_INPUT,
                        "truncated|header has 9|8 after");
    uint64_t length = SAFETENSORS_MAX_HEADER_BYTES + 1;
    memcpy(bytes, &length, 8);
    test_expect_failure(safetensors_parse(&file, bytes, 16, "m", &status), &status, STATUS_BAD_INPUT,
                        "at most 100000000|found 100000001");
    memset(bytes, 0xff, 8);
    test_expect_failure(safetensors_parse(&file, bytes, 16, "m", &status), &status, STATUS_BAD_INPUT,
                        "found 18446744073709551615");
}

TEST(test_header_text)
{
    expect_refused("", 0, "begin with '{'");
    expect_refused("    ", 0, "begin with '{'");
    expect_refused("\n{}", 0, "begin with '{'");
    expect_refused("[]", 0, "begin with '{'");
    expect_refused("{'a': }", 0, "not valid JSON");
    expect_refused("{} {}", 0, "not valid JSON");
    expect_refused("{'a\xff': 1}", 0, "not valid JSON");
    expect_refused("{'t':{'dtype':'U8','shape':[1],'data_offsets':[0,1]},"
                   "'t':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}",
                   1, "duplicate");
    expect_refused("{'t':{'dtype':'U8','dtype':'I8','shape':[1],'data_offsets':[0,1]}}", 1, "duplicate");
    expect_refused("{'__metadata__': 3}", 0, "__metadata__|expected an object|integer");
    expect_refused("{'__metadata__': {'a': 1}}", 0, "__metadata__|'a'|expected a string|integer");
}

TEST(test_entries)
{
    static const struct {
        const char *entry;
        const char *words;
    } cases[] = {
        {"3", "expected an object|integer"},
        {"{'shape':[1],'data_offsets':[0,4]}", "'dtype'|found nothing"},
        {"{'dtype':7,'shape':[1],'data_offsets':[0,4]}", "'dtype'|a string|found 7"},
        {"{'dtype':'F64','shape':[1],'data_offsets':[0,8]}", "dtype|BF16|found 'F64'"},
        {"{'dtype':'BOOL','shape':[1],'data_offsets':[0,1]}", "dtype|found 'BOOL'"},
        {"{'dtype':'F32','data_offsets':[0,4]}", "shape|expected an array|missing"},
        {"{'dtype':'F32','shape':1,'data_offsets':[0,4]}", "shape|expected an array|integer"},
        {"{'dtype':'F32','shape':[-1],'data_offsets':[0,4]}", "shape[0]|0 or more|found -1"},
        {"{'dtype':'F32','shape':[1, 1.0],'data_offsets':[0,4]}", "shape[1]|integer|found 1"},
        {"{'dtype':'F32','shape':[1, '1'],'data_offsets':[0,4]}", "shape[1]|integer|\"1\""},
        {"{'dtype':'U8','shape':[1,1,1,1,1,1,1,1,4],'data_offsets':[0,4]}", "at most 8 dimensions|found 9"},
        {"{'dtype':'U8','shape':[4294967296,4294967296],'data_offsets':[0,4]}", "overflows"},
        {"{'dtype':'I64','shape':[4611686018427387904],'data_offsets':[0,4]}", "overflows"},
        {"{'dtype':'F32','shape':[1]}", "data_offsets|two integers|nothing"},
        {"{'dtype':'F32','shape':[1],'data_offsets':4}", "data_offsets|two integers"},
        {"{'dtype':'F32','shape':[1],'data_offsets':[4]}", "data_offsets|two integers"},
        {"{'dtype':'F32','shape':[1],'data_offsets':[0,4,4]}", "data_offsets|two integers"},
        {"{'dtype':'F32','shape':[1],'data_offsets':[0,4.0]}", "data_offsets|two integers"},
        {"{'dtype':'F32','shape':[1],'data_offsets':[-4,0]}", "data_offsets|two integers"},
        {"{'dtype':'F32','shape':[1],'data_offsets':[4,0]}", "begin <= end|[4, 0]"},
        {"{'dtype':'F32','shape':[2],'data_offsets':[0,8]}", "at most 4|truncated|found 8"},
        {"{'dtype':'F32','shape':[2],'data_offsets':[0,9223372036854775807]}", "truncated"},
        {"{'dtype':'F32','shape':[2],'data_offsets':[0,4]}", "need 8 bytes|give 4"},
        {"{'dtype':'F16','shape':[1],'data_offsets':[0,4]}", "need 2 bytes|give 4"},
        {"{'dtype':'F32','shape':[1],'data_offsets':[0,4],'strides':[1]}", "'strides'|not understood"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *header = test_text("{'some.tensor':%s}", cases[i].entry);
        expect_refused(header, 4, cases[i].words);
        expect_refused(header, 4, "some.tensor");
    }
}

#define ENTRY(name, begin, end, bytes) \
    "'" name "':{'dtype':'U8','shape':[" bytes "],'data_offsets':[" begin "," end "]}"

TEST(test_coverage)
{
    expect_refused("{" ENTRY("a", "0", "4", "4") "," ENTRY("b", "3", "7", "4") "}", 7, "'a' and 'b' overlap|at 3|at 4");
    expect_refused("{" ENTRY("b", "0", "8", "8") "," ENTRY("a", "2", "4", "2") "}", 8, "'b' and 'a' overlap");
    expect_refused("{" ENTRY("a", "0", "4", "4") "," ENTRY("b", "0", "4", "4") "}", 4, "'a' and 'b' overlap");
    expect_refused("{" ENTRY("a", "0", "4", "4") "," ENTRY("b", "6", "8", "2") "}", 8,
                   "gap of 2 bytes|'b'|at 4|found 6");
    expect_refused("{" ENTRY("a", "1", "4", "3") "}", 4, "gap of 1 bytes|'a'|at 0");
    expect_refused("{" ENTRY("a", "0", "4", "4") "}", 5, "1 trailing bytes|expected 4|found 5");
    expect_refused("{}", 3, "3 trailing bytes");
    /* An empty tensor must begin where its neighbours meet, not inside one. */
    expect_refused("{" ENTRY("a", "0", "4", "4") "," ENTRY("e", "2", "2", "0") "}", 4, "overlap");
}

/* Every prefix of a valid file is refused, and so is the file with one more byte. */
TEST(test_truncations)
{
    static const char header[] = "{" ENTRY("a", "0", "4", "4") "," ENTRY("b", "4", "8", "4") "}";
    make_image(header, sizeof header - 1, 8);
    for (uint64_t size = 0; size < image.size; size++) {
        uint8_t *part = malloc(size ? size : 1);
        assert_non_null(part);
        memcpy(part, image.bytes, size);
        test_expect_failure(safetensors_parse(&file, part, size, "m", &status), &status, STATUS_BAD_INPUT, "m: ");
        free(part);
    }
}

TEST(test_hostile_name)
{
    make_image("{'\\u001b[31m\\n': 1}", 20, 0);
    image.bytes[0] = 19;
    test_expect_failure(safetensors_parse(&file, image.bytes, 8 + 19, "m", &status), &status, STATUS_BAD_INPUT, "[31m");
    assert_null(strchr(status.message, '\x1b'));
}

/* As many tensors as a model of several hundred billion parameters has. */
TEST(test_many)
{
    enum { COUNT = 20000 };
    size_t capacity = COUNT * 96, used = 1;
    char *header = malloc(capacity);
    assert_non_null(header);
    header[0] = '{';
    for (int i = 0; i < COUNT; i++)
        used += (size_t)snprintf(header + used, capacity - used,
                                 "%s'layers.%d.w':{'dtype':'U8','shape':[1],'data_offsets':[%d,%d]}", i ? "," : "",
                                 (i * 7919) % COUNT, i, i + 1);
    header[used++] = '}';
    test_expect_success(parse(header, used, COUNT), &status);
    assert_int_equal(file.tensor_count, COUNT);
    for (int i = 0; i < COUNT; i += 997) {
        const char *name = test_text("layers.%d.w", (i * 7919) % COUNT);
        assert_non_null(safetensors_find(&file, name));
        assert_int_equal(*(const uint8_t *)safetensors_find(&file, name)->data, i & 0xff);
    }
    free(header);
}

TEST(test_write_header)
{
    struct file_output output;
    struct file_map map;
    char *folder = test_folder();
    const char *path = test_path(folder, "w.safetensors");
    static const struct tensor_view tensors[] = {
        {.name = "second \"quoted\"", .dtype = DTYPE_BF16, .rank = 2, .shape = {2, 3}, .bytes = 12},
        {.name = "first", .dtype = DTYPE_F32, .rank = 0, .bytes = 4},
        {.name = "empty", .dtype = DTYPE_F32, .rank = 1, .shape = {0}, .bytes = 0},
    };
    test_expect_success(file_output_open(&output, path, &status), &status);
    test_expect_success(safetensors_write_header(&output, tensors, 3, &status), &status);
    assert_int_equal(output.position % 8, 0);
    assert_true(file_output_write(&output, "0123456789ABwxyz", 16, &status));
    test_expect_success(file_output_commit(&output, &status), &status);
    test_expect_success(file_map_open(&map, path, &status), &status);
    test_expect_success(safetensors_parse(&file, map.data, map.size, path, &status), &status);
    assert_int_equal(file.tensor_count, 3);
    assert_string_equal(file.format, "pt");
    assert_memory_equal(safetensors_find(&file, "second \"quoted\"")->data, "0123456789AB", 12);
    assert_memory_equal(safetensors_find(&file, "first")->data, "wxyz", 4);
    assert_int_equal(safetensors_find(&file, "empty")->shape[0], 0);
    file_map_close(&map);
    test_folder_remove(folder);
}

TEST(test_write_refuses)
{
    struct file_output output;
    char *folder = test_folder();
    static const struct {
        struct tensor_view tensors[2];
        const char *words;
    } cases[] = {
        {{{.name = "a", .dtype = DTYPE_U8, .bytes = 1}, {.name = "a", .dtype = DTYPE_U8, .bytes = 1}}, "'a'|twice"},
        {{{.name = "__metadata__", .dtype = DTYPE_U8, .bytes = 1}}, "reserved"},
        {{{.name = "a", .dtype = DTYPE_U8, .rank = 1, .shape = {3}, .bytes = 4}}, "'a'|do not agree"},
        {{{.name = "a", .dtype = DTYPE_NONE}}, "do not agree"},
        {{{.name = "a", .dtype = DTYPE_U8, .rank = 9, .bytes = 1}}, "do not agree"},
        {{{.name = "a", .dtype = DTYPE_U8, .rank = 2, .shape = {UINT64_MAX, 2}, .bytes = 1}}, "do not agree"},
        {{{.name = "a\xff", .dtype = DTYPE_U8, .bytes = 1}}, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t count = cases[i].tensors[1].name ? 2 : 1;
        test_expect_success(file_output_open(&output, test_path(folder, "w"), &status), &status);
        test_expect_failure(safetensors_write_header(&output, cases[i].tensors, count, &status), &status,
                            STATUS_INTERNAL, cases[i].words);
        assert_int_equal(output.position, 0);
        file_output_abandon(&output);
    }
    test_folder_remove(folder);
}

int main(void) { return test_run_with(NULL, NULL, free_image, NULL); }
