/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest: any bytes are either refused with a message or give values that can be written, and what was written
 * reads back as the same text. */
#include "formats/engine/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

static char *format(const struct manifest *manifest)
{
    char *text = NULL;
    size_t size;
    struct status status;
    if (!manifest_format(manifest, &text, &size, &status)) abort();
    return text;
}

/* Nodes of a JSON tree: a byte of text may be one. Parsed, written and parsed again. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 20, .base_bytes = 512 << 10, .bytes_per_byte = 512};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct manifest manifest;
    struct status status = {0};
    if (!manifest_parse(&manifest, (const char *)data, size, &status)) {
        if (status.code == STATUS_OK || status.message[0] == '\0') abort();
        return 0;
    }
    char *text = format(&manifest);
    if (!manifest_parse(&manifest, text, strlen(text), &status)) abort();
    char *again = format(&manifest);
    if (strcmp(text, again) != 0) abort();
    free(text);
    free(again);
    return 0;
}
