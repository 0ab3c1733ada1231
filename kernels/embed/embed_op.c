/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embed/embed.h"

#include "kernels/cpu/share.h"
#include "kernels/matmul/weight_layout.h"
#include "kernels/op/op.h"

void embed_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    uint64_t rows = (uint64_t)params[EMBED_ROWS], hidden = (uint64_t)params[EMBED_HIDDEN], row = 0;
    switch ((enum tensor_layout)params[EMBED_LAYOUT]) {
    case LAYOUT_ROW_MAJOR: row = hidden * dtype_bytes((enum dtype)params[EMBED_TABLE_DTYPE]); break;
    /* Every line of a panel has some of the row's columns. */
    case LAYOUT_PANEL16: row = panel_bytes(hidden, params[EMBED_TABLE_DTYPE]); break;
    /* Rows r and r + 8 lie together. */
    case LAYOUT_FRAGMENT16: row = fragment_bytes(hidden, params[EMBED_TABLE_DTYPE]) / (PANEL_ROWS / 2); break;
    }
    if (params[EMBED_HAS_POSITIONS]) row += hidden * dtype_bytes((enum dtype)params[EMBED_POSITION_DTYPE]);
    *bytes = rows * (row + hidden * dtype_bytes((enum dtype)params[EMBED_OUT_DTYPE]) + sizeof(int32_t));
    *flops = 0;
}

static void copy_row_major(const void *table, uint64_t token, uint64_t pitch, enum dtype dtype, int64_t first,
                           int64_t last, float *out)
{
    uint64_t base = token * pitch;
    if (dtype == DTYPE_F32) {
        memcpy(out + first, (const float *)table + base + first, (size_t)(last - first) * sizeof(float));
    } else if (dtype == DTYPE_BF16) {
        const uint16_t *row = (const uint16_t *)table + base;
        for (int64_t k = first; k < last; k++) out[k] = bf16_to_float(row[k]);
    } else {
        const uint16_t *row = (const uint16_t *)table + base;
        for (int64_t k = first; k < last; k++) out[k] = f16_to_float(row[k]);
    }
}

static float position_element(const struct op_call *call, int64_t row, int64_t column)
{
    const int32_t *positions = call->operands[EMBED_POSITIONS];
    return op_element(call->operands[EMBED_POSITION_TABLE], positions[row] * call->params[EMBED_HIDDEN] + column,
                      (enum dtype)call->params[EMBED_POSITION_DTYPE]);
}

static int32_t token_of(const struct op_call *call, int64_t row)
{
    if (!call->params[EMBED_FOLLOWS]) return ((const int32_t *)call->operands[EMBED_TOKENS])[row];
    const int32_t following = ((const int32_t *)call->operands[EMBED_FOLLOWING])[row];
    if (following >= 0) return following;
    const int64_t draws = ((const int32_t *)call->operands[EMBED_COUNTS])[1], out_row = ~following;
    if (out_row >= draws || out_row >= call->params[EMBED_OUT_ROWS]) return PLAN_NO_TOKEN;
    return ((const int32_t *)call->operands[EMBED_DRAWN])[out_row];
}

/* The row of the table with the token; negative: another rank has it, or none. */
static int64_t table_row(const struct op_call *call, int32_t token)
{
    const struct comm_header *header = call->operands[EMBED_HEADER]; /* NULL: one rank */
    int64_t vocab = call->params[EMBED_VOCAB], row = header ? token - header->rank * vocab : token;
    return row < vocab ? row : -1;
}

