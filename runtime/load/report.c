/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/report.h"

#include <string.h>

/* The public codes are the internal ones. */
_Static_assert((int)ENG_OK == (int)STATUS_OK, "pinned");
_Static_assert((int)ENG_BAD_INPUT == (int)STATUS_BAD_INPUT, "pinned");
_Static_assert((int)ENG_USAGE == (int)STATUS_USAGE, "pinned");
_Static_assert((int)ENG_MACHINE == (int)STATUS_MACHINE, "pinned");
_Static_assert((int)ENG_INTERNAL == (int)STATUS_INTERNAL, "pinned");
_Static_assert((int)ENG_NOT_FOUND == (int)STATUS_NOT_FOUND, "pinned");
_Static_assert((int)ENG_CORRUPT == (int)STATUS_CORRUPT, "pinned");
_Static_assert((int)ENG_VERSION == (int)STATUS_VERSION, "pinned");
_Static_assert((int)ENG_FULL == (int)STATUS_FULL, "pinned");
_Static_assert((int)ENG_TOO_LONG == (int)STATUS_TOO_LONG, "pinned");
_Static_assert((int)ENG_NOT_FINITE == (int)STATUS_NOT_FINITE, "pinned");
_Static_assert((int)ENG_CANCELLED == (int)STATUS_CANCELLED, "pinned");
_Static_assert(sizeof(struct eng_error) == 640, "pinned");
_Static_assert((int)ENG_MESSAGE_BYTES >= (int)STATUS_MESSAGE_BYTES, "a message fits");

/* A larger size was never initialised: no struct of this API comes near it. */
enum { LARGEST_STRUCT = 4096 };

const char *eng_version(void) { return ENG_VERSION_TEXT; }

uint32_t eng_version_number(void) { return ENG_VERSION_NUMBER; }

const char *eng_status_name(int status) { return status_code_name((enum status_code)status); }

enum eng_status report_status(const struct status *status, struct eng_error *error)
{
    if (error) {
        *error = (struct eng_error){.status = (int32_t)status->code};
        memcpy(error->message, status->message, sizeof status->message);
    }
    return (enum eng_status)status->code;
}

enum eng_status report_ok(struct eng_error *error)
{
    if (error) {
        error->status = ENG_OK;
        error->message[0] = '\0';
        error->reserved = 0;
        memset(error->more_reserved, 0, sizeof error->more_reserved);
    }
    return ENG_OK;
}

enum eng_status report_result(bool ok, const struct status *status, struct eng_error *error)
{
    return ok ? report_ok(error) : report_status(status, error);
}

bool report_not_null(const void *argument, const char *function, const char *name, struct status *status)
{
    if (argument) return true;
    return status_fail(status, STATUS_USAGE, "%s: argument '%s' is NULL", function, name);
}

static bool read_size(const void *given, const char *name, size_t *size, struct status *status)
{
    memcpy(size, given, sizeof *size);
    if (*size >= sizeof *size && *size <= LARGEST_STRUCT) return true;
    return status_fail(status, STATUS_USAGE,
                       "struct %s: struct_size is %zu, expected %zu to %d; initialise the struct with %s_init", name,
                       *size, sizeof *size, LARGEST_STRUCT, name);
}

bool report_read_options(void *own, size_t own_size, const void *given, const char *name, struct status *status)
{
    memset(own, 0, own_size);
    if (!given) return true;
    size_t size;
    if (!read_size(given, name, &size, status)) return false;
    for (size_t i = own_size; i < size; i++)
        if (((const unsigned char *)given)[i])
            return status_fail(status, STATUS_USAGE,
                               "struct %s: byte %zu of %zu is set, and this library (%s) knows %zu bytes; leave newer "
                               "fields at 0 or use a newer library",
                               name, i, size, ENG_VERSION_TEXT, own_size);
    memcpy(own, given, size < own_size ? size : own_size);
    return true;
}

bool report_write_facts(void *given, const void *own, size_t own_size, const char *name, struct status *status)
{
    size_t size;
    if (!read_size(given, name, &size, status)) return false;
    size_t known = size < own_size ? size : own_size;
    /* The size field keeps the caller's value. */
    memcpy((char *)given + sizeof size, (const char *)own + sizeof size, known - sizeof size);
    memset((char *)given + known, 0, size - known);
    return true;
}
