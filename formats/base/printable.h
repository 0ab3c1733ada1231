/* SPDX-License-Identifier: Apache-2.0 */
/* Which text a terminal may be shown as it is. Names in files are not to be trusted: control characters can rewrite what is
 * on the screen, and characters that change the direction of text can make it read otherwise than it is. */
#ifndef FORMATS_BASE_PRINTABLE_H
#define FORMATS_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the UTF-8 character at `text`, 1 to 4; 0: none begins there, or not all of it is in the `size` bytes. */
size_t printable_utf8(const char *text, size_t size);

/* As printable_utf8, and 0 for what is no text: control characters (C0, C1, DEL), line and paragraph separators, and all that
 * changes the direction of text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069). */
size_t printable_length(const char *text, size_t size);

/* Whether it consists of such characters alone. */
bool printable_text(const char *text, size_t size);

/* What stands for the character at `text` that is not printable: \u and its number, as in JSON, or \x and the byte where there
 * is no character. Returns how many bytes of `text` that is for. Requires: size > 0. */
enum { PRINTABLE_ESCAPE_BYTES = 7 };
size_t printable_escape(const char *text, size_t size, char escape[PRINTABLE_ESCAPE_BYTES]);

#endif
