/* SPDX-License-Identifier: Apache-2.0 */
/* Models, graphs and GPUs for tests of the device target, made as build.c does, without a GPU. */
#ifndef BUILDER_TEST_DEVICE_MODEL_H
#define BUILDER_TEST_DEVICE_MODEL_H

#include "builder/lower/lower_cuda.h"
#include "builder/weights/column_orders.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/base/test_support.h"

/* Facts of GPUs that the machine need not have. */
enum test_gpu { TEST_GPU_90, TEST_GPU_80, TEST_GPU_120, TEST_GPUS };
extern const struct device_facts test_gpus[TEST_GPUS];

enum test_graph {
    TEST_SMALL_BATCH,
    TEST_ROUTER_BATCH,
    TEST_LARGE_BATCH,
    TEST_PREFILL,
    TEST_MIXED,
    TEST_VERIFY,
    TEST_GRAPHS
};

struct test_device_model {
    const char *name;
    struct checkpoint checkpoint;
    bool has_checkpoint;
    struct column_orders orders;
    struct model_config config, rank_config; /* the same with one rank */
    uint32_t ranks;
    bool hidden;                      /* its plans give hidden states */
    struct graph graphs[TEST_GRAPHS]; /* after all passes, with weights placed */
    struct lowering lowering;
    uint64_t weights_bytes; /* of all ranks */
};

/* Small models defined in the source, then the shipped model, then those of the shared folder; the list ends with NULL.
 * Each is a folder or the text of a config.json. */
const char *test_device_model_source(size_t index);

/* `slots` sequences of at most `context` tokens. `matrices`: ENCODING_BF16, ENCODING_F16, or one with scales, with which all
 * else is BF16; ENCODING_NONE: as in the checkpoint. False with a message: a pass or the import refused. The model must not be
 * moved afterwards. */
bool test_device_model_try(struct test_device_model *model, const char *source, int64_t matrices, uint64_t slots,
                           uint64_t context, struct status *status);
void test_device_model_open(struct test_device_model *model, const char *source, int64_t matrices);
/* Shared by several ranks; false where there are no equal shares. */
bool test_device_model_open_ranks(struct test_device_model *model, const char *source, int64_t matrices,
                                  uint32_t ranks);
/* The same in bf16 with hidden states. */
bool test_device_model_open_hidden(struct test_device_model *model, const char *source, uint32_t ranks);
/* The same in bf16 with the layer that predicts further tokens. */
void test_device_model_open_predicting(struct test_device_model *model, const char *source, uint32_t ranks);
/* The same in bf16 for a GPU that takes routed_matmul and norm_router. */
void test_device_model_open_routed(struct test_device_model *model, const char *source, uint32_t ranks);
void test_device_model_close(struct test_device_model *model);

/* The graph for `rows` rows of a step. */
const struct graph *test_device_model_graph(const struct test_device_model *model, enum plan_kind kind, uint32_t rows);

/* Gives the arena's start to scratch memory for decode plans of the `count` row counts. */
void test_device_model_scratch(struct test_device_model *model, const struct device_facts *gpu, const uint32_t *rows,
                               size_t count);

/* Several ranks: room for what they exchange in plans of up to `rows` rows. */
void test_device_model_exchange(struct test_device_model *model, uint32_t rows);

/* Sizes against which the plan of these rows is verified. */
void test_device_model_sizes(const struct test_device_model *model, const struct plan_header *header,
                             struct plan_space_sizes *sizes);

#endif
