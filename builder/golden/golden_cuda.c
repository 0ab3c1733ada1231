/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/golden_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/matmul/matmul.h"
#include "kernels/routed_matmul/routed_matmul.h"
#include "tuner/cuda/plan_timer.h"

/* The activation and the number of experts of a matmul; false: another op. */
static bool find_matmul(const struct plan *plan, const struct plan_launch *launch, enum activation *activation,
                        int64_t *experts)
{
    int64_t params[PLAN_MAX_PARAMS];
    struct status status = {0};
    const bool is_routed = launch->op == OP_ROUTED_MATMUL || launch->op == OP_ROUTED_MLP;
    if (!(is_routed || launch->op == OP_MATMUL) || !op_params(plan, launch, 0, params, &status)) return false;
    *activation = EPILOGUE_ACTIVATION(params[is_routed ? ROUTED_MATMUL_EPILOGUE : MATMUL_EPILOGUE]);
    *experts = params[is_routed ? ROUTED_MATMUL_EXPERTS : MATMUL_EXPERTS];
    return true;
}

/* Short convolutions, state spaces and the delta rule. */
static bool is_recurrent(const struct op_descriptor *op)
{
    for (int i = 0; i < op->operand_count; i++)
        if (op->operands[i].role == ROLE_STATE && op->operands[i].field == STATE_RECURRENT) return true;
    return false;
}

/* Logits of 16-bit arithmetic differ between plans, whose sums run in different orders, by a few units of 2^-8. A last bit
 * may decide the code of an element of the KV cache, and fp8 has few: as on a CPU (golden_cpu.c). Activations in fp8, which only plans
 * of many rows have, give each product an error of 3 per cent, which layers add up: 10 per cent of the logits' root mean square in
 * Llama-3.1-8B with random weights, and so a tenth of the largest where the worst of 128,256 is looked at; int8 has the same bound. The norm after a
 * delta rule divides by the size of o = transpose(S) q, whose terms cancel in a sequence's first tokens, so that it enlarges
 * their rounding: with random weights transformers in bf16 is off by 4.4 per cent of a row's largest logit on average, and by 65 in
 * the worst of 2400 rows. All recurrent layers multiply several projections of a row by one another, whose rounding adds up: two runs of 32 layers
 * with random weights, all values that are 16-bit here rounded to bf16 on a processor, differ by 2 per cent of a row's largest logit on average and by 5 in
 * the worst of some dozens of rows (Bamba, Granite 4 with Mamba layers, LFM2), with attention alone by 0.7 and 1. The clamped SwiGLU of gpt-oss, gate * sigmoid(1.702 gate) * (up + 1), enlarges it from layer to layer, too: in gpt-oss-20b
 * with random weights transformers in bf16, made to choose the experts that float32 chooses, is off by 13 per cent of a row's largest logit
 * on average, and by 24 in the worst of 64 rows after 2048 tokens; plans of this project differ by 5. Made to choose likewise, small models with
 * experts (4 layers, random weights) are off there by 1.2 to 2.1 per cent on average, and by 3 to 8 in the worst of 1536 rows; with the
 * group norm after a state space by 1.5 to 2.1 and 6 to 14. */
float golden_cuda_tolerance(const struct manifest *manifest, const struct plan *plan)
{
    bool has_delta_rule = false, enlarges = false;
    for (uint32_t i = 0; i < plan->header.launch_count; i++) {
        const struct plan_launch *launch = &plan->launches[i];
        enum activation activation;
        int64_t experts;
        has_delta_rule |= launch->op == OP_DELTA_RULE;
        enlarges |= is_recurrent(op_find(launch->op));
        if (find_matmul(plan, launch, &activation, &experts)) enlarges |= activation == ACTIVATION_CLAMPED || experts;
    }
    if (manifest->eight_bit_rows || has_delta_rule) return 3e-1f;
    return enlarges || manifest->kv_dtype == ENCODING_E4M3_CHANNEL ? 1e-1f : 3e-2f;
}

/* Work of less than a second. */
static const double most_flops = 1e14;
enum { LEAST_TOKENS = 2048 };

struct cuda_run {
    struct golden_task task;
    struct plan_timer timer;
    const struct plan *library_plans;
    struct cuda_plan (*bound)[PLAN_MAX_RANKS]; /* [2 * plan_count]: plans, then library plans; bound when first used */
    bool *has_library_plan;                    /* [plan_count] */
    float *logits;                             /* [most rows, vocab_size] */
    float *draft_logits;                       /* [vocab_size]: those of `logits` are still read */
    int32_t *drawn, *drafted;                  /* [most rows] */
    const struct plan *last;                   /* plan that was replayed last */
};

static bool bind_plan(struct cuda_run *run, const struct plan *plan, struct cuda_plan *bound, struct status *status)
{
    char name[GOLDEN_NAME_BYTES];
    return bound[0].exec || plan_timer_bind(&run->timer, plan, bound, status) ||
           status_prefix(status, "%s", golden_plan_name(&plan->header, name));
}

bool golden_cuda_replay(struct plan_timer *timer, const struct plan *plan, const struct cuda_plan *bound,
                        const struct golden_step *step, struct status *status)
{
    struct cuda_inputs inputs;
    const size_t bytes = step->count * sizeof(int32_t);
    if (!cuda_inputs_open(&inputs, timer->rig, &plan->header, status)) return false;
    inputs.counts[0] = (int32_t)step->count;
    inputs.counts[1] = (int32_t)step->out_rows;
    memcpy(inputs.tokens, step->tokens, bytes);
    memcpy(inputs.slots, step->slots, bytes);
    memcpy(inputs.positions, step->positions, bytes);
    for (uint32_t i = 0; i < step->count; i++)
        inputs.seeds[i] = step->fixes_routes ? golden_route_seed(step->positions[i]) : 0;
    golden_out_rows(step, inputs.out_rows);
    if (inputs.following) golden_following(step, inputs.following);
    bool ok = plan_timer_replay(timer, bound, &inputs, status);
    cuda_inputs_close(&inputs);
    return ok;
}

