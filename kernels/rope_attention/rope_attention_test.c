/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_attention/rope_attention.h"

#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/test_pages.h"
#include "kernels/cuda/test_launch.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_query/rope_query.h"

struct shape {
    int64_t rows, valid, kv_heads, group, head_dim, page_tokens, window, slots, context;
    enum encoding_id kv_dtype;
    enum dtype x_dtype, norm_dtype;
    bool has_norm;
    float scale;
    int64_t splits, warps, tile_tokens, head_tiles, stages, bulk, alone_tiles;
    int64_t rotary_dim; /* 0: head_dim */
    float cap;          /* 0: none */
    enum dtype sinks;   /* DTYPE_NONE: none */
    int64_t norm_scope;
    bool norm_v, centred, appended, kv_scales;
};

/* A launch, and what the device should make of it. */
struct setup {
    struct shape shape;
    int64_t params[PLAN_MAX_PARAMS];
    int64_t layer_offset;
    struct test_launch launch;
    struct pages pages;
    float *q, *expected;
    uint8_t *expected_pool;
};

static void set_params(struct setup *setup)
{
    const struct shape *shape = &setup->shape;
    const int64_t params[ROPE_ATTENTION_PARAMS] = {
        [ROPE_ATTENTION_ROWS] = shape->rows,
        [ROPE_ATTENTION_COUNT_INDEX] = 0,
        [ROPE_ATTENTION_HEADS] = shape->kv_heads * shape->group,
        [ROPE_ATTENTION_KV_HEADS] = shape->kv_heads,
        [ROPE_ATTENTION_HEAD_DIM] = shape->head_dim,
        [ROPE_ATTENTION_PAGE_TOKENS] = shape->page_tokens,
        [ROPE_ATTENTION_PAGES_PER_SLOT] = (shape->context + shape->page_tokens - 1) / shape->page_tokens,
        [ROPE_ATTENTION_PAGE_BYTES] = setup->layer_offset * 3,
        [ROPE_ATTENTION_SLOT_COUNT] = shape->slots,
        [ROPE_ATTENTION_KV_DTYPE] = shape->kv_dtype,
        [ROPE_ATTENTION_X_DTYPE] = shape->x_dtype,
        [ROPE_ATTENTION_WINDOW] = shape->window,
        [ROPE_ATTENTION_SCALE_BITS] = test_float_bits(shape->scale),
        [ROPE_ATTENTION_HAS_NORM] = shape->has_norm,
        [ROPE_ATTENTION_NORM_DTYPE] = shape->norm_dtype,
        [ROPE_ATTENTION_EPS_BITS] = test_float_bits(1e-5f),
        [ROPE_ATTENTION_ROTARY_DIM] = shape->rotary_dim,
        [ROPE_ATTENTION_CAP_BITS] = test_float_bits(shape->cap),
        [ROPE_ATTENTION_HAS_SINKS] = shape->sinks != DTYPE_NONE,
        [ROPE_ATTENTION_SINKS_DTYPE] = shape->sinks ? shape->sinks : DTYPE_F32,
        [ROPE_ATTENTION_NORM_SCOPE] = shape->norm_scope,
        [ROPE_ATTENTION_NORM_V] = shape->norm_v,
        [ROPE_ATTENTION_CENTRED] = shape->centred,
        [ROPE_ATTENTION_APPENDED] = shape->appended,
        [ROPE_ATTENTION_HAS_KV_SCALES] = shape->kv_scales,
        [ROPE_ATTENTION_HAS_MEANS] = shape->norm_scope == ROPE_APPEND_NORM_WIDTH,
        [ROPE_ATTENTION_SPLITS] = shape->splits,
        [ROPE_ATTENTION_WARPS] = shape->warps,
        [ROPE_ATTENTION_TILE_TOKENS] = shape->tile_tokens,
        [ROPE_ATTENTION_HEAD_TILES] = shape->head_tiles,
        [ROPE_ATTENTION_STAGES] = shape->stages,
        [ROPE_ATTENTION_BULK] = shape->bulk,
        [ROPE_ATTENTION_ALONE_TILES] = shape->alone_tiles,
    };
    memcpy(setup->params, params, sizeof params);
}

/* In the pool the tokens before positions[r] exist, with APPENDED that one, too, and all else is NaN. */
static void fill_pool(struct setup *setup, struct test_random *random, const int32_t *slots, const int32_t *positions)
{
    const struct shape *shape = &setup->shape;
    for (int64_t r = 0; r < shape->valid; r++) {
        int64_t last = positions[r], first = 0;
        if (shape->window && last >= shape->window) first = last - shape->window + 1;
        for (int64_t t = first; t < last + shape->appended; t++)
            test_pages_fill(random, &setup->pages, setup->params, slots[r], t);
    }
}

