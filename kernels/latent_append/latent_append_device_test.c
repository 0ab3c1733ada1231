/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/encoding/encoding.h"
#include "kernels/cpu/test_pages.h"
#include "kernels/cuda/test_launch.h"
#include "kernels/latent_append/latent_append.h"

struct shape {
    int64_t rows, valid, heads, head_dim, value_dim, page_tokens;
    enum dtype x_dtype;
    enum encoding_id kv_dtype;
    enum dtype norm_dtype;
    int64_t q_pitch, q_first, kv_pitch; /* 0: rows have no other columns */
};
enum { SLOTS = 3, CONTEXT = 1024, LAYERS = 3, LAYER = 1 };

static double relative_of(enum dtype dtype) { return dtype == DTYPE_F16 ? 5.5e-4 : 4.4e-3; }

static void check(const struct shape *shape)
{
    const size_t block = (size_t)(shape->page_tokens * (shape->head_dim * 2 + 4)) + 256;
    const size_t aligned = (block + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    const int64_t pages_per_slot = (CONTEXT + shape->page_tokens - 1) / shape->page_tokens;
    const size_t pages = SLOTS * (size_t)pages_per_slot, page_bytes = LAYERS * aligned, pool = pages * page_bytes;
    const int64_t params[LATENT_APPEND_PARAMS] = {
        [LATENT_APPEND_ROWS] = shape->rows,
        [LATENT_APPEND_HEADS] = shape->heads,
        [LATENT_APPEND_KV_HEADS] = 1,
        [LATENT_APPEND_HEAD_DIM] = shape->head_dim,
        [LATENT_APPEND_PAGE_TOKENS] = shape->page_tokens,
        [LATENT_APPEND_PAGES_PER_SLOT] = pages_per_slot,
        [LATENT_APPEND_PAGE_BYTES] = (int64_t)page_bytes,
        [LATENT_APPEND_SLOT_COUNT] = SLOTS,
        [LATENT_APPEND_KV_DTYPE] = shape->kv_dtype,
        [LATENT_APPEND_X_DTYPE] = shape->x_dtype,
        [LATENT_APPEND_VALUE_DIM] = shape->value_dim,
        [LATENT_APPEND_NORM_DTYPE] = shape->norm_dtype,
        [LATENT_APPEND_EPS_BITS] = test_float_bits(1e-6f),
        [LATENT_APPEND_Q_PITCH] = shape->q_pitch,
        [LATENT_APPEND_Q_FIRST] = shape->q_first,
        [LATENT_APPEND_KV_PITCH] = shape->kv_pitch,
    };
    static const int filled[] = {LATENT_APPEND_Q_LATENT, LATENT_APPEND_Q_ROPE, LATENT_APPEND_KV_ROW};
    struct test_random random = {(uint64_t)(shape->rows * 5 + shape->head_dim)};
    struct test_launch launch;
    test_launch_open(&launch, &device_latent_append, params, shape->valid);
    test_launch_resize(&launch, LATENT_APPEND_KV, pool, LAYER * aligned);
    for (size_t i = 0; i < sizeof filled / sizeof *filled; i++) test_launch_fill(&launch, filled[i], &random, -2, 2);
    test_launch_fill(&launch, LATENT_APPEND_TABLE, &random, -1, 1);
    test_launch_fill(&launch, LATENT_APPEND_NORM, &random, 0.5f, 1.5f);
    int32_t *slots = launch.host[LATENT_APPEND_SLOTS], *positions = launch.host[LATENT_APPEND_POSITIONS];
    int32_t *page_table = launch.host[LATENT_APPEND_PAGE_TABLE];
    for (size_t i = 0; i < pages; i++) page_table[i] = (int32_t)(pages - 1 - i);
    for (int64_t r = 0; r < shape->rows; r++) { /* every row at a place of its own; wild beyond the valid ones */
        slots[r] = r < shape->valid ? (int32_t)(r % SLOTS) : INT32_MAX;
        positions[r] = r < shape->valid ? (int32_t)(r / SLOTS * 3 + 1) % CONTEXT : INT32_MIN;
    }
    test_launch_run_twice(&launch);

    struct op_call call = test_launch_call(&launch);
    for (size_t i = 0; i < sizeof filled / sizeof *filled; i++)
        call.operands[filled[i]] = test_launch_decode(&launch, filled[i]);
    call.operands[LATENT_APPEND_Q] =
        test_take(&launch.memory, test_launch_count(&launch, LATENT_APPEND_Q) * sizeof(float));
    call.operands[LATENT_APPEND_KV] = (uint8_t *)launch.host[LATENT_APPEND_KV] + LAYER * aligned;
    latent_append_reference(&call);
    test_assert_close(test_launch_found(&launch, LATENT_APPEND_Q), call.operands[LATENT_APPEND_Q],
                      (size_t)(shape->valid * shape->heads * shape->head_dim), 4e-6, relative_of(shape->x_dtype), "q");
    test_launch_assert_rows_untouched(&launch, LATENT_APPEND_Q);
    const uint8_t *found = launch.found[LATENT_APPEND_KV], *expected = launch.host[LATENT_APPEND_KV];
    const struct pages all = pages_of_latent(call.operands[LATENT_APPEND_KV], page_table, params, shape->value_dim);
    if (encoding_is_plain(shape->kv_dtype))
        test_pages_assert_close(found, expected, pool, (enum dtype)shape->kv_dtype,
                                2 * relative_of((enum dtype)shape->kv_dtype));
    else
        test_pages_assert_coded_close(&all, params, slots, positions, shape->valid, LAYER * aligned, false, found,
                                      expected, pool);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    static const int64_t dims[][2] = {{576, 512}, {48, 32}, {20, 14}, {4, 2}, {OP_MAX_LATENT_DIM, 2}, {192, 64}};
    static const int64_t coded_dims[][2] = {{576, 512}, {48, 32}, {16, 14}, {320, 256}};
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    static const enum encoding_id encodings[] = {ENCODING_INT8_CHANNEL, ENCODING_E4M3_CHANNEL};
    for (int i = 0; i < 24; i++) {
        const bool is_coded = i % 2;
        const int64_t *dim = is_coded ? coded_dims[i / 2 % 4] : dims[i / 2 % 6];
        struct shape shape = {.rows = i % 5 == 0 ? 1 : 3 + 7 * i,
                              .valid = i % 5 == 0 ? 1 : 2 + 6 * i,
                              .heads = i % 7 ? 1 + i % 4 : 16,
                              .head_dim = dim[0],
                              .value_dim = dim[1],
                              .page_tokens = i % 3 ? 64 : 16,
                              .x_dtype = dtypes[i / 3 % 2],
                              .kv_dtype = is_coded ? encodings[i / 2 % 2] : (enum encoding_id)dtypes[i / 2 % 2],
                              .norm_dtype = dtypes[i % 3]};
        if (i % 3) {
            shape.q_first = 3 * i;
            shape.q_pitch = shape.q_first + shape.heads * (shape.head_dim - shape.value_dim) + i % 5;
        }
        if (i % 4) shape.kv_pitch = shape.head_dim + 2 * i;
        check(&shape);
    }
    const struct shape deepseek = {300, 290, 128, 576, 512, 64, DTYPE_BF16, ENCODING_BF16, DTYPE_BF16, 24576, 16384, 0};
    check(&deepseek);
    const struct shape lite = {3, 3, 16, 576, 512, 64, DTYPE_BF16, ENCODING_BF16, DTYPE_BF16, 3648, 2048, 3648};
    check(&lite);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[LATENT_APPEND_PARAMS] =
        {4, 0, 8, 1, 48, 64, 16, 64 * 48 * 2, 3, DTYPE_BF16, DTYPE_BF16, 32, DTYPE_F32, test_float_bits(1e-6f)};
    test_hostile_launches(&device_latent_append, params);
    test_launch_refuses(&device_latent_append, params,
                        TEST_CHANGES({LATENT_APPEND_VALUE_DIM, 31}, {LATENT_APPEND_VALUE_DIM, 48},
                                     {LATENT_APPEND_HEAD_DIM, 47}, {LATENT_APPEND_KV_HEADS, 2},
                                     {LATENT_APPEND_PAGE_BYTES, 64 * 48 * 2 - 16},
                                     {LATENT_APPEND_PAGE_BYTES, 64 * 48 * 2 + 8}, {LATENT_APPEND_KV_DTYPE, DTYPE_F32},
                                     {LATENT_APPEND_KV_DTYPE, ENCODING_INT4_G32}, {LATENT_APPEND_X_DTYPE, DTYPE_F32},
                                     {LATENT_APPEND_KV_PITCH, 49}, {LATENT_APPEND_Q_FIRST, 8}));
}

int main(void) { return test_run(); }
