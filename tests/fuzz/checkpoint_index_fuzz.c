/* SPDX-License-Identifier: Apache-2.0 */
/* model.safetensors.index.json: any bytes are either refused with a message or give sorted shard names that stay within
 * their folder. */
#include "formats/checkpoint/checkpoint_index.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

/* Nodes of a JSON tree: a byte of text may be one. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 20, .base_bytes = 256 << 10, .bytes_per_byte = 256};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    struct checkpoint_index index;
    if (!checkpoint_index_parse(&index, (const char *)data, size, "index.json", &status)) {
        require(status.code == STATUS_BAD_INPUT && status.message[0]);
        return 0;
    }
    require(index.shard_count >= 1 && index.shard_count <= json_object_size(index.weight_map));
    for (size_t i = 0; i < index.shard_count; i++) {
        require(!strchr(index.shards[i], '/') && strcmp(index.shards[i], "..") != 0);
        require(i == 0 || strcmp(index.shards[i - 1], index.shards[i]) < 0);
    }
    const char *tensor;
    json_t *file;
    json_object_foreach (index.weight_map, tensor, file)
        require(strcmp(checkpoint_index_shard_of(&index, tensor), json_string_value(file)) == 0);
    checkpoint_index_free(&index);
    return 0;
}
