/* SPDX-License-Identifier: Apache-2.0 */
/* How weights are bound to tensors: elements that are not consumed, or consumed twice, sources that contradict themselves, and the
 * types that matrices get on a GPU. */
#include "builder/passes/pass.h"
#include "builder/test_model.h"
#include "builder/weights/test_tensors.h"
#include "formats/base/test_program.h"
#include "kernels/matmul/weight_layout.h"

/* ---- consumption ---- */

/* Binds weights that take these parts of one tensor. */
static bool bind_parts(const struct weight_source *sources, size_t count, struct status *status)
{
    struct test_tensors f;
    *status = (struct status){0};
    test_tensors_begin(&f, 1, TARGET_CPU);
    test_tensors_add(&f, "blk.qkv", DTYPE_BF16, test_rank_of(&sources[0]), sources[0].shape);
    for (size_t i = 0; i < count; i++) graph_weight_from(&f.graph, 0, WEIGHT_ROW_MAJOR, &sources[i], "blk.qkv");
    bool ok = bind_weights(&f.graph, &f.checkpoint, &(struct weight_types){0}, status);
    test_tensors_end(&f);
    return ok;
}

TEST(every_element_is_consumed_once)
{
    struct status status;
    const struct weight_source q = {.shape = {30, 5}, .rows = 10}, k = {.shape = {30, 5}, .first_row = 10, .rows = 8},
                               v = {.shape = {30, 5}, .first_row = 18, .rows = 12},
                               late = {.shape = {30, 5}, .first_row = 19, .rows = 11},
                               early = {.shape = {30, 5}, .first_row = 17, .rows = 13},
                               left = {.shape = {30, 5}, .columns = 2}, right = {.shape = {30, 5}, .first_column = 2},
                               top_right = {.shape = {30, 5}, .first_column = 2, .rows = 18},
                               even = {.shape = {30, 5}, .run = 1, .period = 2},
                               odd = {.shape = {30, 5}, .first_row = 1, .run = 1, .period = 2},
                               turned = {.shape = {30, 5}, .transposed = true, .rows = 3},
                               turned_rest = {.shape = {30, 5}, .transposed = true, .first_row = 3};
    test_expect_success(bind_parts((struct weight_source[]){q, k, v}, 3, &status), &status);
    test_expect_success(bind_parts((struct weight_source[]){v, q, k}, 3, &status), &status);
    test_expect_success(bind_parts((struct weight_source[]){left, right}, 2, &status), &status);
    test_expect_success(bind_parts((struct weight_source[]){even, odd}, 2, &status), &status);
    test_expect_success(bind_parts((struct weight_source[]){turned, turned_rest}, 2, &status), &status);

    bool ok = bind_parts((struct weight_source[]){q, k}, 2, &status);
    test_expect_failure(ok, &status, STATUS_BAD_INPUT, "'blk.qkv'|rows 18 to 29 are not used|model_type 'phi9'");
    ok = bind_parts((struct weight_source[]){q, k, late}, 3, &status);
    test_expect_failure(ok, &status, STATUS_BAD_INPUT, "rows 18 to 18 are not used");
    ok = bind_parts((struct weight_source[]){left, top_right}, 2, &status);
    test_expect_failure(ok, &status, STATUS_BAD_INPUT, "rows 18 to 29 (of columns 2 to 4) are not used");
    ok = bind_parts((struct weight_source[]){left}, 1, &status);
    test_expect_failure(ok, &status, STATUS_BAD_INPUT, "rows 0 to 29 (of columns 2 to 4) are not used");
    ok = bind_parts((struct weight_source[]){odd}, 1, &status);
    test_expect_failure(ok, &status, STATUS_BAD_INPUT, "rows 0 to 0 are not used");
    ok = bind_parts((struct weight_source[]){turned}, 1, &status);
    test_expect_failure(ok, &status, STATUS_BAD_INPUT, "columns 3 to 4 are not used");

    ok = bind_parts((struct weight_source[]){q, k, early}, 3, &status);
    test_expect_failure(ok, &status, STATUS_INTERNAL, "'blk.qkv': row 17 is taken twice");
    ok = bind_parts((struct weight_source[]){left, right, v}, 3, &status);
    test_expect_failure(ok, &status, STATUS_INTERNAL, "row 18 is taken twice");
    ok = bind_parts((struct weight_source[]){turned, turned_rest, q}, 3, &status);
    test_expect_failure(ok, &status, STATUS_INTERNAL, "'blk.qkv': row 0 is taken twice");
    ok = bind_parts((struct weight_source[]){q, {.shape = {30, 5}, .flat = true, .first_row = 50}}, 2, &status);
    test_expect_failure(ok, &status, STATUS_INTERNAL, "read both flat and as it is");
}

