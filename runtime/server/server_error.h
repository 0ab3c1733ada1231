/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of a request, as the client of an OpenAI-compatible server receives them. */
#ifndef RUNTIME_SERVER_SERVER_ERROR_H
#define RUNTIME_SERVER_SERVER_ERROR_H

#include <stdbool.h>

#include "formats/base/status.h"
#include "runtime/eng.h"

enum { SERVER_PARAM_BYTES = 96 };

struct server_error {
    unsigned http;                  /* status code of HTTP; 0: no failure */
    const char *code;               /* constant; NULL: null in the reply */
    char param[SERVER_PARAM_BYTES]; /* the field; "": none */
    char message[STATUS_MESSAGE_BYTES];
};

/* Sets all members (param NULL: none). Texts are truncated to fit, and bytes that are not UTF-8 become '?'. Returns
 * false. */
bool server_fail(struct server_error *error, unsigned http, const char *code, const char *param, const char *format,
                 ...) __attribute__((format(printf, 5, 6)));
/* A failure of the library, with the code of HTTP that fits; of another part of the project. */
bool server_fail_eng(struct server_error *error, const char *param, const struct eng_error *cause);
bool server_fail_status(struct server_error *error, const char *param, const struct status *cause);
bool server_fail_memory(struct server_error *error);

/* "type" of OpenAI's error object for a status code of HTTP. */
const char *server_error_type(unsigned http);

#endif
