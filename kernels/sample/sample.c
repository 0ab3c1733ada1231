/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sample/sample.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/op/op_check.h"
#include "kernels/sample/sample_vector.h"

uint64_t sample_workspace_bytes(uint64_t rows, uint64_t vocab)
{
    return rows * (sample_maxima(vocab) * sizeof(float) + vocab * sizeof(uint32_t));
}

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    const struct op_descriptor *op = &op_sample;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, SAMPLE_COUNT_INDEX, 1, 1, status) ||
        !op_check_range(op, params, SAMPLE_VOCAB, 1, OP_MAX_WIDTH, status) ||
        !op_check_equal(op, params, SAMPLE_VOCAB, geometry->vocab_size, status) ||
        !op_check_range(op, params, SAMPLE_SLOT_COUNT, 1, OP_MAX_ROWS, status) ||
        !op_check_equal(op, params, SAMPLE_SLOT_COUNT, geometry->slots, status) ||
        !op_check_range(op, params, SAMPLE_IN_ROWS, 1, OP_MAX_ROWS, status))
        return false;
    uint64_t rows = (uint64_t)params[SAMPLE_ROWS], vocab = (uint64_t)params[SAMPLE_VOCAB];
    uint64_t slot_count = (uint64_t)params[SAMPLE_SLOT_COUNT], in_rows = (uint64_t)params[SAMPLE_IN_ROWS];
    const struct op_operand logits = {.name = "logits", .space_mask = OP_IN_STEP | OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand out_rows = {.name = "out_rows",
                                        .space_mask = OP_IN_STEP,
                                        .access = ACCESS_READ,
                                        .field = OP_FIELD(STEP_OUT_ROWS)};
    const struct op_operand slots = {.name = "slots",
                                     .space_mask = OP_IN_STEP,
                                     .access = ACCESS_READ,
                                     .field = OP_FIELD(STEP_SLOTS)};
    const struct op_operand samplers = {.name = "samplers",
                                        .space_mask = OP_IN_STATE,
                                        .access = ACCESS_READ_WRITE,
                                        .field = OP_FIELD(STATE_SAMPLERS)};
    const struct op_operand seen = {.name = "seen",
                                    .space_mask = OP_IN_STATE,
                                    .access = ACCESS_READ_WRITE,
                                    .field = OP_FIELD(STATE_SEEN)};
    const struct op_operand next_tokens = {.name = "next_tokens",
                                           .space_mask = OP_IN_STEP,
                                           .access = ACCESS_WRITE,
                                           .field = OP_FIELD(STEP_NEXT_TOKENS)};
    const struct op_operand workspace = {.name = "workspace", .space_mask = OP_IN_ARENA, .access = ACCESS_READ_WRITE};
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, logits, sizeof(float), rows, vocab, 1, status) &&
           op_add_operand(op, operands, operand_count, out_rows, sizeof(int32_t), rows, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, slots, sizeof(int32_t), in_rows, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, samplers, sizeof(struct sampler_state), slot_count, 1, 1,
                          status) &&
           op_add_operand(op, operands, operand_count, seen, 1, slot_count, (vocab + 7) / 8, 1, status) &&
           op_add_operand(op, operands, operand_count, next_tokens, sizeof(int32_t), rows, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, workspace, 1, sample_workspace_bytes(rows, vocab), 1, 1, status);
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t rows = (uint64_t)params[SAMPLE_ROWS], vocab = (uint64_t)params[SAMPLE_VOCAB];
    *bytes = rows * (vocab * sizeof(float) + (vocab + 7) / 8 + 2 * sizeof(struct sampler_state));
    *flops = rows * vocab;
}

static void run_portable(const struct op_call *call, struct team_member *member) { sample_vector_run(call, member); }

static const char *const param_names[SAMPLE_PARAMS] = {"rows", "count_index", "vocab", "slot_count", "in_rows"};

const struct op_descriptor op_sample = {
    .id = OP_SAMPLE,
    .name = "sample",
    .param_count = SAMPLE_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = sample_reference,
    .run =
        {
            [CPU_PORTABLE] = run_portable,
#if defined(__x86_64__)
            [CPU_AVX2] = sample_run_avx2,
            [CPU_AVX512] = sample_run_avx512,
#endif
        },
};
