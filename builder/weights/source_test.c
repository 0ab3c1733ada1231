/* SPDX-License-Identifier: Apache-2.0 */
/* Weights made of sources of every kind: each element of the packed weight equals plain arithmetic on the tensors, on
 * one rank and several, in panels and row by row, in every encoding, whole and in parts; elements that are not
 * finite are named. */
#include <math.h>

#include "builder/passes/pass.h"
#include "formats/base/test_program.h"
#include "builder/test_model.h"
#include "builder/weights/coded.h"
#include "builder/weights/test_tensors.h"
#include "kernels/matmul/weight_layout.h"

static void set_element(struct test_tensors *f, size_t tensor, uint64_t index, float value)
{
    const enum dtype dtype = f->views[tensor].dtype;
    const uint16_t half = dtype == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
    memcpy(f->memory + tensor * TENSOR_BYTES + index * dtype_bytes(dtype),
           dtype == DTYPE_F32 ? (const void *)&value : (const void *)&half, dtype_bytes(dtype));
}

static float element(const struct test_tensors *f, size_t tensor, uint64_t index)
{
    const enum dtype dtype = f->views[tensor].dtype;
    const uint8_t *at = f->memory + tensor * TENSOR_BYTES + index * dtype_bytes(dtype);
    uint16_t half;
    float value;
    memcpy(&half, at, sizeof half);
    if (dtype == DTYPE_F16) return f16_to_float(half);
    if (dtype == DTYPE_BF16) return bf16_to_float(half);
    memcpy(&value, at, sizeof value);
    return value;
}

/* As a build for these matrices chooses it. */
static void set_compute_dtype(struct test_tensors *f, enum encoding_id matrices)
{
    if (f->graph.target == TARGET_CUDA)
        f->graph.compute_dtype = encoding_is_plain(matrices) ? (enum dtype)matrices : DTYPE_BF16;
}

static bool bind_and_plan(struct test_tensors *f, enum encoding_id matrices, struct status *status)
{
    set_compute_dtype(f, matrices);
    return pass_shard.run(&f->graph, status) &&
           bind_weights(&f->graph, &f->checkpoint, &(struct weight_types){.matrices = matrices}, status) &&
           plan_weights(&f->graph, &f->total_bytes, status);
}

/* All bytes of the weight section, in parts of any size, which must agree with the whole. */
static bool pack(struct test_tensors *f, uint8_t **bytes, struct status *status)
{
    struct packer *packer = packer_open(&f->graph, &f->checkpoint, f->total_bytes, status);
    assert_non_null(packer);
    uint8_t *part = malloc(f->total_bytes);
    *bytes = malloc(f->total_bytes);
    assert_true(part && *bytes);
    bool ok = packer_read(packer, 0, f->total_bytes, *bytes, status);
    for (int i = 0; ok && i < 12; i++) {
        const uint64_t first = test_random(&f->seed) % f->total_bytes;
        const uint64_t count = test_random(&f->seed) % (i < 6 ? 40 : f->total_bytes) + 1;
        const uint64_t size = count < f->total_bytes - first ? count : f->total_bytes - first;
        assert_true(packer_read(packer, first, size, part, status));
        assert_memory_equal(part, *bytes + first, size);
    }
    free(part);
    packer_close(packer);
    return ok;
}

/* ---- what sources say, in plain arithmetic ---- */

/* Element of a source as the test computes it. */
typedef float element_of(const struct test_tensors *f, uint64_t row, uint64_t column);

static float k_of_fused(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, (WIDTH + row) * HIDDEN + column);
}

static float k_of_heads(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    const uint64_t head = row / HEAD_DIM, in_head = row % HEAD_DIM;
    return element(f, 0, ((3 * head + 1) * HEAD_DIM + in_head) * HIDDEN + column);
}

static float up_by_turns(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, (2 * row + 1) * HIDDEN + column);
}

static float conv1d(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, column * WIDTH + row);
}

static float v_of_conv1d(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, column * 3 * WIDTH + 2 * WIDTH + row);
}

static float columns_of_fused(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, row * 50 + 7 + column);
}

