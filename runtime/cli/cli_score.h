/* SPDX-License-Identifier: Apache-2.0 */
/* engrun --score: how likely a text is to a model, token by token. */
#ifndef RUNTIME_CLI_CLI_SCORE_H
#define RUNTIME_CLI_CLI_SCORE_H

#include "runtime/cli/cli_generation.h"

/* Prints the log-probabilities of tokens[count], from the second one on, and their perplexity, as lines of JSON. Requires: the outputs are
 * open. Returns an exit code, after a message if it is not CLI_DONE. */
int score_tokens(struct generation *run, const int32_t *tokens, size_t count);

#endif
