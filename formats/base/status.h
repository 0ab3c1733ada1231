/* SPDX-License-Identifier: Apache-2.0 */
/* The only error type of the project: a pinned code and a formatted message.
 *
 * A function that can fail returns false after filling the caller's `struct status`; it never prints or exits. Messages
 * say what, where, expected, found and what to do. */
#ifndef FORMATS_BASE_STATUS_H
#define FORMATS_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

/* Part of the public ABI (runtime/eng.h has the same numbers, with static asserts): never changed or reused. */
enum status_code {
    STATUS_OK = 0,
    STATUS_BAD_INPUT = 1,   /* a file, a prompt or a value in them is wrong                        */
    STATUS_USAGE = 2,       /* the caller called wrongly: flag, argument, NULL, wrong struct size  */
    STATUS_MACHINE = 3,     /* this machine cannot: no GPU, memory, disk, driver, instruction set  */
    STATUS_INTERNAL = 4,    /* a defect of ours                                                    */
    STATUS_NOT_FOUND = 5,   /* a file that was named does not exist                                */
    STATUS_CORRUPT = 6,     /* an engine file fails its checks                                     */
    STATUS_VERSION = 7,     /* an engine file of a version or target that this library cannot run  */
    STATUS_FULL = 8,        /* no free slot or page now; later it may work                         */
    STATUS_TOO_LONG = 9,    /* a prompt or sequence exceeds the engine's context                   */
    STATUS_NOT_FINITE = 10, /* the model's logits are NaN or infinite: no token can be drawn     */
    STATUS_CANCELLED = 11,  /* the caller's function asked to stop                                 */
};

enum { STATUS_MESSAGE_BYTES = 512 };

struct status {
    enum status_code code;
    char message[STATUS_MESSAGE_BYTES]; /* NUL-terminated UTF-8, one line without newline */
};

/* Sets code and message (truncated to fit). Returns false, for `return status_fail(...)`. */
bool status_fail(struct status *status, enum status_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the existing message (truncated to fit). Returns false. */
bool status_prefix(struct status *status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like status_fail, followed by ": " and the text of errno `error_number`. ENOENT gives STATUS_NOT_FOUND; ENOSPC,
 * EDQUOT, ENOMEM, EMFILE, ENFILE, EIO and EROFS give STATUS_MACHINE; others give `code`. */
bool status_fail_errno(struct status *status, enum status_code code, int error_number, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Sets STATUS_OK and an empty message. */
void status_clear(struct status *status);

/* The exit code of a process with this status: 0 done, 1 input, 2 usage, 3 machine, 4 internal. */
int status_exit_code(const struct status *status);

/* Short constant name of a code ("bad input", "corrupt engine", ...). */
const char *status_code_name(enum status_code code);

#endif
