/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "builder/build_compute.h"
#include "builder/build_cuda.h"
#include "builder/build_graph.h"
#include "builder/build_tokenizer.h"
#include "builder/build_unquantised.h"
#include "builder/lower/names.h"
#include "builder/lower/page_groups.h"
#include "builder/lower/recurrent.h"
#include "builder/lower/plan_memory.h"
#include "builder/golden/golden_cpu.h"
#include "builder/arch/arch.h"
#include "builder/passes/pass.h"
#include "builder/report.h"
#include "builder/weights/cache_scales.h"
#include "builder/weights/shard.h"
#include "builder/weights/weights.h"
#include "formats/base/checked.h"
#include "formats/base/file.h"
#include "formats/base/memory_limit.h"
#include "formats/base/printable.h"
#include "tuner/clock.h"

/* ---- model to graphs ---- */

static bool open_checkpoint(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    build->has_weights = true;
    build->checkpoint_open = checkpoint_open(&build->checkpoint, options->model, false, arch_read_config, status);
    bool plan_only = options->dry_run || options->list_candidates;
    if (!build->checkpoint_open && plan_only && status->code == STATUS_NOT_FOUND) {
        /* A configuration without weights can still be planned. */
        struct status ignored = *status;
        build->has_weights = false;
        status_clear(status);
        build->checkpoint_open = checkpoint_open(&build->checkpoint, options->model, true, arch_read_config, status);
        if (!build->checkpoint_open) *status = ignored;
    }
    return build->checkpoint_open;
}

/* Whether the layer that predicts further tokens has a tensor of its own where the model has one, too: most checkpoints repeat that. */
static bool differs(const struct checkpoint *checkpoint, const char *shared, const char *module)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%u.%s.weight", (unsigned)checkpoint->config.layers - 1, module);
    const struct tensor_view *own = checkpoint_find(checkpoint, name), *of_model = checkpoint_find(checkpoint, shared);
    return own && !(of_model && of_model->data && own->data && of_model->dtype == own->dtype &&
                    of_model->bytes == own->bytes && memcmp(of_model->data, own->data, own->bytes) == 0);
}

static bool choose_predictor(struct build *build, struct status *status)
{
    struct model_config *config = &build->checkpoint.config;
    if (!build->options->mtp) return true;
    if (!arch_add_predictor(config, status)) return false;
    build->lowering.geometry.drafts = 1;
    if (!build->has_weights) return true;
    config->predictor_embedding = differs(&build->checkpoint, "model.embed_tokens.weight", "embed_tokens");
    config->predictor_head =
        differs(&build->checkpoint, config->tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                "shared_head.head");
    return true;
}

static bool make_graphs(struct build *build, uint64_t *weights_bytes, struct status *status)
{
    const struct build_options *options = build->options;
    const enum encoding_id compute = options->compute;
    const bool cuda = build->target == TARGET_CUDA;
    const bool routes = cuda && build->has_routed_matmul && build->checkpoint.config.experts.count;
    if ((build->has_weights && !column_orders_open(&build->orders, &build->checkpoint, status)) ||
        !build_choose_joins(build, status) ||
        !build_make_graph(build, &build->decode, build->target, PLAN_DECODE, GRAPH_ROWS_ANY, compute, true, status))
        return false;
    if (build->has_weights ? !bind_weights(&build->decode, &build->checkpoint, &options->types, status)
                           : !assume_weights(&build->decode, build_assumed_encoding(build), &options->types, status))
        return false;
    if ((cuda && !build_make_graph(build, &build->small_batch, build->target, PLAN_DECODE, GRAPH_ROWS_SMALL_BATCH,
                                   compute, true, status)) ||
        (routes && (!build_make_graph(build, &build->routed_mlp, build->target, PLAN_DECODE, GRAPH_ROWS_ROUTED_MLP,
                                      compute, true, status) ||
                    !build_make_graph(build, &build->router_batch, build->target, PLAN_DECODE, GRAPH_ROWS_ROUTER_BATCH,
                                      compute, true, status))) ||
        !build_make_graph(build, &build->prefill, build->target, PLAN_PREFILL, GRAPH_ROWS_ANY, compute, true, status) ||
        (build->rows[PLAN_MIXED].count &&
         !build_make_graph(build, &build->mixed, build->target, PLAN_MIXED, GRAPH_ROWS_ANY, compute, true, status)) ||
        (build->rows[PLAN_VERIFY].count &&
         !build_make_graph(build, &build->verify, build->target, PLAN_VERIFY, GRAPH_ROWS_ANY, compute, true, status)))
        return false;
    return plan_weights(&build->decode, weights_bytes, status) &&
           share_weights(&build->prefill, &build->decode, status) &&
           (!build->rows[PLAN_MIXED].count || share_weights(&build->mixed, &build->decode, status)) &&
           (!build->rows[PLAN_VERIFY].count || share_weights(&build->verify, &build->decode, status)) &&
           (!cuda || share_weights(&build->small_batch, &build->decode, status)) &&
           (!routes || (share_weights(&build->routed_mlp, &build->decode, status) &&
                        share_weights(&build->router_batch, &build->decode, status)));
}