/* Without operands. */
static void setup_shape(struct setup *setup, const struct shape *shape)
{
    memset(setup, 0, sizeof *setup);
    setup->shape = *shape;
    const int64_t block = 2 * shape->kv_heads * shape->page_tokens * (2 * shape->head_dim + 4);
    setup->layer_offset = (block + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    set_params(setup);
}

static void setup_open(struct setup *setup, struct test_random *random, const struct shape *shape,
                       const int32_t *positions)
{
    struct test_launch *launch = &setup->launch;
    setup_shape(setup, shape);
    const int64_t per_slot = (shape->context - 1) / shape->page_tokens + 1, page_count = shape->slots * per_slot;
    const int64_t page_bytes = setup->params[ROPE_ATTENTION_PAGE_BYTES];
    test_launch_open_operands(launch, &op_rope_attention, setup->params, shape->valid);
    test_launch_resize(launch, ROPE_ATTENTION_KV, (size_t)(page_count * page_bytes), (size_t)setup->layer_offset);
    test_launch_resize(launch, ROPE_ATTENTION_WORKSPACE, rope_attention_workspace_bytes(setup->params), 0);
    memset(launch->host[ROPE_ATTENTION_WORKSPACE], 0, launch->device[ROPE_ATTENTION_WORKSPACE].bytes);
    int32_t *slots = launch->host[ROPE_ATTENTION_SLOTS], *places = launch->host[ROPE_ATTENTION_POSITIONS];
    int32_t *table = launch->host[ROPE_ATTENTION_PAGE_TABLE];
    for (int64_t r = 0; r < shape->rows; r++) { /* beyond the valid rows: nothing that could be an index */
        slots[r] = r < shape->valid ? (int32_t)((r * 5 + 2) % shape->slots) : INT32_MIN;
        places[r] = r < shape->valid ? positions[r] : INT32_MAX;
    }
    for (int64_t i = 0; i < page_count; i++) table[i] = (int32_t)i;
    test_shuffle(random, table, (size_t)page_count);
    test_launch_fill(launch, ROPE_ATTENTION_QKV, random, -1, 1);
    test_launch_fill(launch, ROPE_ATTENTION_TABLE, random, -1, 1);
    if (shape->sinks) test_launch_fill(&setup->launch, ROPE_ATTENTION_SINKS, random, -2, 3);
    for (int n = ROPE_ATTENTION_NORM_Q; shape->has_norm && n <= ROPE_ATTENTION_NORM_K; n++)
        test_launch_fill(launch, n, random, 0.5f, 1.5f);
    if (shape->kv_scales) test_launch_fill(&setup->launch, ROPE_ATTENTION_KV_SCALES, random, 0.001f, 0.003f);
    if (shape->norm_scope == ROPE_APPEND_NORM_WIDTH) test_launch_fill(launch, ROPE_ATTENTION_MEANS, random, 0.2f, 1);
    setup->pages = pages_of((uint8_t *)launch->host[ROPE_ATTENTION_KV] + setup->layer_offset, table, setup->params);
    fill_pool(setup, random, slots, places);
}

static bool is_coded(const struct setup *setup) { return !encoding_is_plain(setup->shape.kv_dtype); }

/* q of rows whose k and v are in the pool. */
static void query_reference(struct setup *setup)
{
    const int64_t *p = setup->params;
    void *const *host = setup->launch.host;
    const int64_t params[ROPE_QUERY_PARAMS] = {
        [ROPE_QUERY_ROWS] = p[ROPE_ATTENTION_ROWS],
        [ROPE_QUERY_HEADS] = p[ROPE_ATTENTION_HEADS],
        [ROPE_QUERY_HEAD_DIM] = p[ROPE_ATTENTION_HEAD_DIM],
        [ROPE_QUERY_ROTARY_DIM] = op_rotary_dim(p, ROPE_ATTENTION_ROTARY_DIM),
        [ROPE_QUERY_HAS_NORM] = p[ROPE_ATTENTION_HAS_NORM],
        [ROPE_QUERY_NORM_DTYPE] = p[ROPE_ATTENTION_NORM_DTYPE],
        [ROPE_QUERY_EPS_BITS] = p[ROPE_ATTENTION_EPS_BITS],
        [ROPE_QUERY_X_DTYPE] = DTYPE_F32,
    };
    const struct op_call query = {
        .params = params,
        .operands = {[ROPE_QUERY_COUNTS] = host[ROPE_ATTENTION_COUNTS],
                     [ROPE_QUERY_X] = test_launch_decode(&setup->launch, ROPE_ATTENTION_QKV),
                     [ROPE_QUERY_TABLE] = host[ROPE_ATTENTION_TABLE],
                     [ROPE_QUERY_OUT] = setup->q,
                     [ROPE_QUERY_NORM] = host[ROPE_ATTENTION_NORM_Q]},
    };
    op_rope_query.reference(&query);
}

/* rope_append on a copy of the pool. */
static void append_reference(struct setup *setup)
{
    const int64_t *p = setup->params;
    struct test_launch *launch = &setup->launch;
    const size_t q_bytes = test_launch_count(launch, ROPE_ATTENTION_OUT) * sizeof(float);
    const size_t pool_bytes = launch->device[ROPE_ATTENTION_KV].bytes;
    setup->q = test_take(&launch->memory, q_bytes);
    setup->expected = test_take(&launch->memory, q_bytes);
    setup->expected_pool = memcpy(test_take(&launch->memory, pool_bytes), launch->host[ROPE_ATTENTION_KV], pool_bytes);
    void *const *host = launch->host, *kv = setup->expected_pool + setup->layer_offset;
    int64_t append_params[ROPE_APPEND_PARAMS] = {0};
    memcpy(append_params, p, PAGED_PARAMS * sizeof *p);
    append_params[ROPE_APPEND_HAS_NORM] = p[ROPE_ATTENTION_HAS_NORM];
    append_params[ROPE_APPEND_NORM_DTYPE] = p[ROPE_ATTENTION_NORM_DTYPE];
    append_params[ROPE_APPEND_EPS_BITS] = p[ROPE_ATTENTION_EPS_BITS];
    append_params[ROPE_APPEND_ROTARY_DIM] = p[ROPE_ATTENTION_ROTARY_DIM];
    append_params[ROPE_APPEND_NORM_SCOPE] = p[ROPE_ATTENTION_NORM_SCOPE];
    append_params[ROPE_APPEND_NORM_V] = p[ROPE_ATTENTION_NORM_V];
    append_params[ROPE_APPEND_CENTRED] = p[ROPE_ATTENTION_CENTRED];
    append_params[ROPE_APPEND_HAS_KV_SCALES] = p[ROPE_ATTENTION_HAS_KV_SCALES];
    append_params[ROPE_APPEND_HAS_MEANS] = p[ROPE_ATTENTION_HAS_MEANS];
    const struct op_call append = {
        .params = append_params,
        .operands = {host[ROPE_ATTENTION_COUNTS], test_launch_decode(launch, ROPE_ATTENTION_QKV),
                     host[ROPE_ATTENTION_TABLE], host[ROPE_ATTENTION_SLOTS], host[ROPE_ATTENTION_POSITIONS],
                     host[ROPE_ATTENTION_PAGE_TABLE], kv, setup->q, host[ROPE_ATTENTION_NORM_Q],
                     host[ROPE_ATTENTION_NORM_K], host[ROPE_ATTENTION_KV_SCALES], host[ROPE_ATTENTION_MEANS]},
    };
    if (setup->shape.appended)
        query_reference(setup);
    else
        rope_append_reference(&append);
    if (is_coded(setup)) return; /* q keeps more bits than a f16 has, relative to its largest element */
    test_round(setup->q, (size_t)(launch->valid * p[ROPE_ATTENTION_HEADS] * p[ROPE_ATTENTION_HEAD_DIM]),
               (enum dtype)setup->shape.kv_dtype); /* as the contract says */
}

/* Attention over a pool in which the new tokens are. */
static void attention_on(struct setup *setup, uint8_t *pool)
{
    const int64_t *p = setup->params;
    void *const *host = setup->launch.host;
    int64_t attention_params[ATTENTION_PARAMS] = {0};
    memcpy(attention_params, p, PAGED_PARAMS * sizeof *p);
    attention_params[ATTENTION_WINDOW] = p[ROPE_ATTENTION_WINDOW];
    attention_params[ATTENTION_SCALE_BITS] = p[ROPE_ATTENTION_SCALE_BITS];
    attention_params[ATTENTION_SCATTERED] = 1;
    attention_params[ATTENTION_CAP_BITS] = p[ROPE_ATTENTION_CAP_BITS];
    attention_params[ATTENTION_HAS_SINKS] = p[ROPE_ATTENTION_HAS_SINKS];
    attention_params[ATTENTION_SINKS_DTYPE] = p[ROPE_ATTENTION_SINKS_DTYPE];
    const struct op_call attention = {
        .params = attention_params,
        .operands = {host[ROPE_ATTENTION_COUNTS], setup->q, host[ROPE_ATTENTION_SLOTS], host[ROPE_ATTENTION_POSITIONS],
                     host[ROPE_ATTENTION_PAGE_TABLE], pool + setup->layer_offset, setup->expected, NULL,
                     host[ROPE_ATTENTION_SINKS]},
    };
    attention_reference(&attention);
}

/* Appended k may differ by one rounding from the reference, which computes in double; all other bytes not at all. */
static void compare_pools(const struct setup *setup)
{
    const enum dtype dtype = (enum dtype)setup->shape.kv_dtype;
    const double unit = dtype == DTYPE_F16 ? 0x1p-10 : 0x1p-7;
    const uint8_t *found = setup->launch.found[ROPE_ATTENTION_KV];
    if (is_coded(setup)) {
        test_pages_assert_coded_close(&setup->pages, setup->params, setup->launch.host[ROPE_ATTENTION_SLOTS],
                                      setup->launch.host[ROPE_ATTENTION_POSITIONS], setup->shape.valid,
                                      (size_t)setup->layer_offset, setup->shape.norm_v, found, setup->expected_pool,
                                      setup->launch.device[ROPE_ATTENTION_KV].bytes);
        return;
    }
    for (size_t i = 0; i < setup->launch.device[ROPE_ATTENTION_KV].bytes; i += 2) {
        if (memcmp(found + i, setup->expected_pool + i, 2) == 0) continue;
        const double a = (double)op_element(found + i, 0, dtype),
                     b = (double)op_element(setup->expected_pool + i, 0, dtype);
        if (!(fabs(a - b) <= fmax(unit * fabs(b), 1e-6))) fail_msg("pool byte %zu: expected %g, found %g", i, b, a);
    }
}

static void compare_out(const struct setup *setup, const char *what)
{
    const struct shape *shape = &setup->shape;
    const int64_t width = shape->kv_heads * shape->group * shape->head_dim;
    const void *out = setup->launch.found[ROPE_ATTENTION_OUT];
    /* The weights and the result are rounded once each; an element of q may be rounded to another neighbour. */
    const double relative = shape->kv_dtype != ENCODING_BF16 && shape->x_dtype == DTYPE_F16 ? 0.002 : 0.01;
    for (int64_t r = 0; r < shape->valid; r++) {
        const float *expected = setup->expected + r * width;
        double largest = 0;
        for (int64_t i = 0; i < width; i++) largest = fmax(largest, fabs((double)expected[i]));
        for (int64_t i = 0; i < width; i++) {
            const double found = (double)op_element(out, r * width + i, shape->x_dtype);
            if (!(fabs(found - (double)expected[i]) <= relative * largest))
                fail_msg("%s: row %lld at position %d, element %lld: expected %g, found %g (largest %g)", what,
                         (long long)r, ((int32_t *)setup->launch.host[ROPE_ATTENTION_POSITIONS])[r], (long long)i,
                         (double)expected[i], found, largest);
        }
    }
}

/* Two launches in a row, on the same pool and workspace: the reference's result, twice the same bits. */
static void check_setup(struct setup *setup, const char *what)
{
    struct test_launch *launch = &setup->launch;
    cu_deviceptr operands[PLAN_MAX_OPERANDS];
    const int count = test_launch_list(launch, operands);
    const size_t out_bytes = launch->device[ROPE_ATTENTION_OUT].bytes;
    void *first = test_take(&launch->memory, out_bytes);
    const uint8_t *workspace = launch->found[ROPE_ATTENTION_WORKSPACE];
    append_reference(setup);
    if (!is_coded(setup)) attention_on(setup, setup->expected_pool);
    test_kernel_open(&launch->kernel, &device_rope_attention, setup->params);
    assert_int_equal(launch->kernel.local_bytes, 0);
    test_launch_write(launch);
    for (int run = 0; run < 2; run++) {
        test_device_buffer_poison(&launch->device[ROPE_ATTENTION_OUT]);
        test_kernel_run(&launch->kernel, operands, count, 0);
        test_launch_read(launch);
        for (size_t i = 0; i < launch->device[ROPE_ATTENTION_WORKSPACE].bytes; i++) assert_int_equal(workspace[i], 0);
        compare_pools(setup);
        /* A neighbouring code is a large step: what the kernel made of the new key is what it has to attend to. */
        if (is_coded(setup)) attention_on(setup, launch->found[ROPE_ATTENTION_KV]);
        compare_out(setup, what);
        if (run == 0) memcpy(first, launch->found[ROPE_ATTENTION_OUT], out_bytes);
        test_assert_same_bits(launch->found[ROPE_ATTENTION_OUT], first, out_bytes, what);
    }
}

static void check_shape(struct test_random *random, const struct shape *shape, const int32_t *positions,
                        const char *what)
{
    struct setup setup;
    setup_open(&setup, random, shape, positions);
    check_setup(&setup, what);
    test_launch_close(&setup.launch);
}

static bool has_bulk(void) { return test_device()->device.facts.capability >= 90; }

static const struct shape plain = {
    .rows = 4,
    .valid = 4,
    .kv_heads = 2,
    .group = 4,
    .head_dim = 64,
    .page_tokens = 64,
    .slots = 4,
    .context = 1100,
    .kv_dtype = ENCODING_F16,
    .x_dtype = DTYPE_F16,
    .norm_dtype = DTYPE_F32,
    .scale = 0.7f,
    .splits = 4,
    .warps = 4,
    .tile_tokens = 16,
    .head_tiles = 1,
    .stages = 3,
    .bulk = 0,
    .alone_tiles = 1,
};

/* Contexts (positions + 1) around the edges of tiles and pages, with every way to split. */
TEST(contexts)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {1};
    static const int32_t positions[16] = {0, 1, 14, 15, 16, 17, 62, 63, 64, 65, 66, 199, 200, 255, 999, 1000};
    static const int64_t splits[] = {1, 3, 8, 16}, warps[] = {1, 4, 8}, tokens[] = {16, 32, 64},
                         stages[] = {2, 3, 4, 5, 6};
    for (int round = 0; round < 24; round++) {
        struct shape shape = plain;
        shape.rows = shape.valid = shape.slots = 16;
        shape.slots = 17; /* coprime with the stride of the slots */
        shape.head_dim = round % 2 ? 64 : 128;
        shape.splits = splits[round % 4];
        shape.warps = warps[round % 3];
        shape.tile_tokens = tokens[round / 2 % (shape.head_dim == 64 && shape.warps < 8 ? 3 : 2)];
        shape.stages = stages[round / 2 % 5];
        while (shape.stages > 2 && shape.warps * shape.stages * shape.tile_tokens * shape.head_dim > 48 * 1024)
            shape.stages--;
        shape.bulk = round / 4 % 2 && has_bulk();
        shape.alone_tiles = 1 + round % 2;
        shape.has_norm = round / 3 % 2;
        if (round % 5 == 4) shape.kv_dtype = ENCODING_BF16, shape.x_dtype = DTYPE_BF16;
        check_shape(&random, &shape, positions, "contexts");
    }
}

