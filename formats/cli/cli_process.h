/* SPDX-License-Identifier: Apache-2.0 */
/* A program's relation to the system: signals that end it cleanly, output whose loss is detected, time since its
 * start. */
#ifndef FORMATS_CLI_CLI_PROCESS_H
#define FORMATS_CLI_CLI_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "formats/base/status.h"

/* A signal adds its number to 128. */
enum { CLI_DONE = 0, CLI_BAD_INPUT = 1, CLI_USAGE = 2, CLI_MACHINE = 3, CLI_INTERNAL = 4, CLI_SIGNAL = 128 };

/* last lines of --help */
#define CLI_EXIT_CODES "exit codes: 0 done, 1 bad input, 2 usage, 3 the machine cannot, 4 internal error"

/* Call it first. Names the program (constant text, begins every message). Turns a closed pipe and a file that grows too
 * large into errors of write instead of signals. */
void cli_begin(const char *program);
/* Call it last; main returns its result. A program whose reader has closed the pipe ends here as by SIGPIPE. */
int cli_end(int code);

const char *cli_program(void); /* as given to cli_begin */

/* SIGINT and SIGTERM are recorded; a second one ends the process. */
void cli_catch_signals(void);
/* From now on a second SIGINT does not end the process. SIGQUIT (Ctrl-\) still does. */
void cli_keep_interrupts(void);
int cli_caught_signal(void); /* 0: none so far */
/* Resets the record: the next signal is recorded again. */
void cli_forget_signal(void);
/* Waits until stdin can be read or has ended. False: a signal arrived. */
bool cli_wait_for_input(void);

/* Call it after a failure was printed: the process ends with `code` within seconds, even if clean-up or exit handlers
 * of libraries wait for a GPU that hangs. */
void cli_end_soon(int code);

/* Writes to stdout and flushes. A closed pipe or a full disk is STATUS_MACHINE; cli_fail_status prints nothing for a
 * closed pipe. */
bool cli_write(const char *text, size_t size, struct status *status);
/* Flushes what stdio has buffered. Call it before exit. */
bool cli_flush(struct status *status);
/* Whether stdout is a closed pipe. */
bool cli_reader_left(void);

/* Writes text from a file so that it cannot control a terminal: characters that are not printable
 * (formats/base/printable.h) are escaped, except line feeds and tabs. JSON remains equivalent. */
void cli_print_text(FILE *out, const char *text, size_t size);
/* The same for natural-language text on a terminal: characters that set the direction of text are kept. */
bool cli_write_terminal(const char *text, size_t size, struct status *status);

/* Prints lines of `columns`, broken at spaces if possible; the first is indented by `first` columns, the others by
 * `later`. */
void cli_print_wrapped(FILE *out, int columns, int first, int later, const char *text);

double cli_seconds(void); /* monotonic clock */
/* Seconds since the process was started, in ticks of about 10 ms; < 0: unknown. */
double cli_process_age(void);

/* All of stdin, NUL-terminated; the caller frees it. STATUS_BAD_INPUT on a signal. */
bool cli_read_stdin(char **text, size_t *size, struct status *status);

#endif
