/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test_lowered_engine.h"

#include "builder/lower/names.h"
#include "builder/weights/weights.h"
#include "formats/tokenizer/tokenizer.h"
#include "tests/fake_cuda/fake_cuda.h"

static char *folder;
static const char *path;

void lowered_engine_init(struct lowered_engine *engine)
{
    *engine = (struct lowered_engine){
        .model = "tests/models/fables",
        .gpu = TEST_GPU_90,
        .matrices = ENCODING_BF16,
        .slots = LOWERED_ENGINE_SLOTS,
        .context = LOWERED_ENGINE_CONTEXT,
        .decode_rows = {1, 2, 4, 8, 16},
        .prefill_rows = {8, 64},
    };
}

static size_t count_rows(const uint32_t *rows)
{
    size_t count = 0;
    while (count < LOWERED_ENGINE_MOST_PLANS && rows[count]) count++;
    return count;
}

/* ---- code ---- */

/* A cubin as fake_cuda.h describes it. */
static void assemble(struct kernel_set_entry *entry, int capability)
{
    const struct device_kernel *kernel = entry->tactic.kernel;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    fprintf(out, "FAKE CUBIN %d\nkernel %s", capability, kernel->name);
    for (uint32_t i = 0; i < entry->operand_count; i++) {
        struct plan_tensor_map map;
        bool mapped = kernel->tensor_map && kernel->tensor_map(entry->tactic.params, (int)i, &map);
        fprintf(out, " %zu", mapped ? sizeof(struct cu_tensor_map) : sizeof(cu_deviceptr));
    }
    fputs("\nend\n", out);
    assert_int_equal(fclose(out), 0);
    size_t capacity = size + 256;
    entry->cubin = malloc(capacity);
    assert_non_null(entry->cubin);
    entry->cubin_bytes = fake_cuda_cubin(text, entry->cubin, capacity);
    free(text);
}

/* ---- plans ---- */

static void lower(const struct test_device_model *model, const struct device_facts *gpu, enum plan_kind kind,
                  uint32_t rows, struct kernel_set *set, struct plan *plan)
{
    struct device_plan lowered;
    struct status status = {0};
    const struct graph *graph = test_device_model_graph(model, kind, rows);
    test_expect_success(lower_device_plan(graph, &model->lowering, gpu, rows, &lowered, &status), &status);
    test_expect_success(device_plan_finish(&lowered, gpu, set, plan, &status), &status);
    device_plan_free(&lowered);
}

/* ---- the other sections ---- */

static void write_manifest(struct engine_writer *writer, const struct test_device_model *model,
                           enum encoding_id matrices, const struct device_facts *gpu, const struct plan *plans,
                           size_t plan_count, struct plan_geometry *geometry)
{
    const struct model_config *config = &model->config;
    struct status status = {0};
    struct manifest manifest = {
        .builder_version = "0.1.0",
        .model_name = "fables",
        .target = TARGET_CUDA,
        .target_capability = (uint64_t)gpu->capability,
        .hidden_size = config->hidden_size,
        .intermediate_size = config->intermediate_size,
        .layers = config->layers,
        .heads = config->heads,
        .kv_heads = config->kv_heads,
        .head_dim = config->head_dim,
        .parameters = count_parameters(&model->graphs[TEST_LARGE_BATCH]),
        .weight_encoding = matrices,
        .kv_dtype = model->lowering.kv_dtype,
        .geometry = model->lowering.geometry,
        .weights_bytes = model->weights_bytes,
        .bos_token = config->bos_token,
        .pad_token = config->pad_token,
        .eos_count = config->eos_count,
        .temperature = config->do_sample ? config->temperature : 0,
        .top_p = config->top_p,
        .repetition_penalty = config->repetition_penalty,
        .top_k = config->top_k,
        .has_tokenizer = model->checkpoint.tokenizer_path != NULL,
    };
    snprintf(manifest.model_type, sizeof manifest.model_type, "%s", config->model_type);
    snprintf(manifest.target_name, sizeof manifest.target_name, "%s", gpu->name);
    memcpy(manifest.eos_tokens, config->eos_tokens, sizeof manifest.eos_tokens);
    assert_true(geometry_place_state(&manifest.geometry, &manifest.state_bytes));
    for (size_t p = 0; p < plan_count; p++) {
        struct plan_space_sizes sizes;
        test_device_model_sizes(model, &plans[p].header, &sizes);
        if (sizes.bytes[SPACE_ARENA] > manifest.arena_bytes) manifest.arena_bytes = sizes.bytes[SPACE_ARENA];
        if (sizes.bytes[SPACE_STEP] > manifest.step_bytes) manifest.step_bytes = sizes.bytes[SPACE_STEP];
    }
    char *text = NULL;
    size_t size = 0;
    test_expect_success(manifest_format(&manifest, &text, &size, &status), &status);
    test_expect_success(engine_writer_section(writer, SECTION_MANIFEST, text, size, false, &status), &status);
    *geometry = manifest.geometry;
    free(text);
}

