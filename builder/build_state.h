/* SPDX-License-Identifier: Apache-2.0 */
/* State of a build between its stages. Private to build*.c. */
#ifndef BUILDER_BUILD_STATE_H
#define BUILDER_BUILD_STATE_H

#include "builder/build_rows.h"
#include "builder/lower/lower.h"
#include "builder/weights/channel_scales.h"
#include "builder/weights/column_orders.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/engine/engine_file.h"
#include "tuner/machine.h"
#include "tuner/progress.h"

enum { BUILD_ALL_PLANS = (PLAN_KIND_END - PLAN_DECODE) * BUILD_MAX_PLANS };

/* build_close releases it in any state. */
struct build {
    const struct build_options *options;
    enum engine_target target;
    struct checkpoint checkpoint;
    bool checkpoint_open, has_weights;
    struct model_config rank_config;       /* several ranks: the configuration of each */
    uint8_t joins[MODEL_MAX_LAYERS];       /* of all graphs: graph->joins */
    struct column_orders orders;           /* of all graphs' matrices */
    struct build_rows rows[PLAN_KIND_END]; /* of the plans of each kind */
    struct graph decode, prefill;
    struct graph mixed, verify; /* only with rows of such plans */
    struct graph small_batch;   /* CUDA: decode of at most GRAPH_SMALL_BATCH rows */
    struct graph routed_mlp;    /* likewise, an MLP over experts in one launch where that is possible */
    struct graph router_batch;  /* CUDA, with experts: decode of at most GRAPH_ROUTER_BATCH rows */
    /* CUDA: plans of so many rows or more multiply codes of activations and are of these graphs; 0: no plan does. */
    uint32_t eight_bit_rows;
    bool has_routed_matmul;   /* of the GPU: set by build_cuda_open */
    int64_t shared_per_block; /* likewise */
    int multiprocessors;      /* likewise */
    struct graph eight_bit_decode, eight_bit_prefill, eight_bit_mixed, eight_bit_verify;
    struct lowering lowering;
    uint32_t scaled_layers; /* layers whose KV cache has the checkpoint's scales */
    struct team *team;
    struct machine machine;
    struct cuda_build *cuda;            /* build_cuda.c; NULL for the CPU target */
    struct plan plans[BUILD_ALL_PLANS]; /* decode, prefill, mixed, verification plans */
    size_t plan_count;
    double plan_us[BUILD_ALL_PLANS];            /* devices: measured time of each plan, 0: not measured */
    struct plan library_plans[BUILD_ALL_PLANS]; /* devices: instead of plans; launch_count 0: none */
    struct manifest manifest;
    struct tuning_cache cache;
    bool cache_open;
    struct tactics tactics;
    uint8_t *tokenizer; /* image, NULL if the checkpoint has none */
    size_t tokenizer_bytes;
    uint32_t tokenizer_tokens;
    struct chat_templates *chat_templates; /* NULL if the checkpoint has none, or no tokenizer */
    char *chat_document;                   /* their section */
    char no_tokenizer[320];                /* reason if there is none; else empty */
    struct engine_writer *writer;
    struct progress progress;
    uint64_t file_bytes;
    struct unquantised *unquantised; /* build_unquantised.c; NULL: not needed so far */
    struct channel_scales_summary channels;
};

#endif