/* ---- limits ---- */

static uint64_t largest_batch(const struct build_options *options)
{
    if (options->max_batch) return options->max_batch;
    if (options->batch_size_count) return options->batch_sizes[options->batch_size_count - 1];
    return options->target == TARGET_CUDA ? BUILD_DEFAULT_BATCH_CUDA : BUILD_DEFAULT_BATCH;
}

/* As asked, else as the checkpoint's configuration says, if the target has kernels for it. */
static enum encoding_id kv_dtype(const struct build *build)
{
    const struct model_config *config = &build->checkpoint.config;
    const bool cuda = build->target == TARGET_CUDA;
    bool has_codes = cache_is_e4m3(&build->checkpoint);
    for (uint64_t layer = 0; cuda && layer < config->layers; layer++)
        has_codes = has_codes && model_head_dim(config, layer) % 16 == 0;
    if (build->options->kv_dtype) return build->options->kv_dtype;
    if (has_codes) return ENCODING_E4M3_CHANNEL;
    return cuda ? (enum encoding_id)build_half_dtype(build) : ENCODING_F32;
}

/* A launch more for each step, and one row of float32 for each row that gets logits. */
static bool choose_hidden(struct build *build, struct status *status)
{
    const struct embedding_config *embedding = &build->checkpoint.embedding;
    if (build->options->hidden && embedding->kind == EMBEDDING_OTHER)
        return status_fail(status, STATUS_BAD_INPUT,
                           "--hidden: the embeddings of this checkpoint are made in a way that is not supported: %s; "
                           "remove modules.json to build without them",
                           embedding->other);
    if (embedding->kind == EMBEDDING_OTHER)
        progress_warn(&build->progress,
                      "the engine gives no hidden states: the checkpoint's embeddings are made in a way that is not "
                      "supported: %s",
                      embedding->other);
    if (build->options->hidden || embedding->kind == EMBEDDING_LAST_TOKEN)
        build->lowering.geometry.hidden_size = build->checkpoint.config.hidden_size;
    return true;
}

