/* SPDX-License-Identifier: Apache-2.0 */
/* Machine code of an engine: any bytes are either refused with a message or are tables that lead nowhere outside. */
#include "formats/engine/cubin.h"

#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

/* Tables are checked where they lie. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 2, .base_bytes = 64 << 10, .bytes_per_byte = 0};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    if (!cubin_verify(data, size, &status) && (status.code != STATUS_CORRUPT || status.message[0] == '\0')) abort();
    return 0;
}
