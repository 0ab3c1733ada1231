/* SPDX-License-Identifier: Apache-2.0 */
/* Packing: every element of every weight is where the kernels look for it, in the dtype it should have, and
 * all the rest is zero. The places are worked out here from the tensors' side. */
#include "builder/arch/arch.h"
#include "formats/base/test_program.h"
#include "builder/passes/pass.h"
#include "builder/test_model.h"
#include "builder/weights/weights.h"
#include "kernels/matmul/panel.h"

/* A checkpoint on disk and the packed weights that came of it. */
struct packed {
    char *folder;
    struct checkpoint checkpoint;
    struct graph graph;
    struct engine_writer *writer;
    uint64_t total_bytes, last_progress;
    const uint8_t *weights;
    bool *visited; /* [total_bytes] */
};

static void note_progress(void *context, uint64_t done, uint64_t total)
{
    struct packed *packed = context;
    assert_true(done >= packed->last_progress && done <= total && total == packed->total_bytes);
    packed->last_progress = done;
}

static bool pack_for(struct packed *packed, const struct test_model *model, enum engine_target target, enum dtype dtype,
                     struct status *status)
{
    *packed = (struct packed){.folder = test_folder()};
    test_model_write(model, packed->folder);
    test_expect_success(checkpoint_open(&packed->checkpoint, packed->folder, false, arch_read_config, status), status);
    graph_init(&packed->graph, &packed->checkpoint.config, PLAN_DECODE);
    packed->graph.target = target;
    packed->graph.compute_dtype = dtype;
    test_expect_success(import_graph(&packed->graph, status), status);
    test_expect_success(run_passes(&packed->graph, NULL, NULL, status), status);
    test_expect_success(bind_weights(&packed->graph, &packed->checkpoint, (enum encoding_id)dtype, status), status);
    test_expect_success(plan_weights(&packed->graph, &packed->total_bytes, status), status);
    packed->writer = engine_writer_begin(test_path(packed->folder, "x.eng"), status);
    assert_non_null(packed->writer);
    if (!test_model_pack(&packed->graph, &packed->checkpoint, packed->writer, packed->total_bytes, note_progress,
                         packed, &packed->weights, status))
        return false;
    packed->visited = calloc(packed->total_bytes, sizeof *packed->visited);
    assert_non_null(packed->visited);
    return true;
}

static bool pack(struct packed *packed, const struct test_model *model, enum dtype dtype, struct status *status)
{
    return pack_for(packed, model, TARGET_CPU, dtype, status);
}

static void unpack(struct packed *packed)
{
    engine_writer_abandon(packed->writer);
    graph_free(&packed->graph);
    checkpoint_close(&packed->checkpoint);
    free(packed->visited);
    test_folder_remove(packed->folder);
}

static void expect_element(struct packed *packed, const struct graph_weight *weight, uint64_t index, float value)
{
    size_t bytes = dtype_bytes((enum dtype)weight->encoding);
    uint64_t at = weight->offset + index * bytes;
    assert_true((index + 1) * bytes <= weight->bytes);
    uint32_t expected = float_to_bits(value), found = 0;
    if (weight->encoding == ENCODING_F16)
        expected = f16_from_float(value);
    else if (weight->encoding == ENCODING_BF16)
        expected = bf16_from_float(value);
    memcpy(&found, packed->weights + at, bytes);
    if (found != expected)
        fail_msg("%s element %llu: expected %g, found bits %x", weight->name, (unsigned long long)index, (double)value,
                 (unsigned)found);
    for (size_t b = 0; b < bytes; b++) {
        assert_false(packed->visited[at + b]);
        packed->visited[at + b] = true;
    }
}

static const struct graph_weight *find_weight(const struct graph *graph, const char *name)
{
    for (int w = 0; w < graph->weight_count; w++)
        if (graph->weights[w].used && strcmp(graph->weights[w].name, name) == 0) return &graph->weights[w];
    fail_msg("the engine lacks '%s'", name);
    return NULL;
}

/* Where a tensor of the checkpoint must be: the weight that holds it, its first row there, and how rows are
 * counted. */
