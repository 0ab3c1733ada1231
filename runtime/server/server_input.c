/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_input.h"

#include <string.h>

#include "runtime/server/server_messages_read.h"
#include "runtime/server/server_responses_read.h"

bool server_input_read(enum server_shape shape, enum server_endpoint endpoint, bool counts, const char *body,
                       size_t size, struct server_request *request, struct server_error *error)
{
    json_t *value = NULL, *chat = NULL, *echo = NULL;
    *request = (struct server_request){.endpoint = endpoint};
    if (shape == SERVER_OPENAI) return server_request_read(endpoint, body, size, request, error);
    bool ok = server_request_parse(body, size, &value, error) &&
              (shape == SERVER_MESSAGES ? server_messages_read(value, counts, &chat, error)
                                        : server_responses_read(value, &chat, &echo, error));
    const enum server_thinking thinking =
        ok && shape == SERVER_MESSAGES ? server_messages_thinking(value) : SERVER_THINKING_FREE;
    json_decref(value);
    if (ok && !server_request_read_value(endpoint, chat, request, error)) {
        server_input_rename(shape, error);
        ok = false;
    }
    request->shape = shape;
    request->thinking = thinking;
    request->echo_body = echo;
    return ok;
}

void server_input_rename(enum server_shape shape, struct server_error *error)
{
    const size_t size = strlen(error->param);
    const char *own = shape == SERVER_MESSAGES    ? server_messages_field(error->param)
                      : shape == SERVER_RESPONSES ? server_responses_field(error->param)
                                                  : NULL;
    if (!own || strcmp(own, error->param) == 0) return;
    const struct server_error found = *error;
    const bool is_named = strncmp(found.message, found.param, size) == 0 && found.message[size] == ':';
    server_fail(error, found.http, found.code, own, "%s%s", is_named ? own : "", found.message + (is_named ? size : 0));
}
