/* SPDX-License-Identifier: Apache-2.0 */
/* Texts with fields: str.format, and the operator % */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/template/template_value.h"

enum { MOST_WIDTH = 300, MOST_PRECISION = 60 };

/* One field's layout; zero where nothing is given. */
struct layout {
    struct string fill;
    char align, sign, grouping, type;
    bool alternate, has_precision;
    int64_t width, precision;
    bool minimum_digits; /* the precision of an integer is its least number of digits, as for % */
};

static void check_bounds(struct render *render, const struct layout *layout)
{
    if (layout->width > MOST_WIDTH) render_fail(render, "ValueError: width of more than %d in a format", MOST_WIDTH);
    if (layout->precision > MOST_PRECISION)
        render_fail(render, "ValueError: precision of more than %d in a format", MOST_PRECISION);
}

static void add_fill(struct builder *builder, struct string fill, int64_t count)
{
    for (; count > 0 && !builder->render->failed; count--) builder_add(builder, fill);
}

/* `head`: sign and prefix, before the padding of "=". */
static void add_padded(struct builder *builder, struct string head, struct string text, const struct layout *layout,
                       char align)
{
    const int64_t missing = layout->width - (int64_t)(string_length(head) + string_length(text));
    const struct string fill = layout->fill.size ? layout->fill : string_of(" ");
    if (layout->align) align = layout->align;
    const int64_t left = missing <= 0 ? 0 : align == '>' ? missing : align == '^' ? missing / 2 : 0;
    add_fill(builder, fill, left);
    builder_add(builder, head);
    if (align == '=') add_fill(builder, fill, missing);
    builder_add(builder, text);
    if (align == '<' || align == '^') add_fill(builder, fill, missing - left);
}

/* Separators between groups of the digits before the point. */
static void add_grouped(struct builder *builder, const char *digits, char separator, size_t size)
{
    const size_t whole = strspn(digits, "0123456789abcdefABCDEF");
    const size_t count = separator ? strcspn(digits, ".e%") < whole ? strcspn(digits, ".e%") : whole : 0;
    for (size_t i = 0; i < count; i++) {
        if (i && (count - i) % size == 0) builder_add_bytes(builder, &separator, 1, false);
        builder_add_bytes(builder, digits + i, 1, false);
    }
    builder_add_text(builder, digits + count);
}

static void add_integer(struct builder *builder, int64_t integer, const struct layout *layout)
{
    char digits[80], *at = digits + sizeof digits - 1, head[4] = "";
    const int base = layout->type == 'b'                          ? 2
                     : layout->type == 'o'                        ? 8
                     : layout->type == 'x' || layout->type == 'X' ? 16
                                                                  : 10;
    uint64_t rest = integer < 0 ? -(uint64_t)integer : (uint64_t)integer;
    *at = 0;
    do *--at = (layout->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rest % (unsigned)base];
    while (rest /= (unsigned)base);
    while (layout->minimum_digits && digits + sizeof digits - 1 - at < layout->precision && at > digits) *--at = '0';
    if (integer < 0 || layout->sign == '+' || layout->sign == ' ') *head = integer < 0 ? '-' : layout->sign;
    if (layout->alternate && base != 10) snprintf(head + strlen(head), 3, "0%c", layout->type);
    struct builder grouped;
    builder_open(&grouped, builder->render);
    add_grouped(&grouped, at, layout->grouping, base == 10 ? 3 : 4);
    add_padded(builder, string_of(head), builder_value(&grouped).string, layout, '>');
}

