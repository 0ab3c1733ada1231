/* SPDX-License-Identifier: Apache-2.0 */
/* Named ranges for profilers (NVTX), without the toolkit: a tool such as Nsight Systems names its library in the
 * environment variable NVTX_INJECTION64_PATH, and the library asks this program for the functions that it wants to be
 * told of. Without a tool nothing is loaded and a range costs one comparison. */
#ifndef KERNELS_CUDA_NVTX_H
#define KERNELS_CUDA_NVTX_H

#include <stdbool.h>
#include <stdint.h>

/* Loads the tool's library, once in a process. Before any other thread calls the functions below. */
void nvtx_open(void);
/* Somebody listens. */
bool nvtx_active(void);
/* A range of the calling thread; they nest. Its name is "what", or "what number". A range that is pushed is popped. */
void nvtx_push(const char *what);
void nvtx_push_number(const char *what, uint64_t number);
void nvtx_pop(void);

#endif
