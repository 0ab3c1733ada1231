/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/template/template_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- memory ---- */

enum { BLOCK_BYTES = 64 << 10, ALIGNMENT = 16 };

void render_fail(struct render *render, const char *format, ...)
{
    char text[STATUS_MESSAGE_BYTES];
    va_list arguments;
    if (render->failed) return;
    render->failed = true;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    status_fail(render->status, STATUS_BAD_INPUT, "%s", text);
}

void render_fail_undefined(struct render *render, const struct value *undefined)
{
    render_fail(render, "%s: %.*s", undefined->is_unsafe ? "SecurityError" : "UndefinedError",
                (int)undefined->string.size, undefined->string.bytes);
}

void render_fail_bound(struct render *render, const char *what)
{
    if (render->failed) return;
    render->failed = true;
    status_fail(render->status, STATUS_TOO_LONG, "the template takes more %s than it may", what);
}

void *render_take(struct render *render, size_t bytes)
{
    if (render->failed) return NULL;
    const size_t header = (sizeof(struct block) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes > TEMPLATE_MOST_MEMORY || render->memory + bytes > TEMPLATE_MOST_MEMORY) {
        render_fail_bound(render, "memory");
        return NULL;
    }
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!render->blocks || render->blocks->size - render->blocks->used < bytes) {
        const size_t size = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
        struct block *block = malloc(header + size);
        if (!block) {
            render->failed = true;
            status_fail(render->status, STATUS_MACHINE, "out of memory while a template runs");
            return NULL;
        }
        block->used = 0;
        block->size = size;
        block->next = render->blocks;
        render->blocks = block;
    }
    uint8_t *memory = (uint8_t *)render->blocks + header + render->blocks->used;
    render->blocks->used += bytes;
    render->memory += bytes;
    return memory;
}

bool render_step(struct render *render, size_t bytes)
{
    render->steps += 1 + bytes / 64;
    if (render->steps > TEMPLATE_MOST_STEPS) render_fail_bound(render, "steps");
    return !render->failed;
}

void render_free(struct render *render)
{
    for (struct block *block = render->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    render->blocks = NULL;
}

/* ---- texts that are being made ---- */

void builder_open(struct builder *builder, struct render *render)
{
    *builder = (struct builder){.render = render, .most = TEMPLATE_MOST_OUTPUT};
}

static bool builder_grow(struct builder *builder, size_t size)
{
    struct render *render = builder->render;
    if (!render_step(render, size)) return false;
    if (size > builder->most || builder->size + size > builder->most) {
        render_fail_bound(render, "output");
        return false;
    }
    if (builder->size + size <= builder->capacity) return true;
    const size_t capacity = 2 * (builder->size + size) < 64 ? 64 : 2 * (builder->size + size);
    char *bytes = render_take(render, capacity);
    uint8_t *foreign = render_take(render, capacity);
    if (!bytes || !foreign) return false;
    if (builder->size) {
        memcpy(bytes, builder->bytes, builder->size);
        memcpy(foreign, builder->foreign, builder->size);
    }
    builder->bytes = bytes;
    builder->foreign = foreign;
    builder->capacity = capacity;
    return true;
}

void builder_add(struct builder *builder, struct string part)
{
    if (!part.size || !builder_grow(builder, part.size)) return;
    memcpy(builder->bytes + builder->size, part.bytes, part.size);
    if (part.foreign)
        memcpy(builder->foreign + builder->size, part.foreign, part.size);
    else
        memset(builder->foreign + builder->size, 0, part.size);
    builder->size += part.size;
}

void builder_add_bytes(struct builder *builder, const char *bytes, size_t size, bool foreign)
{
    if (!size || !builder_grow(builder, size)) return;
    memcpy(builder->bytes + builder->size, bytes, size);
    memset(builder->foreign + builder->size, foreign, size);
    builder->size += size;
}

void builder_add_text(struct builder *builder, const char *text)
{
    builder_add_bytes(builder, text, strlen(text), false);
}

struct value builder_value(const struct builder *builder)
{
    const struct string built = {builder->bytes, builder->foreign, builder->size};
    return value_string(built.size ? built : string_of(""));
}

/* ---- strings ---- */

struct string string_of(const char *text) { return (struct string){text, NULL, strlen(text)}; }

struct string string_part(struct string whole, size_t first, size_t last)
{
    if (first >= last) return string_of("");
    return (struct string){whole.bytes + first, whole.foreign ? whole.foreign + first : NULL, last - first};
}

bool string_equal(struct string a, struct string b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.bytes, b.bytes, a.size) == 0);
}

