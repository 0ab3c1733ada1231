/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_rows/select_rows_device.h"

#include "kernels/embed/test_hostile.h"
#include "kernels/select_rows/select_rows.h"

static void check(int64_t rows, int64_t valid, int64_t width, int64_t in_rows)
{
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    const size_t cells = (size_t)(rows * width), in_cells = (size_t)(in_rows * width);
    float *x = malloc(in_cells * 4), *found = malloc(cells * 4), *expected = malloc(cells * 4);
    int32_t *index = malloc((size_t)rows * 4), counts[2] = {INT32_MAX, (int32_t)valid};
    test_fill(&random, x, in_cells, DTYPE_F32, -3, 3);
    for (int64_t r = 0; r < rows; r++)
        index[r] = r < valid ? (int32_t)test_random_range(&random, -1, in_rows) : INT32_MAX; /* both ends are outside */
    struct test_device_buffer buffers[SELECT_ROWS_OPERANDS] = {test_upload(counts, sizeof counts),
                                                               test_upload(x, in_cells * 4),
                                                               test_upload(index, (size_t)rows * 4),
                                                               test_device_buffer_new(cells * 4)};
    cu_deviceptr operands[SELECT_ROWS_OPERANDS];
    for (int i = 0; i < SELECT_ROWS_OPERANDS; i++) operands[i] = buffers[i].data;
    const int64_t params[SELECT_ROWS_PARAMS] = {rows, 1, width, in_rows, DTYPE_F32};
    struct test_kernel kernel;
    test_kernel_open(&kernel, &device_select_rows, params);
    assert_int_equal(kernel.local_bytes, 0);
    test_kernel_run(&kernel, operands, SELECT_ROWS_OPERANDS, 0);
    test_device_read(&buffers[SELECT_ROWS_OUT], found, cells * 4);
    op_select_rows.reference(&(struct op_call){params, {counts, x, index, expected}});
    test_assert_same_bits(found, expected, (size_t)(valid * width) * 4, "select_rows");
    test_kernel_close(&kernel);
    for (int i = 0; i < SELECT_ROWS_OPERANDS; i++) {
        test_device_assert_intact(&buffers[i], "select_rows");
        test_device_buffer_free(&buffers[i]);
    }
    free(x), free(found), free(expected), free(index);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 4096, 512);
    check(16, 9, 2048, 16);
    check(7, 7, 33, 3);
    check(3, 3, 1, 5);
    check(64, 50, 5000, 100);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SELECT_ROWS_PARAMS] = {4, 1, 64, 8, DTYPE_F32};
    test_hostile_launches(&device_select_rows, params);
    test_launch_refuses(&device_select_rows, params, SELECT_ROWS_WIDTH, 0);
    test_launch_refuses(&device_select_rows, params, SELECT_ROWS_IN_ROWS, 0);
}

int main(void) { return test_run(); }
