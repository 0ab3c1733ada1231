/* SPDX-License-Identifier: Apache-2.0 */
/* An engine for the GPU against one for the CPU, from the same checkpoint with the same weights.
 *
 * The CPU computes with float32 activations and sums, the GPU rounds activations to the dtype of the weights (bfloat16 where
 * they are codes, which are the same on both): a logit
 * may be off by 3e-2 of the row's largest. Both always read the same tokens, so every row of logits is comparable, and
 * a token may differ only where the gap of the two logits is no larger than both errors. */
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/eng.h"
#include "runtime/load/load_engine.h"
#include "runtime/session/session.h"
#include "tests/gpu/check.h"
#include "tests/gpu/programs.h"

/* Parts of the largest logit. With codes in the KV cache a last bit decides a code, of which e4m3 has few; codes of activations add
 * their own error, since the CPU has none. */
static const double logit_bound = 3e-2, int8_kv_bound = 5e-2, fp8_kv_bound = 1.3e-1, codes_compute_bound = 2.5e-1;
/* A row in a hundred may be up to twice as far off: transformers in bf16 differs from itself in float32 by 2e-2 to 3.5e-2 in
 * the worst of 3900 rows of such small models, by 5.2e-2 in one with longrope, whose attention factor sharpens softmax, and by more
 * than 3e-2 in 11 rows of 100 of one whose activations are squared. */
static const double worst_factor = 2, rows_beyond = 0.015;
/* Rounding makes a router choose otherwise, so that engines with experts are compared twice: with experts chosen by position
 * (eng_session.fixes_routes), like any other engine, and as they are used, where no row has to be near, but many are. */
static const double rows_beyond_with_routers = 0.75;
/* The norm after a delta rule enlarges rounding (builder/golden/golden_cuda.c): in 2400 rows of a small Qwen 3.5 without experts
 * transformers in bf16 differs from itself in float32 by more than 1e-1 in 6.5 of 100, by 6.5e-1 in the worst. */
static const double recurrent_bound = 1e-1, rows_beyond_with_recurrence = 0.1;
static const double least_agreement = 0.75;
static const double rounding_divergence = 2e-3; /* nats between two plans that round differently */

enum { MOST_BATCH = 16, MOST_PROMPT = 300, STEPS = 24, DRAWS = 32 };

/* Programs */

static void run(const struct engine_check *check, const char *program, const char *output, const char *const *words)
{
    char path[CHECK_PATH];
    snprintf(path, sizeof path, "%s/%s", check->programs, program);
    check_run_program(path, output, words);
}

static void assert_same_files(const char *a, const char *b, const char *what)
{
    size_t a_size, b_size;
    char *a_data = check_read_file(a, &a_size), *b_data = check_read_file(b, &b_size);
    if (a_size == 0 || a_size != b_size || memcmp(a_data, b_data, a_size) != 0) {
        printf("%s and %s differ\n", a, b);
        check_fail(what, NULL);
    }
    free(a_data), free(b_data);
}

struct paths {
    char cpu[CHECK_PATH], gpu[CHECK_PATH];
};

/* Whether mixed steps, speculation and results besides tokens are checked, too. */
static bool serves(const struct engine_check *check) { return check->is_trained && !check->is_brief; }

/* A brief check has one prefill plan and a decode plan of either fusion, for few rows and for MOST_BATCH. */
static void build_one(const struct engine_check *check, const char *target, const char *tune, const char *path)
{
    static const char *const few[] = {"--batch-sizes", "1,16", "--prefill-chunks", "32"};
    static const char *const serving[] = {"--mixed-steps", "32,128", "--verify-rows", "2,8"};
    char batch[16], context[16];
    snprintf(batch, sizeof batch, "%d", MOST_BATCH);
    snprintf(context, sizeof context, "%u", check->context ? check->context : CHECK_CONTEXT);
    const char *words[CHECK_MOST_WORDS + 1] =
        {"--model",       check->model, "--target",       target, "--dtype",     check->dtype,
         "--tune",        tune,         "--tuning-cache", "none", "--max-batch", batch,
         "--max-context", context,      "--quiet",        "-o",   path};
    int count = 0;
    while (words[count]) count++;
    if (!serves(check)) words[count++] = "--no-accuracy";
    if (check->kv_dtype) words[count++] = "--kv-dtype", words[count++] = check->kv_dtype;
    if (check->compute && strcmp(target, "cuda") == 0) words[count++] = "--compute", words[count++] = check->compute;
    if (check->is_brief) memcpy(words + count, few, sizeof few);
    if (serves(check) && strcmp(target, "cuda") == 0) memcpy(words + count, serving, sizeof serving), count += 4;
    if (serves(check)) words[count++] = "--hidden";
    run(check, "engbuild", NULL, words);
}

