/* SPDX-License-Identifier: Apache-2.0 */
/* Passes: each rewrites the graph in place and leaves it valid. pass.c has their list, in order. */
#ifndef BUILDER_PASSES_PASS_H
#define BUILDER_PASSES_PASS_H

#include "builder/graph/graph.h"

struct pass {
    const char *name;
    const char *what; /* one line for --help */
    bool (*run)(struct graph *graph, struct status *status);
    unsigned targets; /* bit (1 << enum engine_target) for each target it is for; 0: all */
};
#define PASS_FOR(target) (1u << (target))

extern const struct pass pass_shard, pass_last_position, pass_fuse_residual_norm, pass_fuse_all_reduce,
    pass_fuse_norm_add, pass_fuse_norm_factor, pass_matmul_inputs, pass_fuse_residual_matmul, pass_fuse_norm_matmul,
    pass_fuse_rope_attention, pass_expert_sums, pass_eight_bit_inputs, pass_activation_dtypes, pass_compute_dtype,
    pass_fuse_router, pass_fuse_routed_mlp, pass_early_routes, pass_fuse_sum_norm, pass_dead_code;

extern const struct pass *const passes[]; /* in order, ended by NULL */

/* Runs all passes, checking the graph after each. With dump_after (a pass name, or "import"), the graph is printed to
 * `dump` at that point. */
bool run_passes(struct graph *graph, const char *dump_after, FILE *dump, struct status *status);

/* Calls `visit` for every node of the op, in order; `index` is of the graph before the first call. */
typedef void pass_visitor(struct graph *graph, struct graph_index *index, int node);
bool pass_visit(struct graph *graph, enum plan_op op, pass_visitor *visit, struct status *status);

/* Whether one of the nodes from `first` to before `last` reads the value: a node at `last` cannot make it then. */
bool pass_is_read_before(const struct graph *graph, int value, int first, int last);

/* Lets the node that makes one side of an addition do the addition: an op with `op`, whose operand `residual` is what it
 * adds and operand `out` what it makes. No other node may read that side, and `fits` (may be NULL) must accept the node. */
struct pass_adder {
    enum plan_op op;
    int residual, out;
    bool (*fits)(const struct graph_node *node);
};
void pass_take_addition(struct graph *graph, struct graph_index *index, int add, const struct pass_adder *adder);

/* False, with the known names in the message, if `name` is neither a pass nor "import". */
bool pass_name_known(const char *name, struct status *status);

#endif
