/* SPDX-License-Identifier: Apache-2.0 */
/* An engine for a GPU that the fake driver (tests/fake_cuda) can run: the shipped model's, with one kernel for each plan,
 * which replays the CPU's plan on the device's memory and leaves the next step's inputs as a sample kernel does. */
#ifndef TESTS_TEST_CUDA_ENGINE_H
#define TESTS_TEST_CUDA_ENGINE_H

#include <stdbool.h>

#include "formats/engine/engine_file.h"

/* Writes it to `path` and registers its kernels with the fake driver. `cpu` is an engine of test_fables; it must stay
 * open. Ends the test on failure. */
void cuda_engine_write(const struct engine *cpu, const char *path);
void cuda_engine_close(void); /* frees what the kernels hold */

#endif