static void build(const struct engine_check *check, const struct paths *paths)
{
    build_one(check, "cpu", "off", paths->cpu);
    build_one(check, "cuda", check->tune, paths->gpu);
}

/* engrun's self test, and that two runs give the same tokens and logits, bit for bit. */
static void check_programs(const struct engine_check *check, const struct paths *paths)
{
    char logits[2][CHECK_PATH + 16], tokens[2][CHECK_PATH + 16];
    static const char *const samplings[][7] = {{NULL},
                                               {"--temperature", "0.9", "--top-p", "0.95", "--seed", "7", NULL}};
    const char *const cpu_selftest[] = {paths->cpu, "--selftest", NULL};
    const char *const gpu_selftest[] = {paths->gpu, "--selftest", NULL};
    run(check, "engrun", NULL, cpu_selftest);
    run(check, "engrun", NULL, gpu_selftest);
    for (int sampling = 0; sampling < 2; sampling++) {
        for (int time = 0; time < 2; time++) {
            snprintf(logits[time], sizeof logits[time], "%s/logits%d.npy", check->scratch, time);
            snprintf(tokens[time], sizeof tokens[time], "%s/tokens%d", check->scratch, time);
            const char *words[CHECK_MOST_WORDS + 1] =
                {paths->gpu, "--tokens",  "5,9,17,33,6,7,30,50,8,4,11", "-n", "32", "--ignore-eos", "--print-tokens",
                 "--logits", logits[time]};
            for (int i = 0; samplings[sampling][i]; i++) words[9 + i] = samplings[sampling][i];
            run(check, "engrun", tokens[time], words);
        }
        assert_same_files(tokens[0], tokens[1], "two runs gave different tokens");
        assert_same_files(logits[0], logits[1], "two runs gave different logits");
    }
}

/* Both engines, open */

struct side {
    struct eng_engine *engine;
    struct eng_session *session;
};

struct pair {
    struct side cpu, gpu;
    size_t vocab, context;
    double bound, worst;       /* for the error of a logit, and the largest found; of the largest logit of its row */
    size_t rows, beyond, ties; /* beyond: with an error above `bound` */
    bool has_routers;          /* that choose by themselves */
    bool has_recurrence;
};

static struct side open_side(const char *path)
{
    struct side side = {0};
    struct eng_error error;
    if (eng_open(path, NULL, &side.engine, &error) != ENG_OK) check_fail("eng_open", &error);
    if (eng_session_create(side.engine, NULL, &side.session, &error) != ENG_OK)
        check_fail("eng_session_create", &error);
    return side;
}

static void close_side(struct side *side)
{
    eng_session_destroy(&side->session);
    eng_close(&side->engine);
}

/* Token `index` of prompt `which`: any but the first few, which are special in many vocabularies. */
static int32_t prompt_token(const struct pair *pair, uint64_t which, size_t index)
{
    uint64_t bits = (which * 1000003 + index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    bits ^= bits >> 29;
    return (int32_t)(4 + bits % (pair->vocab - 4));
}

static void make_prompt(const struct pair *pair, uint64_t which, int32_t *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++) tokens[i] = prompt_token(pair, which, i);
}

