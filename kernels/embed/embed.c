/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embed/embed.h"

#include "formats/engine/engine_file.h"
#include "kernels/cpu/share.h"
#include "kernels/matmul/panel.h"
#include "kernels/op/op_check.h"

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    const struct op_descriptor *op = &op_embed;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, EMBED_HIDDEN, 1, OP_MAX_WIDTH, status) ||
        !op_check_range(op, params, EMBED_VOCAB, 1, OP_MAX_WIDTH, status) ||
        !op_check_float_dtype(op, params, EMBED_DTYPE, status) ||
        !op_check_range(op, params, EMBED_LAYOUT, LAYOUT_ROW_MAJOR, LAYOUT_PANEL16, status))
        return false;
    /* One rank's table may be longer than the vocabulary; with several its length tells which tokens are whose. */
    bool several = plan_ranks(geometry) > 1;
    if ((several || (uint64_t)params[EMBED_VOCAB] < geometry->vocab_size) &&
        !op_check_equal(op, params, EMBED_VOCAB, plan_rank_vocab(geometry), status))
        return false;
    uint64_t rows = (uint64_t)params[EMBED_ROWS], hidden = (uint64_t)params[EMBED_HIDDEN];
    uint64_t vocab = (uint64_t)params[EMBED_VOCAB];
    enum dtype dtype = (enum dtype)params[EMBED_DTYPE];
    const struct op_operand tokens = {.name = "tokens",
                                      .space_mask = OP_IN_STEP,
                                      .access = ACCESS_READ,
                                      .field = OP_FIELD(STEP_TOKENS)};
    const struct op_operand table = {.name = "table", .space_mask = OP_IN_WEIGHTS, .access = ACCESS_READ};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    const struct op_operand header = {.name = "header",
                                      .space_mask = OP_IN_COMM,
                                      .access = ACCESS_READ,
                                      .field = OP_FIELD_COMM_HEADER};
    bool panels = params[EMBED_LAYOUT] == LAYOUT_PANEL16;
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, tokens, sizeof(int32_t), rows, 1, 1, status) &&
           (panels
                ? op_add_operand(op, operands, operand_count, table, 1, panel_count(vocab), panel_bytes(hidden, dtype),
                                 1, status)
                : op_add_operand(op, operands, operand_count, table, dtype_bytes(dtype), vocab, hidden, 1, status)) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, hidden, 1, status) &&
           (!several ||
            op_add_operand(op, operands, operand_count, header, sizeof(struct comm_header), 1, 1, 1, status));
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t rows = (uint64_t)params[EMBED_ROWS], hidden = (uint64_t)params[EMBED_HIDDEN];
    /* From panels, a whole cache line comes in for every pair of columns. */
    uint64_t element = dtype_bytes((enum dtype)params[EMBED_DTYPE]);
    if (params[EMBED_LAYOUT] == LAYOUT_PANEL16) element *= PANEL_ROWS;
    *bytes = rows * (hidden * (element + sizeof(float)) + sizeof(int32_t));
    *flops = 0;
}

/* Columns [first, last) of a token's row from the panel layout; first is even. */
static void gather_panel(const void *table, uint64_t token, uint64_t depth, enum dtype dtype, int64_t first,
                         int64_t last, float *out)
{
    if (dtype == DTYPE_BF16) {
        const uint16_t *pairs = (const uint16_t *)table + panel_index(token, 0, depth, dtype);
        int64_t k = first;
        for (; k + 2 <= last; k += 2) {
            const uint16_t *pair = pairs + k * PANEL_ROWS;
            out[k] = bf16_to_float(pair[0]);
            out[k + 1] = bf16_to_float(pair[1]);
        }
        if (k < last) out[k] = bf16_to_float(pairs[k * PANEL_ROWS]);
        return;
    }
    uint64_t base = panel_index(token, 0, depth, dtype);
    for (int64_t k = first; k < last; k++) out[k] = op_element(table, (int64_t)base + k * PANEL_ROWS, dtype);
}

static void copy_row_major(const void *table, uint64_t token, uint64_t hidden, enum dtype dtype, int64_t first,
                           int64_t last, float *out)
{
    uint64_t base = token * hidden;
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

/* The row of the table that holds the token; negative where another rank has it, or none. */
static int64_t table_row(const struct op_call *call, int32_t token)
{
    const struct comm_header *header = call->operands[EMBED_HEADER]; /* NULL: one rank */
    int64_t vocab = call->params[EMBED_VOCAB], row = header ? token - header->rank * vocab : token;
    return row < vocab ? row : -1;
}

/* Portable code alone: each token is read once per step, at the speed of scattered cache lines. */
static void run(const struct op_call *call, struct team_member *member)
{
    enum { SEGMENT_COLUMNS = 512 };
    const int64_t *params = call->params;
    const int32_t *tokens = call->operands[EMBED_TOKENS];
    const void *table = call->operands[EMBED_TABLE];
    enum dtype dtype = (enum dtype)params[EMBED_DTYPE];
    int64_t hidden = params[EMBED_HIDDEN];
    bool panels = params[EMBED_LAYOUT] == LAYOUT_PANEL16;
    int64_t segments = (hidden + SEGMENT_COLUMNS - 1) / SEGMENT_COLUMNS;
    /* Panels: a segment touches as many cache lines as it has pairs of columns, enough to share even one row. */
    struct share share = team_share(member, op_valid_rows(call) * segments, panels ? 1 : 8);
    for (int64_t unit = share.first; unit < share.last; unit++) {
        int64_t row = unit / segments, first = unit % segments * SEGMENT_COLUMNS;
        int64_t last = first + SEGMENT_COLUMNS < hidden ? first + SEGMENT_COLUMNS : hidden;
        int64_t from = table_row(call, tokens[row]);
        float *out = (float *)call->operands[EMBED_OUT] + row * hidden;
        if (from < 0)
            memset(out + first, 0, (size_t)(last - first) * sizeof(float));
        else if (panels)
            gather_panel(table, (uint64_t)from, panel_depth((uint64_t)hidden, dtype), dtype, first, last, out);
        else
            copy_row_major(table, (uint64_t)from, (uint64_t)hidden, dtype, first, last, out);
    }
}

static void reference(const struct op_call *call)
{
    const int64_t *params = call->params;
    const int32_t *tokens = call->operands[EMBED_TOKENS];
    float *out = call->operands[EMBED_OUT];
    enum dtype dtype = (enum dtype)params[EMBED_DTYPE];
    uint64_t hidden = (uint64_t)params[EMBED_HIDDEN], depth = panel_depth(hidden, dtype);
    int64_t rows = op_valid_rows(call);
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = table_row(call, tokens[r]);
        uint64_t from = (uint64_t)row;
        for (uint64_t k = 0; k < hidden; k++) {
            uint64_t index =
                params[EMBED_LAYOUT] == LAYOUT_PANEL16 ? panel_index(from, k, depth, dtype) : from * hidden + k;
            out[(uint64_t)r * hidden + k] =
                row < 0 ? 0 : op_element(call->operands[EMBED_TABLE], (int64_t)index, dtype);
        }
    }
}

static const char *const param_names[EMBED_PARAMS] = {"rows", "count_index", "hidden", "vocab", "dtype", "layout"};

const struct op_descriptor op_embed = {
    .id = OP_EMBED,
    .name = "embed",
    .param_count = EMBED_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
