/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of an engine file as JSON. */
#ifndef RUNTIME_LOAD_INFO_H
#define RUNTIME_LOAD_INFO_H

#include <jansson.h>

#include "runtime/load/load_engine.h"

/* Manifest, plans, golden outputs and sizes; a new reference, NULL if out of memory. `path` is only named. */
json_t *info_json(const struct engine *file, const char *path);

/* info_json and the facts of the load as text; the caller frees it. */
char *info_format(const struct eng_engine *engine, struct status *status);

#endif