bool string_is(struct string string, const char *text) { return string_equal(string, string_of(text)); }

/* By code points, which for UTF-8 is by bytes. */
int string_compare(struct string a, struct string b)
{
    const size_t size = a.size < b.size ? a.size : b.size;
    const int order = size ? memcmp(a.bytes, b.bytes, size) : 0;
    if (order) return order < 0 ? -1 : 1;
    return a.size < b.size ? -1 : a.size > b.size;
}

size_t string_find(struct string in, struct string what, size_t from)
{
    if (from > in.size) return SIZE_MAX;
    if (!what.size) return from;
    const char *found = memmem(in.bytes + from, in.size - from, what.bytes, what.size);
    return found ? (size_t)(found - in.bytes) : SIZE_MAX;
}

/* Texts are valid UTF-8: jansson and template_open refuse others. */
static size_t character_bytes(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4; }

size_t string_length(struct string string)
{
    size_t length = 0;
    for (size_t i = 0; i < string.size; i++) length += ((uint8_t)string.bytes[i] & 0xc0) != 0x80;
    return length;
}

size_t string_offset(struct string string, size_t index)
{
    size_t at = 0;
    while (index-- > 0 && at < string.size) at += character_bytes((uint8_t)string.bytes[at]);
    return at < string.size ? at : string.size;
}

size_t string_character(struct string string, size_t at, uint32_t *character)
{
    utf8proc_int32_t found = -1;
    const utf8proc_ssize_t bytes =
        utf8proc_iterate((const utf8proc_uint8_t *)string.bytes + at, (utf8proc_ssize_t)(string.size - at), &found);
    if (bytes <= 0) {
        *character = (uint8_t)string.bytes[at];
        return 1;
    }
    *character = (uint32_t)found;
    return (size_t)bytes;
}

size_t string_encode(uint32_t character, char bytes[4])
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)character, (utf8proc_uint8_t *)bytes);
}

bool character_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool character_is_printable(uint32_t c)
{
    if (c == ' ') return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
    }
}

static bool is_stripped(uint32_t character, const struct string *set)
{
    if (!set) return character_is_space(character);
    for (size_t at = 0; at < set->size;) {
        uint32_t other;
        at += string_character(*set, at, &other);
        if (other == character) return true;
    }
    return false;
}

struct string string_strip(struct string string, const struct string *set, int sides)
{
    size_t first = 0, last = string.size;
    uint32_t character;
    while ((sides & 1) && first < last) {
        const size_t bytes = string_character(string, first, &character);
        if (!is_stripped(character, set)) break;
        first += bytes;
    }
    while ((sides & 2) && first < last) {
        size_t at = last - 1;
        while (at > first && ((uint8_t)string.bytes[at] & 0xc0) == 0x80) at--;
        string_character(string, at, &character);
        if (!is_stripped(character, set)) break;
        last = at;
    }
    return string_part(string, first, last);
}

/* ---- values ---- */

struct value value_undefined(struct render *render, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct builder builder;
    builder_open(&builder, render);
    builder_add_text(&builder, text);
    struct value value = builder_value(&builder);
    value.kind = VALUE_UNDEFINED;
    return value;
}