static void compare_rows(struct pair *pair, const float *cpu, const float *gpu, int32_t cpu_token, int32_t gpu_token,
                         const char *what)
{
    double largest = 0, error = 0;
    size_t at = 0, best = 0;
    for (size_t i = 0; i < pair->vocab; i++) {
        double difference = fabs((double)cpu[i] - (double)gpu[i]);
        if (!isfinite(gpu[i])) difference = INFINITY;
        largest = fmax(largest, fabs((double)cpu[i]));
        if (gpu[i] > gpu[best]) best = i;
        if (difference > error) error = difference, at = i;
    }
    pair->rows++;
    pair->worst = fmax(pair->worst, error / largest);
    pair->beyond += error > pair->bound * largest;
    if (!(error <= worst_factor * pair->bound * largest) &&
        !((pair->has_routers || pair->has_recurrence) && isfinite(error))) {
        printf("%s: logit %zu: CPU %g, GPU %g, largest %g\n", what, at, (double)cpu[at], (double)gpu[at], largest);
        check_fail("the engines' logits differ", NULL);
    }
    if (gpu_token != (int32_t)best) {
        printf("%s: the largest logit is that of token %zu, the token is %d\n", what, best, gpu_token);
        check_fail("the GPU's token is not the greedy one", NULL);
    }
    if (gpu_token == cpu_token) return;
    pair->ties++;
    if ((double)cpu[cpu_token] - (double)cpu[gpu_token] <= 2 * error) return;
    printf("%s: CPU %d (%g), GPU %d (%g), error %g\n", what, cpu_token, (double)cpu[cpu_token], gpu_token,
           (double)cpu[gpu_token], error);
    check_fail("the engines' tokens differ where the logits are no tie", NULL);
}

static void prefill(const struct side *side, uint32_t slot, const int32_t *tokens, size_t count, int32_t *next,
                    float *logits)
{
    struct eng_error error;
    if (eng_prefill(side->session, slot, tokens, count, next, logits, &error) != ENG_OK)
        check_fail("eng_prefill", &error);
}

static void decode(const struct side *side, const uint32_t *slots, const int32_t *tokens, size_t count, int32_t *next,
                   float *logits)
{
    struct eng_error error;
    if (eng_decode(side->session, slots, tokens, count, next, logits, &error) != ENG_OK)
        check_fail("eng_decode", &error);
}

static uint32_t acquire(const struct side *side, const struct eng_sampling *sampling)
{
    uint32_t slot = 0;
    struct eng_error error;
    if (eng_slot_acquire(side->session, &slot, &error) != ENG_OK) check_fail("eng_slot_acquire", &error);
    if (sampling && eng_slot_set_sampling(side->session, slot, sampling, &error) != ENG_OK)
        check_fail("eng_slot_set_sampling", &error);
    return slot;
}

static void release(const struct side *side, uint32_t slot)
{
    struct eng_error error;
    if (eng_slot_release(side->session, slot, &error) != ENG_OK) check_fail("eng_slot_release", &error);
}

/* `batch` prompts of different lengths from `length` on, then decode steps of all of them together. */
static void check_batch(struct pair *pair, size_t batch, size_t length, size_t steps)
{
    const struct side *sides[2] = {&pair->cpu, &pair->gpu};
    uint32_t slots[2][MOST_BATCH];
    int32_t prompt[CHECK_CONTEXT], tokens[MOST_BATCH], next[2][MOST_BATCH];
    float *logits[2];
    char what[96];
    for (int s = 0; s < 2; s++) logits[s] = check_must(malloc(MOST_BATCH * pair->vocab * sizeof(float)));
    for (size_t b = 0; b < batch; b++) {
        size_t count = length + 5 * b;
        make_prompt(pair, length * 100 + b, prompt, count);
        for (int s = 0; s < 2; s++) {
            slots[s][b] = acquire(sides[s], NULL);
            prefill(sides[s], slots[s][b], prompt, count, &next[s][b], logits[s]);
        }
        snprintf(what, sizeof what, "prompt of %zu tokens", count);
        compare_rows(pair, logits[0], logits[1], next[0][b], next[1][b], what);
    }
    for (size_t step = 0; step < steps; step++) {
        memcpy(tokens, next[0], sizeof tokens);
        for (int s = 0; s < 2; s++) decode(sides[s], slots[s], tokens, batch, next[s], logits[s]);
        for (size_t b = 0; b < batch; b++) {
            snprintf(what, sizeof what, "batch %zu, sequence %zu, prompt of %zu tokens, step %zu", batch, b,
                     length + 5 * b, step);
            compare_rows(pair, logits[0] + b * pair->vocab, logits[1] + b * pair->vocab, next[0][b], next[1][b], what);
        }
    }
    for (size_t b = 0; b < batch; b++)
        for (int s = 0; s < 2; s++) release(sides[s], slots[s][b]);
    for (int s = 0; s < 2; s++) free(logits[s]);
}

