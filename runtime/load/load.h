/* SPDX-License-Identifier: Apache-2.0 */
/* An open engine: the verified mapping, its tokenizer and facts of the load. Read-only after eng_open;
 * reference-counted by the caller, sessions and text streams. */
#ifndef RUNTIME_LOAD_LOAD_H
#define RUNTIME_LOAD_LOAD_H

#include <stdatomic.h>
#include <unistd.h>

#include "formats/engine/engine_file.h"
#include "formats/tokenizer/tokenizer.h"
#include "runtime/load/host_memory.h"
#include "runtime/load/report.h"

struct eng_engine {
    pid_t process; /* that opened the engine */
    atomic_uint references;
    char *path;
    struct engine file;
    bool file_open;
    bool no_libraries;               /* as in struct eng_open_options */
    struct host_memory weights;      /* private_weights: copy of the weights, whose file is closed */
    struct tokenizer *tokenizer;     /* NULL: the engine has none */
    struct load_cuda *cuda;          /* [rank_count]: engines for GPUs (load_cuda.h); NULL: processors */
    uint32_t first_rank, rank_count; /* ranks of this process: all, unless process_group is set */
    atomic_bool has_heard;           /* load_hear_of_others has waited */
    atomic_bool
        rank_failed; /* a rank of this process has failed while others may wait for it to join or to create a session */
    uint64_t noted_steps;                /* of all sessions, for process_group_note */
    struct process_group *process_group; /* the processes that share the ranks; NULL: this one has all */
    atomic_bool is_lost;                 /* one of its GPUs hangs: memory on them is no longer released */
    atomic_bool ranks_taken;             /* the one session that an engine for several GPUs may have exists */
    size_t decode_plans;                 /* plans before this index decode, the others prefill */
    struct plan_space_sizes space_sizes;
    char *info; /* JSON text */
    int load_threads;
    double open_seconds, verify_seconds;
};

/* Processes that share the engine's ranks. */
static inline uint32_t load_processes(const struct eng_engine *engine)
{
    return (uint32_t)plan_ranks(&engine->file.manifest.geometry) / engine->rank_count;
}

/* Whether this process is a child, made by fork, of the one that opened the engine: it has the memory, but neither
 * threads nor GPUs. */
static inline bool load_is_inherited(const struct eng_engine *engine) { return engine->process != getpid(); }

void load_retain(struct eng_engine *engine);
void load_release(struct eng_engine *engine);

int32_t chat_end_token(const struct eng_engine *engine); /* chat.c: the token that ends an answer; -1: none */

/* Reports a failure of this process to the others. If one of them has failed before, *status becomes that failure. Does
 * nothing if this process has all ranks. */
void load_tell_others(const struct eng_engine *engine, struct status *status);

/* After a failure that another process may have caused: waits until its report has arrived, at most one second, and
 * only once. */
void load_hear_of_others(struct eng_engine *engine);

/* False if the file of weights that are used in the page cache has been written or truncated since they were
 * verified. */
bool load_weights_unchanged(const struct eng_engine *engine, struct status *status);

double load_seconds(void); /* monotonic clock */

/* Checks all that a session relies on when it replays plans: they fit the manifest, every launch satisfies its op, and
 * every index that a launch reads is one that the runtime fills. Launches on devices are checked by engine_open, as far
 * as possible without the device. */
bool load_check_plans(const struct engine *file, size_t *decode_plans, struct plan_space_sizes *sizes,
                      struct status *status);
/* Reads the weights into memory and compares every chunk's hash, with `threads` threads (0: one per processor). copy:
 * NULL, or memory for all weights, into which they are copied; the hash is then that of the copy. */
bool load_check_weights(const struct engine *file, uint8_t *copy, uint32_t threads, int *used_threads, double *seconds,
                        struct status *status);

#endif