/* Digits of a field with a precision and without a type: as g, with a digit after the point. */
static void print_general(char text[400], double real, int precision)
{
    if (precision < 1) precision = 1;
    snprintf(text, 400, "%.*e", precision - 1, real);
    if (!isfinite(real)) return;
    const int exponent = atoi(strchr(text, 'e') + 1);
    const bool is_fixed = exponent >= -4 && exponent < precision - 1;
    if (is_fixed) snprintf(text, 400, "%.*f", precision - 1 - exponent, real);
    char *end = strchr(text, 'e'), *last;
    if (!end) end = text + strlen(text);
    if (!strchr(text, '.')) return;
    for (last = end; last[-1] == '0' && (!is_fixed || last[-2] != '.');) last--;
    if (last[-1] == '.') last--;
    memmove(last, end, strlen(end) + 1);
}

static void add_real(struct builder *builder, double real, const struct layout *layout)
{
    char text[400], specification[] = "%.*f", head[2] = "";
    const double shown = fabs(layout->type == '%' ? real * 100 : real);
    const int precision = layout->has_precision ? (int)layout->precision : 6;
    struct builder plain, grouped;
    const struct value value = value_float(shown);
    builder_open(&plain, builder->render);
    builder_open(&grouped, builder->render);
    if (layout->type) {
        specification[3] = layout->type == '%' ? 'f' : layout->type == 'n' ? 'g' : layout->type;
        snprintf(text, sizeof text, specification, precision, shown);
        if (layout->type == '%') strcat(text, "%");
    } else if (layout->has_precision) {
        print_general(text, shown, precision);
    } else {
        builder_add_value(&plain, &value);
        snprintf(text, sizeof text, "%.*s", (int)plain.size, plain.bytes ? plain.bytes : "");
    }
    add_grouped(&grouped, text, layout->grouping, 3);
    const bool is_negative = signbit(real) && !isnan(real);
    if (is_negative || layout->sign == '+' || layout->sign == ' ') *head = is_negative ? '-' : layout->sign;
    add_padded(builder, string_of(head), builder_value(&grouped).string, layout, '>');
}

static void add_text(struct builder *builder, struct string text, const struct layout *layout, char align)
{
    if (layout->has_precision) text = string_part(text, 0, string_offset(text, (size_t)layout->precision));
    add_padded(builder, string_of(""), text, layout, align);
}

