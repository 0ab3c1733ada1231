/* SPDX-License-Identifier: Apache-2.0 */

#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/sample/philox.h"
#include "kernels/sample/sample.h"

/* The definition of the draw by sorting, with the CPU's arithmetic: integer weights, fused multiply-adds. */
struct item {
    float value;
    uint32_t id;
};

static int compare_items(const void *left, const void *right)
{
    const struct item *a = left, *b = right;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static uint64_t weight_of(float value, float largest, float inverse_temperature)
{
    if (value >= largest) return UINT64_C(1) << 30;
    float x = (value - largest) * inverse_temperature;
    if (!(x > -104.0f)) return 0;
    const float magic = 0x1.8p+23f;
    float n = fmaf(x, 0x1.715476p+0f, magic) - magic, r = fmaf(n, -0x1.62e4p-1f, x), p = 0x1.6d117cp-10f;
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    p = fmaf(p, r, 0x1.120be2p-7f);
    p = fmaf(p, r, 0x1.555518p-5f);
    p = fmaf(p, r, 0x1.5554dcp-3f);
    p = fmaf(p, r, 0.5f);
    return (uint64_t)ldexpf(fmaf(p, r * r, r) + 1.0f, (int)n + 30);
}

enum { ROWS = 5, VALID = 4, IN_ROWS = 6, SLOTS = 7 };
struct problem {
    int64_t vocab, seen_bytes;
    int32_t counts[2], out_rows[ROWS], slots[IN_ROWS], next[ROWS], tokens[IN_ROWS], positions[IN_ROWS];
    struct sampler_state samplers[SLOTS];
    float *logits; /* [ROWS, vocab] */
    uint8_t *seen; /* [SLOTS, seen_bytes] */
    /* NULL without options. */
    uint32_t *adjustments, *allowed; /* [SLOTS, PLAN_BIAS_WORDS + vocab], [SLOTS, ceil(vocab / 32)] */
};

static uint32_t *adjustments_of(const struct problem *problem, int32_t slot)
{
    return problem->adjustments + (uint64_t)slot * plan_adjustment_words((uint64_t)problem->vocab);
}

static size_t adjustment_bytes(const struct problem *problem)
{
    return SLOTS * plan_adjustment_words((uint64_t)problem->vocab) * sizeof(uint32_t);
}

static size_t allowed_bytes(const struct problem *problem)
{
    return SLOTS * plan_allowed_words((uint64_t)problem->vocab) * sizeof(uint32_t);
}

static float adjusted(const uint32_t *row, const struct sampler_state *sampler, int64_t token, float value)
{
    const uint32_t word = row[PLAN_BIAS_WORDS + token], count = word & PLAN_COUNT_MOST;
    float bias, penalty = sampler->frequency_penalty * (float)count;
    memcpy(&bias, &row[word >> PLAN_COUNT_BITS], sizeof bias);
    penalty += sampler->presence_penalty;
    value += bias;
    return count ? value - penalty : value;
}

static int32_t expected_token(const struct problem *problem, const float *logits, int32_t slot)
{
    const int64_t vocab = problem->vocab;
    const struct sampler_state *sampler = &problem->samplers[slot];
    const uint8_t *seen = problem->seen + slot * problem->seen_bytes;
    const uint32_t options = problem->adjustments ? sampler->options : 0;
    struct item *items = malloc((size_t)vocab * sizeof *items);
    const float penalty = sampler->repetition_penalty;
    int32_t token = PLAN_NO_TOKEN;
    int64_t count = vocab;
    for (int64_t t = 0; t < vocab; t++) {
        float value = logits[t];
        if (penalty != 1.0f && (seen[t / 8] >> (t % 8) & 1)) value = value >= 0 ? value / penalty : value * penalty;
        if (options & SAMPLER_ADJUSTS) value = adjusted(adjustments_of(problem, slot), sampler, t, value);
        if (options & SAMPLER_ALLOWS &&
            !(problem->allowed[(uint64_t)slot * plan_allowed_words((uint64_t)vocab) + (uint64_t)t / 32] >> (t % 32) &
              1))
            value = -INFINITY;
        if (isnan(value) || value == INFINITY) goto done;
        items[t] = (struct item){value + 0.0f, (uint32_t)t};
    }
    qsort(items, (size_t)count, sizeof *items, compare_items);
    const float largest = items[0].value, inverse = 1.0f / sampler->temperature;
    if (largest == -INFINITY) goto done;
    token = (int32_t)items[0].id;
    if (!(sampler->temperature > 0)) goto done;
    if (sampler->top_k > 0 && sampler->top_k < count) {
        int64_t kept = sampler->top_k;
        while (kept < count && items[kept].value == items[sampler->top_k - 1].value) kept++;
        count = kept;
    }
    if (options & SAMPLER_MIN_P) {
        const float depth = sampler->temperature * sampler->min_p_log, least = largest + depth;
        while (items[count - 1].value < least) count--;
    }
    uint64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += weight_of(items[i].value, largest, inverse);
    if (sampler->top_p < 1.0f) {
        const double wanted = ceil((double)sampler->top_p * (double)total);
        uint64_t least = wanted >= 1.0 ? (uint64_t)wanted : 1, sum = 0;
        for (int64_t i = 0; i < count && sum < least; i++) sum += weight_of(items[i].value, largest, inverse);
        total = sum;
    }
    const uint64_t uniform = philox_uniform_24(sampler->seed, sampler->draw), mask = (1u << 24) - 1;
    const uint64_t target = (total >> 24) * uniform + ((total & mask) * uniform >> 24);
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += weight_of(items[i].value, largest, inverse);
        token = (int32_t)items[i].id;
        if (sum > target) break;
    }
done:
    free(items);
    return token;
}

