/* SPDX-License-Identifier: Apache-2.0 */
/* Complete engine files for a GPU, made without GPU and compiler: plans have the first tactic of each problem on a
 * fictitious GPU, and kernels are cubins of the fake driver (tests/fake_cuda) with the parameters of the real ones. For
 * tests of loading and running engines with the fake driver. */
#ifndef TESTS_TEST_LOWERED_ENGINE_H
#define TESTS_TEST_LOWERED_ENGINE_H

#include "builder/test_device_model.h"
#include "formats/engine/engine_file.h"

enum { LOWERED_ENGINE_SLOTS = 16, LOWERED_ENGINE_CONTEXT = 384, LOWERED_ENGINE_MOST_PLANS = 16 };

struct lowered_engine {
    const char *model; /* folder of a checkpoint */
    enum test_gpu gpu; /* TEST_GPU_90: the default of the fake driver */
    enum encoding_id matrices;
    uint64_t slots, context;
    uint32_t decode_rows[LOWERED_ENGINE_MOST_PLANS],
        prefill_rows[LOWERED_ENGINE_MOST_PLANS]; /* increasing, 0-terminated */
    const struct engine_golden *golden;          /* NULL: none */
};

/* The shipped model in BF16; decode plans of 1, 2, 4, 8, 16 rows, prefill plans of 8 and 64. */
void lowered_engine_init(struct lowered_engine *engine);
/* The same arguments give the same bytes. Ends the test on failure. */
void lowered_engine_write(const struct lowered_engine *engine, const char *path);

/* Group set-up and tear-down of cmocka: lowered_engine_path() is valid between them. */
int lowered_engine_build(void **state);
int lowered_engine_remove(void **state);
const char *lowered_engine_path(void);

#endif
