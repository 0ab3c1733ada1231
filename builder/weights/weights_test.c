/* SPDX-License-Identifier: Apache-2.0 */
/* Packing for one rank and several: every element of the checkpoint is on the ranks that compute with it, in the dtype it
 * should have, at the place where their kernels look for it, and all the rest of each rank's region is zero. Ranks and
 * places are worked out here from the names of the tensors. */
#include "builder/arch/arch.h"
#include "formats/base/test_program.h"
#include "builder/passes/pass.h"
#include "builder/weights/shard.h"
#include "builder/test_model.h"
#include "builder/weights/weights.h"
#include "formats/base/checked.h"
#include "kernels/matmul/panel.h"

struct packed {
    char *folder;
    struct test_model model;
    struct checkpoint checkpoint;
    struct model_config rank_config;
    struct graph graph;
    struct engine_writer *writer;
    uint64_t total_bytes, region_bytes, used_bytes; /* used: up to the last weight of a region */
    uint64_t ranks, last_progress;
    const uint8_t *weights;
    bool *visited; /* [ranks, used_bytes] */
};

static void note_progress(void *context, uint64_t done, uint64_t total)
{
    struct packed *packed = context;
    assert_true(done >= packed->last_progress && done <= total && total == packed->total_bytes);
    packed->last_progress = done;
}

/* The passes that decide how weights lie on several GPUs. The others follow what the kernels can do. */
static bool run_layout_passes(struct graph *graph, struct status *status)
{
    static const struct pass *const layout[] = {&pass_shard, &pass_dead_code};
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
        if (!layout[i]->run(graph, status) || !graph_check(graph, layout[i]->name, status)) return false;
    return true;
}

static void make_graph(struct packed *packed, struct graph *graph, enum plan_kind kind, enum engine_target target,
                       enum dtype dtype)
{
    struct status status = {0};
    graph_init(graph, &packed->checkpoint.config, kind);
    graph->target = target;
    graph->compute_dtype = dtype;
    graph->ranks = (uint32_t)packed->ranks;
    graph->rank_config = &packed->rank_config;
    test_expect_success(import_graph(graph, &status), &status);
    const bool all = target == TARGET_CPU || packed->ranks == 1;
    bool ok = all ? run_passes(graph, NULL, NULL, &status) : run_layout_passes(graph, &status);
    test_expect_success(ok, &status);
}

/* packed->model is there. */
static bool pack(struct packed *packed, uint32_t ranks, enum engine_target target, enum dtype dtype,
                 struct status *status)
{
    packed->folder = test_folder();
    packed->ranks = ranks;
    test_model_write(&packed->model, packed->folder);
    test_expect_success(checkpoint_open(&packed->checkpoint, packed->folder, false, arch_read_config, status), status);
    test_expect_success(shard_config(&packed->checkpoint.config, ranks, &packed->rank_config, status), status);
    make_graph(packed, &packed->graph, PLAN_DECODE, target, dtype);
    test_expect_success(bind_weights(&packed->graph, &packed->checkpoint,
                                     &(struct weight_types){.matrices = (enum encoding_id)dtype}, status),
                        status);
    test_expect_success(plan_weights(&packed->graph, &packed->total_bytes, status), status);
    packed->region_bytes = packed->total_bytes / ranks;
    for (int w = 0; w < packed->graph.weight_count; w++) {
        const struct graph_weight *weight = &packed->graph.weights[w];
        uint64_t end = weight->used ? weight->offset + weight->bytes : 0;
        if (end > packed->used_bytes) packed->used_bytes = end;
    }
    packed->writer = engine_writer_begin(test_path(packed->folder, "x.eng"), status);
    assert_non_null(packed->writer);
    if (!test_model_pack(&packed->graph, &packed->checkpoint, packed->writer, packed->total_bytes, note_progress,
                         packed, &packed->weights, status))
        return false;
    packed->visited = calloc(ranks, packed->used_bytes);
    assert_non_null(packed->visited);
    return true;
}

