/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sample/sample.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/op/op.h"
#include "kernels/sample/sample_vector.h"

uint64_t sample_workspace_bytes(uint64_t rows, uint64_t vocab)
{
    return rows * (sample_maxima(vocab) * sizeof(float) + vocab * sizeof(uint32_t));
}

void sample_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    uint64_t rows = (uint64_t)params[SAMPLE_ROWS], vocab = (uint64_t)params[SAMPLE_VOCAB];
    *bytes = rows * (vocab * sizeof(float) + (vocab + 7) / 8 + 2 * sizeof(struct sampler_state));
    *flops = rows * vocab;
}

static uint64_t seen_width(const int64_t *params) { return ((uint64_t)params[SAMPLE_VOCAB] + 7) / 8; }

static uint64_t adjustments_width(const int64_t *params)
{
    return plan_adjustment_words((uint64_t)params[SAMPLE_VOCAB]);
}

static uint64_t allowed_width(const int64_t *params) { return plan_allowed_words((uint64_t)params[SAMPLE_VOCAB]); }

static bool workspace_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                            uint64_t *bytes)
{
    (void)geometry, (void)target;
    *bytes = sample_workspace_bytes((uint64_t)params[SAMPLE_ROWS], (uint64_t)params[SAMPLE_VOCAB]);
    return true;
}

static const struct op_param param_schema[SAMPLE_PARAMS] = {
    OP_OUT_ROWS_PARAMS,
    [SAMPLE_VOCAB] = {"vocab", 3, PARAM_INTEGER, PARAM_OF_ENGINE, .field = offsetof(struct plan_geometry, vocab_size),
                      .least = 1, .most = OP_MAX_WIDTH},
    [SAMPLE_SLOT_COUNT] = {"slot_count", 4, PARAM_INTEGER, PARAM_OF_ENGINE,
                           .field = offsetof(struct plan_geometry, slots), .least = 1, .most = OP_MAX_ROWS},
    [SAMPLE_IN_ROWS] = {"in_rows", 5, PARAM_INTEGER, PARAM_OF_STEP, .least = 1, .most = OP_MAX_ROWS},
    [SAMPLE_FEEDBACK] = {"feedback", 6, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [SAMPLE_HAS_OPTIONS] = {"has_options", OP_LATER_PARAM_ID, PARAM_INTEGER, PARAM_OF_ENGINE,
                            .field = offsetof(struct plan_geometry, sampling_options), .most = 1},
    [SAMPLE_VERIFIES] = {"verifies", OP_LATER_PARAM_ID + 1, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
_Static_assert(offsetof(struct plan_geometry, sampling_options) <= UINT8_MAX, "struct op_param");
static const struct op_operand operand_schema[SAMPLE_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [SAMPLE_LOGITS] = {"logits", ROLE_INPUT, .fixed = DTYPE_F32, .rows = SAMPLE_ROWS, .columns = SAMPLE_VOCAB},
    [SAMPLE_OUT_ROWS] = OP_STEP_OPERAND("out_rows", STEP_OUT_ROWS, SAMPLE_ROWS),
    [SAMPLE_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, SAMPLE_IN_ROWS),
    [SAMPLE_SAMPLERS] = {"samplers", ROLE_STATE, ACCESS_READ_WRITE, STATE_SAMPLERS, .rows = SAMPLE_SLOT_COUNT,
                         .columns = OP_NONE, .element_bytes = sizeof(struct sampler_state)},
    [SAMPLE_SEEN] = {"seen", ROLE_STATE, ACCESS_READ_WRITE, STATE_SEEN, .rows = SAMPLE_SLOT_COUNT, .width = seen_width,
                     .element_bytes = 1},
    [SAMPLE_NEXT_TOKENS] = {"next_tokens", ROLE_STEP, ACCESS_WRITE, STEP_NEXT_TOKENS, .fixed = DTYPE_I32,
                            .rows = SAMPLE_ROWS, .columns = OP_NONE},
    [SAMPLE_TOKENS] = {"tokens", ROLE_STEP, ACCESS_WRITE, STEP_TOKENS, SAMPLE_FEEDBACK, .fixed = DTYPE_I32,
                       .rows = SAMPLE_IN_ROWS, .columns = OP_NONE},
    [SAMPLE_POSITIONS] = {"positions", ROLE_STEP, ACCESS_READ_WRITE, STEP_POSITIONS, SAMPLE_FEEDBACK,
                          .fixed = DTYPE_I32, .rows = SAMPLE_IN_ROWS, .columns = OP_NONE},
    [SAMPLE_ADJUSTMENTS] = {"adjustments", ROLE_STATE, ACCESS_READ_WRITE, STATE_ADJUSTMENTS, SAMPLE_HAS_OPTIONS,
                            .rows = SAMPLE_SLOT_COUNT, .width = adjustments_width, .element_bytes = sizeof(uint32_t)},
    [SAMPLE_ALLOWED] = {"allowed", ROLE_STATE, ACCESS_READ, STATE_ALLOWED, SAMPLE_HAS_OPTIONS,
                        .rows = SAMPLE_SLOT_COUNT, .width = allowed_width, .element_bytes = sizeof(uint32_t)},
    [SAMPLE_WORKSPACE] = {"workspace", ROLE_WORKSPACE, .targets = 1u << TARGET_CPU, .bytes = workspace_bytes},
};

static const char *illegal(const int64_t *params)
{
    return params[SAMPLE_VERIFIES] && params[SAMPLE_FEEDBACK] ? "parameters verifies and feedback are both 1" : NULL;
}

/* On the CPU the host feeds tokens back. */
static const char *cpu_illegal(const int64_t *params)
{
    return params[SAMPLE_FEEDBACK] ? "parameter feedback is not 0" : NULL;
}

const struct op_descriptor op_sample = {
    .id = OP_SAMPLE,
    .name = "sample",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cpu_illegal = cpu_illegal,
    .cost = sample_cost,
    .reference = sample_reference,
    OP_VECTOR_RUN(sample),
};