struct value value_none(void) { return (struct value){.kind = VALUE_NONE}; }
struct value value_bool(bool boolean) { return (struct value){.kind = VALUE_BOOL, .boolean = boolean}; }
struct value value_integer(int64_t integer) { return (struct value){.kind = VALUE_INTEGER, .integer = integer}; }
struct value value_float(double real) { return (struct value){.kind = VALUE_FLOAT, .real = real}; }
struct value value_string(struct string string)
{
    if (!string.bytes) string.bytes = "";
    return (struct value){.kind = VALUE_STRING, .string = string};
}
struct value value_text(const char *text) { return value_string(string_of(text)); }

/* Failed runs get an object that is empty, so that callers need not look. */
struct value value_list(struct render *render, enum value_kind kind)
{
    static struct list none;
    struct list *list = render_take(render, sizeof *list);
    if (list) *list = (struct list){0};
    return (struct value){.kind = kind, .list = list ? list : &none};
}

struct value value_dict(struct render *render, enum value_kind kind)
{
    static struct dict none;
    struct dict *dict = render_take(render, sizeof *dict);
    if (dict) *dict = (struct dict){0};
    return (struct value){.kind = kind, .dict = dict ? dict : &none};
}

void list_add(struct render *render, struct list *list, struct value item)
{
    if (render->failed) return;
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 8;
        struct value *items = render_take(render, capacity * sizeof *items);
        if (!items) return;
        if (list->count) memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
}

struct value list_take(struct list *list)
{
    const struct value item = *list->items++;
    list->count--;
    list->capacity--;
    return item;
}

/* Numbers that are equal have the same hash, whatever their kind. */
static uint32_t value_hash(const struct value *value)
{
    uint64_t hash = 1469598103934665603u;
    if (value->kind == VALUE_STRING) {
        for (size_t i = 0; i < value->string.size; i++)
            hash = (hash ^ (uint8_t)value->string.bytes[i]) * 1099511628211u;
    } else if (value_is_number(value)) {
        const double real = value_real(value);
        uint64_t bits;
        memcpy(&bits, &real, sizeof bits);
        hash = (hash ^ bits) * 1099511628211u;
    }
    return (uint32_t)(hash ^ hash >> 32);
}

enum { DICT_SCANNED = 8, NO_ENTRY = -1 };

static int64_t dict_entry(struct render *render, const struct dict *dict, const struct value *key)
{
    if (!dict->slots) {
        for (size_t i = 0; i < dict->count; i++)
            if (value_equal(render, &dict->keys[i], key)) return (int64_t)i;
        return NO_ENTRY;
    }
    for (size_t at = value_hash(key) % dict->slot_count; dict->slots[at]; at = (at + 1) % dict->slot_count)
        if (value_equal(render, &dict->keys[dict->slots[at] - 1], key)) return (int64_t)dict->slots[at] - 1;
    return NO_ENTRY;
}

static void dict_index(struct dict *dict, size_t entry)
{
    size_t at = value_hash(&dict->keys[entry]) % dict->slot_count;
    while (dict->slots[at]) at = (at + 1) % dict->slot_count;
    dict->slots[at] = (uint32_t)entry + 1;
}

static bool dict_grow(struct render *render, struct dict *dict)
{
    const size_t capacity = dict->capacity ? 2 * dict->capacity : DICT_SCANNED;
    struct value *keys = render_take(render, capacity * sizeof *keys);
    struct value *values = render_take(render, capacity * sizeof *values);
    uint32_t *slots = capacity > DICT_SCANNED ? render_take(render, 2 * capacity * sizeof *slots) : NULL;
    if (!keys || !values || (capacity > DICT_SCANNED && !slots)) return false;
    if (dict->count) {
        memcpy(keys, dict->keys, dict->count * sizeof *keys);
        memcpy(values, dict->values, dict->count * sizeof *values);
    }
    dict->keys = keys;
    dict->values = values;
    dict->capacity = capacity;
    dict->slots = slots;
    dict->slot_count = slots ? 2 * capacity : 0;
    if (!slots) return true;
    memset(slots, 0, 2 * capacity * sizeof *slots);
    for (size_t i = 0; i < dict->count; i++) dict_index(dict, i);
    return true;
}

