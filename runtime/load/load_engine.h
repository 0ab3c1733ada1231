/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an open engine, and what its parts need of each other while they load: a clock, and reports of failures to
 * other processes. */
#ifndef RUNTIME_LOAD_LOAD_ENGINE_H
#define RUNTIME_LOAD_LOAD_ENGINE_H

#include <stdatomic.h>
#include <unistd.h>

#include "formats/engine/engine_file.h"
#include "formats/grammar/grammar.h"
#include "formats/tokenizer/tokenizer.h"
#include "runtime/load/host_memory.h"
#include "runtime/load/log.h"
#include "runtime/load/progress.h"
#include "runtime/load/report.h"

struct eng_engine {
    pid_t process; /* that opened the engine */
    atomic_uint references;
    char *path;
    struct engine file;
    bool file_open;
    struct load_progress progress;         /* of eng_open */
    struct load_log log;                   /* the caller's, for what becomes of engine and sessions */
    struct host_memory_hooks memory_hooks; /* the caller's, for large memory */
    bool no_libraries;                     /* as in struct eng_open_options */
    struct host_memory weights;            /* private_weights: copy of the weights, whose file is closed */
    struct tokenizer *tokenizer;           /* NULL: the engine has none */
    struct grammar_vocabulary *vocabulary; /* its tokens for grammars; NULL until one is made */
    struct load_cuda *cuda;                /* [rank_count]: engines for GPUs (load_gpu.h); NULL: processors */
    uint32_t first_rank, rank_count;       /* ranks of this process: all, unless process_group is set */
    atomic_bool has_heard;                 /* load_hear_of_others has waited */
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

/* Reports a failure of this process to the others. If one of them has failed before, *status becomes that failure. Does
 * nothing if this process has all ranks. */
void load_tell_others(const struct eng_engine *engine, struct status *status);

/* After a failure that another process may have caused: waits until its report has arrived, at most one second, and
 * only once. */
void load_hear_of_others(struct eng_engine *engine);

double load_seconds(void); /* monotonic clock */

#endif
