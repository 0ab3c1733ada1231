/* SPDX-License-Identifier: Apache-2.0 */
/* Weights made of sources of every kind: each element of the packed weight equals plain arithmetic on the tensors, on
 * one rank and several, in panels and row by row, in every encoding, whole and in parts; elements that are not
 * consumed, consumed twice, or not finite are named. */
#include <math.h>
#include <sys/mman.h>

#include "builder/passes/pass.h"
#include "formats/base/test_program.h"
#include "builder/test_model.h"
#include "builder/weights/coded.h"
#include "builder/weights/shard.h"
#include "kernels/matmul/weight_layout.h"

enum { HEADS = 6, KV_HEADS = 6, HEAD_DIM = 8, HIDDEN = 22, INNER = 24, WIDTH = HEADS * HEAD_DIM, EXPERTS = 3 };
enum { MOST_TENSORS = 8, TENSOR_BYTES = 1 << 18 };

/* A checkpoint in memory. A file's, because packing gives pages of tensors back. */
struct fixture {
    struct tensor_view views[MOST_TENSORS];
    struct checkpoint checkpoint;
    struct model_config rank_config;
    struct graph graph;
    uint8_t *memory;
    uint64_t seed, total_bytes;
};

static void begin(struct fixture *f, uint32_t ranks, enum engine_target target)
{
    struct status status = {0};
    *f = (struct fixture){.seed = 3};
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

static void end(struct fixture *f)
{
    graph_free(&f->graph);
    munmap(f->memory, MOST_TENSORS * TENSOR_BYTES);
}

/* Tensors are added by rising name. */
static void add_tensor(struct fixture *f, const char *name, enum dtype dtype, int rank, const uint64_t *shape)
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

static void set_element(struct fixture *f, size_t tensor, uint64_t index, float value)
{
    const enum dtype dtype = f->views[tensor].dtype;
    const uint16_t half = dtype == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
    memcpy(f->memory + tensor * TENSOR_BYTES + index * dtype_bytes(dtype),
           dtype == DTYPE_F32 ? (const void *)&value : (const void *)&half, dtype_bytes(dtype));
}

static float element(const struct fixture *f, size_t tensor, uint64_t index)
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
static void set_compute_dtype(struct fixture *f, enum encoding_id matrices)
{
    if (f->graph.target == TARGET_CUDA)
        f->graph.compute_dtype = encoding_is_plain(matrices) ? (enum dtype)matrices : DTYPE_BF16;
}

static bool bind_and_plan(struct fixture *f, enum encoding_id matrices, struct status *status)
{
    set_compute_dtype(f, matrices);
    return pass_shard.run(&f->graph, status) &&
           bind_weights(&f->graph, &f->checkpoint, &(struct weight_types){.matrices = matrices}, status) &&
           plan_weights(&f->graph, &f->total_bytes, status);
}

/* All bytes of the weight section, in parts of any size, which must agree with the whole. */
static bool pack(struct fixture *f, uint8_t **bytes, struct status *status)
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
typedef float element_of(const struct fixture *f, uint64_t row, uint64_t column);

static float k_of_fused(const struct fixture *f, uint64_t row, uint64_t column)
{
    return element(f, 0, (WIDTH + row) * HIDDEN + column);
}

static float k_of_heads(const struct fixture *f, uint64_t row, uint64_t column)
{
    const uint64_t head = row / HEAD_DIM, in_head = row % HEAD_DIM;
    return element(f, 0, ((3 * head + 1) * HEAD_DIM + in_head) * HIDDEN + column);
}

static float up_by_turns(const struct fixture *f, uint64_t row, uint64_t column)
{
    return element(f, 0, (2 * row + 1) * HIDDEN + column);
}

static float conv1d(const struct fixture *f, uint64_t row, uint64_t column)
{
    return element(f, 0, column * WIDTH + row);
}

static float v_of_conv1d(const struct fixture *f, uint64_t row, uint64_t column)
{
    return element(f, 0, column * 3 * WIDTH + 2 * WIDTH + row);
}

static float columns_of_fused(const struct fixture *f, uint64_t row, uint64_t column)
{
    return element(f, 0, row * 50 + 7 + column);
}

static float halves(const struct fixture *f, uint64_t row, uint64_t column)
{
    const uint64_t head = row / HEAD_DIM, at = row % HEAD_DIM;
    const uint64_t pair = at < HEAD_DIM / 2 ? 2 * at : 2 * (at - HEAD_DIM / 2) + 1;
    return element(f, 0, (head * HEAD_DIM + pair) * HIDDEN + column);
}

static float partial_halves(const struct fixture *f, uint64_t row, uint64_t column)
{
    static const uint64_t from[HEAD_DIM] = {0, 2, 1, 3, 4, 5, 6, 7}; /* the first four rotate */
    return element(f, 0, (row / HEAD_DIM * HEAD_DIM + from[row % HEAD_DIM]) * HIDDEN + column);
}

static float halves_of_heads(const struct fixture *f, uint64_t row, uint64_t column)
{
    const uint64_t head = row / HEAD_DIM, at = row % HEAD_DIM;
    const uint64_t pair = at % (HEAD_DIM / 2) * 2 + at / (HEAD_DIM / 2);
    return element(f, 0, (3 * head * HEAD_DIM + pair) * HIDDEN + column);
}

static float scaled(const struct fixture *f, uint64_t row, uint64_t column)
{
    return 0.3f * element(f, 0, row * HIDDEN + column) + 1.0f;
}

static float repeated(const struct fixture *f, uint64_t row, uint64_t column)
{
    return element(f, 0, row % 4 * HIDDEN + column);
}

static float expert(const struct fixture *f, uint64_t row, uint64_t column)
{
    return element(f, 0, (WIDTH + row) * HIDDEN + column);
}

static float plain(const struct fixture *f, uint64_t row, uint64_t column)
{
    return element(f, 0, row * HIDDEN + column);
}

static float zeros(const struct fixture *f, uint64_t row, uint64_t column)
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
};
enum { CASES = sizeof cases / sizeof *cases };

