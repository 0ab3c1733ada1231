/* SPDX-License-Identifier: Apache-2.0 */
/* The engine file with every checksum recomputed after each mutation, so that the checks of structure are reached, and
 * after them the checks of each op. */
#include "tests/fuzz/engine_fix_up.h"
#include "tests/fuzz/engine_try.h"

/* What opening allows by itself, and a copy of the input. */
const struct fuzz_cost fuzz_cost = {.base_ms = 200,
                                    .us_per_byte = 20,
                                    .base_bytes = ENGINE_HOST_BASE_BYTES,
                                    .bytes_per_byte = ENGINE_HOST_RATIO + 1};

int fuzz_try(const uint8_t *data, size_t size) { return try_engine(data, size); }
