/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/test_tensors.h"

#include <sys/mman.h>

#include "builder/test_model.h"
#include "builder/weights/shard.h"

void test_tensors_begin(struct test_tensors *f, uint32_t ranks, enum engine_target target)
{
    struct status status = {0};
    *f = (struct test_tensors){.seed = 3};
    int file = memfd_create("tensors", 0);
    assert_true(file >= 0 && ftruncate(file, MOST_TENSORS * TENSOR_BYTES) == 0);
    f->memory = mmap(NULL, MOST_TENSORS * TENSOR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_true(f->memory != MAP_FAILED);
    close(file);
    struct model_config *config = &f->checkpoint.config;
    snprintf(config->model_type, sizeof config->model_type, "phi9");
    config->heads = HEADS, config->kv_heads = KV_HEADS, config->intermediate_size = INNER;
    test_expect_success(shard_config(config, ranks, &f->rank_config, &status), &status);
    f->checkpoint.tensors = f->views;
    graph_init(&f->graph, config, PLAN_DECODE);
    f->graph.target = target;
    f->graph.ranks = ranks;
    f->graph.rank_config = &f->rank_config;
}

void test_tensors_end(struct test_tensors *f)
{
    graph_free(&f->graph);
    munmap(f->memory, MOST_TENSORS * TENSOR_BYTES);
}

void test_tensors_add(struct test_tensors *f, const char *name, enum dtype dtype, int rank, const uint64_t *shape)
{
    const size_t index = f->checkpoint.tensor_count++;
    uint64_t count = 1;
    uint8_t *data = f->memory + index * TENSOR_BYTES;
    struct tensor_view *view = &f->views[index];
    *view = (struct tensor_view){.name = name, .dtype = dtype, .rank = rank, .data = data};
    for (int i = 0; i < rank; i++) view->shape[i] = shape[i], count *= shape[i];
    view->bytes = count * dtype_bytes(dtype);
    assert_true(index < MOST_TENSORS && view->bytes <= TENSOR_BYTES);
    for (uint64_t i = 0; i < count; i++) {
        const float value = (float)test_random(&f->seed) * 0x1p-30f - 1.0f;
        const uint16_t half = dtype == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
        memcpy(data + i * dtype_bytes(dtype), dtype == DTYPE_F32 ? (const void *)&value : (const void *)&half,
               dtype_bytes(dtype));
    }
}

int test_rank_of(const struct weight_source *source)
{
    int rank = 0;
    while (rank < SOURCE_MAX_RANK && source->shape[rank]) rank++;
    return rank;
}