static void fill_logits(struct test_random *random, float *logits, int64_t vocab, int kind)
{
    const int64_t some = vocab < 7 ? 1 : vocab / 7;
    for (int64_t t = 0; t < vocab; t++) {
        float sum = 0;
        for (int j = 0; j < 3; j++) sum += test_random_float(random, -3, 3);
        if (kind == 1) sum = rintf(sum);                      /* ties */
        if (kind == 2) sum = 1.25f;                           /* nothing but ties */
        if (kind == 3 && t % 3 == 0) sum = NAN;               /* some are NaN */
        if (kind == 4) sum = NAN;                             /* all */
        if (kind == 5) sum *= 30;                             /* few count */
        if (kind == 6) sum = rintf(4 * sum) * 1e-4f + 100.0f; /* in a narrow range */
        if (kind == 7) sum = t % some ? -INFINITY : sum;
        if (kind == 8) sum = -INFINITY;
        if (kind == 9) sum = sum * 0.01f - (float)(t % 2); /* flat */
        if (kind == 12) sum *= 1e30f;
        if (kind == 13) sum *= 1e-6f;
        logits[t] = sum;
    }
    if (kind == 14) logits[test_random_range(random, 0, vocab - 1)] = NAN;
    if (kind == 15) logits[vocab - 1] = float_from_bits(0xffffffff); /* a NaN, too */
    if (kind == 16) logits[0] = INFINITY;
    if (kind == 10)
        for (int i = 0; i < 3; i++) logits[test_random_range(random, 0, vocab - 1)] = INFINITY;
    if (kind == 11) logits[vocab - 1] = 60;
}
enum { KINDS = 17 };

/* Biases and counts of a slot, tokens that it may draw; where its sampler has not the option, anything. */
static void fill_options(struct test_random *random, struct problem *problem, int slot)
{
    uint32_t *row = adjustments_of(problem, slot);
    const int64_t words = (int64_t)plan_allowed_words((uint64_t)problem->vocab);
    const uint32_t options = (uint32_t)test_random_range(random, 0, 7);
    problem->samplers[slot].options = options;
    for (int64_t i = 0; i < PLAN_BIAS_WORDS + problem->vocab; i++)
        row[i] = options & SAMPLER_ADJUSTS ? 0 : (uint32_t)test_random_bits(random);
    for (int64_t w = 0; w < words; w++)
        problem->allowed[slot * words + w] = (uint32_t)(test_random_bits(random) | test_random_bits(random));
    if (!(options & SAMPLER_ADJUSTS)) return;
    for (int64_t t = 0; t < problem->vocab; t += test_random_range(random, 1, 9))
        row[PLAN_BIAS_WORDS + t] = (uint32_t)test_random_range(random, 1, 4);
    for (uint32_t i = 1; i <= PLAN_MAX_LOGIT_BIASES; i += 33) {
        const float bias = test_random_float(random, -5, 5);
        uint32_t *word = &row[PLAN_BIAS_WORDS + test_random_range(random, 0, problem->vocab - 1)];
        memcpy(&row[i], &bias, sizeof bias);
        *word = (*word & PLAN_COUNT_MOST) | i << PLAN_COUNT_BITS;
    }
    row[PLAN_BIAS_WORDS] |= PLAN_COUNT_MOST; /* stays */
}

