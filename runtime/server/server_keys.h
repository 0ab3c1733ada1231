/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that clients present as "Authorization: Bearer KEY" or "x-api-key: KEY". */
#ifndef RUNTIME_SERVER_SERVER_KEYS_H
#define RUNTIME_SERVER_SERVER_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/base/status.h"

struct server_keys;

/* Reads a file with one key a line: 8 to 512 printable ASCII characters without spaces. Empty lines and lines that
 * begin with '#' are skipped. Messages name lines, never keys. */
bool server_keys_read(const char *path, struct server_keys **keys, struct status *status);
size_t server_keys_count(const struct server_keys *keys);
/* The values of the headers Authorization and x-api-key; NULL: the request has none. The second counts only without the first.
 * Takes the same time for every key of the same length, valid or not. */
bool server_keys_allow(const struct server_keys *keys, const char *authorization, const char *api_key);
void server_keys_free(struct server_keys *keys);

#endif
