/* SPDX-License-Identifier: Apache-2.0 */
/* What reading schemas and merging them both need: messages with the place in the document, references, and keywords that say nothing
 * about values. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_schema.h"
#include "formats/tokenizer/tokenizer_text.h"

static const char *const annotations[] = {"title",    "description", "default", "examples",      "example",
                                          "$schema",  "$comment",    "$defs",   "definitions",   "deprecated",
                                          "readOnly", "writeOnly",   "$anchor", "discriminator", "$vocabulary"};

bool schema_is_annotation(const char *key)
{
    for (size_t i = 0; i < sizeof annotations / sizeof *annotations; i++)
        if (strcmp(key, annotations[i]) == 0) return true;
    return false;
}

uint32_t schema_fail(struct schema *schema, const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return tree_fail(schema->tree, STATUS_BAD_INPUT, "JSON Schema: '%.250s': %s", schema->path[0] ? schema->path : "/",
                     text);
}

json_t *schema_resolve(struct schema *schema, const json_t *reference)
{
    const char *text = json_string_value(reference);
    json_t *at = schema->root;
    if (!text || text[0] != '#' || (text[1] && text[1] != '/')) {
        schema_fail(schema, "$ref: expected \"#\" or \"#/...\", a place in the same document, found \"%.80s\"",
                    text ? text : json_type_name(reference));
        return NULL;
    }
    for (const char *part = text + 1; *part == '/' && at;) {
        char name[256];
        size_t size = 0;
        for (part++; *part && *part != '/' && size + 1 < sizeof name; part++) {
            char c = *part;
            if (c == '~' && (part[1] == '0' || part[1] == '1')) {
                c = part[1] == '0' ? '~' : '/';
                part++;
            } else if (c == '%' && text_hex_digit(part[1]) >= 0 && text_hex_digit(part[2]) >= 0) {
                c = (char)(text_hex_digit(part[1]) * 16 + text_hex_digit(part[2]));
                part += 2;
            }
            name[size++] = c;
        }
        name[size] = '\0';
        if (*part && *part != '/') at = NULL; /* longer than any name here */
        if (json_is_array(at)) {
            char *end;
            const unsigned long index = strtoul(name, &end, 10);
            at = size > 0 && *end == '\0' && name[0] >= '0' && name[0] <= '9' ? json_array_get(at, index) : NULL;
        } else {
            at = json_object_get(at, name);
        }
    }
    if (!at) schema_fail(schema, "$ref \"%.120s\" names nothing in the document", text);
    return at;
}