static void unpack(struct packed *packed)
{
    engine_writer_abandon(packed->writer);
    graph_free(&packed->graph);
    checkpoint_close(&packed->checkpoint);
    free(packed->visited);
    test_folder_remove(packed->folder);
    *packed = (struct packed){0};
}

static void expect_element(struct packed *packed, const struct graph_weight *weight, uint64_t rank, uint64_t index,
                           float value)
{
    size_t bytes = dtype_bytes((enum dtype)weight->encoding);
    uint64_t at = weight->offset + index * bytes;
    assert_true((index + 1) * bytes <= weight->bytes);
    uint32_t expected = float_to_bits(value), found = 0;
    if (weight->encoding == ENCODING_F16)
        expected = f16_from_float(value);
    else if (weight->encoding == ENCODING_BF16)
        expected = bf16_from_float(value);
    memcpy(&found, packed->weights + rank * packed->region_bytes + at, bytes);
    if (found != expected)
        fail_msg("rank %d: %s element %llu: expected %g, found bits %x", (int)rank, weight->name,
                 (unsigned long long)index, (double)value, (unsigned)found);
    bool *visited = packed->visited + rank * packed->used_bytes + at;
    for (size_t b = 0; b < bytes; b++) {
        assert_false(visited[b]);
        visited[b] = true;
    }
}

static const struct graph_weight *find_weight(const struct graph *graph, const char *name)
{
    for (int w = 0; w < graph->weight_count; w++)
        if (graph->weights[w].used && strcmp(graph->weights[w].name, name) == 0) return &graph->weights[w];
    fail_msg("the engine lacks '%s'", name);
    return NULL;
}

/* The weight that a tensor went into: under its own name, or `whole` in the place of `part`. */
static const struct graph_weight *weight_of(const struct graph *graph, const char *tensor)
{
    static const char *const fused[][2] = {
        {"self_attn.q_proj.", "self_attn.qkv_proj."}, {"self_attn.k_proj.", "self_attn.qkv_proj."},
        {"self_attn.v_proj.", "self_attn.qkv_proj."}, {"mlp.gate_proj.", "mlp.gate_up_proj."},
        {"mlp.up_proj.", "mlp.gate_up_proj."},
    };
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        const char *at = strstr(tensor, fused[i][0]);
        if (!at) continue;
        char name[128];
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - tensor), tensor, fused[i][1], at + strlen(fused[i][0]));
        return find_weight(graph, name);
    }
    return find_weight(graph, tensor);
}

/* Where a rank has element [row, column] of a tensor: false if it has not. The row is counted in the weight. */
static bool place_on(const struct packed *packed, const struct test_piece *piece, uint64_t rank, uint64_t *row,
                     uint64_t *column)
{
    const struct test_sizes *sizes = &packed->model.sizes;
    const uint64_t head = TEST_HEAD_DIM, ranks = packed->ranks, kv_heads = sizes->kv_heads;
    uint64_t heads_each = sizes->heads / ranks, inner_each = sizes->inner / ranks;
    uint64_t kv_each = kv_heads > ranks ? kv_heads / ranks : 1;
    uint64_t group = packed->graph.target == TARGET_CPU ? PANEL_ROWS : 8;
    const char *name = piece->name;
    bool bias = !piece->columns;
    if (strstr(name, "embed_tokens") || strstr(name, "lm_head")) {
        uint64_t each = (sizes->vocab + ranks - 1) / ranks;
        if (*row / each != rank) return false;
        *row %= each;
    } else if (strstr(name, "q_proj")) {
        if (*row / (heads_each * head) != rank) return false;
        *row %= heads_each * head;
    } else if (strstr(name, "k_proj") || strstr(name, "v_proj")) {
        /* The heads of queries that this rank has read these KV heads. */
        uint64_t first = rank * heads_each / (sizes->heads / kv_heads), kv_head = *row / head;
        if (kv_head < first || kv_head >= first + kv_each) return false;
        *row += (heads_each - first) * head + (strstr(name, "v_proj") ? kv_each * head : 0);
    } else if (strstr(name, "gate_proj") || strstr(name, "up_proj")) {
        if (*row / inner_each != rank) return false;
        *row %= inner_each;
        *row = *row / group * 2 * group + *row % group + (strstr(name, "up_proj") ? group : 0);
    } else if (strstr(name, "o_proj") || strstr(name, "down_proj")) {
        uint64_t each = strstr(name, "o_proj") ? heads_each * head : inner_each;
        if (bias) return rank == 0;
        if (*column / each != rank) return false;
        *column %= each;
    }
    return true;
}

