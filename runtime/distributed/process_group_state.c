/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/distributed/process_group_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

void process_group_add_due(struct process_group *group, enum frame_type type)
{
    for (uint32_t i = 0; i < MOST_PEERS; i++)
        if (group->peers[i].is_known) group->peers[i].due |= 1u << type;
}

void process_group_close_peer(struct peer *peer)
{
    close(peer->descriptor);
    peer->descriptor = -1;
}

void process_group_set_failed(struct process_group *group, enum status_code code, const char *format, ...)
{
    if (atomic_load(&group->has_failed)) return;
    char message[STATUS_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    status_fail(&group->failure, code, "%s", message); /* replaces control characters */
    atomic_store(&group->has_failed, true);
    process_group_add_due(group, FRAME_FAIL);
    pthread_cond_broadcast(&group->changed);
    eventfd_write(group->waker, 1);
}
