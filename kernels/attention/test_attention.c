/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/test_attention.h"

#include <math.h>

#include "formats/encoding/encoding.h"

struct pages attention_setup_pages(const struct attention_setup *setup, void *pool)
{
    return pages_of_latent((uint8_t *)pool + setup->kv_offset, setup->launch.host[ATTENTION_PAGE_TABLE],
                           setup->launch.params, setup->shape.value_dim);
}

static void place_rows(const struct attention_setup *setup, struct test_random *random)
{
    const struct attention_shape *shape = &setup->shape;
    const int64_t pages_per_slot = setup->launch.params[ATTENTION_PAGES_PER_SLOT];
    int32_t *slots = setup->launch.host[ATTENTION_SLOTS], *positions = setup->launch.host[ATTENTION_POSITIONS];
    int32_t *table = setup->launch.host[ATTENTION_PAGE_TABLE];
    const int64_t slot_count = setup->launch.params[ATTENTION_SLOT_COUNT];
    int64_t longest[ATTENTION_MOST_SLOTS] = {0}; /* tokens */
    int64_t slot = ATTENTION_TEST_SLOT, changed = 0, run = test_random_range(random, 0, shape->start);
    const struct pages pages = attention_setup_pages(setup, setup->launch.host[ATTENTION_KV]);
    for (int64_t r = 0; r < shape->rows; r++) {
        const bool changes = shape->scattered && test_random_range(random, 0, 2) == 0;
        if (changes && shape->value_dim) slot = test_random_range(random, 0, slot_count - 1);
        /* The rows of a slot follow each other. */
        if (changes && !shape->value_dim && changed + 1 < slot_count) {
            slot = (slot + 1) % slot_count;
            changed++;
            run = test_random_range(random, 0, shape->start);
        }
        int64_t position = shape->runs        ? run++
                           : shape->scattered ? test_random_range(random, 0, shape->start + 7)
                                              : shape->start + r;
        slots[r] = r < shape->valid ? (int32_t)slot : INT32_MAX;
        positions[r] = r < shape->valid ? (int32_t)position : INT32_MIN;
        if (r >= shape->valid) continue;
        for (int64_t t = longest[slot]; t <= position; t++)
            test_pages_fill(random, &pages, setup->launch.params, slot, t);
        if (position >= longest[slot]) longest[slot] = position + 1;
    }
    for (int64_t s = 0; s < slot_count; s++)
        for (int64_t p = (longest[s] + setup->page_tokens - 1) / setup->page_tokens; p < pages_per_slot; p++)
            table[s * pages_per_slot + p] = p % 2 ? INT32_MAX : -9;
}

static void expect_rows(struct attention_setup *setup, struct test_random *random)
{
    const struct attention_shape *shape = &setup->shape;
    const int64_t width = setup->heads * shape->head_dim, valid = shape->valid;
    const int64_t count = valid < MOST_CHECKED_ROWS ? valid : MOST_CHECKED_ROWS;
    const float *decoded = test_launch_decode(&setup->launch, ATTENTION_Q);
    float *q = test_take(&setup->launch.memory, (size_t)(count * width) * sizeof *q);
    int32_t slots[MOST_CHECKED_ROWS], positions[MOST_CHECKED_ROWS], counts[2] = {(int32_t)count, (int32_t)count};
    for (int64_t i = 0; i < count; i++) {
        int64_t row = i;
        if (count < valid && i >= 4) row = i < 12 ? valid - 1 - (i - 4) : test_random_range(random, 0, valid - 1);
        memcpy(q + i * width, decoded + row * width, (size_t)width * sizeof *q);
        slots[i] = ((int32_t *)setup->launch.host[ATTENTION_SLOTS])[row];
        positions[i] = ((int32_t *)setup->launch.host[ATTENTION_POSITIONS])[row];
        setup->rows[i] = row;
    }
    int64_t params[ATTENTION_PARAMS];
    memcpy(params, setup->launch.params, sizeof params);
    params[ATTENTION_ROWS] = setup->row_count = count;
    setup->expected = test_take(&setup->launch.memory, (size_t)(count * setup->out_width) * sizeof(float));
    const struct op_call call = {
        .params = params,
        .operands = {counts, q, slots, positions, setup->launch.host[ATTENTION_PAGE_TABLE],
                     (uint8_t *)setup->launch.host[ATTENTION_KV] + setup->kv_offset, setup->expected, NULL,
                     setup->launch.host[ATTENTION_SINKS]},
    };
    op_attention.reference(&call);
}

