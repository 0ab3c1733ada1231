/* SPDX-License-Identifier: Apache-2.0 */

#include "formats/encoding/encoding.h"
#include "kernels/cuda/test_launch.h"
#include "kernels/cpu/test_pages.h"
#include "kernels/rope_append/rope_append.h"

struct shape {
    int64_t rows, valid, heads, kv_heads, head_dim, page_tokens;
    enum dtype x_dtype;
    enum encoding_id kv_dtype;
    enum dtype norm_dtype;
    bool has_norm;
    int64_t rotary_dim, norm_scope;
    bool norm_v, centred, kv_scales, means;
};
enum { SLOTS = 3, CONTEXT = 1024, LAYERS = 3, LAYER = 1 };

static double relative_of(enum dtype dtype) { return dtype == DTYPE_F16 ? 5.5e-4 : 4.4e-3; }

static void check(const struct shape *shape)
{
    const size_t block = (size_t)(2 * shape->kv_heads * shape->page_tokens * (shape->head_dim * 2 + 4));
    const size_t aligned = (block + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    const int64_t pages_per_slot = (CONTEXT + shape->page_tokens - 1) / shape->page_tokens;
    const size_t pages = SLOTS * (size_t)pages_per_slot, page_bytes = LAYERS * aligned, pool = pages * page_bytes;
    const int64_t params[ROPE_APPEND_PARAMS] = {
        [ROPE_APPEND_ROWS] = shape->rows,
        [ROPE_APPEND_HEADS] = shape->heads,
        [ROPE_APPEND_KV_HEADS] = shape->kv_heads,
        [ROPE_APPEND_HEAD_DIM] = shape->head_dim,
        [ROPE_APPEND_PAGE_TOKENS] = shape->page_tokens,
        [ROPE_APPEND_PAGES_PER_SLOT] = pages_per_slot,
        [ROPE_APPEND_PAGE_BYTES] = (int64_t)page_bytes,
        [ROPE_APPEND_SLOT_COUNT] = SLOTS,
        [ROPE_APPEND_KV_DTYPE] = shape->kv_dtype,
        [ROPE_APPEND_X_DTYPE] = shape->x_dtype,
        [ROPE_APPEND_HAS_NORM] = shape->has_norm,
        [ROPE_APPEND_NORM_DTYPE] = shape->norm_dtype,
        [ROPE_APPEND_EPS_BITS] = test_float_bits(1e-6f),
        [ROPE_APPEND_ROTARY_DIM] = shape->rotary_dim,
        [ROPE_APPEND_NORM_SCOPE] = shape->norm_scope,
        [ROPE_APPEND_NORM_V] = shape->norm_v,
        [ROPE_APPEND_CENTRED] = shape->centred,
        [ROPE_APPEND_HAS_KV_SCALES] = shape->kv_scales,
        [ROPE_APPEND_HAS_MEANS] = shape->means,
    };
    struct test_random random = {(uint64_t)(shape->rows * 5 + shape->head_dim)};
    struct test_launch launch;
    test_launch_open(&launch, &device_rope_append, params, shape->valid);
    test_launch_resize(&launch, ROPE_APPEND_KV, pool, LAYER * aligned);
    test_launch_fill(&launch, ROPE_APPEND_QKV, &random, -2, 2);
    test_launch_fill(&launch, ROPE_APPEND_TABLE, &random, -1, 1);
    for (int i = ROPE_APPEND_NORM_Q; shape->has_norm && i <= ROPE_APPEND_NORM_K; i++)
        test_launch_fill(&launch, i, &random, 0.5f, 1.5f);
    if (shape->kv_scales) test_launch_fill(&launch, ROPE_APPEND_KV_SCALES, &random, 0.001f, 0.006f);
    if (shape->means) test_launch_fill(&launch, ROPE_APPEND_MEANS, &random, 0.2f, 3);
    int32_t *slots = launch.host[ROPE_APPEND_SLOTS], *positions = launch.host[ROPE_APPEND_POSITIONS];
    int32_t *page_table = launch.host[ROPE_APPEND_PAGE_TABLE];
    for (size_t i = 0; i < pages; i++) page_table[i] = (int32_t)(pages - 1 - i);
    for (int64_t r = 0; r < shape->rows; r++) { /* every row at a place of its own; wild beyond the valid ones */
        slots[r] = r < shape->valid ? (int32_t)(r % SLOTS) : INT32_MAX;
        positions[r] = r < shape->valid ? (int32_t)(r / SLOTS * 3 + 1) % CONTEXT : INT32_MIN;
    }
    test_launch_run_twice(&launch);

    struct op_call call = test_launch_call(&launch);
    const size_t q_valid = (size_t)(shape->valid * shape->heads * shape->head_dim);
    call.operands[ROPE_APPEND_QKV] = test_launch_decode(&launch, ROPE_APPEND_QKV);
    call.operands[ROPE_APPEND_Q] = test_take(&launch.memory, test_launch_count(&launch, ROPE_APPEND_Q) * sizeof(float));
    call.operands[ROPE_APPEND_KV] = (uint8_t *)launch.host[ROPE_APPEND_KV] + LAYER * aligned;
    rope_append_reference(&call);
    test_assert_close(test_launch_found(&launch, ROPE_APPEND_Q), call.operands[ROPE_APPEND_Q], q_valid, 4e-6,
                      relative_of(shape->x_dtype), "q");
    const uint8_t *found = launch.found[ROPE_APPEND_KV], *expected = launch.host[ROPE_APPEND_KV];
    const struct pages all = pages_of(call.operands[ROPE_APPEND_KV], page_table, params);
    if (encoding_is_plain(shape->kv_dtype))
        test_pages_assert_close(found, expected, pool, (enum dtype)shape->kv_dtype,
                                2 * relative_of((enum dtype)shape->kv_dtype));
    else
        test_pages_assert_coded_close(&all, params, slots, positions, shape->valid, LAYER * aligned, shape->norm_v,
                                      found, expected, pool);
    test_launch_close(&launch);
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
                                    .kv_dtype = (enum encoding_id)dtypes[i % 2],
                                    .norm_dtype = dtypes[i / 2 % 3],
                                    .has_norm = (i + i / 9) % 2};
        check(&shape);
    }
    const struct shape llama = {700, 650, 32, 8, 128, 64, DTYPE_BF16, ENCODING_BF16, DTYPE_BF16, .has_norm = false};
    check(&llama);
    const struct shape qwen = {300, 300, 32, 8, 128, 64, DTYPE_BF16, ENCODING_BF16, DTYPE_BF16, .has_norm = true};
    check(&qwen);
}

