/* SPDX-License-Identifier: Apache-2.0 */
/* What processors and GPUs share of computing golden outputs: which contexts and rows, their expected logits, the comparison. A
 * target adds how a plan is replayed. All but struct golden_outputs is private to builder/golden. */
#ifndef BUILDER_GOLDEN_TASK_H
#define BUILDER_GOLDEN_TASK_H

#include "formats/engine/golden.h"
#include "formats/engine/manifest.h"
#include "tuner/progress.h"

/* Golden outputs, kept in the engine for --selftest: of a short prompt, and of every plan. The expected logits are computed, then
 * every plan and every variant of it is compared with them before the engine is written. */
struct golden_outputs {
    struct engine_golden prompt; /* token_count 0: the context is too short */
    struct golden_cases plans;
};
void golden_outputs_free(struct golden_outputs *outputs);

enum golden_way {
    GOLDEN_BY_REFERENCE, /* the plan's launches by the plain references: processors */
    GOLDEN_BY_PLAN,
    GOLDEN_BY_LIBRARY_PLAN, /* the variant that calls libraries: GPUs */
    GOLDEN_WAYS
};

/* KV pages of the slots in which plans run. */
struct golden_pages {
    const struct plan_geometry *geometry;
    int32_t *table; /* STATE_PAGE_TABLE, owned */
    uint32_t *held; /* [groups, slots]: pages of each slot, owned */
    uint64_t
        chunk; /* most tokens that a plan appends to a sequence; UINT64_MAX: groups with a window use no page again */
    uint64_t count, used;
    bool is_new; /* the table has changed since the target copied it */
};

struct golden_task {
    const struct manifest *manifest;
    const struct plan *plans;
    size_t plan_count;
    const bool *has_library_plan; /* [plan_count]; NULL: none has */
    struct progress *progress;    /* may be NULL */
    double most_tokens;           /* of a context: more would take too long */
    float relative_tolerance;     /* of the largest logit, at least of 1 */
    enum golden_way prompt_way, expected_way;
    struct golden_pages pages;

    void *context;
    /* Replays a plan. Without out rows *found is of no use. */
    bool (*run)(void *context, size_t plan, enum golden_way way, const struct golden_step *step,
                struct golden_found *found, struct status *status);
    /* The logits of the draft of the last replay's first out row, [vocab_size], valid until the next one. */
    bool (*draft_logits)(void *context, const float **logits, struct status *status);
    /* Overwrites all KV pages with finite numbers, so that nothing of earlier replays is left. */
    bool (*scramble)(void *context, struct status *status);
};

double golden_flops(const struct plan *plan); /* of all launches at full row count */
/* Where the arena has the logits of the drafts after a replay of the plan, whose last launch is the one that drafts. */
uint64_t golden_draft_logits(const struct plan *plan);

/* Allocates the outputs and chooses prompt, contexts and cases; then the pages that all cases take at the same time are known. */
bool golden_choose(struct golden_task *task, struct golden_outputs *outputs, struct status *status);
/* Computes the expected logits and compares every plan with them. Requires: the target has the pages, and takes the table from
 * task->pages before each replay. */
bool golden_compute(struct golden_task *task, struct golden_outputs *outputs, struct status *status);
void golden_close(struct golden_task *task); /* the pages; harmless after a failure */

#endif
