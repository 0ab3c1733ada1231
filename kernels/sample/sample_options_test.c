/* SPDX-License-Identifier: Apache-2.0 */
/* The options of sample: min-p, logit biases, penalties of the answer's tokens, allowed tokens. Against plain code in double on
 * random logits, against the reference, and by hand. */
#include "kernels/sample/sample.h"
#include "kernels/op/test_support.h"

#include <math.h>

struct setup {
    struct test_case test;
    float *logits;
    int32_t *next;
    struct sampler_state *samplers;
    uint8_t *seen;
    uint32_t *adjustments, *allowed;
    int64_t rows, vocab, adjustment_words, allowed_words;
};

/* Row r draws for slot r. */
static void setup_open(struct setup *setup, int64_t rows, int64_t vocab)
{
    struct plan_geometry geometry = test_geometry;
    geometry.slots = (uint64_t)rows;
    geometry.vocab_size = (uint64_t)vocab;
    geometry.sampling_options = 1;
    const int64_t params[SAMPLE_PARAMS] = {rows, 1, vocab, rows, rows, 0, 1};
    struct test_case *test = &setup->test;
    test_case_open(test, &op_sample, params, &geometry, (int32_t)rows);
    setup->rows = rows;
    setup->vocab = vocab;
    setup->logits = test->call.operands[SAMPLE_LOGITS];
    setup->next = test->call.operands[SAMPLE_NEXT_TOKENS];
    setup->samplers = test->call.operands[SAMPLE_SAMPLERS];
    setup->seen = test->call.operands[SAMPLE_SEEN];
    setup->adjustments = test->call.operands[SAMPLE_ADJUSTMENTS];
    setup->allowed = test->call.operands[SAMPLE_ALLOWED];
    setup->adjustment_words = (int64_t)plan_adjustment_words((uint64_t)vocab);
    setup->allowed_words = (int64_t)plan_allowed_words((uint64_t)vocab);
    memset(setup->seen, 0, (size_t)(rows * ((vocab + 7) / 8)));
    memset(setup->adjustments, 0, (size_t)(rows * setup->adjustment_words) * sizeof(uint32_t));
    memset(setup->allowed, 0xff, (size_t)(rows * setup->allowed_words) * sizeof(uint32_t));
    for (int64_t r = 0; r < rows; r++) {
        ((int32_t *)test->call.operands[SAMPLE_OUT_ROWS])[r] = (int32_t)r;
        ((int32_t *)test->call.operands[SAMPLE_SLOTS])[r] = (int32_t)r;
        setup->samplers[r] = (struct sampler_state){.top_p = 1, .repetition_penalty = 1};
    }
}

static void set_bias(struct setup *setup, int64_t row, int index, int64_t token, float bias)
{
    uint32_t *own = setup->adjustments + row * setup->adjustment_words;
    memcpy(&own[index], &bias, sizeof bias);
    own[PLAN_BIAS_WORDS + token] |= (uint32_t)index << PLAN_COUNT_BITS;
}

static uint32_t count_of(const struct setup *setup, int64_t row, int64_t token)
{
    return setup->adjustments[row * setup->adjustment_words + PLAN_BIAS_WORDS + token] & PLAN_COUNT_MOST;
}

static void forbid(struct setup *setup, int64_t row, int64_t token)
{
    setup->allowed[row * setup->allowed_words + token / 32] &= ~(1u << token % 32);
}

/* Random options, biases, counts and allowed tokens of every row; token `kept` of each row stays allowed. */
static void randomise(struct setup *setup, struct test_random *random, int64_t kept)
{
    static const float min_ps[] = {1.0f, 0.5f, 0.1f, 0.02f, 1e-6f};
    for (int64_t i = 0; i < setup->rows * setup->vocab; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++) sum += test_random_float(random, -2, 2);
        setup->logits[i] = sum;
    }
    for (int64_t r = 0; r < setup->rows; r++) {
        struct sampler_state *sampler = &setup->samplers[r];
        sampler->options = (uint32_t)test_random_range(random, 0, 7);
        sampler->min_p_log = logf(min_ps[test_random_range(random, 0, 4)]);
        sampler->presence_penalty = test_random_float(random, -2, 2);
        sampler->frequency_penalty = test_random_float(random, -1, 1);
        for (int i = 1; i <= 20; i++)
            set_bias(setup, r, i, (i * 7919 + r) % setup->vocab, test_random_float(random, -4, 4));
        for (int64_t t = 0; t < setup->vocab; t++) {
            if (test_random_range(random, 0, 3) == 0)
                setup->adjustments[r * setup->adjustment_words + PLAN_BIAS_WORDS + t] +=
                    (uint32_t)test_random_range(random, 1, 5);
            if (t != kept && test_random_range(random, 0, 2) == 0) forbid(setup, r, t);
        }
    }
}

