/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of libraries that are opened with dlopen. */
#ifndef KERNELS_CUDA_SYMBOLS_H
#define KERNELS_CUDA_SYMBOLS_H

#include <stddef.h>

struct symbol {
    const char *name;
    void *function; /* the pointer to set */
};
/* Sets the pointers; returns the name of the first function that the library lacks, NULL if it has all. */
const char *symbols_missing(void *library, const struct symbol *symbols, size_t count);

#endif
