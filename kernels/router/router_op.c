/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/router/router.h"

#include <math.h>

#include "kernels/cpu/share.h"

/* Choices of a row, and those that its scores make. */
static int64_t choices_of(const int64_t *params) { return params[ROUTER_ROUTE_WIDTH] / 2; }
static int64_t top_k_of(const int64_t *params) { return choices_of(params) - params[ROUTER_SHARED]; }
static int64_t routed_of(const int64_t *params) { return params[ROUTER_EXPERTS] - params[ROUTER_SHARED_GATE]; }
static int64_t experts_of(const int64_t *params) { return routed_of(params) + params[ROUTER_SHARED]; }

static const char *illegal(const int64_t *params)
{
    const int64_t experts = routed_of(params), groups = params[ROUTER_GROUPS];
    if (params[ROUTER_ROUTE_WIDTH] % 2) return "parameter route_width is odd";
    if (params[ROUTER_SHARED_GATE] && !params[ROUTER_SHARED]) return "parameter shared_gate without shared experts";
    if (params[ROUTER_SHARED_GATE] && (params[ROUTER_HAS_BIAS] || params[ROUTER_HAS_SCALES]))
        return "parameter shared_gate with a bias or scales";
    if (experts < 1) return "parameter shared_gate without an expert's logit";
    if (experts_of(params) > ROUTER_MAX_EXPERTS) return "routed and shared experts are too many";
    if (top_k_of(params) < 1) return "parameter route_width is not above twice shared";
    if (params[ROUTER_HAS_SEEDS] && params[ROUTER_ROWS] > params[ROUTER_STEP_ROWS])
        return "parameter rows is above step_rows";
    if (experts % groups) return "parameter groups does not divide the experts";
    if (params[ROUTER_TOP_GROUPS] > groups) return "parameter top_groups is above groups";
    if (top_k_of(params) > experts / groups * params[ROUTER_TOP_GROUPS])
        return "parameter route_width is above twice the experts of the best groups";
    if (params[ROUTER_GROUP_SCORE] == ROUTER_GROUP_BEST_TWO && groups > 1 && experts / groups < 2)
        return "groups of one expert with a score of two";
    if (params[ROUTER_SCORE] == ROUTER_SOFTMAX_CHOSEN &&
        (params[ROUTER_HAS_BIAS] || groups > 1 || params[ROUTER_RENORMALISE]))
        return "a softmax of the chosen experts with a bias or groups, or divided by a sum once more";
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_PER_SCORE = 20 };
    (void)context;
    const uint64_t rows = (uint64_t)params[ROUTER_ROWS], experts = (uint64_t)params[ROUTER_EXPERTS];
    *bytes = rows * (experts + (uint64_t)params[ROUTER_ROUTE_WIDTH]) * sizeof(float);
    if (params[ROUTER_HAS_BIAS]) *bytes += experts * dtype_bytes((enum dtype)params[ROUTER_BIAS_DTYPE]);
    if (params[ROUTER_HAS_SCALES]) *bytes += experts * dtype_bytes((enum dtype)params[ROUTER_SCALES_DTYPE]);
    *flops = rows * experts * (FLOPS_PER_SCORE + (uint64_t)top_k_of(params));
}

/* ---- scores ---- */

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* May be in place. */
static void softmax(const float *logits, int64_t count, float *scores)
{
    float largest = logits[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > largest) largest = logits[i];
    for (int64_t i = 0; i < count; i++) {
        scores[i] = expf(logits[i] - largest);
        sum += scores[i];
    }
    for (int64_t i = 0; i < count; i++) scores[i] /= sum;
}

static void score_row(const int64_t *params, const float *logits, float *scores)
{
    const int64_t experts = routed_of(params);
    if (params[ROUTER_SCORE] == ROUTER_SOFTMAX) {
        softmax(logits, experts, scores);
        return;
    }
    for (int64_t i = 0; i < experts; i++)
        scores[i] = params[ROUTER_SCORE] == ROUTER_SIGMOID ? sigmoid(logits[i]) : logits[i];
}

/* ---- choice ---- */

static bool is_greater(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }

/* The greatest of the claims that are not taken, which is one of them; -1: all are taken. */
static int64_t greatest(const float *claims, const bool *taken, int64_t count)
{
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || is_greater(claims[i], claims[best]))) best = i;
    return best;
}