TEST(codes_with_scales_equal_reference)
{
    TEST_NEEDS_DEVICE();
    static const int64_t head_dims[] = {16, 32, 64, 80, 96, 112, 128, 256};
    static const enum encoding_id encodings[] = {ENCODING_INT8_CHANNEL, ENCODING_E4M3_CHANNEL};
    for (int i = 0; i < 24; i++) {
        const struct shape shape = {.rows = i % 5 == 0 ? 1 : 3 + 7 * i,
                                    .valid = i % 5 == 0 ? 1 : 2 + 6 * i,
                                    .heads = 2 * (1 + i % 4),
                                    .kv_heads = 1 + i % 4,
                                    .head_dim = head_dims[i % 8],
                                    .page_tokens = i % 3 ? 64 : 16,
                                    .x_dtype = i / 2 % 2 ? DTYPE_BF16 : DTYPE_F16,
                                    .kv_dtype = encodings[(i + i / 8) % 2],
                                    .norm_dtype = DTYPE_BF16,
                                    .has_norm = i / 8 > 0,
                                    .rotary_dim = i % 3 ? 0 : head_dims[i % 8] / 4 * 2,
                                    .norm_scope = i / 8 == 2};
        check(&shape);
    }
}

TEST(static_scales_equal_reference)
{
    TEST_NEEDS_DEVICE();
    static const int64_t head_dims[] = {16, 64, 80, 128, 256};
    for (int i = 0; i < 10; i++) {
        const struct shape shape = {.rows = 3 + 7 * i,
                                    .valid = 2 + 6 * i,
                                    .heads = 2 * (1 + i % 4),
                                    .kv_heads = 1 + i % 4,
                                    .head_dim = head_dims[i % 5],
                                    .page_tokens = i % 3 ? 64 : 16,
                                    .x_dtype = i % 2 ? DTYPE_BF16 : DTYPE_F16,
                                    .kv_dtype = ENCODING_E4M3_CHANNEL,
                                    .norm_dtype = DTYPE_BF16,
                                    .has_norm = i / 5,
                                    .kv_scales = true};
        check(&shape);
    }
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
                                    .kv_dtype = (enum encoding_id)dtypes[i % 2],
                                    .norm_dtype = dtypes[i / 2 % 3],
                                    .has_norm = i / 8 != 0,
                                    .rotary_dim = dims[i % 8][1],
                                    .norm_scope = i / 8 == 2};
        check(&shape);
        if (i / 8 != 2) continue;
        struct shape shared = shape; /* by several ranks */
        shared.means = true;
        check(&shared);
    }
    const struct shape olmo = {300, 290, 32, 32, 128, 64, DTYPE_BF16, ENCODING_BF16, DTYPE_BF16, true, .norm_scope = 1};
    check(&olmo);
    const struct shape phi = {300, 300, 24, 8, 128, 64, DTYPE_BF16, ENCODING_BF16, DTYPE_BF16, false, .rotary_dim = 96};
    check(&phi);
}

