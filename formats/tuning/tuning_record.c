/* SPDX-License-Identifier: Apache-2.0 */
/* One tuning record as a line of text. The order of the tunables is that of the op, so they are an array of pairs. */
#include "formats/tuning/tuning_record.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "formats/base/json.h"
#include "formats/base/printable.h"

enum { HASH_DIGITS = 16 };

static bool record_fail(struct status *status, const char *what)
{
    return status_fail(status, STATUS_BAD_INPUT, "tuning record: %s", what);
}

/* Whether the text fits, is not empty and has no line break. */
static bool text_is_good(const char *text, size_t capacity)
{
    size_t length = strnlen(text, capacity);
    return length > 0 && length < capacity && printable_text(text, length);
}

static bool time_is_good(double time_us) { return isfinite(time_us) && time_us >= 0; }

static bool values_check(const char *key, const struct tuning_value *values, int count, struct status *status)
{
    if (count < 0 || count > TUNING_MAX_VALUES)
        return status_fail(status, STATUS_BAD_INPUT, "tuning record: %s: too many", key);
    for (int i = 0; i < count; i++)
        if (!text_is_good(values[i].name, sizeof values[i].name))
            return status_fail(status, STATUS_BAD_INPUT, "tuning record: %s: a name is empty, too long or not text",
                               key);
    return true;
}

/* Writer and reader apply the same rules to a record. */
static bool record_check(const struct tuning_record *record, struct status *status)
{
    if (!text_is_good(record->key, sizeof record->key)) return record_fail(status, "key: empty, too long or not text");
    if (!text_is_good(record->level, sizeof record->level))
        return record_fail(status, "level: empty, too long or not text");
    if (!values_check("values", record->values, record->value_count, status) ||
        !values_check("runner_up", record->runner_up, record->runner_up_count, status))
        return false;
    if (!time_is_good(record->median_us) || !time_is_good(record->spread_us) || !time_is_good(record->roofline_us) ||
        !time_is_good(record->runner_up_us))
        return record_fail(status, "a time is not a number from 0 on");
    if (record->runner_up_count == 0 && record->runner_up_us != 0)
        return record_fail(status, "runner_up_us: the time of no runner_up");
    if (record->bytes > INT64_MAX || record->flops > INT64_MAX) return record_fail(status, "bytes or flops: too large");
    return true;
}

/* The fewest digits that read back as the same number: 15 are often enough, 17 always. */
static size_t times_precision(const struct tuning_record *record)
{
    const double times[] = {record->median_us, record->spread_us, record->roofline_us, record->runner_up_us};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        char text[40];
        snprintf(text, sizeof text, "%.15g", times[i]);
        double back = strtod(text, NULL);
        if (memcmp(&back, &times[i], sizeof back) != 0) return 17;
    }
    return 15;
}

static json_t *values_to_json(const struct tuning_value *values, int count)
{
    json_t *list = json_array();
    bool good = list != NULL;
    for (int i = 0; i < count; i++) {
        json_t *pair = json_array();
        good = good && pair && json_add(pair, json_string(values[i].name)) &&
               json_add(pair, json_integer(values[i].value));
        good = json_add(list, pair) && good;
    }
    if (good) return list;
    json_decref(list);
    return NULL;
}

static json_t *record_to_json(const struct tuning_record *record)
{
    json_t *root = json_object();
    bool good = root != NULL;
    good = good && json_put(root, "key", json_string(record->key)) &&
           json_put(root, "values", values_to_json(record->values, record->value_count)) &&
           json_put(root, "median_us", json_real(record->median_us)) &&
           json_put(root, "spread_us", json_real(record->spread_us)) &&
           json_put(root, "roofline_us", json_real(record->roofline_us)) &&
           json_put(root, "bytes", json_integer((json_int_t)record->bytes)) &&
           json_put(root, "flops", json_integer((json_int_t)record->flops)) &&
           json_put(root, "level", json_string(record->level)) &&
           json_put(root, "candidates", json_integer((json_int_t)record->candidates));
    if (record->runner_up_count)
        good = good && json_put(root, "runner_up", values_to_json(record->runner_up, record->runner_up_count)) &&
               json_put(root, "runner_up_us", json_real(record->runner_up_us));
    if (good) return root;
    json_decref(root);
    return NULL;
}