static bool run_plan(void *context, size_t index, enum golden_way way, const struct golden_step *step,
                     struct golden_found *found, struct status *status)
{
    struct cuda_run *run = context;
    struct golden_pages *pages = &run->task.pages;
    const bool library = way == GOLDEN_BY_LIBRARY_PLAN;
    const struct plan *plan = library ? &run->library_plans[index] : &run->task.plans[index];
    struct cuda_plan *bound = run->bound[index + (library ? run->task.plan_count : 0)];
    if (pages->is_new && !plan_timer_write_pages(&run->timer, pages->table, status)) return false;
    pages->is_new = false;
    if (!bind_plan(run, plan, bound, status) || !golden_cuda_replay(&run->timer, plan, bound, step, status))
        return false;
    run->last = plan;
    if (step->out_rows == 0) return true;
    *found = (struct golden_found){.logits = run->logits, .drawn = run->drawn};
    if (plan->step[STEP_DRAFTED].bytes) found->drafted = run->drafted;
    return plan_timer_outputs(&run->timer, plan, step->out_rows, run->logits, run->drawn, status) &&
           (!found->drafted ||
            plan_timer_read(&run->timer, SPACE_STEP, plan->step[STEP_DRAFTED].offset, run->drafted,
                            step->out_rows * sizeof *run->drafted, "reading drafted tokens", status));
}

static bool draft_logits(void *context, const float **logits, struct status *status)
{
    struct cuda_run *run = context;
    const uint64_t vocab = run->task.manifest->geometry.vocab_size;
    if (!run->draft_logits) run->draft_logits = calloc(vocab, sizeof *run->draft_logits);
    *logits = run->draft_logits;
    if (!run->draft_logits) return status_fail(status, STATUS_MACHINE, "out of memory while computing golden outputs");
    return plan_timer_read(&run->timer, SPACE_ARENA, golden_draft_logits(run->last), run->draft_logits,
                           vocab * sizeof *run->draft_logits, "reading logits of drafts", status);
}

static bool scramble(void *context, struct status *status)
{
    struct cuda_run *run = context;
    return plan_timer_randomise_kv(&run->timer, status);
}

static bool run_open(struct cuda_run *run, const struct cuda_rig *rig, const struct kernel_set *kernels,
                     struct status *status)
{
    const struct golden_task *task = &run->task;
    uint32_t rows = 1;
    for (size_t p = 0; p < task->plan_count; p++)
        if (task->plans[p].header.out_rows > rows) rows = task->plans[p].header.out_rows;
    run->bound = calloc(2 * task->plan_count, sizeof *run->bound);
    run->logits = calloc(rows * rig->manifest->geometry.vocab_size, sizeof *run->logits);
    run->drawn = calloc(rows, sizeof *run->drawn);
    run->drafted = calloc(rows, sizeof *run->drafted);
    if (!run->bound || !run->logits || !run->drawn || !run->drafted)
        return status_fail(status, STATUS_MACHINE, "out of memory while computing golden outputs");
    return plan_timer_open_pages(&run->timer, rig, kernels, &run->task.pages.count, status);
}

static void run_close(struct cuda_run *run)
{
    for (size_t p = 0; run->timer.entered && p < 2 * run->task.plan_count; p++)
        plan_timer_unbind(&run->timer, run->bound[p]);
    if (run->timer.rig) plan_timer_close(&run->timer);
    free(run->bound);
    free(run->logits);
    free(run->drawn);
    free(run->draft_logits);
    free(run->drafted);
    free(run->has_library_plan);
}

bool compute_golden_cuda(const struct cuda_rig *rig, const struct plan *plans, const struct plan *library_plans,
                         size_t plan_count, const struct kernel_set *kernels, struct progress *progress,
                         struct golden_outputs *outputs, struct status *status)
{
    const double tokens = most_flops / (golden_flops(&plans[0]) + 1);
    struct cuda_run run = {
        .task = {.manifest = rig->manifest,
                 .plans = plans,
                 .plan_count = plan_count,
                 .progress = progress,
                 .most_tokens = tokens > LEAST_TOKENS ? tokens : LEAST_TOKENS,
                 .relative_tolerance = golden_cuda_tolerance(rig->manifest, &plans[0]),
                 .prompt_way = GOLDEN_BY_PLAN,
                 .expected_way = GOLDEN_BY_PLAN,
                 .run = run_plan,
                 .draft_logits = draft_logits,
                 .scramble = scramble},
        .library_plans = library_plans,
        .has_library_plan = calloc(plan_count, sizeof *run.has_library_plan),
    };
    memset(outputs, 0, sizeof *outputs);
    run.task.context = &run;
    run.task.has_library_plan = run.has_library_plan;
    bool ok = run.has_library_plan || status_fail(status, STATUS_MACHINE, "out of memory");
    for (size_t p = 0; ok && p < plan_count; p++) run.has_library_plan[p] = library_plans[p].header.launch_count > 0;
    ok = ok && golden_choose(&run.task, outputs, status) && run_open(&run, rig, kernels, status) &&
         golden_compute(&run.task, outputs, status);
    run_close(&run);
    golden_close(&run.task);
    if (!ok) golden_outputs_free(outputs);
    return ok;
}