TEST(long_context)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {2};
    static const int32_t positions[2] = {4999, 3333};
    static const int64_t splits[] = {1, 16, 64};
    for (int round = 0; round < 6; round++) {
        struct shape shape = plain;
        shape.rows = shape.valid = 2;
        shape.slots = 3;
        shape.context = 5100;
        shape.kv_heads = 1;
        shape.scale = 3; /* few tokens dominate: each of them must be there */
        shape.splits = splits[round % 3];
        shape.warps = round % 2 ? 8 : 1; /* one warp and one split: more tiles than page numbers fit into a warp */
        shape.stages = 2 + round;
        shape.bulk = round % 2 && has_bulk();
        shape.x_dtype = round < 3 ? DTYPE_F16 : DTYPE_BF16;
        shape.kv_dtype = (enum encoding_id)shape.x_dtype;
        check_shape(&random, &shape, positions, "long context");
    }
}

TEST(head_dims_and_groups)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {3};
    static const int64_t head_dims[] = {8, 16, 32, 64, 80, 96, 128, 256, 2, 6, 20, 36, 254, 100};
    static const int64_t groups[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 32};
    for (int round = 0; round < 42; round++) {
        struct shape shape = plain;
        shape.head_dim = head_dims[round % 14];
        shape.group = groups[(round + round / 14 * 5) % 12];
        shape.page_tokens = round % 4 == 3 ? 16 : 64;
        shape.context = 300;
        shape.valid = 3;
        shape.scale = 2 / sqrtf((float)shape.head_dim);
        shape.head_tiles = shape.group > 8 && shape.head_dim <= 128 && round % 2 ? 2 : 1;
        if (shape.group > 16 && shape.head_dim <= 64) shape.head_tiles = 4;
        shape.warps = shape.head_tiles > 1 || shape.head_dim > 128 ? 2 : 4;
        shape.splits = 2;
        shape.has_norm = round % 2;
        shape.norm_dtype = (enum dtype[]){DTYPE_F32, DTYPE_F16, DTYPE_BF16}[round % 3];
        shape.stages = 2 + round / 2 % 3;
        shape.bulk = round / 14 % 2 && shape.head_dim % 8 == 0 && has_bulk();
        if (round % 7 == 3) shape.kv_dtype = ENCODING_BF16;
        if (round % 7 == 5) shape.x_dtype = DTYPE_BF16;
        const int32_t positions[3] = {(int32_t)test_random_range(&random, 0, 299), 0, round % 2 ? 15 : 299};
        char what[64];
        snprintf(what, sizeof what, "head_dim %d group %d", (int)shape.head_dim, (int)shape.group);
        check_shape(&random, &shape, positions, what);
    }
}