static int rank_of(const struct weight_source *source)
{
    int rank = 0;
    while (rank < SOURCE_MAX_RANK && source->shape[rank]) rank++;
    return rank;
}

/* ---- packed weights ---- */

/* What a rank should have of a source of WIDTH rows: rows and columns of the whole that are its own. */
static float shared_element(const struct fixture *f, const struct source_case *c, enum shard shard, uint32_t rank,
                            uint64_t row, uint64_t column)
{
    const uint32_t ranks = f->graph.ranks;
    if (shard == SHARD_ROWS || shard == SHARD_KV_ROWS) row += rank * (WIDTH / ranks);
    if (shard == SHARD_COLUMNS) column += rank * (c->columns / ranks);
    if (shard == SHARD_FIRST_RANK && rank > 0) return 0;
    return c->expected(f, row, column);
}

/* Every row has what coded_from_floats makes of its values. */
static void expect_coded_panels(const struct fixture *f, const struct graph_weight *weight, uint32_t rank,
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
static void expect_weight(const struct fixture *f, const struct graph_weight *weight, uint32_t rank,
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
static void consume_rest(struct fixture *f, const struct weight_source *taken)
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
    struct fixture f;
    struct status status = {0};
    uint8_t *bytes;
    begin(&f, ranks, target);
    add_tensor(&f, "t0", dtype, rank_of(&c->source), c->source.shape);
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
    end(&f);
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
                    struct fixture f;
                    struct status status = {0};
                    uint8_t *bytes;
                    if (!fits_target((enum engine_target)target, encoding_at(e)->id)) continue;
                    begin(&f, ranks, (enum engine_target)target);
                    const int count = interleaved ? 2 : 3;
                    add_tensor(&f, "t0", DTYPE_BF16, 2, parts[0].source.shape);
                    add_tensor(&f, "t1", DTYPE_BF16, 2, parts[1].source.shape);
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
                    end(&f);
                }
}

/* Vectors: 1 + w in F32, a bias of which a part is zeros in its tensor's type. */
TEST(vectors)
{
    struct fixture f;
    struct status status = {0};
    uint8_t *bytes;
    const uint64_t shape[] = {HIDDEN};
    static const float known[] = {0.5f, 3, -7};
    begin(&f, 1, TARGET_CUDA);
    add_tensor(&f, "bias", DTYPE_F16, 1, shape);
    add_tensor(&f, "norm", DTYPE_BF16, 1, shape);
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
    end(&f);
}

TEST(parts_have_names_of_their_own)
{
    struct fixture f;
    begin(&f, 1, TARGET_CPU);
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
    end(&f);
}

