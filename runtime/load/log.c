/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/log.h"

#include <stdarg.h>
#include <stdio.h>

void log_write(const struct load_log *log, enum eng_log_level level, const char *format, ...)
{
    char message[ENG_MESSAGE_BYTES];
    va_list arguments;
    if (!log->callback) return;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    log->callback(log->context, level, message);
}
