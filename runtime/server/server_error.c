/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/printable.h"

static void make_utf8(char *text)
{
    for (size_t left = strlen(text), length; left; left -= length, text += length) {
        length = printable_utf8(text, left);
        if (length) continue;
        *text = '?';
        length = 1;
    }
}

bool server_fail(struct server_error *error, unsigned http, const char *code, const char *param, const char *format,
                 ...)
{
    va_list arguments;
    va_start(arguments, format);
    *error = (struct server_error){.http = http, .code = code};
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    make_utf8(error->message);
    make_utf8(error->param);
    return false;
}

static unsigned http_of(int status)
{
    switch (status) {
    case ENG_BAD_INPUT:
    case ENG_USAGE:
    case ENG_TOO_LONG:
    /* of an option that the engine is too old for */
    case ENG_VERSION: return 400;
    case ENG_FULL: return 429;
    case ENG_MACHINE:
    case ENG_CORRUPT: return 503;
    default: return 500;
    }
}

bool server_fail_eng(struct server_error *error, const char *param, const struct eng_error *cause)
{
    const char *message = cause->message;
    /* Messages of the library begin with "eng_name: ", which means nothing to a client. */
    size_t name = strspn(message, "abcdefghijklmnopqrstuvwxyz_");
    if (strncmp(message, "eng_", 4) == 0 && strncmp(message + name, ": ", 2) == 0) message += name + 2;
    return server_fail(error, http_of(cause->status), NULL, param, "%s", message);
}

bool server_fail_status(struct server_error *error, const char *param, const struct status *cause)
{
    return server_fail(error, http_of((int)cause->code), NULL, param, "%s", cause->message);
}

bool server_fail_memory(struct server_error *error)
{
    return server_fail(error, 503, "out_of_memory", NULL,
                       "the server has too little memory for this request; try later");
}

const char *server_error_type(unsigned http)
{
    if (http == 401) return "authentication_error";
    if (http == 429) return "rate_limit_error";
    return http >= 500 ? "server_error" : "invalid_request_error";
}
