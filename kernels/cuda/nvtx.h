/* SPDX-License-Identifier: Apache-2.0 */
/* Named ranges for profilers (NVTX), without the toolkit. A tool such as Nsight Systems names its library in the
 * environment variable NVTX_INJECTION64_PATH, and the library requests the functions that it observes. Without a tool
 * nothing is loaded, and a range costs one comparison. */
#ifndef KERNELS_CUDA_NVTX_H
#define KERNELS_CUDA_NVTX_H

#include <stdbool.h>
#include <stdint.h>

/* Loads the tool's library, once in a process. Requires: called before other threads call the functions below. */
void nvtx_open(void);
/* Whether a tool is present. */
bool nvtx_active(void);
/* A range of the calling thread, named "what" or "what number"; ranges nest. Every push needs a pop. */
void nvtx_push(const char *what);
void nvtx_push_number(const char *what, uint64_t number);
void nvtx_pop(void);

#endif