/* More sequences than slots, every second one sampled, through the scheduler. */
enum { SEQUENCES = MOST_BATCH + 4 };

/* How much is compared. Brief: two chunks of a prompt, few steps, so that every kernel of a step runs. */
struct extent {
    size_t lengths[9], batches[8]; /* up to the first 0 */
    size_t steps;
    int sequences, draws;
};
static const struct extent whole = {{1, 2, 7, 31, 33, 64, 130, MOST_PROMPT, 0},
                                    {1, 2, 3, 5, 8, 13, MOST_BATCH, 0},
                                    STEPS,
                                    SEQUENCES,
                                    DRAWS};
static const struct extent brief = {{33, 0}, {3, 0}, 4, 3, 4};
static const struct extent routed_extent = {{1, 33, 130, 0}, {3, MOST_BATCH, 0}, STEPS, SEQUENCES, DRAWS};

static size_t sequence_length(int sequence) { return 1 + (size_t)sequence * 9; }

static struct eng_sampling sequence_sampling(int sequence)
{
    struct eng_sampling sampling;
    eng_sampling_init(&sampling);
    if (sequence % 2) {
        sampling.temperature = 0.8f;
        sampling.top_p = 0.95f;
        sampling.seed = 1000 + (uint64_t)sequence;
    }
    return sampling;
}

/* known: the tokens of each prompt that the prefix cache had. */
static void run_sequences(const struct pair *pair, const struct extent *extent, int32_t tokens[SEQUENCES][DRAWS],
                          uint32_t known[SEQUENCES])
{
    struct eng_sequence *sequences[SEQUENCES];
    struct eng_error error;
    uint32_t unfinished = 1;
    int32_t prompt[CHECK_CONTEXT];
    for (int i = 0; i < extent->sequences; i++) {
        struct eng_sampling sampling = sequence_sampling(i);
        struct eng_sequence_options options;
        eng_sequence_options_init(&options);
        options.sampling = &sampling;
        options.max_new_tokens = (uint32_t)extent->draws;
        options.flags = ENG_SEQUENCE_IGNORE_EOS;
        make_prompt(pair, (uint64_t)i, prompt, sequence_length(i));
        if (eng_sequence_create(pair->gpu.session, &options, &sequences[i], &error) != ENG_OK ||
            eng_sequence_submit(sequences[i], prompt, sequence_length(i), &error) != ENG_OK)
            check_fail("eng_sequence_submit", &error);
    }
    while (unfinished)
        if (eng_step(pair->gpu.session, &unfinished, &error) != ENG_OK) check_fail("eng_step", &error);
    for (int i = 0; i < extent->sequences; i++) {
        if (eng_sequence_poll(sequences[i], tokens[i], (size_t)extent->draws) != (size_t)extent->draws)
            check_fail("a sequence ended early", NULL);
        known[i] = eng_sequence_cached_tokens(sequences[i]);
        eng_sequence_destroy(&sequences[i]);
    }
}

/* The CPU reads the tokens that the GPU drew and draws its own at each of them. */
static void compare_tokens(struct pair *pair, const struct extent *extent, int32_t drawn[SEQUENCES][DRAWS],
                           bool is_trained)
{
    int32_t prompt[CHECK_CONTEXT];
    float *logits = check_must(malloc(pair->vocab * sizeof *logits));
    size_t equal = 0, sampled = 0;
    for (int i = 0; i < extent->sequences; i++) {
        struct eng_sampling sampling = sequence_sampling(i);
        uint32_t slot = acquire(&pair->cpu, &sampling);
        int32_t next;
        make_prompt(pair, (uint64_t)i, prompt, sequence_length(i));
        prefill(&pair->cpu, slot, prompt, sequence_length(i), &next, logits);
        for (int step = 0; step < extent->draws; step++) {
            double largest = 0;
            for (size_t v = 0; v < pair->vocab; v++) largest = fmax(largest, fabs((double)logits[v]));
            if (i % 2) {
                sampled++;
                equal += next == drawn[i][step];
            } else if (!pair->has_routers && !pair->has_recurrence &&
                       (double)logits[next] - (double)logits[drawn[i][step]] > 2 * pair->bound * largest) {
                printf("sequence %d, token %d: CPU %d (%g), GPU %d (%g)\n", i, step, next, (double)logits[next],
                       drawn[i][step], (double)logits[drawn[i][step]]);
                check_fail("the scheduler's tokens differ where the logits are no tie", NULL);
            }
            if (step + 1 < extent->draws) decode(&pair->cpu, &slot, &drawn[i][step], 1, &next, logits);
        }
        release(&pair->cpu, slot);
    }
    free(logits);
    printf("sampled tokens: %zu of %zu as on the CPU\n", equal, sampled);
    if (is_trained && (double)equal < least_agreement * (double)sampled)
        check_fail("sampled tokens differ from the CPU's too often", NULL);
}

