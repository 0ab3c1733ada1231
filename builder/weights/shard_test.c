/* SPDX-License-Identifier: Apache-2.0 */
/* Who gets what of a model that ranks share: shapes that can be shared, and the part of a tensor that is a rank's. */

#include "builder/weights/shard.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

/* ---- shard_config ---- */

static struct model_config config_with(uint64_t heads, uint64_t kv_heads, uint64_t inner)
{
    struct model_config config;
    memset(&config, 0x5a, sizeof config);
    config.layers = 1;
    config.layer[0] = (struct model_layer){0};
    config.heads = heads;
    config.kv_heads = kv_heads;
    config.intermediate_size = inner;
    config.experts.intermediate_size = 2 * inner;
    config.experts.shared_size = 3 * inner;
    config.recurrent =
        (struct model_recurrent){.channels = 4 * inner, .key_heads = 5 * inner, .value_heads = 6 * inner};
    return config;
}

TEST(ranks_get_equal_shares)
{
    static const struct {
        uint64_t heads, kv_heads, inner;
        uint32_t ranks;
        uint64_t rank_heads, rank_kv_heads, rank_inner;
    } cases[] = {
        {32, 8, 14336, 1, 32, 8, 14336}, {32, 8, 14336, 2, 16, 4, 7168},
        {32, 8, 14336, 8, 4, 1, 1792},   {32, 8, 14336, 16, 2, 1, 896} /* two ranks share each KV head */,
        {64, 8, 28672, 4, 16, 2, 7168},  {14, 2, 4864, 2, 7, 1, 2432},
        {9, 3, 1536, 3, 3, 1, 512},      {3, 1, 21, 3, 1, 1, 7},
        {16, 1, 16, 16, 1, 1, 1},        {12, 4, 12, 12, 1, 1, 1},
        {16, 16, 32, 16, 1, 1, 2},       {1, 1, 1, 1, 1, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config whole = config_with(cases[i].heads, cases[i].kv_heads, cases[i].inner), rank,
                            expected = whole;
        struct status status = {0};
        memset(&rank, 0xff, sizeof rank);
        test_expect_success(shard_config(&whole, cases[i].ranks, &rank, &status), &status);
        expected.heads = cases[i].rank_heads;
        expected.kv_heads = cases[i].rank_kv_heads;
        expected.intermediate_size = cases[i].rank_inner;
        expected.experts.intermediate_size = 2 * cases[i].rank_inner;
        expected.experts.shared_size = 3 * cases[i].rank_inner;
        expected.recurrent.channels = 4 * cases[i].rank_inner;
        expected.recurrent.key_heads = 5 * cases[i].rank_inner;
        expected.recurrent.value_heads = 6 * cases[i].rank_inner;
        assert_memory_equal(&rank, &expected, sizeof rank); /* all else is every rank's */
    }
}

TEST(experts_that_cannot_be_shared_are_named)
{
    struct model_config whole = config_with(8, 8, 16), rank;
    struct status status = {0};
    whole.experts.intermediate_size = 18;
    test_expect_failure(shard_config(&whole, 4, &rank, &status), &status, STATUS_BAD_INPUT,
                        "--gpus: 4 GPUs cannot share 18 rows of an expert equally|moe_intermediate_size");
    whole.experts.intermediate_size = 16;
    whole.experts.shared_size = 10;
    test_expect_failure(shard_config(&whole, 4, &rank, &status), &status, STATUS_BAD_INPUT,
                        "--gpus: 4 GPUs cannot share 10 rows of the shared expert equally");
}

/* A layer may have KV heads and rows of its MLP of its own. */
TEST(layers_with_other_heads)
{
    struct model_config whole = config_with(16, 8, 32), rank;
    struct status status = {0};
    whole.layers = 2;
    whole.layer[1] = (struct model_layer){.kv_heads = 2, .inner = 64};
    test_expect_success(shard_config(&whole, 4, &rank, &status), &status);
    assert_true(model_kv_heads(&rank, 0) == 2 && model_kv_heads(&rank, 1) == 1 && rank.layer[1].inner == 16);
    whole.layer[1].kv_heads = 3;
    test_expect_failure(shard_config(&whole, 4, &rank, &status), &status, STATUS_BAD_INPUT,
                        "--gpus: 4 GPUs cannot share the 3 KV heads of layer 1");
}

TEST(shapes_that_cannot_be_shared_are_named)
{
    static const struct {
        uint64_t heads, kv_heads, inner;
        uint32_t ranks;
        const char *words;
    } cases[] = {
        {32, 8, 14336, 3, "--gpus: 3 GPUs cannot share 32 attention heads equally|num_attention_heads|divides it"},
        {14, 2, 4864, 4, "--gpus: 4 GPUs cannot share 14 attention heads equally|num_attention_heads"},
        {8, 8, 64, 16, "--gpus: 16 GPUs cannot share 8 attention heads equally|num_attention_heads"},
        {3, 1, 19, 3, "--gpus: 3 GPUs cannot share 19 rows of the MLP equally|intermediate_size|divides it"},
        {32, 8, 14337, 2, "--gpus: 2 GPUs cannot share 14337 rows of the MLP equally|intermediate_size"},
        {12, 4, 12, 3, "--gpus: 3 GPUs cannot share 4 KV heads|num_key_value_heads|divides it, or a multiple of it"},
        {12, 4, 12, 6, "--gpus: 6 GPUs cannot share 4 KV heads|num_key_value_heads"},
        {30, 6, 30, 15, "--gpus: 15 GPUs cannot share 6 KV heads|num_key_value_heads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config whole = config_with(cases[i].heads, cases[i].kv_heads, cases[i].inner), rank;
        struct status status = {0};
        bool ok = shard_config(&whole, cases[i].ranks, &rank, &status);
        test_expect_failure(ok, &status, STATUS_BAD_INPUT, cases[i].words);
    }
}

/* Shares that were accepted make up the whole, and a rank's query heads find their KV head on it. */
TEST(shares_make_up_the_whole)
{
    int accepted = 0;
    for (uint64_t kv_heads = 1; kv_heads <= 12; kv_heads++)
        for (uint64_t heads = kv_heads; heads <= 48; heads += kv_heads)
            for (uint32_t ranks = 1; ranks <= PLAN_MAX_RANKS; ranks++) {
                struct model_config whole = config_with(heads, kv_heads, 720720), rank;
                struct status status = {0};
                if (!shard_config(&whole, ranks, &rank, &status)) continue;
                accepted++;
                assert_int_equal(rank.heads * ranks, heads);
                assert_int_equal(rank.heads % rank.kv_heads, 0);
                assert_true(rank.kv_heads * ranks == kv_heads || (rank.kv_heads == 1 && ranks > kv_heads));
                const struct weight_source piece = {.rows = kv_heads * 8,
                                                    .shard = SHARD_KV_ROWS,
                                                    .rank_rows = rank.kv_heads * 8};
                for (uint32_t r = 0; r < ranks; r++) {
                    struct shard_slice slice = shard_slice(&piece, r, ranks);
                    assert_int_equal(slice.rows, rank.kv_heads * 8);
                    for (uint64_t h = 0; h < rank.heads; h++) {
                        uint64_t wanted = (r * rank.heads + h) / (heads / kv_heads);
                        uint64_t found = slice.first_row / 8 + h / (rank.heads / rank.kv_heads);
                        assert_int_equal(found, wanted);
                    }
                }
            }
    assert_true(accepted > 300);
}

/* ---- shard_slice ---- */

static void expect_slice(const struct weight_source *piece, uint32_t rank, uint32_t ranks, uint64_t first_row,
                         uint64_t first_column, uint64_t rows)
{
    struct shard_slice slice = shard_slice(piece, rank, ranks);
    if (slice.first_row != first_row || slice.first_column != first_column || slice.rows != rows)
        fail_msg("shard %d, rank %u of %u: found row %llu, column %llu, %llu rows", (int)piece->shard, rank, ranks,
                 (unsigned long long)slice.first_row, (unsigned long long)slice.first_column,
                 (unsigned long long)slice.rows);
}

TEST(every_rank_has_what_is_not_shared)
{
    const struct weight_source vector = {.rows = 23, .rank_rows = 23},
                               matrix = {.rows = 23, .columns = 8, .rank_rows = 23, .rank_columns = 8};
    for (uint32_t rank = 0; rank < 16; rank++) {
        expect_slice(&vector, rank, 16, 0, 0, 23);
        expect_slice(&matrix, rank, 16, 0, 0, 23);
    }
    for (int shard = SHARD_NONE; shard <= SHARD_FIRST_RANK; shard++) {
        struct weight_source piece = matrix;
        piece.shard = (enum shard)shard;
        expect_slice(&piece, 0, 1, 0, 0, 23); /* one rank */
    }
}

TEST(rows_follow_each_other)
{
    for (uint32_t ranks = 1; ranks <= PLAN_MAX_RANKS; ranks++)
        for (uint64_t each = 1; each < 40; each += 13) {
            const struct weight_source piece = {.rows = ranks * each,
                                                .columns = 5,
                                                .shard = SHARD_ROWS,
                                                .rank_rows = each,
                                                .rank_columns = 5};
            for (uint32_t rank = 0; rank < ranks; rank++) expect_slice(&piece, rank, ranks, rank * each, 0, each);
        }
}

TEST(ranks_may_share_a_kv_head)
{
    const struct weight_source one = {.rows = 8,
                                      .columns = 5,
                                      .shard = SHARD_KV_ROWS,
                                      .rank_rows = 8,
                                      .rank_columns = 5};
    for (uint32_t rank = 0; rank < 3; rank++) expect_slice(&one, rank, 3, 0, 0, 8);
    const struct weight_source four = {.rows = 32,
                                       .columns = 5,
                                       .shard = SHARD_KV_ROWS,
                                       .rank_rows = 8,
                                       .rank_columns = 5};
    for (uint32_t rank = 0; rank < 4; rank++) expect_slice(&four, rank, 4, 8 * rank, 0, 8);
    for (uint32_t rank = 0; rank < 8; rank++) expect_slice(&four, rank, 8, 8 * (rank / 2), 0, 8);
    for (uint32_t rank = 0; rank < 12; rank++) expect_slice(&four, rank, 12, 8 * (rank / 3), 0, 8);
    const struct weight_source pairs = {.rows = 32, .shard = SHARD_KV_ROWS, .rank_rows = 16}; /* a bias */
    expect_slice(&pairs, 0, 2, 0, 0, 16);
    expect_slice(&pairs, 1, 2, 16, 0, 16);
}

TEST(the_last_of_the_vocabulary_is_padded)
{
    const struct weight_source uneven = {.rows = 37,
                                         .columns = 5,
                                         .shard = SHARD_VOCABULARY,
                                         .rank_rows = 13,
                                         .rank_columns = 5};
    expect_slice(&uneven, 0, 3, 0, 0, 13);
    expect_slice(&uneven, 1, 3, 13, 0, 13);
    expect_slice(&uneven, 2, 3, 26, 0, 11);
    /* More than one rank may lack rows, and some have none; nothing then points outside the tensor. */
    for (uint64_t vocab = 1; vocab < 70; vocab++)
        for (uint32_t ranks = 1; ranks <= PLAN_MAX_RANKS; ranks++) {
            const struct plan_geometry geometry = {.vocab_size = vocab, .ranks = ranks};
            const struct weight_source piece = {.rows = vocab,
                                                .columns = 5,
                                                .shard = SHARD_VOCABULARY,
                                                .rank_rows = plan_rank_vocab(&geometry),
                                                .rank_columns = 5};
            uint64_t next = 0;
            for (uint32_t rank = 0; rank < ranks; rank++) {
                struct shard_slice slice = shard_slice(&piece, rank, ranks);
                assert_true(slice.first_row + slice.rows <= vocab && slice.rows <= piece.rank_rows);
                assert_int_equal(slice.first_column, 0);
                if (slice.rows) assert_int_equal(slice.first_row, next);
                if (next < vocab) assert_true(slice.rows > 0); /* before the padding, none is left out */
                if (slice.rows)
                    assert_int_equal(slice.first_row, rank * plan_rank_vocab(&geometry)); /* as embed counts */
                next += slice.rows;
            }
            assert_int_equal(next, vocab);
        }
}

TEST(columns_follow_each_other)
{
    for (uint32_t ranks = 1; ranks <= PLAN_MAX_RANKS; ranks++) {
        const struct weight_source piece = {.rows = 23,
                                            .columns = 7 * ranks,
                                            .shard = SHARD_COLUMNS,
                                            .rank_rows = 23,
                                            .rank_columns = 7};
        for (uint32_t rank = 0; rank < ranks; rank++) expect_slice(&piece, rank, ranks, 0, 7 * rank, 23);
    }
}

TEST(what_is_added_once_is_on_rank_0)
{
    const struct weight_source bias = {.rows = 23, .shard = SHARD_FIRST_RANK, .rank_rows = 23};
    for (uint32_t ranks = 1; ranks <= PLAN_MAX_RANKS; ranks++)
        for (uint32_t rank = 0; rank < ranks; rank++) expect_slice(&bias, rank, ranks, 0, 0, rank ? 0 : 23);
}

int main(void) { return test_run(); }
