/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion between the public API and the library: struct status to struct eng_error, and structs that begin with
 * their size, from callers built with any version of the header. */
#ifndef RUNTIME_LOAD_REPORT_H
#define RUNTIME_LOAD_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/base/status.h"
#include "runtime/eng.h"

/* Fills *error unless it is NULL, and returns the code. */
enum eng_status report_status(const struct status *status, struct eng_error *error);
enum eng_status report_ok(struct eng_error *error);
/* The one or the other. */
enum eng_status report_result(bool ok, const struct status *status, struct eng_error *error);

/* Fails with ENG_USAGE if the argument is NULL. */
bool report_not_null(const void *argument, const char *function, const char *name, struct status *status);

/* Copies a caller's option struct (NULL: all defaults) into `own` [own_size]; fields that the caller's struct lacks
 * become 0. Fails if its size is impossible or if fields unknown to this library are set. */
bool report_read_options(void *own, size_t own_size, const void *given, const char *name, struct status *status);

/* Copies `own` [own_size] into a caller's struct as far as its size reaches; the rest of that struct becomes 0. */
bool report_write_facts(void *given, const void *own, size_t own_size, const char *name, struct status *status);

#endif
