/* SPDX-License-Identifier: Apache-2.0 */
/* Text that is safe to print on a terminal. Names in files are not trusted: control characters can change what the
 * screen shows, and characters that change the direction of text can change what it appears to say. */
#ifndef FORMATS_BASE_PRINTABLE_H
#define FORMATS_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Length of the UTF-8 character at `text`, 1 to 4 bytes; 0: not a valid character, or it exceeds `size`. */
size_t printable_utf8(const char *text, size_t size);

/* Like printable_utf8, but 0 for control characters (C0, C1, DEL), line and paragraph separators, and characters that
 * change the direction of text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069). */
size_t printable_length(const char *text, size_t size);

/* Whether the text consists only of such characters. */
bool printable_text(const char *text, size_t size);

/* Writes the replacement of the character at `text` that is not printable: \u and its number, as in JSON, or \x and the
 * byte if it is not a valid character. Returns how many bytes of `text` it replaces. Requires: size > 0. */
enum { PRINTABLE_ESCAPE_BYTES = 7 };
size_t printable_escape(const char *text, size_t size, char escape[PRINTABLE_ESCAPE_BYTES]);

#endif
