/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that a model draws for itself while the builder replays its decode plans, on processors and GPUs. */
#ifndef BUILDER_GOLDEN_OWN_TEXT_H
#define BUILDER_GOLDEN_OWN_TEXT_H

#include "builder/golden/task.h"

/* Pages for `rows` sequences of `tokens` tokens, in slots 0 and on; false after an allocation failure. The table is the
 * caller's to free. */
bool own_text_pages(struct golden_pages *pages, const struct manifest *manifest, uint32_t rows, uint32_t tokens);

/* The first token of the model's own text number `row`. */
int32_t own_text_first_token(const struct manifest *manifest, uint32_t row);

/* A number in [0, 1); the state is any number but 0. */
double own_text_random(uint64_t *state);
/* A token drawn from the distribution of the logits (temperature 1) by such a number. */
int32_t own_text_draw(const float *logits, uint64_t vocab, double random);

#endif