TEST(rotates_a_part)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {8};
    static const int64_t dims[][2] = {{24, 12}, {24, 16}, {128, 96}, {128, 24},
                                      {32, 24}, {254, 2}, {20, 6},   {128, 128}};
    static const int32_t positions[3] = {130, 0, 299};
    for (int round = 0; round < 24; round++) {
        struct shape shape = plain;
        shape.head_dim = dims[round % 8][0];
        shape.rotary_dim = dims[round % 8][1];
        shape.group = 1 + round % 3 * 2;
        shape.context = 300;
        shape.valid = 3;
        shape.scale = 2 / sqrtf((float)shape.head_dim);
        shape.warps = shape.head_dim > 128 ? 2 : 4;
        shape.has_norm = round / 8 % 2;
        shape.norm_dtype = (enum dtype[]){DTYPE_F32, DTYPE_F16, DTYPE_BF16}[round % 3];
        shape.bulk = round % 2 && shape.head_dim % 8 == 0 && has_bulk();
        if (round / 8 == 2) shape.kv_dtype = ENCODING_BF16, shape.x_dtype = DTYPE_BF16;
        char what[64];
        snprintf(what, sizeof what, "head_dim %d rotary_dim %d", (int)shape.head_dim, (int)shape.rotary_dim);
        check_shape(&random, &shape, positions, what);
    }
}

