/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_literals.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_buffer.h"

enum { MOST_DEPTH = 64, MOST_NUMBER_BYTES = 64 };

struct reader {
    const char *at, *end;
    bool is_gemma;
    int depth;
};

static const char gemma_mark[] = "<|\"|>";

static json_t *read_value(struct reader *reader);

static bool is_one_of(const char *letters, char byte) { return byte && strchr(letters, byte); }

static void skip_space(struct reader *reader)
{
    while (reader->at < reader->end && is_one_of(" \n\t\r", *reader->at)) reader->at++;
}

static bool take(struct reader *reader, const char *text)
{
    const size_t size = strlen(text);
    skip_space(reader);
    if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, text, size) != 0) return false;
    reader->at += size;
    return true;
}

/* An owned word: letters, digits, '_', '-' and '.'; NULL: there is none. */
static char *take_word(struct reader *reader)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    skip_space(reader);
    const char *begin = reader->at;
    while (reader->at < reader->end && is_one_of(letters, *reader->at)) reader->at++;
    return reader->at > begin ? server_text_copy(begin, (size_t)(reader->at - begin)) : NULL;
}

/* ---- strings ---- */

static bool add_character(struct server_buffer *text, uint32_t code)
{
    char bytes[4];
    size_t size = 0;
    if (!code || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return false;
    if (code < 0x80) {
        bytes[size++] = (char)code;
    } else {
        const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        static const unsigned char heads[] = {0, 0xc0, 0xe0, 0xf0};
        bytes[size++] = (char)(heads[tail] | code >> (6 * tail));
        for (int i = tail - 1; i >= 0; i--) bytes[size++] = (char)(0x80 | (code >> (6 * i) & 0x3f));
    }
    return server_buffer_add(text, bytes, size);
}

static bool add_number_escape(struct reader *reader, int digits, struct server_buffer *text)
{
    uint32_t code = 0;
    for (int i = 0; i < digits; i++) {
        static const char letters[] = "0123456789abcdef0123456789ABCDEF";
        const char *found = reader->at < reader->end && *reader->at ? strchr(letters, *reader->at) : NULL;
        if (!found) return false;
        code = code << 4 | (uint32_t)((found - letters) & 15);
        reader->at++;
    }
    return add_character(text, code);
}

static bool add_escape(struct reader *reader, struct server_buffer *text)
{
    static const char names[] = "nrtbf\\'\"/", values[] = "\n\r\t\b\f\\'\"/";
    if (reader->at == reader->end) return false;
    const char name = *reader->at++;
    if (name == 'x') return add_number_escape(reader, 2, text);
    if (name == 'u') return add_number_escape(reader, 4, text);
    if (name == 'U') return add_number_escape(reader, 8, text);
    if (name == '\n') return true;
    const char *found = name ? strchr(names, name) : NULL;
    if (found) return server_buffer_add(text, &values[found - names], 1);
    /* Python keeps escapes that it does not know. */
    return server_buffer_add(text, "\\", 1) && server_buffer_add(text, &name, 1);
}

static json_t *read_string(struct reader *reader)
{
    struct server_buffer text = {0};
    const char mark = *reader->at++;
    bool ok = true, ended = false;
    while (ok && !ended && reader->at < reader->end) {
        const char byte = *reader->at++;
        if (byte == mark)
            ended = true;
        else
            ok = byte == '\\' ? add_escape(reader, &text) : server_buffer_add(&text, &byte, 1);
    }
    json_t *value = ok && ended ? json_stringn(text.data ? text.data : "", text.size) : NULL;
    server_buffer_free(&text);
    return value;
}

static json_t *read_gemma_string(struct reader *reader)
{
    const size_t size = sizeof gemma_mark - 1;
    if (!take(reader, gemma_mark)) return NULL;
    const char *end = memmem(reader->at, (size_t)(reader->end - reader->at), gemma_mark, size);
    if (!end) return NULL;
    json_t *value = json_stringn(reader->at, (size_t)(end - reader->at));
    reader->at = end + size;
    return value;
}

/* ---- other values ---- */

/* Takes the reference of `container` back if the text fails. */
static json_t *or_nothing(json_t *container, bool ok)
{
    if (ok) return container;
    json_decref(container);
    return NULL;
}

static json_t *read_list(struct reader *reader)
{
    json_t *list = json_array();
    bool ok = list && take(reader, "[");
    while (ok && !take(reader, "]")) {
        ok = json_add(list, read_value(reader));
        if (ok && !take(reader, ",")) {
            ok = take(reader, "]");
            break;
        }
    }
    return or_nothing(list, ok);
}

/* An owned key of an object, with the colon after it; NULL: there is none. */
static char *read_key(struct reader *reader)
{
    skip_space(reader);
    json_t *string = reader->at < reader->end && is_one_of("'\"<", *reader->at) ? read_value(reader) : NULL;
    char *key = string             ? (json_is_string(string) ? strdup(json_string_value(string)) : NULL)
                : reader->is_gemma ? take_word(reader)
                                   : NULL;
    json_decref(string);
    if (key && take(reader, ":")) return key;
    free(key);
    return NULL;
}

static json_t *read_object(struct reader *reader)
{
    json_t *object = json_object();
    bool ok = object && take(reader, "{");
    while (ok && !take(reader, "}")) {
        char *key = read_key(reader);
        ok = key && json_put(object, key, read_value(reader));
        free(key);
        if (ok && !take(reader, ",")) {
            ok = take(reader, "}");
            break;
        }
    }
    return or_nothing(object, ok);
}

static json_t *read_word(struct reader *reader)
{
    static const struct {
        const char *name;
        char kind;
    } words[] = {{"True", 't'}, {"true", 't'}, {"False", 'f'}, {"false", 'f'}, {"None", 'n'}, {"null", 'n'}};
    char *word = take_word(reader);
    json_t *value = NULL;
    if (!word) return NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].name) == 0)
            value = words[i].kind == 't' ? json_true() : words[i].kind == 'f' ? json_false() : json_null();
    free(word);
    return value;
}

