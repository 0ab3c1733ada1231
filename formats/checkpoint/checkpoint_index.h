/* SPDX-License-Identifier: Apache-2.0 */
/* model.safetensors.index.json: the shard of each tensor of a checkpoint. */
#ifndef FORMATS_CHECKPOINT_CHECKPOINT_INDEX_H
#define FORMATS_CHECKPOINT_CHECKPOINT_INDEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

struct checkpoint_index {
    json_t *document;    /* owned: owner of the strings below */
    json_t *weight_map;  /* borrowed from document: tensor name -> shard file name, all strings */
    const char **shards; /* owned array of borrowed names: each shard once, sorted */
    size_t shard_count;
    bool has_total_size; /* metadata.total_size is present */
    uint64_t total_size; /* bytes of all tensors */
};

/* Parses and checks an index: weight_map is a non-empty object of strings, and each shard is a plain *.safetensors
 * name, so that no shard can be outside the folder. `name` is for messages. */
bool checkpoint_index_parse(struct checkpoint_index *index, const char *text, size_t size, const char *name,
                            struct status *status);
void checkpoint_index_free(struct checkpoint_index *index);

/* Returns the shard of the tensor; NULL: the index does not name the tensor. */
const char *checkpoint_index_shard_of(const struct checkpoint_index *index, const char *tensor);

#endif
