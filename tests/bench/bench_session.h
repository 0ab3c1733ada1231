/* SPDX-License-Identifier: Apache-2.0 */
/* What benches of sessions share: how they end, and how they read their flags. */
#ifndef TESTS_BENCH_BENCH_SESSION_H
#define TESTS_BENCH_BENCH_SESSION_H

#include "runtime/eng.h"

enum bench_exit { BENCH_DIFFERS = 1, BENCH_USAGE = 2, BENCH_MACHINE = 3 };

/* Prints the message after the program's name and ends the process. */
__attribute__((format(printf, 2, 3), noreturn)) void bench_end(enum bench_exit code, const char *format, ...);

/* Ends the process unless the call succeeds, which names `error` as its last argument. */
#define CHECK(call)                                                          \
    do {                                                                     \
        struct eng_error error;                                              \
        if ((call) != ENG_OK) bench_end(BENCH_MACHINE, "%s", error.message); \
    } while (0)

/* The number that follows the flag `name`; text NULL: nothing does. */
double bench_number(const char *name, const char *text, double least, double most);

/* Seconds of a clock that only advances. */
double bench_seconds(void);

#endif