void attention_setup_open(struct attention_setup *setup, struct test_random *random,
                          const struct attention_shape *shape)
{
    *setup = (struct attention_setup){.shape = *shape,
                                      .heads = shape->kv_heads * shape->group,
                                      .page_tokens = shape->page_tokens ? shape->page_tokens : 64};
    setup->out_width = setup->heads * (shape->value_dim ? shape->value_dim : shape->head_dim);
    const bool is_plain = encoding_is_plain(shape->kv_dtype);
    const int64_t element = is_plain ? (int64_t)dtype_bytes((enum dtype)shape->kv_dtype) : 1;
    const int64_t block = 2 * shape->kv_heads * setup->page_tokens * (shape->head_dim * element + (is_plain ? 0 : 4));
    const int64_t unit = 64 * shape->head_dim, context = shape->start + shape->rows;
    const int64_t pages_per_slot = (context + setup->page_tokens - 1) / setup->page_tokens + 2;
    setup->kv_offset = (block + unit - 1) / unit * unit;
    const int64_t params[ATTENTION_PARAMS] = {
        [ATTENTION_ROWS] = shape->rows,
        [ATTENTION_COUNT_INDEX] = shape->count_index,
        [ATTENTION_HEADS] = setup->heads,
        [ATTENTION_KV_HEADS] = shape->kv_heads,
        [ATTENTION_HEAD_DIM] = shape->head_dim,
        [ATTENTION_PAGE_TOKENS] = setup->page_tokens,
        [ATTENTION_PAGES_PER_SLOT] = pages_per_slot,
        [ATTENTION_PAGE_BYTES] = 3 * setup->kv_offset, /* three layers, of which this is the second */
        [ATTENTION_SLOT_COUNT] = shape->slots ? shape->slots : ATTENTION_FEW_SLOTS,
        [ATTENTION_KV_DTYPE] = shape->kv_dtype,
        [ATTENTION_X_DTYPE] = shape->x_dtype,
        [ATTENTION_WINDOW] = shape->window,
        /* Sharper than in models: a few tokens have most of the weight. */
        [ATTENTION_SCALE_BITS] = test_float_bits(3 / sqrtf((float)shape->head_dim)),
        [ATTENTION_SCATTERED] = shape->scattered,
        [ATTENTION_CAP_BITS] = test_float_bits(shape->cap),
        [ATTENTION_HAS_SINKS] = shape->sinks != DTYPE_NONE,
        [ATTENTION_SINKS_DTYPE] = shape->sinks ? shape->sinks : DTYPE_F32,
        [ATTENTION_VALUE_DIM] = shape->value_dim,
    };
    struct test_launch *launch = &setup->launch;
    test_launch_open_operands(launch, &op_attention, params, shape->valid);
    const int64_t pages = params[ATTENTION_SLOT_COUNT] * pages_per_slot,
                  pool_bytes = pages * params[ATTENTION_PAGE_BYTES];
    test_launch_resize(launch, ATTENTION_KV, (size_t)pool_bytes, (size_t)setup->kv_offset);
    launch->space_rows = (uint64_t)((pool_bytes - setup->kv_offset) / (shape->head_dim * element));
    int32_t *table = launch->host[ATTENTION_PAGE_TABLE];
    for (int64_t i = 0; i < pages; i++) table[i] = (int32_t)i;
    test_shuffle(random, table, (size_t)pages);
    place_rows(setup, random);
    const int64_t filled = shape->nan_rows ? shape->valid : shape->rows;
    test_fill(random, launch->host[ATTENTION_Q], (size_t)(filled * setup->heads * shape->head_dim), shape->x_dtype, -1,
              1);
    if (shape->sinks) test_launch_fill(launch, ATTENTION_SINKS, random, -2, 3);
    if (shape->in_place) test_launch_alias(launch, ATTENTION_Q, ATTENTION_OUT);
    expect_rows(setup, random);
}

void attention_setup_check(struct attention_setup *setup, double tolerance, const char *what)
{
    const size_t width = (size_t)setup->out_width, element = dtype_bytes(setup->shape.x_dtype);
    struct test_memory memory = {.count = 0};
    float *found = test_take(&memory, width * sizeof *found);
    for (int64_t i = 0; i < setup->row_count; i++) {
        char row[512];
        snprintf(row, sizeof row, "%s: %d rows from %d, row %d", what, (int)setup->shape.valid, (int)setup->shape.start,
                 (int)setup->rows[i]);
        test_decode((uint8_t *)setup->launch.found[ATTENTION_OUT] + (size_t)setup->rows[i] * width * element, found,
                    width, setup->shape.x_dtype);
        test_assert_close(found, setup->expected + i * (int64_t)width, width, tolerance, 0x1p-9, row);
    }
    test_release(&memory);
}

/* As many bytes as any of the candidates needs, zero. */
static void make_counters(struct test_launch *launch, const struct device_kernel *kernel,
                          int64_t (*list)[PLAN_MAX_PARAMS], int count)
{
    uint64_t most = 1;
    for (int i = 0; kernel->counter_bytes && i < count; i++)
        if (kernel->counter_bytes(list[i]) > most) most = kernel->counter_bytes(list[i]);
    if (!launch->host[ATTENTION_COUNTERS]) return;
    test_launch_resize(launch, ATTENTION_COUNTERS, most, 0);
    memset(launch->host[ATTENTION_COUNTERS], 0, most);
}

void attention_check_candidates(struct test_random *random, const struct attention_shape *shape,
                                const struct device_kernel *kernel, int most, double tolerance)
{
    enum { MOST_CANDIDATES = 16 };
    int64_t list[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    struct attention_setup setup;
    attention_setup_open(&setup, random, shape);
    struct test_launch *launch = &setup.launch;
    int count = kernel->candidates(launch->params, &test_device()->device.facts, list,
                                   most < MOST_CANDIDATES ? most : MOST_CANDIDATES);
    assert_true(count >= 1);
    make_counters(launch, kernel, list, count);
    for (int i = 0; i < count; i++) {
        const char *what = test_describe(kernel, list[i]);
        test_kernel_open(&launch->kernel, kernel, list[i]);
        if (launch->kernel.local_bytes)
            fail_msg("%s: %d bytes of registers are spilled", what, launch->kernel.local_bytes);
        test_launch_run_twice(launch);
        attention_setup_check(&setup, tolerance, what);
        const uint8_t *counters = launch->found[ATTENTION_COUNTERS];
        for (size_t b = 0; counters && b < launch->device[ATTENTION_COUNTERS].bytes; b++)
            assert_int_equal(counters[b], 0);
        test_launch_assert_rows_untouched(launch, ATTENTION_OUT);
        test_kernel_close(&launch->kernel);
    }
    test_launch_close(launch);
}