/* Norms of v, of heads with weights of their own, without the mean; heads of up to 512 elements. */
TEST(norms)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {11};
    static const int64_t head_dims[] = {512, 256, 64, 160, 20, 384, 128, 330};
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_E4M3_CHANNEL, ENCODING_F16,
                                                 ENCODING_INT8_CHANNEL};
    static const int32_t positions[3] = {130, 0, 299};
    for (int round = 0; round < 32; round++) {
        struct shape shape = plain;
        shape.head_dim = head_dims[round % 8];
        shape.kv_dtype = encodings[round / 8];
        if (shape.head_dim % 16 && round / 8 % 2) continue; /* no codes of such heads */
        shape.x_dtype = shape.kv_dtype == ENCODING_F16 ? DTYPE_F16 : DTYPE_BF16;
        shape.group = 1 + round % 3 * 4;
        shape.context = 300;
        shape.valid = 3;
        shape.scale = 2 / sqrtf((float)shape.head_dim);
        shape.warps = shape.head_dim > 128 ? 2 : 4;
        shape.splits = 1 + round % 3;
        shape.stages = 2 + round % 2;
        shape.has_norm = round % 5 != 4;
        shape.norm_dtype = (enum dtype[]){DTYPE_F32, DTYPE_F16, DTYPE_BF16}[round % 3];
        shape.norm_v = round % 2 == 0;
        shape.centred = shape.has_norm && round % 4 % 3;
        shape.norm_scope = shape.centred                      ? ROPE_APPEND_NORM_HEADS
                           : shape.has_norm && round % 3 == 0 ? ROPE_APPEND_NORM_ROTATED
                                                              : ROPE_APPEND_NORM_HEAD;
        shape.bulk = round % 3 == 1 && shape.head_dim % 8 == 0 && has_bulk();
        char what[64];
        snprintf(what, sizeof what, "norms, head_dim %d, %s", (int)shape.head_dim, encoding_label(shape.kv_dtype));
        check_shape(&random, &shape, positions, what);
    }
}

/* Norms over the width of heads that ranks share. */
TEST(norms_with_means)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {13};
    static const int64_t head_dims[] = {128, 64, 20, 256};
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_E4M3_CHANNEL, ENCODING_F16,
                                                 ENCODING_INT8_CHANNEL};
    static const int32_t positions[3] = {130, 0, 299};
    for (int round = 0; round < 16; round++) {
        struct shape shape = plain;
        shape.head_dim = head_dims[round % 4];
        shape.kv_dtype = encodings[round / 4];
        if (shape.head_dim % 16 && round / 4 % 2) continue; /* no codes of such heads */
        shape.x_dtype = shape.kv_dtype == ENCODING_F16 ? DTYPE_F16 : DTYPE_BF16;
        shape.kv_heads = 1 + round % 3;
        shape.group = 1 + round % 2 * 4;
        shape.context = 300;
        shape.valid = 3;
        shape.scale = 2 / sqrtf((float)shape.head_dim);
        shape.splits = 1 + round % 3;
        shape.has_norm = true;
        shape.norm_dtype = round % 2 ? DTYPE_BF16 : DTYPE_F32;
        shape.norm_scope = ROPE_APPEND_NORM_WIDTH;
        shape.bulk = round % 3 == 1 && shape.head_dim % 8 == 0 && has_bulk();
        char what[64];
        snprintf(what, sizeof what, "means, head_dim %d, %s", (int)shape.head_dim, encoding_label(shape.kv_dtype));
        check_shape(&random, &shape, positions, what);
    }
}