TEST(draws_equal_the_reference)
{
    struct test_random random = {31};
    static const int64_t vocabs[] = {33, 320, 3000, 1025};
    static const int32_t top_ks[] = {0, 1, 40, 1000};
    static const float top_ps[] = {1.0f, 0.9f, 0.3f}, temperatures[] = {0.0f, 1.0f, 0.6f, 3.0f};
    int draws = 0, different = 0;
    for (int round = 0; round < 300; round++) {
        struct setup setup;
        setup_open(&setup, 3, vocabs[round % 4]);
        for (int64_t r = 0; r < 3; r++)
            setup.samplers[r] = (struct sampler_state){.temperature = temperatures[test_random_range(&random, 0, 3)],
                                                       .top_p = top_ps[test_random_range(&random, 0, 2)],
                                                       .top_k = top_ks[test_random_range(&random, 0, 3)],
                                                       .repetition_penalty = round % 3 ? 1.0f : 1.2f,
                                                       .seed = test_random_bits(&random)};
        randomise(&setup, &random, 5);
        memset(setup.seen, 0x35, (size_t)(3 * ((setup.vocab + 7) / 8)));
        const size_t bytes = (size_t)(3 * setup.adjustment_words) * sizeof(uint32_t);
        uint32_t *adjustments = malloc(bytes);
        struct sampler_state samplers[3];
        memcpy(adjustments, setup.adjustments, bytes);
        memcpy(samplers, setup.samplers, sizeof samplers);
        int32_t expected[3];
        for (int isa = -1; isa <= (int)cpu_isa_best(); isa++) {
            memset(setup.seen, 0x35, (size_t)(3 * ((setup.vocab + 7) / 8)));
            memcpy(setup.adjustments, adjustments, bytes);
            memcpy(setup.samplers, samplers, sizeof samplers);
            struct op_call call = setup.test.call;
            if (isa < 0)
                op_sample.reference(&call);
            else
                test_run_op(&op_sample, (enum cpu_isa)isa, &call, test_teams[round % TEST_TEAMS]);
            if (isa < 0) memcpy(expected, setup.next, sizeof expected);
            for (int64_t r = 0; r < 3; r++) {
                const int32_t token = setup.next[r];
                const bool counts = samplers[r].options & SAMPLER_ADJUSTS;
                draws++;
                different += token != expected[r];
                assert_in_range(token, 0, setup.vocab - 1);
                if (samplers[r].options & SAMPLER_ALLOWS)
                    assert_true(setup.allowed[r * setup.allowed_words + token / 32] >> token % 32 & 1);
                for (int64_t t = 0; t < setup.vocab; t++)
                    assert_int_equal(setup.adjustments[r * setup.adjustment_words + PLAN_BIAS_WORDS + t],
                                     adjustments[r * setup.adjustment_words + PLAN_BIAS_WORDS + t] +
                                         (counts && t == token));
            }
            test_case_assert_intact(&setup.test);
        }
        free(adjustments);
        test_case_close(&setup.test);
    }
    print_message("%d of %d draws differ from the reference\n", different, draws);
    assert_true(different * 500 <= draws);
}

/* Probabilities of the tokens by the definition, in double. */
static void expected_probabilities(const struct setup *setup, const struct sampler_state *sampler, double *probability)
{
    const uint32_t *row = setup->adjustments;
    double largest = -INFINITY, total = 0;
    for (int64_t t = 0; t < setup->vocab; t++) {
        const uint32_t word = row[PLAN_BIAS_WORDS + t], count = word & PLAN_COUNT_MOST;
        float bias;
        memcpy(&bias, &row[word >> PLAN_COUNT_BITS], sizeof bias);
        double value = (double)setup->logits[t];
        if (sampler->options & SAMPLER_ADJUSTS)
            value += (double)bias - (count ? (double)sampler->presence_penalty : 0) -
                     count * (double)sampler->frequency_penalty;
        if (sampler->options & SAMPLER_ALLOWS && !(setup->allowed[t / 32] >> t % 32 & 1)) value = -INFINITY;
        probability[t] = value / (double)sampler->temperature;
        largest = fmax(largest, probability[t]);
    }
    for (int64_t t = 0; t < setup->vocab; t++) {
        probability[t] = exp(probability[t] - largest);
        if (sampler->options & SAMPLER_MIN_P && probability[t] < exp((double)sampler->min_p_log)) probability[t] = 0;
        total += probability[t];
    }
    for (int64_t t = 0; t < setup->vocab; t++) probability[t] /= total;
}