static bool set_geometry(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    const struct model_config *config = &build->checkpoint.config;
    struct plan_geometry *geometry = &build->lowering.geometry;
    if (options->max_context > config->max_position)
        return status_fail(status, STATUS_BAD_INPUT, "--max-context: expected at most %" PRIu64 " (%s), found %" PRIu64,
                           config->max_position,
                           config->position_limit ? config->position_limit : "max_position_embeddings",
                           options->max_context);
    geometry->slots = largest_batch(options);
    geometry->max_context = options->max_context                           ? options->max_context
                            : config->max_position < BUILD_DEFAULT_CONTEXT ? config->max_position
                                                                           : BUILD_DEFAULT_CONTEXT;
    bool cuda = build->target == TARGET_CUDA;
    geometry->page_tokens = cuda ? BUILD_PAGE_TOKENS_CUDA : BUILD_PAGE_TOKENS;
    geometry->pages_per_slot = (geometry->max_context + geometry->page_tokens - 1) / geometry->page_tokens;
    build->lowering.kv_dtype = kv_dtype(build);
    if (!shard_config(config, options->gpus, &build->rank_config, status)) return false;
    geometry->recurrent_bytes = recurrent_bytes(&build->rank_config, build->target);
    if (!build_choose_rows(options, geometry, build->rows, status)) return false;
    const struct build_rows *chunks = &build->rows[PLAN_PREFILL];
    if (!page_groups_choose(&build->rank_config, build->lowering.kv_dtype, chunks->rows[chunks->count - 1], geometry))
        return status_fail(status, STATUS_BAD_INPUT, "a KV page does not fit into 64-bit sizes");
    geometry->vocab_size = config->vocab_size;
    geometry->rope_original =
        rope_sets(&config->rope, config->max_position) > 1 ? config->rope.original_max_position : 0;
    geometry->ranks = options->gpus;
    geometry->sampling_options = 1;
    return choose_hidden(build, status);
}

static bool lower_all(struct build *build, struct status *status)
{
    const uint64_t slots = build->lowering.geometry.slots;
    /* The maximum over all plans: few rows may be exchanged in a way that needs a larger buffer. */
    for (enum plan_kind kind = PLAN_DECODE; kind < PLAN_KIND_END; kind++)
        for (int i = 0; i < build->rows[kind].count; i++) {
            const uint64_t rows = build->rows[kind].rows[i];
            uint64_t bytes;
            if (!lower_exchange_bytes(build_graph_of(build, kind), &build->lowering, rows,
                                      plan_out_rows(kind, rows, slots), &bytes, status))
                return false;
            if (bytes > build->lowering.exchange_bytes) build->lowering.exchange_bytes = bytes;
        }
    if (build->target == TARGET_CUDA)
        return build_compute_choose(build, build_cuda_facts(build), status) && build_cuda_lower(build, status);
    for (enum plan_kind kind = PLAN_DECODE; kind < PLAN_KIND_END; kind++)
        for (int i = 0; i < build->rows[kind].count; i++, build->plan_count++)
            if (!lower_plan(build_graph_of(build, kind), &build->lowering, build->rows[kind].rows[i],
                            &build->plans[build->plan_count], status))
                return status_prefix(status, "%s plan of %u rows", plan_kind_name(kind), build->rows[kind].rows[i]);
    return true;
}

/* ---- manifest ---- */

/* The last part of the path, cut to fit; bytes that are not text in a manifest become question marks. */
static void copy_base_name(const char *path, char *out, size_t size)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    size_t length = end - begin < size - 1 ? end - begin : size - 1;
    memcpy(out, path + begin, length);
    out[length] = '\0';
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bytes = printable_length(out + i, length - i);
        if (!bytes) out[i] = '?', bytes = 1;
    }
}

/* The encoding of most elements of matrices. */
static enum encoding_id matrix_encoding(const struct graph *graph)
{
    enum encoding_id most = ENCODING_NONE;
    double largest = 0; /* elements */
    for (int w = 0; w < graph->weight_count; w++) {
        double elements = 0;
        for (int other = 0; other < graph->weight_count; other++) {
            const struct graph_weight *weight = &graph->weights[other];
            if (weight->used && weight->form == WEIGHT_MATRIX && weight->encoding == graph->weights[w].encoding)
                elements += (double)weight->rows * (double)weight->depth;
        }
        if (elements > largest) largest = elements, most = graph->weights[w].encoding;
    }
    return most;
}

