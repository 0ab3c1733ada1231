/* SPDX-License-Identifier: Apache-2.0 */
/* Bench for racing tactics: device memory with the engine's weights and random activations, graphs of launch chains,
 * and the measured ceilings of the GPU. */
#ifndef TUNER_CUDA_BENCH_H
#define TUNER_CUDA_BENCH_H

#include <pthread.h>

#include "kernels/cuda/plan/device_plan.h"
#include "tuner/cuda/memory.h"
#include "tuner/race.h"
#include "tuner/records.h"

struct cuda_bench {
    const struct cuda_rig *rig;
    uint32_t rank;             /* its GPU and its weights are used */
    struct kernel_set *shared; /* borrowed: the kernels and calls of all benches, and their lock */
    pthread_mutex_t *lock;
    struct cuda_memory memory;
    struct cuda_kernels kernels; /* the shared ones, once loaded */
    struct cuda_calls calls;     /* of the candidates */
    bool ceiling_is_sure;        /* measured over more memory than the caches hold */
    double read_bytes_per_us;    /* of device memory, measured by a copy */
    double flops_per_us;
};

enum {
    BENCH_MAX_SITES = 64, /* launches that a measurement walks through */
    BENCH_MAX_TACTICS = 160,
    BENCH_CONTEXT = 4096, /* context length for which bytes and operations of decode attention are counted */
};

/* Ops whose time depends on the number of tokens in a sequence. One plan serves every context. */
static inline bool bench_reads_context(enum plan_op op) { return op == OP_ROPE_ATTENTION; }
/* Ops for which a race predicts little. The effect of attention on its neighbouring launches dominates, and a plan
 * weighs long contexts differently. A collective races on one rank, without any link. */
static inline bool bench_says_little(enum plan_op op) { return bench_reads_context(op) || plan_op_is_collective(op); }

/* Launches that compute the same op on different weights, and the tactics that can compute it. */
struct bench_problem {
    enum plan_op op;
    const struct device_plan *plan; /* contains the sites */
    const struct device_launch *sites[BENCH_MAX_SITES];
    int site_count;
    const struct device_tactic *tactics; /* borrowed, of kernels that are loaded or of libraries that are open */
    int tactic_count;                    /* at most BENCH_MAX_TACTICS */
};

/* Allocates memory on a rank's GPU and measures the ceilings. The first scratch_bytes of the arena stay zero. Requires,
 * here and below: the GPU's context is current. Different threads may use benches of different ranks. */
bool cuda_bench_open(struct cuda_bench *bench, const struct cuda_rig *rig, uint32_t rank, uint64_t scratch_bytes,
                     struct kernel_set *shared, pthread_mutex_t *lock, struct status *status);
void cuda_bench_close(struct cuda_bench *bench); /* harmless on one that is all zero */
/* Loads the kernels and calls of the shared set; unloads those loaded before. */
bool cuda_bench_load(struct cuda_bench *bench, struct status *status);

/* Lower bound in microseconds of a launch of the tactic on this GPU, at BENCH_CONTEXT. Tensor cores multiply codes of 8 bits twice as
 * fast as 16-bit values. */
double cuda_bench_roofline(const struct cuda_bench *bench, const struct device_tactic *tactic);

/* Races the tactics. A tactic that cannot run on this GPU is dropped. Fails with the reason of the last one if none can
 * run. */
bool cuda_bench_race(struct cuda_bench *bench, const struct bench_problem *problem, enum tune_level level,
                     struct race_result *result, struct status *status);
/* Estimated microseconds of the race, for the estimate of the time left. */
double cuda_bench_expected_us(const struct cuda_bench *bench, const struct bench_problem *problem,
                              enum tune_level level);

#endif