/* What an architecture file may get wrong. */
TEST(sources_that_contradict_themselves)
{
    static const struct column_order five = {.count = 5}, thirty = {.count = 30};
    static const struct {
        struct weight_source source;
        const char *words;
    } wrong[] = {
        {{.shape = {30, 5}, .first_row = 21, .rows = 10}, "rows beyond the end"},
        {{.shape = {30, 5}, .first_row = 30}, "no rows"},
        {{.shape = {30, 5}, .first_row = UINT64_MAX, .rows = 2}, "rows beyond the end"},
        {{.shape = {30, 5}, .first_column = 3, .columns = 3}, "columns beyond the end"},
        {{.shape = {30, 5}, .rows = 12, .run = 2, .period = 6}, "rows beyond the end"},
        {{.shape = {30, 5}, .rows = 9, .run = 2, .period = 3}, "ends within a run"},
        {{.shape = {30, 5}, .rows = 10, .run = 5, .period = 3}, "runs of rows that overlap"},
        {{.shape = {30, 5}, .group = 7, .stride = 2}, "order of rows"},
        {{.shape = {30, 5}, .group = 5, .dealt = 6, .stride = 2}, "order of rows"},
        {{.shape = {30, 5}, .group = 5, .stride = 2}, "order of rows"},
        {{.shape = {30, 5}, .rows = 40, .repeat = 3}, "repeat"},
        {{.shape = {30}, .columns = 1}, "a matrix of a vector"},
        {{.shape = {30}, .transposed = true}, "no matrix"},
        {{.shape = {30, 5}, .flat = true, .transposed = true}, "no matrix"},
        {{.shape = {30, 5}, .flat = true, .columns = 5}, "a matrix of a vector"},
        {{.shape = {30, 5}, .flat = true, .first_row = 100, .rows = 51}, "rows beyond the end"},
        {{.shape = {2, 5, 3}, .transposed = true, .first_row = 4, .rows = 3}, "rows beyond the end"},
        {{.shape = {UINT64_MAX / 2, 5}, .rows = 1}, "2^64"},
        {{.shape = {30, 5}, .row_order = &five}, "order of other rows"},
        {{.shape = {30, 5}, .repeat = 2, .rows = 30, .row_order = &thirty}, "order of other rows"},
        {{.shape = {30, 5}, .column_order = &thirty}, "order of other columns"},
        {{.shape = {30, 5}, .transposed = true, .column_order = &thirty}, "order of other columns"},
        {{.shape = {30, 5}, .columns = 3, .column_order = &five}, "order of other columns"},
        {{.shape = {30, 5}, .scale = 2, .column_order = &five}, "order of other columns"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct test_tensors f;
        struct status status = {0};
        const uint64_t shape[] = {30, 5};
        test_tensors_begin(&f, 1, TARGET_CPU);
        test_tensors_add(&f, "blk.w", DTYPE_F32, 2, shape);
        graph_weight_from(&f.graph, 0, WEIGHT_ROW_MAJOR, &wrong[i].source, "blk.w");
        bool ok = bind_weights(&f.graph, &f.checkpoint, &(struct weight_types){0}, &status);
        test_expect_failure(ok, &status, STATUS_INTERNAL, wrong[i].words);
        test_expect_message(&status, "blk.w|source 0");
        test_tensors_end(&f);
    }
    /* A tensor without the codes that a source asks for: without codes, its dimensions mean something else. */
    struct test_tensors f;
    struct status status = {0};
    const struct weight_source coded = {.shape = {30, 5}, .codes = ENCODING_MXFP4};
    test_expect_failure(bind_parts(&coded, 1, &status), &status, STATUS_BAD_INPUT,
                        "'blk.qkv': expected codes|quantization_config|found BF16");
    /* Sources of one weight that do not fit each other. */
    status = (struct status){0};
    test_tensors_begin(&f, 1, TARGET_CPU);
    test_tensors_add(&f, "t0", DTYPE_F32, 2, (const uint64_t[]){30, 5});
    const int id = graph_weight_from(&f.graph, 0, WEIGHT_MATRIX, &(struct weight_source){.shape = {30, 5}}, "t0");
    graph_weight_append(&f.graph, id, &(struct weight_source){.rows = 3, .columns = 4}, "zeros");
    bool ok = bind_weights(&f.graph, &f.checkpoint, &(struct weight_types){0}, &status);
    test_expect_failure(ok, &status, STATUS_INTERNAL, "source 1 has other columns");
    test_tensors_end(&f);
}

/* ---- types of a GPU's matrices ---- */

struct gpu_matrices {
    struct weight_types types;
    enum dtype compute_dtype, tensor;
    const char *refused;                                /* NULL: they are accepted */
    enum encoding_id matrix, kept, row_major, no_layer; /* what they get */
};

/* A matrix, another one that a pattern names, a table that no matmul reads, and the LM head. */
static void expect_gpu_matrices(const struct gpu_matrices *expected)
{
    struct test_tensors f;
    struct status status = {0};
    static const char *const names[] = {"a", "b.kept", "c", "d"};
    static const uint64_t shape[] = {WIDTH, 128};
    test_tensors_begin(&f, 1, TARGET_CUDA);
    f.graph.compute_dtype = expected->compute_dtype;
    for (int i = 0; i < 4; i++) {
        test_tensors_add(&f, names[i], expected->tensor, 2, shape);
        graph_weight_from(&f.graph, i == 3 ? GRAPH_NO_LAYER : 0, i == 2 ? WEIGHT_ROW_MAJOR : WEIGHT_MATRIX,
                          &(struct weight_source){.shape = {WIDTH, 128}}, "%s", names[i]);
    }
    bool ok = bind_weights(&f.graph, &f.checkpoint, &expected->types, &status);
    if (expected->refused) {
        test_expect_failure(ok, &status, STATUS_BAD_INPUT, expected->refused);
    } else {
        test_expect_success(ok, &status);
        const enum encoding_id wanted[] = {expected->matrix, expected->kept, expected->row_major, expected->no_layer};
        for (int i = 0; i < 4; i++) {
            const struct graph_weight *weight = &f.graph.weights[i];
            assert_int_equal(weight->encoding, wanted[i]);
            assert_int_equal(graph_weight_layout(&f.graph, weight),
                             encoding_is_plain(wanted[i]) ? LAYOUT_ROW_MAJOR : LAYOUT_FRAGMENT16);
        }
    }
    test_tensors_end(&f);
}

TEST(matrices_without_codes_have_one_type_on_a_gpu)
{
    const struct weight_types none = {0}, fp16 = {.matrices = ENCODING_F16},
                              int4 = {.matrices = ENCODING_INT4_G128, .head = ENCODING_INT8_CHANNEL},
                              kept = {.kept = {{"*.kept", ENCODING_NVFP4}}, .kept_count = 1},
                              plain = {.matrices = ENCODING_INT4_G64,
                                       .kept = {{"*.kept", ENCODING_BF16}},
                                       .kept_count = 1},
                              as_it_is = {.matrices = ENCODING_INT4_G64, .kept = {{"*.kept"}}, .kept_count = 1},
                              other = {.matrices = ENCODING_INT4_G64,
                                       .kept = {{"*.kept", ENCODING_F32}},
                                       .kept_count = 1};
    const enum encoding_id f16 = ENCODING_F16, bf16 = ENCODING_BF16;
    const struct gpu_matrices all[] = {
        {none, DTYPE_BF16, DTYPE_F32, NULL, bf16, bf16, bf16, bf16},
        {none, DTYPE_F16, DTYPE_F16, NULL, f16, f16, f16, f16},
        {fp16, DTYPE_F16, DTYPE_BF16, NULL, f16, f16, f16, f16},
        {int4, DTYPE_BF16, DTYPE_F16, NULL, ENCODING_INT4_G128, ENCODING_INT4_G128, ENCODING_INT4_G128,
         ENCODING_INT8_CHANNEL},
        {kept, DTYPE_BF16, DTYPE_F16, NULL, bf16, ENCODING_NVFP4, bf16, bf16},
        {plain, DTYPE_BF16, DTYPE_F16, NULL, ENCODING_INT4_G64, bf16, ENCODING_INT4_G64, ENCODING_INT4_G64},
        {as_it_is, DTYPE_BF16, DTYPE_F16, NULL, ENCODING_INT4_G64, bf16, ENCODING_INT4_G64, ENCODING_INT4_G64},
        {other, DTYPE_BF16, DTYPE_BF16, "'b.kept': expected BF16|found F32|--keep", 0, 0, 0, 0},
        {fp16, DTYPE_BF16, DTYPE_F16, "'a': expected BF16|found F16", 0, 0, 0, 0},
        {int4, DTYPE_F16, DTYPE_F16, "'a'|its codes (int4_g128) as BF16|the other matrices are F16", 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) expect_gpu_matrices(&all[i]);
}

int main(void) { return test_run(); }
