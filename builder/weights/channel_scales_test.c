/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/channel_scales.h"

#include <math.h>

#include "builder/arch/arch.h"
#include "builder/golden/accuracy_cpu.h"
#include "builder/lower/lower.h"
#include "builder/lower/plan_memory.h"
#include "builder/passes/pass.h"
#include "builder/test_model.h"
#include "builder/weights/coded.h"
#include "builder/weights/shard.h"
#include "formats/base/test_program.h"
#include "kernels/matmul/weight_layout.h"
#include "kernels/rope_append/rope_append.h"

enum { TOKENS = 600, SEQUENCES = 2, CONTEXT = 32, PAGE = 16, MOST_DEPTH = 64 };

/* Two ranks have whole groups of 32 columns. They have a KV head each, or share one. */
static const struct test_sizes sizes_of[] = {{64, 8, 2, 37}, {64, 8, 1, 37}};
enum { SIZES = sizeof sizes_of / sizeof *sizes_of };

static uint64_t seed = 11;
static float random_float(void) { return (float)(test_random(&seed) % (1 << 24)) * 0x1p-23f - 1; }

/* A checkpoint, its graph with float32 weights as the processor runs it, and that of the engine. */
struct fixture {
    char *folder;
    struct test_model model;
    struct checkpoint checkpoint;
    struct model_config rank_config;
    uint32_t ranks;
    struct graph plain, engine;
    struct calibration calibration;
    struct team *team;
};

static void make_graph(struct fixture *f, struct graph *graph, const struct weight_types *types)
{
    struct status status = {0};
    uint64_t bytes;
    graph_init(graph, &f->checkpoint.config, PLAN_DECODE);
    graph->target = TARGET_CPU;
    graph->ranks = f->ranks;
    if (f->ranks > 1) graph->rank_config = &f->rank_config;
    test_expect_success(import_graph(graph, &status) && run_passes(graph, NULL, NULL, &status), &status);
    test_expect_success(bind_weights(graph, &f->checkpoint, types, &status) && plan_weights(graph, &bytes, &status),
                        &status);
}

static const struct weight_types as_int4 = {.matrices = ENCODING_INT4_G32, .head_as_it_is = true};

/* Requires: f->model. `activation` gives the activations of every matrix. */
static void open_fixture(struct fixture *f, uint32_t ranks, const struct weight_types *types,
                         float (*activation)(uint64_t token, uint64_t column))
{
    static const struct weight_types in_f32 = {.matrices = ENCODING_F32};
    static float x[TOKENS * MOST_DEPTH];
    struct status status = {0};
    f->folder = test_folder();
    f->ranks = ranks;
    test_model_write(&f->model, f->folder);
    test_expect_success(checkpoint_open(&f->checkpoint, f->folder, false, arch_read_config, &status), &status);
    test_expect_success(shard_config(&f->checkpoint.config, ranks, &f->rank_config, &status), &status);
    make_graph(f, &f->plain, &in_f32);
    make_graph(f, &f->engine, types);
    f->team = team_create(2, &status);
    assert_non_null(f->team);
    test_expect_success(calibration_open(&f->calibration, &f->engine, f->folder, &status), &status);
    f->calibration.tokens = TOKENS;
    for (uint32_t rank = 0; rank < ranks; rank++)
        for (int w = 0; w < f->engine.weight_count; w++) {
            const uint64_t depth = f->engine.weights[w].depth;
            const struct team_member alone = {.count = 1};
            if (!calibration_factors(&f->calibration, rank, w)) continue;
            assert_true(depth <= MOST_DEPTH);
            for (uint64_t i = 0; i < TOKENS * depth; i++) x[i] = activation(i / depth, i % depth);
            calibration_add(&f->calibration, rank, w, x, TOKENS, depth, &alone);
        }
    test_expect_success(calibration_finish(&f->calibration, &f->engine, f->team, &status), &status);
}