static bool fill_manifest(struct build *build, uint64_t weights_bytes, struct status *status)
{
    const struct model_config *config = &build->checkpoint.config;
    struct manifest *m = &build->manifest;
    snprintf(m->builder_version, sizeof m->builder_version, "%s", BUILDER_VERSION);
    snprintf(m->model_type, sizeof m->model_type, "%s", config->model_type);
    static const char single_file[] = ".gguf"; /* has the model's name where others have it in the folder's */
    if (file_has_suffix(build->options->model, single_file)) {
        copy_base_name(build->options->model, m->model_name, sizeof m->model_name);
        const size_t suffix = sizeof single_file - 1, length = strlen(m->model_name);
        if (length > suffix && file_has_suffix(m->model_name, single_file)) m->model_name[length - suffix] = '\0';
    } else {
        char *folder = realpath(build->checkpoint.directory, NULL); /* "." has a name, too */
        if (!folder && errno == ENOMEM) return status_fail(status, STATUS_MACHINE, "out of memory");
        copy_base_name(folder ? folder : build->checkpoint.directory, m->model_name, sizeof m->model_name);
        free(folder);
    }
    m->target = build->target;
    const struct device_facts *gpu = build->target == TARGET_CUDA ? build_cuda_facts(build) : NULL;
    m->target_capability = gpu ? (uint64_t)gpu->capability : 0;
    snprintf(m->target_name, sizeof m->target_name, "%s", gpu ? gpu->name : build->machine.name);
    m->hidden_size = config->hidden_size;
    m->intermediate_size = config->intermediate_size;
    m->layers = config->layers;
    m->heads = config->heads;
    m->kv_heads = config->kv_heads;
    m->head_dim = config->head_dim;
    m->latent_dim = config->latent.kv_rank;
    m->kv_layers = model_attention_layers(config) < config->layers ? model_attention_layers(config) : 0;
    const struct model_config *rank = build->options->gpus > 1 ? &build->rank_config : config;
    const uint64_t kv_bytes = kv_all_bytes(rank, build->lowering.geometry.page_tokens, build->lowering.kv_dtype);
    const uint64_t alike = kv_layer_bytes(rank, build->lowering.geometry.page_tokens, build->lowering.kv_dtype);
    if (kv_bytes != alike * model_attention_layers(config)) m->kv_all_bytes = kv_bytes;
    m->parameters = count_parameters(&build->decode);
    m->weight_encoding = matrix_encoding(&build->decode);
    m->kv_dtype = build->lowering.kv_dtype;
    m->eight_bit_rows = build->eight_bit_rows;
    m->eight_bit_inputs = build->eight_bit_rows ? build->eight_bit_decode.input_codes : DTYPE_NONE;
    m->geometry = build->lowering.geometry;
    m->weights_bytes = weights_bytes;
    if (!lower_comm_bytes(&build->lowering, &m->comm_bytes))
        return status_fail(status, STATUS_BAD_INPUT, "what ranks exchange does not fit into 64-bit sizes");
    if (!geometry_place_state(&m->geometry, &m->state_bytes))
        return status_fail(status, STATUS_BAD_INPUT,
                           "the state of %" PRIu64 " sequences does not fit into 64-bit sizes", m->geometry.slots);
    for (size_t p = 0; p < build->plan_count; p++) {
        const struct plan_header *header = &build->plans[p].header;
        if (header->arena_bytes > m->arena_bytes) m->arena_bytes = header->arena_bytes;
        if (header->step_bytes > m->step_bytes) m->step_bytes = header->step_bytes;
    }
    /* Ids beyond the vocabulary mark nothing: no token of this model is ever equal to them. */
    int64_t vocab = (int64_t)config->vocab_size;
    m->bos_token = config->bos_token < vocab ? config->bos_token : -1;
    m->pad_token = config->pad_token < vocab ? config->pad_token : -1;
    _Static_assert((int)MANIFEST_MAX_EOS == (int)MODEL_MAX_EOS, "same limit");
    for (int i = 0; i < config->eos_count; i++)
        if (config->eos_tokens[i] < vocab) m->eos_tokens[m->eos_count++] = config->eos_tokens[i];
    m->temperature = config->do_sample ? config->temperature : 0;
    m->top_p = config->top_p;
    m->top_k = config->top_k;
    m->repetition_penalty = config->repetition_penalty;
    m->has_tokenizer = build->checkpoint.tokenizer_path || build->checkpoint.tokenizer_text;
    return true;
}

/* ---- the file ---- */

