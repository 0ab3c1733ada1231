/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_unquantised.h"

#include <stdlib.h>
#include <string.h>

#include "builder/build_cuda.h"
#include "builder/build_graph.h"
#include "builder/golden/calibrate.h"
#include "builder/lower/page_groups.h"
#include "builder/lower/plan_memory.h"
#include "builder/weights/weights.h"
#include "formats/base/file.h"
#include "formats/tokenizer/tokenizer.h"

/* A model beside the engine's, with weights packed into a file beside the engine that is removed at the end. */
struct own_model {
    struct graph graph;       /* of decode plans */
    struct manifest manifest; /* the engine's, with the sizes of this one */
    struct plan plan;         /* of the processor */
    struct engine_writer *writer;
    const uint8_t *weights;
};

/* Models on the processor. */
struct unquantised {
    struct own_model model; /* with the checkpoint's weights */
    struct own_model coded; /* with the engine's codes, where the engine is for a GPU that does not measure itself */
    struct calibration calibration;
    struct channel_scales scales;
};

static bool has_new_codes(const struct graph *graph)
{
    for (int w = 0; w < graph->weight_count; w++) {
        const struct graph_weight *weight = &graph->weights[w];
        if (weight->used && !weight->keeps_codes && !encoding_is_plain(weight->encoding)) return true;
    }
    return false;
}

enum { MOST_ROWS = 8 };

/* The engine's decode plan with the most rows up to MOST_ROWS. */
static const struct plan *plan_to_measure(const struct build *build)
{
    const struct plan *best = &build->plans[0];
    for (size_t p = 0; p < build->plan_count; p++) {
        const struct plan_header *header = &build->plans[p].header;
        if (header->kind == PLAN_DECODE && header->rows <= MOST_ROWS && header->rows > best->header.rows)
            best = &build->plans[p];
    }
    return best;
}

/* Sequences at once. An engine for a GPU has its plans made anew, so that its batch sizes do not matter. */
static uint32_t rows_to_measure(const struct build *build)
{
    if (build->target == TARGET_CPU) return plan_to_measure(build)->header.rows;
    const uint64_t slots = build->lowering.geometry.slots;
    return slots < MOST_ROWS ? (uint32_t)slots : MOST_ROWS;
}

static void close_model(struct own_model *model)
{
    plan_free(&model->plan);
    if (model->writer) engine_writer_abandon(model->writer);
    graph_free(&model->graph);
}

/* How a plan of the CPU lies in memory: as one of the engine, where that is for the CPU. */
static bool lower_on_cpu(const struct build *build, struct own_model *model, struct status *status)
{
    struct lowering lowering = build->lowering;
    struct manifest *manifest = &model->manifest;
    struct plan_geometry *geometry = &lowering.geometry;
    const uint32_t rows = rows_to_measure(build);
    if (build->target != TARGET_CPU) {
        lowering.kv_dtype = ENCODING_F32;
        /* A chunk of any length: no window saves a page, so there is one group. */
        if (!page_groups_choose(&build->rank_config, lowering.kv_dtype, UINT64_MAX, geometry) ||
            !geometry_place_state(geometry, &manifest->state_bytes))
            return status_fail(status, STATUS_BAD_INPUT, "a KV page does not fit into 64-bit sizes");
        if (!lower_exchange_bytes(&model->graph, &lowering, rows, rows, &lowering.exchange_bytes, status)) return false;
        manifest->target = TARGET_CPU;
        manifest->kv_dtype = lowering.kv_dtype;
        manifest->geometry = *geometry;
        if (!lower_comm_bytes(&lowering, &manifest->comm_bytes))
            return status_fail(status, STATUS_BAD_INPUT, "what ranks exchange does not fit into 64-bit sizes");
    }
    if (!lower_plan(&model->graph, &lowering, rows, &model->plan, status)) return false;
    manifest->arena_bytes = model->plan.header.arena_bytes;
    manifest->step_bytes = model->plan.header.step_bytes;
    return true;
}

/* The graph, and where its weights lie. `rounds_to`: as of build_make_graph. */
static bool begin_model(struct build *build, struct own_model *model, enum engine_target target,
                        const struct weight_types *types, enum encoding_id rounds_to, struct status *status)
{
    model->manifest = build->manifest;
    return build_make_graph(build, &model->graph, target, PLAN_DECODE, GRAPH_ROWS_ANY, rounds_to, false, status) &&
           bind_weights(&model->graph, &build->checkpoint, types, status) &&
           plan_weights(&model->graph, &model->manifest.weights_bytes, status);
}

