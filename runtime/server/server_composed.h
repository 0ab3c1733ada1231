/* SPDX-License-Identifier: Apache-2.0 */
/* The format of an answer that is either calls of tools, written as the model's dialect has them, or a text of another format. */
#ifndef RUNTIME_SERVER_SERVER_COMPOSED_H
#define RUNTIME_SERVER_SERVER_COMPOSED_H

#include "runtime/server/server_dialects.h"
#include "runtime/server/server_tools.h"

/* Replaces *format. 400 if the dialect writes arguments in a way that no grammar here has. Requires: format->field is set, there are
 * tools, and dialect->name is set. */
bool server_composed_format(const struct server_dialect *dialect, const struct server_tools *tools,
                            struct server_format *format, struct server_error *error);

#endif
