/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets for process groups. They never block, are closed on exec and send small frames at once (TCP_NODELAY). */
#ifndef RUNTIME_DISTRIBUTED_PROCESS_GROUP_SOCKET_H
#define RUNTIME_DISTRIBUTED_PROCESS_GROUP_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"

/* Monotonic. */
int64_t process_group_clock_ms(void);

/* Listens at the first address of "host:port" that is no loopback address or, without has_several_machines, at a
 * loopback address if there is no other. The caller closes *descriptor. Accepted sockets inherit TCP_NODELAY, not the
 * other flags. */
bool process_group_socket_listen(const char *address, bool has_several_machines, int *descriptor,
                                 struct status *status);

/* Connects to "host:port", trying again for longest_ms while no process listens. The caller closes *descriptor. */
bool process_group_socket_connect(const char *address, int64_t longest_ms, int *descriptor, struct status *status);

#endif