/* ---- consumption ---- */

/* Binds weights that take these parts of one tensor. */
static bool bind_parts(const struct weight_source *sources, size_t count, struct status *status)
{
    struct fixture f;
    *status = (struct status){0};
    begin(&f, 1, TARGET_CPU);
    add_tensor(&f, "blk.qkv", DTYPE_BF16, rank_of(&sources[0]), sources[0].shape);
    for (size_t i = 0; i < count; i++) graph_weight_from(&f.graph, 0, WEIGHT_ROW_MAJOR, &sources[i], "blk.qkv");
    bool ok = bind_weights(&f.graph, &f.checkpoint, &(struct weight_types){0}, status);
    end(&f);
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
}

/* What an architecture file may get wrong. */
TEST(sources_that_contradict_themselves)
{
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
        {{.shape = {5, 2, 3}, .transposed = true}, "no matrix"},
        {{.shape = {UINT64_MAX / 2, 5}, .rows = 1}, "2^64"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct fixture f;
        struct status status = {0};
        const uint64_t shape[] = {30, 5};
        begin(&f, 1, TARGET_CPU);
        add_tensor(&f, "blk.w", DTYPE_F32, 2, shape);
        graph_weight_from(&f.graph, 0, WEIGHT_ROW_MAJOR, &wrong[i].source, "blk.w");
        bool ok = bind_weights(&f.graph, &f.checkpoint, &(struct weight_types){0}, &status);
        test_expect_failure(ok, &status, STATUS_INTERNAL, wrong[i].words);
        test_expect_message(&status, "blk.w|source 0");
        end(&f);
    }
    /* Sources of one weight that do not fit each other. */
    struct fixture f;
    struct status status = {0};
    begin(&f, 1, TARGET_CPU);
    add_tensor(&f, "t0", DTYPE_F32, 2, (const uint64_t[]){30, 5});
    const int id = graph_weight_from(&f.graph, 0, WEIGHT_MATRIX, &(struct weight_source){.shape = {30, 5}}, "t0");
    graph_weight_append(&f.graph, id, &(struct weight_source){.rows = 3, .columns = 4}, "zeros");
    bool ok = bind_weights(&f.graph, &f.checkpoint, &(struct weight_types){0}, &status);
    test_expect_failure(ok, &status, STATUS_INTERNAL, "source 1 has other columns");
    end(&f);
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
    struct fixture f;
    struct status status = {0};
    static const char *const names[] = {"a", "b.kept", "c", "d"};
    static const uint64_t shape[] = {WIDTH, 128};
    begin(&f, 1, TARGET_CUDA);
    f.graph.compute_dtype = expected->compute_dtype;
    for (int i = 0; i < 4; i++) {
        add_tensor(&f, names[i], expected->tensor, 2, shape);
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
    end(&f);
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
                struct fixture f;
                struct status status = {0};
                uint8_t *bytes = NULL;
                char words[80];
                const enum engine_target target = c % 2 ? TARGET_CPU : TARGET_CUDA;
                if (!fits_case(target, encoding_at(e)->id, &cases[c])) continue;
                begin(&f, ranks, target);
                add_tensor(&f, "t0", dtypes[(c + e) % 3], rank_of(&cases[c].source), cases[c].source.shape);
                const int id = graph_weight_from(&f.graph, 0, WEIGHT_MATRIX, &cases[c].source, "t0");
                graph_shard(&f.graph, id, SHARD_ROWS);
                if (!cases[c].every) consume_rest(&f, &f.graph.weights[id].sources[0]);
                const struct weight_source *source = &f.graph.weights[id].sources[0];
                const uint64_t row = test_random(&f.seed) % WIDTH, column = test_random(&f.seed) % cases[c].columns;
                const uint64_t at = place_of(source, row, column);
                const uint64_t pitch = source->shape[rank_of(source) - 1];
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
                end(&f);
            }
}

/* Arithmetic may leave the range of the encoding, of an element that is in it. */
TEST(what_arithmetic_makes_too_large)
{
    struct fixture f;
    struct status status = {0};
    uint8_t *bytes;
    begin(&f, 1, TARGET_CUDA);
    add_tensor(&f, "t0", DTYPE_F32, 2, (const uint64_t[]){6, 4});
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
    end(&f);
}

int main(void) { return test_run(); }