TEST(draws_follow_the_distribution)
{
    enum { VOCAB = 40, DRAWS = 20000 };
    struct test_random random = {32};
    struct status status = {0};
    struct team *team = team_create(1, &status);
    struct team_member member = {.team = team, .index = 0, .count = 1};
    op_run *run = op_runner(&op_sample, cpu_isa_best());
    assert_non_null(team);
    for (int round = 0; round < 16; round++) {
        struct setup setup;
        double probability[VOCAB], chi_square = 0;
        int counts[VOCAB] = {0}, freedom = -1;
        setup_open(&setup, 1, VOCAB);
        setup.samplers[0].temperature = 0.9f;
        setup.samplers[0].seed = test_random_bits(&random);
        randomise(&setup, &random, 5);
        setup.samplers[0].options = (uint32_t)round % 8;
        setup.samplers[0].min_p_log = logf(0.05f);
        const size_t bytes = (size_t)setup.adjustment_words * sizeof(uint32_t);
        uint32_t *adjustments = malloc(bytes);
        memcpy(adjustments, setup.adjustments, bytes);
        expected_probabilities(&setup, &setup.samplers[0], probability);
        for (int i = 0; i < DRAWS; i++) {
            team_barrier(&member); /* fresh tickets */
            run(&setup.test.call, &member);
            counts[setup.next[0]]++;
            memcpy(setup.adjustments, adjustments, bytes); /* every draw from the same distribution */
        }
        for (int t = 0; t < VOCAB; t++) {
            const double expected = DRAWS * probability[t];
            if (expected == 0) assert_int_equal(counts[t], 0);
            if (expected < 5) continue;
            chi_square += (counts[t] - expected) * (counts[t] - expected) / expected;
            freedom++;
        }
        /* Exceeded by chance less than once in ten thousand rounds: mean + 5 standard deviations, and a few for small degrees. */
        print_message("options %d: chi-square %.1f with %d degrees of freedom\n", round % 8, chi_square, freedom);
        assert_true(chi_square < freedom + 5 * sqrt(2.0 * freedom) + 6);
        free(adjustments);
        test_case_close(&setup.test);
    }
    team_destroy(team);
}

TEST(penalties_count_the_tokens_of_the_answer)
{
    TEST_FOR_EACH_ISA(isa)
    {
        /* 10, 9.5 and 9; the first occurrence costs 0.75, each further one 0.25. */
        static const int32_t expected[] = {20, 7, 20, 20, 33, 7, 20}; /* of equal ones the lowest id */
        struct setup setup;
        setup_open(&setup, 1, 40);
        for (int t = 0; t < 40; t++) setup.logits[t] = -50;
        setup.logits[20] = 10, setup.logits[7] = 9.5f, setup.logits[33] = 9;
        setup.samplers[0].options = SAMPLER_ADJUSTS;
        setup.samplers[0].presence_penalty = 0.5f;
        setup.samplers[0].frequency_penalty = 0.25f;
        for (int i = 0; i < 7; i++) {
            test_run_op(&op_sample, isa, &setup.test.call, 2);
            assert_int_equal(setup.next[0], expected[i]);
        }
        assert_int_equal(count_of(&setup, 0, 20), 4);
        assert_int_equal(count_of(&setup, 0, 7), 2);
        assert_int_equal(count_of(&setup, 0, 33), 1);
        assert_true(setup.logits[20] == 10.0f); /* logits are not changed */
        setup.samplers[0].presence_penalty = setup.samplers[0].frequency_penalty = 0;
        setup.adjustments[PLAN_BIAS_WORDS + 20] = PLAN_COUNT_MOST; /* stays */
        set_bias(&setup, 0, PLAN_MAX_LOGIT_BIASES, 20, 1.5f);
        test_run_op(&op_sample, isa, &setup.test.call, 1);
        assert_int_equal(setup.next[0], 20);
        assert_int_equal(count_of(&setup, 0, 20), PLAN_COUNT_MOST);
        assert_int_equal(setup.adjustments[PLAN_BIAS_WORDS + 20] >> PLAN_COUNT_BITS, PLAN_MAX_LOGIT_BIASES);
        test_case_close(&setup.test);
    }
}

