/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embed/embed.h"
#include "kernels/op/test_support.h"

#include "formats/engine/engine_file.h"
#include "kernels/matmul/panel.h"

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

/* Writes element (token, k) of a table in either layout by the definition of the layouts. */
static void put(void *table, int64_t layout, enum dtype dtype, int64_t hidden, int64_t token, int64_t k, float value)
{
    uint64_t index = (uint64_t)(token * hidden + k);
    if (layout == LAYOUT_PANEL16)
        index = panel_index((uint64_t)token, (uint64_t)k, panel_depth((uint64_t)hidden, dtype), dtype);
    if (dtype == DTYPE_F32)
        ((float *)table)[index] = value;
    else
        ((uint16_t *)table)[index] = dtype == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
}

static float get(enum dtype dtype, float value)
{
    if (dtype == DTYPE_F32) return value;
    return dtype == DTYPE_F16 ? f16_to_float(f16_from_float(value)) : bf16_to_float(bf16_from_float(value));
}

static float value_of(int64_t token, int64_t k) { return (float)((token * 31 + k * 7) % 1999) * 0.013f - 9.0f; }

TEST(gathers)
{
    struct test_random random = {4};
    static const int64_t hiddens[] = {1, 2, 3, 16, 33, 64, 511, 513, 1025, 2048};
    static const int64_t vocabs[] = {1, 15, 17, 320};
    for (int h = 0; h < 10; h++) {
        for (int v = 0; v < 4; v++) {
            for (int d = 0; d < 3; d++) {
                for (int64_t layout = LAYOUT_ROW_MAJOR; layout <= LAYOUT_PANEL16; layout++) {
                    int64_t hidden = hiddens[h], vocab = vocabs[v], rows = test_random_range(&random, 1, 5);
                    int64_t valid = test_random_range(&random, 1, rows);
                    const float scale = h % 2 ? 12.5f : 1;
                    const int64_t params[EMBED_PARAMS] = {rows,      0, hidden, hidden, vocab,
                                                          dtypes[d], 0, 0,      layout, test_float_bits(scale)};
                    struct plan_geometry geometry = test_geometry;
                    geometry.vocab_size = (uint64_t)vocab;
                    struct test_case test;
                    test_case_open(&test, &op_embed, params, &geometry, (int32_t)valid);
                    assert_int_equal(test.operand_count, EMBED_HEADER);
                    assert_null(test.call.operands[EMBED_HEADER]);
                    for (int64_t t = 0; t < vocab; t++)
                        for (int64_t k = 0; k < hidden; k++)
                            put(test.call.operands[EMBED_TABLE], layout, dtypes[d], hidden, t, k, value_of(t, k));
                    int32_t *tokens = test.call.operands[EMBED_TOKENS];
                    for (int64_t r = 0; r < valid; r++) tokens[r] = (int32_t)test_random_range(&random, 0, vocab - 1);
                    tokens[0] = (int32_t)vocab - 1;
                    float *out = test.call.operands[EMBED_OUT];
                    for (int run = 0; run <= TEST_TEAMS; run++) {
                        test_case_run(&test, EMBED_OUT, run);
                        for (int64_t r = 0; r < valid; r++)
                            for (int64_t k = 0; k < hidden; k++)
                                if (out[r * hidden + k] != get(dtypes[d], value_of(tokens[r], k)) * scale)
                                    fail_msg("hidden %d vocab %d %s layout %d: row %d column %d", (int)hidden,
                                             (int)vocab, dtype_name(dtypes[d]), (int)layout, (int)r, (int)k);
                        assert_true(test_is_poison(out + valid * hidden, (size_t)((rows - valid) * hidden) * 4));
                    }
                    test_case_close(&test);
                }
            }
        }
    }
}

