/* SPDX-License-Identifier: Apache-2.0 */
/* What a router would have left for a matmul over experts that races without one. */
#ifndef TUNER_CUDA_BENCH_CHOICES_H
#define TUNER_CUDA_BENCH_CHOICES_H

#include "tuner/cuda/bench.h"

/* Writes routes and lists for all launches of the problem: each row has experts of its own, all experts about as many rows. Does
 * nothing for other problems. */
bool bench_write_choices(const struct cuda_bench *bench, const struct bench_problem *problem, struct status *status);

#endif
