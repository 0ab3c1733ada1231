#include "formats/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Length of the well-formed UTF-8 character at `text`, 0 if there is none (RFC 3629, table of section 4). */
static size_t character_length(const unsigned char *text)
{
    unsigned char lead = text[0], low = 0x80, high = 0xbf;
    size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (lead == 0xe0) low = 0xa0;  /* no overlong forms */
    if (lead == 0xed) high = 0x9f; /* no surrogates */
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f; /* nothing above U+10FFFF */
    for (size_t i = 1; i < length; i++, low = 0x80, high = 0xbf)
        if (text[i] < low || text[i] > high) return 0; /* also stops at the NUL */
    return length;
}

/* Names taken from hostile files may hold control characters, and cutting a message to size may cut a character:
 * neither must reach a terminal or a JSON document. */
static void flatten(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c;) {
        size_t length = character_length(c);
        bool control = *c < 0x20 || *c == 0x7f || (length == 2 && c[0] == 0xc2 && c[1] < 0xa0);
        if (length && !control) {
            c += length;
            continue;
        }
        do *c++ = length ? ' ' : '?';
        while (length && --length);
    }
}

static void set_message(struct status *status, const char *format, va_list arguments)
{
    vsnprintf(status->message, sizeof status->message, format, arguments);
    flatten(status->message);
}

bool status_fail(struct status *status, enum status_code code, const char *format, ...)
{
    if (!status) return false;
    va_list arguments;
    va_start(arguments, format);
    set_message(status, format, arguments);
    va_end(arguments);
    status->code = code;
    return false;
}

bool status_prefix(struct status *status, const char *format, ...)
{
    if (!status) return false;
    char inner[STATUS_MESSAGE_BYTES];
    memcpy(inner, status->message, sizeof inner);
    va_list arguments;
    va_start(arguments, format);
    set_message(status, format, arguments);
    va_end(arguments);
    size_t used = strlen(status->message);
    snprintf(status->message + used, sizeof status->message - used, ": %s", inner);
    flatten(status->message);
    return false;
}

bool status_fail_errno(struct status *status, enum status_code code, int error_number, const char *format, ...)
{
    if (!status) return false;
    va_list arguments;
    va_start(arguments, format);
    set_message(status, format, arguments);
    va_end(arguments);
    size_t used = strlen(status->message);
    snprintf(status->message + used, sizeof status->message - used, ": %s", strerror(error_number));
    flatten(status->message);
    switch (error_number) {
    case ENOENT: status->code = STATUS_NOT_FOUND; break;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EIO:
    case EROFS: status->code = STATUS_MACHINE; break;
    default: status->code = code; break;
    }
    return false;
}

void status_clear(struct status *status)
{
    status->code = STATUS_OK;
    status->message[0] = '\0';
}

int status_exit_code(const struct status *status)
{
    switch (status->code) {
    case STATUS_OK: return 0;
    case STATUS_BAD_INPUT:
    case STATUS_NOT_FOUND:
    case STATUS_CORRUPT:
    case STATUS_VERSION:
    case STATUS_TOO_LONG: return 1;
    case STATUS_USAGE: return 2;
    case STATUS_MACHINE:
    case STATUS_FULL: return 3;
    case STATUS_INTERNAL: return 4;
    }
    return 4;
}

const char *status_code_name(enum status_code code)
{
    switch (code) {
    case STATUS_OK: return "ok";
    case STATUS_BAD_INPUT: return "bad input";
    case STATUS_USAGE: return "wrong usage";
    case STATUS_MACHINE: return "machine cannot";
    case STATUS_INTERNAL: return "internal error";
    case STATUS_NOT_FOUND: return "not found";
    case STATUS_CORRUPT: return "corrupt engine";
    case STATUS_VERSION: return "engine version or target";
    case STATUS_FULL: return "full";
    case STATUS_TOO_LONG: return "too long";
    }
    return "unknown";
}