static void pack_progressed(void *context, uint64_t done, uint64_t total)
{
    progress_update(context, done, total, NULL);
}

static bool write_tensor_table(struct build *build, struct status *status)
{
    const struct graph *graph = &build->decode;
    struct engine_tensor *tensors = calloc((size_t)graph->weight_count + 1, sizeof *tensors);
    if (!tensors) return status_fail(status, STATUS_MACHINE, "out of memory while writing the tensor table");
    size_t count = 0;
    for (int w = 0; w < graph->weight_count; w++) {
        const struct graph_weight *weight = &graph->weights[w];
        if (!weight->used) continue;
        struct engine_tensor *tensor = &tensors[count++];
        tensor->name = weight->name;
        tensor->dtype = (enum dtype)weight->encoding;
        tensor->layout = graph_weight_layout(graph, weight);
        tensor->rank = weight->columns ? 2 : 1;
        tensor->shape[0] = weight->rows;
        tensor->shape[1] = weight->columns ? weight->depth : 0;
        tensor->offset = weight->offset;
        tensor->bytes = weight->bytes;
    }
    bool ok = engine_writer_tensors(build->writer, tensors, count, status);
    free(tensors);
    return ok;
}

static bool write_small_sections(struct build *build, const uint8_t *weights, struct status *status)
{
    bool ok = false;
    char *manifest = NULL, *lines = NULL;
    size_t manifest_size, lines_size;
    struct golden_outputs golden = {0};
    progress_stage(&build->progress, "golden");
    if (build->target == TARGET_CUDA
            ? !build_cuda_golden(build, &golden, status)
            : !compute_golden(&build->manifest, build->plans, build->plan_count, weights, build->team,
                              build->machine.isa, &build->progress, &golden, status))
        goto done;
    if (!build_find_accuracy(build, weights, status)) goto done;
    progress_stage(&build->progress, "write");
    if (!manifest_format(&build->manifest, &manifest, &manifest_size, status) ||
        !tactics_format(&build->tactics, &lines, &lines_size, status))
        goto done;
    for (size_t p = 0; p < build->plan_count; p++) op_leave_out_defaults(&build->plans[p]);
    ok = engine_writer_section(build->writer, SECTION_MANIFEST, manifest, manifest_size, false, status) &&
         write_tensor_table(build, status) &&
         (build->target == TARGET_CUDA ? build_cuda_write_kernels(build, status)
                                       : write_names(build->writer, build->plans, build->plan_count, NULL, status)) &&
         engine_writer_plans(build->writer, build->plans, build->plan_count, &build->manifest.geometry, status) &&
         engine_writer_section(build->writer, SECTION_TACTICS, lines, lines_size, true, status) &&
         (!build->tokenizer || engine_writer_section(build->writer, SECTION_TOKENIZER, build->tokenizer,
                                                     build->tokenizer_bytes, false, status)) &&
         (!build->chat_document || engine_writer_section(build->writer, SECTION_CHAT_TEMPLATES, build->chat_document,
                                                         strlen(build->chat_document), true, status)) &&
         (golden.prompt.token_count == 0 || engine_writer_golden(build->writer, &golden.prompt, status)) &&
         engine_writer_golden_plans(build->writer, &golden.plans, status) &&
         engine_writer_golden_drafts(build->writer, &golden.prompt, &golden.plans, status);
done:
    free(manifest);
    free(lines);
    golden_outputs_free(&golden);
    return ok;
}

/* ---- tuning ---- */

/* The cache only saves time, so any defect of its file costs the records and not the build. */
static void open_cache(struct build *build)
{
    struct status status = {0};
    const char *path = build->options->tuning_cache;
    if (!path) return;
    build->cache_open = tuning_cache_open(&build->cache, path, &status);
    if (!build->cache_open)
        progress_warn(&build->progress, "%s; going on without a tuning cache", status.message);
    else if (build->cache.damaged)
        progress_warn(&build->progress, "%s: %zu damaged records skipped; they will be measured again", path,
                      build->cache.damaged);
}