TEST(a_bias_may_decide)
{
    TEST_FOR_EACH_ISA(isa)
    {
        struct setup setup;
        setup_open(&setup, 1, 1000);
        for (int t = 0; t < 1000; t++) setup.logits[t] = (float)(t % 90);
        setup.samplers[0].options = SAMPLER_ADJUSTS;
        set_bias(&setup, 0, 1, 998, 100);
        test_run_op(&op_sample, isa, &setup.test.call, 2);
        assert_int_equal(setup.next[0], 998);
        set_bias(&setup, 0, 1, 998, -100);
        test_run_op(&op_sample, isa, &setup.test.call, 2);
        assert_int_equal(setup.next[0], 89);
        setup.samplers[0].options = 0; /* the row is not valid then */
        memset(setup.adjustments, 0xff, (size_t)setup.adjustment_words * sizeof(uint32_t));
        test_run_op(&op_sample, isa, &setup.test.call, 2);
        assert_int_equal(setup.next[0], 89);
        test_case_close(&setup.test);
    }
}

TEST(only_allowed_tokens_are_drawn)
{
    TEST_FOR_EACH_ISA(isa)
    {
        struct setup setup;
        setup_open(&setup, 1, 77);
        for (int t = 0; t < 77; t++) setup.logits[t] = (float)t;
        setup.logits[70] = NAN; /* not looked at */
        setup.logits[71] = INFINITY;
        setup.samplers[0].options = SAMPLER_ALLOWS;
        memset(setup.allowed, 0, (size_t)setup.allowed_words * sizeof(uint32_t));
        setup.allowed[1] = 1u << 3 | 1u << 30;
        test_run_op(&op_sample, isa, &setup.test.call, 1);
        assert_int_equal(setup.next[0], 62);
        setup.samplers[0].temperature = 100;
        int drawn[77] = {0};
        for (int i = 0; i < 60; i++) {
            test_run_op(&op_sample, isa, &setup.test.call, 1);
            drawn[setup.next[0]]++;
        }
        assert_true(drawn[35] > 5 && drawn[62] > 5);
        assert_int_equal(drawn[35] + drawn[62], 60);
        assert_int_equal(setup.samplers[0].draw, 61);
        memset(setup.allowed, 0, (size_t)setup.allowed_words * sizeof(uint32_t));
        setup.allowed[2] = 0xffffffffu << 13; /* beyond the vocabulary */
        for (int sampled = 0; sampled < 2; sampled++) {
            setup.samplers[0].temperature = (float)sampled;
            test_run_op(&op_sample, isa, &setup.test.call, 1);
            assert_int_equal(setup.next[0], PLAN_NO_TOKEN);
            op_sample.reference(&setup.test.call);
            assert_int_equal(setup.next[0], PLAN_NO_TOKEN);
        }
        assert_int_equal(setup.samplers[0].draw, 61);
        test_case_close(&setup.test);
    }
}

TEST(min_p_cuts_where_it_should)
{
    enum { DRAWS = 600 };
    /* Relative probabilities 1, 1/2, 1/4, 1/4, 1/16, 1/64. */
    static const float logits[6] = {-0.6931472f, 0, -1.3862944f, -4.158883f, -1.3862944f, -2.7725887f};
    static const struct {
        float min_p, temperature;
        uint32_t kept; /* bits */
    } cases[] = {{0.3f, 1, 0x03}, {0.2f, 1, 0x17}, {0.05f, 1, 0x37}, {0.01f, 1, 0x3f}, {1, 1, 0x02}, {0.3f, 3, 0x37}};
    TEST_FOR_EACH_ISA(isa)
    {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct setup setup;
            uint32_t drawn = 0;
            setup_open(&setup, 1, 6);
            memcpy(setup.logits, logits, sizeof logits);
            setup.samplers[0].temperature = cases[c].temperature;
            setup.samplers[0].options = SAMPLER_MIN_P;
            setup.samplers[0].min_p_log = logf(cases[c].min_p);
            for (int i = 0; i < DRAWS; i++) {
                test_run_op(&op_sample, isa, &setup.test.call, 1);
                drawn |= 1u << setup.next[0];
            }
            assert_int_equal(drawn, cases[c].kept);
            test_case_close(&setup.test);
        }
    }
}

