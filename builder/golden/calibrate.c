/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/calibrate.h"

#include <inttypes.h>
#include <stdlib.h>

#include "builder/golden/cpu_replay.h"
#include "builder/golden/own_text.h"
#include "kernels/matmul/matmul.h"

struct calibrating {
    const struct graph *graph;
    struct calibration *calibration;
};

/* The weight at an offset in the rank's region; -1: none that is read there. */
static int weight_at(const struct graph *graph, uint64_t offset)
{
    for (int w = 0; w < graph->weight_count; w++)
        if (graph->weights[w].used && graph->weights[w].offset == offset) return w;
    return -1;
}

static void observe(void *context, const struct op_descriptor *op, const struct op_call *call,
                    const struct team_member *member)
{
    const struct cpu_observed_rank *rank = context;
    const struct calibrating *job = rank->run->observer;
    if (op->id != OP_MATMUL) return;
    const uint8_t *weights = rank->run->rank[rank->rank].memory.base[SPACE_WEIGHTS];
    const int weight = weight_at(job->graph, (uint64_t)((const uint8_t *)call->operands[MATMUL_W] - weights));
    calibration_add(job->calibration, rank->rank, weight, call->operands[MATMUL_X], (uint64_t)op_valid_rows(call),
                    (uint64_t)call->params[MATMUL_K], member);
}

/* Tokens of each sequence. */
static uint32_t choose_length(const struct accuracy_model *model, const int32_t *text, uint64_t count,
                              const struct team *team)
{
    const uint32_t most = cpu_replay_affordable(&model->manifest->geometry, golden_flops(model->plan),
                                                (double)model->manifest->weights_bytes, team);
    const uint64_t given = count / model->plan->header.rows;
    return text && given < most ? (uint32_t)given : most;
}

/* Position by position; `step` has the tokens of the first. */
static bool run_text(struct cpu_replay *replay, const struct golden_step *step, uint32_t length, const int32_t *text,
                     int32_t *tokens, int32_t *positions, struct progress *progress, struct status *status)
{
    const uint64_t vocab = replay->manifest->geometry.vocab_size;
    uint64_t random = UINT64_C(0x9e3779b97f4a7c15); /* another text than that of measure_accuracy */
    for (uint32_t t = 0; t < length; t++) {
        struct golden_found found;
        for (uint32_t row = 0; row < step->count; row++) {
            positions[row] = (int32_t)t;
            if (text) tokens[row] = text[(uint64_t)row * length + t];
        }
        if (!cpu_replay_run(replay, 0, false, step, &found, status)) return false;
        for (uint32_t row = 0; !text && row < step->count; row++)
            tokens[row] = own_text_draw(found.logits + row * vocab, vocab, own_text_random(&random));
        if (progress) progress_update(progress, t + 1, length, NULL);
    }
    return true;
}

bool calibrate(const struct accuracy_model *model, const struct graph *graph, const int32_t *text, uint64_t count,
               struct team *team, enum cpu_isa isa, struct progress *progress, struct calibration *calibration,
               struct status *status)
{
    const uint32_t rows = model->plan->header.rows, length = choose_length(model, text, count, team);
    struct calibrating job = {graph, calibration};
    struct golden_pages pages = {0};
    struct cpu_replay replay = {.manifest = model->manifest,
                                .plans = model->plan,
                                .plan_count = 1,
                                .pages = &pages,
                                .isa = isa,
                                .observe = observe,
                                .observer = &job};
    if (length == 0)
        return status_fail(status, STATUS_BAD_INPUT,
                           "--calibrate: the text has %" PRIu64 " tokens, expected at least %" PRIu32
                           ", better some thousands",
                           count, rows);
    calibration->tokens = (uint64_t)rows * length;
    int32_t *tokens = calloc(3 * (size_t)rows, sizeof *tokens), *slots = tokens + rows, *positions = slots + rows;
    bool ok = (tokens && own_text_pages(&pages, model->manifest, rows, length)) ||
              status_fail(status, STATUS_MACHINE, "out of memory while calibrating");
    for (uint32_t row = 0; ok && row < rows; row++) {
        slots[row] = (int32_t)row;
        tokens[row] = own_text_first_token(model->manifest, row);
    }
    const struct golden_step step = {.count = rows,
                                     .out_rows = rows,
                                     .tokens = tokens,
                                     .slots = slots,
                                     .positions = positions};
    ok = ok && cpu_replay_open(&replay, model->weights, team, status) &&
         run_text(&replay, &step, length, text, tokens, positions, progress, status);
    cpu_replay_close(&replay);
    free(pages.table);
    free(tokens);
    return ok && calibration_finish(calibration, graph, team, status);
}
