/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks on processors meet in a collective: each has put its data into its own exchange buffer, says so, and waits
 * for all others to have said so. Ranks are threads of one process (or of several that share the memory). */
#ifndef KERNELS_CPU_RENDEZVOUS_H
#define KERNELS_CPU_RENDEZVOUS_H

#include "formats/engine/plan.h"
#include "kernels/cpu/team.h"

/* Fills the header of rank `rank`, which is connected to itself alone: of `peers`, the others are 0. The loader sets them, on
 * every rank, before any of them meets another.
 * timeout_ns: how long a wait may take, 0 for COMM_TIMEOUT_NS. */
void comm_header_init(struct comm_header *header, uint32_t rank, uint32_t ranks, uint64_t timeout_ns);
#define COMM_TIMEOUT_NS UINT64_C(10000000000)

/* By one thread of each rank. What the rank stored before is visible to every rank behind its own call. False when a
 * rank has failed (header.stop) or is late: then header.late says which on the rank that noticed first, all ranks are
 * told to stop, and what the collective gives is garbage. */
bool comm_meet(struct comm_header *header);

/* By every member of the rank's team: all of them before, one of them in comm_meet, all of them behind. */
bool comm_meet_team(struct comm_header *header, struct team_member *member);

/* Tells all ranks that this one is connected to, itself among them, to give up: those that wait return at once. From any
 * thread. */
void comm_stop(struct comm_header *header);

/* The buffer of rank `rank` that is at the place of `own`, a buffer in this rank's COMM space. */
static inline void *comm_peer(const struct comm_header *header, const void *own, uint32_t rank)
{
    uintptr_t offset = (uintptr_t)own - (uintptr_t)header;
    return (void *)((uintptr_t)header->peers[rank] + offset); /* NOLINT: an address that the loader put there */
}

#endif
