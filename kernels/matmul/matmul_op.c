/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of matmul: its contract as checks on parameters, operands and sizes, its cost, its implementations. */
#include "kernels/matmul/matmul.h"

#include "kernels/matmul/matmul_tile.h"
#include "kernels/matmul/matmul_wgmma_layout.cuh"
#include "kernels/matmul/weight_layout.h"

enum dtype matmul_codes_of_x(int64_t encoding, uint64_t k)
{
    const struct encoding *weight = encoding_find(encoding);
    if (encoding == ENCODING_INT8_CHANNEL) return k <= MATMUL_WGMMA_MOST_INTEGERS ? DTYPE_I8 : DTYPE_NONE;
    /* Sums of smaller groups would take longer to scale than to compute. */
    if (encoding == ENCODING_INT4_G128 || encoding == ENCODING_INT4_G64) return DTYPE_I8;
    return weight && weight->code == CODE_E4M3 ? DTYPE_F8_E4M3 : DTYPE_NONE;
}

static uint64_t matmul_out_columns(const int64_t *params)
{
    const uint64_t n = (uint64_t)matmul_expert_n(params);
    const uint64_t parts = matmul_shares_x(params) || params[MATMUL_PARTS] ? (uint64_t)matmul_slots(params, 1) : 1;
    if (matmul_blocks(params)) return n * (uint64_t)matmul_blocks(params);
    return (matmul_is_gated(params) ? n / 2 : n) * parts;
}

static uint64_t x_columns(const int64_t *params) { return (uint64_t)matmul_x_pitch(params); }

/* rows, k < 2^31 keep it below 2^64, over experts rows below 2^20 and TOP_K below 2^7, with blocks parts below 2^31. */
uint64_t matmul_workspace_bytes(const int64_t *params)
{
    const uint64_t slots = (uint64_t)matmul_slots(params, params[MATMUL_ROWS]), k = (uint64_t)params[MATMUL_K];
    const uint64_t lists = matmul_matrices(params) > 0 ? matmul_expert_list_bytes(params) : 0;
    return lists + slots * (k + k % 2) * sizeof(float);
}

static uint64_t list_width(const int64_t *params)
{
    return (uint64_t)router_list_width(params[MATMUL_EXPERTS], matmul_top_k(params));
}

static bool weight_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                         uint64_t *bytes)
{
    (void)geometry;
    const int64_t encoding = params[MATMUL_DTYPE];
    return weight_layout_bytes(weight_layout_of(target, encoding), encoding, (uint64_t)params[MATMUL_N],
                               (uint64_t)params[MATMUL_K], bytes);
}

static bool workspace_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                            uint64_t *bytes)
{
    (void)geometry, (void)target;
    *bytes = matmul_workspace_bytes(params);
    return true;
}

