/* SPDX-License-Identifier: Apache-2.0 */
/* An open engine: the verified mapping, its tokenizer and what the load was like. Read-only after eng_open, shared by
 * reference count between the caller, its sessions and its text streams. */
#ifndef RUNTIME_LOAD_LOAD_H
#define RUNTIME_LOAD_LOAD_H

#include <stdatomic.h>
#include <unistd.h>

#include "formats/engine/engine_file.h"
#include "formats/tokenizer/tokenizer.h"
#include "runtime/load/host_memory.h"
#include "runtime/load/report.h"

struct eng_engine {
    pid_t process; /* that opened it */
    atomic_uint references;
    char *path;
    struct engine file;
    bool file_open;
    bool no_libraries;               /* as in struct eng_open_options */
    struct host_memory weights;      /* private_weights: a copy of the file's, which is closed */
    struct tokenizer *tokenizer;     /* NULL if the engine has none */
    struct load_cuda *cuda;          /* [rank_count]: where an engine for GPUs lies (load_cuda.h); NULL: on the host */
    uint32_t first_rank, rank_count; /* of this process: all, unless process_group is set */
    atomic_bool has_heard;           /* load_hear_of_others has waited */
    atomic_bool rank_failed;         /* of this process, while others of it wait for it to join or to make a session */
    uint64_t noted_steps;            /* of all sessions, for process_group_note */
    struct process_group *process_group; /* the processes that share the ranks (group.h); NULL: this one has all */
    atomic_bool is_lost;                 /* one of its GPUs hangs: nothing on them is given back any more */
    atomic_bool ranks_taken;             /* by the one session that an engine for several GPUs may have */
    size_t decode_plans;                 /* file.plans begins with these, the rest is for prefill */
    struct plan_space_sizes space_sizes;
    char *info; /* JSON text */
    int load_threads;
    double open_seconds, verify_seconds;
};

/* That share the engine's ranks. */
static inline uint32_t load_processes(const struct eng_engine *engine)
{
    return (uint32_t)plan_ranks(&engine->file.manifest.geometry) / engine->rank_count;
}

/* This process is a child, made by fork, of the one that opened the engine: it has the memory, and neither threads nor GPUs. */
static inline bool load_is_inherited(const struct eng_engine *engine) { return engine->process != getpid(); }

void load_retain(struct eng_engine *engine);
void load_release(struct eng_engine *engine);

int32_t chat_end_token(const struct eng_engine *engine); /* chat.c: the token that ends an answer, -1: none */

/* Of a failure in this process, which all others would wait for; where it follows from one of theirs, that is what *status
 * says from now on. One process: nothing. */
void load_tell_others(const struct eng_engine *engine, struct status *status);

/* After a failure that one in another process may have caused: waits until there is word of it, for a second at most and
 * once. */
void load_hear_of_others(struct eng_engine *engine);

/* Weights that are used where the file is mapped are those that were verified: false once somebody has written into it or
 * cut it. True where weights are elsewhere. */
bool load_weights_unchanged(const struct eng_engine *engine, struct status *status);

double load_seconds(void); /* monotonic clock */

/* Everything a session relies on when it replays plans: they fit the manifest, every launch satisfies its op, every
 * index that a launch reads is one that the runtime fills. (Of launches on a device engine_open has checked what can be
 * known without the device.) */
bool load_check_plans(const struct engine *file, size_t *decode_plans, struct plan_space_sizes *sizes,
                      struct status *status);
/* Brings the weights into memory and compares every chunk's hash, by `threads` threads (0: all processors). copy NULL, or
 * where there is room for all weights: they are copied there, and the copies compared. */
bool load_check_weights(const struct engine *file, uint8_t *copy, uint32_t threads, int *used_threads, double *seconds,
                        struct status *status);

#endif
