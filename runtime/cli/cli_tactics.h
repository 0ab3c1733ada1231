/* SPDX-License-Identifier: Apache-2.0 */
/* enginfo --tactics: the kernel of each launch of an engine's plans, and the tuner's measurements. */
#ifndef RUNTIME_CLI_CLI_TACTICS_H
#define RUNTIME_CLI_CLI_TACTICS_H

#include <jansson.h>
#include <stdio.h>

#include "formats/engine/engine_file.h"

/* A table for each plan, those that call libraries next to their counterparts; launches with the same description share a row. */
bool tactics_print(const struct engine *file, FILE *out, struct status *status);
/* The same as data: an array of plans, a new reference; NULL on failure. */
json_t *tactics_json(const struct engine *file, struct status *status);
/* The records as stored, without checksums; a new reference, NULL if out of memory. */
json_t *records_json(const struct engine *file);

#endif
