/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sample/sample.h"
#include "kernels/op/test_support.h"

#include <math.h>

#include "kernels/sample/philox.h"

struct setup {
    struct test_case test;
    float *logits;
    int32_t *out_rows, *slots, *next;
    struct sampler_state *samplers;
    uint8_t *seen;
    int64_t vocab, seen_bytes;
};

static const struct sampler_state greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
static const struct sampler_state plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

/* As many slots and token rows as out rows; out row r draws for slot rows - 1 - r through token row r. */
static void setup_open(struct setup *setup, int64_t rows, int64_t vocab)
{
    struct plan_geometry geometry = test_geometry;
    geometry.slots = (uint64_t)rows;
    geometry.vocab_size = (uint64_t)vocab;
    const int64_t params[SAMPLE_PARAMS] = {rows, 1, vocab, rows, rows};
    struct test_case *test = &setup->test;
    test_case_open(test, &op_sample, params, &geometry, (int32_t)rows);
    setup->logits = test->call.operands[SAMPLE_LOGITS];
    setup->out_rows = test->call.operands[SAMPLE_OUT_ROWS];
    setup->slots = test->call.operands[SAMPLE_SLOTS];
    setup->next = test->call.operands[SAMPLE_NEXT_TOKENS];
    setup->samplers = test->call.operands[SAMPLE_SAMPLERS];
    setup->seen = test->call.operands[SAMPLE_SEEN];
    setup->vocab = vocab;
    setup->seen_bytes = (vocab + 7) / 8;
    memset(setup->seen, 0, (size_t)(rows * setup->seen_bytes));
    for (int64_t r = 0; r < rows; r++) {
        setup->out_rows[r] = (int32_t)r;
        setup->slots[r] = (int32_t)(rows - 1 - r);
        setup->samplers[r] = greedy;
    }
}

static void random_logits(struct setup *setup, struct test_random *random, int64_t rows, float range, bool coarse)
{
    for (int64_t i = 0; i < rows * setup->vocab; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++) sum += test_random_float(random, -range, range);
        setup->logits[i] = coarse ? rintf(sum) : sum; /* coarse: many ties */
    }
}

