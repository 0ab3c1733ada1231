/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of JSON fields that need no code: a field either has no effect on what a model computes, or must have the one
 * value that has none. */
#ifndef FORMATS_BASE_FIELD_RULES_H
#define FORMATS_BASE_FIELD_RULES_H

#include "formats/base/json.h"

enum field_expectation {
    FIELD_NO_EFFECT, /* any value */
    FIELD_FALSE,     /* false */
    FIELD_TRUE,      /* true */
    FIELD_ZERO,      /* a number equal to 0 */
    FIELD_ONE,       /* a number equal to 1 */
    FIELD_EMPTY,     /* an empty object, array or string */
    FIELD_ABSENT,    /* only null */
};

struct field_rule {
    const char *key;
    enum field_expectation expectation;
};

/* Marks every listed field as read. An absent or null field satisfies every rule; a field with a value that its rule
 * does not allow fails and is named, with expected and found value. */
bool field_rules_check(struct json_reader *reader, const struct field_rule *rules, size_t count, struct status *status);

#endif
