/* SPDX-License-Identifier: Apache-2.0 */
/* Packing refuses elements that are not finite, or would not be in the engine's dtype, by tensor and element, on every
 * path: copied or converted, of a matrix or a vector, at any place of a row, on any rank. */
#include <math.h>

#include "builder/arch/arch.h"
#include "formats/base/test_program.h"
#include "builder/passes/pass.h"
#include "builder/weights/shard.h"
#include "builder/test_model.h"
#include "builder/weights/weights.h"

static bool pack(const struct test_model *model, enum engine_target target, enum dtype dtype, uint32_t ranks,
                 struct status *status)
{
    struct checkpoint checkpoint;
    struct model_config rank_config;
    struct graph graph;
    uint64_t total_bytes;
    const uint8_t *weights;
    char *folder = test_folder();
    test_model_write(model, folder);
    test_expect_success(checkpoint_open(&checkpoint, folder, false, arch_read_config, status), status);
    test_expect_success(shard_config(&checkpoint.config, ranks, &rank_config, status), status);
    graph_init(&graph, &checkpoint.config, PLAN_DECODE);
    graph.target = target;
    graph.compute_dtype = dtype;
    graph.ranks = ranks;
    graph.rank_config = &rank_config;
    test_expect_success(import_graph(&graph, status) && run_passes(&graph, NULL, NULL, status), status);
    test_expect_success(bind_weights(&graph, &checkpoint, &(struct weight_types){.matrices = (enum encoding_id)dtype},
                                     status),
                        status);
    test_expect_success(plan_weights(&graph, &total_bytes, status), status);
    struct engine_writer *writer = engine_writer_begin(test_path(folder, "x.eng"), status);
    assert_non_null(writer);
    bool ok = test_model_pack(&graph, &checkpoint, writer, total_bytes, NULL, NULL, &weights, status);
    engine_writer_abandon(writer);
    graph_free(&graph);
    checkpoint_close(&checkpoint);
    test_folder_remove(folder);
    return ok;
}

static void expect_refused(const struct test_model *model, const struct test_tensor *tensor, enum engine_target target,
                           enum dtype dtype, uint32_t ranks, const char *what)
{
    struct status status = {0};
    char words[200], place[64];
    if (tensor->columns)
        snprintf(place, sizeof place, "row %llu, column %llu",
                 (unsigned long long)(tensor->odd_index / tensor->columns),
                 (unsigned long long)(tensor->odd_index % tensor->columns));
    else
        snprintf(place, sizeof place, "element %llu", (unsigned long long)tensor->odd_index);
    snprintf(words, sizeof words, "'%s': %s %s", tensor->name, place, what);
    bool ok = pack(model, target, dtype, ranks, &status);
    if (ok) fail_msg("packed although %s", words);
    test_expect_failure(ok, &status, STATUS_BAD_INPUT, words);
}

static const struct {
    float value;
    const char *what;
} odd[] = {{NAN, "is NaN"}, {INFINITY, "is infinity"}, {-INFINITY, "is -infinity"}, {-NAN, "is NaN"}};

/* Every kind of tensor, copied and converted. */
TEST(every_tensor_is_looked_at)
{
    int turn = 0;
    static const enum test_family families[] = {TEST_LLAMA, TEST_LLAMA_BIASED_TIED, TEST_QWEN3};
    for (size_t f = 0; f < 3; f++) {
        struct test_model model;
        test_model_init(&model, families[f], DTYPE_BF16);
        for (size_t t = 0; t < model.count; t++, turn++) {
            struct test_tensor *tensor = &model.tensors[t];
            const uint64_t columns = tensor->columns ? tensor->columns : 1, count = tensor->rows * columns;
            const uint64_t places[] = {0, count - 1, columns - 1, count / 2};
            tensor->has_odd_value = true;
            tensor->odd_index = places[turn % 4];
            tensor->odd_value = odd[turn / 2 % 4].value;
            expect_refused(&model, tensor, turn % 5 < 2 ? TARGET_CPU : TARGET_CUDA,
                           turn / 3 % 2 ? DTYPE_BF16 : DTYPE_F16, 1, odd[turn / 2 % 4].what);
            tensor->has_odd_value = false;
        }
    }
}