static void fill_problem(struct test_random *random, struct problem *problem, int round)
{
    static const int32_t top_ks[] = {0, 1, 2, 40, 50, 1000, 100000, -3, INT32_MAX, 100, 127, 128, 129, 300};
    static const float top_ps[] = {1.0f, 0.95f, 0.9f, 0.5f, 0.01f, 1e-9f, 0.999f};
    static const float temperatures[] = {1.0f, 0.7f,   2.5f,     0.05f, 1e-6f, 0,     0.6f,  30.0f,
                                         -1,   1e-42f, INFINITY, 0.8f,  1e30f, 1e-5f, 200.0f};
    static const float penalties[] = {1.0f, 1.3f, 1.0f, 0.8f, 1.0f};
    static const float min_p_logs[] = {0, -0.7f, -2.3f, -4.6f, -14};
    problem->counts[0] = INT32_MAX, problem->counts[1] = VALID;
    for (int s = 0; s < SLOTS; s++)
        problem->samplers[s] = (struct sampler_state){.temperature = temperatures[test_random_range(random, 0, 14)],
                                                      .top_p = top_ps[test_random_range(random, 0, 6)],
                                                      .top_k = top_ks[test_random_range(random, 0, 13)],
                                                      .repetition_penalty = penalties[test_random_range(random, 0, 4)],
                                                      .seed = test_random_bits(random),
                                                      .draw = test_random_bits(random) >> 20,
                                                      .min_p_log = min_p_logs[test_random_range(random, 0, 4)],
                                                      .presence_penalty = test_random_float(random, -2, 2),
                                                      .frequency_penalty = test_random_float(random, -1, 1)};
    for (int s = 0; problem->adjustments && s < SLOTS; s++) fill_options(random, problem, s);
    for (int64_t i = 0; i < SLOTS * problem->seen_bytes; i++) problem->seen[i] = (uint8_t)test_random_bits(random);
    for (int r = 0; r < IN_ROWS; r++) {
        problem->slots[r] = (r * 3 + round) % SLOTS;
        problem->tokens[r] = -7;
        problem->positions[r] = 100 + r;
    }
    for (int r = 0; r < ROWS; r++) {
        problem->out_rows[r] = r < VALID ? (r + round) % IN_ROWS : INT32_MIN + round; /* wild beyond the valid ones */
        problem->next[r] = -9;
        fill_logits(random, problem->logits + r * problem->vocab, problem->vocab, (round * ROWS + r) % KINDS);
    }
    if (round % 4 == 3) problem->out_rows[1] = round % 8 == 3 ? -1 : IN_ROWS; /* a row that does not exist */
}

/* Expected results of the launch. */
static void apply_expected(const struct problem *problem, struct problem *after, bool feedback)
{
    for (int r = 0; r < VALID; r++) {
        const int32_t in_row = problem->out_rows[r];
        after->next[r] = 0;
        if (in_row < 0 || in_row >= IN_ROWS) continue;
        const int32_t slot = problem->slots[in_row];
        const int32_t token = expected_token(problem, problem->logits + r * problem->vocab, slot);
        after->next[r] = token;
        if (token != PLAN_NO_TOKEN) {
            after->samplers[slot].draw++;
            uint8_t *byte = &after->seen[slot * problem->seen_bytes + token / 8];
            *byte = (uint8_t)(*byte | 1u << (token % 8));
            if (problem->adjustments && problem->samplers[slot].options & SAMPLER_ADJUSTS)
                plan_count_token(adjustments_of(after, slot), token);
        }
        if (!feedback) continue;
        after->tokens[in_row] = token;
        after->positions[in_row]++;
    }
}