static json_t *read_number(struct reader *reader)
{
    size_t size = 0;
    const size_t left = (size_t)(reader->end - reader->at);
    while (size < left && size < MOST_NUMBER_BYTES && is_one_of("+-.eE0123456789", reader->at[size])) size++;
    json_t *value = json_loadb(reader->at, size, JSON_DECODE_ANY, NULL);
    reader->at += size;
    return value;
}

static json_t *read_any(struct reader *reader)
{
    skip_space(reader);
    if (reader->at == reader->end || !*reader->at) return NULL;
    if (*reader->at == '[') return read_list(reader);
    if (*reader->at == '{') return read_object(reader);
    if (reader->is_gemma && *reader->at == '<') return read_gemma_string(reader);
    if (!reader->is_gemma && strchr("'\"", *reader->at)) return read_string(reader);
    return strchr("-0123456789", *reader->at) ? read_number(reader) : read_word(reader);
}

static json_t *read_value(struct reader *reader)
{
    if (reader->depth == MOST_DEPTH) return NULL;
    reader->depth++;
    json_t *value = read_any(reader);
    reader->depth--;
    return value;
}

/* ---- calls ---- */

static json_t *read_arguments(struct reader *reader)
{
    json_t *arguments = json_object();
    bool ok = arguments && take(reader, "(");
    while (ok && !take(reader, ")")) {
        char *key = take_word(reader);
        ok = key && take(reader, "=") && json_put(arguments, key, read_value(reader));
        free(key);
        if (ok && !take(reader, ",")) {
            ok = take(reader, ")");
            break;
        }
    }
    return or_nothing(arguments, ok);
}

static json_t *read_call(struct reader *reader)
{
    char *name = take_word(reader);
    json_t *arguments = name ? read_arguments(reader) : NULL;
    json_t *call = arguments ? json_pack("{s:s, s:O}", "name", name, "arguments", arguments) : NULL;
    free(name);
    json_decref(arguments);
    return call;
}

json_t *server_python_calls(const char *text, size_t size)
{
    struct reader reader = {.at = text, .end = text + size};
    json_t *calls = json_array();
    bool ok = calls && take(&reader, "[");
    while (ok && !take(&reader, "]")) {
        ok = json_add(calls, read_call(&reader));
        if (ok && !take(&reader, ",")) {
            ok = take(&reader, "]");
            break;
        }
    }
    return or_nothing(calls, ok && reader.at == reader.end);
}

json_t *server_gemma_object(const char *text, size_t size)
{
    struct reader reader = {.at = text, .end = text + size, .is_gemma = true};
    json_t *object = read_object(&reader);
    return or_nothing(object, object && reader.at == reader.end);
}
