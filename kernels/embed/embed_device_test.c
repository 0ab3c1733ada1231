/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embed/embed.h"
#include "kernels/cuda/test_launch.h"
#include "kernels/matmul/test_coded.h"
#include "kernels/matmul/weight_layout.h"

enum { SHARED_BY = 3 }; /* ranks, where they share the vocabulary */

/* Rows of the tokens that follow. */
static bool follows;

static float value_of(int64_t token, int64_t k) { return (float)((token * 31 + k * 7) % 1999) * 0.013f - 9.0f; }

/* What the elements of the table are after they were encoded. */
static const float *make_table(struct test_launch *launch, struct test_random *random)
{
    const int64_t *params = launch->params, vocab = params[EMBED_VOCAB], pitch = params[EMBED_PITCH];
    float *table = test_take(&launch->memory, (size_t)(vocab * pitch) * sizeof *table);
    struct panel_form form;
    if (fragment_form(params[EMBED_TABLE_DTYPE], &form)) {
        const uint64_t panel = fragment_bytes((uint64_t)pitch, params[EMBED_TABLE_DTYPE]);
        uint8_t *panels = launch->host[EMBED_TABLE];
        test_coded_matrix(random, &form, panel, (uint64_t)vocab, (uint64_t)pitch, panels, table);
        /* To the bit: not what the codes stand for, rounded in another order. */
        for (int64_t row = 0; row < vocab; row++)
            panel_read(&form, panels, (uint64_t)row, (uint64_t)pitch, 0, (uint64_t)pitch, table + row * pitch);
        return table;
    }
    for (int64_t i = 0; i < vocab * pitch; i++) table[i] = value_of(i / pitch, i % pitch);
    test_launch_encode(launch, EMBED_TABLE, table);
    return test_launch_decode(launch, EMBED_TABLE);
}

/* rank < 0: not sharded; else tokens are of all ranks' shares of `vocab` rows each, and the others' rows become zero. */
static void check_all(int64_t rows, int64_t valid, int64_t hidden, int64_t pitch, int64_t vocab, int64_t dtype,
                      int rank, enum dtype out_dtype, enum dtype position_dtype)
{
    enum { MOST_POSITIONS = 70 };
    const float scale = rows % 2 ? 1 : 0.22f;
    const int64_t tokens_in_all = rank < 0 ? vocab : SHARED_BY * vocab, first = rank < 0 ? 0 : rank * vocab;
    const struct comm_header header = {.rank = (uint32_t)rank, .ranks = SHARED_BY};
    int64_t params[EMBED_PARAMS] = {rows, 1, hidden, pitch, vocab, dtype, rank >= 0, out_dtype};
    params[EMBED_SCALE_BITS] = test_float_bits(scale);
    params[EMBED_LAYOUT] = weight_layout_of(TARGET_CUDA, dtype);
    params[EMBED_HAS_POSITIONS] = position_dtype != DTYPE_NONE;
    params[EMBED_POSITION_DTYPE] = position_dtype;
    params[EMBED_MOST_POSITIONS] = MOST_POSITIONS;
    params[EMBED_FOLLOWS] = follows;
    params[EMBED_OUT_ROWS] = follows ? rows : 1;
    test_complete_params(&op_embed, params);
    struct test_random random = {(uint64_t)(rows * 77 + hidden)};
    struct test_launch launch;
    test_launch_open(&launch, &device_embed, params, valid);
    float *row = test_take(&launch.memory, (size_t)hidden * sizeof *row);
    int32_t *tokens = launch.host[EMBED_TOKENS];
    const float *table = make_table(&launch, &random);
    if (rank >= 0) memcpy(launch.host[EMBED_HEADER], &header, sizeof header);
    for (int64_t r = 0; r < rows; r++)
        tokens[r] = r < valid ? (int32_t)test_random_range(&random, 0, tokens_in_all - 1) : INT32_MIN + (int32_t)r;
    const float *added = NULL;
    int32_t *positions = launch.host[EMBED_POSITIONS];
    if (position_dtype) {
        test_launch_fill(&launch, EMBED_POSITION_TABLE, &random, -3, 3);
        added = test_launch_decode(&launch, EMBED_POSITION_TABLE);
        for (int64_t r = 0; r < rows; r++) positions[r] = (int32_t)((r * 37 + 69) % MOST_POSITIONS);
    }
    tokens[0] = (int32_t)(first + vocab) - 1;
    if (valid > 1) tokens[1] = (int32_t)(first + vocab) % (int32_t)tokens_in_all; /* the next rank's first */
    if (valid > 2) tokens[2] = PLAN_NO_TOKEN;
    if (valid > 3) tokens[3] = (int32_t)tokens_in_all;
    if (valid > 4) tokens[4] = INT32_MAX;
    if (valid > 5) tokens[5] = INT32_MIN;
    if (follows) { /* some are drawn, by out rows from the last valid one on */
        int32_t *following = launch.host[EMBED_FOLLOWING], *drawn = launch.host[EMBED_DRAWN];
        for (int64_t r = 0; r < valid; r++) {
            const bool is_drawn = r % 2 || tokens[r] < 0;
            drawn[valid - 1 - r] = is_drawn ? tokens[r] : INT32_MAX;
            following[r] = is_drawn ? ~(int32_t)(valid - 1 - r) : tokens[r];
        }
    }
    test_launch_run(&launch);
    const float *out = test_launch_found(&launch, EMBED_OUT);
    for (int64_t r = 0; r < valid; r++) {
        int64_t token = tokens[r] - first;
        bool here = token >= 0 && token < vocab;
        for (int64_t k = 0; k < hidden; k++) row[k] = here ? table[token * pitch + k] * scale : 0;
        for (int64_t k = 0; added && here && k < hidden; k++) row[k] += added[positions[r] * hidden + k];
        test_round(row, (size_t)hidden, out_dtype);
        for (int64_t k = 0; k < hidden; k++)
            if (out[r * hidden + k] != row[k])
                fail_msg("rows %d hidden %d %s to %s, rank %d: row %d column %d", (int)rows, (int)hidden,
                         encoding_label(dtype), dtype_name(out_dtype), rank, (int)r, (int)k);
    }
    test_launch_assert_rows_untouched(&launch, EMBED_OUT);
    test_launch_close(&launch);
}