/* Rows of a second table, by position, for tokens that the rank has. */
TEST(adds_positions)
{
    enum { ROWS = 7, HIDDEN = 515, VOCAB = 20, POSITIONS = 64 };
    for (int d = 0; d < 3; d++) {
        int64_t params[EMBED_PARAMS] = {ROWS, 0, HIDDEN, HIDDEN, VOCAB, DTYPE_BF16, 0, 0, LAYOUT_ROW_MAJOR};
        struct plan_geometry geometry = test_geometry;
        struct test_case test;
        geometry.vocab_size = VOCAB;
        geometry.max_context = POSITIONS;
        params[EMBED_SCALE_BITS] = test_float_bits(2);
        params[EMBED_HAS_POSITIONS] = 1;
        params[EMBED_POSITION_DTYPE] = dtypes[d];
        params[EMBED_MOST_POSITIONS] = POSITIONS;
        test_case_open(&test, &op_embed, params, &geometry, ROWS - 1);
        for (int64_t k = 0; k < HIDDEN; k++) {
            for (int64_t t = 0; t < VOCAB; t++)
                put(test.call.operands[EMBED_TABLE], LAYOUT_ROW_MAJOR, DTYPE_BF16, HIDDEN, t, k, value_of(t, k));
            for (int64_t p = 0; p < POSITIONS; p++)
                put(test.call.operands[EMBED_POSITION_TABLE], LAYOUT_ROW_MAJOR, dtypes[d], HIDDEN, p, k,
                    value_of(p + 100, k));
        }
        int32_t *tokens = test.call.operands[EMBED_TOKENS], *positions = test.call.operands[EMBED_POSITIONS];
        for (int r = 0; r < ROWS - 1; r++) tokens[r] = 3 * r, positions[r] = (r * 37 + 63) % POSITIONS;
        tokens[2] = PLAN_NO_TOKEN;
        const float *out = test.call.operands[EMBED_OUT];
        for (int run = 0; run <= TEST_TEAMS; run++) {
            test_case_run(&test, EMBED_OUT, run);
            for (int64_t r = 0; r < ROWS - 1; r++)
                for (int64_t k = 0; k < HIDDEN; k++) {
                    const float sum =
                        get(DTYPE_BF16, value_of(tokens[r], k)) * 2 + get(dtypes[d], value_of(positions[r] + 100, k));
                    if (out[r * HIDDEN + k] != (r == 2 ? 0 : sum)) fail_msg("row %d column %d", (int)r, (int)k);
                }
        }
        test_case_close(&test);
        params[EMBED_MOST_POSITIONS] = POSITIONS - 1; /* a position would lie outside */
        test_refuses(&op_embed, params, &geometry, TEST_CHANGES({EMBED_COUNT_INDEX, 0}));
    }
}

/* Rows of the tokens that follow: known ones, and those that valid out rows have drawn. */
TEST(follows)
{
    enum { ROWS = 6, OUT_ROWS = 3, HIDDEN = 515, VOCAB = 20 };
    static const int32_t following[ROWS] = {7, ~0, 19, ~1, ~2, INT32_MIN}, drawn[OUT_ROWS] = {4, PLAN_NO_TOKEN, 5};
    static const int32_t expected[ROWS] = {7, 4, 19, PLAN_NO_TOKEN, PLAN_NO_TOKEN, PLAN_NO_TOKEN};
    int64_t params[EMBED_PARAMS] = {ROWS, 0, HIDDEN, HIDDEN, VOCAB, DTYPE_BF16, 0, 0, LAYOUT_ROW_MAJOR};
    struct plan_geometry geometry = test_geometry;
    struct test_case test;
    geometry.vocab_size = VOCAB;
    params[EMBED_FOLLOWS] = 1;
    params[EMBED_OUT_ROWS] = OUT_ROWS;
    test_case_open(&test, &op_embed, params, &geometry, ROWS);
    for (int64_t t = 0; t < VOCAB; t++)
        for (int64_t k = 0; k < HIDDEN; k++)
            put(test.call.operands[EMBED_TABLE], LAYOUT_ROW_MAJOR, DTYPE_BF16, HIDDEN, t, k, value_of(t, k));
    memcpy(test.call.operands[EMBED_FOLLOWING], following, sizeof following);
    memcpy(test.call.operands[EMBED_DRAWN], drawn, sizeof drawn);
    const float *out = test.call.operands[EMBED_OUT];
    for (int run = 0; run <= TEST_TEAMS; run++) {
        ((int32_t *)test.call.operands[EMBED_COUNTS])[1] = run % 2 ? 2 : 1000; /* hostile: more than there are */
        test_case_run(&test, EMBED_OUT, run);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t k = 0; k < HIDDEN; k++) {
                const int32_t token = r == 4 && run % 2 == 0 ? 5 : expected[r];
                if (out[r * HIDDEN + k] != (token < 0 ? 0 : get(DTYPE_BF16, value_of(token, k))))
                    fail_msg("row %d column %d", (int)r, (int)k);
            }
    }
    test_case_close(&test);
    test_hostile_params(&op_embed, params, &geometry);
}

