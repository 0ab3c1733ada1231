/* SPDX-License-Identifier: Apache-2.0 */
/* Flags, messages and exit codes of all programs: every failure prints one line on stderr; for a bad flag it names the
 * flag, what was expected and what was found. */
#ifndef FORMATS_CLI_CLI_ARGS_H
#define FORMATS_CLI_CLI_ARGS_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/cli/cli_process.h"

/* Each prints one line and returns the exit code; wrong usage also refers to --help. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_fail_status(const struct status *status);
int cli_out_of_memory(void);

/* The message for getopt_long's '?' and ':' (opterr 0, option string beginning with ':'). Returns CLI_USAGE. */
int cli_bad_flag(int found, char *const *argv);

/* Each prints a message and returns false if `text` is not valid. cli_value_code() is then the exit code: CLI_USAGE, or
 * CLI_MACHINE if memory for a list was lacking. */
int cli_value_code(void);
bool cli_read_number(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t *value);
bool cli_read_real(const char *flag, const char *text, double least, double most, double *value);
/* Numbers separated by commas or white space, with optional brackets around them; the caller frees *values. */
bool cli_read_list(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t **values, size_t *count);

struct cli_choice {
    const char *name; /* NULL ends a list */
    int value;
};
bool cli_read_choice(const char *flag, const char *text, const struct cli_choice *choices, int *value);

#endif
