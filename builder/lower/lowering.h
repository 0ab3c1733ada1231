/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs that all steps of lowering share, and the offsets that memory planning finds. */
#ifndef BUILDER_LOWER_LOWERING_H
#define BUILDER_LOWER_LOWERING_H

#include "builder/graph/graph.h"
#include "kernels/op/op.h"

struct lowering {
    struct plan_geometry geometry;
    enum encoding_id kv_dtype;
    enum cpu_isa isa; /* for the default tunables */
    int threads;      /* likewise */
    /* CUDA: bytes at the start of the arena that no value gets, for kernels that keep counters there between launches;
     * zero in every engine at load, and at the end of each launch. Multiple of PLAN_ALIGNMENT. */
    uint64_t scratch_bytes;
    /* Several ranks: room for the largest buffer of a collective in any plan. Buffers of this size follow each other in
     * the COMM space from LOWER_EXCHANGE_OFFSET on, and collectives take turns with them. */
    uint64_t exchange_bytes;
};
enum { LOWER_EXCHANGE_OFFSET = 256, LOWER_EXCHANGE_BUFFERS = 3 };

/* Arena offsets of one plan. */
struct memory_plan {
    uint64_t *value_offset;     /* [value_count]; UINT64_MAX for values outside the arena */
    uint64_t *workspace_offset; /* [node_count] */
    uint64_t *workspace_bytes;  /* [node_count], 0: the op needs none */
    uint64_t *exchange_offset;  /* [node_count], of collectives: in the COMM space */
    uint64_t *exchange_bytes;   /* [node_count], 0: no collective */
    uint64_t arena_bytes;
};

/* Bytes of a KV page's block of a layer with the model's heads; of the layer, 0 if it has none; and of all layers. */
uint64_t kv_layer_bytes(const struct model_config *config, uint64_t page_tokens, enum encoding_id kv_dtype);
uint64_t kv_block_bytes_of(const struct model_config *config, uint32_t layer, uint64_t page_tokens,
                           enum encoding_id kv_dtype);
uint64_t kv_all_bytes(const struct model_config *config, uint64_t page_tokens, enum encoding_id kv_dtype);

/* Bytes of the COMM space; 0 with one rank. False on overflow. */
bool lower_comm_bytes(const struct lowering *lowering, uint64_t *bytes);

#endif
