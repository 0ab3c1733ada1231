/* SPDX-License-Identifier: Apache-2.0 */
/* From a model configuration to a graph. One file per architecture; what they share is import_blocks.c. */
#ifndef BUILDER_ARCH_ARCH_H
#define BUILDER_ARCH_ARCH_H

#include "builder/graph/graph.h"

struct architecture {
    const char *model_type;   /* config.json: model_type */
    const char *architecture; /* config.json: architectures[0] */
    bool (*import)(struct graph *graph, struct status *status);
};

extern const struct architecture import_llama, import_mistral, import_qwen2, import_qwen3;

/* Builds the graph of `kind` for the configuration that graph_init was given. */
bool import_graph(struct graph *graph, struct status *status);

/* What the pre-norm decoders with rotary GQA attention and gated MLP differ in. */
struct decoder_traits {
    bool qkv_bias, output_bias; /* attention projections */
    bool mlp_bias;
    bool qk_norm; /* RMSNorm over each head of q and k before the rotation */
};
bool import_decoder(struct graph *graph, const struct decoder_traits *traits, struct status *status);

#endif