static float halves(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    const uint64_t head = row / HEAD_DIM, at = row % HEAD_DIM;
    const uint64_t pair = at < HEAD_DIM / 2 ? 2 * at : 2 * (at - HEAD_DIM / 2) + 1;
    return element(f, 0, (head * HEAD_DIM + pair) * HIDDEN + column);
}

static float partial_halves(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    static const uint64_t from[HEAD_DIM] = {0, 2, 1, 3, 4, 5, 6, 7}; /* the first four rotate */
    return element(f, 0, (row / HEAD_DIM * HEAD_DIM + from[row % HEAD_DIM]) * HIDDEN + column);
}

static float halves_of_heads(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    const uint64_t head = row / HEAD_DIM, at = row % HEAD_DIM;
    const uint64_t pair = at % (HEAD_DIM / 2) * 2 + at / (HEAD_DIM / 2);
    return element(f, 0, (3 * head * HEAD_DIM + pair) * HIDDEN + column);
}

static float scaled(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return 0.3f * element(f, 0, row * HIDDEN + column) + 1.0f;
}

static float repeated(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, row % 4 * HIDDEN + column);
}

static float expert(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, (WIDTH + row) * HIDDEN + column);
}

static float turned_expert(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, (HIDDEN + column) * WIDTH + row);
}

static float up_of_turned_expert(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, (2 * HIDDEN + column) * 2 * WIDTH + 2 * row + 1);
}

static float plain(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return element(f, 0, row * HIDDEN + column);
}

static float zeros(const struct test_tensors *f, uint64_t row, uint64_t column)
{
    return (void)f, (void)row, (void)column, 0;
}

