/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_keys.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "formats/base/file.h"

enum { LEAST_KEY_BYTES = 8, MOST_KEY_BYTES = 512, MOST_KEYS = 10000, MOST_FILE_BYTES = 8 << 20, HASH_BYTES = 32 };

/* Hashes under a random key of this process: of equal length, and of no use to a reader of its memory. */
struct server_keys {
    unsigned char secret[crypto_generichash_KEYBYTES];
    size_t count;
    unsigned char hashes[][HASH_BYTES];
};

static void hash(const struct server_keys *keys, const char *key, size_t size, unsigned char to[HASH_BYTES])
{
    crypto_generichash(to, HASH_BYTES, (const unsigned char *)key, size, keys->secret, sizeof keys->secret);
}

static size_t count_lines(const char *text, size_t size)
{
    size_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    return lines;
}

static bool read_line(struct server_keys *keys, const char *path, size_t number, const char *line, size_t size,
                      struct status *status)
{
    if (size && line[size - 1] == '\r') size--;
    if (!size || *line == '#') return true;
    for (size_t i = 0; i < size; i++)
        if (line[i] <= ' ' || line[i] > '~')
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: line %zu: expected printable ASCII characters without spaces, found byte 0x%02x",
                               path, number, (unsigned)(unsigned char)line[i]);
    if (size < LEAST_KEY_BYTES || size > MOST_KEY_BYTES)
        return status_fail(status, STATUS_BAD_INPUT, "%s: line %zu: expected a key of %d to %d characters, found %zu",
                           path, number, LEAST_KEY_BYTES, MOST_KEY_BYTES, size);
    hash(keys, line, size, keys->hashes[keys->count++]);
    return true;
}

static bool read_lines(struct server_keys *keys, const char *path, const char *text, size_t size, struct status *status)
{
    size_t number = 1;
    for (const char *at = text, *end = text + size; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *line_end = newline ? newline : end;
        if (!read_line(keys, path, number, at, (size_t)(line_end - at), status)) return false;
        at = line_end + 1;
    }
    return keys->count || status_fail(status, STATUS_BAD_INPUT, "%s: expected a key on a line, found none", path);
}

bool server_keys_read(const char *path, struct server_keys **keys, struct status *status)
{
    char *text = NULL;
    size_t size = 0;
    struct server_keys *made = NULL;
    if (sodium_init() < 0) return status_fail(status, STATUS_MACHINE, "the system gives no random numbers");
    if (!file_read(path, MOST_FILE_BYTES, &text, &size, status)) return false;
    size_t lines = count_lines(text, size);
    bool ok = lines <= MOST_KEYS ||
              status_fail(status, STATUS_BAD_INPUT, "%s: expected at most %d lines, found %zu", path, MOST_KEYS, lines);
    if (ok) {
        made = calloc(1, sizeof *made + lines * sizeof *made->hashes);
        ok = made || status_fail(status, STATUS_MACHINE, "%s: out of memory", path);
    }
    if (ok) {
        randombytes_buf(made->secret, sizeof made->secret);
        ok = read_lines(made, path, text, size, status);
    }
    sodium_memzero(text, size);
    free(text);
    if (ok)
        *keys = made;
    else
        free(made);
    return ok;
}

size_t server_keys_count(const struct server_keys *keys) { return keys->count; }

/* The key in an Authorization header; NULL: it has none. */
static const char *bearer_key(const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) return NULL;
    const char *key = authorization + sizeof scheme - 1;
    while (*key == ' ') key++;
    return key;
}

bool server_keys_allow(const struct server_keys *keys, const char *authorization, const char *api_key)
{
    unsigned char found[HASH_BYTES];
    int matches = 0;
    const char *key = authorization ? bearer_key(authorization) : api_key;
    if (!key) return false;
    hash(keys, key, strlen(key), found);
    /* All keys are compared, so that the time does not depend on which one matches. */
    for (size_t i = 0; i < keys->count; i++) matches |= sodium_memcmp(found, keys->hashes[i], HASH_BYTES) == 0;
    return matches;
}

void server_keys_free(struct server_keys *keys) { free(keys); }
