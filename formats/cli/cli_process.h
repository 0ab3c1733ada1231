/* SPDX-License-Identifier: Apache-2.0 */
/* What a program shares with the system around it: signals that end it cleanly, output whose loss is noticed, the time
 * since it was started. */
#ifndef FORMATS_CLI_CLI_PROCESS_H
#define FORMATS_CLI_CLI_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "formats/base/status.h"

/* First of all: names the program (constant text, begins every message), and makes a closed pipe and a file that grows too
 * large errors of write, since sockets are written to and files must be tidied up. */
void cli_begin(const char *program);
/* Last of all: what main returns. A program whose reader went away does not return: it ends as by SIGPIPE. */
int cli_end(int code);

/* SIGINT and SIGTERM are remembered; a second one kills. */
void cli_catch_signals(void);
int cli_caught_signal(void); /* 0: none so far */
/* The signal was answered: it and the next one are as if none had come. */
void cli_forget_signal(void);
/* Until there is something to read from stdin, or its end; false: a signal came. */
bool cli_wait_for_input(void);

/* Once a failure has been printed: the process ends with `code` within seconds, even if what tidies up behind it waits for a GPU
 * that hangs, as exit handlers of libraries do. */
void cli_end_soon(int code);

/* Writes to stdout and flushes; a closed pipe or a full disk is STATUS_MACHINE. Of a closed pipe cli_fail_status says
 * nothing. */
bool cli_write(const char *text, size_t size, struct status *status);
/* The same for what stdio still holds. Call before exit. */
bool cli_flush(struct status *status);
/* Whether stdout was found to be a closed pipe. */
bool cli_reader_left(void);

/* Text that came from a file, which a terminal must not act on: what is not printable (formats/base/printable.h) is escaped, other
 * than line feeds and tabs. What is JSON stays the same JSON. */
void cli_print_text(FILE *out, const char *text, size_t size);
/* The same for text in the language of people that goes to a terminal: characters that set the direction of text stay. */
bool cli_write_terminal(const char *text, size_t size, struct status *status);

double cli_seconds(void); /* monotonic clock */
/* Seconds since the system started this process, in the system's ticks of 10 ms or so; < 0: unknown. */
double cli_process_age(void);

/* All of stdin, malloc'd, NUL-terminated. Fails with STATUS_BAD_INPUT on a signal. */
bool cli_read_stdin(char **text, size_t *size, struct status *status);

#endif