/* The CPU's own code on the same problem: how many tokens differ. */
static int compare_with_cpu(const struct problem *problem, const struct problem *after, bool reference)
{
    const uint64_t workspace = sample_workspace_bytes(ROWS, (uint64_t)problem->vocab);
    struct problem copy = *problem;
    copy.seen = malloc((size_t)(SLOTS * problem->seen_bytes));
    memcpy(copy.seen, problem->seen, (size_t)(SLOTS * problem->seen_bytes));
    if (problem->adjustments) {
        copy.adjustments = malloc(adjustment_bytes(problem));
        memcpy(copy.adjustments, problem->adjustments, adjustment_bytes(problem));
    }
    const int64_t params[SAMPLE_PARAMS] = {ROWS, 1, problem->vocab, SLOTS, IN_ROWS, 0, problem->adjustments != NULL};
    const struct op_call call = {params,
                                 {copy.counts, copy.logits, copy.out_rows, copy.slots, copy.samplers, copy.seen,
                                  copy.next, [SAMPLE_ADJUSTMENTS] = copy.adjustments, [SAMPLE_ALLOWED] = copy.allowed,
                                  [SAMPLE_WORKSPACE] = malloc(workspace)}};
    if (reference)
        sample_reference(&call);
    else
        test_run_op(&op_sample, cpu_isa_best(), &call, 2);
    int different = 0;
    for (int r = 0; r < VALID; r++) different += copy.next[r] != after->next[r];
    free(call.operands[SAMPLE_WORKSPACE]);
    free(copy.seen);
    if (problem->adjustments) free(copy.adjustments);
    return different;
}

static int draws, different_from_vectors, different_from_reference, reference_draws;

/* The launch's operands; their contents before it. */
static void load(struct test_launch *launch, const struct problem *problem)
{
    const void *content[] = {problem->counts,    problem->logits,      problem->out_rows, problem->slots,
                             problem->samplers,  problem->seen,        problem->next,     problem->tokens,
                             problem->positions, problem->adjustments, problem->allowed};
    for (int i = 0; i <= SAMPLE_ALLOWED; i++)
        if (launch->host[i]) memcpy(launch->host[i], content[i], launch->device[i].bytes);
}

static void check_with(int64_t vocab, int64_t cluster, int64_t threads, bool feedback, bool options, int rounds)
{
    struct test_random random = {(uint64_t)(vocab * 16 + cluster)};
    struct problem problem = {.vocab = vocab, .seen_bytes = (vocab + 7) / 8};
    const int64_t params[SAMPLE_DEVICE_PARAMS] = {ROWS,     1,       vocab, SLOTS,   IN_ROWS,
                                                  feedback, options, 0,     cluster, threads};
    const size_t seen_bytes = (size_t)(SLOTS * problem.seen_bytes);
    struct test_launch launch;
    test_launch_open(&launch, &device_sample, params, VALID);
    assert_true((uint32_t)launch.kernel.static_shared_bytes <= 40u << 10); /* what sample_device.c reckons with */
    problem.logits = test_take(&launch.memory, (size_t)(ROWS * vocab) * sizeof(float));
    problem.seen = test_take(&launch.memory, seen_bytes);
    uint8_t *expected_seen = test_take(&launch.memory, seen_bytes);
    uint32_t *expected_adjustments = options ? test_take(&launch.memory, adjustment_bytes(&problem)) : NULL;
    if (options) {
        problem.adjustments = test_take(&launch.memory, adjustment_bytes(&problem));
        problem.allowed = test_take(&launch.memory, allowed_bytes(&problem));
    }
    for (int round = 0; round < rounds; round++) {
        fill_problem(&random, &problem, round);
        load(&launch, &problem);
        test_launch_run(&launch);
        struct problem expected = problem;
        expected.seen = memcpy(expected_seen, problem.seen, seen_bytes);
        if (options)
            expected.adjustments = memcpy(expected_adjustments, problem.adjustments, adjustment_bytes(&problem));
        apply_expected(&problem, &expected, feedback);
        const int32_t *next = launch.found[SAMPLE_NEXT_TOKENS];
        for (int r = 0; r < VALID; r++) {
            if (next[r] == expected.next[r]) continue;
            const int32_t in_row = problem.out_rows[r] < 0 || problem.out_rows[r] >= IN_ROWS ? 0 : problem.out_rows[r];
            const struct sampler_state *s = &problem.samplers[problem.slots[in_row]];
            fail_msg("vocab %d cluster %d round %d row %d (kind %d): token %d, expected %d; temperature %g top_p %g "
                     "top_k %d penalty %g options %u",
                     (int)vocab, (int)cluster, round, r, (round * ROWS + r) % KINDS, next[r], expected.next[r],
                     (double)s->temperature, (double)s->top_p, s->top_k, (double)s->repetition_penalty, s->options);
        }
        assert_memory_equal(next, expected.next, sizeof expected.next);
        assert_memory_equal(launch.found[SAMPLE_SAMPLERS], expected.samplers, sizeof expected.samplers);
        test_assert_same_bits(launch.found[SAMPLE_SEEN], expected.seen, seen_bytes, "seen");
        if (options)
            test_assert_same_bits(launch.found[SAMPLE_ADJUSTMENTS], expected.adjustments, adjustment_bytes(&problem),
                                  "adjustments");
        if (feedback) assert_memory_equal(launch.found[SAMPLE_TOKENS], expected.tokens, sizeof expected.tokens);
        if (feedback)
            assert_memory_equal(launch.found[SAMPLE_POSITIONS], expected.positions, sizeof expected.positions);
        draws += VALID;
        different_from_vectors += compare_with_cpu(&problem, &expected, false);
        if (vocab > 40000) continue;
        reference_draws += VALID;
        different_from_reference += compare_with_cpu(&problem, &expected, true);
    }
    test_launch_close(&launch);
}