/* Portable code only: each token is read once per step, at the speed of scattered cache lines. */
static void run(const struct op_call *call, struct team_member *member)
{
    enum { SEGMENT_COLUMNS = 512 };
    const int64_t *params = call->params;
    const void *table = call->operands[EMBED_TABLE];
    enum dtype dtype = (enum dtype)params[EMBED_TABLE_DTYPE];
    int64_t hidden = params[EMBED_HIDDEN];
    uint64_t pitch = (uint64_t)params[EMBED_PITCH];
    const float scale = op_float_param(params, EMBED_SCALE_BITS);
    struct panel_form form;
    const bool panels = weight_layout_form((enum tensor_layout)params[EMBED_LAYOUT], params[EMBED_TABLE_DTYPE], &form);
    int64_t segments = (hidden + SEGMENT_COLUMNS - 1) / SEGMENT_COLUMNS;
    /* Panels: a segment touches as many cache lines as it has pairs of columns, enough to share even one row. */
    struct share share = team_share(member, op_valid_rows(call) * segments, panels ? 1 : 8);
    for (int64_t unit = share.first; unit < share.last; unit++) {
        int64_t row = unit / segments, first = unit % segments * SEGMENT_COLUMNS;
        int64_t last = first + SEGMENT_COLUMNS < hidden ? first + SEGMENT_COLUMNS : hidden;
        int64_t from = table_row(call, token_of(call, row));
        float *out = (float *)call->operands[EMBED_OUT] + row * hidden;
        if (from < 0)
            memset(out + first, 0, (size_t)(last - first) * sizeof(float));
        else if (panels)
            panel_read(&form, table, (uint64_t)from, pitch, (uint64_t)first, (uint64_t)(last - first), out + first);
        else
            copy_row_major(table, (uint64_t)from, pitch, dtype, first, last, out);
        for (int64_t k = first; scale != 1 && k < last; k++) out[k] *= scale;
        for (int64_t k = first; params[EMBED_HAS_POSITIONS] && from >= 0 && k < last; k++)
            out[k] += position_element(call, row, k);
    }
}

static void reference(const struct op_call *call)
{
    const int64_t *params = call->params;
    float *out = call->operands[EMBED_OUT];
    enum dtype dtype = (enum dtype)params[EMBED_TABLE_DTYPE];
    uint64_t hidden = (uint64_t)params[EMBED_HIDDEN], pitch = (uint64_t)params[EMBED_PITCH];
    struct panel_form form;
    const bool panels = weight_layout_form((enum tensor_layout)params[EMBED_LAYOUT], params[EMBED_TABLE_DTYPE], &form);
    const float scale = op_float_param(params, EMBED_SCALE_BITS);
    int64_t rows = op_valid_rows(call);
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = table_row(call, token_of(call, r));
        uint64_t from = (uint64_t)row;
        for (uint64_t k = 0; k < hidden; k++) {
            float value = 0;
            if (row >= 0 && panels)
                panel_read(&form, call->operands[EMBED_TABLE], from, pitch, k, 1, &value);
            else if (row >= 0)
                value = op_element(call->operands[EMBED_TABLE], (int64_t)(from * pitch + k), dtype);
            value *= scale;
            if (params[EMBED_HAS_POSITIONS] && row >= 0) value += position_element(call, r, (int64_t)k);
            out[(uint64_t)r * hidden + k] = value;
        }
    }
}

/* One rank's table may be longer than the vocabulary; with several its length tells which tokens are whose. */
static const char *misfit(const int64_t *params, const struct plan_geometry *geometry)
{
    const bool several = plan_ranks(geometry) > 1;
    const uint64_t vocab = (uint64_t)params[EMBED_VOCAB];
    if (several != (params[EMBED_SHARDED] != 0)) return "parameter sharded does not fit the engine's number of ranks";
    if ((several || vocab < geometry->vocab_size) && vocab != plan_rank_vocab(geometry))
        return "parameter vocab is not a rank's share of the engine's vocabulary";
    if (params[EMBED_HAS_POSITIONS] && (uint64_t)params[EMBED_MOST_POSITIONS] < geometry->max_context)
        return "parameter most_positions is below the engine's longest context";
    return NULL;
}

static const char *illegal(const int64_t *params)
{
    const int64_t encoding = params[EMBED_TABLE_DTYPE];
    if (!weight_layout_has((enum tensor_layout)params[EMBED_LAYOUT], encoding))
        return op_no_kernel(encoding_find(encoding), "table_dtype");
    return params[EMBED_PITCH] < params[EMBED_HIDDEN] ? "parameter pitch is less than hidden" : NULL;
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[EMBED_LAYOUT] == LAYOUT_FRAGMENT16 ? "parameter layout is FRAGMENT16, which CPU code does not read"
                                                     : NULL;
}

static bool table_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                        uint64_t *bytes)
{
    (void)geometry, (void)target;
    return weight_layout_bytes((enum tensor_layout)params[EMBED_LAYOUT], params[EMBED_TABLE_DTYPE],
                               (uint64_t)params[EMBED_VOCAB], (uint64_t)params[EMBED_PITCH], bytes);
}