/* From the second time on the prompts' first pages are known, and the rest takes plans for fewer rows, whose sums have another
 * order or precision. Checkpoints that had no room the first time are made later: two runs in turn must know the same to
 * be compared. */
static void check_sequences(struct pair *pair, const struct extent *extent, bool is_trained)
{
    enum { MOST_RUNS = 5 };
    int32_t first[SEQUENCES][DRAWS] = {{0}}, before[SEQUENCES][DRAWS], last[SEQUENCES][DRAWS] = {{0}};
    uint32_t known_before[SEQUENCES], known[SEQUENCES] = {0};
    int runs = 1;
    run_sequences(pair, extent, first, known);
    memcpy(last, first, sizeof last);
    do {
        if (++runs > MOST_RUNS) check_fail("the same sequences found other pages in the prefix cache each time", NULL);
        memcpy(before, last, sizeof before);
        memcpy(known_before, known, sizeof known);
        run_sequences(pair, extent, last, known);
    } while (memcmp(known_before, known, sizeof known) != 0);
    if (memcmp(before, last, sizeof last) != 0)
        check_fail("the same sequences with the same known pages gave other tokens", NULL);
    compare_tokens(pair, extent, first, is_trained);
    if (memcmp(first, last, sizeof first) != 0) compare_tokens(pair, extent, last, is_trained);
}

/* The same with drafted tokens: those that the sequences' own text proposes, then also those of the engine as its own draft engine. `is_tuned`:
 * by the times in its file it costs too much to draft. */
static void check_speculation(struct pair *pair, bool is_tuned)
{
    static const struct extent few = {.sequences = 4, .draws = DRAWS};
    struct eng_session *plain = pair->gpu.session;
    for (int drafts_itself = 0; drafts_itself < 2; drafts_itself++) {
        struct eng_session_options options;
        struct eng_session_facts facts;
        struct eng_error error;
        int32_t drawn[SEQUENCES][DRAWS] = {{0}};
        uint32_t known[SEQUENCES];
        eng_session_options_init(&options);
        eng_session_facts_init(&facts);
        options.speculate = 6;
        options.draft = drafts_itself ? pair->gpu.engine : NULL;
        options.kv_tokens = (uint64_t)few.sequences * pair->context;
        if (eng_session_create(pair->gpu.engine, &options, &pair->gpu.session, &error) != ENG_OK)
            check_fail("eng_session_create", &error);
        run_sequences(pair, &few, drawn, known);
        if (eng_session_get_facts(pair->gpu.session, &facts, &error) != ENG_OK)
            check_fail("eng_session_get_facts", &error);
        eng_session_destroy(&pair->gpu.session);
        pair->gpu.session = plain;
        printf("%" PRIu64 " tokens drafted, %" PRIu64 " accepted\n", facts.drafted_tokens, facts.accepted_tokens);
        if (drafts_itself && !is_tuned && facts.accepted_tokens == 0)
            check_fail("no token of the draft engine was accepted", NULL);
        compare_tokens(pair, &few, drawn, false); /* few say nothing about how often they agree */
    }
}