struct place {
    const struct graph_weight *weight;
    uint64_t first_row;
    bool gate_up; /* row r lies at 2 G (r / G) + r % G, where G rows of gate and of up alternate */
};

/* G: a panel on the CPU, half of a matrix instruction's rows on devices. */
static uint64_t group_rows(const struct graph *graph) { return graph->target == TARGET_CPU ? PANEL_ROWS : 8; }

static struct place place_of(const struct graph *graph, const char *tensor)
{
    static const struct {
        const char *part, *whole;
        uint64_t first_row;
        bool gate_up;
    } fused[] = {
        {"self_attn.q_proj.", "self_attn.qkv_proj.", 0, false},
        {"self_attn.k_proj.", "self_attn.qkv_proj.", TEST_HEADS * TEST_HEAD_DIM, false},
        {"self_attn.v_proj.", "self_attn.qkv_proj.", (TEST_HEADS + TEST_KV_HEADS) * TEST_HEAD_DIM, false},
        {"mlp.gate_proj.", "mlp.gate_up_proj.", 0, true},
        {"mlp.up_proj.", "mlp.gate_up_proj.", 1, true}, /* in groups */
    };
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        const char *at = strstr(tensor, fused[i].part);
        if (!at) continue;
        char name[128];
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - tensor), tensor, fused[i].whole, at + strlen(fused[i].part));
        uint64_t unit = fused[i].gate_up ? group_rows(graph) : 1;
        return (struct place){find_weight(graph, name), unit * fused[i].first_row, fused[i].gate_up};
    }
    return (struct place){find_weight(graph, tensor), 0, false};
}

static void expect_piece(struct packed *packed, const struct test_piece *piece)
{
    struct place place = place_of(&packed->graph, piece->name);
    const struct graph_weight *weight = place.weight;
    bool tied = packed->graph.config->tie_word_embeddings, cpu = packed->graph.target == TARGET_CPU;
    bool row_major = !cpu || !piece->columns || (strstr(piece->name, "embed_tokens") && !tied);
    uint64_t group = group_rows(&packed->graph);
    /* Only the inner size is padded, to whole groups; in panels BF16 pads K to even. */
    uint64_t columns = piece->columns ? piece->columns : 1;
    uint64_t depth =
        strstr(piece->name, "mlp.down_proj") && piece->columns ? (TEST_INNER + group - 1) / group * group : columns;
    if (cpu && !row_major && weight->encoding == ENCODING_BF16) depth += depth % 2;
    for (uint64_t row = 0; row < piece->rows; row++) {
        uint64_t n = place.first_row + (place.gate_up ? row / group * 2 * group + row % group : row);
        for (uint64_t k = 0; k < columns; k++) {
            uint64_t index = row_major ? n * depth + k : panel_index(n, k, depth, (enum dtype)weight->encoding);
            expect_element(packed, weight, index, test_piece_value(piece, row, k));
        }
    }
}

static void expect_all(struct packed *packed, const struct test_model *model)
{
    struct test_piece pieces[TEST_MAX_PIECES];
    const size_t piece_count = test_model_pieces(model, pieces);
    for (size_t i = 0; i < piece_count; i++) expect_piece(packed, &pieces[i]);
    const struct graph_weight *frequencies = find_weight(&packed->graph, "rope.inv_freq");
    const uint64_t count = packed->graph.config->rope.rotary_dim / 2;
    assert_int_equal(frequencies->bytes, count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) expect_element(packed, frequencies, i, frequencies->sources[0].values[i]);
    for (uint64_t b = 0; b < packed->total_bytes; b++)
        if (!packed->visited[b]) assert_int_equal(packed->weights[b], 0);
}

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