static const struct source_case {
    const char *name;
    struct weight_source source;
    uint64_t columns;
    element_of *expected;
    bool every; /* it takes all of the tensor */
} cases[] = {
    {"plain", {.shape = {WIDTH, HIDDEN}}, HIDDEN, plain, true},
    {"fused k", {.shape = {3 * WIDTH, HIDDEN}, .first_row = WIDTH, .rows = WIDTH}, HIDDEN, k_of_fused, false},
    {"heads side by side",
     {.shape = {3 * WIDTH, HIDDEN}, .first_row = HEAD_DIM, .rows = WIDTH, .run = HEAD_DIM, .period = 3 * HEAD_DIM},
     HIDDEN,
     k_of_heads,
     false},
    {"up by turns", {.shape = {2 * WIDTH, HIDDEN}, .first_row = 1, .run = 1, .period = 2}, HIDDEN, up_by_turns, false},
    {"Conv1D", {.shape = {HIDDEN, WIDTH}, .transposed = true}, HIDDEN, conv1d, true},
    {"part of Conv1D",
     {.shape = {HIDDEN, 3 * WIDTH}, .transposed = true, .first_row = 2 * WIDTH},
     HIDDEN,
     v_of_conv1d,
     false},
    {"columns", {.shape = {WIDTH, 50}, .first_column = 7, .columns = 24}, 24, columns_of_fused, false},
    {"pairs to halves",
     {.shape = {WIDTH, HIDDEN}, .group = HEAD_DIM, .dealt = HEAD_DIM, .stride = 2},
     HIDDEN,
     halves,
     true},
    {"partial rotation",
     {.shape = {WIDTH, HIDDEN}, .group = HEAD_DIM, .dealt = 4, .stride = 2},
     HIDDEN,
     partial_halves,
     true},
    {"pairs of heads side by side",
     {.shape = {3 * WIDTH, HIDDEN},
      .rows = WIDTH,
      .run = HEAD_DIM,
      .period = 3 * HEAD_DIM,
      .group = HEAD_DIM,
      .stride = 2},
     HIDDEN,
     halves_of_heads,
     false},
    {"scale and add", {.shape = {WIDTH, HIDDEN}, .scale = 0.3f, .add = 1}, HIDDEN, scaled, true},
    {"repeat", {.shape = {4, HIDDEN}, .rows = WIDTH, .repeat = WIDTH / 4}, HIDDEN, repeated, true},
    {"an expert", {.shape = {EXPERTS, WIDTH, HIDDEN}, .first_row = WIDTH, .rows = WIDTH}, HIDDEN, expert, false},
    {"a transposed expert",
     {.shape = {EXPERTS, HIDDEN, WIDTH}, .transposed = true, .first_row = WIDTH, .rows = WIDTH},
     HIDDEN,
     turned_expert,
     false},
    {"up of a transposed expert",
     {.shape = {EXPERTS, HIDDEN, 2 * WIDTH},
      .transposed = true,
      .first_row = 4 * WIDTH + 1,
      .rows = WIDTH,
      .run = 1,
      .period = 2},
     HIDDEN,
     up_of_turned_expert,
     false},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- packed weights ---- */

/* What a rank should have of a source of WIDTH rows: rows and columns of the whole that are its own. */
static float shared_element(const struct test_tensors *f, const struct source_case *c, enum shard shard, uint32_t rank,
                            uint64_t row, uint64_t column)
{
    const uint32_t ranks = f->graph.ranks;
    if (shard == SHARD_ROWS || shard == SHARD_KV_ROWS) row += rank * (WIDTH / ranks);
    if (shard == SHARD_COLUMNS) column += rank * (c->columns / ranks);
    if (shard == SHARD_FIRST_RANK && rank > 0) return 0;
    return c->expected(f, row, column);
}

/* Every row has what coded_from_floats makes of its values. */
static void expect_coded_panels(const struct test_tensors *f, const struct graph_weight *weight, uint32_t rank,
                                const float *values, const uint8_t *bytes, const char *name)
{
    const enum tensor_layout layout = graph_weight_layout(&f->graph, weight);
    const uint64_t depth = weight->depth;
    struct panel_form form;
    struct coded_row row;
    uint64_t refused, panel;
    assert_int_equal(layout, f->graph.target == TARGET_CPU ? LAYOUT_PANEL16 : LAYOUT_FRAGMENT16);
    assert_true(weight_layout_form(layout, weight->encoding, &form));
    assert_true(weight_layout_bytes(layout, weight->encoding, PANEL_ROWS, depth, &panel));
    assert_int_equal(weight->bytes, panel_count(weight->rows) * panel);
    assert_true(coded_row_open(&row, &form, depth));
    uint8_t *expected = malloc(panel);
    float *wanted = malloc(2 * depth * sizeof *wanted), *found = wanted + depth;
    for (uint64_t r = 0; r < weight->rows; r++) {
        memset(expected, 0, panel);
        memcpy(wanted, values + r * depth, depth * sizeof *wanted);
        assert_true(coded_from_floats(&form, wanted, depth, NULL, &row, &refused));
        panel_pack_coded(&form, &row, r % PANEL_ROWS, depth, expected);
        panel_read(&form, expected, r % PANEL_ROWS, depth, 0, depth, wanted);
        panel_read(&form, bytes, r, depth, 0, depth, found);
        for (uint64_t k = 0; k < depth; k++)
            if (wanted[k] != found[k])
                fail_msg("%s in %s: rank %u of %u: element %llu, %llu is %g, expected %g", name,
                         encoding_name(weight->encoding), rank, f->graph.ranks, (unsigned long long)r,
                         (unsigned long long)k, (double)found[k], (double)wanted[k]);
    }
    free(expected);
    free(wanted);
    coded_row_close(&row);
}

/* Whether matrices of the target can have the encoding. */
static bool fits_target(enum engine_target target, enum encoding_id encoding)
{
    return weight_layout_has(weight_layout_of(target, encoding), encoding);
}

/* Whether the case begins with a whole group of the encoding, too. */
static bool fits_case(enum engine_target target, enum encoding_id encoding, const struct source_case *c)
{
    const uint32_t group = encoding_find(encoding)->block_columns;
    return fits_target(target, encoding) && (!group || c->source.first_column % group == 0);
}

/* Compares a rank's weight with dense values [rows, depth], which are encoded here as a whole. */
static void expect_weight(const struct test_tensors *f, const struct graph_weight *weight, uint32_t rank,
                          const float *values, const uint8_t *bytes, const char *name)
{
    const uint64_t rows = weight->rows, depth = weight->depth ? weight->depth : 1;
    const uint8_t *at = bytes + f->total_bytes / f->graph.ranks * rank + weight->offset;
    uint64_t refused;
    if (!encoding_is_plain(weight->encoding)) {
        expect_coded_panels(f, weight, rank, values, at, name);
        return;
    }
    uint8_t *encoded = malloc(encoding_bytes(weight->encoding, rows, depth));
    assert_true(encoding_from_float(weight->encoding, rows, depth, values, encoded, &refused));
    if (graph_weight_layout(&f->graph, weight) == LAYOUT_ROW_MAJOR) {
        assert_int_equal(weight->bytes, encoding_bytes(weight->encoding, rows, depth));
        if (memcmp(at, encoded, weight->bytes) != 0)
            fail_msg("%s in %s: rank %u of %u differs", name, encoding_name(weight->encoding), rank, f->graph.ranks);
    } else {
        const uint64_t size = encoding_find(weight->encoding)->bits / 8;
        const uint64_t stored = panel_depth(depth, (enum dtype)weight->encoding);
        for (uint64_t row = 0; row < rows; row++)
            for (uint64_t k = 0; k < depth; k++) {
                const uint64_t place = panel_index(row, k, stored, (enum dtype)weight->encoding);
                if (memcmp(at + place * size, encoded + (row * depth + k) * size, size) != 0)
                    fail_msg("%s in %s: rank %u of %u: element %llu, %llu differs", name,
                             encoding_name(weight->encoding), rank, f->graph.ranks, (unsigned long long)row,
                             (unsigned long long)k);
            }
    }
    free(encoded);
}

static const enum encoding_id plains[] = {ENCODING_F32, ENCODING_F16, ENCODING_BF16};
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

/* Whatever reads the rest of a tensor, so that all of it is used: one weight for each row or column that is left. */
static void consume_rest(struct test_tensors *f, const struct weight_source *taken)
{
    const uint64_t rows = source_tensor_rows(taken), columns = source_tensor_columns(taken);
    bool *used = calloc(rows, sizeof *used);
    assert_non_null(used);
    for (uint64_t row = 0; row < taken->rows; row++) used[source_tensor_row(taken, row)] = true;
    struct weight_source rest = {.transposed = taken->transposed, .rows = 1};
    memcpy(rest.shape, taken->shape, sizeof rest.shape);
    for (uint64_t row = 0; row < rows; row++) {
        rest.first_row = row;
        if (!used[row]) graph_weight_from(&f->graph, 0, WEIGHT_ROW_MAJOR, &rest, "t0");
    }
    rest.first_row = 0, rest.rows = rows;
    if (taken->first_column) {
        rest.columns = taken->first_column;
        graph_weight_from(&f->graph, 0, WEIGHT_ROW_MAJOR, &rest, "t0");
    }
    if (taken->first_column + taken->columns < columns) {
        rest.columns = 0;
        rest.first_column = taken->first_column + taken->columns;
        graph_weight_from(&f->graph, 0, WEIGHT_ROW_MAJOR, &rest, "t0");
    }
    free(used);
}

static void expect_case(const struct source_case *c, uint32_t ranks, enum engine_target target, enum shard shard,
                        enum dtype dtype, enum encoding_id encoding)
{
    struct test_tensors f;
    struct status status = {0};
    uint8_t *bytes;
    test_tensors_begin(&f, ranks, target);
    test_tensors_add(&f, "t0", dtype, test_rank_of(&c->source), c->source.shape);
    const int id = graph_weight_from(&f.graph, 0, WEIGHT_MATRIX, &c->source, "t0");
    graph_shard(&f.graph, id, shard);
    if (!c->every) consume_rest(&f, &f.graph.weights[id].sources[0]);
    test_expect_success(bind_and_plan(&f, encoding, &status), &status);
    test_expect_success(pack(&f, &bytes, &status), &status);
    const struct graph_weight *weight = &f.graph.weights[id];
    assert_int_equal(weight->rows, shard == SHARD_ROWS || shard == SHARD_KV_ROWS ? WIDTH / ranks : WIDTH);
    assert_int_equal(weight->columns, shard == SHARD_COLUMNS ? c->columns / ranks : c->columns);
    float *values = malloc(weight->rows * weight->columns * sizeof *values);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint64_t row = 0; row < weight->rows; row++)
            for (uint64_t k = 0; k < weight->columns; k++)
                values[row * weight->columns + k] = shared_element(&f, c, shard, rank, row, k);
        expect_weight(&f, weight, rank, values, bytes, c->name);
    }
    free(values);
    free(bytes);
    test_tensors_end(&f);
}

