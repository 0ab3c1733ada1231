/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that compile kernels beside this one. The threads of one process wait for each other in NVRTC: sixteen of them compile no more
 * kernels a second than eight, and sixteen processes nearly twice as many (NVRTC of CUDA 13.0, 16 cores). */
#ifndef KERNELS_CUDA_COMPILE_WORKERS_H
#define KERNELS_CUDA_COMPILE_WORKERS_H

#include "kernels/cuda/nvrtc.h"

enum { COMPILE_THREADS_OF_A_PROCESS = 8, COMPILE_MOST_WORKERS = 56 };

struct compile_workers;

/* Starts `count` processes of the program at `program`, at most COMPILE_MOST_WORKERS, with the words `first` and `cache` ("": none): its
 * main function calls compile_worker_run. Fewer, or NULL, where the system has no more. They end with compile_workers_stop, or when this
 * process ends. */
struct compile_workers *compile_workers_start(const char *program, const char *first, const char *cache, int count);
void compile_workers_stop(struct compile_workers *workers);
int compile_workers_count(const struct compile_workers *workers); /* of NULL 0 */

/* As nvrtc_compile, by worker `number`, which one thread uses at a time. *is_lost: the process has ended, does not follow the protocol or
 * lacks what it needs, and nothing was compiled; the caller compiles by itself. */
bool compile_workers_compile(struct compile_workers *workers, int number, const struct device_kernel *kernel,
                             const int64_t *params, int capability, void **cubin, size_t *size, bool *is_lost,
                             struct status *status);

/* A worker: takes requests from file descriptor 0 until that is closed. Returns the exit code of the process. */
int compile_worker_run(const struct device_source *sources, size_t source_count, const char *cache);

#endif
