/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_append/rope_append_device.h"

#include "kernels/embed/test_hostile.h"
#include "kernels/rope_append/rope_append.h"

struct shape {
    int64_t rows, valid, heads, kv_heads, head_dim, page_tokens;
    enum dtype x_dtype, kv_dtype, norm_dtype;
    bool has_norm;
    int64_t rotary_dim, norm_scope;
};
enum { SLOTS = 3, CONTEXT = 1024, LAYERS = 3, LAYER = 1 };

static double relative_of(enum dtype dtype) { return dtype == DTYPE_F16 ? 5.5e-4 : 4.4e-3; }

static void check(const struct shape *shape)
{
    struct test_random random = {(uint64_t)(shape->rows * 5 + shape->head_dim)};
    const size_t rows = (size_t)shape->rows, head_dim = (size_t)shape->head_dim;
    const size_t width = (size_t)(shape->heads + 2 * shape->kv_heads) * head_dim;
    const size_t q_cells = rows * (size_t)shape->heads * head_dim;
    const size_t q_valid = (size_t)(shape->valid * shape->heads) * head_dim;
    const size_t block = (size_t)(2 * shape->kv_heads * shape->page_tokens) * head_dim * 2;
    const size_t aligned = (block + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    const int64_t pages_per_slot = (CONTEXT + shape->page_tokens - 1) / shape->page_tokens;
    const size_t pages = SLOTS * (size_t)pages_per_slot, page_bytes = LAYERS * aligned, pool = pages * page_bytes;

    float *qkv = malloc(rows * width * 4), *table = malloc(rows * head_dim * 4);
    float *q_expected = malloc(q_cells * 4), *q_found = malloc(q_cells * 4);
    uint16_t *qkv_half = malloc(rows * width * 2), *q_half = malloc(q_cells * 2), *q_again = malloc(q_cells * 2);
    int32_t *slots = malloc(rows * 4), *positions = malloc(rows * 4), *page_table = malloc(pages * 4);
    int32_t counts[2] = {(int32_t)shape->valid, INT32_MAX};
    uint8_t *kv_expected = malloc(pool), *kv_found = malloc(pool), *kv_again = malloc(pool);
    const size_t rotary_dim = shape->rotary_dim ? (size_t)shape->rotary_dim : head_dim;
    const size_t norm_q_cells = head_dim * (shape->norm_scope ? (size_t)shape->heads : 1);
    const size_t norm_k_cells = head_dim * (shape->norm_scope ? (size_t)shape->kv_heads : 1);
    float *norm_q = malloc(norm_q_cells * 4), *norm_k = malloc(norm_k_cells * 4);
    test_fill(&random, qkv, rows * width, DTYPE_F32, -2, 2);
    test_encode(qkv, qkv_half, rows * width, shape->x_dtype);
    test_decode(qkv_half, qkv, rows * width, shape->x_dtype);
    test_fill(&random, table, rows * rotary_dim, DTYPE_F32, -1, 1);
    test_fill(&random, norm_q, norm_q_cells, shape->norm_dtype, 0.5f, 1.5f);
    test_fill(&random, norm_k, norm_k_cells, shape->norm_dtype, 0.5f, 1.5f);
    for (size_t i = 0; i < pages; i++) page_table[i] = (int32_t)(pages - 1 - i);
    for (int64_t r = 0; r < shape->rows; r++) { /* every row at a place of its own; wild beyond the valid ones */
        slots[r] = r < shape->valid ? (int32_t)(r % SLOTS) : INT32_MAX;
        positions[r] = r < shape->valid ? (int32_t)(r / SLOTS * 3 + 1) % CONTEXT : INT32_MIN;
    }
    memset(kv_expected, 0xff, pool); /* as the poison */
    const int64_t params[ROPE_APPEND_DEVICE_PARAMS] = {shape->rows,
                                                       0,
                                                       shape->heads,
                                                       shape->kv_heads,
                                                       shape->head_dim,
                                                       shape->page_tokens,
                                                       pages_per_slot,
                                                       (int64_t)page_bytes,
                                                       SLOTS,
                                                       shape->kv_dtype,
                                                       shape->x_dtype,
                                                       shape->has_norm,
                                                       shape->norm_dtype,
                                                       test_float_bits(1e-6f),
                                                       shape->rotary_dim,
                                                       shape->norm_scope};
    const int64_t reference_params[ROPE_APPEND_PARAMS] = {
        [ROPE_APPEND_ROWS] = shape->rows,
        [ROPE_APPEND_HEADS] = shape->heads,
        [ROPE_APPEND_KV_HEADS] = shape->kv_heads,
        [ROPE_APPEND_HEAD_DIM] = shape->head_dim,
        [ROPE_APPEND_PAGE_TOKENS] = shape->page_tokens,
        [ROPE_APPEND_PAGES_PER_SLOT] = pages_per_slot,
        [ROPE_APPEND_PAGE_BYTES] = (int64_t)page_bytes,
        [ROPE_APPEND_SLOT_COUNT] = SLOTS,
        [ROPE_APPEND_KV_DTYPE] = shape->kv_dtype,
        [ROPE_APPEND_HAS_NORM] = shape->has_norm,
        [ROPE_APPEND_NORM_DTYPE] = shape->norm_dtype,
        [ROPE_APPEND_EPS_BITS] = test_float_bits(1e-6f),
        [ROPE_APPEND_ROTARY_DIM] = shape->rotary_dim,
        [ROPE_APPEND_NORM_SCOPE] = shape->norm_scope,
    };
    rope_append_reference(&(struct op_call){reference_params,
                                            {counts, qkv, table, slots, positions, page_table,
                                             kv_expected + LAYER * aligned, q_expected, norm_q, norm_k}});

    const size_t norm_bytes = dtype_bytes(shape->norm_dtype);
    struct test_device_buffer buffers[ROPE_APPEND_DEVICE_OPERANDS_NORM] = {test_upload(counts, sizeof counts),
                                                                           test_upload(qkv_half, rows * width * 2),
                                                                           test_upload(table, rows * rotary_dim * 4),
                                                                           test_upload(slots, rows * 4),
                                                                           test_upload(positions, rows * 4),
                                                                           test_upload(page_table, pages * 4),
                                                                           test_device_buffer_new(pool),
                                                                           test_device_buffer_new(q_cells * 2),
                                                                           test_upload(norm_q,
                                                                                       norm_q_cells * norm_bytes),
                                                                           test_upload(norm_k,
                                                                                       norm_k_cells * norm_bytes)};
    cu_deviceptr operands[ROPE_APPEND_DEVICE_OPERANDS_NORM];
    for (int i = 0; i < ROPE_APPEND_DEVICE_OPERANDS_NORM; i++) operands[i] = buffers[i].data;
    operands[ROPE_APPEND_DEVICE_KV] += LAYER * aligned;
    const int count = shape->has_norm ? ROPE_APPEND_DEVICE_OPERANDS_NORM : ROPE_APPEND_DEVICE_OPERANDS;
    struct test_kernel kernel;
    test_kernel_open(&kernel, &device_rope_append, params);
    assert_int_equal(kernel.local_bytes, 0);
    for (int run = 0; run < 2; run++) {
        test_device_buffer_poison(&buffers[ROPE_APPEND_DEVICE_KV]);
        test_device_buffer_poison(&buffers[ROPE_APPEND_DEVICE_Q]);
        memset(kv_found, 0xff, pool);
        test_kernel_run(&kernel, operands, count, 0);
        test_device_read(&buffers[ROPE_APPEND_DEVICE_KV], run ? kv_again : kv_found, pool);
        test_device_read(&buffers[ROPE_APPEND_DEVICE_Q], run ? q_again : q_half, q_cells * 2);
        if (!run) memcpy(kv_again, kv_found, pool);
        if (run) test_device_read(&buffers[ROPE_APPEND_DEVICE_KV], kv_found, pool);
    }
    test_assert_same_bits(q_half, q_again, q_valid * 2, "q, second run");
    test_assert_same_bits(kv_found, kv_again, pool, "kv, second run");
    test_decode(q_half, q_found, q_valid, shape->x_dtype);
    test_assert_close(q_found, q_expected, q_valid, 4e-6, relative_of(shape->x_dtype), "q");
    for (size_t i = 0; i < pool / 2; i++) { /* what the reference left alone stays poison */
        if (memcmp(kv_found + 2 * i, kv_expected + 2 * i, 2) == 0) continue;
        assert_false(test_is_poison(kv_found + 2 * i, 2));
        assert_false(test_is_poison(kv_expected + 2 * i, 2));
        float a = op_element(kv_found, (int64_t)i, shape->kv_dtype);
        float b = op_element(kv_expected, (int64_t)i, shape->kv_dtype);
        test_assert_close(&a, &b, 1, 4e-6, 2 * relative_of(shape->kv_dtype), "kv");
    }
    test_kernel_close(&kernel);
    for (int i = 0; i < ROPE_APPEND_DEVICE_OPERANDS_NORM; i++) {
        test_device_assert_intact(&buffers[i], "rope_append");
        test_device_buffer_free(&buffers[i]);
    }
    free(qkv), free(table), free(q_expected), free(q_found), free(qkv_half), free(q_half), free(q_again), free(slots);
    free(positions), free(page_table), free(kv_expected), free(kv_found), free(kv_again);
    free(norm_q), free(norm_k);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    static const int64_t head_dims[] = {2, 8, 20, 64, 80, 96, 128, 254, 256};
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    for (int i = 0; i < 18; i++) {
        const struct shape shape = {.rows = i % 5 == 0 ? 1 : 3 + 7 * i,
                                    .valid = i % 5 == 0 ? 1 : 2 + 6 * i,
                                    .heads = 2 * (1 + i % 4),
                                    .kv_heads = 1 + i % 4,
                                    .head_dim = head_dims[i % 9],
                                    .page_tokens = i % 3 ? 64 : 16,
                                    .x_dtype = dtypes[i / 3 % 2],
                                    .kv_dtype = dtypes[i % 2],
                                    .norm_dtype = dtypes[i / 2 % 3],
                                    .has_norm = (i + i / 9) % 2};
        check(&shape);
    }
    const struct shape llama = {700, 650, 32, 8, 128, 64, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false, 0, 0};
    check(&llama);
    const struct shape qwen = {300, 300, 32, 8, 128, 64, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, true, 0, 0};
    check(&qwen);
}

TEST(rotates_a_part_and_normalises_the_width)
{
    TEST_NEEDS_DEVICE();
    static const int64_t dims[][2] = {{24, 12}, {24, 16}, {128, 96}, {32, 24}, {6, 4}, {254, 2}, {128, 0}, {20, 6}};
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    for (int i = 0; i < 24; i++) {
        const struct shape shape = {.rows = i % 5 == 0 ? 1 : 3 + 7 * i,
                                    .valid = i % 5 == 0 ? 1 : 2 + 6 * i,
                                    .heads = 3 * (1 + i % 3),
                                    .kv_heads = 1 + i % 3,
                                    .head_dim = dims[i % 8][0],
                                    .page_tokens = 16,
                                    .x_dtype = dtypes[i / 3 % 2],
                                    .kv_dtype = dtypes[i % 2],
                                    .norm_dtype = dtypes[i / 2 % 3],
                                    .has_norm = i / 8 != 0,
                                    .rotary_dim = dims[i % 8][1],
                                    .norm_scope = i / 8 == 2};
        check(&shape);
    }
    const struct shape olmo = {300, 290, 32, 32, 128, 64, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, true, 0, 1};
    check(&olmo);
    const struct shape phi = {300, 300, 24, 8, 128, 64, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false, 96, 0};
    check(&phi);
}

TEST(times)
{
    TEST_NEEDS_DEVICE();
    if (!getenv("BENCH")) skip();
    enum { COPIES = 4, ROWS = 2048, HEADS = 32, KV_HEADS = 8, DIM = 128, TOKENS = 64, PAGES = ROWS / TOKENS };
    const size_t q_bytes = (size_t)ROWS * HEADS * DIM * 2, kv_bytes = (size_t)ROWS * KV_HEADS * DIM * 2;
    const int64_t page_bytes = 2 * KV_HEADS * TOKENS * DIM * 2;
    int32_t counts[2] = {ROWS, 0}, slots[ROWS] = {0}, positions[ROWS], page_table[PAGES];
    for (int r = 0; r < ROWS; r++) positions[r] = r;
    for (int p = 0; p < PAGES; p++) page_table[p] = p;
    uint16_t *values = malloc(q_bytes + 2 * kv_bytes);
    struct test_random random = {6};
    test_fill(&random, values, (q_bytes + 2 * kv_bytes) / 2, DTYPE_BF16, -1, 1);
    struct test_device_buffer shared[] = {test_upload(counts, sizeof counts),
                                          test_upload(values, (size_t)ROWS * DIM * 4), test_upload(slots, sizeof slots),
                                          test_upload(positions, sizeof positions),
                                          test_upload(page_table, sizeof page_table)};
    struct test_device_buffer in[COPIES], kv[COPIES], q[COPIES];
    for (int norm = 0; norm < 2; norm++) {
        const int operand_count = norm ? ROPE_APPEND_DEVICE_OPERANDS_NORM : ROPE_APPEND_DEVICE_OPERANDS;
        cu_deviceptr operands[COPIES * ROPE_APPEND_DEVICE_OPERANDS_NORM];
        for (int i = 0; i < COPIES; i++) {
            in[i] = test_upload(values, q_bytes + 2 * kv_bytes);
            kv[i] = test_device_buffer_new(2 * kv_bytes), q[i] = test_device_buffer_new(q_bytes);
            const cu_deviceptr set[] = {shared[0].data, in[i].data, shared[1].data, shared[2].data, shared[3].data,
                                        shared[4].data, kv[i].data, q[i].data,      in[0].data,     in[0].data};
            memcpy(operands + i * operand_count, set, (size_t)operand_count * sizeof *set);
        }
        const int64_t params[ROPE_APPEND_DEVICE_PARAMS] =
            {ROWS,       0, HEADS,      KV_HEADS,   DIM,  TOKENS,     PAGES,
             page_bytes, 1, DTYPE_BF16, DTYPE_BF16, norm, DTYPE_BF16, test_float_bits(1e-6f)};
        struct test_kernel kernel;
        test_kernel_open(&kernel, &device_rope_append, params);
        double us = test_kernel_time(&kernel, operands, operand_count, COPIES, 0);
        uint64_t bytes, flops;
        device_rope_append.cost(params, 0, &bytes, &flops);
        print_message("rope_append %d rows norm %d: %.2f us, %.0f GB/s\n", ROWS, norm, us, (double)bytes / us * 1e-3);
        test_kernel_close(&kernel);
        for (int i = 0; i < COPIES; i++)
            test_device_buffer_free(&in[i]), test_device_buffer_free(&kv[i]), test_device_buffer_free(&q[i]);
    }
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) test_device_buffer_free(&shared[i]);
    free(values);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ROPE_APPEND_DEVICE_PARAMS] =
        {4, 0, 8, 2, 64, 64, 16, 4 * 2 * 64 * 64, 3, DTYPE_BF16, DTYPE_BF16, 1, DTYPE_F32, test_float_bits(1e-6f)};
    test_hostile_launches(&device_rope_append, params);
    test_launch_refuses(&device_rope_append, params, ROPE_APPEND_DEVICE_HEADS, 7);
    test_launch_refuses(&device_rope_append, params, ROPE_APPEND_DEVICE_HEAD_DIM, 65);
    test_launch_refuses(&device_rope_append, params, ROPE_APPEND_DEVICE_PAGE_BYTES, 4 * 2 * 64 * 64 - 16);
    test_launch_refuses(&device_rope_append, params, ROPE_APPEND_DEVICE_PAGE_BYTES, 4 * 2 * 64 * 64 + 8);
    test_launch_refuses(&device_rope_append, params, ROPE_APPEND_DEVICE_KV_DTYPE, DTYPE_F32);
    test_launch_refuses(&device_rope_append, params, ROPE_APPEND_DEVICE_ROTARY_DIM, 31);
    test_launch_refuses(&device_rope_append, params, ROPE_APPEND_DEVICE_ROTARY_DIM, 66);
    test_launch_refuses(&device_rope_append, params, ROPE_APPEND_DEVICE_NORM_SCOPE, 2);
}

int main(void) { return test_run(); }
