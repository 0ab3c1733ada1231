/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of a process group, which its callers and its internals share. */
#ifndef RUNTIME_DISTRIBUTED_PROCESS_GROUP_LIMITS_H
#define RUNTIME_DISTRIBUTED_PROCESS_GROUP_LIMITS_H

enum {
    PROCESS_GROUP_MOST_PROCESSES = 16,
    PROCESS_GROUP_GATHER_BYTES = 64 << 10, /* limit of one gather, for each process */
    PROCESS_GROUP_NOTE_STEPS = 64,         /* only notes of multiples of this step are compared */
};

#endif