static bool tune(struct build *build, const uint8_t *weights, enum tune_level level, struct status *status)
{
    struct tuning_cache *cache = build->cache_open ? &build->cache : NULL;
    build->tactics.cache = cache;
    if (build->target == TARGET_CUDA) {
        if (!build_cuda_tune(build, weights, level, status)) return false;
    } else if (!tune_plans(build->plans, build->plan_count, weights, &build->machine, build->team, level, cache,
                           &build->progress, &build->tactics, status))
        return false;
    if (build->tactics.unsaved)
        progress_warn(&build->progress, "%s; %zu tuning records were not kept and will be measured again",
                      build->tactics.cache_status.message, build->tactics.unsaved);
    return true;
}

/* All but the name of the file. */
static bool write_engine(struct build *build, uint64_t weights_bytes, struct status *status)
{
    const struct build_options *options = build->options;
    const uint8_t *weights = NULL;
    build->writer = engine_writer_begin(options->output, status);
    if (!build->writer) return false;
    if (!build_calibrate(build, status)) return false;
    progress_stage(&build->progress, "pack");
    if (!pack_weights(&build->decode, &build->checkpoint, build->writer, weights_bytes, build->team, pack_progressed,
                      &build->progress, status) ||
        !engine_writer_map_weights(build->writer, &weights, status))
        return false;
    if (build->target == TARGET_CPU) progress_stage(&build->progress, "tune");
    if (!tune(build, weights, options->tune, status)) return false;
    if (!write_small_sections(build, weights, status)) return false;
    build->file_bytes = engine_writer_bytes(build->writer);
    return engine_writer_finish(build->writer, status);
}

/* ---- reports without an engine ---- */

static bool list_candidates(const struct build *build, struct status *status)
{
    for (size_t p = 0; p < build->plan_count; p++) {
        const struct plan *plan = &build->plans[p];
        char last[TUNING_KEY_BYTES] = "", key[TUNING_KEY_BYTES];
        for (uint32_t n = 0; n < plan->header.launch_count; n++) {
            int64_t params[MATMUL_PARAMS];
            uint32_t layer = plan->launches[n].layer; /* the layers are alike */
            if (plan->launches[n].op != OP_MATMUL || (layer > 0 && layer != GRAPH_NO_LAYER)) continue;
            if (!op_params(plan, &plan->launches[n], MATMUL_TUNABLES, params, status)) return false;
            matmul_tuning_key(params, &build->machine, key);
            if (strcmp(key, last) != 0) matmul_print_space(params, &build->machine, build->options->out);
            memcpy(last, key, sizeof last);
        }
    }
    return true;
}

static void build_close(struct build *build)
{
    if (build->writer) engine_writer_abandon(build->writer);
    for (size_t p = 0; p < build->plan_count; p++) plan_free(&build->plans[p]);
    build_cuda_close(build);
    build_unquantised_close(build);
    tactics_free(&build->tactics);
    free(build->tokenizer);
    chat_templates_close(build->chat_templates);
    free(build->chat_document);
    if (build->cache_open) tuning_cache_close(&build->cache);
    graph_free(&build->decode);
    graph_free(&build->small_batch);
    graph_free(&build->routed_mlp);
    graph_free(&build->router_batch);
    graph_free(&build->eight_bit_decode);
    graph_free(&build->eight_bit_prefill);
    graph_free(&build->prefill);
    graph_free(&build->mixed);
    graph_free(&build->eight_bit_mixed);
    graph_free(&build->verify);
    graph_free(&build->eight_bit_verify);
    column_orders_close(&build->orders);
    if (build->checkpoint_open) checkpoint_close(&build->checkpoint);
    team_destroy(build->team);
    free(build);
}

/* Memory where the engine will run: that of a GPU, or the available memory of this machine. */
static uint64_t available_bytes(const struct build *build)
{
    struct memory_limit memory;
    if (build->target == TARGET_CUDA) return build_cuda_facts(build)->memory_bytes;
    memory_limit_available("", &memory);
    return memory.bytes < INT64_MAX ? memory.bytes : INT64_MAX; /* JSON needs a number; unknown */
}