TEST(every_kind_of_source)
{
    static const enum shard shards[] = {SHARD_NONE, SHARD_ROWS, SHARD_KV_ROWS, SHARD_COLUMNS, SHARD_FIRST_RANK};
    int variant = 0;
    for (size_t c = 0; c < CASES; c++)
        for (uint32_t ranks = 1; ranks <= 3; ranks++)
            for (size_t s = 0; s < sizeof shards / sizeof *shards; s++) {
                if (shards[s] == SHARD_COLUMNS && cases[c].columns % ranks) continue;
                for (int target = TARGET_CPU; target <= TARGET_CUDA; target++)
                    for (size_t e = 0; e < 3; e++, variant++)
                        expect_case(&cases[c], ranks, (enum engine_target)target, shards[s],
                                    dtypes[(size_t)variant / 3 % 3], plains[e]);
            }
}

/* Codes, whose panels cross what ranks and sources have. */
TEST(every_encoding)
{
    for (size_t e = 0; encoding_at(e); e++)
        for (size_t c = 0; c < CASES; c++)
            for (uint32_t ranks = 1; ranks <= 3; ranks += 2) {
                const enum engine_target target = c % 2 ? TARGET_CPU : TARGET_CUDA;
                if (!fits_case(target, encoding_at(e)->id, &cases[c])) continue;
                expect_case(&cases[c], ranks, target, c % 3 ? SHARD_ROWS : SHARD_NONE, dtypes[c % 3],
                            encoding_at(e)->id);
            }
}

