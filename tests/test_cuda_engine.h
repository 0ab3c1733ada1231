/* SPDX-License-Identifier: Apache-2.0 */
/* An engine for a GPU that the fake driver (tests/fake_cuda) can run: that of an engine for the processor, with two kernels for
 * each plan: the first runs the CPU's plan up to its sampler on the device's memory, the second the rest, and leaves the next step's inputs as
 * a sample kernel does. */
#ifndef TESTS_TEST_CUDA_ENGINE_H
#define TESTS_TEST_CUDA_ENGINE_H

#include <stdbool.h>

#include "formats/engine/engine_file.h"

/* Registers the kernels of such an engine, and those of release 2.0 (one for each plan), with the fake driver. `cpu`: an engine for the processor, which must stay open.
 * Ends the test on failure. */
void cuda_engine_learn(const struct engine *cpu);
/* Registers them and writes the engine. */
void cuda_engine_write(const struct engine *cpu, const char *path);
/* Writes it once more, with layers whose thread blocks wait for each other (LAUNCH_CORESIDENT). Requires: cuda_engine_write. */
void cuda_engine_write_coresident(const char *path);
void cuda_engine_close(void); /* frees what the kernels hold */

#endif