bool build_engine(const struct build_options *options, struct status *status)
{
    bool ok = false;
    char *json = NULL;
    uint64_t weights_bytes;
    double start = clock_us();
    struct build *build = calloc(1, sizeof *build);
    if (!build) return status_fail(status, STATUS_MACHINE, "out of memory");
    build->options = options;
    build->target = options->target;
    progress_open(&build->progress, options->progress);
    build->progress.warnings = options->warnings;
    if (options->dump_after && !pass_name_known(options->dump_after, status)) goto done;
    if (!open_checkpoint(build, status) || !choose_predictor(build, status) || !build_compute_check(build, status))
        goto done;
    build->team = team_create(options->threads, status);
    if (!build->team) goto done;
    machine_describe(&build->machine, build->team);
    build->lowering.isa = build->machine.isa;
    build->lowering.threads = build->machine.threads;
    if (build->target == TARGET_CUDA && !build_cuda_open(build, status)) goto done;
    if (!set_geometry(build, status) || !make_graphs(build, &weights_bytes, status) || !lower_all(build, status) ||
        !fill_manifest(build, weights_bytes, status) || !build_import_tokenizer(build, status))
        goto done;
    if (options->list_candidates) {
        if (build->target == TARGET_CUDA) {
            ok = build_cuda_list_candidates(build, status);
            goto done;
        }
        if (!machine_probe(&build->machine, build->team, status)) goto done;
        ok = list_candidates(build, status);
        goto done;
    }
    open_cache(build);
    if (options->dry_run) {
        /* Cached timings give the better estimate; the roofline replaces missing ones. */
        if (build->target == TARGET_CPU && !machine_probe(&build->machine, build->team, status)) goto done;
        if (!tune(build, NULL, TUNE_OFF, status)) goto done;
        if (build->target == TARGET_CUDA) build_cuda_estimate(build);
    } else if (!write_engine(build, weights_bytes, status)) {
        goto done;
    }
    struct build_report report = {
        .manifest = &build->manifest,
        .plans = build->plans,
        .plan_count = build->plan_count,
        .library_plans = build->library_plans,
        .plan_us = build->plan_us,
        .machine = &build->machine,
        .tactics = &build->tactics,
        .channels = &build->channels,
        .compute_given = options->compute != ENCODING_NONE,
        .plain_experts = build_compute_leaves_experts(build),
        .plain_blocks = build_compute_leaves_blocks(build),
        .kv_dtype_given = options->kv_dtype != ENCODING_NONE,
        .scaled_layers = build->scaled_layers,
        .tokenizer_tokens = build->tokenizer_tokens,
        .chat_templates = build->chat_templates,
        .no_tokenizer = build->no_tokenizer[0] ? build->no_tokenizer : NULL,
        .quantised = build->checkpoint.config.quantisation.method != QUANT_NONE
                         ? build->checkpoint.config.quantisation.name
                         : NULL,
        .towers = build->checkpoint.towers,
        .output = options->dry_run ? NULL : options->output,
        .file_bytes = build->file_bytes,
        .seconds = (clock_us() - start) * 1e-6,
        .is_on_record = build->target == TARGET_CUDA && build_cuda_is_on_record(build),
        .available_bytes = available_bytes(build),
    };
    if (build->has_weights && options->types.matrices == ENCODING_NONE)
        decoded_matrices_count(&build->decode, &build->checkpoint, &options->types, report.decoded);
    /* No allocation can fail once the engine has its name. */
    if (options->json && !(json = report_json(&report, status))) goto done;
    if (!options->dry_run) {
        struct engine_writer *writer = build->writer;
        build->writer = NULL; /* commit frees it even on failure */
        if (!engine_writer_commit(writer, status)) goto done;
        progress_done(&build->progress);
    }
    if (json)
        fprintf(options->out, "%s\n", json);
    else
        report_print(&report, options->out);
    ok = !options->dry_run || report_check_fit(&report, status);
done:
    free(json);
    progress_close(&build->progress);
    build_close(build);
    return ok;
}