/* Columns of a matrix's rows as a rank stores them, with padding. */
static uint64_t depth_on(const struct packed *packed, const struct test_piece *piece, bool row_major, enum dtype dtype)
{
    const struct test_sizes *sizes = &packed->model.sizes;
    bool cpu = packed->graph.target == TARGET_CPU;
    uint64_t group = cpu ? PANEL_ROWS : 8, depth = piece->columns ? piece->columns : 1;
    if (piece->columns && strstr(piece->name, "o_proj")) depth /= packed->ranks;
    if (piece->columns && strstr(piece->name, "mlp.down_proj"))
        depth = (sizes->inner / packed->ranks + group - 1) / group * group;
    if (!row_major && dtype == DTYPE_BF16) depth += depth % 2;
    return depth;
}

/* Returns on how many ranks each element is, summed. */
static uint64_t expect_piece(struct packed *packed, const struct test_piece *piece)
{
    const struct graph_weight *weight = weight_of(&packed->graph, piece->name);
    bool tied = packed->checkpoint.config.tie_word_embeddings, cpu = packed->graph.target == TARGET_CPU;
    bool row_major = !cpu || !piece->columns || (strstr(piece->name, "embed_tokens") && !tied);
    uint64_t depth = depth_on(packed, piece, row_major, (enum dtype)weight->encoding), copies = 0;
    uint64_t columns = piece->columns ? piece->columns : 1;
    for (uint64_t index = 0; index < piece->rows * columns; index++)
        for (uint64_t rank = 0; rank < packed->ranks; rank++) {
            uint64_t row = index / columns, column = index % columns;
            if (!place_on(packed, piece, rank, &row, &column)) continue;
            uint64_t place =
                row_major ? row * depth + column : panel_index(row, column, depth, (enum dtype)weight->encoding);
            expect_element(packed, weight, rank, place, test_piece_value(piece, index / columns, index % columns));
            copies++;
        }
    return copies;
}

static void expect_all(struct packed *packed)
{
    const struct test_sizes *sizes = &packed->model.sizes;
    struct test_piece pieces[TEST_MAX_PIECES];
    const size_t count = test_model_pieces(&packed->model, pieces);
    for (size_t i = 0; i < count; i++) {
        const struct test_piece *piece = &pieces[i];
        uint64_t elements = piece->rows * (piece->columns ? piece->columns : 1), copies = 1;
        bool kv = strstr(piece->name, "k_proj") || strstr(piece->name, "v_proj");
        if (strstr(piece->name, "norm")) copies = packed->ranks;
        if (kv && packed->ranks > sizes->kv_heads) copies = packed->ranks / sizes->kv_heads;
        assert_int_equal(expect_piece(packed, piece), elements * copies);
    }
    const struct graph_weight *frequencies = find_weight(&packed->graph, "rope.inv_freq");
    for (uint64_t rank = 0; rank < packed->ranks; rank++)
        for (uint64_t i = 0; i < packed->checkpoint.config.rope.rotary_dim / 2; i++)
            expect_element(packed, frequencies, rank, i, frequencies->sources[0].values[i]);
    for (uint64_t rank = 0; rank < packed->ranks; rank++) {
        const uint8_t *region = packed->weights + rank * packed->region_bytes;
        for (uint64_t b = 0; b < packed->region_bytes; b++)
            if (region[b] && !(b < packed->used_bytes && packed->visited[rank * packed->used_bytes + b]))
                fail_msg("rank %d: byte %llu of the region is not zero", (int)rank, (unsigned long long)b);
    }
}