/* q, k and v from one tensor, another and zeros; gate and up from runs and a transposed tensor: side by side and by turns. */
TEST(several_sources_make_a_weight)
{
    const struct source_case parts[] = {cases[7],
                                        cases[4],
                                        {"zeros", {.rows = WIDTH, .columns = HIDDEN}, HIDDEN, zeros, true}};
    for (int target = TARGET_CPU; target <= TARGET_CUDA; target++)
        for (uint32_t ranks = 1; ranks <= 3; ranks++)
            for (int interleaved = 0; interleaved < 2; interleaved++)
                for (size_t e = 0; encoding_at(e); e++) {
                    struct test_tensors f;
                    struct status status = {0};
                    uint8_t *bytes;
                    if (!fits_target((enum engine_target)target, encoding_at(e)->id)) continue;
                    test_tensors_begin(&f, ranks, (enum engine_target)target);
                    const int count = interleaved ? 2 : 3;
                    test_tensors_add(&f, "t0", DTYPE_BF16, 2, parts[0].source.shape);
                    test_tensors_add(&f, "t1", DTYPE_BF16, 2, parts[1].source.shape);
                    /* The expectations of the parts read tensor 0: the other one has its values. */
                    for (uint64_t i = 0; i < WIDTH * HIDDEN; i++) set_element(&f, 1, i, element(&f, 0, i));
                    const int id = graph_weight_from(&f.graph, 0, WEIGHT_MATRIX, &parts[0].source, "t0");
                    graph_weight_append(&f.graph, id, &parts[1].source, "t%d", 1);
                    if (!interleaved) graph_weight_append(&f.graph, id, &parts[2].source, "zeros");
                    graph_shard(&f.graph, id, SHARD_ROWS);
                    const uint64_t each = WIDTH / ranks, group = target == TARGET_CPU ? PANEL_ROWS : 8;
                    const uint64_t padded = interleaved ? (each + group - 1) / group * group : each;
                    assert_true(pass_shard.run(&f.graph, &status));
                    struct graph_weight *weight = &f.graph.weights[id];
                    assert_int_equal(weight->rows, (uint64_t)count * each);
                    if (interleaved) weight->interleave = group, weight->rows = 2 * padded;
                    weight->depth = HIDDEN + 2; /* K is padded */
                    set_compute_dtype(&f, encoding_at(e)->id);
                    bool ok = bind_weights(&f.graph, &f.checkpoint,
                                           &(struct weight_types){.matrices = encoding_at(e)->id}, &status) &&
                              plan_weights(&f.graph, &f.total_bytes, &status);
                    test_expect_success(ok, &status);
                    test_expect_success(pack(&f, &bytes, &status), &status);
                    float *values = malloc(weight->rows * weight->depth * sizeof *values);
                    for (uint32_t rank = 0; rank < ranks; rank++) {
                        memset(values, 0, weight->rows * weight->depth * sizeof *values);
                        for (int p = 0; p < count; p++)
                            for (uint64_t row = 0; row < each; row++) {
                                const uint64_t at = interleaved ? (row / group * 2 + (uint64_t)p) * group + row % group
                                                                : (uint64_t)p * each + row;
                                for (uint64_t k = 0; k < HIDDEN; k++)
                                    values[at * weight->depth + k] =
                                        shared_element(&f, &parts[p], SHARD_ROWS, rank, row, k);
                            }
                        expect_weight(&f, weight, rank, values, bytes, interleaved ? "by turns" : "side by side");
                    }
                    free(values);
                    free(bytes);
                    test_tensors_end(&f);
                }
}

