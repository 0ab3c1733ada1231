/* SPDX-License-Identifier: Apache-2.0 */
/* model.safetensors.index.json: which shard of a checkpoint holds which tensor. */
#ifndef FORMATS_CHECKPOINT_CHECKPOINT_INDEX_H
#define FORMATS_CHECKPOINT_CHECKPOINT_INDEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

struct checkpoint_index {
    json_t *document;    /* owned: keeps the strings below alive */
    json_t *weight_map;  /* borrowed from document: tensor name -> shard file name, all strings */
    const char **shards; /* owned array of borrowed names: each shard once, sorted */
    size_t shard_count;
    bool has_total_size; /* metadata.total_size was given */
    uint64_t total_size; /* bytes of all tensors */
};

/* Checks the whole document: weight_map is a non-empty object of strings; each shard is a plain *.safetensors name, so
 * that no shard can lie outside the folder of the index. `name` is for messages. */
bool checkpoint_index_parse(struct checkpoint_index *index, const char *text, size_t size, const char *name,
                            struct status *status);
void checkpoint_index_free(struct checkpoint_index *index);

/* The shard that holds the tensor, NULL if the index does not name the tensor. */
const char *checkpoint_index_shard_of(const struct checkpoint_index *index, const char *tensor);

#endif
