/* SPDX-License-Identifier: Apache-2.0 */
/* What the schemas of routed_matmul and of routed_mlp have alike: the operands and parameters with the same numbers. */
#ifndef KERNELS_ROUTED_MATMUL_ROUTED_MATMUL_SCHEMA_H
#define KERNELS_ROUTED_MATMUL_ROUTED_MATMUL_SCHEMA_H

#include "kernels/routed_matmul/routed_matmul.h"

#define ROUTED_MATMUL_SAME_PARAMS                                                                                      \
    OP_ROWS_PARAMS,                                                                                                    \
        [ROUTED_MATMUL_N] =                                                                                            \
            {"n", 3, PARAM_INTEGER, PARAM_OF_HEIGHT, ROUTED_MATMUL_W, .least = 1, .most = OP_MAX_WIDTH},               \
        [ROUTED_MATMUL_K] =                                                                                            \
            {"k", 4, PARAM_INTEGER, PARAM_OF_PITCH, ROUTED_MATMUL_W, .least = 1, .most = OP_MAX_WIDTH},                \
        [ROUTED_MATMUL_DTYPE] = {"dtype", 5, PARAM_ENCODING, PARAM_OF_DTYPE, ROUTED_MATMUL_W},                         \
        [ROUTED_MATMUL_EPILOGUE] =                                                                                     \
            {"epilogue", 7, PARAM_INTEGER, PARAM_OF_NODE, .least = ACTIVATION_NONE + 1, .most = EPILOGUE_COUNT - 1},   \
        [ROUTED_MATMUL_HAS_BIAS] = {"has_bias", 8, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTED_MATMUL_BIAS, .most = 1},    \
        [ROUTED_MATMUL_BIAS_DTYPE] = {"bias_dtype",          9, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_BIAS,       \
                                      .fallback = DTYPE_BF16},                                                         \
        [ROUTED_MATMUL_HAS_NORM] = {"has_norm", 10, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTED_MATMUL_NORM, .most = 1},   \
        [ROUTED_MATMUL_NORM_DTYPE] = {"norm_dtype",          11, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_NORM,      \
                                      .fallback = DTYPE_BF16},                                                         \
        [ROUTED_MATMUL_EPS_BITS] = {"eps_bits", 12, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},            \
        [ROUTED_MATMUL_INPUT_DTYPE] = {"input_dtype",        13, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_X,         \
                                       .fallback = DTYPE_F32},                                                         \
        [ROUTED_MATMUL_CAP_BITS] = {"cap_bits",                                                                        \
                                    14,                                                                                \
                                    PARAM_FLOAT,                                                                       \
                                    PARAM_OF_NODE,                                                                     \
                                    .least = OP_FLOAT_MIN_BITS,                                                        \
                                    .most = OP_FLOAT_MAX_BITS,                                                         \
                                    .fallback = OP_FLOAT_ONE_BITS},                                                    \
        [ROUTED_MATMUL_EXPERTS] =                                                                                      \
            {"experts", 15, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = ROUTER_MAX_EXPERTS},                     \
        [ROUTED_MATMUL_MATRIX_DTYPE] = {"matrix_dtype",        17, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_MATRIX,  \
                                        .fallback = DTYPE_BF16},                                                       \
        [ROUTED_MATMUL_ROUTED] = {"routed",                                                                            \
                                  18,                                                                                  \
                                  PARAM_INTEGER,                                                                       \
                                  PARAM_OF_HEIGHT,                                                                     \
                                  ROUTED_MATMUL_MATRIX,                                                                \
                                  .least = 1,                                                                          \
                                  .most = ROUTER_MAX_EXPERTS},                                                         \
        [ROUTED_MATMUL_HAS_ROUTER_BIAS] = {"has_router_bias",         19,       PARAM_INTEGER, PARAM_OF_PRESENT,       \
                                           ROUTED_MATMUL_ROUTER_BIAS, .most = 1},                                      \
        [ROUTED_MATMUL_ROUTER_BIAS_DTYPE] =                                                                            \
            {"router_bias_dtype", 20, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_ROUTER_BIAS, .fallback = DTYPE_BF16}, \
        [ROUTED_MATMUL_SCORE] = {"score", 21, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_SCORES - 1},                \
        [ROUTED_MATMUL_RENORMALISE] = {"renormalise", 22, PARAM_INTEGER, PARAM_OF_NODE,                                \
                                       .most = ROUTER_RENORMALISES - 1},                                               \
        [ROUTED_MATMUL_ROUTER_EPS_BITS] = {"router_eps_bits", 23, PARAM_FLOAT, PARAM_OF_NODE,                          \
                                           .most = OP_FLOAT_MAX_BITS},                                                 \
        [ROUTED_MATMUL_ROUTER_SCALE_BITS] = {"router_scale_bits",                                                      \
                                             24,                                                                       \
                                             PARAM_FLOAT,                                                              \
                                             PARAM_OF_NODE,                                                            \
                                             .least = OP_FLOAT_MIN_BITS,                                               \
                                             .most = OP_FLOAT_MAX_BITS,                                                \
                                             .fallback = OP_FLOAT_ONE_BITS},                                           \
        [ROUTED_MATMUL_ROUTER_GROUPS] = {"router_groups", 25,         PARAM_INTEGER,                                   \
                                         PARAM_OF_NODE,   .least = 1, .most = ROUTER_MAX_EXPERTS,                      \
                                         .fallback = 1},                                                               \
        [ROUTED_MATMUL_TOP_GROUPS] = {"top_groups",  26,         PARAM_INTEGER,                                        \
                                      PARAM_OF_NODE, .least = 1, .most = ROUTER_MAX_EXPERTS,                           \
                                      .fallback = 1},                                                                  \
        [ROUTED_MATMUL_GROUP_SCORE] = {"group_score", 27, PARAM_INTEGER, PARAM_OF_NODE,                                \
                                       .most = ROUTER_GROUP_SCORES - 1},                                               \
        [ROUTED_MATMUL_HAS_CLAIM_BIAS] = {"has_claim_bias",         28,       PARAM_INTEGER, PARAM_OF_PRESENT,         \
                                          ROUTED_MATMUL_CLAIM_BIAS, .most = 1},                                        \
        [ROUTED_MATMUL_CLAIM_BIAS_DTYPE] =                                                                             \
            {"claim_bias_dtype", 29, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_CLAIM_BIAS, .fallback = DTYPE_F32},    \
        [ROUTED_MATMUL_HAS_SEEDS] = {"has_seeds", 30, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},                        \
        [ROUTED_MATMUL_STEP_ROWS] = {"step_rows",         31,           PARAM_INTEGER, PARAM_OF_STEP, .least = 1,      \
                                     .most = OP_MAX_ROWS, .fallback = 1},                                              \
        [ROUTED_MATMUL_HAS_SCALES] = {"has_scales",         32,       PARAM_INTEGER, PARAM_OF_PRESENT,                 \
                                      ROUTED_MATMUL_SCALES, .most = 1},                                                \
        [ROUTED_MATMUL_SCALES_DTYPE] = {"scales_dtype",       33, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_SCALES,   \
                                        .fallback = DTYPE_F32},                                                        \
        [ROUTED_MATMUL_SHARED] = {"shared", 34, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_MAX_TOP_K - 1},           \
        [ROUTED_MATMUL_SHARED_GATE] = {"shared_gate", 35, PARAM_INTEGER, PARAM_OF_NODE, .most = 1}

