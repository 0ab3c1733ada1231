/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_gather_place/all_gather_place.h"

enum { WARP = 32, MOST_THREADS = 1024 };

static const char *illegal(const int64_t *params)
{
    if (params[ALL_GATHER_OUT_WIDTH] > params[ALL_GATHER_RANKS] * params[ALL_GATHER_WIDTH])
        return "parameter out_width is above ranks times width";
    return params[ALL_GATHER_PLACE_THREADS] % WARP ? "parameter threads is not a multiple of 32" : NULL;
}

static const struct op_param param_schema[ALL_GATHER_PLACE_PARAMS] = {
    OP_ROWS_PARAMS,
    [ALL_GATHER_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = OP_MAX_WIDTH},
    [ALL_GATHER_OUT_WIDTH] = {"out_width", 4, PARAM_INTEGER, PARAM_OF_WIDTH, ALL_GATHER_PLACE_OUT, .least = 1,
                              .most = OP_MAX_WIDTH},
    [ALL_GATHER_RANKS] = {"ranks", 5, PARAM_INTEGER, PARAM_OF_ENGINE, .field = offsetof(struct plan_geometry, ranks),
                          .least = 2, .most = PLAN_MAX_RANKS},
    [ALL_GATHER_PLACE_THREADS] = {"threads", 6, PARAM_INTEGER, PARAM_OF_NODE, .least = WARP, .most = MOST_THREADS},
};
static const struct op_operand operand_schema[ALL_GATHER_PLACE_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ALL_GATHER_PLACE_GATHERED] = {"gathered", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ALL_GATHER_ROWS,
                                   .columns = ALL_GATHER_WIDTH, .times = ALL_GATHER_RANKS},
    [ALL_GATHER_PLACE_OUT] = {"out", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ALL_GATHER_ROWS,
                              .columns = ALL_GATHER_OUT_WIDTH},
};

const struct op_descriptor op_all_gather_place = {
    .id = OP_ALL_GATHER_PLACE,
    .name = "all_gather_place",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