/* Each rank gives the rows of its own tokens and zeros for the others'. */
TEST(ranks_share_the_vocabulary)
{
    enum { ROWS = 24, HIDDEN = 515 };
    static const int counts[] = {2, 3, 8, PLAN_MAX_RANKS};
    static const int64_t vocabs[] = {3, 17, 100}; /* 3: most ranks have none */
    struct test_random random = {5};
    for (int i = 0; i < 4 * 3 * 2; i++) {
        int count = counts[i % 4];
        int64_t vocab = vocabs[i / 4 % 3], layout = i / 12 ? LAYOUT_PANEL16 : LAYOUT_ROW_MAJOR, valid = ROWS - i % 3;
        enum dtype dtype = dtypes[i % 3];
        struct plan_geometry geometry = test_geometry;
        geometry.vocab_size = (uint64_t)vocab;
        geometry.ranks = (uint64_t)count;
        int64_t each = (int64_t)plan_rank_vocab(&geometry);
        const int64_t params[EMBED_PARAMS] = {ROWS, 0, HIDDEN, HIDDEN, each, dtype, 1, 0, layout};
        struct test_ranks ranks;
        test_ranks_open(&ranks, count, 0, 0);
        int32_t wanted[ROWS];
        for (int r = 0; r < ROWS; r++) wanted[r] = (int32_t)test_random_range(&random, 0, vocab - 1);
        wanted[0] = 0;
        wanted[1] = (int32_t)vocab - 1;
        for (int rank = 0; rank < count; rank++) {
            struct test_case test;
            test_case_open(&test, &op_embed, params, &geometry, (int32_t)valid);
            assert_int_equal(test.operand_count, EMBED_HEADER + 1);
            assert_int_equal(test.demands[EMBED_HEADER].bytes, sizeof(struct comm_header));
            assert_int_equal(test.demands[EMBED_HEADER].access, ACCESS_READ);
            test.call.operands[EMBED_HEADER] = test_ranks_header(&ranks, rank);
            for (int64_t t = 0; t < each; t++)
                for (int64_t k = 0; k < HIDDEN; k++)
                    put(test.call.operands[EMBED_TABLE], layout, dtype, HIDDEN, t, k, value_of(rank * each + t, k));
            memcpy(test.call.operands[EMBED_TOKENS], wanted, (size_t)valid * sizeof wanted[0]);
            float *out = test.call.operands[EMBED_OUT];
            for (int run = 0; run <= TEST_TEAMS; run++) {
                test_case_run(&test, EMBED_OUT, run);
                for (int64_t r = 0; r < valid; r++)
                    for (int64_t k = 0; k < HIDDEN; k++)
                        if (out[r * HIDDEN + k] != (wanted[r] / each == rank ? get(dtype, value_of(wanted[r], k)) : 0))
                            fail_msg("vocab %d, rank %d of %d, layout %d: row %d column %d", (int)vocab, rank, count,
                                     (int)layout, (int)r, (int)k);
                assert_true(test_is_poison(out + valid * HIDDEN, (size_t)((ROWS - valid) * HIDDEN) * sizeof *out));
            }
            test_case_close(&test);
        }
        test_ranks_close(&ranks);
    }
}

