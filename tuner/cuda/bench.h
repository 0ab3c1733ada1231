/* SPDX-License-Identifier: Apache-2.0 */
/* The bench on which tactics race: memory with the engine's weights and random activations, chains of launches in graphs,
 * the ceilings of the GPU. */
#ifndef TUNER_CUDA_BENCH_H
#define TUNER_CUDA_BENCH_H

#include <pthread.h>

#include "kernels/cuda/plan/device_plan.h"
#include "tuner/cuda/memory.h"
#include "tuner/race.h"
#include "tuner/records.h"

struct cuda_bench {
    const struct cuda_rig *rig;
    uint32_t rank;             /* on whose GPU, with whose weights */
    struct kernel_set *shared; /* borrowed: the kernels and calls of all benches, and their lock */
    pthread_mutex_t *lock;
    struct cuda_memory memory;
    struct cuda_kernels kernels; /* the shared ones, once loaded */
    struct cuda_calls calls;     /* of the candidates */
    bool ceiling_is_sure;        /* measured over memory that no cache holds */
    double read_bytes_per_us;    /* of device memory, measured by a copy */
    double flops_per_us;
};

enum {
    BENCH_MAX_SITES = 64, /* launches that a measurement walks through */
    BENCH_MAX_TACTICS = 160,
    BENCH_CONTEXT = 4096, /* at which the bytes and operations of decode attention are counted */
};

/* Ops whose time depends on how many tokens a sequence has: one plan serves every context. */
static inline bool bench_reads_context(enum plan_op op) { return op == OP_ROPE_ATTENTION; }
/* Ops of which a race says little. Of attention, what it leaves to the launches around it decides, and a plan weighs long
 * contexts differently; in the race of a collective the rank is alone: there is no link. */
static inline bool bench_says_little(enum plan_op op) { return bench_reads_context(op) || plan_op_is_collective(op); }

/* Launches that compute the same thing on different weights, and the ways to do it. */
struct bench_problem {
    enum plan_op op;
    const struct device_plan *plan; /* whose launches the sites are */
    const struct device_launch *sites[BENCH_MAX_SITES];
    int site_count;
    const struct device_tactic *tactics; /* borrowed, of kernels that are loaded or of libraries that are open */
    int tactic_count;                    /* at most BENCH_MAX_TACTICS */
};

/* Takes memory on a rank's GPU, of whose arena the first scratch_bytes stay zero, and measures the ceilings. Its context must be
 * current; likewise below. Benches of different ranks may be used by a thread each. */
bool cuda_bench_open(struct cuda_bench *bench, const struct cuda_rig *rig, uint32_t rank, uint64_t scratch_bytes,
                     struct kernel_set *shared, pthread_mutex_t *lock, struct status *status);
void cuda_bench_close(struct cuda_bench *bench); /* harmless on one that is all zero */
/* Loads what the shared set holds, in place of what was loaded before. */
bool cuda_bench_load(struct cuda_bench *bench, struct status *status);

/* Fewest microseconds that the GPU could take for `bytes` and `flops`. */
double cuda_bench_roofline(const struct cuda_bench *bench, uint64_t bytes, uint64_t flops);

/* Races the tactics; a tactic that this GPU cannot take is out. Fails if all are: the last one's reason is told. */
bool cuda_bench_race(struct cuda_bench *bench, const struct bench_problem *problem, enum tune_level level,
                     struct race_result *result, struct status *status);
/* Microseconds that the race takes, for estimates of the time left. */
double cuda_bench_expected_us(const struct cuda_bench *bench, const struct bench_problem *problem,
                              enum tune_level level);

#endif
