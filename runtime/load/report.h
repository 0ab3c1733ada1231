/* SPDX-License-Identifier: Apache-2.0 */
/* The border between the public API and the rest: struct status becomes struct eng_error, and structs that begin with
 * their size are copied whatever version of the header the caller was built with. */
#ifndef RUNTIME_LOAD_REPORT_H
#define RUNTIME_LOAD_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/base/status.h"
#include "runtime/eng.h"

/* Fills *error (if not NULL) and returns the code. */
enum eng_status report_status(const struct status *status, struct eng_error *error);
enum eng_status report_ok(struct eng_error *error);

/* ENG_USAGE for an argument that must not be NULL. */
bool report_not_null(const void *argument, const char *function, const char *name, struct status *status);

/* Copies a caller's option struct (NULL: all defaults) into `own`, which is own_size bytes and becomes all zero where
 * the caller's is shorter. Fails when the size cannot be right or when fields unknown to this library are set. */
bool report_read_options(void *own, size_t own_size, const void *given, const char *name, struct status *status);

/* Copies `own` into a caller's struct as far as its size reaches; what lies behind is zeroed. */
bool report_write_facts(void *given, const void *own, size_t own_size, const char *name, struct status *status);

#endif
