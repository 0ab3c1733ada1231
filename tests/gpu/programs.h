/* SPDX-License-Identifier: Apache-2.0 */
/* What checks share that run programs. An error ends the process with a message and CHECK_FAILED. */
#ifndef TESTS_GPU_PROGRAMS_H
#define TESTS_GPU_PROGRAMS_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/eng.h"
#include "tests/gpu/check.h"

/* error NULL: `what` says it all. */
_Noreturn void check_fail(const char *what, const struct eng_error *error);

/* Fails if `memory` is NULL, else returns it. */
void *check_must(void *memory);

/* The first executable file `name` in `folders`, which colons separate. False: there is none. */
bool check_find_program(const char *folders, const char *name, char path[CHECK_PATH]);

enum { CHECK_MOST_WORDS = 48 }; /* of a command */

/* Runs the program at `path` with these words, which NULL ends, at most CHECK_MOST_WORDS; its stdout goes into the file `output` (NULL: this
 * process's). Any exit code but 0 is an error. */
void check_run_program(const char *path, const char *output, const char *const *words);

/* The bytes of a file [*size] and a NUL; the caller frees them. */
char *check_read_file(const char *path, size_t *size);

#endif
