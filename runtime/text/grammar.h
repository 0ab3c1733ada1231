/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars of answers: eng_grammar, and where a sequence is in one. */
#ifndef RUNTIME_TEXT_GRAMMAR_H
#define RUNTIME_TEXT_GRAMMAR_H

#include "formats/grammar/grammar.h"
#include "runtime/load/load.h"

/* Also releases nothing if NULL. */
void grammar_retain(struct eng_grammar *grammar);
void grammar_release(struct eng_grammar *grammar);
const struct eng_engine *grammar_engine(const struct eng_grammar *grammar);

/* The state before the first token, and the tokens that may come: mask [(vocab_size + 31) / 32]. These lock the grammar. */
bool grammar_start(struct eng_grammar *grammar, struct grammar_state *state, uint32_t *mask, struct status *status);
/* The same after a token that the mask allowed. */
bool grammar_follow(struct eng_grammar *grammar, struct grammar_state *state, int32_t token, uint32_t *mask,
                    struct status *status);

#endif