static void check(int64_t vocab, int64_t cluster, int64_t threads, bool feedback, int rounds)
{
    check_with(vocab, cluster, threads, feedback, false, rounds);
    check_with(vocab, cluster, threads, feedback, true, rounds);
}

/* For compute-sanitizer, which takes minutes over large vocabularies: the kernel's ways through them at the smallest that
 * take each; one or two loads a thread or a batch of them and more, keys kept or read again, every size of cluster. */
static void check_every_way(void)
{
    enum { ROUNDS = 7 }; /* every kind of logits */
    check(17, 8, 128, true, 2 * ROUNDS);
    check(512, 1, 512, true, ROUNDS);
    check(512, 8, 128, false, ROUNDS);
    check(5003, 4, 320, true, ROUNDS);
    check(4100, 4, 512, false, ROUNDS);
    check(8200, 8, 512, true, ROUNDS);
    check(6000, 1, 128, true, ROUNDS);   /* loads in batches of 8 */
    check(10259, 2, 128, false, ROUNDS); /* of 32, not aligned */
    check(12292, 1, 512, true, ROUNDS);  /* reads the logits in every pass */
}

TEST(equals_the_cpu)
{
    TEST_NEEDS_DEVICE();
    const bool is_sanitized = getenv("ENG_TEST_SANITIZED") != NULL; /* tests/gpu/check.h */
    check(1, 1, 128, true, 4);
    if (is_sanitized) {
        check_every_way();
    } else {
        check(17, 8, 128, true, 12);
        check(512, 1, 512, true, 120);
        check(512, 8, 128, false, 120);
        check(5003, 4, 320, true, 60);
        check(32000, 8, 512, true, 60);
        check(32000, 1, 512, true, 24); /* reads the logits in every pass */
        check(50257, 2, 512, true, 12);
        check(128256, 8, 512, true, 48);
        check(128256, 4, 512, false, 24);
        check(128256, 1, 512, true, 12);
        check(151936, 8, 512, true, 24);
        check(262144, 8, 512, true, 12);
    }
    print_message("%d draws; the CPU's vector code (%s) draws %d others; %d of the reference's %d differ\n", draws,
                  cpu_isa_name(cpu_isa_best()), different_from_vectors, different_from_reference, reference_draws);
    /* Without fused multiply-adds weights round differently. */
    if (cpu_isa_best() >= CPU_AVX2) assert_int_equal(different_from_vectors, 0);
    /* Few draws, of which a few differ. */
    if (!is_sanitized) assert_true(different_from_reference * 100 <= reference_draws);
}

