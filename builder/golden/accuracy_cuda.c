/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/accuracy_cuda.h"

#include <inttypes.h>
#include <stdlib.h>

#include "builder/golden/accuracy.h"
#include "builder/golden/golden_cuda.h"
#include "builder/golden/own_text.h"
#include "formats/base/checked.h"

enum { ALL_TOKENS = 1024, MOST_TOKENS = 256 };

/* Tokens of each sequence. */
static uint32_t count_tokens(const struct plan_geometry *geometry, uint32_t rows)
{
    const uint64_t most = geometry->max_context < MOST_TOKENS ? geometry->max_context : MOST_TOKENS;
    const uint64_t tokens = ALL_TOKENS / rows;
    return (uint32_t)(tokens > most ? most : tokens > 0 ? tokens : 1);
}

bool accuracy_cuda_bytes(const struct manifest *manifest, uint32_t rows, uint64_t *bytes)
{
    const struct plan_geometry *geometry = &manifest->geometry;
    const uint64_t tokens = count_tokens(geometry, rows);
    const uint64_t pages = (tokens + geometry->page_tokens - 1) / geometry->page_tokens * rows;
    /* A timer takes at most half of the free memory for pages. */
    return checked_mul(2 * pages * plan_page_groups(geometry), geometry->page_bytes, bytes) &&
           checked_add(*bytes, manifest->arena_bytes, bytes) && checked_add(*bytes, manifest->step_bytes, bytes) &&
           checked_add(*bytes, manifest->state_bytes, bytes) && checked_add(*bytes, manifest->comm_bytes, bytes);
}

struct gpu_run {
    const struct plan *plan;
    struct plan_timer timer;
    struct cuda_plan bound[PLAN_MAX_RANKS];
    struct golden_pages pages;
    float *logits; /* [rows, vocab_size] */
};

static bool open_run(struct gpu_run *run, const struct accuracy_gpu_model *model, uint32_t tokens,
                     struct status *status)
{
    const struct manifest *manifest = model->rig->manifest;
    const uint32_t rows = model->plan->header.rows;
    run->plan = model->plan;
    run->logits = calloc(rows * manifest->geometry.vocab_size, sizeof *run->logits);
    if (!run->logits || !own_text_pages(&run->pages, manifest, rows, tokens))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    uint64_t pages = run->pages.count;
    if (!plan_timer_open_pages(&run->timer, model->rig, model->kernels, &pages, status)) return false;
    if (pages < run->pages.count)
        return status_fail(status, STATUS_MACHINE, "expected memory for %" PRIu64 " KV pages, found it for %" PRIu64,
                           run->pages.count, pages);
    return plan_timer_bind(&run->timer, model->plan, run->bound, status) &&
           plan_timer_write_pages(&run->timer, run->pages.table, status);
}

static void close_run(struct gpu_run *run)
{
    if (run->timer.entered) {
        plan_timer_unbind(&run->timer, run->bound);
        plan_timer_close(&run->timer);
    }
    free(run->pages.table);
    free(run->logits);
}

static bool replay(void *context, const struct golden_step *step, struct golden_found *found, struct status *status)
{
    struct gpu_run *run = context;
    *found = (struct golden_found){.logits = run->logits};
    return golden_cuda_replay(&run->timer, run->plan, run->bound, step, status) &&
           plan_timer_outputs(&run->timer, run->plan, step->out_rows, run->logits, NULL, status);
}

bool measure_accuracy_cuda(const struct accuracy_gpu_model *unquantised, const struct accuracy_gpu_model *quantised,
                           struct team *team, struct progress *progress, struct manifest_accuracy *accuracy,
                           struct status *status)
{
    const struct manifest *manifest = quantised->rig->manifest;
    const uint32_t rows = quantised->plan->header.rows, tokens = count_tokens(&manifest->geometry, rows);
    const uint32_t texts = (ALL_TOKENS + rows * tokens - 1) / (rows * tokens);
    struct gpu_run expected = {0}, found = {0};
    const struct accuracy_runner runners[] = {{replay, &expected}, {replay, &found}};
    const bool ok =
        open_run(&expected, unquantised, tokens, status) && open_run(&found, quantised, tokens, status) &&
        measure_accuracy(&runners[0], &runners[1], manifest, rows, tokens, texts, team, progress, accuracy, status);
    close_run(&found); /* the context that was entered last is left first */
    close_run(&expected);
    return ok;
}
