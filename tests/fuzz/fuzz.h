/* SPDX-License-Identifier: Apache-2.0 */
// What a fuzz target offers to the two drivers: standalone_driver.c (replay and seeded mutations, any compiler)
// and libFuzzer (--config=fuzz). cost.c stands between a driver and the target and judges what each input costs.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Required. Returns 0; a defect shows as a crash, a sanitizer report or a cost above the limit.
int fuzz_try(const uint8_t *data, size_t size);

// Required. The most that one input may cost: processor time (of all threads, in a build with sanitizers), and allocated
// bytes alive at once (what malloc and its relatives gave; mappings are not counted). Both grow linearly with the input's
// size and no faster: that is what finds quadratic work, and memory that is taken before it is judged.
struct fuzz_cost {
    double base_ms, us_per_byte;
    size_t base_bytes, bytes_per_byte;
};
extern const struct fuzz_cost fuzz_cost;

// Optional. Called after each mutation, before the input is tried, so that the target can recompute checksums.
// May change data[0..size) and returns the size to use, at most `size`.
__attribute__((weak)) size_t fuzz_fix_up(uint8_t *data, size_t size);

// What the drivers call: fuzz_try within its limits.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Optional. Called once before the first input.
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

// What must hold for every input.
static inline void require(bool condition)
{
    if (!condition) abort();
}