/* Top-p counts from what min-p leaves: of 1/2 and 1/4 (relative) two thirds are reached by the first. */
TEST(top_p_follows_min_p)
{
    struct setup setup;
    setup_open(&setup, 1, 4);
    static const float logits[4] = {-1.3862944f, -0.6931472f, -1.3862945f, -1.3862945f};
    memcpy(setup.logits, logits, sizeof logits);
    setup.samplers[0].temperature = 1;
    setup.samplers[0].top_p = 0.39f;
    setup.samplers[0].options = SAMPLER_MIN_P;
    uint32_t drawn[2] = {0};
    for (int with = 0; with < 2; with++) {
        setup.samplers[0].min_p_log = logf(with ? 0.9f : 1e-9f);
        for (int i = 0; i < 300; i++) {
            test_run_op(&op_sample, cpu_isa_best(), &setup.test.call, 1);
            drawn[with] |= 1u << setup.next[0];
        }
    }
    assert_int_equal(drawn[0], 1u << 1);
    assert_int_equal(drawn[1], 1u << 1);
    setup.samplers[0].top_p = 0.41f; /* 0.4 of all: the next one is needed, but not of what min-p leaves */
    drawn[0] = drawn[1] = 0;
    for (int with = 0; with < 2; with++) {
        setup.samplers[0].min_p_log = logf(with ? 0.9f : 1e-9f);
        for (int i = 0; i < 300; i++) {
            test_run_op(&op_sample, cpu_isa_best(), &setup.test.call, 1);
            drawn[with] |= 1u << setup.next[0];
        }
    }
    assert_int_equal(drawn[0], 1u << 1 | 1u << 0);
    assert_int_equal(drawn[1], 1u << 1);
    test_case_close(&setup.test);
}

TEST(hostile_options_are_harmless)
{
    struct test_random random = {37};
    static const float floats[] = {0, -1, NAN, INFINITY, -INFINITY, 1e-45f, 1e38f, -1e38f};
    for (int round = 0; round < 300; round++) {
        struct setup setup;
        setup_open(&setup, 1, 300);
        randomise(&setup, &random, 5);
        struct sampler_state *sampler = &setup.samplers[0];
        sampler->temperature = floats[test_random_range(&random, 0, 7)];
        sampler->options = (uint32_t)test_random_bits(&random);
        sampler->min_p_log = floats[test_random_range(&random, 0, 7)];
        sampler->presence_penalty = floats[test_random_range(&random, 0, 7)];
        sampler->frequency_penalty = floats[test_random_range(&random, 0, 7)];
        struct op_call call = setup.test.call;
        test_run_op(&op_sample, (enum cpu_isa)(round % ((int)cpu_isa_best() + 1)), &call, 1 + round % 2);
        assert_true(setup.next[0] >= PLAN_NO_TOKEN && setup.next[0] < 300);
        op_sample.reference(&call);
        assert_true(setup.next[0] >= PLAN_NO_TOKEN && setup.next[0] < 300);
        test_case_assert_intact(&setup.test);
        test_case_close(&setup.test);
    }
}

/* An engine built before there were options has neither the parameter nor the two operands. */
TEST(engines_with_and_without_options)
{
    struct plan_geometry geometry =
        {.slots = 8, .max_context = 8, .page_tokens = 8, .pages_per_slot = 1, .page_bytes = 64, .vocab_size = 320};
    int64_t params[SAMPLE_PARAMS] = {4, 1, 320, 8, 4};
    struct op_demand demands[PLAN_MAX_OPERANDS];
    struct status status = {0};
    int count;
    assert_true(op_demands(&op_sample, TARGET_CPU, params, &geometry, demands, &count, &status));
    assert_int_equal(count, 8);
    geometry.sampling_options = 1;
    assert_false(op_demands(&op_sample, TARGET_CPU, params, &geometry, demands, &count, &status));
    assert_non_null(strstr(status.message, "has_options"));
    params[SAMPLE_HAS_OPTIONS] = 1;
    test_hostile_params(&op_sample, params, &geometry);
    status = (struct status){0};
    assert_true(op_demands(&op_sample, TARGET_CPU, params, &geometry, demands, &count, &status));
    assert_int_equal(count, 10);
    assert_int_equal(demands[7].bytes, 8 * (1028 + 320) * 4);
    assert_int_equal(demands[8].bytes, 8 * 10 * 4);
    struct plan_param list[PLAN_MAX_PARAMS];
    const int listed = op_list_params(&op_sample, params, 0, false, list);
    assert_int_equal(list[listed - 1].id, 256);
    assert_int_equal(list[listed - 1].flags, PLAN_PARAM_ESSENTIAL);
}

int main(void) { return test_run(); }
