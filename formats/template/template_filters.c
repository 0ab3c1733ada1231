/* SPDX-License-Identifier: Apache-2.0 */
/* Finds filters by their names, and reads their arguments. */
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

static struct value filter_attr(const struct call *call)
{
    const struct string name = call_string(call, 0, "name", "");
    /* Attributes only: the items of a dictionary are none. */
    struct value found;
    if (call->value.kind != VALUE_DICT) return value_attribute(call->render, &call->value, name);
    if (method_find(call->render, &call->value, name, &found)) return found;
    return value_undefined(call->render, "'dict object' has no attribute '%.*s'", (int)name.size, name.bytes);
}

static struct value filter_default(const struct call *call)
{
    const struct value *other = call_argument(call, 0, "default_value");
    const bool replaces =
        call->value.kind == VALUE_UNDEFINED || (call_flag(call, 1, "boolean", false) && !value_truth(&call->value));
    return !replaces ? call->value : other ? *other : value_text("");
}

/* `arguments`: names in their order; NULL: any. */
static const struct filter {
    const char *name;
    struct value (*apply)(const struct call *call);
    const char *arguments;
} filters[] = {
    {"abs", filter_abs, ""},
    {"attr", filter_attr, "name"},
    {"batch", filter_batch, "linecount fill_with"},
    {"capitalize", filter_capitalize, ""},
    {"center", filter_center, "width"},
    {"count", filter_length, ""},
    {"d", filter_default, "default_value boolean"},
    {"default", filter_default, "default_value boolean"},
    {"dictsort", filter_dictsort, "case_sensitive by reverse"},
    {"e", filter_escape, ""},
    {"escape", filter_escape, ""},
    {"first", filter_first, ""},
    {"float", filter_float, "default"},
    {"forceescape", filter_forceescape, ""},
    {"format", filter_format, NULL},
    {"groupby", filter_groupby, "attribute default case_sensitive"},
    {"indent", filter_indent, "width first blank"},
    {"int", filter_int, "default base"},
    {"items", filter_items, ""},
    {"join", filter_join, "d attribute"},
    {"last", filter_last, ""},
    {"length", filter_length, ""},
    {"list", filter_list, ""},
    {"lower", filter_lower, ""},
    {"map", filter_map, NULL},
    {"max", filter_max, "case_sensitive attribute"},
    {"min", filter_min, "case_sensitive attribute"},
    {"reject", filter_reject, NULL},
    {"rejectattr", filter_rejectattr, NULL},
    {"replace", filter_replace, "old new count"},
    {"reverse", filter_reverse, ""},
    {"round", filter_round, "precision method"},
    {"safe", filter_safe, ""},
    {"select", filter_select, NULL},
    {"selectattr", filter_selectattr, NULL},
    {"slice", filter_slice, "slices fill_with"},
    {"sort", filter_sort, "reverse case_sensitive attribute"},
    {"string", filter_string, ""},
    {"sum", filter_sum, "attribute start"},
    {"title", filter_title, ""},
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys"},
    {"trim", filter_trim, "chars"},
    {"truncate", filter_truncate, "length killwords end leeway"},
    {"unique", filter_unique, "case_sensitive attribute"},
    {"upper", filter_upper, ""},
    {"urlencode", filter_urlencode, ""},
    {"wordcount", filter_wordcount, ""},
};

static const struct filter *find_filter(struct string name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (string_is(name, filters[i].name)) return &filters[i];
    return NULL;
}

bool filter_exists(struct string name) { return find_filter(name) != NULL; }

struct value filter_apply(struct render *render, struct string name, struct value value,
                          const struct arguments *arguments)
{
    struct value made = value_none();
    const struct filter *filter = find_filter(name);
    if (!filter) {
        render_fail(render, "TemplateRuntimeError: No filter named '%.*s' found.", (int)name.size, name.bytes);
        return made;
    }
    const struct call call = {render, value, arguments, filter->name};
    if (filter->arguments && !arguments_check(render, arguments, filter->name, filter->arguments)) return made;
    if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail(render, "RecursionError: maximum recursion depth exceeded");
    if (!render->failed) made = filter->apply(&call);
    render->depth--;
    return made;
}
