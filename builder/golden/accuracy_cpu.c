/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/accuracy_cpu.h"

#include <stdlib.h>

#include "builder/golden/accuracy.h"
#include "builder/golden/cpu_replay.h"
#include "builder/golden/own_text.h"

struct cpu_run {
    struct cpu_replay replay;
    struct golden_pages pages;
};

static bool open_run(struct cpu_run *run, const struct accuracy_model *model, uint32_t tokens, struct team *team,
                     enum cpu_isa isa, struct status *status)
{
    run->replay = (struct cpu_replay){.manifest = model->manifest,
                                      .plans = model->plan,
                                      .plan_count = 1,
                                      .pages = &run->pages,
                                      .isa = isa};
    if (!own_text_pages(&run->pages, model->manifest, model->plan->header.rows, tokens))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    return cpu_replay_open(&run->replay, model->weights, team, status);
}

static void close_run(struct cpu_run *run)
{
    cpu_replay_close(&run->replay);
    free(run->pages.table);
}

static bool replay(void *context, const struct golden_step *step, struct golden_found *found, struct status *status)
{
    struct cpu_run *run = context;
    return cpu_replay_run(&run->replay, 0, false, step, found, status);
}

bool measure_accuracy_cpu(const struct accuracy_model *unquantised, const struct accuracy_model *quantised,
                          struct team *team, enum cpu_isa isa, struct progress *progress,
                          struct manifest_accuracy *accuracy, struct status *status)
{
    const struct plan_geometry *geometry = &quantised->manifest->geometry;
    const uint32_t tokens =
        cpu_replay_affordable(geometry, 2 * golden_flops(quantised->plan),
                              (double)unquantised->manifest->weights_bytes + (double)quantised->manifest->weights_bytes,
                              team);
    struct cpu_run expected = {0}, found = {0};
    const struct accuracy_runner runners[] = {{replay, &expected}, {replay, &found}};
    const bool ok = open_run(&expected, unquantised, tokens, team, isa, status) &&
                    open_run(&found, quantised, tokens, team, isa, status) &&
                    measure_accuracy(&runners[0], &runners[1], quantised->manifest, quantised->plan->header.rows,
                                     tokens, 1, team, progress, accuracy, status);
    close_run(&expected);
    close_run(&found);
    return ok;
}