bool tuning_record_format(const struct tuning_record *record, char **line, size_t *size, struct status *status)
{
    *line = NULL;
    if (!record_check(record, status)) return false;
    errno = 0;
    json_t *root = record_to_json(record);
    char *text = NULL;
    if (root) text = json_format(root, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(times_precision(record)));
    if (!text) json_fail_build(status, "tuning record");
    json_decref(root);
    if (!text) return false;
    size_t text_size = strlen(text);
    *size = HASH_DIGITS + 1 + text_size + 1;
    *line = malloc(*size + 1);
    if (*line) snprintf(*line, *size + 1, "%016" PRIx64 " %s\n", hash64(text, text_size), text);
    free(text);
    return *line || status_fail(status, STATUS_MACHINE, "out of memory");
}

static bool parse_text(struct json_reader *reader, const char *key, char *out, size_t capacity, struct status *status)
{
    const char *text = NULL;
    if (!json_reader_string(reader, key, true, &text, status)) return false;
    if (strlen(text) >= capacity) return record_fail(status, "a text is too long");
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool parse_values(const json_t *list, const char *key, struct tuning_value *values, int *count,
                         struct status *status)
{
    if (!json_is_array(list) || json_array_size(list) > TUNING_MAX_VALUES)
        return status_fail(status, STATUS_BAD_INPUT,
                           "tuning record: %s: expected an array of few [name, integer] pairs", key);
    *count = (int)json_array_size(list);
    for (int i = 0; i < *count; i++) {
        const json_t *pair = json_array_get(list, (size_t)i);
        const char *name = json_string_value(json_array_get(pair, 0));
        const json_t *value = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !name || !json_is_integer(value) || strlen(name) >= TUNING_NAME_BYTES)
            return status_fail(status, STATUS_BAD_INPUT, "tuning record: %s: expected pairs of a name and an integer",
                               key);
        memcpy(values[i].name, name, strlen(name) + 1);
        values[i].value = json_integer_value(value);
    }
    return true;
}

/* Both keys or neither: a race of one candidate, and records of older builders, have no second. */
static bool parse_runner_up(struct json_reader *reader, struct tuning_record *record, struct status *status)
{
    const json_t *list = json_reader_get(reader, "runner_up");
    if (!list) return !json_reader_get(reader, "runner_up_us") || record_fail(status, "runner_up_us without runner_up");
    if (!json_reader_double(reader, "runner_up_us", true, &record->runner_up_us, status) ||
        !parse_values(list, "runner_up", record->runner_up, &record->runner_up_count, status))
        return false;
    return record->runner_up_count > 0 || record_fail(status, "runner_up: expected at least one pair");
}

static bool parse_fields(struct json_reader *reader, struct tuning_record *record, struct status *status)
{
    uint64_t candidates = 0;
    if (!parse_text(reader, "key", record->key, sizeof record->key, status) ||
        !parse_text(reader, "level", record->level, sizeof record->level, status) ||
        !parse_values(json_reader_get(reader, "values"), "values", record->values, &record->value_count, status) ||
        !parse_runner_up(reader, record, status) ||
        !json_reader_double(reader, "median_us", true, &record->median_us, status) ||
        !json_reader_double(reader, "spread_us", true, &record->spread_us, status) ||
        !json_reader_double(reader, "roofline_us", true, &record->roofline_us, status) ||
        !json_reader_u64(reader, "bytes", true, 0, INT64_MAX, &record->bytes, status) ||
        !json_reader_u64(reader, "flops", true, 0, INT64_MAX, &record->flops, status) ||
        !json_reader_u64(reader, "candidates", true, 0, UINT32_MAX, &candidates, status))
        return false;
    record->candidates = (uint32_t)candidates;
    return json_reader_all_consumed(reader, status) && record_check(record, status);
}

bool tuning_record_parse(struct tuning_record *record, const char *line, size_t size, struct status *status)
{
    struct json_reader reader = {0};
    char digits[HASH_DIGITS + 1];
    *record = (struct tuning_record){0};
    if (size < HASH_DIGITS + 3 || line[HASH_DIGITS] != ' ')
        return record_fail(status, "expected 16 hex digits, a space and a JSON object");
    const char *text = line + HASH_DIGITS + 1;
    size_t text_size = size - HASH_DIGITS - 1;
    uint64_t hash = hash64(text, text_size);
    snprintf(digits, sizeof digits, "%016" PRIx64, hash);
    if (memcmp(digits, line, HASH_DIGITS) != 0) return record_fail(status, "checksum mismatch");
    json_t *root = json_parse(text, text_size, "tuning record", status);
    if (!root) return false;
    bool done = json_reader_open(&reader, root, "tuning record", status) && parse_fields(&reader, record, status);
    json_reader_close(&reader);
    json_decref(root);
    return done;
}
