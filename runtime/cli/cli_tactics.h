/* SPDX-License-Identifier: Apache-2.0 */
/* enginfo --tactics: what computes each launch of an engine's plans, and what the tuner measured. */
#ifndef RUNTIME_CLI_CLI_TACTICS_H
#define RUNTIME_CLI_CLI_TACTICS_H

#include <jansson.h>
#include <stdio.h>

#include "formats/engine/engine_file.h"

/* A table for people for each plan; launches that are alike stand there once. */
bool tactics_print(const struct engine *file, FILE *out, struct status *status);
/* The same as data: an array of plans, a new reference; NULL on failure. */
json_t *tactics_json(const struct engine *file, struct status *status);
/* The records as they lie in the file, without their checksums; a new reference, NULL when out of memory. */
json_t *records_json(const struct engine *file);

#endif
