/* SPDX-License-Identifier: Apache-2.0 */
/* The filters of jinja2, each a function of its call. Those that give an iterator there give a generator here. Private to this folder. */
#ifndef FORMATS_TEMPLATE_TEMPLATE_FILTERS_H
#define FORMATS_TEMPLATE_TEMPLATE_FILTERS_H

#include "formats/template/template_value.h"

/* value | name(arguments) */
struct call {
    struct render *render;
    struct value value;
    const struct arguments *arguments;
    const char *name;
};

/* The argument at `index` or called `name`; without it NULL or `absent`. */
const struct value *call_argument(const struct call *call, size_t index, const char *name);
bool call_flag(const struct call *call, size_t index, const char *name, bool absent);
int64_t call_integer(const struct call *call, size_t index, const char *name, int64_t absent);
struct string call_string(const struct call *call, size_t index, const char *name, const char *absent);
/* str() of the value. */
struct string call_text(const struct call *call);

/* Tests but for that of filters, as test_apply. */
bool test_value(struct render *render, struct string name, const struct value *value,
                const struct arguments *arguments);

/* ---- template_filter_lists.c ---- */

struct value attribute_of(struct render *render, const struct value *value, const struct value *path);
struct value filter_batch(const struct call *call);
struct value filter_dictsort(const struct call *call);
struct value filter_first(const struct call *call);
struct value filter_groupby(const struct call *call);
struct value filter_items(const struct call *call);
struct value filter_join(const struct call *call);
struct value filter_last(const struct call *call);
struct value filter_length(const struct call *call);
struct value filter_list(const struct call *call);
struct value filter_max(const struct call *call);
struct value filter_min(const struct call *call);
struct value filter_reverse(const struct call *call);
struct value filter_slice(const struct call *call);
struct value filter_sort(const struct call *call);
struct value filter_sum(const struct call *call);
struct value filter_unique(const struct call *call);

/* ---- template_filter_texts.c ---- */

struct value filter_capitalize(const struct call *call);
struct value filter_center(const struct call *call);
struct value filter_escape(const struct call *call);
struct value filter_forceescape(const struct call *call);
struct value filter_format(const struct call *call);
struct value filter_indent(const struct call *call);
struct value filter_lower(const struct call *call);
struct value filter_replace(const struct call *call);
struct value filter_safe(const struct call *call);
struct value filter_string(const struct call *call);
struct value filter_title(const struct call *call);
struct value filter_tojson(const struct call *call);
struct value filter_trim(const struct call *call);
struct value filter_truncate(const struct call *call);
struct value filter_upper(const struct call *call);
struct value filter_urlencode(const struct call *call);
struct value filter_wordcount(const struct call *call);

/* ---- template_filter_numbers.c ---- */

struct value filter_abs(const struct call *call);
struct value filter_float(const struct call *call);
struct value filter_int(const struct call *call);
struct value filter_round(const struct call *call);

#endif