TEST(normalises_values_and_takes_means_off)
{
    TEST_NEEDS_DEVICE();
    static const int64_t dims[][2] = {{512, 0}, {24, 12}, {256, 64}, {64, 0}, {160, 40}, {254, 2}, {20, 6}, {384, 96}};
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_F16, ENCODING_INT8_CHANNEL,
                                                 ENCODING_E4M3_CHANNEL};
    for (int i = 0; i < 32; i++) {
        const bool has_norm = i % 5 != 4, centred = has_norm && i % 4 % 3;
        const struct shape shape = {.rows = i % 5 == 0 ? 1 : 3 + 7 * i,
                                    .valid = i % 5 == 0 ? 1 : 2 + 6 * i,
                                    .heads = 2 * (1 + i % 3),
                                    .kv_heads = 1 + i % 3,
                                    .head_dim = dims[i % 8][0],
                                    .page_tokens = 16,
                                    .x_dtype = i / 8 % 2 ? DTYPE_F16 : DTYPE_BF16,
                                    .kv_dtype = encodings[i / 8],
                                    .norm_dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32,
                                    .has_norm = has_norm,
                                    .rotary_dim = dims[i % 8][1],
                                    .norm_scope = centred                  ? ROPE_APPEND_NORM_HEADS
                                                  : has_norm && i % 3 == 0 ? ROPE_APPEND_NORM_ROTATED
                                                                           : ROPE_APPEND_NORM_HEAD,
                                    .norm_v = i % 2 == 0,
                                    .centred = centred};
        if (encoding_is_plain(shape.kv_dtype) || shape.head_dim % 16 == 0) check(&shape);
    }
    const struct shape gemma = {700, 650, 8, 1, 512, 64, DTYPE_BF16, ENCODING_BF16, DTYPE_BF16, true, .norm_v = true};
    check(&gemma);
    const struct shape stablelm = {300,
                                   300,
                                   32,
                                   8,
                                   160,
                                   64,
                                   DTYPE_BF16,
                                   ENCODING_BF16,
                                   DTYPE_BF16,
                                   true,
                                   .rotary_dim = 40,
                                   .norm_scope = ROPE_APPEND_NORM_HEADS,
                                   .centred = true};
    check(&stablelm);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ROPE_APPEND_PARAMS] =
        {4, 0, 8, 2, 64, 64, 16, 4 * 2 * 64 * 64, 3, DTYPE_BF16, DTYPE_BF16, 1, DTYPE_F32, test_float_bits(1e-6f)};
    test_hostile_launches(&device_rope_append, params);
    test_launch_refuses(&device_rope_append, params,
                        TEST_CHANGES({ROPE_APPEND_HEADS, 7}, {ROPE_APPEND_HEAD_DIM, 65},
                                     {ROPE_APPEND_PAGE_BYTES, 4 * 2 * 64 * 64 - 16},
                                     {ROPE_APPEND_PAGE_BYTES, 4 * 2 * 64 * 64 + 8}, {ROPE_APPEND_KV_DTYPE, DTYPE_F32},
                                     {ROPE_APPEND_KV_DTYPE, ENCODING_INT4_G32}, {ROPE_APPEND_ROTARY_DIM, 31},
                                     {ROPE_APPEND_ROTARY_DIM, 66}, {ROPE_APPEND_NORM_SCOPE, ROPE_APPEND_NORM_SCOPES},
                                     {ROPE_APPEND_HEAD_DIM, 514}));
    int64_t over_width[ROPE_APPEND_PARAMS];
    memcpy(over_width, params, sizeof params);
    over_width[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_WIDTH;
    test_launch_refuses(&device_rope_append, over_width, TEST_CHANGES({ROPE_APPEND_NORM_V, 1}));
    test_launch_refuses(&device_rope_append, params, TEST_CHANGES({ROPE_APPEND_HAS_MEANS, 1}));
}

int main(void) { return test_run(); }
