/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/operands.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "kernels/add/add.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/sample/sample.h"
#include "kernels/select_rows/select_rows.h"
#include "kernels/swiglu/swiglu.h"

struct emitter {
    const struct graph *graph;
    const struct lowering *lowering;
    struct plan_geometry geometry; /* of the lowering, its state placed */
    struct operand_writer out;
    /* what is being built; capacities are the worst case */
    struct plan_header header;
    struct plan_launch *launches;
    struct plan_param *params;
    uint32_t *dependencies;
};

uint64_t kv_layer_bytes(const struct model_config *config, uint64_t page_tokens, enum dtype kv_dtype)
{
    uint64_t bytes;
    return kv_block_bytes((enum encoding_id)kv_dtype, config->kv_heads, page_tokens, config->head_dim, &bytes) ? bytes
                                                                                                               : 0;
}

/* ---- ops: parameters and operands in the order of each contract ---- */

static int64_t float_param(float value) { return (int64_t)float_to_bits(value); }

static void emit_embed(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct graph_weight *table = &e->graph->weights[node->weights[0]];
    params[EMBED_HIDDEN] = (int64_t)table->columns;
    params[EMBED_VOCAB] = (int64_t)table->rows;
    params[EMBED_DTYPE] = table->encoding;
    params[EMBED_LAYOUT] = table->form == WEIGHT_MATRIX ? LAYOUT_PANEL16 : LAYOUT_ROW_MAJOR;
    put_step(&e->out, STEP_TOKENS, ACCESS_READ);
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    if (e->graph->ranks > 1) put_comm_header(&e->out, ACCESS_READ);
}

