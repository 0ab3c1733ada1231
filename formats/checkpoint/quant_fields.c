/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/quant_fields.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_GROUP = 65536, KEY_BYTES = 64 };

static const char *name_at(const struct quant_names *names, size_t index)
{
    return *(const char *const *)((const char *)names->first + index * names->stride);
}

size_t quant_find_name(const struct quant_names *names, const char *name)
{
    size_t i = 0;
    while (i < names->count && strcasecmp(name_at(names, i), name) != 0) i++;
    return i;
}

void quant_list_names(const struct quant_names *names, char *text)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < names->count && used < QUANT_NAMES_BYTES; i++) {
        const char *joint = i == 0 ? "" : i + 1 == names->count ? " or " : ", ";
        used += (size_t)snprintf(text + used, QUANT_NAMES_BYTES - used, "%s%s", joint, name_at(names, i));
    }
}

bool quant_read_name(struct json_reader *reader, const char *key, bool required, const struct quant_names *names,
                     size_t *index, struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    const size_t found = json_is_string(value) ? quant_find_name(names, json_string_value(value)) : names->count;
    if (found < names->count) {
        *index = found;
        return true;
    }
    char expected[QUANT_NAMES_BYTES];
    quant_list_names(names, expected);
    return json_reader_fail(reader, key, expected, value, status);
}

void quant_ignore(struct json_reader *reader, const char *keys)
{
    for (size_t length; *(keys += strspn(keys, " ")); keys += length) {
        char key[KEY_BYTES];
        length = strcspn(keys, " ");
        snprintf(key, sizeof key, "%.*s", (int)length, keys);
        json_reader_get(reader, key);
    }
}

bool quant_fail_disagreement(const struct json_reader *reader, const char *one, const char *other,
                             struct status *status)
{
    return status_fail(status, STATUS_BAD_INPUT, "%s: fields '%s' and '%s' disagree", reader->path, one, other);
}

bool quant_read_aliased_name(struct json_reader *reader, const char *const *keys, size_t count,
                             const struct quant_names *names, size_t *index, struct status *status)
{
    const char *given = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t found = names->count;
        if (!quant_read_name(reader, keys[i], false, names, &found, status)) return false;
        if (found == names->count) continue;
        if (given && found != *index) return quant_fail_disagreement(reader, given, keys[i], status);
        given = keys[i];
        *index = found;
    }
    return true;
}

static bool read_integer(struct json_reader *reader, const struct quant_integer_field *field, bool required,
                         json_int_t *out, struct status *status)
{
    const json_t *value = NULL;
    const char *key = field->keys[0];
    for (size_t i = 0; i < QUANT_MAX_ALIASES && field->keys[i]; i++) {
        const json_t *given = json_reader_get(reader, field->keys[i]);
        if (!given) continue;
        if (value && !json_equal(value, given)) return quant_fail_disagreement(reader, key, field->keys[i], status);
        value = given;
        key = field->keys[i];
    }
    if (!value && !required) return true;
    const json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < field->least || number > field->most ||
        (number >= 0 && number < 32 && field->except >> number & 1))
        return json_reader_fail(reader, key, field->expected, value, status);
    *out = number;
    return true;
}

bool quant_read_bits(struct json_reader *reader, const struct quant_integer_field *field, bool required, uint32_t *bits,
                     struct status *status)
{
    json_int_t number = *bits;
    if (!read_integer(reader, field, required, &number, status)) return false;
    *bits = (uint32_t)number;
    return true;
}

bool quant_read_group_size(struct json_reader *reader, bool required, uint64_t *group_size, struct status *status)
{
    static const struct quant_integer_field field = {{"group_size", "q_group_size"},
                                                     "-1 or an integer from 1 to 65536",
                                                     -1,
                                                     MAX_GROUP,
                                                     1u << 0};
    json_int_t number = (json_int_t)*group_size;
    if (!read_integer(reader, &field, required, &number, status)) return false;
    *group_size = number < 0 ? 0 : (uint64_t)number;
    return true;
}

bool quant_read_block(struct json_reader *reader, const char *key, bool text, uint64_t *rows, uint64_t *columns,
                      struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    json_int_t sizes[2] = {0};
    if (!value) return true;
    if (json_is_array(value) && json_array_size(value) == 2) {
        for (size_t i = 0; i < 2; i++) sizes[i] = json_integer_value(json_array_get(value, i));
    } else if (text && json_is_string(value)) {
        int read = 0;
        unsigned texts[2];
        if (sscanf(json_string_value(value), "%5ux%5u%n", &texts[0], &texts[1], &read) == 2 &&
            (size_t)read == json_string_length(value))
            for (size_t i = 0; i < 2; i++) sizes[i] = texts[i];
    }
    for (size_t i = 0; i < 2; i++)
        if (sizes[i] < 1 || sizes[i] > MAX_GROUP)
            return json_reader_fail(reader, key, "two integers from 1 to 65536", value, status);
    *rows = (uint64_t)sizes[0];
    *columns = (uint64_t)sizes[1];
    return true;
}

bool quant_read_strings(struct json_reader *reader, const char *key, bool required, struct status *status)
{
    const json_t *list = json_reader_get(reader, key);
    if (!list && !required) return true;
    bool fits = json_is_array(list);
    for (size_t i = 0; fits && i < json_array_size(list); i++) fits = json_is_string(json_array_get(list, i));
    return fits || json_reader_fail(reader, key, "an array of strings", list, status);
}
