/* SPDX-License-Identifier: Apache-2.0 */
/* Messages for the caller's log function. They are no part of results: a program without the function misses none. */
#ifndef RUNTIME_LOAD_LOG_H
#define RUNTIME_LOAD_LOG_H

#include "runtime/eng.h"

struct load_log {
    eng_log_callback *callback; /* NULL: none */
    void *context;
};

/* One line. Does nothing without a function. */
void log_write(const struct load_log *log, enum eng_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