static void close_fixture(struct fixture *f)
{
    calibration_close(&f->calibration);
    graph_free(&f->plain);
    graph_free(&f->engine);
    checkpoint_close(&f->checkpoint);
    team_destroy(f->team);
    test_folder_remove(f->folder);
    *f = (struct fixture){0};
}

static void choose(struct fixture *f, struct channel_scales *scales)
{
    struct status status = {0};
    test_expect_success(channel_scales_choose(scales, &f->plain, &f->engine, &f->checkpoint, &f->calibration, f->team,
                                              &status),
                        &status);
}

static float alike(uint64_t token, uint64_t column)
{
    (void)token;
    (void)column;
    return test_random(&seed) % 2 ? 1.0f : -1.0f;
}

static float with_large_columns(uint64_t token, uint64_t column)
{
    (void)token;
    return random_float() * (column % 16 == 1 ? 24.0f : 1.0f);
}

static float with_a_column_of_zeros(uint64_t token, uint64_t column)
{
    return column == 2 ? 0 : with_large_columns(token, column);
}

/* ---- links ---- */

static struct channel_link *find_links(struct fixture *f, int *count)
{
    struct channel_link *links;
    struct status status = {0};
    test_expect_success(channel_links_find(&f->plain, &f->engine, &f->calibration, &links, count, &status), &status);
    return links;
}

/* The tensors on both sides, from their names. */
static void expect_link(const struct fixture *f, const struct channel_link *link)
{
    static const char *const pairs[][2] = {{"self_attn.qkv_proj.weight", "input_layernorm.weight"},
                                           {"mlp.gate_up_proj.weight", "post_attention_layernorm.weight"},
                                           {"mlp.down_proj.weight", "mlp.up_proj.weight"},
                                           {"self_attn.o_proj.weight", "self_attn.v_proj.weight"}};
    const struct graph_weight *matrix = &f->engine.weights[link->matrix], *maker = &f->engine.weights[link->maker];
    const char *tensor = maker->sources[link->source].tensor;
    assert_int_equal(link->bias >= 0,
                     maker->columns && (f->model.family == TEST_LLAMA_BIASED_TIED || f->model.family == TEST_GRANITE ||
                                        (f->model.family == TEST_QWEN2 && strstr(matrix->name, "o_proj"))));
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
        if (strstr(matrix->name, pairs[p][0]) && (strstr(tensor, pairs[p][1]) || f->model.family == TEST_PHI3)) {
            assert_int_equal(link->is_shared, p < 2);
            assert_int_equal(matrix->layer, maker->layer);
            return;
        }
    fail_msg("%s of %s", matrix->name, tensor);
}

/* Four matrices in each layer, of which OLMo 2 has no norm before two. */
TEST(links_of_every_family)
{
    for (int family = 0; family < TEST_FAMILIES; family++)
        for (uint32_t ranks = 1; ranks <= (family < TEST_RANK_FAMILIES ? 2 : 1); ranks++) {
            struct fixture f = {0};
            int count;
            test_model_init_sizes(&f.model, (enum test_family)family, DTYPE_BF16, &sizes_of[family % SIZES]);
            open_fixture(&f, ranks, &as_int4, alike);
            struct channel_link *links = find_links(&f, &count);
            assert_int_equal(count, (family == TEST_OLMO2 ? 2 : 4) * TEST_LAYERS);
            for (int l = 0; l < count; l++) expect_link(&f, &links[l]);
            free(links);
            close_fixture(&f);
        }
}

/* A norm of v would take a factor out again. */
TEST(normalised_values_have_no_links)
{
    struct fixture f = {0};
    int count;
    test_model_init_sizes(&f.model, TEST_LLAMA, DTYPE_BF16, &sizes_of[0]);
    open_fixture(&f, 1, &as_int4, alike);
    for (int n = 0; n < f.plain.node_count; n++)
        if (f.plain.nodes[n].op == OP_ROPE_APPEND) f.plain.nodes[n].params[ROPE_APPEND_NORM_V] = 1;
    struct channel_link *links = find_links(&f, &count);
    assert_int_equal(count, 3 * TEST_LAYERS);
    for (int l = 0; l < count; l++) assert_null(strstr(f.engine.weights[links[l].matrix].name, "o_proj"));
    free(links);
    close_fixture(&f);
}

