/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/printable.h"

/* Names from hostile files may contain characters that must not reach a terminal. Truncating a message may cut a
 * character, which must not reach a JSON document. */
static void flatten(char *text)
{
    for (size_t left = strlen(text); left;) {
        size_t length = printable_length(text, left), character = printable_utf8(text, left);
        if (!length) {
            length = character ? character : 1;
            memset(text, character ? ' ' : '?', length);
        }
        text += length;
        left -= length;
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
    case STATUS_TOO_LONG:
    case STATUS_NOT_FINITE: return 1;
    case STATUS_USAGE: return 2;
    case STATUS_MACHINE:
    case STATUS_CANCELLED:
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
    case STATUS_NOT_FINITE: return "not finite";
    case STATUS_CANCELLED: return "cancelled";
    }
    return "unknown";
}