/* k and v are in the pages. */
TEST(appended)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {12};
    static const int64_t head_dims[] = {512, 256, 64, 18};
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_E4M3_CHANNEL, ENCODING_F16,
                                                 ENCODING_INT8_CHANNEL};
    static const int32_t positions[4] = {130, 0, 15, 299};
    for (int round = 0; round < 32; round++) {
        struct shape shape = plain;
        shape.appended = true;
        shape.head_dim = head_dims[round % 4];
        shape.kv_dtype = encodings[round / 8];
        if (shape.head_dim % 16 && round / 8 % 2) continue; /* no codes of such heads */
        shape.x_dtype = shape.kv_dtype == ENCODING_F16 ? DTYPE_F16 : DTYPE_BF16;
        shape.kv_heads = 1 + round % 2;
        shape.group = 1 + round % 3 * 7;
        shape.slots = 5;
        shape.context = 300;
        shape.scale = 2 / sqrtf((float)shape.head_dim);
        shape.warps = shape.head_dim > 128 ? 2 : 4;
        shape.splits = 1 + round % 4;
        shape.window = round % 4 == 1 ? 100 : 0;
        shape.has_norm = round % 5 != 4;
        shape.bulk = round / 4 % 2 && shape.head_dim % 8 == 0 && has_bulk();
        char what[64];
        snprintf(what, sizeof what, "appended, head_dim %d, %s", (int)shape.head_dim, encoding_label(shape.kv_dtype));
        check_shape(&random, &shape, positions, what);
    }
}

TEST(caps_and_sinks)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {10};
    static const int32_t positions[3] = {130, 0, 299};
    for (int round = 0; round < 12; round++) {
        struct shape shape = plain;
        shape.head_dim = round % 2 ? 64 : 128;
        shape.group = 1 + round % 4 * 3;
        shape.context = 300;
        shape.valid = 3;
        shape.scale = 2 / sqrtf((float)shape.head_dim);
        shape.warps = 4;
        shape.splits = 1 + round % 3;
        shape.window = round % 4 == 3 ? 100 : 0;
        shape.cap = round % 3 ? 1.5f : 0;
        shape.sinks = (enum dtype[]){DTYPE_F32, DTYPE_BF16, DTYPE_NONE}[round % 3];
        if (round / 6) shape.kv_dtype = ENCODING_BF16, shape.x_dtype = DTYPE_BF16;
        char what[64];
        snprintf(what, sizeof what, "cap %g sinks %s", (double)shape.cap, dtype_name(shape.sinks));
        check_shape(&random, &shape, positions, what);
    }
}

TEST(codes_with_scales)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {9};
    static const int64_t head_dims[] = {128, 64, 256, 80, 16, 96, 112, 32}, groups[] = {4, 1, 8, 7, 12, 16, 17, 3};
    static const int64_t tokens[] = {16, 32, 64};
    for (int round = 0; round < 48; round++) {
        struct shape shape = plain;
        shape.kv_dtype = round % 2 ? ENCODING_INT8_CHANNEL : ENCODING_E4M3_CHANNEL;
        shape.x_dtype = round / 2 % 3 ? DTYPE_BF16 : DTYPE_F16;
        shape.head_dim = head_dims[round / 2 % 8];
        shape.group = groups[(round / 2 + round / 16) % 8];
        shape.rows = shape.valid = 6;
        shape.slots = 7;
        shape.window = round % 5 == 4 ? 100 : 0;
        shape.scale = 2 / sqrtf((float)shape.head_dim);
        shape.head_tiles = shape.group > 8 && shape.head_dim <= 128 && round % 4 < 2 ? 2 : 1;
        shape.warps = shape.head_tiles > 1 || shape.head_dim > 128 ? 2 : 4;
        shape.tile_tokens = shape.warps == 2 || shape.head_dim > 64 ? 16 << round / 3 % 2 : tokens[round % 3];
        shape.page_tokens = 64 << round % 2;
        shape.splits = 1 + round % 4 * 2;
        shape.has_norm = round / 4 % 2;
        shape.rotary_dim = round % 6 == 5 ? shape.head_dim / 2 : 0;
        shape.stages = 2 + round % 5;
        shape.bulk = round / 8 % 2 && has_bulk();
        shape.kv_scales = round % 4 == 2; /* numbers up to 1 are beyond 448 times some */
        const int32_t positions[6] = {0, 15, 99, 100, 1099, (int32_t)test_random_range(&random, 0, 1099)};
        char what[64];
        snprintf(what, sizeof what, "%s head_dim %d group %d", encoding_label(shape.kv_dtype), (int)shape.head_dim,
                 (int)shape.group);
        check_shape(&random, &shape, positions, what);
    }
}

/* Values whose scales are far apart and beyond the range of f16: the largest ones decide. */
TEST(codes_with_extreme_scales)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {10};
    static const int32_t positions[4] = {600, 31, 1000, 200};
    static const float factors[] = {0x1p-60f, 0x1p-20f, 1, 0x1p30f, 0x1p90f};
    for (int round = 0; round < 10; round++) {
        struct shape shape = plain;
        shape.kv_dtype = round % 2 ? ENCODING_INT8_CHANNEL : ENCODING_E4M3_CHANNEL;
        shape.x_dtype = DTYPE_BF16;
        shape.bulk = round / 2 % 2 && has_bulk();
        struct setup setup;
        setup_open(&setup, &random, &shape, positions);
        const int32_t *slots = setup.launch.host[ROPE_ATTENTION_SLOTS];
        for (int64_t r = 0; r < shape.valid; r++)
            for (int64_t g = 0; g < shape.kv_heads; g++)
                for (int64_t t = 0; t < positions[r]; t++) {
                    uint8_t *at = pages_key_scale(&setup.pages, slots[r], t, g) + setup.pages.values;
                    float scale;
                    memcpy(&scale, at, sizeof scale);
                    scale *= factors[round / 2];
                    if (round % 4 >= 2 && t >= positions[r] / 2) scale *= 0x1p12f;
                    memcpy(at, &scale, sizeof scale);
                }
        check_setup(&setup, "extreme scales");
        test_launch_close(&setup.launch);
    }
}

