/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models from the command line: FILE or NAME=FILE. */
#ifndef RUNTIME_SERVER_SERVER_NAMES_H
#define RUNTIME_SERVER_SERVER_NAMES_H

#include "formats/base/status.h"

enum { SERVER_NAME_BYTES = 129 };

struct server_name {
    char name[SERVER_NAME_BYTES]; /* of letters, digits, '.', '_', '-', ':' and '/' */
    const char *path;             /* borrowed from the argument */
};

/* Without NAME, a file's name is that of its last component without ".eng". */
bool server_name_read(const char *argument, struct server_name *name, struct status *status);

#endif