/* The file has the engine's name and `suffix`. */
static bool pack_model(struct build *build, struct own_model *model, const char *suffix, struct status *status)
{
    char *path = NULL;
    if (asprintf(&path, "%s.%s", build->options->output, suffix) < 0)
        return status_fail(status, STATUS_MACHINE, "out of memory");
    model->writer = engine_writer_begin(path, status);
    free(path);
    return model->writer &&
           pack_weights(&model->graph, &build->checkpoint, model->writer, model->manifest.weights_bytes, build->team,
                        NULL, NULL, status) &&
           engine_writer_map_weights(model->writer, &model->weights, status);
}

/* `calibrated`: a graph of the same weights whose calibration and scales these get; NULL: none. */
static bool open_on_cpu(struct build *build, struct own_model *model, const char *suffix,
                        const struct weight_types *types, enum encoding_id rounds_to, const struct graph *calibrated,
                        struct status *status)
{
    if (!begin_model(build, model, TARGET_CPU, types, rounds_to, status)) return false;
    model->graph.calibration = calibrated ? calibrated->calibration : NULL;
    model->graph.scales = calibrated ? calibrated->scales : NULL;
    return pack_model(build, model, suffix, status) && lower_on_cpu(build, model, status);
}

/* Calibration knows weights by their numbers. The engine's graph alone may have scales of its KV cache, after all other weights. */
static bool has_same_weights(const struct graph *own, const struct graph *engine, struct status *status)
{
    bool same = own->weight_count <= engine->weight_count;
    for (int w = 0; same && w < own->weight_count; w++)
        same = strcmp(own->weights[w].name, engine->weights[w].name) == 0;
    for (int w = own->weight_count; same && w < engine->weight_count; w++) same = !engine->weights[w].sources[0].tensor;
    return same || status_fail(status, STATUS_INTERNAL, "the graphs of engine and processor have different weights");
}

static bool open_unquantised(struct build *build, struct status *status)
{
    static const struct weight_types as_in_checkpoint = {.matrices = ENCODING_NONE, .decodes = true};
    if (build->unquantised && build->unquantised->model.weights) return true;
    build_unquantised_close(build);
    struct unquantised *own = build->unquantised = calloc(1, sizeof *own);
    if (!own) return status_fail(status, STATUS_MACHINE, "out of memory");
    return open_on_cpu(build, &own->model, "unquantised", &as_in_checkpoint, ENCODING_F32, NULL, status) &&
           has_same_weights(&own->model.graph, &build->decode, status);
}

void build_unquantised_close(struct build *build)
{
    struct unquantised *own = build->unquantised;
    if (!own) return;
    build->decode.calibration = NULL;
    build->decode.scales = NULL;
    channel_scales_close(&own->scales);
    calibration_close(&own->calibration);
    close_model(&own->model);
    close_model(&own->coded);
    free(own);
    build->unquantised = NULL;
}

static struct accuracy_model view_of(const struct own_model *model)
{
    return (struct accuracy_model){&model->manifest, &model->plan, model->weights};
}

/* ---- calibration ---- */

enum { MOST_TEXT_BYTES = 1 << 20 }; /* far more than calibrate takes */

/* The tokens of the text in the file that --calibrate names. */
static bool read_text(const struct build *build, struct token_buffer *tokens, struct status *status)
{
    const char *path = build->options->calibrate;
    struct file_map text;
    if (!build->tokenizer)
        return status_fail(status, STATUS_BAD_INPUT, "--calibrate: a text needs a tokenizer, and %s; expected 'self'",
                           build->no_tokenizer);
    if (!file_map_open(&text, path, status)) return status_prefix(status, "--calibrate");
    struct tokenizer *tokenizer = tokenizer_open(build->tokenizer, build->tokenizer_bytes, false, status);
    const size_t size = text.size < MOST_TEXT_BYTES ? text.size : MOST_TEXT_BYTES;
    bool ok = tokenizer && tokenizer_encode(tokenizer, (const char *)text.data, size, true, tokens, status);
    if (ok && tokens->count == 0) ok = status_fail(status, STATUS_BAD_INPUT, "%s has no text", path);
    for (size_t i = 0; ok && i < tokens->count; i++)
        if ((uint64_t)tokens->ids[i] >= build->manifest.geometry.vocab_size)
            ok = status_fail(status, STATUS_BAD_INPUT, "%s has token %d, which is beyond the model's vocabulary", path,
                             (int)tokens->ids[i]);
    tokenizer_close(tokenizer);
    file_map_close(&text);
    return ok || status_prefix(status, "--calibrate");
}

