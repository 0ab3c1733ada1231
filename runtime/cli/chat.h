/* SPDX-License-Identifier: Apache-2.0 */
/* engrun --chat: a conversation with a model, at a terminal or as the lines of a file. */
#ifndef RUNTIME_CLI_CHAT_H
#define RUNTIME_CLI_CHAT_H

#include "runtime/cli/cli_generation.h"

/* Returns the exit code; messages are printed. */
int chat(const struct generate_options *options);

#endif
