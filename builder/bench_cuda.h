/* SPDX-License-Identifier: Apache-2.0 */
/* The bench on which tactics race: memory with the engine's weights and random activations, chains of launches in graphs,
 * the ceilings of the GPU. Private to build*.c. */
#ifndef BUILDER_BENCH_CUDA_H
#define BUILDER_BENCH_CUDA_H

#include <pthread.h>

#include "builder/cuda_memory.h"
#include "tuner/race.h"

struct bench_cuda {
    struct build *build;
    uint32_t rank;         /* on whose GPU, with whose weights */
    pthread_mutex_t *lock; /* borrowed: of build->cuda.kernels, which the benches share */
    struct cuda_memory memory;
    struct cuda_kernels kernels; /* build->cuda.kernels, once loaded */
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

/* Launches that compute the same thing on different weights, and the ways to do it. */
struct bench_problem {
    enum plan_op op;
    const struct device_plan *plan; /* whose launches the sites are */
    const struct device_launch *sites[BENCH_MAX_SITES];
    int site_count;
    const struct device_tactic *tactics; /* borrowed, of kernels that are loaded or of libraries that are open */
    int tactic_count;                    /* at most BENCH_MAX_TACTICS */
};

/* Takes memory on a rank's GPU and measures the ceilings. Its context must be current; likewise below. Benches of different
 * ranks may be used by a thread each. */
bool bench_cuda_open(struct bench_cuda *bench, struct build *build, uint32_t rank, pthread_mutex_t *lock,
                     struct status *status);
void bench_cuda_close(struct bench_cuda *bench); /* harmless on one that is all zero */
/* Loads what build->cuda.kernels holds, in place of what was loaded before. */
bool bench_cuda_load(struct bench_cuda *bench, struct status *status);

/* Fewest microseconds that the GPU could take for `bytes` and `flops`. */
double bench_cuda_roofline(const struct bench_cuda *bench, uint64_t bytes, uint64_t flops);

/* Races the tactics; a tactic that this GPU cannot take is out. Fails if all are: the last one's reason is told. */
bool bench_cuda_race(struct bench_cuda *bench, const struct bench_problem *problem, enum tune_level level,
                     struct race_result *result, struct status *status);
/* Microseconds that the race takes, for estimates of the time left. */
double bench_cuda_expected_us(const struct bench_cuda *bench, const struct bench_problem *problem,
                              enum tune_level level);

#endif
