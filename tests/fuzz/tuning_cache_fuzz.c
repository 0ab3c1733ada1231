/* SPDX-License-Identifier: Apache-2.0 */
/* The tuning cache: any bytes give some records, sorted, each of which can be written and reads back the same; the
 * rest counts as damage. */
#include "formats/tuning/tuning_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "tests/fuzz/fuzz.h"

enum { HASH_DIGITS = 16 };

/* Gives most lines the checksum of the text that follows it, so that content is tested as well as checksums. */
size_t fuzz_fix_up(uint8_t *data, size_t size)
{
    uint8_t *end = data + size;
    for (uint8_t *line = data; line < end;) {
        uint8_t *line_end = memchr(line, '\n', (size_t)(end - line));
        if (!line_end) line_end = end;
        if (line_end - line > HASH_DIGITS + 1) {
            char digits[HASH_DIGITS + 1];
            uint64_t hash = hash64(line + HASH_DIGITS + 1, (size_t)(line_end - line - HASH_DIGITS - 1));
            snprintf(digits, sizeof digits, "%016" PRIx64, hash);
            if (hash % 4 != 0) memcpy(line, digits, HASH_DIGITS);
        }
        line = line_end + (line_end < end);
    }
    return size;
}

static void try_record(const struct tuning_record *record)
{
    char *line = NULL, *again = NULL;
    size_t size, again_size;
    struct tuning_record back;
    if (!tuning_record_format(record, &line, &size, NULL)) abort();
    if (!tuning_record_parse(&back, line, size - 1, NULL)) abort();
    if (!tuning_record_format(&back, &again, &again_size, NULL)) abort();
    if (size != again_size || memcmp(line, again, size) != 0) abort();
    free(line);
    free(again);
}

/* A record is larger than the shortest line that gives one. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 50, .base_bytes = 1 << 20, .bytes_per_byte = 512};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct tuning_cache cache = {0};
    struct status status;
    if (!tuning_cache_parse(&cache, (const char *)data, size, &status)) abort();
    for (size_t i = 0; i < cache.count; i++) {
        if (tuning_cache_find(&cache, cache.records[i].key) != &cache.records[i]) abort();
        try_record(&cache.records[i]);
    }
    tuning_cache_close(&cache);
    return 0;
}
