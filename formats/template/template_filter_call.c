/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a filter's call. */
#include "formats/template/template_filters.h"

const struct value *call_argument(const struct call *call, size_t index, const char *name)
{
    return argument(call->arguments, index, name);
}

bool call_flag(const struct call *call, size_t index, const char *name, bool absent)
{
    const struct value *value = call_argument(call, index, name);
    return value ? value_truth(value) : absent;
}

int64_t call_integer(const struct call *call, size_t index, const char *name, int64_t absent)
{
    int64_t integer = absent;
    const struct value *value = call_argument(call, index, name);
    if (value && value->kind != VALUE_NONE && !value_is_integer(value, &integer))
        render_fail(call->render, "TypeError: filter '%s': %s: expected an integer, found %s", call->name, name,
                    value_type(value));
    return integer;
}

struct string call_string(const struct call *call, size_t index, const char *name, const char *absent)
{
    const struct value *value = call_argument(call, index, name);
    return value ? value_str(call->render, value) : string_of(absent);
}

struct string call_text(const struct call *call) { return value_str(call->render, &call->value); }