/* The folder of a path, to be freed; NULL: out of memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
}

bool build_calibrate(struct build *build, struct status *status)
{
    const char *text = build->options->calibrate;
    struct token_buffer tokens = {0};
    if (!text) return true;
    progress_stage(&build->progress, "calibrate");
    bool ok = strcmp(text, "self") == 0 || read_text(build, &tokens, status);
    ok = ok && open_unquantised(build, status);
    struct unquantised *own = build->unquantised;
    char *folder = ok ? folder_of(build->options->output) : NULL;
    ok = ok && (folder || status_fail(status, STATUS_MACHINE, "out of memory")) &&
         calibration_open(&own->calibration, &build->decode, folder, status);
    if (ok && !own->calibration.matrices)
        ok = status_fail(status, STATUS_USAGE,
                         "--calibrate: only with matrices that get codes of 4 bits (--dtype int4, mxfp4 "
                         "or nvfp4)");
    if (ok) {
        const struct accuracy_model model = view_of(&own->model);
        ok = calibrate(&model, &own->model.graph, tokens.ids, tokens.count, build->team, build->machine.isa,
                       &build->progress, &own->calibration, status);
    }
    ok = ok && channel_scales_choose(&own->scales, &own->model.graph, &build->decode, &build->checkpoint,
                                     &own->calibration, build->team, status);
    if (ok) {
        build->decode.calibration = &own->calibration;
        build->decode.scales = &own->scales;
        build->channels = own->scales.summary;
    }
    free(folder);
    token_buffer_free(&tokens);
    return ok;
}

/* ---- accuracy ---- */

/* The engine's model on the processor. A GPU's is packed once more, with the same codes: how the GPU rounds is not measured. */
static bool open_quantised(struct build *build, const uint8_t *weights, struct accuracy_model *model,
                           struct status *status)
{
    struct unquantised *own = build->unquantised;
    *model = (struct accuracy_model){&build->manifest, plan_to_measure(build), weights};
    if (build->target == TARGET_CPU) return true;
    /* Codes of activations are part of how it rounds. */
    const enum encoding_id asked = build->options->compute;
    const enum encoding_id rounds_to = encoding_is_plain(asked) ? asked : ENCODING_F32;
    if (!open_on_cpu(build, &own->coded, "quantised", &build->options->types, rounds_to, &build->decode, status))
        return false;
    *model = view_of(&own->coded);
    return true;
}

static bool measure_on_cpu(struct build *build, const uint8_t *weights, struct status *status)
{
    struct accuracy_model quantised;
    if (!open_unquantised(build, status) || !open_quantised(build, weights, &quantised, status)) return false;
    const struct accuracy_model unquantised = view_of(&build->unquantised->model);
    return measure_accuracy_cpu(&unquantised, &quantised, build->team, build->machine.isa, &build->progress,
                                &build->manifest.accuracy, status);
}

/* The engine's plan beside one of the model in bf16, on the same GPU: its rounding counts, too. *measured is false where it cannot hold
 * both. */
static bool measure_on_gpu(struct build *build, bool *measured, struct status *status)
{
    static const struct weight_types as_bf16 = {.matrices = ENCODING_BF16, .decodes = true};
    const struct plan *plan = plan_to_measure(build);
    struct own_model model = {.writer = NULL};
    struct manifest *manifest = &model.manifest;
    bool ok = begin_model(build, &model, TARGET_CUDA, &as_bf16, ENCODING_F32, status);
    manifest->kv_dtype = ENCODING_BF16;
    if (ok && (!page_groups_choose(&build->rank_config, manifest->kv_dtype, UINT64_MAX, &manifest->geometry) ||
               !geometry_place_state(&manifest->geometry, &manifest->state_bytes)))
        ok = status_fail(status, STATUS_BAD_INPUT, "a KV page does not fit into 64-bit sizes");
    if (ok && build_cuda_takes_model(build, &model.graph, manifest, plan->header.rows))
        *measured = ok =
            pack_model(build, &model, "unquantised-gpu", status) &&
            build_cuda_accuracy(build, &model.graph, manifest, model.weights, plan, &build->manifest.accuracy, status);
    close_model(&model);
    return ok;
}

bool build_find_accuracy(struct build *build, const uint8_t *weights, struct status *status)
{
    bool measured = false;
    const bool differs =
        has_new_codes(&build->decode) || (build->target == TARGET_CPU && build->options->compute == ENCODING_INT8_G32);
    if (build->options->no_accuracy || !differs) return true;
    progress_stage(&build->progress, "accuracy");
    const bool tries_gpu = build->target == TARGET_CUDA && build->options->gpus == 1;
    bool ok = !tries_gpu || measure_on_gpu(build, &measured, status);
    if (!ok) { /* the processor may do: it has other memory and other kernels */
        if (status->code != STATUS_MACHINE)
            progress_warn(&build->progress, "the accuracy of the weights is measured on the processor: %s",
                          status->message);
        status_clear(status);
        ok = true;
    }
    ok = ok && (measured || measure_on_cpu(build, weights, status));
    const struct unquantised *own = build->unquantised;
    if (ok && own && own->calibration.matrices) build->manifest.accuracy.calibration_tokens = own->calibration.tokens;
    build_unquantised_close(build);
    if (ok || status->code != STATUS_MACHINE) return ok;
    progress_warn(&build->progress, "%s; the accuracy of the weights was not measured", status->message);
    status_clear(status);
    return true;
}
