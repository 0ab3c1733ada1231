#include "formats/hash.h"

#include <xxhash.h>

uint64_t hash64(const void *data, size_t size) { return XXH3_64bits(data, size); }

struct hash64_stream *hash64_stream_begin(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state) XXH3_64bits_reset(state);
    return (struct hash64_stream *)state;
}

void hash64_stream_add(struct hash64_stream *stream, const void *data, size_t size)
{
    XXH3_64bits_update((XXH3_state_t *)stream, data, size);
}

uint64_t hash64_stream_end(struct hash64_stream *stream)
{
    uint64_t value = XXH3_64bits_digest((XXH3_state_t *)stream);
    XXH3_freeState((XXH3_state_t *)stream);
    return value;
}