/* Tokens before the window are NaN in the pool. */
TEST(windows)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {4};
    static const int32_t positions[6] = {0, 15, 99, 100, 101, 777};
    static const int64_t sizes[] = {1, 2, 16, 100, 250, 5000};
    for (int round = 0; round < 12; round++) {
        struct shape shape = plain;
        shape.rows = shape.valid = 6;
        shape.slots = 6;
        shape.window = sizes[round % 6];
        shape.tile_tokens = round % 2 ? 32 : 16;
        shape.stages = 2 + round % 4;
        shape.bulk = round / 6 && has_bulk();
        shape.warps = 2;
        check_shape(&random, &shape, positions, "window");
    }
}

TEST(valid_rows_only)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {5};
    static const int32_t positions[9] = {5, 700, 63, 64, 300, 1, 0, 1023, 512};
    for (int valid = 1; valid <= 9; valid += 4) {
        struct shape shape = plain;
        shape.rows = 9;
        shape.valid = valid;
        shape.slots = 9;
        shape.bulk = valid == 5 && has_bulk();
        check_shape(&random, &shape, positions, "valid rows");
    }
}

/* Scores far apart: no overflow, and one token takes all the weight wherever it stands. */
TEST(large_scores)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {6};
    static const int32_t positions[4] = {600, 31, 1000, 200};
    struct shape shape = plain;
    shape.scale = 300;
    shape.kv_dtype = ENCODING_F16, shape.x_dtype = DTYPE_F16;
    struct setup setup;
    setup_open(&setup, &random, &shape, positions);
    const int32_t *slots = setup.launch.host[ROPE_ATTENTION_SLOTS];
    for (int64_t r = 0; r < shape.valid; r++) /* an aligned key decides every head of its group alike */
        for (int64_t g = 0; g < shape.kv_heads; g++) {
            uint16_t *key = (uint16_t *)(void *)pages_key(&setup.pages, slots[r], positions[r] / 2, g);
            for (int64_t d = 0; d < shape.head_dim; d++) key[d] = f16_from_float(8);
        }
    float *qkv = test_launch_decode(&setup.launch, ROPE_ATTENTION_QKV),
          *table = setup.launch.host[ROPE_ATTENTION_TABLE];
    for (size_t i = 0; i < test_launch_count(&setup.launch, ROPE_ATTENTION_QKV); i++) qkv[i] = fabsf(qkv[i]) + 0.25f;
    test_launch_encode(&setup.launch, ROPE_ATTENTION_QKV, qkv);
    for (int64_t i = 0; i < shape.rows * shape.head_dim; i++)
        table[i] = i % shape.head_dim < shape.head_dim / 2 ? 1 : 0;
    check_setup(&setup, "large scores");
    test_launch_close(&setup.launch);
}

/* Adds the kernels of all candidates to `variants`; NULL: checks them. */
static void visit_candidates(struct test_variants *variants)
{
    enum { CAPACITY = 64 };
    static int64_t found[CAPACITY][PLAN_MAX_PARAMS];
    struct test_random random = {7};
    static const int32_t positions[4] = {63, 180, 1099, 640};
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_E4M3_CHANNEL, ENCODING_INT8_CHANNEL};
    for (int round = 0; round < 9; round++) {
        struct shape shape = plain;
        struct setup setup = {.layer_offset = 1 << 24};
        shape.head_dim = (const int64_t[]){128, 64, 512}[round % 3];
        shape.kv_dtype = encodings[round / 3];
        shape.x_dtype = DTYPE_BF16;
        setup.shape = shape;
        set_params(&setup);
        int count = device_rope_attention.candidates(setup.params, &test_device()->device.facts, found, CAPACITY);
        assert_in_range(count, 1, CAPACITY);
        for (int c = 0; c < count; c++) {
            shape.splits = found[c][ROPE_ATTENTION_SPLITS];
            shape.warps = found[c][ROPE_ATTENTION_WARPS];
            shape.tile_tokens = found[c][ROPE_ATTENTION_TILE_TOKENS];
            shape.head_tiles = found[c][ROPE_ATTENTION_HEAD_TILES];
            shape.stages = found[c][ROPE_ATTENTION_STAGES];
            shape.bulk = found[c][ROPE_ATTENTION_BULK];
            shape.alone_tiles = found[c][ROPE_ATTENTION_ALONE_TILES];
            if (!variants) {
                check_shape(&random, &shape, positions, "candidate");
            } else {
                setup_shape(&setup, &shape);
                test_variants_add(variants, &device_rope_attention, setup.params);
            }
        }
    }
}

/* All that the tuner may choose from: alone, split, and the largest context of the slot. */
TEST(every_candidate)
{
    static struct test_variants variants;
    TEST_NEEDS_DEVICE();
    visit_candidates(&variants);
    test_variants_compile(&variants);
    visit_candidates(NULL);
}