/* repr(), or ascii() without other characters. */
static struct string representation(struct render *render, const struct value *value, bool is_ascii)
{
    struct builder builder, escaped;
    builder_open(&builder, render);
    builder_open(&escaped, render);
    builder_add_representation(&builder, value);
    const struct string text = builder_value(&builder).string;
    for (size_t at = 0; is_ascii && at < text.size && !render->failed;) {
        uint32_t c;
        char bytes[16];
        const size_t size = string_character(text, at, &c);
        snprintf(bytes, sizeof bytes, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        if (c < 0x80)
            builder_add(&escaped, string_part(text, at, at + size));
        else
            builder_add_text(&escaped, bytes);
        at += size;
    }
    return is_ascii ? builder_value(&escaped).string : text;
}

static struct string one_character(struct render *render, const struct value *value, char bytes[4])
{
    int64_t integer;
    if (value->kind == VALUE_STRING && string_length(value->string) == 1) return value->string;
    const bool is_character = value_is_integer(value, &integer) && integer > 0 && integer <= 0x10ffff &&
                              (integer < 0xd800 || integer > 0xdfff);
    if (!is_character)
        render_fail(render, "TypeError: %%c requires an int or one character, not %s", value_type(value));
    return (struct string){bytes, NULL, is_character ? string_encode((uint32_t)integer, bytes) : 0};
}

/* ---- str.format ---- */

static int64_t read_count(struct string in, size_t *at)
{
    int64_t count = 0;
    for (; *at < in.size && in.bytes[*at] >= '0' && in.bytes[*at] <= '9'; ++*at)
        if (count < 1 << 20) count = count * 10 + in.bytes[*at] - '0';
    return count;
}

static bool is_one_of(struct string in, size_t at, const char *set)
{
    return at < in.size && in.bytes[at] && strchr(set, in.bytes[at]);
}

/* [[fill]align][sign][#][0][width][,_][.precision][type] */
static struct layout read_layout(struct render *render, struct string in)
{
    struct layout layout = {0};
    size_t at = 0;
    const size_t first = string_offset(in, 1);
    if (is_one_of(in, first, "<>=^"))
        layout.fill = string_part(in, 0, first), layout.align = in.bytes[first], at = first + 1;
    else if (is_one_of(in, 0, "<>=^"))
        layout.align = in.bytes[at++];
    if (is_one_of(in, at, "+- ")) layout.sign = in.bytes[at++];
    if (is_one_of(in, at, "#")) layout.alternate = true, at++;
    if (is_one_of(in, at, "0")) {
        if (!layout.fill.size) layout.fill = string_of("0");
        if (!layout.align) layout.align = '=';
        at++;
    }
    layout.width = read_count(in, &at);
    if (is_one_of(in, at, ",_")) layout.grouping = in.bytes[at++];
    if (is_one_of(in, at, ".")) {
        const size_t digits = ++at;
        layout.precision = read_count(in, &at);
        layout.has_precision = at > digits;
        if (at == digits) render_fail(render, "ValueError: Format specifier missing precision");
    }
    if (at < in.size) layout.type = in.bytes[at++];
    if (at < in.size) render_fail(render, "ValueError: Invalid format specifier");
    check_bounds(render, &layout);
    return layout;
}

static void add_formatted(struct builder *builder, const struct value *value, struct string specification)
{
    struct render *render = builder->render;
    char bytes[4];
    int64_t integer;
    if (!specification.size) {
        builder_add_value(builder, value);
        return;
    }
    struct layout layout = read_layout(render, specification);
    const bool is_number = value_is_number(value), is_integer = value_is_integer(value, &integer);
    if (render->failed) return;
    if (value->kind == VALUE_STRING && (!layout.type || layout.type == 's') && layout.align != '=' && !layout.sign)
        add_text(builder, value->string, &layout, '<');
    else if (is_integer && (!layout.type || strchr("bdonxX", layout.type)) && !layout.has_precision)
        add_integer(builder, integer, &layout);
    else if (is_integer && layout.type == 'c' && !layout.has_precision)
        add_text(builder, one_character(render, value, bytes), &layout, '<');
    else if (is_number && (layout.type ? strchr("eEfFgGn%", layout.type) != NULL : !is_integer))
        add_real(builder, value_real(value), &layout);
    else
        render_fail(render, "ValueError: Unknown format code '%.*s' for object of type '%s'", (int)specification.size,
                    specification.bytes, value_type(value));
}

struct fields {
    const struct arguments *arguments;
    size_t next;
    bool numbered; /* fields have numbers of their own */
};

/* "", "0" or "name", then attributes ".a" and items "[b]". */
static struct value field_value(struct render *render, struct string path, struct fields *fields)
{
    size_t at = 0;
    while (at < path.size && path.bytes[at] != '.' && path.bytes[at] != '[') at++;
    const struct string name = string_part(path, 0, at);
    size_t digits = 0;
    const size_t index = (size_t)read_count(name, &digits);
    const bool is_numbered = name.size && digits == name.size;
    const struct value *found = NULL;
    if (name.size && !is_numbered) {
        for (size_t i = 0; i < fields->arguments->named_count; i++)
            if (string_equal(fields->arguments->names[i], name)) found = &fields->arguments->named[i];
    } else {
        if (at == path.size && (is_numbered ? fields->next != 0 : fields->numbered))
            render_fail(render, "ValueError: cannot switch between manual and automatic field numbering");
        fields->numbered |= is_numbered && at == path.size;
        found = argument(fields->arguments, is_numbered ? index : fields->next++, "");
    }
    if (!found) {
        render_fail(render, "IndexError: format: field '{%.*s}' has no argument", (int)path.size, path.bytes);
        return value_none();
    }
    struct value value = *found;
    while (at < path.size && !render->failed) {
        const bool is_item = path.bytes[at] == '[';
        const size_t begin = ++at;
        while (at < path.size && (is_item ? path.bytes[at] != ']' : path.bytes[at] != '.' && path.bytes[at] != '['))
            at++;
        const struct string part = string_part(path, begin, at);
        digits = 0;
        const int64_t number = read_count(part, &digits);
        const struct value key = part.size && digits == part.size ? value_integer(number) : value_string(part);
        value = is_item ? value_item(render, &value, &key) : value_attribute(render, &value, part);
        at += is_item;
    }
    return value;
}

static struct string format_text(struct render *render, struct string in, struct fields *fields, int depth)
{
    struct builder builder;
    builder_open(&builder, render);
    if (depth > 2) render_fail(render, "ValueError: Max string recursion exceeded");
    for (size_t at = 0; at < in.size && !render->failed;) {
        const char c = in.bytes[at];
        if ((c != '{' && c != '}') || (at + 1 < in.size && in.bytes[at + 1] == c)) {
            builder_add(&builder, string_part(in, at, at + 1));
            at += c == '{' || c == '}' ? 2 : 1;
            continue;
        }
        size_t end = at + 1, mark = 0;
        for (int open = 1; end < in.size; end++) {
            if (in.bytes[end] == '{') open++;
            if (in.bytes[end] == '}' && --open == 0) break;
            if (!mark && (in.bytes[end] == '!' || in.bytes[end] == ':')) mark = end;
        }
        if (c == '}' || end == in.size) {
            render_fail(render, c == '}' ? "ValueError: Single '}' encountered in format string"
                                         : "ValueError: expected '}' before end of string");
            break;
        }
        struct value value = field_value(render, string_part(in, at + 1, mark ? mark : end), fields);
        if (mark && in.bytes[mark] == '!') {
            const char conversion = in.bytes[mark + 1];
            if (!strchr("rsa", conversion) || !(in.bytes[mark + 2] == ':' || mark + 2 == end))
                render_fail(render, "ValueError: Unknown conversion specifier in a format");
            else
                value = value_string(conversion == 's' ? value_str(render, &value)
                                                       : representation(render, &value, conversion == 'a'));
            mark += 2;
        }
        const struct string specification = mark && mark < end ? string_part(in, mark + 1, end) : string_of("");
        if (!render->failed) add_formatted(&builder, &value, format_text(render, specification, fields, depth + 1));
        at = end + 1;
    }
    return builder_value(&builder).string;
}

struct value string_format(struct render *render, struct string format, const struct arguments *arguments)
{
    struct fields fields = {.arguments = arguments};
    return value_string(format_text(render, format, &fields, 0));
}

/* ---- format % arguments ---- */

struct percent {
    struct render *render;
    const struct value *arguments;
    size_t used;
};

static struct value next_argument(struct percent *percent)
{
    const struct value *all = percent->arguments;
    const size_t count = all->kind == VALUE_TUPLE ? all->list->count : 1;
    if (percent->used >= count) {
        render_fail(percent->render, "TypeError: not enough arguments for format string");
        return value_none();
    }
    percent->used++;
    return all->kind == VALUE_TUPLE ? all->list->items[percent->used - 1] : *all;
}

/* A number, or * for one of the arguments. */
static int64_t percent_count(struct percent *percent, struct string format, size_t *at)
{
    int64_t count;
    if (!is_one_of(format, *at, "*")) return read_count(format, at);
    const struct value value = next_argument(percent);
    if (!value_is_integer(&value, &count)) render_fail(percent->render, "TypeError: * wants int");
    ++*at;
    return percent->render->failed ? 0 : count;
}

static void add_converted(struct builder *builder, const struct value *value, struct layout *layout)
{
    struct render *render = builder->render;
    char bytes[4];
    int64_t integer;
    if (layout->type && strchr("rsac", layout->type)) {
        layout->fill = string_of(" "); /* zeros are for numbers */
        if (layout->align == '=') layout->align = '>';
        const struct string text = layout->type == 's'   ? value_str(render, value)
                                   : layout->type == 'c' ? one_character(render, value, bytes)
                                                         : representation(render, value, layout->type == 'a');
        add_text(builder, text, layout, '>');
    } else if (!layout->type || !strchr("diouxXeEfFgG", layout->type)) {
        render_fail(render, "ValueError: unsupported format character, or incomplete format");
    } else if (!value_is_number(value)) {
        render_fail(render, "TypeError: %%%c format: a real number is required, not %s", layout->type,
                    value_type(value));
    } else if (strchr("diouxX", layout->type)) {
        if (!value_is_integer(value, &integer)) {
            if (strchr("oxX", layout->type) || fabs(value->real) >= 9e18 || isnan(value->real))
                render_fail(render, "TypeError: %%%c format: an integer is required, not float", layout->type);
            integer = render->failed ? 0 : (int64_t)value->real;
        }
        layout->minimum_digits = true;
        add_integer(builder, integer, layout);
    } else {
        add_real(builder, value_real(value), layout);
    }
}

struct value string_percent(struct render *render, struct string format, const struct value *arguments)
{
    struct builder builder;
    struct percent percent = {render, arguments, 0};
    bool by_name = false;
    builder_open(&builder, render);
    for (size_t at = 0; at < format.size && !render->failed; at++) {
        if (format.bytes[at] != '%') {
            builder_add(&builder, string_part(format, at, at + 1));
            continue;
        }
        struct layout layout = {0};
        struct value value = value_none();
        bool has_value = false;
        at++;
        if (is_one_of(format, at, "(")) {
            const char *end = memchr(format.bytes + at, ')', format.size - at);
            const size_t stop = end ? (size_t)(end - format.bytes) : format.size;
            const struct value *found =
                arguments->kind == VALUE_DICT
                    ? dict_find(render, arguments->dict, value_string(string_part(format, at + 1, stop)))
                    : NULL;
            if (!found) render_fail(render, "KeyError: a format names what its arguments lack");
            if (found) value = *found;
            has_value = by_name = true;
            at = stop + 1;
        }
        for (; is_one_of(format, at, "-+ #0"); at++) {
            const char flag = format.bytes[at];
            if (flag == '-') layout.align = '<';
            if (flag == '+' || (flag == ' ' && !layout.sign)) layout.sign = flag;
            if (flag == '#') layout.alternate = true;
            if (flag == '0' && layout.align != '<') layout.align = '=', layout.fill = string_of("0");
        }
        if (layout.align == '<') layout.fill = string_of(" ");
        layout.width = percent_count(&percent, format, &at);
        if (layout.width < 0) layout.align = '<', layout.width = -layout.width;
        if (is_one_of(format, at, ".")) {
            at++;
            layout.precision = percent_count(&percent, format, &at);
            layout.has_precision = true;
            if (layout.precision < 0) layout.precision = 0;
        }
        if (is_one_of(format, at, "hlL")) at++;
        layout.type = at < format.size ? format.bytes[at] : 0;
        check_bounds(render, &layout);
        if (layout.type == '%') {
            builder_add_text(&builder, "%");
            continue;
        }
        if (!has_value && !render->failed && layout.type) value = next_argument(&percent);
        if (!render->failed) add_converted(&builder, &value, &layout);
    }
    const bool is_mapping = arguments->kind == VALUE_DICT || arguments->kind == VALUE_LIST ||
                            arguments->kind == VALUE_RANGE || arguments->kind == VALUE_UNDEFINED || by_name;
    if (percent.used < (arguments->kind == VALUE_TUPLE ? arguments->list->count : is_mapping ? 0 : 1))
        render_fail(render, "TypeError: not all arguments converted during string formatting");
    return builder_value(&builder);
}