/* Every place of a row, in every dtype. */
TEST(every_place_is_looked_at)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct test_model model;
    for (int d = 0; d < 3; d++)
        for (uint64_t column = (uint64_t)d % 2; column < TEST_HIDDEN; column += d % 2 ? 2 : 1) {
            test_model_init(&model, TEST_LLAMA, dtypes[d]);
            struct test_tensor *tensor = test_model_find(&model, "model.layers.1.self_attn.v_proj.weight");
            tensor->has_odd_value = true;
            tensor->odd_index = 3 * TEST_HIDDEN + column;
            tensor->odd_value = odd[column % 4].value;
            expect_refused(&model, tensor, TARGET_CPU, DTYPE_NONE, 1, odd[column % 4].what);
        }
    /* The largest of each is finite. */
    static const float largest[] = {0x1.fffffep127f, 65504.0f, 0x1.fep127f};
    for (int d = 0; d < 3; d++) {
        struct status status = {0};
        test_model_init(&model, TEST_LLAMA, dtypes[d]);
        struct test_tensor *tensor = test_model_find(&model, "model.layers.1.self_attn.v_proj.weight");
        tensor->has_odd_value = true;
        tensor->odd_value = -largest[d];
        test_expect_success(pack(&model, TARGET_CPU, DTYPE_NONE, 1, &status), &status);
    }
}

/* A share of a rank begins amid a tensor: the place is counted in the whole. */
TEST(ranks_name_the_place_in_the_whole)
{
    static const char *const names[] = {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.0.mlp.down_proj.weight", "lm_head.weight"};
    for (size_t n = 0; n < 4; n++) {
        struct test_model model;
        test_model_init(&model, TEST_LLAMA, DTYPE_BF16);
        struct test_tensor *tensor = test_model_find(&model, names[n]);
        tensor->has_odd_value = true;
        tensor->odd_index = tensor->rows * tensor->columns - 2;
        tensor->odd_value = NAN;
        expect_refused(&model, tensor, TARGET_CPU, DTYPE_NONE, TEST_RANKS, "is NaN");
    }
}

/* Finite, but not in the dtype that was asked for. */
TEST(what_becomes_infinite_is_refused)
{
    static const struct {
        enum dtype from, to;
        float value;
        const char *what; /* NULL: it fits */
    } cases[] = {
        {DTYPE_F32, DTYPE_F16, 65519.0f, NULL},
        {DTYPE_F32, DTYPE_F16, 65520.0f, "is 65520, beyond the range of F16"},
        {DTYPE_BF16, DTYPE_F16, -1e6f, "beyond the range of F16"},
        {DTYPE_F32, DTYPE_BF16, 0x1.fefffep127f, NULL},
        {DTYPE_F32, DTYPE_BF16, 0x1.ffp127f, "beyond the range of BF16"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct test_model model;
        struct status status = {0};
        test_model_init(&model, TEST_LLAMA, cases[c].from);
        struct test_tensor *tensor = test_model_find(&model, "model.layers.0.mlp.up_proj.weight");
        tensor->has_odd_value = true;
        tensor->odd_index = 40;
        tensor->odd_value = cases[c].value;
        if (cases[c].what) {
            bool ok = pack(&model, TARGET_CPU, cases[c].to, 1, &status);
            test_expect_failure(ok, &status, STATUS_BAD_INPUT, cases[c].what);
            test_expect_message(&status, "mlp.up_proj.weight': row 1, column 17");
            test_expect_message(&status, "--dtype");
        } else {
            test_expect_success(pack(&model, TARGET_CPU, cases[c].to, 1, &status), &status);
        }
    }
}

int main(void) { return test_run(); }
