/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce_finish/all_reduce_finish.h"

enum { WARP = 32, MOST_THREADS = 1024 };

static const char *illegal(const int64_t *params)
{
    if (params[ALL_REDUCE_FINISH_THREADS] % WARP) return "parameter threads is not a multiple of 32";
    return params[ALL_REDUCE_FINISH_PARTS] == 1 || params[ALL_REDUCE_FINISH_PARTS] == params[ALL_REDUCE_RANKS]
               ? NULL
               : "parameter parts is neither 1 nor ranks";
}

static const struct op_param param_schema[ALL_REDUCE_FINISH_PARAMS] = {
    OP_ROWS_PARAMS,
    [ALL_REDUCE_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, ALL_REDUCE_FINISH_OUT, .least = 1,
                          .most = OP_MAX_WIDTH},
    [ALL_REDUCE_RANKS] = {"ranks", 4, PARAM_INTEGER, PARAM_OF_ENGINE, .field = offsetof(struct plan_geometry, ranks),
                          .least = 2, .most = PLAN_MAX_RANKS},
    [ALL_REDUCE_X_DTYPE] = {"x_dtype", 5, PARAM_DTYPE, PARAM_OF_DTYPE, ALL_REDUCE_FINISH_SUM, .fallback = DTYPE_F32},
    [ALL_REDUCE_HAS_RESIDUAL] = {"has_residual", 6, PARAM_INTEGER, PARAM_OF_PRESENT, ALL_REDUCE_FINISH_RESIDUAL,
                                 .most = ALL_REDUCE_EVERY_ROW},
    [ALL_REDUCE_HAS_NORM] = {"has_norm", 7, PARAM_INTEGER, PARAM_OF_PRESENT, ALL_REDUCE_FINISH_NORM,
                             .most = ALL_REDUCE_EVERY_ROW},
    [ALL_REDUCE_NORM_DTYPE] = {"norm_dtype", 8, PARAM_DTYPE, PARAM_OF_DTYPE, ALL_REDUCE_FINISH_NORM,
                               .fallback = DTYPE_BF16},
    [ALL_REDUCE_EPS_BITS] = {"eps_bits", 9, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ALL_REDUCE_OUT_DTYPE] = {"out_dtype", 10, PARAM_DTYPE, PARAM_OF_DTYPE, ALL_REDUCE_FINISH_NORMED,
                              .fallback = DTYPE_BF16},
    [ALL_REDUCE_FINISH_THREADS] = {"threads", 11, PARAM_INTEGER, PARAM_OF_NODE, .least = WARP, .most = MOST_THREADS},
    [ALL_REDUCE_FINISH_PARTS] = {"parts", 12, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = PLAN_MAX_RANKS},
};
static const struct op_operand operand_schema[ALL_REDUCE_FINISH_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ALL_REDUCE_FINISH_SUM] = {"sum", ROLE_INPUT, .dtype = ALL_REDUCE_X_DTYPE, .rows = ALL_REDUCE_ROWS,
                               .columns = ALL_REDUCE_WIDTH, .times = ALL_REDUCE_FINISH_PARTS},
    [ALL_REDUCE_FINISH_OUT] = {"out", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ALL_REDUCE_ROWS,
                               .columns = ALL_REDUCE_WIDTH, .replaces = 1u << ALL_REDUCE_FINISH_RESIDUAL},
    [ALL_REDUCE_FINISH_RESIDUAL] = {"residual", ROLE_INPUT, .present = ALL_REDUCE_HAS_RESIDUAL, .fixed = DTYPE_F32,
                                    .rows = ALL_REDUCE_ROWS, .columns = ALL_REDUCE_WIDTH},
    [ALL_REDUCE_FINISH_NORM] = {"norm", ROLE_WEIGHT, .present = ALL_REDUCE_HAS_NORM, .dtype = ALL_REDUCE_NORM_DTYPE,
                                .rows = OP_NONE, .columns = ALL_REDUCE_WIDTH},
    [ALL_REDUCE_FINISH_NORMED] = {"normed", ROLE_OUTPUT, .present = ALL_REDUCE_HAS_NORM, .dtype = ALL_REDUCE_OUT_DTYPE,
                                  .rows = ALL_REDUCE_ROWS, .columns = ALL_REDUCE_WIDTH},
};

const struct op_descriptor op_all_reduce_finish = {
    .id = OP_ALL_REDUCE_FINISH,
    .name = "all_reduce_finish",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