TEST(hostile_params)
{
    struct setup setup = {.shape = plain, .layer_offset = 65536};
    const struct device_facts hopper = test_facts(90);
    struct device_geometry geometry;
    set_params(&setup);
    assert_null(device_rope_attention.launch(setup.params, &hopper, &geometry));
    assert_int_equal(geometry.grid[0], hopper.multiprocessors); /* more than 4 rows of 2 heads of 4 splits */
    assert_in_range(geometry.shared_bytes, hopper.shared_per_sm / 3 - 1024, hopper.shared_per_sm / 2 - 1024);
    static const int64_t extremes[] = {INT64_MIN,        -1,       0, 1, 2, 3, 7, 16, 65, 1 << 20, INT32_MAX,
                                       (int64_t)1 << 32, INT64_MAX};
    for (int i = 0; i < ROPE_ATTENTION_PARAMS; i++)
        for (size_t e = 0; e < sizeof extremes / sizeof extremes[0]; e++)
            for (int j = 0; j < ROPE_ATTENTION_PARAMS; j++) {
                int64_t params[PLAN_MAX_PARAMS];
                memcpy(params, setup.params, sizeof params);
                params[j] = extremes[e];
                params[i] = extremes[e];
                if (device_rope_attention.launch(params, &hopper, &geometry)) continue;
                assert_in_range(geometry.grid[0], hopper.multiprocessors, INT32_MAX);
                assert_true(geometry.grid[1] == 1 && geometry.grid[2] == 1 && geometry.block[0] <= 512);
                assert_true(geometry.shared_bytes <= (uint32_t)hopper.shared_per_block);
                assert_true(rope_attention_workspace_bytes(params) >= 64);
                device_rope_attention.candidates(params, &hopper, NULL, 0);
            }
    test_launch_refuses(&device_rope_attention, setup.params,
                        TEST_CHANGES({ROPE_ATTENTION_ROWS, 65536}, {ROPE_ATTENTION_HEADS, 7},
                                     {ROPE_ATTENTION_KV_HEADS, 3}, {ROPE_ATTENTION_HEAD_DIM, 63},
                                     {ROPE_ATTENTION_HEAD_DIM, 514}, {ROPE_ATTENTION_ROTARY_DIM, 31},
                                     {ROPE_ATTENTION_ROTARY_DIM, 66}, {ROPE_ATTENTION_ROTARY_DIM, -2},
                                     {ROPE_ATTENTION_PAGE_TOKENS, 48}, {ROPE_ATTENTION_PAGE_TOKENS, 8},
                                     {ROPE_ATTENTION_PAGE_BYTES, 65537}, {ROPE_ATTENTION_PAGE_BYTES, 4096},
                                     {ROPE_ATTENTION_KV_DTYPE, 1}, {ROPE_ATTENTION_KV_DTYPE, ENCODING_INT4_G32},
                                     {ROPE_ATTENTION_X_DTYPE, 1}, {ROPE_ATTENTION_WINDOW, -1},
                                     {ROPE_ATTENTION_SCALE_BITS, 0}, {ROPE_ATTENTION_SPLITS, 65},
                                     {ROPE_ATTENTION_WARPS, 17}, {ROPE_ATTENTION_TILE_TOKENS, 48},
                                     {ROPE_ATTENTION_TILE_TOKENS, 128}, {ROPE_ATTENTION_HEAD_TILES, 3},
                                     {ROPE_ATTENTION_PAGES_PER_SLOT, INT32_MAX}, {ROPE_ATTENTION_STAGES, 1},
                                     {ROPE_ATTENTION_STAGES, 17}, {ROPE_ATTENTION_BULK, 2},
                                     {ROPE_ATTENTION_ALONE_TILES, 0}, {ROPE_ATTENTION_NORM_SCOPE, 1},
                                     {ROPE_ATTENTION_HAS_MEANS, 1}, {ROPE_ATTENTION_NORM_SCOPE, 2},
                                     {ROPE_ATTENTION_CENTRED, 1}, {ROPE_ATTENTION_NORM_V, 2},
                                     {ROPE_ATTENTION_APPENDED, 2}));
    setup.params[ROPE_ATTENTION_APPENDED] = 1;
    assert_null(device_rope_attention.launch(setup.params, &hopper, &geometry));
    test_launch_refuses(&device_rope_attention, setup.params, TEST_CHANGES({ROPE_ATTENTION_NORM_V, 1}));
}

TEST(candidates_are_legal)
{
    enum { CAPACITY = 64 };
    static int64_t found[CAPACITY][PLAN_MAX_PARAMS];
    static const int64_t dims[] = {2, 64, 80, 128, 256, 512, 330}, groups[] = {1, 4, 8, 12, 32};
    for (int i = 0; i < 140; i++) {
        struct setup setup = {.shape = plain, .layer_offset = 1 << 24};
        struct device_geometry geometry;
        const struct device_facts gpu = test_facts(i / 70 ? 80 : 90);
        setup.shape.head_dim = dims[i % 7];
        setup.shape.group = groups[i / 7 % 5];
        setup.shape.rows = i / 35 % 2 ? 1 : 32;
        setup.shape.page_tokens = i % 3 ? 64 : 16;
        if (i % 4 == 3 && setup.shape.head_dim % 16 == 0) setup.shape.kv_dtype = ENCODING_E4M3_CHANNEL;
        set_params(&setup);
        int count = device_rope_attention.candidates(setup.params, &gpu, found, CAPACITY);
        assert_in_range(count, 1, CAPACITY);
        for (int c = 0; c < count; c++) {
            assert_null(device_rope_attention.launch(found[c], &gpu, &geometry));
            assert_memory_equal(found[c], setup.params, ROPE_ATTENTION_SPLITS * sizeof found[c][0]);
            for (int b = 0; b < c; b++) assert_memory_not_equal(found[c], found[b], sizeof found[c]);
        }
    }
}

int main(void) { return test_run(); }
