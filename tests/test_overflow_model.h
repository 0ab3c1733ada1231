/* SPDX-License-Identifier: Apache-2.0 */
/* A model with finite weights whose logits are not finite after certain tokens: the shipped model with an LM head in
 * which some columns of the residual stream belong to single tokens and have weights of 3e38. */
#ifndef TESTS_TEST_OVERFLOW_MODEL_H
#define TESTS_TEST_OVERFLOW_MODEL_H

#include <stdint.h>

enum overflow_token {
    OVERFLOW_PLUS = 1500,   /* all logits are +infinity */
    OVERFLOW_MINUS = 1501,  /* all logits are -infinity */
    OVERFLOW_VALUES = 1502, /* values in its KV page are infinite, and all later ones are NaN */
    OVERFLOW_FIRST = 1503,  /* draws OVERFLOW_SECOND */
    OVERFLOW_SECOND = 1504, /* draws OVERFLOW_VALUES */
    OVERFLOW_TOKENS_END = 1505
};

/* Writes the checkpoint into an existing folder and builds an engine with the sizes of tests/test_fables.h. Ends the
 * test on failure. */
void overflow_model_write(const char *folder);
void overflow_engine_build(const char *folder, const char *path, uint32_t ranks);

#endif
