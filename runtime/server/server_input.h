/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the body of a request in the shape of its API. */
#ifndef RUNTIME_SERVER_SERVER_INPUT_H
#define RUNTIME_SERVER_SERVER_INPUT_H

#include "runtime/server/server_request.h"

/* Reads body[size]. The caller releases *request with server_request_free, also after a failure. counts: only the tokens of the
 * prompt are asked for. */
bool server_input_read(enum server_shape shape, enum server_endpoint endpoint, bool counts, const char *body,
                       size_t size, struct server_request *request, struct server_error *error);
/* Gives the field that a failure names the name that it has in the API, where bodies are read as those of chats. */
void server_input_rename(enum server_shape shape, struct server_error *error);

#endif