static void check_batches(struct pair *pair, const struct extent *extent)
{
    for (const size_t *length = extent->lengths; *length; length++)
        if (*length + extent->steps < pair->context) check_batch(pair, 1, *length, extent->steps);
    for (const size_t *batch = extent->batches; *batch; batch++)
        if (5 * *batch + 3 + extent->steps < pair->context) check_batch(pair, *batch, 3, extent->steps / 2);
    printf("%zu rows of logits%s: largest error %.2g of the largest logit, %zu above %g; %zu ties\n", pair->rows,
           pair->has_routers ? ", experts chosen by routers" : "", pair->worst, pair->beyond, pair->bound, pair->ties);
    const double most_beyond = pair->has_routers      ? rows_beyond_with_routers
                               : pair->has_recurrence ? rows_beyond_with_recurrence
                                                      : rows_beyond;
    if ((double)pair->beyond > most_beyond * (double)pair->rows)
        check_fail("the engines' logits differ in too many rows", NULL);
}

/* Each target measures the accuracy of codes with its own plans, whose rounding counts, over text of its own. */
static void check_accuracy(const struct pair *pair)
{
    const struct manifest_accuracy cpu = pair->cpu.engine->file.manifest.accuracy,
                                   gpu = pair->gpu.engine->file.manifest.accuracy;
    if (!cpu.tokens != !gpu.tokens) check_fail("one engine alone knows its accuracy", NULL);
    if (!cpu.tokens) return;
    printf("divergence of codes: %.2g nats on the processor, %.2g on the GPU; first choice %.3f, %.3f\n", cpu.kl,
           gpu.kl, cpu.top1, gpu.top1);
    /* A few odd tokens decide the mean, and the texts part where rounding changes a draw. */
    if (!(gpu.kl <= 3 * cpu.kl + rounding_divergence && cpu.kl <= 3 * gpu.kl + rounding_divergence) ||
        !(fabs(cpu.top1 - gpu.top1) <= 0.05))
        check_fail("the engines' accuracies differ", NULL);
}

/* Whether experts are chosen by position. Steps that are queued ahead have no positions from the host. */
static void fix_routes(const struct pair *pair, bool by_position)
{
    pair->cpu.session->fixes_routes = pair->gpu.session->fixes_routes = by_position;
}

int engine_check_run(const struct engine_check *check)
{
    const struct extent *extent = check->is_brief ? &brief : &whole;
    struct paths paths;
    struct pair pair = {.bound = check->has_recurrence ? recurrent_bound : logit_bound,
                        .has_recurrence = check->has_recurrence};
    struct eng_engine_facts facts;
    struct eng_error error;
    if (check->kv_dtype) pair.bound = strcmp(check->kv_dtype, "fp8") == 0 ? fp8_kv_bound : int8_kv_bound;
    if (check->compute && strcmp(check->compute, "bf16") != 0) pair.bound = codes_compute_bound;
    snprintf(paths.cpu, sizeof paths.cpu, "%s/cpu.eng", check->scratch);
    snprintf(paths.gpu, sizeof paths.gpu, "%s/gpu.eng", check->scratch);
    build(check, &paths);
    if (!check->is_brief) check_programs(check, &paths);
    pair.cpu = open_side(paths.cpu);
    pair.gpu = open_side(paths.gpu);
    eng_engine_facts_init(&facts);
    if (eng_engine_get_facts(pair.gpu.engine, &facts, &error) != ENG_OK) check_fail("eng_engine_get_facts", &error);
    pair.vocab = facts.vocab_size;
    pair.context = facts.max_context;
    if (check->has_experts) {
        struct pair routed = pair;
        routed.has_routers = true;
        check_batches(&routed, check->is_brief ? &brief : &routed_extent);
    }
    fix_routes(&pair, true);
    check_batches(&pair, extent);
    fix_routes(&pair, false);
    pair.has_routers = check->has_experts;
    /* A few draws say nothing about how often they agree. */
    if (sequence_length(extent->sequences - 1) + (size_t)extent->draws < pair.context)
        check_sequences(&pair, extent, serves(check));
    if (serves(check)) {
        check_speculation(&pair, strcmp(check->tune, "off") != 0);
        masks_check(pair.gpu.engine, pair.gpu.session, pair.vocab);
        results_check(pair.cpu.session, pair.gpu.session, pair.vocab, facts.hidden_size, pair.bound);
        check_accuracy(&pair);
    }
    close_side(&pair.gpu);
    close_side(&pair.cpu);
    return CHECK_PASSED;
}
