/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/short_conv/short_conv.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/share.h"
#include "kernels/op/activation.h"
#include "kernels/op/recurrent.h"

static const char *illegal(const int64_t *params)
{
    const int64_t activation = params[SHORT_CONV_ACTIVATION];
    if (activation != ACTIVATION_NONE && activation != ACTIVATION_SILU)
        return "parameter activation is not none or silu";
    if (params[SHORT_CONV_GATED] && params[SHORT_CONV_CHANNELS] > OP_MAX_WIDTH / 3)
        return "parameter channels is above a third of the largest width";
    const uint64_t bytes =
        short_conv_state_bytes((uint64_t)params[SHORT_CONV_CHANNELS], (uint64_t)params[SHORT_CONV_KERNEL]);
    return bytes > (uint64_t)params[SHORT_CONV_RECURRENT_BYTES] ? "recurrent_bytes is less than the state of a layer"
                                                                : NULL;
}

void short_conv_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[SHORT_CONV_ROWS], channels = (uint64_t)params[SHORT_CONV_CHANNELS];
    const uint64_t kernel = (uint64_t)params[SHORT_CONV_KERNEL], parts = params[SHORT_CONV_GATED] ? 4 : 2;
    const uint64_t element = dtype_bytes((enum dtype)params[SHORT_CONV_X_DTYPE]);
    *bytes = rows * (channels * parts * element + 2 * short_conv_state_bytes(channels, kernel)) +
             channels * kernel * dtype_bytes((enum dtype)params[SHORT_CONV_W_DTYPE]);
    *flops = rows * channels * 2 * kernel;
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[SHORT_CONV_X_DTYPE] == DTYPE_F32 ? NULL : "parameter x_dtype is not F32";
}

/* Channels [first, last) of all rows, one row after the other. */
static void run_channels(const struct op_call *call, int64_t first, int64_t last)
{
    const int64_t *params = call->params;
    const int64_t channels = params[SHORT_CONV_CHANNELS], before = params[SHORT_CONV_KERNEL] - 1;
    const bool gated = params[SHORT_CONV_GATED] != 0, silu = params[SHORT_CONV_ACTIVATION] == ACTIVATION_SILU;
    const int32_t *slots = call->operands[SHORT_CONV_SLOTS], *positions = call->operands[SHORT_CONV_POSITIONS];
    const void *w = call->operands[SHORT_CONV_W], *bias = call->operands[SHORT_CONV_BIAS];
    const int64_t rows = op_valid_rows(call);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = (const float *)call->operands[SHORT_CONV_X] + r * channels * (gated ? 3 : 1);
        float *out = (float *)call->operands[SHORT_CONV_OUT] + r * channels;
        float *state = (float *)(void *)((uint8_t *)call->operands[SHORT_CONV_STATE] +
                                         slots[r] * params[SHORT_CONV_RECURRENT_BYTES]);
        for (int64_t j = 0; positions[r] == 0 && j < before; j++)
            memset(state + j * channels + first, 0, (size_t)(last - first) * sizeof *state);
        for (int64_t c = first; c < last; c++) {
            const float value = gated ? x[c] * x[2 * channels + c] : x[c];
            float sum = 0;
            for (int64_t j = 0; j <= before; j++) {
                const float term = j < before ? state[j * channels + c] : value;
                sum += op_element(w, c * (before + 1) + j, (enum dtype)params[SHORT_CONV_W_DTYPE]) * term;
                if (j > 0) state[(j - 1) * channels + c] = term;
            }
            if (bias) sum += op_element(bias, c, (enum dtype)params[SHORT_CONV_BIAS_DTYPE]);
            if (silu) sum = sum / (1 + expf(-sum));
            out[c] = gated ? x[channels + c] * sum : sum;
        }
    }
}

static void run(const struct op_call *call, struct team_member *member)
{
    const int64_t rows = op_valid_rows(call);
    const struct share share = team_share_rows(member, call->params[SHORT_CONV_CHANNELS], 8 * (rows > 0 ? rows : 1));
    run_channels(call, share.first, share.last);
}