static float group_claim(const int64_t *params, const float *claims, int64_t size)
{
    bool taken[ROUTER_MAX_EXPERTS] = {false};
    const int64_t first = greatest(claims, taken, size);
    taken[first] = true;
    if (params[ROUTER_GROUP_SCORE] == ROUTER_GROUP_BEST) return claims[first];
    return claims[first] + claims[greatest(claims, taken, size)];
}

/* Takes the experts of all groups but the best ones. */
static void take_other_groups(const int64_t *params, const float *claims, bool *taken)
{
    const int64_t groups = params[ROUTER_GROUPS], size = routed_of(params) / groups;
    float of_group[ROUTER_MAX_EXPERTS];
    bool chosen[ROUTER_MAX_EXPERTS] = {false};
    for (int64_t g = 0; g < groups; g++) of_group[g] = group_claim(params, claims + g * size, size);
    for (int64_t i = 0; i < params[ROUTER_TOP_GROUPS]; i++) chosen[greatest(of_group, chosen, groups)] = true;
    for (int64_t i = 0; i < routed_of(params); i++) taken[i] = !chosen[i / size];
}

static void route_row(const struct op_call *call, int64_t row)
{
    const int64_t *params = call->params;
    const int64_t experts = routed_of(params), top_k = top_k_of(params), choices = choices_of(params);
    const float eps = op_float_param(params, ROUTER_EPS_BITS), scale = op_float_param(params, ROUTER_SCALE_BITS);
    const void *bias = call->operands[ROUTER_BIAS];
    float scores[ROUTER_MAX_EXPERTS], claims[ROUTER_MAX_EXPERTS];
    bool taken[ROUTER_MAX_EXPERTS] = {false};
    float *weights = (float *)call->operands[ROUTER_OUT] + row * params[ROUTER_ROUTE_WIDTH], *ids = weights + choices;
    const float *logits = (const float *)call->operands[ROUTER_LOGITS] + row * params[ROUTER_EXPERTS];
    score_row(params, logits, scores);
    const int32_t *seeds = call->operands[ROUTER_SEEDS], *index = call->operands[ROUTER_INDEX];
    const int32_t seed = seeds ? seeds[index ? index[row] : row] : 0;
    const bool by_logits =
        router_claims_are_logits(params[ROUTER_SCORE], params[ROUTER_HAS_BIAS], params[ROUTER_GROUPS]);
    for (int64_t i = 0; i < experts; i++)
        claims[i] = seed        ? router_seeded_claim(seed, (int)i)
                    : by_logits ? logits[i]
                    : bias      ? scores[i] + op_element(bias, i, (enum dtype)params[ROUTER_BIAS_DTYPE])
                                : scores[i];
    if (params[ROUTER_GROUPS] > 1) take_other_groups(params, claims, taken);
    float sum = 0;
    for (int64_t choice = 0; choice < top_k; choice++) {
        const int64_t expert = greatest(claims, taken, experts);
        taken[expert] = true;
        ids[choice] = (float)expert;
        weights[choice] = scores[expert];
    }
    if (params[ROUTER_SCORE] == ROUTER_SOFTMAX_CHOSEN) softmax(weights, top_k, weights);
    for (int64_t choice = 0; choice < top_k; choice++) sum += weights[choice];
    const float divisor = params[ROUTER_RENORMALISE] == ROUTER_SUM_PLUS_EPS  ? sum + eps
                          : params[ROUTER_RENORMALISE] == ROUTER_AS_THEY_ARE ? 1
                          : sum < eps                                        ? eps
                                                                             : sum;
    const void *scales = call->operands[ROUTER_SCALES];
    for (int64_t choice = 0; choice < top_k; choice++) {
        weights[choice] = weights[choice] / divisor * scale;
        if (scales)
            weights[choice] *= op_element(scales, (int64_t)ids[choice], (enum dtype)params[ROUTER_SCALES_DTYPE]);
    }
    for (int64_t choice = top_k; choice < choices; choice++) {
        ids[choice] = (float)(experts + choice - top_k);
        weights[choice] = params[ROUTER_SHARED_GATE] ? sigmoid(logits[experts]) : 1;
    }
}

static void run(const struct op_call *call, struct team_member *member)
{
    const struct share share = team_share_rows(member, op_valid_rows(call), call->params[ROUTER_EXPERTS]);
    for (int64_t row = share.first; row < share.last; row++) route_row(call, row);
}

static void reference(const struct op_call *call)
{
    const int64_t rows = op_valid_rows(call);
    for (int64_t row = 0; row < rows; row++) route_row(call, row);
}

