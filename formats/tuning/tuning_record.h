/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning records and their cache file: one line per record, `<16 hex digits of XXH3-64> <JSON object>\n`. Damage or a
 * mismatch costs one record; files merge by concatenation (the last record of a key counts). */
#ifndef FORMATS_TUNING_TUNING_RECORD_H
#define FORMATS_TUNING_TUNING_RECORD_H

#include "formats/engine/plan.h"

enum { TUNING_KEY_BYTES = 384, TUNING_MAX_VALUES = 16, TUNING_NAME_BYTES = 32 };

struct tuning_value {
    char name[TUNING_NAME_BYTES];
    int64_t value;
};

struct tuning_record {
    char
        key[TUNING_KEY_BYTES]; /* "<device> <op> <shape, dtype, epilogue ...>": everything that the timing depends on */
    struct tuning_value values[TUNING_MAX_VALUES]; /* the fastest tunables, in the op's order */
    int value_count;
    double median_us, spread_us;                      /* spread: half the distance between the quartiles */
    struct tuning_value runner_up[TUNING_MAX_VALUES]; /* the second fastest, likewise */
    int runner_up_count;                              /* 0: none */
    double runner_up_us;                              /* its median; 0: none */
    uint64_t bytes, flops;                            /* per call */
    double roofline_us;                               /* lower bound of the cost model */
    char level[8];                                    /* "quick", "full", "model" (not measured) */
    uint32_t candidates;                              /* number of candidates measured */
};

/* One line with newline, which the caller frees. Deterministic. */
bool tuning_record_format(const struct tuning_record *record, char **line, size_t *size, struct status *status);
/* `line` is without its newline. */
bool tuning_record_parse(struct tuning_record *record, const char *line, size_t size, struct status *status);

struct tuning_cache {
    struct tuning_record *records; /* each key once, in order of first occurrence */
    size_t count, capacity;
    uint32_t *slots; /* [slot_count], by the key's hash: index of its record + 1, or 0 */
    size_t slot_count;
    size_t damaged; /* lines skipped */
    char *path;     /* owned; NULL: memory only */
};

/* Opens a cache. A missing file is an empty cache; damaged lines are counted and skipped. path NULL: memory only. */
bool tuning_cache_open(struct tuning_cache *cache, const char *path, struct status *status);
bool tuning_cache_parse(struct tuning_cache *cache, const char *text, size_t size, struct status *status);
const struct tuning_record *tuning_cache_find(const struct tuning_cache *cache, const char *key);
/* Adds or replaces a record in memory and appends one line to the file (one write, so that a kill loses at most this
 * line; several processes may append to one file). */
bool tuning_cache_add(struct tuning_cache *cache, const struct tuning_record *record, struct status *status);
void tuning_cache_close(struct tuning_cache *cache);

#endif