/* Weights that are not calibrated, or whose rows would be rounded once more, or whose codes are floats, stay as they are. */
TEST(other_types_have_no_links)
{
    const struct weight_types types[] = {
        {.matrices = ENCODING_INT4_G32,
         .head_as_it_is = true,
         .kept = {{"*gate_up_proj*", ENCODING_BF16}},
         .kept_count = 1},
        {.matrices = ENCODING_INT4_G32,
         .head_as_it_is = true,
         .kept = {{"*down_proj*", ENCODING_NONE}},
         .kept_count = 1},
        {.matrices = ENCODING_INT4_G32,
         .head_as_it_is = true,
         .kept = {{"*gate_up_proj*", ENCODING_INT8_G32}},
         .kept_count = 1},
        {.matrices = ENCODING_MXFP4, .head_as_it_is = true},
        {.matrices = ENCODING_NVFP4, .head_as_it_is = true},
    };
    static const int expected[] = {2, 3, 3, 0, 0}; /* of 4 */
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct fixture f = {0};
        int count;
        test_model_init_sizes(&f.model, TEST_LLAMA, DTYPE_BF16, &sizes_of[0]);
        open_fixture(&f, 1, &types[t], alike);
        free(find_links(&f, &count));
        assert_int_equal(count, expected[t] * TEST_LAYERS);
        close_fixture(&f);
    }
}

/* ---- the model stays the same ---- */

/* Factors of any size in every place where some can be. */
static void random_scales(struct fixture *f, struct channel_scales *scales)
{
    int count;
    struct channel_link *links = find_links(f, &count);
    const size_t weights = (size_t)f->engine.weight_count;
    *scales = (struct channel_scales){.weight_count = f->engine.weight_count, .ranks = f->ranks};
    scales->weights = calloc(weights * f->ranks, sizeof *scales->weights);
    float *next = scales->values = malloc(2 * MOST_DEPTH * (size_t)count * f->ranks * sizeof *next);
    assert_true(scales->weights && next);
    for (int l = 0; l < count; l++)
        for (uint32_t rank = 0; rank < f->ranks; rank++, next += 2 * MOST_DEPTH) {
            const struct channel_link *link = &links[l];
            struct weight_scales *of = scales->weights + rank * weights;
            for (int i = 0; i < MOST_DEPTH; i++)
                next[i] = link->is_shared && rank > 0 ? next[i - 2 * MOST_DEPTH] : exp2f(3 * random_float());
            for (uint64_t k = 0; k < f->engine.weights[link->matrix].columns; k++)
                next[MOST_DEPTH + k] = 1 / next[channel_link_row(link, k)];
            of[link->matrix].columns = next + MOST_DEPTH;
            of[link->maker].rows = next;
            of[link->maker].source = link->source;
            if (link->bias < 0) continue;
            of[link->bias].rows = next;
            of[link->bias].source = link->source;
        }
    free(links);
}

/* A graph's weights and its decode plan. */
struct runnable {
    struct engine_writer *writer;
    struct manifest manifest;
    struct plan plan;
    const uint8_t *weights;
};

