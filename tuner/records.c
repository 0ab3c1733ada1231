/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"

const char *tune_level_name(enum tune_level level)
{
    static const char *const names[] = {[TUNE_OFF] = "model", [TUNE_QUICK] = "quick", [TUNE_FULL] = "full"};
    return names[level];
}

bool tune_level_answers(const struct tuning_record *record, enum tune_level level)
{
    if (strcmp(record->level, tune_level_name(TUNE_FULL)) == 0) return true;
    return level != TUNE_FULL && strcmp(record->level, tune_level_name(TUNE_QUICK)) == 0;
}

const struct tuning_record *tactics_cached(const struct tactics *tactics, const char *key)
{
    return tactics->cache ? tuning_cache_find(tactics->cache, key) : NULL;
}

const struct tuning_record *tactics_answer(const struct tactics *tactics, const char *key, enum tune_level level)
{
    const struct tuning_record *known = tactics_cached(tactics, key);
    return known && tune_level_answers(known, level) ? known : NULL;
}

bool tactics_reserve(struct tactics *tactics, size_t capacity, struct status *status)
{
    if (capacity <= tactics->capacity) return true;
    struct tuning_record *larger = realloc(tactics->records, capacity * sizeof *larger);
    if (!larger) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    memset(larger + tactics->capacity, 0, (capacity - tactics->capacity) * sizeof *larger);
    tactics->records = larger;
    tactics->capacity = capacity;
    return true;
}

bool tactics_add(struct tactics *tactics, const struct tuning_record *record, struct status *status)
{
    if (tactics->count == tactics->capacity && !tactics_reserve(tactics, 2 * tactics->count + 16, status)) return false;
    tactics->records[tactics->count++] = *record;
    return true;
}

void tactics_save(struct tactics *tactics, const struct tuning_record *record)
{
    if (tactics->cache && (tactics->unsaved || !tuning_cache_add(tactics->cache, record, &tactics->cache_status)))
        tactics->unsaved++;
}

enum { LONG_VALUES = TUNING_MAX_VALUES - 1 }; /* name of the value that links a record to its continuation */
static const char continued[] = "continued";

static void continued_key(int64_t hash, char key[TUNING_KEY_BYTES])
{
    snprintf(key, TUNING_KEY_BYTES, "values %016" PRIx64, (uint64_t)hash);
}

bool tactics_add_long(struct tactics *tactics, struct tuning_record *record, const struct tuning_value *values,
                      int count, bool is_new, struct status *status)
{
    int here = count <= TUNING_MAX_VALUES ? count : LONG_VALUES;
    memset(record->values, 0, sizeof record->values);
    memcpy(record->values, values, (size_t)here * sizeof *values);
    record->value_count = here;
    if (here < count) {
        const size_t left = (size_t)(count - here) * sizeof *values;
        struct tuning_record rest = {.candidates = record->candidates};
        struct tuning_value *last = &record->values[record->value_count++];
        memcpy(rest.level, record->level, sizeof rest.level);
        memcpy(last->name, continued, sizeof continued);
        last->value = (int64_t)(hash64(values + here, left) >> 1);
        continued_key(last->value, rest.key);
        if (!tactics_add_long(tactics, &rest, values + here, count - here, is_new, status)) return false;
    }
    if (is_new) tactics_save(tactics, record);
    return tactics_add(tactics, record, status);
}

struct tuning_value *tactics_long_values(const struct tactics *tactics, const struct tuning_record *record, int count)
{
    struct tuning_value *values = calloc((size_t)count, sizeof *values);
    for (int done = 0; values && done < count;) {
        const bool ends = count - done <= TUNING_MAX_VALUES;
        const int here = ends ? count - done : LONG_VALUES;
        const bool fits = record && record->value_count == here + !ends &&
                          ends == (strcmp(record->values[record->value_count - 1].name, continued) != 0);
        char key[TUNING_KEY_BYTES];
        if (!fits) {
            free(values);
            return NULL;
        }
        memcpy(values + done, record->values, (size_t)here * sizeof *values);
        done += here;
        if (ends) break;
        continued_key(record->values[here].value, key);
        record = tactics_cached(tactics, key);
    }
    return values;
}

bool tactics_format(const struct tactics *tactics, char **text, size_t *size, struct status *status)
{
    bool ok = false;
    size_t expected = 0;
    FILE *stream = open_memstream(text, size);
    if (!stream) return status_fail(status, STATUS_MACHINE, "out of memory while writing tactics");
    for (size_t i = 0; i < tactics->count; i++) {
        char *line;
        size_t line_size;
        if (!tuning_record_format(&tactics->records[i], &line, &line_size, status)) goto done;
        fwrite(line, 1, line_size, stream); /* a failed write shows in the size */
        expected += line_size;
        free(line);
    }
    ok = true;
done:
    if ((fclose(stream) != 0 || !*text || *size != expected) && ok)
        ok = status_fail(status, STATUS_MACHINE, "out of memory while writing tactics");
    if (!ok) {
        free(*text);
        *text = NULL;
    }
    return ok;
}

void tactics_free(struct tactics *tactics)
{
    free(tactics->records);
    memset(tactics, 0, sizeof *tactics);
}
