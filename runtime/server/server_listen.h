/* SPDX-License-Identifier: Apache-2.0 */
/* The socket on which the server listens. */
#ifndef RUNTIME_SERVER_SERVER_LISTEN_H
#define RUNTIME_SERVER_SERVER_LISTEN_H

#include "formats/base/status.h"

enum { SERVER_URL_BYTES = 128 };

struct server_address {
    int descriptor;
    bool is_loopback; /* only this machine can reach it */
    char url[SERVER_URL_BYTES];
};

/* port 0: the system chooses one, which the url has. */
bool server_listen(const char *host, unsigned port, struct server_address *address, struct status *status);

/* Raises this process's limit of open files to `descriptors` if it is lower. */
bool server_allow_descriptors(unsigned long descriptors, struct status *status);

#endif