TEST(philox_gives_the_published_numbers)
{
    /* Known answers published with the generator. */
    static const struct {
        struct philox_words counter;
        uint32_t key[2];
        struct philox_words expected;
    } known[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {0xffffffff, 0xffffffff},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (int i = 0; i < 3; i++) {
        struct philox_words words = philox(known[i].counter, known[i].key[0], known[i].key[1]);
        assert_memory_equal(&words, &known[i].expected, sizeof words);
    }
    assert_int_equal(philox_uniform_24(0, 0), 0x6627e8);
    assert_true(philox_uniform_24(1, 0) != philox_uniform_24(0, 1));
    assert_true(philox_uniform_24((uint64_t)1 << 32, 0) != philox_uniform_24(0, 0));
    assert_true(philox_uniform_24(0, (uint64_t)1 << 32) != philox_uniform_24(0, 0));
}

TEST(greedy_takes_the_lowest_of_the_largest)
{
    struct test_random random = {13};
    static const int64_t vocabs[] = {1, 2, 15, 16, 17, 320, 1000, 8193, 50257};
    for (int v = 0; v < 9; v++) {
        for (int round = 0; round < 6; round++) {
            int64_t rows = 1 + round % 3;
            TEST_FOR_EACH_ISA(isa)
            {
                struct setup setup;
                setup_open(&setup, rows, vocabs[v]);
                random_logits(&setup, &random, rows, 3, round % 2);
                if (round >= 4) /* some are masked */
                    for (int64_t i = 1; i < rows * vocabs[v]; i += 3) setup.logits[i] = -INFINITY;
                test_run_op(&op_sample, isa, &setup.test.call, test_teams[round % TEST_TEAMS]);
                for (int64_t r = 0; r < rows; r++) {
                    const float *logits = setup.logits + r * vocabs[v];
                    int64_t best = 0, slot = setup.slots[r];
                    for (int64_t t = 0; t < vocabs[v]; t++)
                        if (logits[t] > logits[best]) best = t;
                    if (logits[best] == -INFINITY) best = PLAN_NO_TOKEN;
                    assert_int_equal(setup.next[r], best);
                    if (best == PLAN_NO_TOKEN) continue;
                    assert_int_equal(setup.samplers[slot].draw, 1);
                    for (int64_t t = 0; t < vocabs[v]; t++)
                        assert_int_equal(setup.seen[slot * setup.seen_bytes + t / 8] >> (t % 8) & 1, t == best);
                }
                test_case_close(&setup.test);
            }
        }
    }
}

TEST(odd_logits_have_an_answer)
{
    static const float rows[6][5] = {
        {NAN, NAN, NAN, NAN, NAN},        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
        {NAN, -INFINITY, NAN, NAN, NAN},  {0, -INFINITY, 5, -INFINITY, -INFINITY},
        {-0.0f, 0.0f, -1, -2, -INFINITY}, {1e38f, -1e38f, 3e38f, 0, -INFINITY},
    };
    static const int32_t expected[6] = {PLAN_NO_TOKEN, PLAN_NO_TOKEN, PLAN_NO_TOKEN, 2, 0, 2};
    for (int sampled = 0; sampled < 2; sampled++) {
        TEST_FOR_EACH_ISA(isa)
        {
            for (int r = 0; r < 6; r++) {
                struct setup setup;
                setup_open(&setup, 1, 5);
                memcpy(setup.logits, rows[r], sizeof rows[r]);
                if (sampled) setup.samplers[0] = plain;
                setup.samplers[0].top_k = sampled ? 1 : 0;
                struct op_call call = setup.test.call;
                test_run_op(&op_sample, isa, &call, 1);
                /* With top-k 1, 0 and -0 are equal: either may be drawn. */
                if (sampled && r == 4)
                    assert_in_range(setup.next[0], 0, 1);
                else
                    assert_int_equal(setup.next[0], expected[r]);
                op_sample.reference(&call);
                if (r != 4) assert_int_equal(setup.next[0], expected[r]);
                test_case_close(&setup.test);
            }
        }
    }
}

/* All options at once, against the reference, which sorts and sums in double. */
TEST(draws_equal_the_reference)
{
    struct test_random random = {14};
    static const int64_t vocabs[] = {1, 3, 17, 320, 3000, 50257};
    static const int32_t top_ks[] = {0, 1, 2, 40, 1000, 100000};
    static const float top_ps[] = {1.0f, 0.95f, 0.5f, 0.01f, 1e-9f};
    static const float temperatures[] = {1.0f, 0.7f, 2.5f, 0.05f, 1e-6f};
    int draws = 0, different = 0;
    for (int round = 0; round < 360; round++) {
        int64_t rows = 3, vocab = vocabs[round % 6];
        if (vocab > 5000 && round % 4) vocab = 900;
        struct sampler_state sampler = {
            .temperature = temperatures[test_random_range(&random, 0, 4)],
            .top_p = top_ps[test_random_range(&random, 0, 4)],
            .top_k = top_ks[test_random_range(&random, 0, 5)],
            .repetition_penalty = round % 3 ? 1.0f : 1.3f,
            .seed = test_random_bits(&random),
            .draw = test_random_bits(&random) >> 20,
        };
        struct setup setup;
        setup_open(&setup, rows, vocab);
        random_logits(&setup, &random, rows, 3, round % 5 == 0);
        uint8_t *seen = malloc((size_t)(rows * setup.seen_bytes));
        for (int64_t i = 0; i < rows * setup.seen_bytes; i++) seen[i] = (uint8_t)test_random_bits(&random);
        int32_t expected[3], alone[3];
        for (int isa = -1; isa <= (int)cpu_isa_best(); isa++) {
            memcpy(setup.seen, seen, (size_t)(rows * setup.seen_bytes));
            for (int64_t s = 0; s < rows; s++) {
                setup.samplers[s] = sampler;
                setup.samplers[s].seed += (uint64_t)s;
            }
            struct op_call call = setup.test.call;
            if (isa < 0) {
                op_sample.reference(&call);
                memcpy(expected, setup.next, sizeof expected);
                continue;
            }
            test_run_op(&op_sample, (enum cpu_isa)isa, &call, test_teams[round % TEST_TEAMS]);
            memcpy(alone, setup.next, sizeof alone);
            for (int r = 0; r < 3; r++) {
                draws++;
                different += setup.next[r] != expected[r];
                const struct sampler_state *after = &setup.samplers[setup.slots[r]];
                assert_int_equal(after->draw, sampler.draw + 1);
                int32_t token = setup.next[r];
                assert_true(setup.seen[setup.slots[r] * setup.seen_bytes + token / 8] >> (token % 8) & 1);
            }
            test_case_assert_intact(&setup.test);
        }
        free(seen);
        test_case_close(&setup.test);
    }
    /* The two round differently, which can show where the random number falls on a boundary. */
    print_message("%d of %d draws differ from the reference\n", different, draws);
    assert_true(different * 500 <= draws);
}

TEST(rows_do_not_depend_on_each_other)
{
    struct test_random random = {15};
    enum { ROWS = 7, VOCAB = 5000 };
    TEST_FOR_EACH_ISA(isa)
    {
        struct setup all, one;
        setup_open(&all, ROWS, VOCAB);
        setup_open(&one, 1, VOCAB);
        random_logits(&all, &random, ROWS, 2, false);
        int32_t tokens[TEST_TEAMS][ROWS];
        for (int team = 0; team < TEST_TEAMS; team++) {
            memset(all.seen, 0, (size_t)(ROWS * all.seen_bytes));
            for (int s = 0; s < ROWS; s++) {
                all.samplers[s] = plain;
                all.samplers[s].seed = (uint64_t)s;
                all.samplers[s].top_p = 0.9f;
            }
            test_run_op(&op_sample, isa, &all.test.call, test_teams[team]);
            memcpy(tokens[team], all.next, sizeof tokens[team]);
            assert_memory_equal(tokens[team], tokens[0], sizeof tokens[team]);
        }
        for (int r = 0; r < ROWS; r++) {
            memcpy(one.logits, all.logits + r * VOCAB, VOCAB * sizeof(float));
            memset(one.seen, 0, (size_t)one.seen_bytes);
            one.samplers[0] = plain;
            one.samplers[0].seed = (uint64_t)all.slots[r];
            one.samplers[0].top_p = 0.9f;
            test_run_op(&op_sample, isa, &one.test.call, 1);
            assert_int_equal(one.next[0], tokens[0][r]);
        }
        test_case_close(&all.test);
        test_case_close(&one.test);
    }
}

/* Draws `count` times for one sampler and counts the tokens; `draw` moves on by itself. */
static void count_draws(const float *logits, int64_t vocab, struct sampler_state sampler, int count, int *counts)
{
    struct setup setup;
    setup_open(&setup, 1, vocab);
    memset(counts, 0, (size_t)vocab * sizeof *counts);
    setup.samplers[0] = sampler;
    struct status status = {0};
    struct team *team = team_create(1, &status);
    assert_non_null(team);
    memcpy(setup.logits, logits, (size_t)vocab * sizeof *logits);
    op_run *run = op_runner(&op_sample, cpu_isa_best());
    struct team_member member = {.team = team, .index = 0, .count = 1};
    for (int i = 0; i < count; i++) {
        team_barrier(&member); /* fresh tickets */
        run(&setup.test.call, &member);
        counts[setup.next[0]]++;
    }
    assert_int_equal(setup.samplers[0].draw, sampler.draw + (uint64_t)count);
    team_destroy(team);
    test_case_close(&setup.test);
}

TEST(draws_follow_the_distribution)
{
    enum { VOCAB = 24, DRAWS = 60000 };
    float logits[VOCAB];
    double probabilities[VOCAB], total = 0;
    for (int t = 0; t < VOCAB; t++) logits[t] = 2.0f * sinf((float)t * 1.7f) + (t % 5 == 0);
    struct sampler_state sampler = plain;
    sampler.temperature = 0.8f;
    sampler.seed = 42;
    for (int t = 0; t < VOCAB; t++) total += probabilities[t] = exp(logits[t] / (double)sampler.temperature);
    int counts[VOCAB];
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    double chi_square = 0;
    for (int t = 0; t < VOCAB; t++) {
        double expected = DRAWS * probabilities[t] / total;
        assert_true(expected > 5);
        chi_square += (counts[t] - expected) * (counts[t] - expected) / expected;
    }
    print_message("chi-square %.1f with 23 degrees of freedom\n", chi_square);
    assert_true(chi_square < 49.7); /* exceeded by chance once in a thousand seeds */
    assert_true(chi_square > 7.5);  /* too good would be as suspicious: the 0.1 % quantile */

    int again[VOCAB];
    count_draws(logits, VOCAB, sampler, DRAWS, again);
    assert_memory_equal(again, counts, sizeof counts); /* same seed, same tokens */
    sampler.seed = 43;
    count_draws(logits, VOCAB, sampler, DRAWS, again);
    assert_memory_not_equal(again, counts, sizeof counts);
}

TEST(top_k_and_top_p_cut_where_they_should)
{
    enum { VOCAB = 6, DRAWS = 4000 };
    /* Probabilities 1/2, 1/8, 1/8, 1/8, 1/16, 1/16 in mixed order. */
    const float eighth = -1.3862944f, sixteenth = -2.0794415f;
    const float logits[VOCAB] = {eighth, sixteenth, 0, eighth, sixteenth, eighth};
    int counts[VOCAB];
    struct sampler_state sampler = plain;
    sampler.top_k = 1;
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_int_equal(counts[2], DRAWS);
    sampler.top_k = 2; /* the three equal ones are all not below the second largest */
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_int_equal(counts[0] + counts[2] + counts[3] + counts[5], DRAWS);
    assert_true(counts[0] && counts[3] && counts[5]);
    sampler.top_k = VOCAB;
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_true(counts[1] && counts[4]);
    sampler.top_k = -3; /* nonsense is off */
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_true(counts[1] && counts[4]);

    sampler.top_k = 0;
    sampler.top_p = 0.4f;
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_int_equal(counts[2], DRAWS);
    sampler.top_p = 0.6f; /* one of the equal ones: the lowest id */
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_int_equal(counts[0] + counts[2], DRAWS);
    assert_true(counts[0] > 0);
    sampler.top_p = 0.7f;
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_int_equal(counts[0] + counts[2] + counts[3], DRAWS);
    assert_true(counts[3] > 0);
    sampler.top_p = 1e-30f;
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_int_equal(counts[2], DRAWS);
    sampler.top_p = 0.9f;
    sampler.top_k = 3; /* after top-k the rest is renormalised: 4/7, 1/7, 1/7, 1/7 */
    count_draws(logits, VOCAB, sampler, DRAWS, counts);
    assert_int_equal(counts[1] + counts[4], 0);
    assert_true(counts[5] > 0);
}

TEST(repetition_penalty_applies_to_seen_tokens)
{
    TEST_FOR_EACH_ISA(isa)
    {
        struct setup setup;
        setup_open(&setup, 1, 40);
        for (int t = 0; t < 40; t++) setup.logits[t] = -50;
        setup.logits[33] = 10;
        setup.logits[20] = 8;
        setup.logits[7] = 6;
        setup.samplers[0].repetition_penalty = 2.0f;
        static const int32_t expected[] = {33, 20, 7, 33, 33}; /* 10, 8, 6, then 5, 4, 3 stay */
        for (int i = 0; i < 5; i++) {
            test_run_op(&op_sample, isa, &setup.test.call, 2);
            assert_int_equal(setup.next[0], expected[i]);
        }
        for (int t = 0; t < 40; t++) setup.logits[t] = t == 20 ? -1.0f : -1.5f; /* seen and negative: times 2 */
        test_run_op(&op_sample, isa, &setup.test.call, 2);
        assert_int_equal(setup.next[0], 0);
        assert_true(setup.logits[20] == -1.0f); /* logits are not changed */
        test_case_close(&setup.test);
    }
}

TEST(rows_without_a_token_row_are_harmless)
{
    struct setup setup;
    setup_open(&setup, 3, 20);
    struct test_random random = {16};
    random_logits(&setup, &random, 3, 1, false);
    setup.out_rows[0] = -1;
    setup.out_rows[2] = 3;
    test_run_op(&op_sample, cpu_isa_best(), &setup.test.call, 2);
    assert_int_equal(setup.next[0], 0);
    assert_int_equal(setup.next[2], 0);
    assert_int_equal(setup.samplers[0].draw + setup.samplers[1].draw + setup.samplers[2].draw, 1);
    test_case_close(&setup.test);
}

TEST(hostile_samplers_are_harmless)
{
    struct test_random random = {17};
    static const float floats[] = {0, -1, NAN, INFINITY, -INFINITY, 1e-45f, 1e38f, 1};
    static const int32_t top_ks[] = {INT32_MIN, -1, 0, 1, 299, 300, 301, INT32_MAX};
    for (int round = 0; round < 300; round++) {
        struct setup setup;
        setup_open(&setup, 1, 300);
        random_logits(&setup, &random, 1, round % 7 ? 3 : 1e38f, false);
        setup.samplers[0] = (struct sampler_state){
            .temperature = floats[test_random_range(&random, 0, 7)],
            .top_p = floats[test_random_range(&random, 0, 7)],
            .repetition_penalty = floats[test_random_range(&random, 0, 7)],
            .top_k = top_ks[test_random_range(&random, 0, 7)],
            .seed = test_random_bits(&random),
            .draw = test_random_bits(&random),
        };
        memset(setup.seen, 0x5a, (size_t)setup.seen_bytes);
        struct op_call call = setup.test.call;
        test_run_op(&op_sample, (enum cpu_isa)(round % ((int)cpu_isa_best() + 1)), &call, 1 + round % 2);
        assert_true(setup.next[0] >= PLAN_NO_TOKEN && setup.next[0] < 300);
        op_sample.reference(&call);
        assert_true(setup.next[0] >= PLAN_NO_TOKEN && setup.next[0] < 300);
        test_case_close(&setup.test);
    }
}

TEST(hostile_params_are_refused)
{
    const struct plan_geometry geometry =
        {.slots = 8, .max_context = 8, .page_tokens = 8, .pages_per_slot = 1, .page_bytes = 64, .vocab_size = 320};
    const int64_t params[SAMPLE_PARAMS] = {4, 1, 320, 8, 4};
    test_hostile_params(&op_sample, params, &geometry);
    test_refuses(&op_sample, params, &geometry,
                 TEST_CHANGES({SAMPLE_COUNT_INDEX, 0}, {SAMPLE_VOCAB, 321}, {SAMPLE_VOCAB, 0}, {SAMPLE_SLOT_COUNT, 9},
                              {SAMPLE_IN_ROWS, 0}));
}

int main(void) { return test_run(); }
