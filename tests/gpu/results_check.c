/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine gives besides tokens and logits: hidden states and log-probabilities of a prompt's tokens. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/programs.h"

enum { PROMPT = 90 };

static void make_prompt(size_t vocab, int32_t *tokens)
{
    for (size_t i = 0; i < PROMPT; i++) tokens[i] = (int32_t)(4 + (i * 7919 + i * i) % (vocab - 4));
}

static double largest_of(const float *values, size_t count)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

/* Reads the prompt into a slot: logits [vocab] and hidden state [hidden] after its last token. */
static void read_prompt(struct eng_session *session, const int32_t *prompt, float *logits, float *hidden)
{
    struct eng_error error;
    uint32_t slot;
    int32_t next;
    if (eng_slot_acquire(session, &slot, &error) || eng_prefill(session, slot, prompt, PROMPT, &next, logits, &error) ||
        eng_slot_hidden(session, slot, hidden, &error) || eng_slot_release(session, slot, &error))
        check_fail("reading a prompt", &error);
}

/* Log-probabilities of tokens 1 to PROMPT - 1 of the prompt. */
static void score_prompt(struct eng_session *session, const int32_t *prompt, float *logprobs)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    struct eng_error error;
    uint32_t unfinished = 1;
    eng_sequence_options_init(&options);
    options.max_new_tokens = 1;
    options.prompt_logprobs = -1;
    if (eng_sequence_create(session, &options, &sequence, &error) ||
        eng_sequence_submit(sequence, prompt, PROMPT, &error))
        check_fail("submitting a prompt", &error);
    while (unfinished)
        if (eng_step(session, &unfinished, &error)) check_fail("eng_step", &error);
    for (size_t i = 1; i < PROMPT; i++) {
        struct eng_logprob own;
        if (eng_sequence_prompt_logprobs(sequence, i, &own, NULL, 0, &error))
            check_fail("eng_sequence_prompt_logprobs", &error);
        logprobs[i] = own.token == prompt[i] ? own.logprob : NAN;
    }
    eng_sequence_destroy(&sequence);
}

/* The largest difference must be at most `bound`, the mean a quarter of it: values of another place are near by chance, but not all. */
static void compare(const float *cpu, const float *gpu, size_t count, double bound, const char *what)
{
    double worst = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        const double difference = fabs((double)cpu[i] - (double)gpu[i]);
        worst = isnan(difference) ? INFINITY : fmax(worst, difference);
        sum += difference;
    }
    const double mean = sum / (double)count;
    printf("%s: largest difference %.3g, mean %.3g, bound %.3g\n", what, worst, mean, bound);
    if (!(worst <= bound && mean <= bound / 4)) check_fail("the engines' results differ", NULL);
}

void results_check(struct eng_session *cpu, struct eng_session *gpu, size_t vocab, size_t hidden_size, double bound)
{
    struct eng_session *const sessions[2] = {cpu, gpu};
    int32_t prompt[PROMPT];
    float logprobs[2][PROMPT], *logits[2], *hidden[2];
    make_prompt(vocab, prompt);
    for (int s = 0; s < 2; s++) {
        logits[s] = check_must(malloc(vocab * sizeof(float)));
        hidden[s] = check_must(malloc(hidden_size * sizeof(float)));
        read_prompt(sessions[s], prompt, logits[s], hidden[s]);
        score_prompt(sessions[s], prompt, logprobs[s]);
    }
    compare(hidden[0], hidden[1], hidden_size, 2 * bound * largest_of(hidden[0], hidden_size), "hidden state");
    /* A logit may be off by `bound` of the largest, and so may the logarithm of the sum of all exponentials. */
    compare(logprobs[0] + 1, logprobs[1] + 1, PROMPT - 1, 4 * bound * largest_of(logits[0], vocab),
            "log-probabilities of a prompt");
    for (int s = 0; s < 2; s++) free(logits[s]), free(hidden[s]);
}
