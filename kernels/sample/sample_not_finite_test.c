/* SPDX-License-Identifier: Apache-2.0 */
/* Rows from which nothing can be drawn (kernels/sample/sample.h): a NaN or +infinity at any place, or no finite logit. */
#include <math.h>

#include "kernels/sample/sample.h"
#include "kernels/op/test_support.h"

enum { MOST_ROWS = 5 };

struct setup {
    struct test_case test;
    float *logits;
    int32_t *slots, *next;
    struct sampler_state *samplers;
    uint8_t *seen;
    int64_t rows, vocab, seen_bytes;
};

/* Out row r draws for slot r. */
static void setup_open(struct setup *setup, int64_t rows, int64_t vocab)
{
    struct plan_geometry geometry = test_geometry;
    geometry.slots = (uint64_t)rows;
    geometry.vocab_size = (uint64_t)vocab;
    const int64_t params[SAMPLE_PARAMS] = {rows, 1, vocab, rows, rows};
    struct test_case *test = &setup->test;
    test_case_open(test, &op_sample, params, &geometry, (int32_t)rows);
    int32_t *out_rows = test->call.operands[SAMPLE_OUT_ROWS];
    setup->logits = test->call.operands[SAMPLE_LOGITS];
    setup->slots = test->call.operands[SAMPLE_SLOTS];
    setup->next = test->call.operands[SAMPLE_NEXT_TOKENS];
    setup->samplers = test->call.operands[SAMPLE_SAMPLERS];
    setup->seen = test->call.operands[SAMPLE_SEEN];
    setup->rows = rows;
    setup->vocab = vocab;
    setup->seen_bytes = (vocab + 7) / 8;
    for (int64_t r = 0; r < rows; r++) out_rows[r] = setup->slots[r] = (int32_t)r;
}

/* The ways to draw: greedy, plain, all options. */
enum { WAYS = 4 };
static struct sampler_state sampler_of(int way)
{
    const struct sampler_state samplers[WAYS] = {
        {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 3},
        {.temperature = 0.7f, .top_p = 0.9f, .top_k = 40, .repetition_penalty = 1.3f, .seed = 4},
        {.temperature = 0, .top_p = 1, .repetition_penalty = 1.3f},
    };
    return samplers[way];
}

static void fill(struct setup *setup, struct test_random *random, int way)
{
    for (int64_t i = 0; i < setup->rows * setup->vocab; i++) setup->logits[i] = test_random_float(random, -9, 9);
    for (int64_t i = 0; i < setup->rows * setup->seen_bytes; i++) setup->seen[i] = (uint8_t)test_random_bits(random);
    for (int64_t r = 0; r < setup->rows; r++) setup->samplers[r] = sampler_of(way);
}

/* isa < 0: the reference. */
static void draw(struct setup *setup, int isa, int members)
{
    for (int64_t r = 0; r < setup->rows; r++) setup->next[r] = -7;
    if (isa < 0)
        op_sample.reference(&setup->test.call);
    else
        test_run_op(&op_sample, (enum cpu_isa)isa, &setup->test.call, members);
}

/* Nothing is drawn for the row, and its sampler and SEEN stay as they are. */
static void expect_nothing(struct setup *setup, int isa, int members, const char *what, int64_t at)
{
    struct sampler_state before = setup->samplers[0];
    uint8_t *seen = malloc((size_t)setup->seen_bytes);
    memcpy(seen, setup->seen, (size_t)setup->seen_bytes);
    draw(setup, isa, members);
    if (setup->next[0] != PLAN_NO_TOKEN)
        fail_msg("%s at %d of %d, instruction set %d: drew token %d", what, (int)at, (int)setup->vocab, isa,
                 setup->next[0]);
    assert_memory_equal(&setup->samplers[0], &before, sizeof before);
    assert_memory_equal(setup->seen, seen, (size_t)setup->seen_bytes);
    free(seen);
}

static const int64_t vocabs[] = {1, 5, 16, 17, 255, 256, 257, 320, 1000};
enum { VOCABS = sizeof vocabs / sizeof vocabs[0] };

TEST(one_bad_logit_is_enough)
{
    const float bad[] = {NAN, -NAN, INFINITY, float_from_bits(0x7f800001), float_from_bits(0xffffffff)};
    static const char *const names[] = {"NaN", "-NaN", "+infinity", "signalling NaN", "NaN of all ones"};
    struct test_random random = {31};
    for (int v = 0; v < VOCABS; v++)
        for (int isa = -1; isa <= (int)cpu_isa_best(); isa++) {
            struct setup setup;
            setup_open(&setup, 1, vocabs[v]);
            for (int way = 0; way < WAYS; way++) {
                fill(&setup, &random, way);
                for (int64_t at = 0; at < vocabs[v]; at++) {
                    if (at > 300 && at < vocabs[v] - 300 && at % 17) continue;
                    const int b = (int)(at + way) % 5;
                    const float kept = setup.logits[at];
                    setup.logits[at] = bad[b];
                    expect_nothing(&setup, isa, 1, names[b], at);
                    setup.logits[at] = kept;
                }
                draw(&setup, isa, 1); /* it was that logit alone */
                assert_in_range(setup.next[0], 0, vocabs[v] - 1);
            }
            test_case_close(&setup.test);
        }
}

