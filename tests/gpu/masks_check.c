/* SPDX-License-Identifier: Apache-2.0 */
/* Masks that follow from the token before reach the sampler in time, though its step was queued before that token was known. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/programs.h"

enum { ANSWERS = 5, DRAWS = 40, PROMPT = 9, MOST_TEXT = 4096 };

static struct eng_sequence *begin(struct eng_session *session, struct eng_grammar *grammar, uint32_t number,
                                  uint32_t flags)
{
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    struct eng_error error;
    int32_t prompt[PROMPT];
    eng_sampling_init(&sampling);
    eng_sequence_options_init(&options);
    sampling.temperature = number % 2 ? 1.0f : 0;
    sampling.seed = number;
    options.sampling = &sampling;
    options.grammar = grammar;
    options.flags = flags;
    options.max_new_tokens = DRAWS;
    for (int32_t i = 0; i < PROMPT; i++) prompt[i] = 5 + (i * 37 + (int32_t)number * 11) % 200;
    if (eng_sequence_create(session, &options, &sequence, &error) ||
        eng_sequence_submit(sequence, prompt, PROMPT, &error))
        check_fail("eng_sequence_submit", &error);
    return sequence;
}

static void step(struct eng_session *session, uint32_t *unfinished)
{
    struct eng_error error;
    if (eng_step(session, unfinished, &error)) check_fail("eng_step", &error);
}

/* Answers of one length, most of them bound to small letters, so that each step has the same rows with and without lookahead. */
static void answer(struct eng_engine *engine, struct eng_session *session, struct eng_grammar *grammar, uint32_t flags,
                   int32_t tokens[ANSWERS][DRAWS])
{
    struct eng_sequence *sequences[ANSWERS];
    struct eng_error error;
    uint32_t unfinished = 1;
    char text[MOST_TEXT];
    size_t size;
    for (uint32_t i = 0; i < ANSWERS; i++)
        sequences[i] = begin(session, i ? grammar : NULL, i, flags | (i ? 0 : ENG_SEQUENCE_IGNORE_EOS));
    while (unfinished) step(session, &unfinished);
    for (uint32_t i = 0; i < ANSWERS; i++) {
        if (eng_sequence_poll(sequences[i], tokens[i], DRAWS) != DRAWS) check_fail("an answer ended early", NULL);
        if (eng_detokenize(engine, tokens[i], DRAWS, 0, text, sizeof text, &size, &error))
            check_fail("eng_detokenize", &error);
        if (i && strspn(text, "abcdefghijklmnopqrstuvwxyz") != size)
            check_fail("an answer does not follow its grammar", NULL);
        eng_sequence_destroy(&sequences[i]);
    }
}

static void check_grammars(struct eng_engine *engine, struct eng_session *session)
{
    static const char letters[] = "[a-z]{1000,}";
    int32_t tokens[3][ANSWERS][DRAWS];
    struct eng_grammar *grammar = NULL;
    struct eng_error error;
    if (eng_grammar_create(engine, ENG_GRAMMAR_REGEX, letters, strlen(letters), &grammar, &error))
        check_fail("eng_grammar_create", &error);
    /* The first time, the prompts' pages are not known yet. Where logits are asked for, nothing is queued ahead. */
    answer(engine, session, grammar, 0, tokens[0]);
    answer(engine, session, grammar, ENG_SEQUENCE_LOGITS, tokens[1]);
    answer(engine, session, grammar, 0, tokens[2]);
    if (memcmp(tokens[1], tokens[2], sizeof tokens[1]))
        check_fail("steps that are queued ahead give answers with a grammar other tokens", NULL);
    eng_grammar_destroy(&grammar);
}

/* Each mask allows one token alone. */
static void check_callers_masks(struct eng_session *session, size_t vocab)
{
    const size_t words = (vocab + 31) / 32;
    uint32_t *allowed = check_must(calloc(words, sizeof *allowed));
    struct eng_sequence *sequence = begin(session, NULL, 0, ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_ALLOWED);
    struct eng_error error;
    for (uint32_t draw = 0, unfinished; draw < DRAWS; draw++) {
        const int32_t expected = (int32_t)((draw * UINT64_C(7919) + 3) % vocab);
        int32_t token = -1;
        memset(allowed, 0, words * sizeof *allowed);
        allowed[expected / 32] = 1u << expected % 32;
        if (eng_sequence_set_allowed(sequence, allowed, words, &error)) check_fail("eng_sequence_set_allowed", &error);
        while (!eng_sequence_poll(sequence, &token, 1)) step(session, &unfinished);
        if (token != expected) {
            printf("draw %u: expected token %d, found %d\n", draw, expected, token);
            check_fail("a token was drawn that the caller did not allow", NULL);
        }
    }
    eng_sequence_destroy(&sequence);
    free(allowed);
}

void masks_check(struct eng_engine *engine, struct eng_session *session, size_t vocab)
{
    check_grammars(engine, session);
    check_callers_masks(session, vocab);
}
