/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/golden_cpu.h"

#include "builder/golden/cpu_replay.h"
#include "kernels/matmul/matmul.h"

/* Work that takes at most seconds: plain references do about 1e9 a second and thread, plans some 1e10. */
static const double reference_flops = 2e8, plan_flops = 5e11;
enum { LEAST_TOKENS = 32 };

static bool run_plan(void *context, size_t plan, enum golden_way way, const struct golden_step *step,
                     struct golden_found *found, struct status *status)
{
    return cpu_replay_run(context, plan, way == GOLDEN_BY_REFERENCE, step, found, status);
}

static bool draft_logits(void *context, const float **logits, struct status *status)
{
    (void)status;
    *logits = cpu_replay_draft_logits(context);
    return true;
}

static bool scramble(void *context, struct status *status)
{
    (void)status;
    cpu_replay_scramble(context);
    return true;
}

/* What the launch rounds activations to; F32: it does not. */
static int64_t rounds_to(const struct plan *plan, const struct plan_launch *launch)
{
    int64_t params[PLAN_MAX_PARAMS];
    struct status ignored = {0};
    if (launch->op != OP_MATMUL || !op_params(plan, launch, op_matmul.tunable_count, params, &ignored))
        return ENCODING_F32;
    return params[MATMUL_COMPUTE_DTYPE];
}

/* The fast kernels round differently from the references: float32 sums in another order, activations as two bf16. A
 * KV cache in fewer bits turns a difference in the last bit into one of 2^-9 (bf16), 2^-11 (fp16), 2^-7 of a row's largest
 * (int8) or 2^-4 (fp8), and activations that are rounded one of 2^-9 (bf16) in every product, or of 2^-7 of a block's largest (int8). */
static float tolerance_for(enum encoding_id kv_dtype, const struct plan *plan)
{
    float tolerance = kv_dtype == ENCODING_F32            ? 1e-3f
                      : kv_dtype == ENCODING_F16          ? 5e-3f
                      : kv_dtype == ENCODING_BF16         ? 2e-2f
                      : kv_dtype == ENCODING_INT8_CHANNEL ? 3e-2f
                                                          : 1e-1f;
    for (uint32_t i = 0; i < plan->header.launch_count; i++) {
        const int64_t compute = rounds_to(plan, &plan->launches[i]);
        if (tolerance < 3e-2f && compute == ENCODING_BF16) tolerance = 3e-2f;
        if (tolerance < 1e-1f && compute == ENCODING_INT8_G32) tolerance = 1e-1f;
    }
    return tolerance;
}

bool compute_golden(const struct manifest *manifest, const struct plan *plans, size_t plan_count,
                    const uint8_t *weights, struct team *team, enum cpu_isa isa, struct progress *progress,
                    struct golden_outputs *outputs, struct status *status)
{
    const double flops = golden_flops(&plans[0]) * (double)plan_ranks(&manifest->geometry);
    struct cpu_replay replay;
    struct golden_task task = {.manifest = manifest,
                               .plans = plans,
                               .plan_count = plan_count,
                               .progress = progress,
                               .most_tokens =
                                   flops * LEAST_TOKENS > plan_flops ? LEAST_TOKENS : plan_flops / (flops + 1),
                               .relative_tolerance = tolerance_for(manifest->kv_dtype, plans),
                               .prompt_way = GOLDEN_BY_REFERENCE,
                               .context = &replay,
                               .run = run_plan,
                               .draft_logits = draft_logits,
                               .scramble = scramble};
    replay = (struct cpu_replay){.manifest = manifest,
                                 .plans = plans,
                                 .plan_count = plan_count,
                                 .pages = &task.pages,
                                 .isa = isa};
    bool ok = golden_choose(&task, outputs, status);
    if (ok)
        task.expected_way =
            flops * outputs->plans.token_count <= reference_flops ? GOLDEN_BY_REFERENCE : GOLDEN_BY_PLAN;
    ok = ok && cpu_replay_open(&replay, weights, team, status) && golden_compute(&task, outputs, status);
    cpu_replay_close(&replay);
    golden_close(&task);
    if (!ok) golden_outputs_free(outputs);
    return ok;
}