/* A vocabulary that several members share, in tasks of 8192 tokens. */
TEST(large_vocabularies_too)
{
    enum { VOCAB = 50257 };
    static const int64_t places[] = {0, 1, 15, 16, 255, 256, 8191, 8192, 8193, 25000, 49151, 49152, 50255, 50256};
    struct test_random random = {32};
    struct setup setup;
    setup_open(&setup, 1, VOCAB);
    for (int isa = -1; isa <= (int)cpu_isa_best(); isa++)
        for (int way = 0; way < (isa < 0 ? 2 : WAYS); way++) {
            fill(&setup, &random, way);
            for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
                const float kept = setup.logits[places[p]];
                setup.logits[places[p]] = p % 2 ? INFINITY : NAN;
                expect_nothing(&setup, isa, test_teams[p % TEST_TEAMS], "NaN or +infinity", places[p]);
                setup.logits[places[p]] = kept;
            }
        }
    test_case_close(&setup.test);
}

TEST(without_a_finite_logit_nothing_is_drawn)
{
    struct test_random random = {33};
    for (int v = 0; v < VOCABS; v++)
        for (int isa = -1; isa <= (int)cpu_isa_best(); isa++)
            for (int way = 0; way < WAYS; way++) {
                struct setup setup;
                setup_open(&setup, 1, vocabs[v]);
                fill(&setup, &random, way);
                for (int64_t t = 0; t < vocabs[v]; t++) setup.logits[t] = -INFINITY;
                expect_nothing(&setup, isa, 1, "-infinity", 0);
                for (int64_t t = 0; t < vocabs[v]; t++) setup.logits[t] = NAN;
                expect_nothing(&setup, isa, 1, "nothing but NaN", 0);
                /* One finite logit among -infinity is drawn, wherever it is and however small. */
                for (int64_t t = 0; t < vocabs[v]; t++) setup.logits[t] = -INFINITY;
                const int64_t only = test_random_range(&random, 0, vocabs[v] - 1);
                setup.logits[only] = -1e38f;
                draw(&setup, isa, 1);
                assert_int_equal(setup.next[0], only);
                test_case_close(&setup.test);
            }
}

/* A penalty may turn a logit into an infinity: the penalised logits count. */
TEST(penalised_logits_count)
{
    for (int isa = -1; isa <= (int)cpu_isa_best(); isa++) {
        struct setup setup;
        setup_open(&setup, 1, 40);
        for (int t = 0; t < 40; t++) setup.logits[t] = (float)t;
        setup.logits[20] = 3e38f;
        memset(setup.seen, 0, (size_t)setup.seen_bytes);
        setup.samplers[0] = sampler_of(0);
        setup.samplers[0].repetition_penalty = 0.5f;
        draw(&setup, isa, 1);
        assert_int_equal(setup.next[0], 20); /* not seen before, hence not penalised */
        expect_nothing(&setup, isa, 1, "3e38 / 0.5", 20);
        setup.logits[20] = -3e38f; /* times 2: -infinity, one of several */
        setup.samplers[0].repetition_penalty = 2.0f;
        draw(&setup, isa, 1);
        assert_int_equal(setup.next[0], 39);
        test_case_close(&setup.test);
    }
}

/* Tokens, samplers and SEEN of the other rows are those of a batch in which the row is sound. */
TEST(neighbours_draw_the_same)
{
    enum { VOCAB = 5000 };
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct test_random random = {34};
    struct setup sound, mixed;
    setup_open(&sound, MOST_ROWS, VOCAB);
    setup_open(&mixed, MOST_ROWS, VOCAB);
    for (int isa = -1; isa <= (int)cpu_isa_best(); isa++)
        for (int way = 0; way < WAYS; way++)
            for (int row = 0; row < MOST_ROWS; row++)
                for (int kind = 0; kind < 3; kind++) {
                    if (isa < 0 && (row != 2 || way > 1)) continue; /* the reference sorts */
                    fill(&sound, &random, way);
                    memcpy(mixed.logits, sound.logits, MOST_ROWS * VOCAB * sizeof(float));
                    memcpy(mixed.seen, sound.seen, (size_t)(MOST_ROWS * sound.seen_bytes));
                    memcpy(mixed.samplers, sound.samplers, MOST_ROWS * sizeof *sound.samplers);
                    float *logits = mixed.logits + row * VOCAB;
                    if (kind == 2)
                        for (int t = 0; t < VOCAB; t++) logits[t] = bad[kind];
                    else
                        logits[test_random_range(&random, 0, VOCAB - 1)] = bad[kind];
                    draw(&sound, isa, test_teams[(row + kind) % TEST_TEAMS]);
                    draw(&mixed, isa, test_teams[(row + kind + 1) % TEST_TEAMS]);
                    for (int r = 0; r < MOST_ROWS; r++) {
                        assert_int_equal(mixed.next[r], r == row ? PLAN_NO_TOKEN : sound.next[r]);
                        if (r == row) continue;
                        assert_memory_equal(&mixed.samplers[r], &sound.samplers[r], sizeof sound.samplers[r]);
                        assert_memory_equal(mixed.seen + r * sound.seen_bytes, sound.seen + r * sound.seen_bytes,
                                            (size_t)sound.seen_bytes);
                    }
                }
    test_case_assert_intact(&mixed.test);
    test_case_close(&sound.test);
    test_case_close(&mixed.test);
}

int main(void) { return test_run(); }
