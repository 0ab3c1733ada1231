/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3. No other file needs to know how xxHash is linked. */
#ifndef FORMATS_BASE_HASH_H
#define FORMATS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash64(const void *data, size_t size); /* XXH3-64, seed 0 */

/* Streaming XXH3-64 over pieces; hash64_stream_end gives the same value as hash64 over their concatenation. */
struct hash64_stream;
struct hash64_stream *hash64_stream_begin(void); /* NULL: out of memory */
void hash64_stream_add(struct hash64_stream *stream, const void *data, size_t size);
uint64_t hash64_stream_end(struct hash64_stream *stream); /* frees the stream */

#endif
