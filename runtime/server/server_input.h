/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the body of a request in the shape of its API. */
#ifndef RUNTIME_SERVER_SERVER_INPUT_H
#define RUNTIME_SERVER_SERVER_INPUT_H

#include "runtime/server/server_request.h"

/* Reads body[size]. The caller releases *request with server_request_free, also after a failure. counts: only the tokens of the
 * prompt are asked for. */
bool server_input_read(enum server_shape shape, enum server_endpoint endpoint, bool counts, const char *body,
                       size_t size, struct server_request *request, struct server_error *error);
/* Replaces the chat's name of a field in a failure by the API's: for failures of what was read. Those of server_input_read have the names
 * that the client wrote. */
void server_input_rename(enum server_shape shape, struct server_error *error);

#endif
