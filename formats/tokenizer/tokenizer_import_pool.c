/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of texts of an image under construction, and the failure of a conversion. */
#include <stdarg.h>
#include <stdio.h>

#include "formats/tokenizer/tokenizer_import.h"

bool tokenizer_import_fail(const struct tokenizer_import *import, const char *format, ...)
{
    char message[STATUS_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status_fail(import->status, STATUS_BAD_INPUT, "%s", message);
}

bool tokenizer_import_pool(struct tokenizer_import *import, const char *text, size_t size, uint32_t *offset,
                           uint32_t *bytes)
{
    if (size > INT32_MAX || import->pool.size > INT32_MAX - size)
        return tokenizer_import_fail(import, "more than 2 GiB of text");
    *offset = (uint32_t)import->pool.size;
    *bytes = (uint32_t)size;
    return tokenizer_text_append(&import->pool, text, size, import->status);
}