static const struct shape {
    struct test_sizes sizes;
    uint32_t ranks;
} shapes[] = {
    {{TEST_INNER, TEST_HEADS, TEST_KV_HEADS, TEST_VOCAB}, 1},
    {{TEST_INNER, TEST_HEADS, TEST_KV_HEADS, TEST_VOCAB}, TEST_RANKS},
    {{38, 4, 2, 37}, 2},   /* a KV head on each; inner 19 on each, which is odd */
    {{36, 8, 2, 40}, 4},   /* two ranks with one KV head */
    {{66, 12, 6, 100}, 3}, /* two KV heads on each; rows that are no multiple of a panel */
    {{48, 16, 1, 5}, 16},  /* most ranks have no tokens; the KV head is on all */
    {{14, 2, 2, 3}, 2},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int families_of(const struct shape *shape) { return shape->ranks > 1 ? TEST_RANK_FAMILIES : TEST_FAMILIES; }

/* Each weight at the beginning of a line of memory, after the one before it, without padding but that of its rows. */
static void check_layout(const struct packed *packed, enum dtype from, enum dtype to)
{
    const bool cpu = packed->graph.target == TARGET_CPU;
    const uint64_t line = cpu ? PLAN_ALIGNMENT : 256, inner = packed->model.sizes.inner / packed->ranks;
    uint64_t end = 0;
    int heads = 0;
    for (int w = 0; w < packed->graph.weight_count; w++) {
        const struct graph_weight *weight = &packed->graph.weights[w];
        if (!weight->used) continue;
        assert_int_equal(weight->offset % line, 0);
        heads += weight->rows == TEST_VOCAB;
        if (!weight->sources[0].values) assert_int_equal(weight->encoding, weight->columns && to ? to : from);
        if (cpu) continue;
        assert_true(weight->offset >= end);
        end = weight->offset + weight->bytes;
        const uint64_t elements = weight->rows * (weight->columns ? weight->depth : 1);
        assert_int_equal(weight->bytes, elements * dtype_bytes((enum dtype)weight->encoding));
        if (weight->interleave) assert_int_equal(weight->rows, 2 * ((inner + 7) / 8 * 8));
    }
    /* Stored once where it is tied. */
    if (packed->ranks == 1) assert_int_equal(heads, packed->checkpoint.config.tie_word_embeddings ? 1 : 2);
}

static void check_shape(const struct shape *shape, enum test_family family, enum engine_target target, enum dtype from,
                        enum dtype to)
{
    struct packed packed = {0};
    struct status status = {0};
    test_model_init_sizes(&packed.model, family, from, &shape->sizes);
    test_expect_success(pack(&packed, shape->ranks, target, to, &status), &status);
    /* Regions of several ranks have no more than a page of padding. */
    const uint64_t unit = shape->ranks > 1 ? ENGINE_REGION_ALIGNMENT : PLAN_ALIGNMENT;
    assert_int_equal(packed.region_bytes, (packed.used_bytes + unit - 1) / unit * unit);
    assert_int_equal(packed.last_progress, packed.total_bytes);
    expect_all(&packed);
    check_layout(&packed, from, to);
    unpack(&packed);
}

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_NONE};

/* On GPUs rows as they are, in one 16-bit dtype. One rank: from every dtype; several: from one. */
static void check_target(enum engine_target target, size_t first_to, size_t last_to)
{
    for (size_t s = 0; s < SHAPES; s++)
        for (int family = 0; family < families_of(&shapes[s]); family++)
            for (size_t to = first_to; to <= last_to; to++)
                for (size_t from = 0; from < 3; from++)
                    if (shapes[s].ranks == 1 || from == (to + s) % 3)
                        check_shape(&shapes[s], (enum test_family)family, target, dtypes[from], dtypes[to]);
}

TEST(every_element_arrives) { check_target(TARGET_CPU, 0, 3); }

TEST(every_element_arrives_on_devices) { check_target(TARGET_CUDA, 1, 2); }

/* Tensors that become one weight but differ in dtype meet in F32, which holds them all. On devices this happens to
 * vectors; matrices have the dtype that was asked for. */
