/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/printable.h"

#include <stdint.h>
#include <stdio.h>

/* RFC 3629, table of section 4. */
size_t printable_utf8(const char *text, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)text;
    if (size == 0) return 0;
    unsigned char lead = bytes[0], low = 0x80, high = 0xbf;
    size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length > size) return 0;
    if (lead == 0xe0) low = 0xa0;  /* no overlong forms */
    if (lead == 0xed) high = 0x9f; /* no surrogates */
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f; /* nothing above U+10FFFF */
    for (size_t i = 1; i < length; i++, low = 0x80, high = 0xbf)
        if (bytes[i] < low || bytes[i] > high) return 0;
    return length;
}

/* Requires: a character of `length` bytes. */
static uint32_t code_point(const char *text, size_t length)
{
    uint32_t value = (unsigned char)text[0];
    if (length > 1) value &= 0x7fu >> length;
    for (size_t i = 1; i < length; i++) value = value << 6 | ((unsigned char)text[i] & 0x3f);
    return value;
}

static bool is_harmful(uint32_t value)
{
    return value < 0x20 || (value >= 0x7f && value < 0xa0) || value == 0x61c || value == 0x200e || value == 0x200f ||
           (value >= 0x2028 && value <= 0x202e) || (value >= 0x2066 && value <= 0x2069);
}

size_t printable_length(const char *text, size_t size)
{
    size_t length = printable_utf8(text, size);
    return length && !is_harmful(code_point(text, length)) ? length : 0;
}

bool printable_text(const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        size_t length = printable_length(text + at, size - at);
        if (!length) return false;
        at += length;
    }
    return true;
}

size_t printable_escape(const char *text, size_t size, char escape[PRINTABLE_ESCAPE_BYTES])
{
    size_t length = printable_utf8(text, size);
    if (length)
        snprintf(escape, PRINTABLE_ESCAPE_BYTES, "\\u%04x", (unsigned)(code_point(text, length) & 0xffff));
    else
        snprintf(escape, PRINTABLE_ESCAPE_BYTES, "\\x%02x", (unsigned char)text[0]);
    return length ? length : 1;
}
