/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/npy.h"

#include "formats/base/test_folder.h"

static struct status status;

TEST(test_file)
{
    struct npy_writer writer;
    struct file_map map;
    const char *path = in_folder("x.npy");
    const float rows[2][3] = {{1.0f, -2.5f, 3.0f}, {4.0f, 5.0f, 6.0f}};
    test_expect_success(npy_open(&writer, path, 3, &status), &status);
    for (int i = 0; i < 2; i++) test_expect_success(npy_row(&writer, rows[i], &status), &status);
    assert_int_equal(writer.rows, 2);
    test_expect_success(npy_close(&writer, &status), &status);

    /* The format (NEP 1): magic, version 1.0, header length; the header is a multiple of 64 bytes and ends in a
     * newline. */
    static const char expected[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    test_expect_success(file_map_open(&map, path, &status), &status);
    assert_int_equal(map.size, 128 + sizeof rows);
    assert_memory_equal(map.data, "\x93NUMPY\x01\x00\x76\x00", 10);
    assert_memory_equal(map.data + 10, expected, sizeof expected - 1);
    for (size_t i = 10 + sizeof expected - 1; i < 127; i++) assert_int_equal(map.data[i], ' ');
    assert_int_equal(map.data[127], '\n');
    assert_memory_equal(map.data + 128, rows, sizeof rows);
    file_map_close(&map);
}

TEST(test_no_rows)
{
    struct npy_writer writer;
    struct file_map map;
    test_expect_success(npy_open(&writer, in_folder("x.npy"), UINT64_MAX / 4, &status), &status);
    test_expect_success(npy_close(&writer, &status), &status);
    test_expect_success(file_map_open(&map, in_folder("x.npy"), &status), &status);
    assert_int_equal(map.size, 128);
    assert_non_null(memmem(map.data, 128, "(0, 4611686018427387903)", 24));
    assert_int_equal(map.data[127], '\n');
    file_map_close(&map);
}

TEST(test_failures)
{
    struct npy_writer writer;
    test_expect_failure(npy_open(&writer, in_folder("a/x.npy"), 3, &status), &status, STATUS_NOT_FOUND, "x.npy");
    npy_abandon(&writer);
    test_expect_failure(npy_open(&writer, in_folder("x.npy"), 0, &status), &status, STATUS_INTERNAL, "0 columns");
    npy_abandon(&writer);
    test_expect_failure(npy_open(&writer, in_folder("x.npy"), UINT64_MAX, &status), &status, STATUS_INTERNAL,
                        "columns");
    test_expect_success(npy_open(&writer, in_folder("x.npy"), 1, &status), &status);
    npy_abandon(&writer);
    assert_int_equal(test_count_entries(folder), 0);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