static void make_runnable(struct fixture *f, const struct channel_scales *scales, const char *name,
                          struct runnable *run)
{
    struct status status = {0};
    struct lowering lowering = {.kv_dtype = ENCODING_F32, .threads = 2};
    struct plan_geometry *geometry = &lowering.geometry;
    const struct model_config *config = &f->checkpoint.config;
    *run = (struct runnable){.writer = engine_writer_begin(test_path(f->folder, name), &status)};
    assert_non_null(run->writer);
    uint64_t bytes;
    f->plain.scales = scales;
    test_expect_success(plan_weights(&f->plain, &bytes, &status), &status);
    test_expect_success(test_model_pack(&f->plain, &f->checkpoint, run->writer, bytes, NULL, NULL, &run->weights,
                                        &status),
                        &status);
    f->plain.scales = NULL;
    *geometry = (struct plan_geometry){.slots = SEQUENCES,
                                       .max_context = CONTEXT,
                                       .page_tokens = PAGE,
                                       .pages_per_slot = CONTEXT / PAGE,
                                       .vocab_size = config->vocab_size,
                                       .ranks = f->ranks};
    geometry->page_bytes = config->layers * kv_layer_bytes(&f->rank_config, PAGE, lowering.kv_dtype);
    test_expect_success(lower_exchange_bytes(&f->plain, &lowering, SEQUENCES, SEQUENCES, &lowering.exchange_bytes,
                                             &status),
                        &status);
    test_expect_success(lower_plan(&f->plain, &lowering, SEQUENCES, &run->plan, &status), &status);
    run->manifest = (struct manifest){.target = TARGET_CPU,
                                      .layers = config->layers,
                                      .kv_dtype = lowering.kv_dtype,
                                      .weights_bytes = bytes,
                                      .arena_bytes = run->plan.header.arena_bytes,
                                      .step_bytes = run->plan.header.step_bytes,
                                      .bos_token = 1};
    assert_true(lower_comm_bytes(&lowering, &run->manifest.comm_bytes));
    run->manifest.geometry = *geometry;
    assert_true(geometry_place_state(&run->manifest.geometry, &run->manifest.state_bytes));
}

static void close_runnable(struct runnable *run)
{
    plan_free(&run->plan);
    engine_writer_abandon(run->writer);
}

TEST(factors_that_move_change_no_logits)
{
    for (int family = 0; family < TEST_FAMILIES; family++)
        for (uint32_t ranks = 1; ranks <= (family < TEST_RANK_FAMILIES ? 2 : 1); ranks++) {
            struct fixture f = {0};
            struct channel_scales scales;
            struct runnable plain, moved;
            struct manifest_accuracy accuracy;
            struct status status = {0};
            test_model_init_sizes(&f.model, (enum test_family)family, DTYPE_F32,
                                  &sizes_of[((uint32_t)family + ranks) % SIZES]);
            open_fixture(&f, ranks, &as_int4, alike);
            random_scales(&f, &scales);
            make_runnable(&f, NULL, "plain", &plain);
            make_runnable(&f, &scales, "moved", &moved);
            assert_true(memcmp(plain.weights, moved.weights, plain.manifest.weights_bytes) != 0);
            const struct accuracy_model a = {&plain.manifest, &plain.plan, plain.weights},
                                        b = {&moved.manifest, &moved.plan, moved.weights};
            test_expect_success(measure_accuracy_cpu(&a, &b, f.team, CPU_PORTABLE, NULL, &accuracy, &status), &status);
            if (!(accuracy.kl < 1e-9 && accuracy.top1 == 1))
                fail_msg("family %d, %u ranks: divergence %g, same token %g", family, ranks, accuracy.kl,
                         accuracy.top1);
            close_runnable(&plain);
            close_runnable(&moved);
            channel_scales_close(&scales);
            channel_scales_close(&scales);
            close_fixture(&f);
        }
}

/* ---- the choice ---- */

TEST(activations_of_one_size_need_no_scales)
{
    struct fixture f = {0};
    struct channel_scales scales;
    test_model_init_sizes(&f.model, TEST_LLAMA, DTYPE_BF16, &sizes_of[0]);
    open_fixture(&f, 1, &as_int4, alike);
    choose(&f, &scales);
    assert_int_equal(scales.summary.matrices, 4 * TEST_LAYERS);
    assert_int_equal(scales.summary.scaled, 0);
    for (int w = 0; w < f.engine.weight_count; w++) {
        const struct weight_scales found = channel_scales_of(&scales, 0, w);
        assert_true(!found.columns && !found.rows);
    }
    channel_scales_close(&scales);
    close_fixture(&f);
}

