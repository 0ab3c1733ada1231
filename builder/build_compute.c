/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_compute.h"

#include "builder/build_graph.h"
#include "builder/lower/lower_cuda.h"
#include "kernels/matmul/matmul.h"

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
    return asked == ENCODING_NONE || asked == ENCODING_E4M3_CHANNEL || (int)asked == (int)half ||
           status_fail(
               status, STATUS_USAGE,
               "--compute: products of this engine for GPUs are of %s, as its matrices (--dtype) say, or of fp8; "
               "found %s",
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
static bool check_plans(struct build *build, const struct graph *graph, const struct device_facts *gpu,
                        const uint32_t *rows, int count, struct status *status)
{
    for (int i = 0; i < count; i++) {
        if (rows[i] < GRAPH_EIGHT_BIT_ROWS) continue;
        if (!device_takes_graph(graph, &build->lowering, gpu, rows[i], status)) return false;
        build->eight_bit_rows = GRAPH_EIGHT_BIT_ROWS;
    }
    return true;
}

bool build_compute_choose(struct build *build, const struct device_facts *gpu, const uint32_t *batches, int batch_count,
                          const uint32_t *chunks, int chunk_count, struct status *status)
{
    const bool is_asked = build->options->compute == ENCODING_E4M3_CHANNEL;
    /* A checkpoint may have static scales of activations. They are not used: each row has its own scale, which fits it at least as
     * well. */
    const bool is_default =
        build->options->compute == ENCODING_NONE && build->checkpoint.config.quantisation.eight_bit_inputs;
    struct status reason = {0};
    if (!is_asked && !is_default) return true;
    if (!build_make_eight_bit_graph(build, &build->eight_bit_decode, PLAN_DECODE, status) ||
        !build_make_eight_bit_graph(build, &build->eight_bit_prefill, PLAN_PREFILL, status))
        return false;
    if (!multiplies_codes(&build->eight_bit_decode))
        return is_default ||
               status_fail(
                   status, STATUS_BAD_INPUT,
                   "--compute fp8: expected matrices of fp8 codes with columns in multiples of 16, found none in this "
                   "engine; choose --dtype fp8, or another --compute");
    if (!check_plans(build, &build->eight_bit_decode, gpu, batches, batch_count, &reason) ||
        !check_plans(build, &build->eight_bit_prefill, gpu, chunks, chunk_count, &reason)) {
        const int major = gpu->capability / 10, minor = gpu->capability % 10;
        build->eight_bit_rows = 0;
        if (is_asked)
            return status_fail(status, reason.code,
                               "--compute fp8: no kernels for compute capability %d.%d: %s; choose --compute bf16",
                               major, minor, reason.message);
        progress_warn(
            &build->progress,
            "the checkpoint's activations are fp8, but this engine's are bf16: no kernels for compute capability "
            "%d.%d: %s; --compute bf16 says so on purpose",
            major, minor, reason.message);
    } else if (is_asked && !build->eight_bit_rows) {
        progress_warn(
            &build->progress,
            "--compute fp8: no plan has %d rows or more (--max-batch, --prefill-chunks); plans of fewer multiply "
            "bf16",
            GRAPH_EIGHT_BIT_ROWS);
    }
    return true;
}