static const struct op_param param_schema[EMBED_PARAMS] = {
    OP_ROWS_PARAMS,
    [EMBED_HIDDEN] = {"hidden", 3, PARAM_INTEGER, PARAM_OF_WIDTH, EMBED_TABLE, .least = 1, .most = OP_MAX_WIDTH},
    [EMBED_PITCH] = {"pitch", 4, PARAM_INTEGER, PARAM_OF_PITCH, EMBED_TABLE, .least = 1, .most = OP_MAX_WIDTH},
    [EMBED_VOCAB] = {"vocab", 5, PARAM_INTEGER, PARAM_OF_HEIGHT, EMBED_TABLE, .least = 1, .most = OP_MAX_WIDTH},
    [EMBED_TABLE_DTYPE] = {"table_dtype", 6, PARAM_ENCODING, PARAM_OF_DTYPE, EMBED_TABLE},
    [EMBED_SHARDED] = {"sharded", 7, PARAM_INTEGER, PARAM_OF_PRESENT, EMBED_HEADER, .most = 1},
    [EMBED_OUT_DTYPE] = {"out_dtype", 8, PARAM_DTYPE, PARAM_OF_DTYPE, EMBED_OUT, .fallback = DTYPE_F32},
    [EMBED_LAYOUT] = {"layout", 9, PARAM_INTEGER, PARAM_OF_LAYOUT, EMBED_TABLE, .least = LAYOUT_ROW_MAJOR,
                      .most = LAYOUT_FRAGMENT16},
    [EMBED_SCALE_BITS] = OP_SCALE_PARAM(OP_LATER_PARAM_ID),
    [EMBED_HAS_POSITIONS] = {"has_positions", OP_LATER_PARAM_ID + 1, PARAM_INTEGER, PARAM_OF_PRESENT,
                             EMBED_POSITION_TABLE, .most = 1},
    [EMBED_POSITION_DTYPE] = {"position_dtype", OP_LATER_PARAM_ID + 2, PARAM_DTYPE, PARAM_OF_DTYPE,
                              EMBED_POSITION_TABLE, .fallback = DTYPE_F32},
    [EMBED_MOST_POSITIONS] = {"most_positions", OP_LATER_PARAM_ID + 3, PARAM_INTEGER, PARAM_OF_HEIGHT,
                              EMBED_POSITION_TABLE, .least = 1, .most = OP_MAX_WIDTH, .fallback = 1},
    [EMBED_FOLLOWS] = {"follows", OP_LATER_PARAM_ID + 4, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [EMBED_OUT_ROWS] = {"out_rows", OP_LATER_PARAM_ID + 5, PARAM_INTEGER, PARAM_OF_DRAWS, EMBED_DRAWN, .least = 1,
                        .most = OP_MAX_ROWS, .fallback = 1},
};
static const struct op_operand operand_schema[EMBED_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [EMBED_TOKENS] = OP_STEP_OPERAND("tokens", STEP_TOKENS, EMBED_ROWS),
    [EMBED_TABLE] = {"table", ROLE_WEIGHT, .dtype = EMBED_TABLE_DTYPE, .rows = EMBED_VOCAB, .columns = EMBED_HIDDEN,
                     .bytes = table_bytes},
    [EMBED_OUT] = {"out", ROLE_OUTPUT, .dtype = EMBED_OUT_DTYPE, .rows = EMBED_ROWS, .columns = EMBED_HIDDEN},
    [EMBED_HEADER] = {"header", ROLE_HEADER, .present = EMBED_SHARDED, .rows = OP_NONE, .columns = OP_NONE,
                      .element_bytes = sizeof(struct comm_header)},
    [EMBED_POSITIONS] = {"positions", ROLE_STEP, .present = EMBED_HAS_POSITIONS, .field = STEP_POSITIONS,
                         .fixed = DTYPE_I32, .rows = EMBED_ROWS, .columns = OP_NONE},
    [EMBED_POSITION_TABLE] = {"position_table", ROLE_WEIGHT, .present = EMBED_HAS_POSITIONS,
                              .dtype = EMBED_POSITION_DTYPE, .rows = EMBED_MOST_POSITIONS, .columns = EMBED_HIDDEN},
    [EMBED_FOLLOWING] = {"following", ROLE_STEP, .present = EMBED_FOLLOWS, .field = STEP_FOLLOWING, .fixed = DTYPE_I32,
                         .rows = EMBED_ROWS, .columns = OP_NONE},
    [EMBED_DRAWN] = {"drawn", ROLE_STEP, .present = EMBED_FOLLOWS, .field = STEP_NEXT_TOKENS, .fixed = DTYPE_I32,
                     .rows = EMBED_OUT_ROWS, .columns = OP_NONE},
};

const struct op_descriptor op_embed = {
    .id = OP_EMBED,
    .name = "embed",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .misfit = misfit,
    .cpu_illegal = cpu_illegal,
    .cost = embed_cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