static void emit_rope_table(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    params[ROPE_TABLE_HEAD_DIM] = (int64_t)e->graph->config->head_dim;
    params[ROPE_TABLE_SCALING_BITS] = float_param(node->scale);
    put_step(&e->out, STEP_POSITIONS, ACCESS_READ);
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_rms_norm(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    params[RMS_NORM_HIDDEN] = (int64_t)e->graph->values[node->inputs[0]].width;
    params[RMS_NORM_DTYPE] = e->graph->weights[node->weights[0]].encoding;
    params[RMS_NORM_EPS_BITS] = float_param(node->eps);
    params[RMS_NORM_HAS_RESIDUAL] = node->inputs[1] >= 0;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    if (node->inputs[1] >= 0) {
        put_value(&e->out, node->inputs[1], ACCESS_READ);
        put_value(&e->out, node->outputs[1], ACCESS_WRITE);
    }
}

static void emit_matmul(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct graph_weight *weight = &e->graph->weights[node->weights[0]];
    bool bias = node->weights[1] >= 0, residual = node->inputs[1] >= 0;
    params[MATMUL_N] = (int64_t)weight->rows;
    params[MATMUL_K] = (int64_t)weight->depth;
    params[MATMUL_DTYPE] = weight->encoding;
    params[MATMUL_EPILOGUE] = node->swiglu ? MATMUL_EPILOGUE_SWIGLU : MATMUL_EPILOGUE_NONE;
    params[MATMUL_HAS_BIAS] = bias;
    params[MATMUL_BIAS_DTYPE] = bias ? (int64_t)e->graph->weights[node->weights[1]].encoding : DTYPE_NONE;
    params[MATMUL_HAS_RESIDUAL] = residual;
    matmul_default_tunables(params, e->lowering->isa, e->lowering->threads, params + MATMUL_FIRST_TUNABLE);
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    put_workspace(&e->out, node);
    if (bias) put_weight(&e->out, node->weights[1]);
    if (residual) put_value(&e->out, node->inputs[1], ACCESS_READ);
}

static void emit_rope_append(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct model_config *config = e->graph->config;
    const struct plan_geometry *geometry = &e->lowering->geometry;
    bool norm = node->weights[0] >= 0;
    params[ROPE_APPEND_HEADS] = (int64_t)config->heads;
    params[ROPE_APPEND_KV_HEADS] = (int64_t)config->kv_heads;
    params[ROPE_APPEND_HEAD_DIM] = (int64_t)config->head_dim;
    params[ROPE_APPEND_PAGE_TOKENS] = (int64_t)geometry->page_tokens;
    params[ROPE_APPEND_PAGES_PER_SLOT] = (int64_t)geometry->pages_per_slot;
    params[ROPE_APPEND_PAGE_BYTES] = (int64_t)geometry->page_bytes;
    params[ROPE_APPEND_SLOT_COUNT] = (int64_t)geometry->slots;
    params[ROPE_APPEND_KV_DTYPE] = e->lowering->kv_dtype;
    params[ROPE_APPEND_HAS_NORM] = norm;
    params[ROPE_APPEND_NORM_DTYPE] = norm ? (int64_t)e->graph->weights[node->weights[0]].encoding : DTYPE_NONE;
    params[ROPE_APPEND_EPS_BITS] = float_param(norm ? node->eps : 0.0f);
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_value(&e->out, node->inputs[3], ACCESS_READ);
    put_step(&e->out, STEP_SLOTS, ACCESS_READ);
    put_step(&e->out, STEP_POSITIONS, ACCESS_READ);
    put_state(&e->out, STATE_PAGE_TABLE, ACCESS_READ);
    put_kv(&e->out, node, ACCESS_WRITE);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    if (norm) {
        put_weight(&e->out, node->weights[0]);
        put_weight(&e->out, node->weights[1]);
    }
}

static void emit_attention(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct model_config *config = e->graph->config;
    const struct plan_geometry *geometry = &e->lowering->geometry;
    params[ATTENTION_HEADS] = (int64_t)config->heads;
    params[ATTENTION_KV_HEADS] = (int64_t)config->kv_heads;
    params[ATTENTION_HEAD_DIM] = (int64_t)config->head_dim;
    params[ATTENTION_PAGE_TOKENS] = (int64_t)geometry->page_tokens;
    params[ATTENTION_PAGES_PER_SLOT] = (int64_t)geometry->pages_per_slot;
    params[ATTENTION_PAGE_BYTES] = (int64_t)geometry->page_bytes;
    params[ATTENTION_SLOT_COUNT] = (int64_t)geometry->slots;
    params[ATTENTION_KV_DTYPE] = e->lowering->kv_dtype;
    params[ATTENTION_WINDOW] = (int64_t)node->window;
    params[ATTENTION_SCALE_BITS] = float_param(node->scale);
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_step(&e->out, STEP_SLOTS, ACCESS_READ);
    put_step(&e->out, STEP_POSITIONS, ACCESS_READ);
    put_state(&e->out, STATE_PAGE_TABLE, ACCESS_READ);
    put_kv(&e->out, node, ACCESS_READ);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    put_workspace(&e->out, node);
}

/* SWIGLU and ADD have the same form. */
static void emit_binary(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    _Static_assert((int)SWIGLU_WIDTH == (int)ADD_WIDTH, "one form");
    params[ADD_WIDTH] = (int64_t)e->graph->values[node->outputs[0]].width;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_value(&e->out, node->inputs[1], ACCESS_READ);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_all_reduce(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    params[ALL_REDUCE_WIDTH] = (int64_t)e->graph->values[node->outputs[0]].width;
    params[ALL_REDUCE_RANKS] = (int64_t)e->graph->ranks;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_comm_header(&e->out, ACCESS_READ_WRITE);
    put_exchange(&e->out, node);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_all_gather(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    params[ALL_GATHER_WIDTH] = (int64_t)e->graph->values[node->inputs[0]].width;
    params[ALL_GATHER_OUT_WIDTH] = (int64_t)e->graph->values[node->outputs[0]].width;
    params[ALL_GATHER_RANKS] = (int64_t)e->graph->ranks;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_comm_header(&e->out, ACCESS_READ_WRITE);
    put_exchange(&e->out, node);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_select_rows(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    params[SELECT_ROWS_WIDTH] = (int64_t)e->graph->values[node->inputs[0]].width;
    params[SELECT_ROWS_IN_ROWS] = e->out.rows;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_step(&e->out, STEP_OUT_ROWS, ACCESS_READ);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_sample(struct emitter *e, const struct graph_node *node, int64_t *params)
{
    params[SAMPLE_ROWS] = e->out.out_rows;
    params[SAMPLE_COUNT_INDEX] = COUNT_OUT;
    params[SAMPLE_VOCAB] = (int64_t)e->lowering->geometry.vocab_size;
    params[SAMPLE_SLOT_COUNT] = (int64_t)e->lowering->geometry.slots;
    params[SAMPLE_IN_ROWS] = e->out.rows;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_step(&e->out, STEP_OUT_ROWS, ACCESS_READ);
    put_step(&e->out, STEP_SLOTS, ACCESS_READ);
    put_state(&e->out, STATE_SAMPLERS, ACCESS_READ_WRITE);
    put_state(&e->out, STATE_SEEN, ACCESS_READ_WRITE);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    put_workspace(&e->out, node);
}

typedef void emit_op(struct emitter *e, const struct graph_node *node, int64_t *params);
static emit_op *const emitters[OP_COUNT] = {
    [OP_EMBED] = emit_embed,
    [OP_ROPE_TABLE] = emit_rope_table,
    [OP_RMS_NORM] = emit_rms_norm,
    [OP_MATMUL] = emit_matmul,
    [OP_ROPE_APPEND] = emit_rope_append,
    [OP_ATTENTION] = emit_attention,
    [OP_SWIGLU] = emit_binary,
    [OP_ADD] = emit_binary,
    [OP_SELECT_ROWS] = emit_select_rows,
    [OP_SAMPLE] = emit_sample,
    [OP_ALL_REDUCE] = emit_all_reduce,
    [OP_ALL_GATHER] = emit_all_gather,
};

/* ---- dependencies ---- */

static bool conflict(const struct plan_operand *a, const struct plan_operand *b)
{
    if (a->space != b->space || a->space == SPACE_WEIGHTS) return false;
    if (!((a->access | b->access) & ACCESS_WRITE)) return false;
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static bool launches_conflict(const struct emitter *e, const struct plan_launch *a, const struct plan_launch *b)
{
    for (uint32_t i = 0; i < a->operand_count; i++)
        for (uint32_t j = 0; j < b->operand_count; j++)
            if (conflict(&e->out.operands[a->first_operand + i], &e->out.operands[b->first_operand + j])) return true;
    return false;
}

/* Direct predecessors only: from the latest launch backwards, one that an already found predecessor waits for
 * (bit set in `reach`) adds nothing. */
static bool find_dependencies(struct emitter *e, uint64_t *reach, size_t words, struct status *status)
{
    for (uint32_t n = 0; n < e->header.launch_count; n++) {
        struct plan_launch *launch = &e->launches[n];
        uint64_t *mine = reach + n * words;
        launch->first_dependency = e->header.dependency_count;
        for (uint32_t p = n; p-- > 0;) {
            if (mine[p / 64] >> (p % 64) & 1) continue;
            if (!launches_conflict(e, &e->launches[p], launch)) continue;
            if (launch->dependency_count == PLAN_MAX_DEPENDENCIES)
                return status_fail(status, STATUS_INTERNAL, "launch %u has more than %d direct dependencies", n,
                                   PLAN_MAX_DEPENDENCIES);
            e->dependencies[e->header.dependency_count++] = p;
            launch->dependency_count++;
            for (size_t w = 0; w < words; w++) mine[w] |= reach[p * words + w];
            mine[p / 64] |= UINT64_C(1) << (p % 64);
        }
        /* Found from the latest backwards; the encoding wants them rising. */
        uint32_t *first = e->dependencies + launch->first_dependency, *last = first + launch->dependency_count;
        while (last - first > 1) {
            uint32_t swap = *first;
            *first++ = *--last;
            *last = swap;
        }
    }
    return true;
}

/* Bytes and operations at the context that estimates are made for. Rows of a prefill share one sequence's KV
 * cache, which the op, knowing only rows, counts once for each. */
static void set_cost(const struct emitter *e, const struct op_descriptor *op, const int64_t *params,
                     struct plan_launch *launch)
{
    struct plan_geometry geometry = e->lowering->geometry;
    uint64_t unused;
    if (geometry.max_context > 2 * PLAN_COST_CONTEXT) geometry.max_context = 2 * PLAN_COST_CONTEXT;
    op->cost(params, &geometry, &launch->bytes, &launch->flops);
    if (op->id != OP_ATTENTION || e->graph->kind != PLAN_PREFILL) return;
    int64_t one_row[PLAN_MAX_PARAMS];
    memcpy(one_row, params, (size_t)op->param_count * sizeof *params);
    one_row[OP_PARAM_ROWS] = 1;
    op->cost(one_row, &geometry, &launch->bytes, &unused);
    launch->bytes += 2 * (uint64_t)(params[OP_PARAM_ROWS] - 1) * (uint64_t)params[ATTENTION_HEADS] *
                     (uint64_t)params[ATTENTION_HEAD_DIM] * sizeof(float);
}

/* ---- plan ---- */

static struct plan plan_of(const struct emitter *e)
{
    struct plan plan = {
        .header = e->header,
        .launches = e->launches,
        .operands = e->out.operands,
        .params = e->params,
        .dependencies = e->dependencies,
    };
    memcpy(plan.step, e->out.step, sizeof plan.step);
    return plan;
}

static bool emit_node(struct emitter *e, const struct graph_node *node, struct status *status)
{
    const struct op_descriptor *op = op_find(node->op);
    struct plan_launch *launch = &e->launches[e->header.launch_count++];
    memset(launch, 0, sizeof *launch);
    launch->op = (uint16_t)node->op;
    launch->first_operand = e->out.count;
    launch->first_param = e->header.param_count;
    launch->param_count = (uint16_t)op->param_count;
    launch->tactic = PLAN_NO_TACTIC;
    launch->layer = node->layer;
    int64_t params[PLAN_MAX_PARAMS] = {0};
    e->header.param_count += (uint32_t)op->param_count;
    params[OP_PARAM_ROWS] = operand_rows(&e->out, node->outputs[0]);
    params[OP_PARAM_COUNT_INDEX] = operand_count_index(&e->out, node->outputs[0]);
    put_step(&e->out, STEP_COUNTS, ACCESS_READ);
    emitters[node->op](e, node, params);
    launch->operand_count = (uint16_t)(e->out.count - launch->first_operand);
    e->header.operand_count = e->out.count;
    set_cost(e, op, params, launch);

    op_list_params(params, op->param_count, node->op == OP_MATMUL ? MATMUL_FIRST_TUNABLE : op->param_count,
                   e->params + launch->first_param);
    const struct plan view = plan_of(e);
    if (op_verify(&view, e->header.launch_count - 1, &e->geometry, "lowering", status)) return true;
    /* Sizes that no op can take come from the configuration or the flags, so they are the user's to mend. */
    status->code = STATUS_BAD_INPUT;
    return false;
}

static bool lowerable(const struct graph *graph, struct status *status)
{
    if (graph->node_count > PLAN_MAX_LAUNCHES)
        return status_fail(status, STATUS_BAD_INPUT, "the model needs %d launches a step; the limit is %d",
                           graph->node_count, PLAN_MAX_LAUNCHES);
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].op == OP_ROPE_APPEND && graph->nodes[n].inputs[1] >= 0)
            return status_fail(status, STATUS_INTERNAL, "lowering needs the fuse_qkv pass");
    return true;
}

bool lower_plan(const struct graph *graph, const struct lowering *lowering, uint32_t rows, struct plan *plan,
                struct status *status)
{
    bool ok = false;
    size_t nodes = (size_t)graph->node_count, words = nodes / 64 + 1;
    struct memory_plan memory = {0};
    uint64_t *reach = NULL;
    struct emitter e = {.graph = graph, .lowering = lowering};
    memset(plan, 0, sizeof *plan);
    if (!lowerable(graph, status) || !operands_begin(&e.out, graph, lowering, &memory, rows, NULL, status))
        return false;
    e.geometry = lowering->geometry;
    memcpy(e.geometry.state, e.out.state, sizeof e.geometry.state);
    if (!plan_memory(graph, lowering, rows, e.out.out_rows, &memory, status)) return false;

    e.launches = calloc(nodes + 1, sizeof *e.launches);
    e.out.operands = calloc(nodes * PLAN_MAX_OPERANDS + 1, sizeof *e.out.operands);
    e.params = calloc(nodes * PLAN_MAX_PARAMS + 1, sizeof *e.params);
    e.dependencies = calloc(nodes * PLAN_MAX_DEPENDENCIES + 1, sizeof *e.dependencies);
    reach = calloc(nodes * words + 1, sizeof *reach);
    if (!e.launches || !e.out.operands || !e.params || !e.dependencies || !reach) {
        status_fail(status, STATUS_MACHINE, "out of memory while lowering");
        goto done;
    }
    e.header.kind = graph->kind;
    e.header.rows = rows;
    e.header.out_rows = e.out.out_rows;
    e.header.arena_bytes = memory.arena_bytes;
    e.header.step_bytes = e.out.step_bytes;
    e.header.field_count = STEP_FIELD_COUNT;
    for (size_t n = 0; n < nodes; n++)
        if (!emit_node(&e, &graph->nodes[n], status)) goto done;
    if (!find_dependencies(&e, reach, words, status)) goto done;
    *plan = plan_of(&e);
    ok = true;
done:
    free(reach);
    memory_plan_free(&memory);
    if (!ok) {
        struct plan partial = plan_of(&e);
        plan_free(&partial);
    }
    return ok;
}
