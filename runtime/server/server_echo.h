/* SPDX-License-Identifier: Apache-2.0 */
/* Completions that repeat their prompt (`echo`) with log-probabilities, which begin with those of the prompt's tokens. */
#ifndef RUNTIME_SERVER_SERVER_ECHO_H
#define RUNTIME_SERVER_SERVER_ECHO_H

#include "runtime/server/server_job.h"

/* Adds the prompt's tokens to the choice's log-probabilities, before those of the answer; the first token has none (NaN). skips_special: as
 * the request has it. Requires: the sequence was created with prompt_logprobs and has drawn a token. False: error->status is set. */
bool server_echo_logprobs(const struct eng_engine *engine, const struct eng_sequence *sequence,
                          const struct server_prompt *prompt, bool skips_special, struct server_choice *choice,
                          struct eng_error *error);

#endif