/* PLAN_NO_TOKEN, which a step finds if it was queued after one that drew nothing, and any other token out of range. */
TEST(tokens_that_do_not_exist_are_zero)
{
    enum { ROWS = 6, HIDDEN = 33, VOCAB = 17 };
    static const int32_t tokens[ROWS] = {PLAN_NO_TOKEN, VOCAB, 3, INT32_MAX, INT32_MIN, VOCAB - 1};
    for (int d = 0; d < 3; d++)
        for (int64_t layout = LAYOUT_ROW_MAJOR; layout <= LAYOUT_PANEL16; layout++)
            for (int run = 0; run <= TEST_TEAMS; run++) {
                const int64_t params[EMBED_PARAMS] = {ROWS, 0, HIDDEN, HIDDEN, VOCAB, dtypes[d], 0, 0, layout};
                struct plan_geometry geometry = test_geometry;
                geometry.vocab_size = VOCAB;
                struct test_case test;
                test_case_open(&test, &op_embed, params, &geometry, ROWS);
                for (int64_t t = 0; t < VOCAB; t++)
                    for (int64_t k = 0; k < HIDDEN; k++)
                        put(test.call.operands[EMBED_TABLE], layout, dtypes[d], HIDDEN, t, k, value_of(t, k));
                memcpy(test.call.operands[EMBED_TOKENS], tokens, sizeof tokens);
                const float *out = test.call.operands[EMBED_OUT];
                test_case_run(&test, EMBED_OUT, run);
                for (int r = 0; r < ROWS; r++)
                    for (int64_t k = 0; k < HIDDEN; k++) {
                        const bool exists = tokens[r] >= 0 && tokens[r] < VOCAB;
                        const float expected = exists ? get(dtypes[d], value_of(tokens[r], k)) : 0;
                        if (out[r * HIDDEN + k] != expected) fail_msg("token %d column %d", tokens[r], (int)k);
                    }
                test_case_close(&test);
            }
}

TEST(hostile_params_are_refused)
{
    const struct plan_geometry geometry =
        {.slots = 1, .max_context = 8, .page_tokens = 8, .pages_per_slot = 1, .page_bytes = 64, .vocab_size = 320};
    const int64_t params[EMBED_PARAMS] = {4, 0, 64, 64, 320, DTYPE_BF16, 0, 0, LAYOUT_PANEL16};
    test_hostile_params(&op_embed, params, &geometry);
    test_refuses(&op_embed, params, &geometry,
                 TEST_CHANGES({EMBED_HIDDEN, 0}, {EMBED_VOCAB, 0}, {EMBED_VOCAB, 319},
                              /* a token could lie outside */ {EMBED_TABLE_DTYPE, DTYPE_I8}, {EMBED_TABLE_DTYPE, -1},
                              {EMBED_SCALE_BITS, OP_FLOAT_MAX_BITS + 1}, {EMBED_LAYOUT, LAYOUT_FRAGMENT16},
                              {EMBED_TABLE_DTYPE, ENCODING_E4M3_TENSOR}, {EMBED_LAYOUT, -1}));

    /* Several ranks: the table has this many rows and no others, or tokens would belong to the wrong rank. */
    struct plan_geometry shared = geometry;
    shared.ranks = 3;
    const int64_t part[EMBED_PARAMS] = {4, 0, 64, 64, 107, DTYPE_BF16, 1, 0, LAYOUT_PANEL16};
    test_hostile_params(&op_embed, part, &shared);
    test_refuses(&op_embed, part, &shared, TEST_CHANGES({EMBED_VOCAB, 106}, {EMBED_VOCAB, 108}, {EMBED_VOCAB, 320}));
    test_refuses(&op_embed, part, &geometry, TEST_CHANGES({EMBED_VOCAB, 107}));
    /* One rank's may have more, as before. */
    struct op_demand operands[PLAN_MAX_OPERANDS];
    int operand_count;
    int64_t longer[EMBED_PARAMS] = {4, 0, 64, 64, 336, DTYPE_BF16, 0, DTYPE_F32, LAYOUT_PANEL16, OP_FLOAT_ONE_BITS};
    test_complete_params(&op_embed, longer);
    for (shared.ranks = 0; shared.ranks < 2; shared.ranks++) {
        assert_true(op_demands(&op_embed, TARGET_CPU, longer, &shared, operands, &operand_count, NULL));
        assert_int_equal(operand_count, EMBED_HEADER);
    }
}

int main(void) { return test_run(); }