/* The error of products with a matrix's rows, by the factors. */
static double error_of(const struct fixture *f, int w, const float *columns)
{
    const struct graph_weight *weight = &f->engine.weights[w];
    struct coded_feedback feedback = {.factors = calibration_factors(&f->calibration, 0, w),
                                      .error_weights = calibration_error_weights(&f->calibration, 0, w),
                                      .scales = columns};
    struct panel_form form;
    struct coded_row row;
    float values[MOST_DEPTH] = {0};
    double error = 0;
    assert_true(weight_layout_form(graph_weight_layout(&f->engine, weight), weight->encoding, &form) &&
                coded_row_open(&row, &form, weight->depth));
    for (int s = 0; s < weight->source_count; s++)
        for (uint64_t r = 0; r < weight->sources[s].rows; r++) {
            uint64_t refused;
            const struct weight_source *source = &weight->sources[s];
            source_read(source, checkpoint_find(&f->checkpoint, source->tensor), r, 0, weight->columns, values);
            for (uint64_t k = weight->columns; k < weight->depth; k++) values[k] = 0;
            assert_true(coded_from_floats(&form, values, weight->depth, &feedback, &row, &refused));
            error += feedback.error;
        }
    coded_row_close(&row);
    return error;
}

TEST(large_columns_get_scales)
{
    struct fixture f = {0};
    struct channel_scales scales;
    double before = 0, after = 0;
    test_model_init_sizes(&f.model, TEST_LLAMA, DTYPE_BF16, &sizes_of[0]);
    open_fixture(&f, 1, &as_int4, with_large_columns);
    choose(&f, &scales);
    assert_true(scales.summary.scaled > 0 && scales.summary.least_alpha > 0 && scales.summary.most_alpha <= 1 &&
                scales.summary.least_alpha <= scales.summary.most_alpha);
    for (int w = 0; w < f.engine.weight_count; w++) {
        if (!calibration_factors(&f.calibration, 0, w)) continue;
        const double plain = error_of(&f, w, NULL), scaled = error_of(&f, w, channel_scales_of(&scales, 0, w).columns);
        assert_true(scaled <= plain);
        before += plain;
        after += scaled;
    }
    if (!(after < 0.8 * before)) fail_msg("error %g, without scales %g", after, before);
    channel_scales_close(&scales);
    close_fixture(&f);
}

/* A norm of 16 bits is rounded when it is divided, and the columns make that good. An element that is 0, and a column that no
 * activation reaches, have the factor 1. */