/* Vectors: 1 + w in F32, a bias of which a part is zeros in its tensor's type. */
TEST(vectors)
{
    struct test_tensors f;
    struct status status = {0};
    uint8_t *bytes;
    const uint64_t shape[] = {HIDDEN};
    static const float known[] = {0.5f, 3, -7};
    test_tensors_begin(&f, 1, TARGET_CUDA);
    test_tensors_add(&f, "bias", DTYPE_F16, 1, shape);
    test_tensors_add(&f, "norm", DTYPE_BF16, 1, shape);
    const int bias = graph_weight_from(&f.graph, 0, WEIGHT_ROW_MAJOR,
                                       &(struct weight_source){.shape = {HIDDEN}, .rows = 10}, "bias");
    graph_weight_append(&f.graph, bias, &(struct weight_source){.rows = 5}, "zeros");
    graph_weight_append(&f.graph, bias, &(struct weight_source){.shape = {HIDDEN}, .first_row = 10}, "bias");
    const int norm =
        graph_weight_from(&f.graph, 0, WEIGHT_ROW_MAJOR, &(struct weight_source){.shape = {HIDDEN}, .add = 1}, "norm");
    const int constant = graph_constant(&f.graph, known, 3, "known");
    const int ones =
        graph_weight_from(&f.graph, 0, WEIGHT_ROW_MAJOR, &(struct weight_source){.rows = 4, .add = 1}, "ones");
    test_expect_success(bind_and_plan(&f, ENCODING_BF16, &status), &status);
    test_expect_success(pack(&f, &bytes, &status), &status);
    assert_int_equal(f.graph.weights[bias].encoding, ENCODING_F16);
    assert_int_equal(f.graph.weights[bias].rows, HIDDEN + 5);
    assert_int_equal(f.graph.weights[norm].encoding, ENCODING_F32);
    assert_int_equal(f.graph.weights[constant].encoding, ENCODING_F32);
    float values[HIDDEN + 5];
    for (uint64_t i = 0; i < HIDDEN + 5; i++)
        values[i] = i < 10 ? element(&f, 0, i) : i < 15 ? 0 : element(&f, 0, i - 5);
    expect_weight(&f, &f.graph.weights[bias], 0, values, bytes, "bias");
    for (uint64_t i = 0; i < HIDDEN; i++) values[i] = 1.0f + element(&f, 1, i);
    expect_weight(&f, &f.graph.weights[norm], 0, values, bytes, "norm");
    expect_weight(&f, &f.graph.weights[constant], 0, known, bytes, "constant");
    for (uint64_t i = 0; i < 4; i++) values[i] = 1;
    expect_weight(&f, &f.graph.weights[ones], 0, values, bytes, "ones");
    /* A model card counts what the checkpoint has. */
    assert_int_equal(count_parameters(&f.graph), 2 * HIDDEN);
    free(bytes);
    test_tensors_end(&f);
}

