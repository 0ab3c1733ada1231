/* SPDX-License-Identifier: Apache-2.0 */
/* The engine file as it comes: any bytes are either refused with a message or give an engine of which every part lies
 * where it may be read. Almost every mutation ends at a checksum; engine_fixed_fuzz.c goes on from there. */
#include "tests/fuzz/engine_try.h"
#include "tests/fuzz/fuzz.h"

/* What opening allows by itself, and a copy of the input. */
const struct fuzz_cost fuzz_cost = {.base_ms = 200,
                                    .us_per_byte = 20,
                                    .base_bytes = ENGINE_HOST_BASE_BYTES,
                                    .bytes_per_byte = ENGINE_HOST_RATIO + 1};

int fuzz_try(const uint8_t *data, size_t size) { return try_engine(data, size); }
