/* SPDX-License-Identifier: Apache-2.0 */
/* Finds filters by their names. Here are also the filters that apply others or tests, and the test for filters. */
#include "formats/template/template_filters.h"

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

static struct arguments rest_of(const struct arguments *all, size_t from)
{
    struct arguments rest = *all;
    const size_t passed = all->count < from ? all->count : from;
    if (passed) rest.positional += passed; /* without arguments there is no array */
    rest.count -= passed;
    return rest;
}

/* jinja2 asks for the truth of the value first, so that these take none as well. */
static const struct list *walked(const struct call *call)
{
    return value_truth(&call->value) ? value_items(call->render, &call->value)
                                     : value_list(call->render, VALUE_LIST).list;
}

static struct value filter_map(const struct call *call)
{
    struct render *render = call->render;
    const struct list *items = walked(call);
    struct value list = value_list(render, VALUE_GENERATOR);
    const struct value *attribute = argument(call->arguments, SIZE_MAX, "attribute");
    const struct value *absent = argument(call->arguments, SIZE_MAX, "default");
    if (!attribute && !call->arguments->count)
        render_fail(render, "FilterArgumentError: map requires a filter argument");
    const struct arguments rest = rest_of(call->arguments, 1);
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        struct value made;
        if (attribute) {
            made = attribute_of(render, &items->items[i], attribute);
            if (made.kind == VALUE_UNDEFINED && absent) made = *absent;
        } else {
            made = filter_apply(render, value_str(render, &call->arguments->positional[0]), items->items[i], &rest);
        }
        list_add(render, list.list, made);
    }
    return list;
}

/* select, reject, selectattr, rejectattr. */
static struct value choose(const struct call *call, bool wanted, bool by_attribute)
{
    struct render *render = call->render;
    const struct list *items = walked(call);
    const struct arguments *all = call->arguments;
    struct value list = value_list(render, VALUE_GENERATOR);
    const size_t test = by_attribute ? 1 : 0;
    if (all->count < test) render_fail(render, "FilterArgumentError: %s requires an attribute", call->name);
    const struct arguments rest = rest_of(all, test + 1);
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        const struct value item =
            by_attribute ? attribute_of(render, &items->items[i], &all->positional[0]) : items->items[i];
        const bool holds = all->count > test
                               ? test_apply(render, value_str(render, &all->positional[test]), &item, &rest)
                               : value_truth(&item);
        if (holds == wanted) list_add(render, list.list, items->items[i]);
    }
    return list;
}

static struct value filter_select(const struct call *call) { return choose(call, true, false); }
static struct value filter_reject(const struct call *call) { return choose(call, false, false); }
static struct value filter_selectattr(const struct call *call) { return choose(call, true, true); }
static struct value filter_rejectattr(const struct call *call) { return choose(call, false, true); }

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

bool test_apply(struct render *render, struct string name, const struct value *value, const struct arguments *arguments)
{
    if (string_is(name, "filter") && !arguments->count && !arguments->named_count)
        return value->kind == VALUE_STRING && find_filter(value->string);
    return test_value(render, name, value, arguments);
}
