/* SPDX-License-Identifier: Apache-2.0 */
/* Admission to a process group: which connections become its members. Requires, for all functions: the group's lock is
 * held. */
#ifndef RUNTIME_DISTRIBUTED_PROCESS_GROUP_ADMIT_H
#define RUNTIME_DISTRIBUTED_PROCESS_GROUP_ADMIT_H

#include "runtime/distributed/process_group_state.h"

/* The first frame of a process; process 0 sends it when all have joined. */
void process_group_admit_make_hello(const struct process_group *group, struct hello *hello);

/* Process 0: accepts pending connections. */
void process_group_admit_accept(struct process_group *group, int64_t now);
/* Process 0: whether a stranger may send the frame whose header has arrived; if not, it is disconnected. */
bool process_group_admit_expects(struct process_group *group, struct peer *stranger);
/* Process 0: handles a hello or a proof. The stranger becomes the peer of its number, is sent a challenge, or is sent
 * the reason of its refusal. */
void process_group_admit_take(struct process_group *group, struct peer *stranger);
/* Process 0: disconnects a stranger and, unless it was refused with a message, notes the reason. */
void process_group_admit_send_away(struct process_group *group, struct peer *stranger, const char *why);
/* Text "; 2 connections were refused, last: ...", or empty. */
void process_group_admit_describe(const struct process_group *group, char *text, size_t bytes);

/* Other processes: whether process 0 may send this frame now; handling of its challenge or proof. */
bool process_group_admit_expects_of_first(const struct process_group *group, const struct peer *first);
void process_group_admit_take_of_first(struct process_group *group, struct peer *first);

#endif