static uint64_t list_width(const int64_t *params)
{
    return (uint64_t)router_list_width(experts_of(params), choices_of(params));
}

static const struct op_param param_schema[ROUTER_PARAMS] = {
    OP_ROWS_PARAMS,
    [ROUTER_EXPERTS] = {"experts", 3, PARAM_INTEGER, PARAM_OF_WIDTH, ROUTER_LOGITS, .least = 1,
                        .most = ROUTER_MAX_EXPERTS},
    [ROUTER_ROUTE_WIDTH] = {"route_width", 4, PARAM_INTEGER, PARAM_OF_WIDTH, ROUTER_OUT, .least = 2,
                            .most = 2 * ROUTER_MAX_TOP_K},
    [ROUTER_SCORE] = {"score", 5, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_SCORES - 1},
    [ROUTER_RENORMALISE] = {"renormalise", 6, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_RENORMALISES - 1},
    [ROUTER_EPS_BITS] = {"eps_bits", 7, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ROUTER_SCALE_BITS] = OP_SCALE_PARAM(8),
    [ROUTER_GROUPS] = {"groups", 9, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = ROUTER_MAX_EXPERTS,
                       .fallback = 1},
    [ROUTER_TOP_GROUPS] = {"top_groups", 10, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = ROUTER_MAX_EXPERTS,
                           .fallback = 1},
    [ROUTER_GROUP_SCORE] = {"group_score", 11, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_GROUP_SCORES - 1},
    [ROUTER_HAS_BIAS] = {"has_bias", 12, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTER_BIAS, .most = 1},
    [ROUTER_BIAS_DTYPE] = {"bias_dtype", 13, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTER_BIAS, .fallback = DTYPE_F32},
    [ROUTER_HAS_SEEDS] = {"has_seeds", OP_LATER_PARAM_ID, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [ROUTER_STEP_ROWS] = {"step_rows", OP_LATER_PARAM_ID + 1, PARAM_INTEGER, PARAM_OF_STEP, .least = 1,
                          .most = OP_MAX_ROWS, .fallback = 1},
    [ROUTER_HAS_SCALES] = {"has_scales", OP_LATER_PARAM_ID + 2, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTER_SCALES,
                           .most = 1},
    [ROUTER_SCALES_DTYPE] = {"scales_dtype", OP_LATER_PARAM_ID + 3, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTER_SCALES,
                             .fallback = DTYPE_F32},
    [ROUTER_SHARED] = {"shared", OP_LATER_PARAM_ID + 4, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_MAX_TOP_K - 1},
    [ROUTER_SHARED_GATE] = {"shared_gate", OP_LATER_PARAM_ID + 5, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
static const struct op_operand operand_schema[ROUTER_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ROUTER_LOGITS] = {"logits", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ROUTER_ROWS, .columns = ROUTER_EXPERTS},
    [ROUTER_OUT] = {"out", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ROUTER_ROWS, .columns = ROUTER_ROUTE_WIDTH},
    [ROUTER_BIAS] = {"bias", ROLE_WEIGHT, .present = ROUTER_HAS_BIAS, .dtype = ROUTER_BIAS_DTYPE, .rows = OP_NONE,
                     .columns = ROUTER_EXPERTS},
    [ROUTER_LISTS] = {"lists", ROLE_OUTPUT, .targets = 1u << TARGET_CUDA, .fixed = DTYPE_I32, .rows = ROUTER_ROWS,
                      .width = list_width},
    [ROUTER_SEEDS] = {"seeds", ROLE_STEP, .field = STEP_ROUTE_SEEDS, .present = ROUTER_HAS_SEEDS, .fixed = DTYPE_I32,
                      .rows = ROUTER_STEP_ROWS, .columns = OP_NONE},
    [ROUTER_INDEX] = {"index", ROLE_STEP, .field = STEP_OUT_ROWS, .present = ROUTER_COUNT_INDEX, .fixed = DTYPE_I32,
                      .rows = ROUTER_ROWS, .columns = OP_NONE},
    [ROUTER_SCALES] = {"scales", ROLE_WEIGHT, .present = ROUTER_HAS_SCALES, .dtype = ROUTER_SCALES_DTYPE,
                       .rows = OP_NONE, .columns = ROUTER_EXPERTS},
};

const struct op_descriptor op_router = {
    .id = OP_ROUTER,
    .name = "router",
    .finds_out_rows = true,
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
