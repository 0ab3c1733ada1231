/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronisation of ranks on processors in a collective: each has written its data to its own exchange buffer,
 * announces it, and waits until all others have announced theirs. Ranks are threads of one process, or of several that
 * share the memory. */
#ifndef KERNELS_CPU_RENDEZVOUS_H
#define KERNELS_CPU_RENDEZVOUS_H

#include "formats/engine/plan.h"
#include "kernels/cpu/team.h"

/* Initialises the header of rank `rank`. Only its own entry of `peers` is set; the loader sets the others on every rank
 * before the first comm_meet. timeout_ns: limit of one wait, 0 for COMM_TIMEOUT_NS. */
void comm_header_init(struct comm_header *header, uint32_t rank, uint32_t ranks, uint64_t timeout_ns);
#define COMM_TIMEOUT_NS UINT64_C(10000000000)

/* Waits for all other ranks; called by one thread of each rank. Stores of a rank before its call are visible to
 * every rank after its own call. False if a rank has failed (header.stop) or did not arrive in time: on the rank
 * that noticed first, header.timed_out is then 1 + that rank. All ranks are told to stop, and the results of the
 * collective are invalid. */
bool comm_meet(struct comm_header *header);

/* comm_meet for a team; called by every member of it. Stores of all members before the call are visible to all members
 * of all ranks after it. */
bool comm_meet_team(struct comm_header *header, struct team_member *member);

/* Tells all ranks that this one is connected to, and itself, to stop: waits return at once. Any thread. */
void comm_stop(struct comm_header *header);

/* The buffer of rank `rank` at the same offset as `own`, a buffer in this rank's COMM space. */
static inline void *comm_peer(const struct comm_header *header, const void *own, uint32_t rank)
{
    uintptr_t offset = (uintptr_t)own - (uintptr_t)header;
    return (void *)((uintptr_t)header->peers[rank] + offset); /* NOLINT: an address stored by the loader */
}

#endif
