/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_unquantised.h"

#include <stdlib.h>
#include <string.h>

#include "builder/build_graph.h"
#include "builder/golden/calibrate.h"
#include "builder/weights/weights.h"
#include "formats/base/file.h"
#include "formats/tokenizer/tokenizer.h"

/* The model with the checkpoint's weights, packed into a file beside the engine that is removed at the end. */
struct unquantised {
    struct graph graph;
    struct manifest manifest; /* the engine's, with the sizes of this one */
    struct plan plan;
    struct engine_writer *writer;
    const uint8_t *weights;
    struct calibration calibration;
};

static bool has_new_codes(const struct graph *graph)
{
    for (int w = 0; w < graph->weight_count; w++) {
        const struct graph_weight *weight = &graph->weights[w];
        if (weight->used && !weight->keeps_codes && !encoding_is_plain(weight->encoding)) return true;
    }
    return false;
}

/* The engine's decode plan with the most rows up to 8. */
static const struct plan *plan_to_measure(const struct build *build)
{
    const struct plan *best = &build->plans[0];
    for (size_t p = 0; p < build->plan_count; p++) {
        const struct plan_header *header = &build->plans[p].header;
        if (header->kind == PLAN_DECODE && header->rows <= 8 && header->rows > best->header.rows)
            best = &build->plans[p];
    }
    return best;
}

static bool open_unquantised(struct build *build, struct status *status)
{
    char *path = NULL;
    static const struct weight_types as_in_checkpoint = {.matrices = ENCODING_NONE};
    if (build->unquantised && build->unquantised->weights) return true;
    build_unquantised_close(build);
    struct unquantised *own = build->unquantised = calloc(1, sizeof *own);
    if (!own || asprintf(&path, "%s.unquantised", build->options->output) < 0)
        return status_fail(status, STATUS_MACHINE, "out of memory");
    own->manifest = build->manifest;
    own->writer = engine_writer_begin(path, status);
    free(path);
    if (!own->writer || !build_make_graph(build, &own->graph, PLAN_DECODE, false, status) ||
        !bind_weights(&own->graph, &build->checkpoint, &as_in_checkpoint, status) ||
        !plan_weights(&own->graph, &own->manifest.weights_bytes, status) ||
        !pack_weights(&own->graph, &build->checkpoint, own->writer, own->manifest.weights_bytes, build->team, NULL,
                      NULL, status) ||
        !lower_plan(&own->graph, &build->lowering, plan_to_measure(build)->header.rows, &own->plan, status))
        return false;
    own->manifest.arena_bytes = own->plan.header.arena_bytes;
    own->manifest.step_bytes = own->plan.header.step_bytes;
    return engine_writer_map_weights(own->writer, &own->weights, status);
}

void build_unquantised_close(struct build *build)
{
    struct unquantised *own = build->unquantised;
    if (!own) return;
    build->decode.calibration = NULL;
    calibration_close(&own->calibration);
    plan_free(&own->plan);
    if (own->writer) engine_writer_abandon(own->writer);
    graph_free(&own->graph);
    free(own);
    build->unquantised = NULL;
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
    ok = ok && calibrate(&(struct accuracy_model){&own->manifest, &own->plan, own->weights}, &own->graph, tokens.ids,
                         tokens.count, build->team, build->machine.isa, &build->progress, &own->calibration, status);
    if (ok) build->decode.calibration = &own->calibration;
    free(folder);
    token_buffer_free(&tokens);
    return ok;
}

/* ---- accuracy ---- */

bool build_find_accuracy(struct build *build, const uint8_t *weights, struct status *status)
{
    if (build->options->no_accuracy || build->target != TARGET_CPU || !has_new_codes(&build->decode)) return true;
    progress_stage(&build->progress, "accuracy");
    bool ok = open_unquantised(build, status);
    struct unquantised *own = build->unquantised;
    ok = ok && measure_accuracy(&(struct accuracy_model){&own->manifest, &own->plan, own->weights},
                                &(struct accuracy_model){&build->manifest, plan_to_measure(build), weights},
                                build->team, build->machine.isa, &build->progress, &build->manifest.accuracy, status);
    if (ok && own->calibration.matrices) build->manifest.accuracy.calibration_tokens = own->calibration.tokens;
    build_unquantised_close(build);
    if (ok || status->code != STATUS_MACHINE) return ok;
    progress_warn(&build->progress, "%s; the accuracy of the weights was not measured", status->message);
    status_clear(status);
    return true;
}
