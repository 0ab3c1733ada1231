/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints in memory, of tensors of any shape, for tests of weights and their sources. */
#ifndef BUILDER_WEIGHTS_TEST_TENSORS_H
#define BUILDER_WEIGHTS_TEST_TENSORS_H

#include "builder/weights/weights.h"

enum { HEADS = 6, KV_HEADS = 6, HEAD_DIM = 8, HIDDEN = 22, INNER = 24, WIDTH = HEADS * HEAD_DIM, EXPERTS = 3 };
enum { MOST_TENSORS = 8, TENSOR_BYTES = 1 << 18 };

/* A checkpoint in memory. A file's, because packing gives pages of tensors back. */
struct test_tensors {
    struct tensor_view views[MOST_TENSORS];
    struct checkpoint checkpoint;
    struct model_config rank_config;
    struct graph graph;
    uint8_t *memory;
    uint64_t seed, total_bytes;
};

void test_tensors_begin(struct test_tensors *f, uint32_t ranks, enum engine_target target);
void test_tensors_end(struct test_tensors *f);
/* Random values. Tensors are added by rising name. */
void test_tensors_add(struct test_tensors *f, const char *name, enum dtype dtype, int rank, const uint64_t *shape);

/* Dimensions of a source's tensor. */
int test_rank_of(const struct weight_source *source);

#endif
