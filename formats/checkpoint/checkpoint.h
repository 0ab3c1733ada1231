/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face checkpoint on disk: one safetensors file, or an index with shards, and the JSON files in its
 * folder; or one GGUF file, which has all of that in itself. */
#ifndef FORMATS_CHECKPOINT_CHECKPOINT_H
#define FORMATS_CHECKPOINT_CHECKPOINT_H

#include <jansson.h>

#include "formats/checkpoint/embedding_config.h"
#include "formats/checkpoint/model_config.h"
#include "formats/checkpoint/quantised.h"
#include "formats/checkpoint/wrapper.h"

struct checkpoint {
    char *directory;      /* owned: folder of config.json and the tokenizer */
    char *tokenizer_path; /* owned: tokenizer.json, NULL if the folder has none */
    char *
        other_tokenizer; /* owned: without tokenizer.json, the name of a tokenizer in an unsupported format; NULL: none */
    char *tokenizer_text;    /* owned: of a GGUF file, the tokenizer.json that its tokenizer amounts to; else NULL */
    char *tokenizer_missing; /* owned: of a GGUF file, why it has none; else NULL */
    json_t *chat_templates;  /* owned: see checkpoint_templates.h; NULL: none */
    struct embedding_config embedding;
    struct model_config config;  /* config.json merged with generation_config.json */
    struct tensor_view *tensors; /* over all shards, sorted by name; owned by `quantised` */
    size_t tensor_count;
    uint64_t tensor_bytes; /* sum over all tensors of the files */
    char *layer_names;     /* owned: storage of names of tensors whose layers are counted anew; else NULL */
    char *full_names;      /* owned: storage of names of tensors that the files have without "model."; else NULL */
    struct model_tower towers[WRAPPER_MAX_TOWERS]; /* parts that were left out, up to the first without a name */
    struct quantised_tensors quantised;            /* owned: the tensors, and those of quantised modules as one */
    struct checkpoint_shard *shards;               /* owned: mapping and parsed header of each file */
    size_t shard_count;
};

/* Opens a checkpoint. `path`: a .gguf file, a .safetensors file, an .index.json file, or a folder with model.safetensors,
 * model.safetensors.index.json or exactly one *.safetensors. For shards: every tensor of weight_map must be in the
 * named shard, every tensor of a shard must be in weight_map, shards must be in the folder, and metadata.total_size
 * must be correct if present. With `config_only` weights are neither required nor opened (dry runs, random weights).
 * `read_family` reads the keys of config.json that depend on the model_type. */
bool checkpoint_open(struct checkpoint *checkpoint, const char *path, bool config_only,
                     model_config_reader *read_family, struct status *status);
void checkpoint_close(struct checkpoint *checkpoint);
const struct tensor_view *checkpoint_find(const struct checkpoint *checkpoint, const char *name);

#endif
