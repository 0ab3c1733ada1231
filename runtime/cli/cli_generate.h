/* SPDX-License-Identifier: Apache-2.0 */
/* engrun: opens an engine, reads a prompt and prints the answer as it is generated; its self test. */
#ifndef RUNTIME_CLI_CLI_GENERATE_H
#define RUNTIME_CLI_CLI_GENERATE_H

#include "runtime/cli/cli_generation.h"

/* Continues a prompt. Returns the exit code; messages are printed. */
int generate(const struct generate_options *options);
/* Runs the engine's self test and prints the result. */
int generate_selftest(const struct generate_options *options);

#endif