/* A NaN or +infinity at every place of a row, with its sound neighbours drawing what they draw without it. */
static void check_every_place(int64_t vocab, int64_t cluster, float bad, float temperature)
{
    struct test_random random = {(uint64_t)(vocab + cluster)};
    struct problem problem = {.vocab = vocab, .seen_bytes = (vocab + 7) / 8};
    const int64_t params[SAMPLE_DEVICE_PARAMS] = {ROWS, 1, vocab, SLOTS, IN_ROWS, 0, 0, 0, cluster, 128};
    struct test_launch launch;
    test_launch_open(&launch, &device_sample, params, VALID);
    problem.logits = test_take(&launch.memory, (size_t)(ROWS * vocab) * sizeof(float));
    problem.seen = test_take(&launch.memory, (size_t)(SLOTS * problem.seen_bytes));
    fill_problem(&random, &problem, 0);
    for (int r = 0; r < ROWS; r++) fill_logits(&random, problem.logits + r * vocab, vocab, 0);
    for (int s = 0; s < SLOTS; s++)
        problem.samplers[s] = (struct sampler_state){.temperature = temperature, .top_p = 1, .repetition_penalty = 1};
    int32_t sound[ROWS], found[ROWS];
    for (int64_t at = -1; at < vocab; at++) {
        const int64_t row = at % VALID, place = row * vocab + at;
        const float kept = at < 0 ? 0 : problem.logits[place];
        if (at >= 0) problem.logits[place] = bad;
        load(&launch, &problem);
        test_launch_run(&launch);
        memcpy(at < 0 ? sound : found, launch.found[SAMPLE_NEXT_TOKENS], sizeof found);
        if (at < 0) continue;
        problem.logits[place] = kept;
        for (int r = 0; r < VALID; r++)
            if (found[r] != (r == row ? PLAN_NO_TOKEN : sound[r]))
                fail_msg("vocab %d cluster %d: %g at %d of row %d: row %d drew %d", (int)vocab, (int)cluster,
                         (double)bad, (int)at, (int)row, r, found[r]);
    }
    test_launch_close(&launch);
}

TEST(not_finite_at_every_place)
{
    TEST_NEEDS_DEVICE();
    check_every_place(516, 1, NAN, 0);
    check_every_place(1031, 2, -NAN, 0.8f);
    check_every_place(1300, 8, INFINITY, 0);
    check_every_place(517, 4, NAN, 1.0f);
}

/* The expectation itself, where there is no GPU, too. */
TEST(expectation_equals_the_cpu)
{
    static const int64_t vocabs[] = {1, 17, 512, 5003, 32000};
    struct test_random random = {21};
    int different = 0;
    for (int v = 0; v < 10; v++) {
        struct problem problem = {.vocab = vocabs[v / 2], .seen_bytes = (vocabs[v / 2] + 7) / 8};
        problem.logits = malloc((size_t)(ROWS * problem.vocab) * sizeof(float));
        problem.seen = malloc((size_t)(SLOTS * problem.seen_bytes));
        if (v % 2) {
            problem.adjustments = malloc(adjustment_bytes(&problem));
            problem.allowed = malloc(allowed_bytes(&problem));
        }
        struct problem expected;
        uint8_t *seen = calloc(SLOTS, (size_t)problem.seen_bytes);
        uint32_t *adjustments = malloc(adjustment_bytes(&problem));
        for (int round = 0; round < 36; round++) {
            fill_problem(&random, &problem, round);
            expected = problem;
            expected.seen = seen;
            expected.adjustments = adjustments; /* not compared */
            apply_expected(&problem, &expected, false);
            different += compare_with_cpu(&problem, &expected, false);
        }
        free(problem.logits), free(problem.seen), free(seen);
        free(problem.adjustments), free(problem.allowed), free(adjustments);
    }
    if (cpu_isa_best() >= CPU_AVX2) assert_int_equal(different, 0);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SAMPLE_DEVICE_PARAMS] = {4, 1, 128256, 8, 4, 1, 1, 0, 8, 512};
    test_hostile_launches(&device_sample, params);
    test_launch_refuses(&device_sample, params,
                        TEST_CHANGES({SAMPLE_VOCAB, 0}, {SAMPLE_DEVICE_CLUSTER, 3}, {SAMPLE_DEVICE_CLUSTER, 16},
                                     {SAMPLE_DEVICE_THREADS, 96}, {SAMPLE_DEVICE_THREADS, 520}, {SAMPLE_FEEDBACK, 2},
                                     {SAMPLE_HAS_OPTIONS, 2}, {SAMPLE_VERIFIES, 1}, {SAMPLE_VERIFIES, 2}));
    assert_false(test_launch_accepts(&device_sample, params, 80)); /* no clusters */
    const struct device_facts hopper = test_facts(90), ampere = test_facts(80);
    int64_t candidates[8][PLAN_MAX_PARAMS];
    int count = device_sample.candidates(params, &hopper, candidates, 8);
    assert_in_range(count, 4, 8);
    for (int i = 0; i < count; i++) assert_true(test_launch_accepts(&device_sample, candidates[i], 90));
    count = device_sample.candidates(params, &ampere, candidates, 8);
    assert_in_range(count, 1, 8);
    for (int i = 0; i < count; i++) assert_int_equal(candidates[i][SAMPLE_DEVICE_CLUSTER], 1);
}

int main(void) { return test_run(); }
