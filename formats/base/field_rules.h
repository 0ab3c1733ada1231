/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of JSON fields that need no code of their own: each either has no effect on what a model computes, or must
 * hold the one value under which it has none. */
#ifndef FORMATS_BASE_FIELD_RULES_H
#define FORMATS_BASE_FIELD_RULES_H

#include "formats/base/json.h"

enum field_expectation {
    FIELD_NO_EFFECT, /* any value */
    FIELD_FALSE,     /* false */
    FIELD_ZERO,      /* a number equal to 0 */
    FIELD_ONE,       /* a number equal to 1 */
    FIELD_EMPTY,     /* an empty object, array or string */
    FIELD_ABSENT,    /* only null */
};

struct field_rule {
    const char *key;
    enum field_expectation expectation;
};

/* Marks every listed field as read. A field that is absent or null satisfies every rule; one with another value than
 * its rule allows fails, naming field, expected and found. */
bool field_rules_check(struct json_reader *reader, const struct field_rule *rules, size_t count, struct status *status);

#endif
