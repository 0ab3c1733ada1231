/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/field_rules.h"


static bool satisfied(enum field_expectation expectation, const json_t *value)
{
    switch (expectation) {
    case FIELD_NO_EFFECT: return true;
    case FIELD_FALSE: return json_is_false(value);
    case FIELD_TRUE: return json_is_true(value);
    case FIELD_ZERO: return json_is_number(value) && json_number_value(value) == 0.0;
    case FIELD_ONE: return json_is_number(value) && json_number_value(value) == 1.0;
    case FIELD_EMPTY:
        return (json_is_object(value) && json_object_size(value) == 0) ||
               (json_is_array(value) && json_array_size(value) == 0) ||
               (json_is_string(value) && json_string_length(value) == 0);
    case FIELD_ABSENT: return false;
    }
    return false;
}

static const char *expected_text(enum field_expectation expectation)
{
    switch (expectation) {
    case FIELD_NO_EFFECT: return "anything";
    case FIELD_FALSE: return "false";
    case FIELD_TRUE: return "true";
    case FIELD_ZERO: return "0";
    case FIELD_ONE: return "1";
    case FIELD_EMPTY: return "an empty value";
    case FIELD_ABSENT: return "null";
    }
    return "";
}

bool field_rules_check(struct json_reader *reader, const struct field_rule *rules, size_t count, struct status *status)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_reader_get(reader, rules[i].key);
        if (!value || satisfied(rules[i].expectation, value)) continue;
        char found[80];
        json_value_text(value, found, sizeof found);
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field '%s': expected %s or nothing (its effect is not implemented), found %s",
                           reader->path, rules[i].key, expected_text(rules[i].expectation), found);
    }
    return true;
}