TEST(mixed_dtypes_meet_in_f32)
{
    static const struct {
        enum engine_target target;
        enum test_family family;
        enum dtype dtype; /* of the tensor; all others have BF16 */
        const char *tensor, *weight;
        enum encoding_id expected;
    } cases[] = {
        {TARGET_CPU, TEST_LLAMA, DTYPE_F16, "model.layers.1.self_attn.k_proj.weight",
         "model.layers.1.self_attn.qkv_proj.weight", ENCODING_F32},
        {TARGET_CPU, TEST_LLAMA, DTYPE_F32, "model.layers.0.mlp.up_proj.weight",
         "model.layers.0.mlp.gate_up_proj.weight", ENCODING_F32},
        {TARGET_CPU, TEST_LLAMA_BIASED_TIED, DTYPE_F16, "model.layers.0.mlp.gate_proj.bias",
         "model.layers.0.mlp.gate_up_proj.bias", ENCODING_F32},
        {TARGET_CPU, TEST_QWEN2, DTYPE_F32, "model.layers.1.self_attn.v_proj.bias",
         "model.layers.1.self_attn.qkv_proj.bias", ENCODING_F32},
        {TARGET_CPU, TEST_QWEN3, DTYPE_F16, "model.layers.1.self_attn.q_norm.weight",
         "model.layers.1.self_attn.k_norm.weight", ENCODING_F32},
        {TARGET_CPU, TEST_QWEN3, DTYPE_F32, "model.layers.0.self_attn.k_norm.weight",
         "model.layers.0.self_attn.q_norm.weight", ENCODING_F32},
        {TARGET_CUDA, TEST_LLAMA_BIASED_TIED, DTYPE_F32, "model.layers.0.mlp.gate_proj.bias",
         "model.layers.0.mlp.gate_up_proj.bias", ENCODING_F32},
        {TARGET_CUDA, TEST_LLAMA_BIASED_TIED, DTYPE_F16, "model.layers.1.self_attn.v_proj.bias",
         "model.layers.1.self_attn.qkv_proj.bias", ENCODING_F32},
        {TARGET_CUDA, TEST_LLAMA_BIASED_TIED, DTYPE_F32, "model.layers.1.mlp.up_proj.weight",
         "model.layers.1.mlp.gate_up_proj.weight", ENCODING_BF16},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct packed packed = {0};
        struct status status = {0};
        test_model_init(&packed.model, cases[c].family, DTYPE_BF16);
        test_model_find(&packed.model, cases[c].tensor)->dtype = cases[c].dtype;
        const enum dtype to = cases[c].target == TARGET_CPU ? DTYPE_NONE : DTYPE_BF16;
        test_expect_success(pack(&packed, 1, cases[c].target, to, &status), &status);
        assert_int_equal(find_weight(&packed.graph, cases[c].weight)->encoding, cases[c].expected);
        assert_int_equal(find_weight(&packed.graph, "model.norm.weight")->encoding, ENCODING_BF16);
        expect_all(&packed);
        unpack(&packed);
    }
}

TEST(parameters_are_counted_once)
{
    for (size_t s = 0; s < SHAPES; s++)
        for (int family = 0; family < families_of(&shapes[s]); family++) {
            struct packed packed = {0};
            struct status status = {0};
            uint64_t expected = 0;
            if (shapes[s].ranks > 1 && family != TEST_LLAMA_BIASED_TIED) continue;
            test_model_init_sizes(&packed.model, (enum test_family)family, DTYPE_F32, &shapes[s].sizes);
            for (size_t i = 0; i < packed.model.count; i++) {
                const struct test_tensor *tensor = &packed.model.tensors[i];
                expected += tensor->rows * (tensor->columns ? tensor->columns : 1);
            }
            test_expect_success(pack(&packed, shapes[s].ranks, TARGET_CPU, DTYPE_NONE, &status), &status);
            assert_int_equal(count_parameters(&packed.graph), expected);
            unpack(&packed);
        }
}

