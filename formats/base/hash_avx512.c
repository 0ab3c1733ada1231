/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/hash_wide.h"

#include <xxhash.h>

void hash64_add_avx512(void *state, const void *data, size_t size) { XXH3_64bits_update(state, data, size); }
