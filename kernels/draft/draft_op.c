/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/draft/draft.h"

#include "kernels/cpu/share.h"
#include "kernels/op/op.h"

void draft_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t logits = (uint64_t)params[DRAFT_ROWS] * (uint64_t)params[DRAFT_VOCAB];
    *bytes = logits * sizeof(float) + (uint64_t)params[DRAFT_ROWS] * sizeof(int32_t);
    *flops = logits;
}

static void find_largest(const struct op_call *call, int64_t first, int64_t last)
{
    const int64_t vocab = call->params[DRAFT_VOCAB];
    int32_t *drafted = call->operands[DRAFT_DRAFTED];
    for (int64_t r = first; r < last; r++) {
        const float *logits = (const float *)call->operands[DRAFT_LOGITS] + r * vocab;
        int64_t best = 0;
        for (int64_t t = 1; t < vocab; t++)
            if (logits[t] > logits[best] || (logits[best] != logits[best] && logits[t] == logits[t])) best = t;
        drafted[r] = (int32_t)best;
    }
}

/* Portable code only: a row is read once, at a small part of the time that its logits took. */
static void run(const struct op_call *call, struct team_member *member)
{
    const struct share share = team_share(member, op_valid_rows(call), 1);
    find_largest(call, share.first, share.last);
}

static void reference(const struct op_call *call) { find_largest(call, 0, op_valid_rows(call)); }

/* On the CPU the host feeds tokens back. */
static const char *cpu_illegal(const int64_t *params)
{
    return params[DRAFT_FEEDBACK] ? "parameter feedback is not 0" : NULL;
}

static const struct op_param param_schema[DRAFT_PARAMS] = {
    OP_OUT_ROWS_PARAMS,
    [DRAFT_VOCAB] = {"vocab", 3, PARAM_INTEGER, PARAM_OF_ENGINE, .field = offsetof(struct plan_geometry, vocab_size),
                     .least = 1, .most = OP_MAX_WIDTH},
    [DRAFT_IN_ROWS] = {"in_rows", 4, PARAM_INTEGER, PARAM_OF_STEP, .least = 1, .most = OP_MAX_ROWS},
    [DRAFT_FEEDBACK] = {"feedback", 5, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
static const struct op_operand operand_schema[DRAFT_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [DRAFT_LOGITS] = {"logits", ROLE_INPUT, .fixed = DTYPE_F32, .rows = DRAFT_ROWS, .columns = DRAFT_VOCAB},
    [DRAFT_DRAFTED] = {"drafted", ROLE_STEP, ACCESS_WRITE, STEP_DRAFTED, .fixed = DTYPE_I32, .rows = DRAFT_ROWS,
                       .columns = OP_NONE},
    [DRAFT_OUT_ROWS] = {"out_rows", ROLE_STEP, .present = DRAFT_FEEDBACK, .field = STEP_OUT_ROWS, .fixed = DTYPE_I32,
                        .rows = DRAFT_ROWS, .columns = OP_NONE},
    [DRAFT_NEXT_TOKENS] = {"next_tokens", ROLE_STEP, .present = DRAFT_FEEDBACK, .field = STEP_NEXT_TOKENS,
                           .fixed = DTYPE_I32, .rows = DRAFT_ROWS, .columns = OP_NONE},
    [DRAFT_TOKENS] = {"tokens", ROLE_STEP, ACCESS_WRITE, STEP_TOKENS, DRAFT_FEEDBACK, .fixed = DTYPE_I32,
                      .rows = DRAFT_IN_ROWS, .columns = OP_NONE},
    [DRAFT_POSITIONS] = {"positions", ROLE_STEP, ACCESS_READ_WRITE, STEP_POSITIONS, DRAFT_FEEDBACK, .fixed = DTYPE_I32,
                         .rows = DRAFT_IN_ROWS, .columns = OP_NONE},
};

const struct op_descriptor op_draft = {
    .id = OP_DRAFT,
    .name = "draft",
    OP_SCHEMA(param_schema, operand_schema),
    .cpu_illegal = cpu_illegal,
    .cost = draft_cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
