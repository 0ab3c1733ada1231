/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/bench_session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void bench_end(enum bench_exit code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit((int)code);
}

double bench_number(const char *name, const char *text, double least, double most)
{
    char *rest;
    const double value = text ? strtod(text, &rest) : 0;
    if (!text || rest == text || *rest || !(value >= least && value <= most))
        bench_end(BENCH_USAGE, "%s: expected a number from %.0f to %.0f, found %s", name, least, most,
                  text ? text : "nothing");
    return value;
}

double bench_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