TEST(both_kinds_share_one_layout)
{
    for (size_t s = 0; s < 2; s++)
        for (int family = 0; family < families_of(&shapes[s]); family++) {
            struct packed packed = {0};
            struct graph prefill;
            struct status status = {0};
            test_model_init(&packed.model, (enum test_family)family, DTYPE_BF16);
            test_expect_success(pack(&packed, shapes[s].ranks, TARGET_CPU, DTYPE_NONE, &status), &status);
            make_graph(&packed, &prefill, PLAN_PREFILL, TARGET_CPU, DTYPE_NONE);
            test_expect_success(share_weights(&prefill, &packed.graph, &status), &status);
            for (int w = 0; w < prefill.weight_count; w++) {
                const struct graph_weight *a = &prefill.weights[w], *b = &packed.graph.weights[w];
                assert_true(a->offset == b->offset && a->rows == b->rows && a->columns == b->columns &&
                            a->depth == b->depth);
            }
            prefill.weights[0].used = !prefill.weights[0].used;
            test_expect_failure(share_weights(&prefill, &packed.graph, &status), &status, STATUS_INTERNAL, "differ");
            graph_free(&prefill);
            unpack(&packed);
        }
}

static uint64_t random_below(uint64_t *state, uint64_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 24) % limit;
}

/* A part is the same however it is cut out of the whole: through units, weights and regions. */
TEST(every_part_is_that_of_the_whole)
{
    for (int family = 0; family < TEST_RANK_FAMILIES; family++)
        for (int target = TARGET_CPU; target <= TARGET_CUDA; target++) {
            struct packed packed = {0};
            struct status status = {0};
            uint64_t random = (uint64_t)family + 1;
            test_model_init(&packed.model, (enum test_family)family, DTYPE_F32);
            test_expect_success(pack(&packed, TEST_RANKS, (enum engine_target)target, DTYPE_BF16, &status), &status);
            struct packer *packer = packer_open(&packed.graph, &packed.checkpoint, packed.total_bytes, &status);
            assert_non_null(packer);
            for (int i = 0; i < 300; i++) {
                static uint8_t part[5000];
                /* Most of a region is padding: half of the parts begin where there are weights. */
                const uint64_t region = random_below(&random, TEST_RANKS) * packed.region_bytes;
                const uint64_t reach = i % 2 ? packed.used_bytes : packed.region_bytes;
                const uint64_t offset = region + random_below(&random, reach);
                uint64_t size = random_below(&random, sizeof part + 1);
                if (size > packed.total_bytes - offset) size = packed.total_bytes - offset;
                memset(part, 0xaa, sizeof part);
                test_expect_success(packer_read(packer, offset, size, part, &status), &status);
                assert_memory_equal(part, packed.weights + offset, size);
                for (uint64_t b = size; b < sizeof part; b++) assert_int_equal(part[b], 0xaa);
            }
            uint8_t byte;
            assert_true(packer_read(packer, packed.total_bytes, 0, &byte, &status));
            assert_false(packer_read(packer, packed.total_bytes, 1, &byte, &status));
            assert_false(packer_read(packer, 1, UINT64_MAX, &byte, &status));
            packer_close(packer);
            unpack(&packed);
        }
}

/* Whichever rank has the value. */
TEST(overflow_is_refused)
{
    static const char *const tensors[] = {
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.1.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
    };
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
        for (int target = TARGET_CPU; target <= TARGET_CUDA; target++)
            for (int s = 0; s < 2; s++)
                for (size_t to = 1; to <= 2; to++) {
                    struct packed packed = {0};
                    struct status status = {0};
                    test_model_init(&packed.model, TEST_LLAMA, DTYPE_BF16);
                    test_model_find(&packed.model, tensors[t])->scale = 1e6f;
                    bool ok = pack(&packed, shapes[s].ranks, (enum engine_target)target, dtypes[to], &status);
                    if (dtypes[to] == DTYPE_F16) {
                        test_expect_failure(ok, &status, STATUS_BAD_INPUT, tensors[t]);
                        test_expect_message(&status, "F16|--dtype");
                    } else {
                        test_expect_success(ok, &status);
                    }
                    unpack(&packed);
                }
}

int main(void) { return test_run(); }
