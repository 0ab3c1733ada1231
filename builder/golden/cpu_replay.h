/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of a processor replayed by the builder, on memory of their own, all ranks at once. */
#ifndef BUILDER_GOLDEN_CPU_REPLAY_H
#define BUILDER_GOLDEN_CPU_REPLAY_H

#include "builder/golden/task.h"
#include "kernels/cpu/executor.h"
#include "kernels/cpu/team.h"

/* What each rank has: spaces of its own, the plans bound to them, threads. */
struct cpu_rank {
    struct cpu_memory memory;
    struct cpu_plan *bound; /* [plan_count] */
    struct team *team;
};

struct cpu_replay {
    /* set by the caller, borrowed */
    const struct manifest *manifest;
    const struct plan *plans;
    size_t plan_count;
    struct golden_pages
        *pages; /* `count` is known when it opens; the table is copied before each replay if it is new */
    enum cpu_isa isa;
    cpu_plan_observer *observe; /* NULL: none; its context is a struct cpu_observed_rank */
    void *observer;             /* for it */

    struct plan_space_sizes sizes;
    uint64_t kv_bytes;
    uint32_t ranks;
    struct cpu_rank rank[PLAN_MAX_RANKS];
    struct team *launcher; /* several ranks: a member for each */
    size_t plan;           /* being replayed */
    bool by_reference;
};

/* A rank of a replay, for observers. */
struct cpu_observed_rank {
    struct cpu_replay *run;
    uint32_t rank;
};

/* `weights` is the packed weight section; `team` runs a single rank, and says how many threads several have together.
 * cpu_replay_close releases it in any state. */
bool cpu_replay_open(struct cpu_replay *run, const uint8_t *weights, struct team *team, struct status *status);
/* by_reference: launches run by the plain references. */
bool cpu_replay_run(struct cpu_replay *run, size_t plan, bool by_reference, const struct golden_step *step,
                    struct golden_found *found, struct status *status);
/* The logits of the last replay's drafts, [out_rows, vocab_size], valid until the next one. Requires: the plan drafts. */
const float *cpu_replay_draft_logits(const struct cpu_replay *run);
/* Overwrites all KV pages with finite numbers. */
void cpu_replay_scramble(struct cpu_replay *run);
void cpu_replay_close(struct cpu_replay *run);

/* Tokens of each sequence that take about a minute: at least 1, at most 256 and the context. flops: of a plan of one rank for a token of each;
 * bytes: of weights that it reads, of all ranks. More threads look at more tokens, as far as bytes allow. */
uint32_t cpu_replay_affordable(const struct plan_geometry *geometry, double flops, double bytes,
                               const struct team *team);

#endif