static void write_tensors(struct engine_writer *writer, const struct graph *graph)
{
    struct status status = {0};
    struct engine_tensor *tensors = calloc((size_t)graph->weight_count + 1, sizeof *tensors);
    size_t count = 0;
    assert_non_null(tensors);
    for (int w = 0; w < graph->weight_count; w++) {
        const struct graph_weight *weight = &graph->weights[w];
        if (!weight->used) continue;
        tensors[count++] = (struct engine_tensor){
            .name = weight->name,
            .dtype = (enum dtype)weight->encoding,
            .layout = graph_weight_layout(graph, weight),
            .rank = weight->columns ? 2 : 1,
            .shape = {weight->rows, weight->columns ? weight->depth : 0},
            .offset = weight->offset,
            .bytes = weight->bytes,
        };
    }
    test_expect_success(engine_writer_tensors(writer, tensors, count, &status), &status);
    free(tensors);
}

static void write_tokenizer(struct engine_writer *writer, const char *tokenizer_path)
{
    enum { MAX_BYTES = 64 << 20 };
    struct status status = {0};
    char *text = NULL;
    uint8_t *image = NULL;
    size_t text_size = 0, image_size = 0;
    if (!tokenizer_path) return;
    test_expect_success(file_read(tokenizer_path, MAX_BYTES, &text, &text_size, &status), &status);
    bool ok = tokenizer_import(text, text_size, tokenizer_path, &image, &image_size, &status);
    test_expect_success(ok, &status);
    test_expect_success(engine_writer_section(writer, SECTION_TOKENIZER, image, image_size, false, &status), &status);
    free(text);
    free(image);
}

void lowered_engine_write(const struct lowered_engine *engine, const char *to)
{
    struct test_device_model model;
    struct kernel_set set = {0};
    struct plan plans[2 * LOWERED_ENGINE_MOST_PLANS];
    struct status status = {0};
    const struct device_facts *gpu = &test_gpus[engine->gpu];
    size_t decodes = count_rows(engine->decode_rows), prefills = count_rows(engine->prefill_rows), count = 0;
    bool ok = test_device_model_try(&model, engine->model, engine->matrices, engine->slots, engine->context, &status);
    test_expect_success(ok, &status);
    test_device_model_scratch(&model, gpu, engine->decode_rows, decodes);
    for (size_t i = 0; i < decodes; i++) lower(&model, gpu, PLAN_DECODE, engine->decode_rows[i], &set, &plans[count++]);
    for (size_t i = 0; i < prefills; i++)
        lower(&model, gpu, PLAN_PREFILL, engine->prefill_rows[i], &set, &plans[count++]);
    for (size_t i = 0; i < set.count; i++) assemble(&set.entries[i], gpu->capability);

    struct engine_writer *writer = engine_writer_begin(to, &status);
    if (!writer) fail_msg("%s", status.message);
    const struct graph *graph = &model.graphs[TEST_LARGE_BATCH];
    struct team *team = team_create(1, &status);
    ok = team && pack_weights(graph, &model.checkpoint, writer, model.weights_bytes, team, NULL, NULL, &status);
    team_destroy(team);
    test_expect_success(ok, &status);
    struct plan_geometry geometry;
    write_manifest(writer, &model, engine->matrices, gpu, plans, count, &geometry);
    write_tensors(writer, graph);
    struct engine_kernel *kernels = kernel_set_view(&set);
    assert_non_null(kernels);
    test_expect_success(engine_writer_kernels(writer, kernels, set.count, &status), &status);
    test_expect_success(engine_writer_plans(writer, plans, count, &geometry, &status), &status);
    test_expect_success(write_names(writer, plans, count, &set, &status), &status);
    write_tokenizer(writer, model.checkpoint.tokenizer_path);
    if (engine->golden) test_expect_success(engine_writer_golden(writer, engine->golden, &status), &status);
    test_expect_success(engine_writer_commit(writer, &status), &status);

    free(kernels);
    kernel_set_free(&set);
    for (size_t p = 0; p < count; p++) plan_free(&plans[p]);
    test_device_model_close(&model);
}

/* ---- one for all tests of a program ---- */

int lowered_engine_build(void **state)
{
    static char name[512];
    struct lowered_engine engine;
    folder = test_folder();
    snprintf(name, sizeof name, "%s/fables_cuda.eng", folder);
    path = name;
    lowered_engine_init(&engine);
    lowered_engine_write(&engine, path);
    return 0;
}

int lowered_engine_remove(void **state)
{
    if (folder) test_folder_remove(folder);
    folder = NULL;
    path = NULL;
    return 0;
}

const char *lowered_engine_path(void) { return path; }