TEST(parts_have_names_of_their_own)
{
    struct test_tensors f;
    test_tensors_begin(&f, 1, TARGET_CPU);
    const int ids[] = {
        graph_weight_from(&f.graph, 2, WEIGHT_MATRIX, &(struct weight_source){.shape = {30, 5}}, "a.%d.b", 2),
        graph_weight_from(&f.graph, 2, WEIGHT_MATRIX, &(struct weight_source){.shape = {30, 5}, .rows = 10}, "a.%d.b",
                          2),
        graph_weight_from(&f.graph, 2, WEIGHT_MATRIX, &(struct weight_source){.shape = {30, 5}, .first_row = 10},
                          "a.2.b"),
        graph_weight_from(&f.graph, 2, WEIGHT_MATRIX, &(struct weight_source){.shape = {30, 5}, .first_column = 3},
                          "a.2.b"),
        graph_weight_from(&f.graph, 2, WEIGHT_MATRIX, &(struct weight_source){.shape = {5, 30}, .transposed = true},
                          "t"),
    };
    static const char *const names[] = {"a.2.b", "a.2.b[0:10]", "a.2.b[10:30]", "a.2.b[0:30,3:5]", "t"};
    static const uint64_t shapes[][2] = {{30, 5}, {10, 5}, {20, 5}, {30, 2}, {30, 5}};
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(f.graph.weights[ids[i]].name, names[i]);
        assert_int_equal(f.graph.weights[ids[i]].rows, shapes[i][0]);
        assert_int_equal(f.graph.weights[ids[i]].columns, shapes[i][1]);
    }
    test_tensors_end(&f);
}

/* Biases of experts, whose rows are gate and up by turns: those of each rank, in the order of the experts' matrices. */
TEST(flat_sources)
{
    enum { ROWS = 24, GROUP = 16 };
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct test_tensors f;
        struct status status = {0};
        uint8_t *bytes;
        int weight = -1;
        test_tensors_begin(&f, ranks, TARGET_CPU);
        test_tensors_add(&f, "t0", DTYPE_BF16, 2, (const uint64_t[]){EXPERTS, 2 * ROWS});
        for (uint64_t i = 0; i < 2 * EXPERTS; i++) {
            const struct weight_source source = {.shape = {EXPERTS, 2 * ROWS},
                                                 .flat = true,
                                                 .first_row = i / 2 * 2 * ROWS + i % 2,
                                                 .rows = ROWS,
                                                 .run = 1,
                                                 .period = 2};
            if (i == 0)
                weight = graph_weight_from(&f.graph, 0, WEIGHT_ROW_MAJOR, &source, "t0");
            else
                graph_weight_append(&f.graph, weight, &source, "t0");
        }
        f.graph.weights[weight].experts = EXPERTS;
        f.graph.weights[weight].interleave = GROUP;
        f.graph.weights[weight].rows = graph_weight_rows(&f.graph.weights[weight]);
        graph_shard(&f.graph, weight, SHARD_ROWS);
        test_expect_success(bind_and_plan(&f, ENCODING_BF16, &status), &status);
        const struct graph_weight *made = &f.graph.weights[weight];
        const uint64_t rows = ROWS / ranks, groups = (rows + GROUP - 1) / GROUP;
        assert_int_equal(made->rows, EXPERTS * 2 * groups * GROUP);
        assert_int_equal(made->columns, 0);
        test_expect_success(pack(&f, &bytes, &status), &status);
        float values[EXPERTS * 2 * 2 * GROUP];
        for (uint32_t rank = 0; rank < ranks; rank++) {
            for (uint64_t i = 0; i < made->rows; i++) {
                const uint64_t expert = i / (2 * groups * GROUP), group = i / GROUP % (2 * groups);
                const uint64_t row = group / 2 * GROUP + i % GROUP;
                values[i] = row < rows ? element(&f, 0, expert * 2 * ROWS + 2 * (rank * rows + row) + group % 2) : 0;
            }
            expect_weight(&f, made, rank, values, bytes, "biases");
        }
        free(bytes);
        test_tensors_end(&f);
    }
}

