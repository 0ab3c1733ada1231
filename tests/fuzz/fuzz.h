/* SPDX-License-Identifier: Apache-2.0 */
// What a fuzz target offers to the two drivers: standalone_driver.c (replay and seeded mutations, any compiler)
// and libFuzzer (--config=fuzz).
#pragma once

#include <stddef.h>
#include <stdint.h>

// Required. Returns 0; a defect shows as a crash, a sanitizer report or a time-out.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Optional. Called after each mutation, before the input is tried, so that the target can recompute checksums.
// May change data[0..size) and returns the size to use, at most `size`.
__attribute__((weak)) size_t fuzz_fix_up(uint8_t *data, size_t size);

// Optional. Called once before the first input.
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);
