/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3_64bits_update for wide vectors, with the same result in the same state (XXH3_state_t). Requires:
 * __builtin_cpu_supports reports the instructions. */
#ifndef FORMATS_BASE_HASH_WIDE_H
#define FORMATS_BASE_HASH_WIDE_H

#include <stddef.h>

void hash64_add_avx2(void *state, const void *data, size_t size);
void hash64_add_avx512(void *state, const void *data, size_t size);

#endif