void dict_set(struct render *render, struct dict *dict, struct value key, struct value item)
{
    if (render->failed) return;
    if (!value_is_hashable(render, &key)) return;
    const int64_t entry = dict_entry(render, dict, &key);
    if (entry >= 0) {
        dict->values[entry] = item;
        return;
    }
    if (dict->count == dict->capacity && !dict_grow(render, dict)) return;
    dict->keys[dict->count] = key;
    dict->values[dict->count] = item;
    dict->count++;
    if (dict->slots) dict_index(dict, dict->count - 1);
}

const struct value *dict_find(struct render *render, const struct dict *dict, struct value key)
{
    const int64_t entry = dict_entry(render, dict, &key);
    return entry >= 0 ? &dict->values[entry] : NULL;
}

const struct value *dict_find_text(struct render *render, const struct dict *dict, const char *key)
{
    return dict_find(render, dict, value_text(key));
}

static struct value string_of_json(struct render *render, const char *bytes, size_t size, bool foreign)
{
    struct builder builder;
    builder_open(&builder, render);
    builder_add_bytes(&builder, bytes, size, foreign);
    return builder_value(&builder);
}

static struct value container_of_json(struct render *render, const json_t *json, bool foreign)
{
    const bool is_array = json_is_array(json);
    struct value value = is_array ? value_list(render, VALUE_LIST) : value_dict(render, VALUE_DICT);
    const char *key;
    json_t *item;
    if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail_bound(render, "depth");
    for (size_t i = 0; is_array && i < json_array_size(json) && !render->failed; i++)
        list_add(render, value.list, value_of_json(render, json_array_get(json, i), foreign));
    json_object_foreach ((json_t *)(uintptr_t)json, key, item) {
        if (render->failed) break;
        dict_set(render, value.dict, string_of_json(render, key, strlen(key), foreign),
                 value_of_json(render, item, foreign));
    }
    render->depth--;
    return value;
}

struct value value_of_json(struct render *render, const json_t *json, bool foreign)
{
    if (!render_step(render, 0)) return value_none();
    switch (json_typeof(json)) {
    case JSON_STRING: return string_of_json(render, json_string_value(json), json_string_length(json), foreign);
    case JSON_INTEGER: return value_integer(json_integer_value(json));
    case JSON_REAL: return value_float(json_real_value(json));
    case JSON_TRUE: return value_bool(true);
    case JSON_FALSE: return value_bool(false);
    case JSON_NULL: return value_none();
    default: return container_of_json(render, json, foreign);
    }
}

void value_own_roles(struct render *render, const struct value *variables)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const struct value *messages =
        variables->kind == VALUE_DICT ? dict_find_text(render, variables->dict, "messages") : NULL;
    for (size_t i = 0; messages && messages->kind == VALUE_LIST && i < messages->list->count; i++) {
        const struct value *message = &messages->list->items[i];
        const struct value *role = message->kind == VALUE_DICT ? dict_find_text(render, message->dict, "role") : NULL;
        if (!role || role->kind != VALUE_STRING) continue;
        struct value own = *role;
        size_t size = 0;
        while (size < own.string.size && own.string.bytes[size] && strchr(word, own.string.bytes[size])) size++;
        own.string.foreign = NULL;
        if (size == own.string.size) dict_set(render, message->dict, value_text("role"), own);
    }
}

bool value_is_list(const struct value *value)
{
    return value_is_sequence(value) || value->kind == VALUE_GENERATOR || value->kind == VALUE_VIEW;
}

bool value_is_sequence(const struct value *value)
{
    return value->kind == VALUE_LIST || value->kind == VALUE_TUPLE || value->kind == VALUE_RANGE;
}

