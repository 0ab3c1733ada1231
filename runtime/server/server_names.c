/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_names.h"

#include <stdio.h>
#include <string.h>

static bool is_name(const char *text, size_t size)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/";
    size_t i = 0;
    while (i < size && strchr(letters, text[i])) i++;
    return i == size && size > 0 && size < SERVER_NAME_BYTES;
}

bool server_name_read(const char *argument, struct server_name *name, struct status *status)
{
    static const char ending[] = ".eng";
    const char *equals = strchr(argument, '='), *begin = argument;
    size_t size = equals ? (size_t)(equals - argument) : 0;
    name->path = equals ? equals + 1 : argument;
    if (!equals) {
        const char *slash = strrchr(argument, '/');
        if (slash) begin = slash + 1;
        size = strlen(begin);
        const size_t suffix = sizeof ending - 1;
        if (size > suffix && strcmp(begin + size - suffix, ending) == 0) size -= suffix;
    }
    if (!*name->path) return status_fail(status, STATUS_USAGE, "'%s': expected a file, found nothing", argument);
    if (!is_name(begin, size))
        return status_fail(status, STATUS_USAGE,
                           "'%s': expected a name of 1 to %d letters, digits, '.', '_', '-', ':' and '/'; give one as "
                           "NAME=FILE",
                           argument, SERVER_NAME_BYTES - 1);
    snprintf(name->name, sizeof name->name, "%.*s", (int)size, begin);
    return true;
}