static void reference(const struct op_call *call) { run_channels(call, 0, call->params[SHORT_CONV_CHANNELS]); }

static uint64_t x_width(const int64_t *params)
{
    return (uint64_t)params[SHORT_CONV_CHANNELS] * (params[SHORT_CONV_GATED] ? 3 : 1);
}

static uint64_t w_width(const int64_t *params)
{
    return (uint64_t)params[SHORT_CONV_CHANNELS] * (uint64_t)params[SHORT_CONV_KERNEL];
}

static bool state_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                        uint64_t *bytes)
{
    return op_recurrent_bytes(geometry, target,
                              short_conv_state_bytes((uint64_t)params[SHORT_CONV_CHANNELS],
                                                     (uint64_t)params[SHORT_CONV_KERNEL]),
                              bytes);
}

static const struct op_param param_schema[SHORT_CONV_PARAMS] = {
    OP_ROWS_PARAMS,
    [SHORT_CONV_CHANNELS] = {"channels", 3, PARAM_INTEGER, PARAM_OF_NODE, .least = 1,
                             .most = OP_MAX_WIDTH / SHORT_CONV_MAX_KERNEL},
    [SHORT_CONV_KERNEL] = {"kernel", 4, PARAM_INTEGER, PARAM_OF_NODE, .least = 2, .most = SHORT_CONV_MAX_KERNEL},
    [SHORT_CONV_GATED] = {"gated", 5, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [SHORT_CONV_ACTIVATION] = {"activation", 6, PARAM_INTEGER, PARAM_OF_NODE, .most = ACTIVATION_COUNT - 1},
    [SHORT_CONV_W_DTYPE] = {"w_dtype", 7, PARAM_DTYPE, PARAM_OF_DTYPE, SHORT_CONV_W},
    [SHORT_CONV_HAS_BIAS] = {"has_bias", 8, PARAM_INTEGER, PARAM_OF_PRESENT, SHORT_CONV_BIAS, .most = 1},
    [SHORT_CONV_BIAS_DTYPE] = {"bias_dtype", 9, PARAM_DTYPE, PARAM_OF_DTYPE, SHORT_CONV_BIAS, .fallback = DTYPE_F32},
    OP_RECURRENT_PARAMS(SHORT_CONV_RECURRENT_BYTES, 10, SHORT_CONV_SLOT_COUNT, 11),
    [SHORT_CONV_X_DTYPE] = {"x_dtype", OP_LATER_PARAM_ID, PARAM_DTYPE, PARAM_OF_DTYPE, SHORT_CONV_X,
                            .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[SHORT_CONV_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [SHORT_CONV_X] = {"x", ROLE_INPUT, .dtype = SHORT_CONV_X_DTYPE, .rows = SHORT_CONV_ROWS, .width = x_width},
    [SHORT_CONV_W] = {"w", ROLE_WEIGHT, .dtype = SHORT_CONV_W_DTYPE, .rows = OP_NONE, .width = w_width},
    [SHORT_CONV_OUT] = {"out", ROLE_OUTPUT, .dtype = SHORT_CONV_X_DTYPE, .rows = SHORT_CONV_ROWS,
                        .columns = SHORT_CONV_CHANNELS},
    [SHORT_CONV_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, SHORT_CONV_ROWS),
    [SHORT_CONV_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, SHORT_CONV_ROWS),
    [SHORT_CONV_STATE] = {"state", ROLE_STATE, ACCESS_READ_WRITE, STATE_RECURRENT, .bytes = state_bytes},
    [SHORT_CONV_BIAS] = {"bias", ROLE_WEIGHT, .present = SHORT_CONV_HAS_BIAS, .dtype = SHORT_CONV_BIAS_DTYPE,
                         .rows = OP_NONE, .columns = SHORT_CONV_CHANNELS},
};

const struct op_descriptor op_short_conv = {
    .id = OP_SHORT_CONV,
    .name = "short_conv",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = short_conv_cost,
    .cpu_illegal = cpu_illegal,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
