#include "kernels/embed/embed_device.h"
#include "kernels/embed/test_hostile.h"

static float value_of(int64_t token, int64_t k) { return (float)((token * 31 + k * 7) % 1999) * 0.013f - 9.0f; }

static void check(int64_t rows, int64_t valid, int64_t hidden, int64_t pitch, int64_t vocab, enum dtype dtype)
{
    struct test_random random = {(uint64_t)(rows * 77 + hidden)};
    const size_t cells = (size_t)(vocab * pitch), element = dtype_bytes(dtype), outs = (size_t)(rows * hidden);
    float *table = malloc(cells * 4), *rounded = malloc(cells * 4), *out = malloc(outs * 4);
    void *encoded = malloc(cells * element);
    int32_t *tokens = malloc((size_t)rows * 4), counts[2] = {INT32_MAX, (int32_t)valid};
    for (size_t i = 0; i < cells; i++) table[i] = value_of((int64_t)i / pitch, (int64_t)i % pitch);
    test_encode(table, encoded, cells, dtype);
    test_decode(encoded, rounded, cells, dtype);
    for (int64_t r = 0; r < rows; r++)
        tokens[r] = r < valid ? (int32_t)test_random_range(&random, 0, vocab - 1) : INT32_MIN + (int32_t)r;
    tokens[0] = (int32_t)vocab - 1;
    struct test_device_buffer buffers[EMBED_DEVICE_OPERANDS] = {test_upload(counts, sizeof counts),
                                                                test_upload(tokens, (size_t)rows * 4),
                                                                test_upload(encoded, cells * element),
                                                                test_device_buffer_new(outs * 4)};
    cu_deviceptr operands[EMBED_DEVICE_OPERANDS];
    for (int i = 0; i < EMBED_DEVICE_OPERANDS; i++) operands[i] = buffers[i].data;
    const int64_t params[EMBED_DEVICE_PARAMS] = {rows, 1, hidden, pitch, vocab, dtype};
    struct test_kernel kernel;
    test_kernel_open(&kernel, &device_embed, params);
    assert_int_equal(kernel.local_bytes, 0);
    test_kernel_run(&kernel, operands, EMBED_DEVICE_OPERANDS, 0);
    test_device_read(&buffers[EMBED_DEVICE_OUT], out, outs * 4);
    for (int64_t r = 0; r < valid; r++)
        for (int64_t k = 0; k < hidden; k++)
            if (out[r * hidden + k] != rounded[tokens[r] * pitch + k])
                fail_msg("rows %d hidden %d %s: row %d column %d", (int)rows, (int)hidden, dtype_name(dtype), (int)r,
                         (int)k);
    test_kernel_close(&kernel);
    for (int i = 0; i < EMBED_DEVICE_OPERANDS; i++) {
        test_device_assert_intact(&buffers[i], "embed");
        test_device_buffer_free(&buffers[i]);
    }
    free(table), free(rounded), free(out), free(encoded), free(tokens);
}

static void gathers(void **state)
{
    (void)state;
    TEST_NEEDS_DEVICE();
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int d = 0; d < 3; d++) {
        check(1, 1, 2048, 2048, 320, dtypes[d]);
        check(16, 11, 4096, 4096, 100, dtypes[d]);
        check(5, 4, 24, 32, 7, dtypes[d]);
        check(7, 7, 33, 35, 17, dtypes[d]);
    }
    check(300, 257, 2056, 2056, 50, DTYPE_BF16);
    check(3, 2, 1, 1, 1, DTYPE_F16);
}

static void hostile_params_are_refused(void **state)
{
    (void)state;
    const int64_t params[EMBED_DEVICE_PARAMS] = {4, 0, 64, 64, 320, DTYPE_BF16};
    test_hostile_launches(&device_embed, params);
    test_launch_refuses(&device_embed, params, EMBED_DEVICE_ROWS, 0);
    test_launch_refuses(&device_embed, params, EMBED_DEVICE_PITCH, 63);
    test_launch_refuses(&device_embed, params, EMBED_DEVICE_VOCAB, 0);
    test_launch_refuses(&device_embed, params, EMBED_DEVICE_DTYPE, DTYPE_I8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gathers), cmocka_unit_test(hostile_params_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