/* ---- elements that are refused ---- */

static uint64_t place_of(const struct weight_source *source, uint64_t row, uint64_t column)
{
    return source_element(source, row, column);
}

/* By the tensor's own row and column, through slices, orders and transpositions, in every encoding. */
TEST(odd_elements_are_named_as_they_lie)
{
    for (size_t c = 0; c < CASES; c++)
        for (size_t e = 0; encoding_at(e); e++)
            for (uint32_t ranks = 1; ranks <= 3; ranks += 2) {
                struct test_tensors f;
                struct status status = {0};
                uint8_t *bytes = NULL;
                char words[80];
                const enum engine_target target = c % 2 ? TARGET_CPU : TARGET_CUDA;
                if (!fits_case(target, encoding_at(e)->id, &cases[c])) continue;
                test_tensors_begin(&f, ranks, target);
                test_tensors_add(&f, "t0", dtypes[(c + e) % 3], test_rank_of(&cases[c].source), cases[c].source.shape);
                const int id = graph_weight_from(&f.graph, 0, WEIGHT_MATRIX, &cases[c].source, "t0");
                graph_shard(&f.graph, id, SHARD_ROWS);
                if (!cases[c].every) consume_rest(&f, &f.graph.weights[id].sources[0]);
                const struct weight_source *source = &f.graph.weights[id].sources[0];
                const uint64_t row = test_random(&f.seed) % WIDTH, column = test_random(&f.seed) % cases[c].columns;
                const uint64_t at = place_of(source, row, column);
                const uint64_t pitch = source->shape[test_rank_of(source) - 1];
                assert_true(element(&f, 0, at) != 0);
                set_element(&f, 0, at, NAN);
                assert_true(isnan(cases[c].expected(&f, row, column))); /* that is the place */
                set_element(&f, 0, at, e % 2 ? NAN : -INFINITY);
                test_expect_success(bind_and_plan(&f, encoding_at(e)->id, &status), &status);
                struct packer *packer = packer_open(&f.graph, &f.checkpoint, f.total_bytes, &status);
                assert_non_null(packer);
                bytes = malloc(f.total_bytes);
                bool ok = packer_read(packer, 0, f.total_bytes, bytes, &status);
                snprintf(words, sizeof words, "'t0': row %llu, column %llu is %s,", (unsigned long long)(at / pitch),
                         (unsigned long long)(at % pitch), e % 2 ? "NaN" : "-infinity");
                test_expect_failure(ok, &status, STATUS_BAD_INPUT, words);
                packer_close(packer);
                free(bytes);
                test_tensors_end(&f);
            }
}

/* Arithmetic may leave the range of the encoding, of an element that is in it. */
TEST(what_arithmetic_makes_too_large)
{
    struct test_tensors f;
    struct status status = {0};
    uint8_t *bytes;
    test_tensors_begin(&f, 1, TARGET_CUDA);
    test_tensors_add(&f, "t0", DTYPE_F32, 2, (const uint64_t[]){6, 4});
    set_element(&f, 0, 13, 60000);
    graph_weight_from(&f.graph, 0, WEIGHT_MATRIX, &(struct weight_source){.shape = {6, 4}, .scale = 2}, "t0");
    test_expect_success(bind_and_plan(&f, ENCODING_F16, &status), &status);
    test_expect_failure(pack(&f, &bytes, &status), &status, STATUS_BAD_INPUT,
                        "'t0': row 3, column 1 is 120000, beyond the range of F16|--dtype");
    free(bytes);
    test_expect_success(bind_and_plan(&f, ENCODING_BF16, &status), &status);
    status = (struct status){0};
    test_expect_success(pack(&f, &bytes, &status), &status);
    free(bytes);
    test_tensors_end(&f);
}

int main(void) { return test_run(); }
