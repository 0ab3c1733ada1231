/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/accuracy.h"

#include <math.h>
#include <stdlib.h>

#include "builder/golden/own_text.h"

enum { UNQUANTISED = 0, QUANTISED = 1, MODELS };

/* What a step says of a row. */
struct comparison {
    double kl, random; /* random: in [0, 1), for the draw */
    bool agrees;
};

struct measurement {
    const struct accuracy_runner *models[MODELS];
    uint32_t rows, tokens, texts; /* sequences, tokens of each, how many times */
    uint64_t vocab;
    int32_t *step_tokens, *slots, *positions; /* [rows] */
    struct comparison *comparisons;           /* [rows] */
    struct golden_found found[MODELS];
    uint64_t random;
    double kl;
    uint64_t agreed;
};

/* log of the sum of e^logit, by the largest logit. */
static double log_sum(const float *logits, uint64_t count, uint64_t *largest)
{
    double sum = 0;
    *largest = 0;
    for (uint64_t i = 1; i < count; i++)
        if (logits[i] > logits[*largest]) *largest = i;
    for (uint64_t i = 0; i < count; i++) sum += exp((double)logits[i] - (double)logits[*largest]);
    return (double)logits[*largest] + log(sum);
}

static void compare_row(const struct measurement *m, const float *expected, const float *found,
                        struct comparison *comparison)
{
    uint64_t best, other;
    const double expected_sum = log_sum(expected, m->vocab, &best), found_sum = log_sum(found, m->vocab, &other);
    double kl = 0;
    for (uint64_t i = 0; i < m->vocab; i++) {
        const double log_expected = (double)expected[i] - expected_sum;
        kl += exp(log_expected) * (log_expected - ((double)found[i] - found_sum));
    }
    comparison->kl = kl > 0 ? kl : 0; /* a rounding error below 0 */
    comparison->agrees = best == other;
}

/* Compares rows and draws their next tokens. */
static void finish_rows(void *argument, struct team_member *member)
{
    struct measurement *m = argument;
    for (uint32_t row = (uint32_t)member->index; row < m->rows; row += (uint32_t)member->count) {
        const float *expected = m->found[UNQUANTISED].logits + row * m->vocab;
        compare_row(m, expected, m->found[QUANTISED].logits + row * m->vocab, &m->comparisons[row]);
        m->step_tokens[row] = own_text_draw(expected, m->vocab, m->comparisons[row].random);
    }
}

/* Sequences of one text each, from their first token on. */
static bool run_texts(struct measurement *m, const struct manifest *manifest, uint32_t number, struct team *team,
                      struct progress *progress, struct status *status)
{
    for (uint32_t row = 0; row < m->rows; row++)
        m->step_tokens[row] = own_text_first_token(manifest, number * m->rows + row);
    for (uint32_t t = 0; t < m->tokens; t++) {
        for (uint32_t row = 0; row < m->rows; row++) m->positions[row] = (int32_t)t;
        const struct golden_step step = {.count = m->rows,
                                         .out_rows = m->rows,
                                         .tokens = m->step_tokens,
                                         .slots = m->slots,
                                         .positions = m->positions};
        for (int model = 0; model < MODELS; model++)
            if (!m->models[model]->run(m->models[model]->context, &step, &m->found[model], status)) return false;
        for (uint32_t row = 0; row < m->rows; row++) m->comparisons[row].random = own_text_random(&m->random);
        team_run(team, finish_rows, m);
        for (uint32_t row = 0; row < m->rows; row++) {
            m->kl += m->comparisons[row].kl;
            m->agreed += m->comparisons[row].agrees;
        }
        if (progress) progress_update(progress, number * m->tokens + t + 1, (uint64_t)m->texts * m->tokens, NULL);
    }
    return true;
}

static bool begin(struct measurement *m, struct status *status)
{
    m->step_tokens = calloc(m->rows, sizeof *m->step_tokens);
    m->slots = calloc(m->rows, sizeof *m->slots);
    m->positions = calloc(m->rows, sizeof *m->positions);
    m->comparisons = calloc(m->rows, sizeof *m->comparisons);
    if (!m->step_tokens || !m->slots || !m->positions || !m->comparisons)
        return status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint32_t row = 0; row < m->rows; row++) m->slots[row] = (int32_t)row;
    return true;
}

bool measure_accuracy(const struct accuracy_runner *unquantised, const struct accuracy_runner *quantised,
                      const struct manifest *manifest, uint32_t rows, uint32_t tokens, uint32_t texts,
                      struct team *team, struct progress *progress, struct manifest_accuracy *accuracy,
                      struct status *status)
{
    struct measurement m = {.models = {unquantised, quantised},
                            .rows = rows,
                            .tokens = tokens,
                            .texts = texts,
                            .vocab = manifest->geometry.vocab_size,
                            .random = 88172645463325252};
    bool ok = begin(&m, status);
    for (uint32_t text = 0; ok && text < texts; text++) ok = run_texts(&m, manifest, text, team, progress, status);
    free(m.step_tokens);
    free(m.slots);
    free(m.positions);
    free(m.comparisons);
    const uint64_t count = (uint64_t)rows * tokens * texts;
    if (ok)
        *accuracy = (struct manifest_accuracy){.tokens = count,
                                               .kl = m.kl / (double)count,
                                               .top1 = (double)m.agreed / (double)count};
    return ok;
}
