/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_compute.h"

#include "builder/build_graph.h"
#include "builder/lower/lower_cuda.h"
#include "kernels/matmul/matmul.h"

/* The codes of activations that a value of --compute asks for on GPUs; NONE: none. */
static enum dtype codes_of(enum encoding_id compute)
{
    return compute == ENCODING_E4M3_CHANNEL ? DTYPE_F8_E4M3 : compute == ENCODING_INT8_G32 ? DTYPE_I8 : DTYPE_NONE;
}

/* As --compute and --dtype name them. */
static const char *label_of(enum dtype codes) { return codes == DTYPE_I8 ? "int8" : "fp8"; }

bool build_compute_check(const struct build *build, struct status *status)
{
    const enum encoding_id asked = build->options->compute;
    if (build->target == TARGET_CPU)
        return asked != ENCODING_E4M3_CHANNEL ||
               status_fail(
                   status, STATUS_USAGE,
                   "--compute: the cpu target multiplies f32, bf16 or int8 activations, found fp8; choose one of "
                   "them, or --target cuda");
    const enum dtype half = build_half_dtype(build);
    return asked == ENCODING_NONE || codes_of(asked) || (int)asked == (int)half ||
           status_fail(
               status, STATUS_USAGE,
               "--compute: products of this engine for GPUs are of %s, as its matrices (--dtype) say, or of fp8 or "
               "int8; found %s",
               dtype_name(half), encoding_label(asked));
}

/* Matrices of codes, but maybe none whose rows can be multiplied as codes. */
static bool multiplies_codes(const struct graph *graph)
{
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].op == OP_MATMUL && graph->nodes[n].operands[MATMUL_X_SCALES] >= 0) return true;
    return false;
}

/* Sets build->eight_bit_rows if a plan has so many rows. False if the GPU has no kernels for such a plan. */
static bool check_plans(struct build *build, const struct device_facts *gpu, struct status *status)
{
    const uint32_t least = graph_least_rows_of_codes(&build->eight_bit_decode);
    for (enum plan_kind kind = PLAN_DECODE; kind < PLAN_KIND_END; kind++)
        for (int i = 0; i < build->rows[kind].count; i++) {
            const uint32_t rows = build->rows[kind].rows[i];
            if (rows < least) continue;
            if (!device_takes_graph(build_eight_bit_graph_of(build, kind), &build->lowering, gpu, rows, status))
                return false;
            build->eight_bit_rows = least;
        }
    return true;
}

/* Decides for one kind of codes. `is_asked`: by --compute. */
static bool choose(struct build *build, enum dtype codes, bool is_asked, const struct device_facts *gpu,
                   struct status *status)
{
    const char *label = label_of(codes);
    struct status reason = {0};
    if (!build_make_eight_bit_graph(build, &build->eight_bit_decode, PLAN_DECODE, codes, status) ||
        !build_make_eight_bit_graph(build, &build->eight_bit_prefill, PLAN_PREFILL, codes, status) ||
        (build->rows[PLAN_MIXED].count &&
         !build_make_eight_bit_graph(build, &build->eight_bit_mixed, PLAN_MIXED, codes, status)) ||
        (build->rows[PLAN_VERIFY].count &&
         !build_make_eight_bit_graph(build, &build->eight_bit_verify, PLAN_VERIFY, codes, status)))
        return false;
    if (!multiplies_codes(&build->eight_bit_decode))
        return !is_asked ||
               status_fail(status, STATUS_BAD_INPUT,
                           "--compute %s: expected matrices of %s with columns in multiples of 16, found none in this "
                           "engine; choose --dtype %s, or another --compute",
                           label,
                           codes == DTYPE_I8 ? "int8 codes with one scale a row or int4 codes in groups of 64 or 128"
                                             : "fp8 codes",
                           codes == DTYPE_I8 ? "int8 without --group, or int4 with --group 64 or 128" : label);
    if (!check_plans(build, gpu, &reason)) {
        const int major = gpu->capability / 10, minor = gpu->capability % 10;
        build->eight_bit_rows = 0;
        if (is_asked)
            return status_fail(status, reason.code,
                               "--compute %s: no kernels for compute capability %d.%d: %s; choose --compute bf16",
                               label, major, minor, reason.message);
        progress_warn(
            &build->progress,
            "the checkpoint's activations are %s, but this engine's are bf16: no kernels for compute capability "
            "%d.%d: %s; --compute bf16 says so on purpose",
            label, major, minor, reason.message);
    } else if (is_asked && !build->eight_bit_rows) {
        progress_warn(
            &build->progress,
            "--compute %s: no plan has %u rows or more (--max-batch, --prefill-chunks); plans of fewer multiply "
            "bf16",
            label, graph_least_rows_of_codes(&build->eight_bit_decode));
    }
    return true;
}

bool build_compute_choose(struct build *build, const struct device_facts *gpu, struct status *status)
{
    const struct quant_config *quantisation = &build->checkpoint.config.quantisation;
    const enum encoding_id compute = build->options->compute;
    const bool is_asked = compute != ENCODING_NONE;
    /* A checkpoint may have static scales of activations. They are not used: each row has its own scale, which fits it at least as
     * well. */
    const enum dtype trained = quantisation->fp8_inputs    ? DTYPE_F8_E4M3
                               : quantisation->int8_inputs ? DTYPE_I8
                                                           : DTYPE_NONE;
    const enum dtype codes = is_asked ? codes_of(compute) : trained;
    return !codes || choose(build, codes, is_asked, gpu, status);
}

bool build_compute_leaves_experts(const struct build *build)
{
    const struct graph *graph = &build->eight_bit_decode;
    for (int n = 0; build->eight_bit_rows && n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (!node->removed && (node->op == OP_ROUTED_MATMUL || node->op == OP_ROUTED_MLP ||
                               (node->op == OP_MATMUL && node->params[MATMUL_EXPERTS])))
            return true;
    }
    return false;
}

bool build_compute_leaves_blocks(const struct build *build)
{
    const struct graph *graph = &build->eight_bit_decode;
    for (int n = 0; build->eight_bit_rows && n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (!node->removed && node->op == OP_MATMUL && node->params[MATMUL_BLOCK_N]) return true;
    }
    return false;
}
