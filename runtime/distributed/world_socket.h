/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets at "host:port" for runtime/world: they never block, are closed on exec and send small frames at once. */
#ifndef RUNTIME_DISTRIBUTED_WORLD_SOCKET_H
#define RUNTIME_DISTRIBUTED_WORLD_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"

/* Since some time in the past, never going back. */
int64_t world_clock_ms(void);

/* At the first address of the host that other machines may reach or, if there is none and has_several_machines is not set, at
 * one of this machine alone. *descriptor is the caller's to close; what it accepts inherits TCP_NODELAY alone. */
bool world_socket_listen(const char *address, bool has_several_machines, int *descriptor, struct status *status);

/* Tries again while nobody listens, for longest_ms. *descriptor is the caller's to close. */
bool world_socket_connect(const char *address, int64_t longest_ms, int *descriptor, struct status *status);

#endif