static const struct op_param param_schema[MATMUL_FIRST_TUNABLE] = {
    OP_ROWS_PARAMS,
    [MATMUL_N] = {"n", 3, PARAM_INTEGER, PARAM_OF_HEIGHT, MATMUL_W, .least = 1, .most = OP_MAX_WIDTH},
    [MATMUL_K] = {"k", 4, PARAM_INTEGER, PARAM_OF_PITCH, MATMUL_W, .least = 1, .most = OP_MAX_WIDTH},
    [MATMUL_DTYPE] = {"dtype", 5, PARAM_ENCODING, PARAM_OF_DTYPE, MATMUL_W},
    [MATMUL_OUT_DTYPE] = {"out_dtype", 6, PARAM_DTYPE, PARAM_OF_DTYPE, MATMUL_OUT, .fallback = DTYPE_F32},
    [MATMUL_EPILOGUE] = {"epilogue", 7, PARAM_INTEGER, PARAM_OF_NODE, .least = ACTIVATION_NONE,
                         .most = EPILOGUE_COUNT - 1},
    [MATMUL_HAS_BIAS] = {"has_bias", 8, PARAM_INTEGER, PARAM_OF_PRESENT, MATMUL_BIAS, .most = 1},
    [MATMUL_BIAS_DTYPE] = {"bias_dtype", 9, PARAM_DTYPE, PARAM_OF_DTYPE, MATMUL_BIAS, .fallback = DTYPE_BF16},
    [MATMUL_HAS_RESIDUAL] = {"has_residual", 10, PARAM_INTEGER, PARAM_OF_PRESENT, MATMUL_RESIDUAL, .most = 1},
    [MATMUL_HAS_NORM] = {"has_norm", 11, PARAM_INTEGER, PARAM_OF_PRESENT, MATMUL_NORM, .most = 1},
    [MATMUL_NORM_DTYPE] = {"norm_dtype", 12, PARAM_DTYPE, PARAM_OF_DTYPE, MATMUL_NORM, .fallback = DTYPE_BF16},
    [MATMUL_EPS_BITS] = {"eps_bits", 13, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [MATMUL_INPUT_DTYPE] = {"input_dtype", 14, PARAM_CODES, PARAM_OF_DTYPE, MATMUL_X, .fallback = DTYPE_F32},
    [MATMUL_SCALE_BITS] = OP_SCALE_PARAM(OP_LATER_PARAM_ID),
    [MATMUL_COMPUTE_DTYPE] = {"compute_dtype", OP_LATER_PARAM_ID + 1, PARAM_ENCODING, PARAM_OF_NODE,
                              .fallback = DTYPE_F32},
    [MATMUL_HAS_X_SCALES] = {"has_x_scales", OP_LATER_PARAM_ID + 2, PARAM_INTEGER, PARAM_OF_PRESENT, MATMUL_X_SCALES,
                             .most = 1},
    [MATMUL_CAP_BITS] = {"cap_bits", OP_LATER_PARAM_ID + 3, PARAM_FLOAT, PARAM_OF_NODE, .least = OP_FLOAT_MIN_BITS,
                         .most = OP_FLOAT_MAX_BITS, .fallback = OP_FLOAT_ONE_BITS},
    [MATMUL_EXPERTS] = {"experts", OP_LATER_PARAM_ID + 4, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_MAX_EXPERTS},
    [MATMUL_ROUTE_WIDTH] = {"route_width", OP_LATER_PARAM_ID + 5, PARAM_INTEGER, PARAM_OF_WIDTH, MATMUL_ROUTES,
                            .most = 2 * ROUTER_MAX_TOP_K},
    [MATMUL_PARTS] = {"parts", OP_LATER_PARAM_ID + 6, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [MATMUL_BLOCK_N] = {"block_n", OP_LATER_PARAM_ID + 7, PARAM_INTEGER, PARAM_OF_NODE, .most = OP_MAX_WIDTH},
    [MATMUL_X_PITCH] = {"x_pitch", OP_LATER_PARAM_ID + 8, PARAM_INTEGER, PARAM_OF_WIDER, MATMUL_X,
                        .most = OP_MAX_WIDTH},
    [MATMUL_EARLY_ROUTES] = {"early_routes", OP_LATER_PARAM_ID + 9, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
static const struct op_operand operand_schema[MATMUL_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [MATMUL_X] = {"x", ROLE_INPUT, .dtype = MATMUL_INPUT_DTYPE, .rows = MATMUL_ROWS, .width = x_columns},
    [MATMUL_W] = {"w", ROLE_WEIGHT, .dtype = MATMUL_DTYPE, .rows = MATMUL_N, .columns = MATMUL_K,
                  .bytes = weight_bytes},
    [MATMUL_OUT] = {"out", ROLE_OUTPUT, .dtype = MATMUL_OUT_DTYPE, .rows = MATMUL_ROWS, .width = matmul_out_columns,
                    .replaces = 1u << MATMUL_RESIDUAL},
    [MATMUL_BIAS] = {"bias", ROLE_WEIGHT, .present = MATMUL_HAS_BIAS, .dtype = MATMUL_BIAS_DTYPE, .rows = OP_NONE,
                     .columns = MATMUL_N},
    [MATMUL_RESIDUAL] = {"residual", ROLE_INPUT, .present = MATMUL_HAS_RESIDUAL, .fixed = DTYPE_F32,
                         .rows = MATMUL_ROWS, .width = matmul_out_columns},
    [MATMUL_NORM] = {"norm", ROLE_WEIGHT, .present = MATMUL_HAS_NORM, .dtype = MATMUL_NORM_DTYPE, .rows = OP_NONE,
                     .columns = MATMUL_K},
    [MATMUL_X_SCALES] = {"x_scales", ROLE_INPUT, .present = MATMUL_HAS_X_SCALES, .fixed = DTYPE_F32,
                         .rows = MATMUL_ROWS, .columns = OP_NONE},
    [MATMUL_ROUTES] = {"routes", ROLE_INPUT, .present = MATMUL_ROUTE_WIDTH, .fixed = DTYPE_F32, .rows = MATMUL_ROWS,
                       .columns = MATMUL_ROUTE_WIDTH},
    [MATMUL_LISTS] = {"lists", ROLE_INPUT, .present = MATMUL_ROUTE_WIDTH, .targets = 1u << TARGET_CUDA,
                      .fixed = DTYPE_I32, .rows = MATMUL_ROWS, .width = list_width},
    [MATMUL_WORKSPACE] = {"workspace", ROLE_WORKSPACE, .targets = 1u << TARGET_CPU, .bytes = workspace_bytes},
};
static const char *const tunable_names[MATMUL_TUNABLES] = {
    [MATMUL_PANELS_PER_TILE - MATMUL_FIRST_TUNABLE] = "panels_per_tile",
    [MATMUL_ROWS_PER_TILE - MATMUL_FIRST_TUNABLE] = "rows_per_tile",
    [MATMUL_DEPTH_BLOCK - MATMUL_FIRST_TUNABLE] = "depth_block",
    [MATMUL_ROWS_PER_BLOCK - MATMUL_FIRST_TUNABLE] = "rows_per_block",
    [MATMUL_PANELS_PER_TASK - MATMUL_FIRST_TUNABLE] = "panels_per_task",
    [MATMUL_THREADS - MATMUL_FIRST_TUNABLE] = "threads",
};

static const char *blocks_illegal(const int64_t *params)
{
    const int64_t rows = matmul_padded_block_n(params);
    if (params[MATMUL_N] % rows) return "parameter n is not a multiple of block_n rounded up to 16";
    if (params[MATMUL_N] / rows > INT32_MAX / params[MATMUL_ROWS]) return "rows times blocks are above 2^31 - 1";
    if (params[MATMUL_X_PITCH] && params[MATMUL_X_PITCH] / params[MATMUL_K] < params[MATMUL_N] / rows)
        return "parameter x_pitch is below the blocks times k";
    if (params[MATMUL_HAS_BIAS] || params[MATMUL_HAS_RESIDUAL] || params[MATMUL_HAS_NORM] ||
        params[MATMUL_HAS_X_SCALES] || params[MATMUL_EPILOGUE] != ACTIVATION_NONE)
        return "blocks with a bias, a residual, a norm, x_scales or an activation";
    return NULL;
}

static const char *experts_illegal(const int64_t *params)
{
    if (params[MATMUL_ROUTE_WIDTH] % 2) return "parameter route_width is odd";
    if (matmul_top_k(params) > params[MATMUL_EXPERTS]) return "parameter route_width is above twice the experts";
    if (params[MATMUL_N] % params[MATMUL_EXPERTS]) return "parameter n is not a multiple of the experts";
    if (params[MATMUL_HAS_NORM] && !matmul_shares_x(params)) return "a norm with experts without an activation";
    if (params[MATMUL_BLOCK_N]) {
        if (matmul_shares_x(params)) return "block_n with experts and an activation";
        if (params[MATMUL_X_PITCH]) return "x_pitch with experts";
        if (params[MATMUL_N] / params[MATMUL_EXPERTS] != matmul_padded_block_n(params))
            return "parameter n is not block_n rounded up to 16 for each expert";
    }
    if (params[MATMUL_PARTS] && (matmul_shares_x(params) || params[MATMUL_HAS_RESIDUAL]))
        return "parts with an activation or a residual";
    return params[MATMUL_HAS_X_SCALES] ? "x_scales with experts" : NULL;
}

static const char *illegal(const int64_t *params)
{
    struct panel_form form;
    if (!panel_form(params[MATMUL_DTYPE], &form)) return op_no_kernel(form.encoding, "dtype");
    const int64_t compute = params[MATMUL_COMPUTE_DTYPE];
    if (!encoding_is_plain((enum encoding_id)compute) && compute != ENCODING_INT8_G32)
        return op_no_kernel(encoding_find(compute), "compute_dtype");
    const int64_t input = params[MATMUL_INPUT_DTYPE];
    if ((input == DTYPE_F8_E4M3 || input == DTYPE_I8) != params[MATMUL_HAS_X_SCALES])
        return "x_scales without an x of F8_E4M3 or I8, or the reverse";
    if (params[MATMUL_HAS_X_SCALES] &&
        (int64_t)matmul_codes_of_x(params[MATMUL_DTYPE], (uint64_t)params[MATMUL_K]) != input)
        return input == DTYPE_I8 ? "an x of I8 and weights that are not int8 with one scale a row and a k below 2^17, "
                                   "or int4 in groups of 64 "
                                   "or 128"
                                 : "an x of F8_E4M3 and weights that are not e4m3";
    if (params[MATMUL_HAS_X_SCALES] && params[MATMUL_HAS_NORM]) return "x_scales with a norm";
    const enum activation activation = matmul_activation(params);
    if (activation >= ACTIVATION_COUNT || params[MATMUL_EPILOGUE] == EPILOGUE_PLAIN)
        return "parameter epilogue is no activation";
    if (params[MATMUL_CAP_BITS] != OP_FLOAT_ONE_BITS && activation != ACTIVATION_SOFTCAP &&
        activation != ACTIVATION_CLAMPED)
        return "a cap without a softcap or a clamped SwiGLU";
    if (params[MATMUL_EPILOGUE] == EPILOGUE_PLAIN + ACTIVATION_CLAMPED) return "a clamped SwiGLU without a gate";
    if (activation != ACTIVATION_NONE && params[MATMUL_HAS_RESIDUAL]) return "a residual with an activation";
    if ((params[MATMUL_EXPERTS] == 0) != (params[MATMUL_ROUTE_WIDTH] == 0))
        return "experts without routes, or the reverse";
    if (params[MATMUL_PARTS] && !params[MATMUL_EXPERTS]) return "parts without experts";
    if (params[MATMUL_EARLY_ROUTES] && (!params[MATMUL_EXPERTS] || matmul_shares_x(params)))
        return "early_routes without experts, or with an activation";
    if (params[MATMUL_EXPERTS] > 0) {
        const char *why = experts_illegal(params);
        if (why) return why;
    }
    if (params[MATMUL_BLOCK_N] > 0 && !params[MATMUL_EXPERTS]) return blocks_illegal(params);
    if (params[MATMUL_X_PITCH]) return "x_pitch without blocks";
    if (!matmul_is_gated(params)) return NULL;
    if (activation == ACTIVATION_SOFTCAP) return "a gate with a softcap";
    if (params[MATMUL_SCALE_BITS] != OP_FLOAT_ONE_BITS) return "a scale with a gate";
    return matmul_expert_n(params) % 2 ? "parameter n is odd with a gate" : NULL;
}

static const char *cpu_illegal(const int64_t *params)
{
    if (params[MATMUL_HAS_NORM]) return "CPU code has no norm";
    if (params[MATMUL_PARTS]) return "CPU code has no parts";
    if (params[MATMUL_EARLY_ROUTES]) return "CPU code has no early_routes";
    if (params[MATMUL_HAS_X_SCALES]) return "CPU code has no x_scales";
    if (params[MATMUL_COMPUTE_DTYPE] == DTYPE_F16) return "parameter compute_dtype is F16";
    if (matmul_is_gated(params) && matmul_expert_n(params) % (2 * PANEL_ROWS) != 0)
        return "parameter n is not a multiple of 32 with a gate, or not of 32 for each expert";
    if (params[MATMUL_EXPERTS] > 1 && params[MATMUL_N] / params[MATMUL_EXPERTS] % PANEL_ROWS != 0)
        return "parameter n is not a multiple of 16 for each expert";
    /* The instruction set with the most registers comes last: its reason names the actual error. */
    const char *why = NULL;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        why = matmul_tunables_illegal(params, (enum cpu_isa)isa);
        if (!why) return NULL;
    }
    return why;
}

int64_t matmul_matrices_read(const int64_t *params)
{
    if (matmul_blocks(params)) return matmul_blocks(params);
    if (!params[MATMUL_EXPERTS]) return 1;
    const double experts = (double)params[MATMUL_EXPERTS], passed = 1 - (double)matmul_top_k(params) / experts;
    double unread = experts;
    for (int64_t row = 0; row < params[MATMUL_ROWS] && unread > 1e-3; row++) unread *= passed;
    return (int64_t)(experts - unread + 0.5);
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[MATMUL_ROWS], slots = (uint64_t)matmul_slots(params, params[MATMUL_ROWS]);
    const uint64_t k = (uint64_t)params[MATMUL_K],
                   n = (uint64_t)(matmul_matrices_read(params) * matmul_expert_n(params));
    *bytes =
        panel_count(n) * panel_bytes(k, params[MATMUL_DTYPE]) +
        rows * (x_columns(params) + matmul_out_columns(params) + (uint64_t)params[MATMUL_ROUTE_WIDTH]) * sizeof(float);
    if (params[MATMUL_HAS_BIAS]) *bytes += n * dtype_bytes((enum dtype)params[MATMUL_BIAS_DTYPE]);
    if (params[MATMUL_HAS_RESIDUAL]) *bytes += rows * matmul_out_columns(params) * sizeof(float);
    *flops = 2 * slots * (uint64_t)matmul_expert_n(params) * k;
}

static void reference(const struct op_call *call) { matmul_reference_range(call, 0, call->params[MATMUL_N]); }

const struct op_descriptor op_matmul = {
    .id = OP_MATMUL,
    .name = "matmul",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = cost,
    .tunables = tunable_names,
    .tunable_count = MATMUL_TUNABLES,
    .cpu_illegal = cpu_illegal,
    .default_tunables = matmul_default_tunables,
    .reference = reference,
    .run =
        {
            [CPU_PORTABLE] = matmul_run_portable,
#if defined(__x86_64__)
            [CPU_AVX2] = matmul_run_avx2,
            [CPU_AVX512] = matmul_run_avx512,
            [CPU_AVX512VNNI] = matmul_run_avx512vnni,
            [CPU_AVX512BF16] = matmul_run_avx512bf16,
            [CPU_AMX] = matmul_run_amx,
#endif
        },
};