TEST(every_element_arrives)
{
    for (int family = 0; family < TEST_FAMILIES; family++)
        for (size_t from = 0; from < 3; from++)
            for (size_t to = 0; to <= 3; to++) {
                struct test_model model;
                struct packed packed;
                struct status status = {0};
                enum dtype dtype = to < 3 ? dtypes[to] : DTYPE_NONE;
                test_model_init(&model, (enum test_family)family, dtypes[from]);
                test_expect_success(pack(&packed, &model, dtype, &status), &status);
                expect_all(&packed, &model);
                for (int w = 0; w < packed.graph.weight_count; w++) {
                    const struct graph_weight *weight = &packed.graph.weights[w];
                    if (!weight->used || weight->sources[0].values) continue;
                    assert_int_equal(weight->encoding, weight->columns && dtype ? dtype : dtypes[from]);
                    assert_int_equal(weight->offset % PLAN_ALIGNMENT, 0);
                }
                unpack(&packed);
            }
}

/* Devices: matrices row by row, in one 16-bit dtype, every tensor at the beginning of a line of memory. */
TEST(every_element_arrives_on_devices)
{
    for (int family = 0; family < TEST_FAMILIES; family++)
        for (size_t from = 0; from < 3; from++)
            for (size_t to = 1; to < 3; to++) {
                enum { LINE = 256, PADDED_INNER = (TEST_INNER + 7) / 8 * 8 };
                struct test_model model;
                struct packed packed;
                struct status status = {0};
                test_model_init(&model, (enum test_family)family, dtypes[from]);
                bool ok = pack_for(&packed, &model, TARGET_CUDA, dtypes[to], &status);
                test_expect_success(ok, &status);
                expect_all(&packed, &model);
                uint64_t end = 0;
                for (int w = 0; w < packed.graph.weight_count; w++) {
                    const struct graph_weight *weight = &packed.graph.weights[w];
                    if (!weight->used) continue;
                    assert_int_equal(weight->offset % LINE, 0);
                    assert_true(weight->offset >= end);
                    end = weight->offset + weight->bytes;
                    if (weight->sources[0].values) continue;
                    assert_int_equal(weight->encoding, weight->columns ? dtypes[to] : dtypes[from]);
                    uint64_t elements = weight->rows * (weight->columns ? weight->depth : 1);
                    assert_int_equal(weight->bytes, elements * dtype_bytes((enum dtype)weight->encoding));
                    if (weight->interleave) assert_int_equal(weight->rows, 2 * PADDED_INNER);
                }
                /* Stored once where it is tied. */
                const struct model_config *config = packed.graph.config;
                int heads = 0;
                for (int w = 0; w < packed.graph.weight_count; w++)
                    heads += packed.graph.weights[w].used && packed.graph.weights[w].rows == TEST_VOCAB;
                assert_int_equal(heads, config->tie_word_embeddings ? 1 : 2);
                unpack(&packed);
            }
}