bool value_is_hashable(struct render *render, const struct value *value)
{
    if (value->kind == VALUE_LIST || value->kind == VALUE_DICT || value->kind == VALUE_VIEW)
        render_fail(render, "TypeError: unhashable type: '%s'", value_type(value));
    for (size_t i = 0; value->kind == VALUE_TUPLE && i < value->list->count && !render->failed; i++)
        value_is_hashable(render, &value->list->items[i]);
    return !render->failed;
}

bool value_is_number(const struct value *value)
{
    return value->kind == VALUE_INTEGER || value->kind == VALUE_FLOAT || value->kind == VALUE_BOOL;
}

bool value_is_integer(const struct value *value, int64_t *integer)
{
    *integer = value->kind == VALUE_BOOL ? value->boolean : value->integer;
    return value->kind == VALUE_INTEGER || value->kind == VALUE_BOOL;
}

double value_real(const struct value *value)
{
    return value->kind == VALUE_FLOAT  ? value->real
           : value->kind == VALUE_BOOL ? value->boolean
                                       : (double)value->integer;
}

bool value_truth(const struct value *value)
{
    switch (value->kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL: return value->boolean;
    case VALUE_INTEGER: return value->integer != 0;
    case VALUE_FLOAT: return value->real != 0;
    case VALUE_STRING: return value->string.size != 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_RANGE:
    case VALUE_VIEW: return value->list->count != 0;
    case VALUE_DICT: return value->dict->count != 0;
    default: return true;
    }
}

static bool lists_equal(struct render *render, const struct list *a, const struct list *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (!value_equal(render, &a->items[i], &b->items[i])) return false;
    return true;
}

static bool dicts_equal(struct render *render, const struct dict *a, const struct dict *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct value *other = dict_find(render, b, a->keys[i]);
        if (!other || !value_equal(render, &a->values[i], other)) return false;
    }
    return true;
}

bool value_equal(struct render *render, const struct value *a, const struct value *b)
{
    bool equal = false;
    if (!render_step(render, 0)) return false;
    if (value_is_number(a) && value_is_number(b)) {
        int64_t x, y;
        if (value_is_integer(a, &x) && value_is_integer(b, &y)) return x == y;
        return value_real(a) == value_real(b);
    }
    if (a->kind != b->kind) return false;
    if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail_bound(render, "depth");
    switch (a->kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: equal = true; break;
    case VALUE_STRING: equal = render_step(render, a->string.size) && string_equal(a->string, b->string); break;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_RANGE: equal = !render->failed && lists_equal(render, a->list, b->list); break;
    case VALUE_DICT: equal = !render->failed && dicts_equal(render, a->dict, b->dict); break;
    case VALUE_GENERATOR:
    case VALUE_VIEW: equal = a->list == b->list; break;
    case VALUE_LOOP:
    case VALUE_NAMESPACE: equal = a->dict == b->dict; break;
    case VALUE_MACRO: equal = a->macro == b->macro; break;
    default: equal = string_equal(a->string, b->string) && a->object == b->object; break;
    }
    render->depth--;
    return equal;
}

int value_order(struct render *render, const struct value *a, const struct value *b, const char *operator)
{
    if (!render_step(render, 0)) return 0;
    if (value_is_number(a) && value_is_number(b)) {
        int64_t x, y;
        if (value_is_integer(a, &x) && value_is_integer(b, &y)) return x < y ? -1 : x > y;
        return value_real(a) < value_real(b) ? -1 : value_real(a) > value_real(b);
    }
    if (a->kind == VALUE_STRING && b->kind == VALUE_STRING) return string_compare(a->string, b->string);
    if (a->kind == b->kind && (a->kind == VALUE_LIST || a->kind == VALUE_TUPLE)) {
        if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail_bound(render, "depth");
        int order = 0;
        const size_t x = a->list->count, y = b->list->count;
        for (size_t i = 0; i < x && i < y && !order && !render->failed; i++)
            if (!value_equal(render, &a->list->items[i], &b->list->items[i]))
                order = value_order(render, &a->list->items[i], &b->list->items[i], operator);
        render->depth--;
        return order ? order : x < y ? -1 : x > y;
    }
    const struct value *undefined = a->kind == VALUE_UNDEFINED ? a : b->kind == VALUE_UNDEFINED ? b : NULL;
    if (undefined)
        render_fail_undefined(render, undefined);
    else
        render_fail(render, "TypeError: '%s' not supported between instances of '%s' and '%s'", operator, value_type(a),
                    value_type(b));
    return 0;
}

