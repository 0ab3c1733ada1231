/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake libraries share: a module with one kernel, loaded and launched through the fake driver. */
#ifndef TESTS_FAKE_CUDA_LIBRARY_H
#define TESTS_FAKE_CUDA_LIBRARY_H

#include <stdbool.h>

#include "kernels/cuda/driver.h"

struct fake_library {
    struct cuda_driver
        driver; /* members that are used here are looked up, the others are NULL; library NULL: not open */
    cu_library module;
    cu_function function;
};

/* `cubin`: text of the fake driver's with an entry `name`. A context is current. */
bool fake_library_open(struct fake_library *library, const char *cubin, const char *name);
void fake_library_close(struct fake_library *library); /* harmless on one that is all zero */
bool fake_library_launch(const struct fake_library *library, void **arguments, cu_stream stream);

#endif