/* Tensors that become one weight but differ in dtype meet in F32, which holds them all. */
TEST(mixed_dtypes_meet_in_f32)
{
    static const struct {
        enum test_family family;
        const char *tensor, *weight;
    } cases[] = {
        {TEST_LLAMA, "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.qkv_proj.weight"},
        {TEST_LLAMA, "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"},
        {TEST_LLAMA_BIASED_TIED, "model.layers.0.mlp.gate_proj.bias", "model.layers.0.mlp.gate_up_proj.bias"},
        {TEST_QWEN2, "model.layers.1.self_attn.v_proj.bias", "model.layers.1.self_attn.qkv_proj.bias"},
        {TEST_QWEN3, "model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight"},
        {TEST_QWEN3, "model.layers.0.self_attn.k_norm.weight", "model.layers.0.self_attn.q_norm.weight"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct test_model model;
        struct packed packed;
        struct status status = {0};
        test_model_init(&model, cases[c].family, DTYPE_BF16);
        test_model_find(&model, cases[c].tensor)->dtype = c % 2 ? DTYPE_F32 : DTYPE_F16;
        test_expect_success(pack(&packed, &model, DTYPE_NONE, &status), &status);
        assert_int_equal(find_weight(&packed.graph, cases[c].weight)->encoding, ENCODING_F32);
        assert_int_equal(find_weight(&packed.graph, "model.norm.weight")->encoding, ENCODING_BF16);
        expect_all(&packed, &model);
        unpack(&packed);
    }
}

/* On devices this happens to vectors; matrices have the dtype that was asked for. */
TEST(mixed_vectors_meet_in_f32_on_devices)
{
    struct test_model model;
    struct packed packed;
    struct status status = {0};
    test_model_init(&model, TEST_LLAMA_BIASED_TIED, DTYPE_BF16);
    test_model_find(&model, "model.layers.0.mlp.gate_proj.bias")->dtype = DTYPE_F32;
    test_model_find(&model, "model.layers.1.self_attn.v_proj.bias")->dtype = DTYPE_F16;
    test_model_find(&model, "model.layers.1.mlp.up_proj.weight")->dtype = DTYPE_F32;
    test_expect_success(pack_for(&packed, &model, TARGET_CUDA, DTYPE_BF16, &status), &status);
    assert_int_equal(find_weight(&packed.graph, "model.layers.0.mlp.gate_up_proj.bias")->encoding, ENCODING_F32);
    assert_int_equal(find_weight(&packed.graph, "model.layers.1.self_attn.qkv_proj.bias")->encoding, ENCODING_F32);
    assert_int_equal(find_weight(&packed.graph, "model.layers.1.mlp.gate_up_proj.weight")->encoding, ENCODING_BF16);
    expect_all(&packed, &model);
    unpack(&packed);
}

TEST(overflow_is_refused)
{
    static const char *const tensors[] = {"model.embed_tokens.weight", "model.layers.1.self_attn.v_proj.weight",
                                          "model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.up_proj.weight"};
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
        for (int target = TARGET_CPU; target <= TARGET_CUDA; target++) {
            struct test_model model;
            struct packed packed;
            struct status status = {0};
            test_model_init(&model, TEST_LLAMA, DTYPE_BF16);
            test_model_find(&model, tensors[t])->scale = 1e6f;
            bool ok = pack_for(&packed, &model, (enum engine_target)target, DTYPE_F16, &status);
            test_expect_failure(ok, &status, STATUS_BAD_INPUT, tensors[t]);
            test_expect_message(&status, "F16|--dtype");
            unpack(&packed);
            ok = pack_for(&packed, &model, (enum engine_target)target, DTYPE_BF16, &status);
            test_expect_success(ok, &status);
            unpack(&packed);
        }
}

TEST(parameters_are_counted_once)
{
    for (int family = 0; family < TEST_FAMILIES; family++) {
        struct test_model model;
        struct packed packed;
        struct status status = {0};
        uint64_t expected = 0;
        test_model_init(&model, (enum test_family)family, DTYPE_F32);
        for (size_t t = 0; t < model.count; t++)
            expected += model.tensors[t].rows * (model.tensors[t].columns ? model.tensors[t].columns : 1);
        test_expect_success(pack(&packed, &model, DTYPE_NONE, &status), &status);
        assert_int_equal(count_parameters(&packed.graph), expected);
        unpack(&packed);
    }
}

TEST(both_kinds_share_one_layout)
{
    for (int family = 0; family < TEST_FAMILIES; family++) {
        struct test_model model;
        struct packed packed;
        struct graph prefill;
        struct status status = {0};
        test_model_init(&model, (enum test_family)family, DTYPE_BF16);
        test_expect_success(pack(&packed, &model, DTYPE_NONE, &status), &status);
        graph_init(&prefill, &packed.checkpoint.config, PLAN_PREFILL);
        test_expect_success(import_graph(&prefill, &status) && run_passes(&prefill, NULL, NULL, &status), &status);
        test_expect_success(share_weights(&prefill, &packed.graph, &status), &status);
        for (int w = 0; w < prefill.weight_count; w++)
            assert_int_equal(prefill.weights[w].offset, packed.graph.weights[w].offset);
        prefill.weights[0].used = !prefill.weights[0].used;
        test_expect_failure(share_weights(&prefill, &packed.graph, &status), &status, STATUS_INTERNAL, "differ");
        graph_free(&prefill);
        unpack(&packed);
    }
}

int main(void) { return test_run(); }
