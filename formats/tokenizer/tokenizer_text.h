/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 for the tokenizer: reads characters of valid text and classifies bytes of other text by the "maximal subpart"
 * rule of the Unicode standard (section 3.9, table 3-7). */
#ifndef FORMATS_TOKENIZER_TOKENIZER_TEXT_H
#define FORMATS_TOKENIZER_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formats/base/status.h"
#include "formats/tokenizer/tokenizer.h"

#define TEXT_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */
enum { TEXT_REPLACEMENT_BYTES = 3, TEXT_CHARACTER_BYTES = 4 };

enum text_sequence {
    TEXT_WHOLE,  /* a well-formed character                                     */
    TEXT_BROKEN, /* a maximal ill-formed piece: one U+FFFD stands for all of it */
    TEXT_CUT,    /* well-formed so far; the bytes end before the character does */
};

/* Classifies the bytes at `text` (size > 0) and sets the length of the classified piece. */
static inline enum text_sequence text_next(const uint8_t *text, size_t size, size_t *length)
{
    uint8_t lead = text[0];
    size_t need;
    uint8_t low = 0x80, high = 0xBF; /* bounds of the second byte: they exclude overlong forms and surrogates */
    *length = 1;
    if (lead < 0x80) return TEXT_WHOLE;
    if (lead >= 0xC2 && lead <= 0xDF) {
        need = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        need = 3;
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        need = 4;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
    } else {
        return TEXT_BROKEN;
    }
    while (*length < need) {
        if (*length == size) return TEXT_CUT;
        if (text[*length] < low || text[*length] > high) return TEXT_BROKEN;
        low = 0x80;
        high = 0xBF;
        ++*length;
    }
    return TEXT_WHOLE;
}

static inline bool text_is_valid(const uint8_t *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        size_t length = 1;
        if (text[at] >= 0x80 && text_next(text + at, size - at, &length) != TEXT_WHOLE) return false;
        at += length;
    }
    return true;
}

/* Reads one character of valid UTF-8 and returns its length in bytes. */
static inline size_t text_read(const char *text, uint32_t *character)
{
    const uint8_t *bytes = (const uint8_t *)text;
    if (bytes[0] < 0x80) {
        *character = bytes[0];
        return 1;
    }
    if (bytes[0] < 0xE0) {
        *character = (uint32_t)(bytes[0] & 0x1F) << 6 | (bytes[1] & 0x3F);
        return 2;
    }
    if (bytes[0] < 0xF0) {
        *character = (uint32_t)(bytes[0] & 0x0F) << 12 | (uint32_t)(bytes[1] & 0x3F) << 6 | (bytes[2] & 0x3F);
        return 3;
    }
    *character = (uint32_t)(bytes[0] & 0x07) << 18 | (uint32_t)(bytes[1] & 0x3F) << 12 |
                 (uint32_t)(bytes[2] & 0x3F) << 6 | (bytes[3] & 0x3F);
    return 4;
}

/* First occurrence of a needle that is not empty; NULL: none. Needles are short and searched many times in the rest of
 * one text: memmem's set-up for each call costs more than it saves. */
static inline const char *text_find(const char *text, size_t size, const char *needle, size_t needle_size)
{
    while (size >= needle_size) {
        const char *first = memchr(text, (uint8_t)needle[0], size - needle_size + 1);
        if (!first || memcmp(first, needle, needle_size) == 0) return first;
        size -= (size_t)(first - text) + 1;
        text = first + 1;
    }
    return NULL;
}

/* Start of the character that ends just before `at` (at > 0), in valid UTF-8. */
static inline size_t text_previous(const char *text, size_t at)
{
    do at--;
    while (at > 0 && ((uint8_t)text[at] & 0xC0) == 0x80);
    return at;
}

/* Writes one Unicode scalar value and returns its length in bytes. */
static inline size_t text_write(uint32_t character, char out[TEXT_CHARACTER_BYTES])
{
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    if (character < 0x800) {
        out[0] = (char)(0xC0 | character >> 6);
        out[1] = (char)(0x80 | (character & 0x3F));
        return 2;
    }
    if (character < 0x10000) {
        out[0] = (char)(0xE0 | character >> 12);
        out[1] = (char)(0x80 | (character >> 6 & 0x3F));
        out[2] = (char)(0x80 | (character & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | character >> 18);
    out[1] = (char)(0x80 | (character >> 12 & 0x3F));
    out[2] = (char)(0x80 | (character >> 6 & 0x3F));
    out[3] = (char)(0x80 | (character & 0x3F));
    return 4;
}

/* -1: not a hexadecimal digit */
static inline int text_hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Unicode's White_Space property, which `\s` of Hugging Face's regex engine also matches. */
static inline bool text_is_space(uint32_t character)
{
    return (character >= 0x09 && character <= 0x0D) || character == 0x20 || character == 0x85 || character == 0xA0 ||
           character == 0x1680 || (character >= 0x2000 && character <= 0x200A) || character == 0x2028 ||
           character == 0x2029 || character == 0x202F || character == 0x205F || character == 0x3000;
}

/* Classes of characters as Hugging Face's libraries have them, some of which know an old version of Unicode. */
bool text_is_word(uint32_t character);               /* \w of Rust's crate regex                    */
bool text_is_number(uint32_t character);             /* Rust's char::is_numeric: Nd, Nl, No          */
bool text_is_punctuation(uint32_t character);        /* ASCII punctuation, P* of Unicode 8           */
bool text_is_control(uint32_t character);            /* Cc, Cf, Co of Unicode 8                      */
bool text_is_mark(uint32_t character);               /* M* of Unicode 9                              */
bool text_is_mark_without_width(uint32_t character); /* Mn of Unicode 8                       */

/* The byte-level alphabet of GPT-2: printable Latin-1 bytes are themselves, the other 68 are U+0100 and up. */
static inline bool text_byte_is_itself(uint32_t byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}
void tokenizer_byte_alphabet(uint16_t characters[256]); /* [byte] = its character, all below U+0144 */

/* Growable buffers. Appending may move the buffer; sizes never shrink. */
bool tokenizer_text_reserve(struct text_buffer *buffer, size_t additional, struct status *status);
bool tokenizer_text_append(struct text_buffer *buffer, const void *bytes, size_t size, struct status *status);
bool tokenizer_token_append(struct token_buffer *buffer, int32_t id, struct status *status);

/* Copies text with every ill-formed piece replaced by U+FFFD. */
bool tokenizer_text_repair(struct text_buffer *out, const char *text, size_t size, struct status *status);

#endif