#define ROUTED_MATMUL_SAME_OPERANDS                                                                           \
    OP_COUNTS_OPERAND,                                                                                        \
        [ROUTED_MATMUL_X] = {"x", ROLE_INPUT, .dtype = ROUTED_MATMUL_INPUT_DTYPE, .rows = ROUTED_MATMUL_ROWS, \
                             .columns = ROUTED_MATMUL_K},                                                     \
        [ROUTED_MATMUL_MATRIX] = {"matrix", ROLE_WEIGHT, .dtype = ROUTED_MATMUL_MATRIX_DTYPE,                 \
                                  .rows = ROUTED_MATMUL_ROUTED, .columns = ROUTED_MATMUL_K},                  \
        [ROUTED_MATMUL_WORKSPACE] = {"workspace", ROLE_COUNTERS, .rows = OP_NONE, .columns = OP_NONE,         \
                                     .element_bytes = PLAN_ALIGNMENT /* with any parameters */},              \
        [ROUTED_MATMUL_BIAS] = {"bias",                                                                       \
                                ROLE_WEIGHT,                                                                  \
                                .present = ROUTED_MATMUL_HAS_BIAS,                                            \
                                .dtype = ROUTED_MATMUL_BIAS_DTYPE,                                            \
                                .rows = OP_NONE,                                                              \
                                .columns = ROUTED_MATMUL_N},                                                  \
        [ROUTED_MATMUL_NORM] = {"norm",                                                                       \
                                ROLE_WEIGHT,                                                                  \
                                .present = ROUTED_MATMUL_HAS_NORM,                                            \
                                .dtype = ROUTED_MATMUL_NORM_DTYPE,                                            \
                                .rows = OP_NONE,                                                              \
                                .columns = ROUTED_MATMUL_K},                                                  \
        [ROUTED_MATMUL_ROUTER_BIAS] = {"router_bias",                                                         \
                                       ROLE_WEIGHT,                                                           \
                                       .present = ROUTED_MATMUL_HAS_ROUTER_BIAS,                              \
                                       .dtype = ROUTED_MATMUL_ROUTER_BIAS_DTYPE,                              \
                                       .rows = OP_NONE,                                                       \
                                       .columns = ROUTED_MATMUL_ROUTED},                                      \
        [ROUTED_MATMUL_CLAIM_BIAS] = {"claim_bias",                                                           \
                                      ROLE_WEIGHT,                                                            \
                                      .present = ROUTED_MATMUL_HAS_CLAIM_BIAS,                                \
                                      .dtype = ROUTED_MATMUL_CLAIM_BIAS_DTYPE,                                \
                                      .rows = OP_NONE,                                                        \
                                      .columns = ROUTED_MATMUL_ROUTED},                                       \
        [ROUTED_MATMUL_SEEDS] = {"seeds",                                                                     \
                                 ROLE_STEP,                                                                   \
                                 .field = STEP_ROUTE_SEEDS,                                                   \
                                 .present = ROUTED_MATMUL_HAS_SEEDS,                                          \
                                 .fixed = DTYPE_I32,                                                          \
                                 .rows = ROUTED_MATMUL_STEP_ROWS,                                             \
                                 .columns = OP_NONE},                                                         \
        [ROUTED_MATMUL_INDEX] = {"index",                                                                     \
                                 ROLE_STEP,                                                                   \
                                 .field = STEP_OUT_ROWS,                                                      \
                                 .present = ROUTED_MATMUL_COUNT_INDEX,                                        \
                                 .fixed = DTYPE_I32,                                                          \
                                 .rows = ROUTED_MATMUL_ROWS,                                                  \
                                 .columns = OP_NONE},                                                         \
        [ROUTED_MATMUL_SCALES] = {"scales",                                                                   \
                                  ROLE_WEIGHT,                                                                \
                                  .present = ROUTED_MATMUL_HAS_SCALES,                                        \
                                  .dtype = ROUTED_MATMUL_SCALES_DTYPE,                                        \
                                  .rows = OP_NONE,                                                            \
                                  .columns = ROUTED_MATMUL_ROUTED}

/* Bytes of W. As op_operand's. */
bool routed_matmul_weight_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                                uint64_t *bytes);
/* Why parameters that are each in range are illegal together; NULL: they are legal. */
const char *routed_matmul_illegal(const int64_t *params);

#endif
