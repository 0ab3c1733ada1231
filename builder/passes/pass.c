/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/passes/pass.h"

#include <string.h>

const struct pass *const passes[] = {
    &pass_shard, /* several ranks */
    &pass_last_position,
    &pass_fuse_residual_norm,
    &pass_compute_dtype, /* CPU */
    &pass_fuse_norm_add, /* devices, down to activation_dtypes */
    &pass_fuse_norm_factor,
    &pass_fuse_all_reduce,
    &pass_fuse_residual_matmul,
    &pass_expert_sums,
    &pass_fuse_norm_matmul,
    &pass_fuse_rope_attention,
    &pass_matmul_inputs,
    &pass_eight_bit_inputs,
    &pass_activation_dtypes,
    &pass_fuse_router,
    &pass_fuse_routed_mlp,
    &pass_early_routes,
    &pass_fuse_sum_norm,
    &pass_dead_code,
    NULL,
};

bool run_passes(struct graph *graph, const char *dump_after, FILE *dump, struct status *status)
{
    if (dump_after && strcmp(dump_after, "import") == 0) graph_dump(graph, dump);
    for (const struct pass *const *pass = passes; *pass; pass++) {
        bool wanted = !(*pass)->targets || (*pass)->targets & PASS_FOR(graph->target);
        bool dumped = dump_after && strcmp(dump_after, (*pass)->name) == 0;
        if (!wanted && dumped)
            fprintf(dump, "# %s is not for target %s\n", (*pass)->name, engine_target_name(graph->target));
        if (wanted && (!(*pass)->run(graph, status) || !graph_check(graph, (*pass)->name, status))) return false;
        if (dumped) graph_dump(graph, dump);
    }
    return true;
}

bool pass_name_known(const char *name, struct status *status)
{
    char names[512] = "import";
    if (strcmp(name, "import") == 0) return true;
    for (const struct pass *const *pass = passes; *pass; pass++) {
        if (strcmp(name, (*pass)->name) == 0) return true;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, ", %s", (*pass)->name);
    }
    return status_fail(status, STATUS_USAGE, "--dump-after: expected one of %s; found '%s'", names, name);
}