static void check(int64_t rows, int64_t valid, int64_t hidden, int64_t pitch, int64_t vocab, int64_t dtype, int rank,
                  enum dtype out_dtype)
{
    check_all(rows, valid, hidden, pitch, vocab, dtype, rank, out_dtype, DTYPE_NONE);
}

TEST(adds_positions)
{
    TEST_NEEDS_DEVICE();
    check_all(15, 11, 768, 768, 100, DTYPE_BF16, -1, DTYPE_F32, DTYPE_BF16);
    check_all(5, 5, 100, 104, 37, DTYPE_F32, -1, DTYPE_F32, DTYPE_F32);
    check_all(9, 7, 513, 513, 37, DTYPE_F16, 1, DTYPE_BF16, DTYPE_F16);
}

TEST(follows_tokens)
{
    TEST_NEEDS_DEVICE();
    follows = true;
    check(1, 1, 2048, 2048, 320, DTYPE_BF16, -1, DTYPE_F32);
    check(16, 11, 513, 520, 100, DTYPE_F16, 1, DTYPE_BF16);
    follows = false;
}

TEST(gathers)
{
    TEST_NEEDS_DEVICE();
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int d = 0; d < 3; d++) {
        check(1, 1, 2048, 2048, 320, dtypes[d], -1, DTYPE_F32);
        check(16, 11, 4096, 4096, 100, dtypes[d], -1, DTYPE_F32);
        check(5, 4, 24, 32, 7, dtypes[d], -1, DTYPE_F32);
        check(7, 7, 33, 35, 17, dtypes[d], -1, DTYPE_F32);
    }
    check(300, 257, 2056, 2056, 50, DTYPE_BF16, -1, DTYPE_F32);
    check(3, 2, 1, 1, 1, DTYPE_F16, -1, DTYPE_F32);
    check(9, 8, 2048, 2048, 100, DTYPE_F32, -1, DTYPE_BF16); /* rounds */
    check(9, 8, 33, 35, 100, DTYPE_F32, -1, DTYPE_F16);
}

TEST(gathers_codes)
{
    TEST_NEEDS_DEVICE();
    for (size_t e = 0; encoding_at(e); e++) {
        struct panel_form form;
        const int64_t encoding = encoding_at(e)->id;
        if (!fragment_form(encoding, &form)) continue;
        check(1, 1, 2048, 2048, 320, encoding, -1, DTYPE_F32);
        check(16, 11, 1024, 1024, 100, encoding, -1, DTYPE_BF16);
        check(7, 7, 250, 256, 17, encoding, 1, DTYPE_F16);
        check(300, 257, 2000, 2048, 50, encoding, 2, DTYPE_F32);
    }
}

/* A rank's share of the vocabulary: its tokens' rows, and zeros. */
TEST(gathers_a_share)
{
    TEST_NEEDS_DEVICE();
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int rank = 0; rank < SHARED_BY; rank++)
        for (int d = 0; d < 3; d++) {
            check(16, 13, 4096, 4096, 100, dtypes[d], rank, dtypes[d]);
            check(7, 7, 33, 35, 17, dtypes[d], rank, dtypes[(d + 1) % 3]);
            check(40, 31, 2056, 2056, 5, dtypes[d], rank, DTYPE_BF16);
        }
    check(1, 1, 2048, 2048, 42752, DTYPE_BF16, 1, DTYPE_BF16);
}

TEST(hostile_params_are_refused)
{
    int64_t params[EMBED_PARAMS] = {4, 0, 64, 64, 320, DTYPE_BF16, 1, DTYPE_BF16};
    test_complete_params(&op_embed, params);
    test_hostile_launches(&device_embed, params);
    test_launch_refuses(&device_embed, params,
                        TEST_CHANGES({EMBED_ROWS, 0}, {EMBED_PITCH, 63}, {EMBED_VOCAB, 0},
                                     {EMBED_TABLE_DTYPE, DTYPE_I8}, {EMBED_SHARDED, 2}, {EMBED_OUT_DTYPE, DTYPE_I8},
                                     {EMBED_LAYOUT, LAYOUT_PANEL16},
                                     {EMBED_LAYOUT, LAYOUT_FRAGMENT16} /* which BF16 has not */,
                                     {EMBED_TABLE_DTYPE, ENCODING_INT8_CHANNEL} /* row by row */));
    params[EMBED_LAYOUT] = LAYOUT_FRAGMENT16;
    params[EMBED_TABLE_DTYPE] = ENCODING_INT4_G32;
    test_hostile_launches(&device_embed, params);
    test_launch_refuses(&device_embed, params,
                        TEST_CHANGES({EMBED_LAYOUT, LAYOUT_ROW_MAJOR}, {EMBED_LAYOUT, LAYOUT_PANEL16},
                                     {EMBED_TABLE_DTYPE, DTYPE_F16}, {EMBED_TABLE_DTYPE, ENCODING_E4M3_TENSOR}));
}

int main(void) { return test_run(); }
