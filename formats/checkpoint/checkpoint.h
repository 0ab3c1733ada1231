/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face checkpoint on disk: one safetensors file or an index with shards, plus the JSON files beside it. */
#ifndef FORMATS_CHECKPOINT_CHECKPOINT_H
#define FORMATS_CHECKPOINT_CHECKPOINT_H

#include "formats/checkpoint/model_config.h"
#include "formats/checkpoint/safetensors.h"

struct checkpoint {
    char *directory;             /* owned: folder that holds config.json and the tokenizer */
    char *tokenizer_path;        /* owned: tokenizer.json, NULL if the folder has none */
    char *other_tokenizer;       /* owned: then the name of one in a format that is not read; NULL: none */
    struct model_config config;  /* config.json with generation_config.json merged in */
    struct tensor_view *tensors; /* owned array over all shards, sorted by name */
    size_t tensor_count;
    uint64_t tensor_bytes;           /* sum over all tensors */
    struct checkpoint_shard *shards; /* owned: one mapping + parsed header per file */
    size_t shard_count;
};

/* `path`: a .safetensors file, an .index.json file, or a directory with model.safetensors,
 * model.safetensors.index.json or exactly one *.safetensors. Shards: every tensor of weight_map must be in the shard
 * named, every tensor of every shard must be in weight_map, file names must not leave the folder, metadata.total_size
 * must match where present. With `config_only`, weights are neither required nor opened (dry runs, random weights). */
bool checkpoint_open(struct checkpoint *checkpoint, const char *path, bool config_only, struct status *status);
void checkpoint_close(struct checkpoint *checkpoint);
const struct tensor_view *checkpoint_find(const struct checkpoint *checkpoint, const char *name);

#endif