TEST(columns_make_good_how_norms_are_rounded)
{
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        struct fixture f = {0};
        struct channel_scales scales;
        int norms = 0;
        test_model_init_sizes(&f.model, TEST_LLAMA, dtypes[d], &sizes_of[0]);
        for (size_t t = 0; t < f.model.count; t++)
            if (strstr(f.model.tensors[t].name, "layernorm")) {
                f.model.tensors[t].has_odd_value = true;
                f.model.tensors[t].odd_index = 7;
                f.model.tensors[t].odd_value = 0;
            }
        open_fixture(&f, 1, &as_int4, with_a_column_of_zeros);
        choose(&f, &scales);
        for (int w = 0; w < f.engine.weight_count; w++) {
            const struct graph_weight *norm = &f.engine.weights[w];
            const struct weight_scales made = channel_scales_of(&scales, 0, w);
            if (!made.rows || norm->columns) continue;
            const float *columns = NULL;
            for (int m = 0; m < f.engine.weight_count && !columns; m++)
                if (m != w && f.engine.weights[m].layer == norm->layer && f.engine.weights[m].columns == TEST_HIDDEN &&
                    !strstr(norm->name, "input") == !strstr(f.engine.weights[m].name, "qkv"))
                    columns = channel_scales_of(&scales, 0, m).columns;
            assert_non_null(columns);
            norms++;
            const struct tensor_view *tensor = checkpoint_find(&f.checkpoint, norm->sources[0].tensor);
            for (uint64_t i = 0; i < TEST_HIDDEN; i++) {
                const float before = source_tensor_element(tensor, i), divided = before * made.rows[i];
                const float after = dtypes[d] == DTYPE_F32   ? divided
                                    : dtypes[d] == DTYPE_F16 ? f16_to_float(f16_from_float(divided))
                                                             : bf16_to_float(bf16_from_float(divided));
                assert_true(isfinite(made.rows[i]) && isfinite(columns[i]) && columns[i] > 0);
                if (before == 0 || i == 2) assert_true(made.rows[i] == 1 && columns[i] == 1);
                if (fabsf(after * columns[i] - before) > 0x1p-22f * fabsf(before))
                    fail_msg("element %d: %g times %g, expected %g", (int)i, (double)after, (double)columns[i],
                             (double)before);
            }
        }
        assert_true(norms > 0);
        channel_scales_close(&scales);
        close_fixture(&f);
    }
}

/* Ranks that normalise the same stream agree on its factors, and the number of threads changes none. */
TEST(threads_and_ranks_agree)
{
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct fixture f = {0};
        struct channel_scales scales, alone;
        struct status status = {0};
        seed = 99;
        test_model_init_sizes(&f.model, TEST_LLAMA_BIASED_TIED, DTYPE_BF16, &sizes_of[0]);
        open_fixture(&f, ranks, &as_int4, with_large_columns);
        choose(&f, &scales);
        team_destroy(f.team);
        f.team = team_create(1, &status);
        assert_non_null(f.team);
        choose(&f, &alone);
        assert_int_equal(scales.summary.scaled, alone.summary.scaled);
        for (uint32_t rank = 0; rank < ranks; rank++)
            for (int w = 0; w < f.engine.weight_count; w++) {
                const struct weight_scales a = channel_scales_of(&scales, rank, w),
                                           b = channel_scales_of(&alone, rank, w),
                                           first = channel_scales_of(&scales, 0, w);
                const struct graph_weight *weight = &f.engine.weights[w];
                assert_int_equal(!a.rows, !b.rows);
                assert_int_equal(!a.columns, !b.columns);
                if (a.columns) assert_memory_equal(a.columns, b.columns, weight->depth * sizeof(float));
                if (!a.rows) continue;
                const uint64_t rows = weight->sources[a.source].rank_rows;
                assert_memory_equal(a.rows, b.rows, rows * sizeof(float));
                if (strstr(weight->name, "layernorm")) assert_memory_equal(a.rows, first.rows, rows * sizeof(float));
            }
        channel_scales_close(&scales);
        channel_scales_close(&alone);
        close_fixture(&f);
    }
}

/* Packing names a weight that is not finite; the choice before it only must not fail or choose by it. */
TEST(weights_that_are_not_finite)
{
    struct fixture f = {0};
    struct channel_scales scales;
    test_model_init_sizes(&f.model, TEST_LLAMA, DTYPE_F32, &sizes_of[0]);
    struct test_tensor *tensor = test_model_find(&f.model, "model.layers.0.mlp.down_proj.weight");
    tensor->has_odd_value = true;
    tensor->odd_index = 3;
    tensor->odd_value = INFINITY;
    open_fixture(&f, 1, &as_int4, with_large_columns);
    choose(&f, &scales);
    for (int w = 0; w < f.engine.weight_count; w++)
        if (strcmp(f.engine.weights[w].name, tensor->name) == 0) assert_null(channel_scales_of(&scales, 0, w).columns);
    channel_scales_close(&scales);
    close_fixture(&f);
}

int main(void) { return test_run(); }