bool value_contains(struct render *render, const struct value *in, const struct value *what)
{
    if (in->kind == VALUE_STRING) {
        if (what->kind != VALUE_STRING) {
            render_fail(render, "TypeError: 'in <string>' requires string as left operand, not %s", value_type(what));
            return false;
        }
        return render_step(render, in->string.size) && string_find(in->string, what->string, 0) != SIZE_MAX;
    }
    if (in->kind == VALUE_DICT) return value_is_hashable(render, what) && dict_find(render, in->dict, *what) != NULL;
    if (in->kind == VALUE_GENERATOR) { /* items are taken up to the one that is found */
        while (in->list->count && !render->failed) {
            const struct value item = list_take(in->list);
            if (value_equal(render, &item, what)) return true;
        }
        return false;
    }
    const struct list *items = value_items(render, in);
    for (size_t i = 0; i < items->count && !render->failed; i++)
        if (value_equal(render, &items->items[i], what)) return true;
    return false;
}

static struct list *characters_of(struct render *render, struct string string)
{
    struct list *list = value_list(render, VALUE_LIST).list;
    for (size_t at = 0; at < string.size && render_step(render, 0);) {
        const size_t bytes = character_bytes((uint8_t)string.bytes[at]);
        const size_t end = at + bytes < string.size ? at + bytes : string.size;
        list_add(render, list, value_string(string_part(string, at, end)));
        at = end;
    }
    return list;
}

struct list *value_items(struct render *render, const struct value *value)
{
    if (value_is_list(value) && value->kind != VALUE_GENERATOR) return value->list;
    if (value->kind == VALUE_STRING) return characters_of(render, value->string);
    struct list *list = value_list(render, VALUE_LIST).list;
    if (value->kind == VALUE_GENERATOR) {
        *list = *value->list;
        *value->list = (struct list){0};
    } else if (value->kind == VALUE_DICT) {
        for (size_t i = 0; i < value->dict->count; i++) list_add(render, list, value->dict->keys[i]);
    } else if (value->kind == VALUE_UNDEFINED && value->is_unsafe) {
        render_fail_undefined(render, value);
    } else if (value->kind != VALUE_UNDEFINED) {
        render_fail(render, "TypeError: '%s' object is not iterable", value_type(value));
    }
    return list;
}

const char *value_type(const struct value *value)
{
    static const char *const names[] = {
        [VALUE_UNDEFINED] = "Undefined", [VALUE_NONE] = "NoneType", [VALUE_BOOL] = "bool",
        [VALUE_INTEGER] = "int",         [VALUE_FLOAT] = "float",   [VALUE_STRING] = "str",
        [VALUE_LIST] = "list",           [VALUE_TUPLE] = "tuple",   [VALUE_GENERATOR] = "generator",
        [VALUE_RANGE] = "range",         [VALUE_DICT] = "dict",     [VALUE_NAMESPACE] = "Namespace",
        [VALUE_MACRO] = "Macro",         [VALUE_METHOD] = "method", [VALUE_FUNCTION] = "function",
        [VALUE_LOOP] = "LoopContext",
    };
    return value->kind == VALUE_VIEW ? value->object->string.bytes : names[value->kind];
}
