/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering for devices: which kernel contract each node becomes, with its parameters and operands in the order of the
 * contracts in kernels/<op>/. */
#include <stdlib.h>
#include <string.h>

#include "builder/lower/lower_cuda.h"
#include "builder/lower/operands.h"
#include "builder/lower/residual_rows.h"
#include "kernels/all_gather/all_gather_device.h"
#include "kernels/all_reduce/all_reduce_device.h"
#include "kernels/attention/attention_device.h"
#include "kernels/embed/embed_device.h"
#include "kernels/matmul/matmul_device.h"
#include "kernels/rms_norm/rms_norm_device.h"
#include "kernels/rope_append/rope_append_device.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_table/rope_table_device.h"
#include "kernels/sample/sample_device.h"
#include "kernels/select_rows/select_rows_device.h"
#include "kernels/swiglu/swiglu_device.h"

struct device_emitter {
    const struct graph *graph;
    const struct lowering *lowering;
    struct operand_writer out;
};

static int64_t float_param(float value) { return (int64_t)float_to_bits(value); }

static enum dtype value_dtype(const struct device_emitter *e, int value) { return e->graph->values[value].dtype; }

/* The dtype of an optional weight; where there is none, any legal one. */
static int64_t weight_dtype(const struct device_emitter *e, int weight)
{
    return weight >= 0 ? (int64_t)e->graph->weights[weight].encoding : (int64_t)DTYPE_BF16;
}

static void emit_embed(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct graph_weight *table = &e->graph->weights[node->weights[0]];
    params[EMBED_DEVICE_HIDDEN] = (int64_t)table->columns;
    params[EMBED_DEVICE_PITCH] = (int64_t)(table->form == WEIGHT_MATRIX ? table->depth : table->columns);
    params[EMBED_DEVICE_VOCAB] = (int64_t)table->rows;
    params[EMBED_DEVICE_DTYPE] = table->encoding;
    params[EMBED_DEVICE_SHARDED] = e->graph->ranks > 1;
    params[EMBED_DEVICE_OUT_DTYPE] = value_dtype(e, node->outputs[0]);
    put_step(&e->out, STEP_TOKENS, ACCESS_READ);
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    if (e->graph->ranks > 1) put_comm_header(&e->out, ACCESS_READ);
}

static void emit_rope_table(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    params[ROPE_TABLE_DEVICE_HEAD_DIM] = (int64_t)e->graph->config->head_dim;
    params[ROPE_TABLE_DEVICE_SCALING_BITS] = float_param(node->scale);
    put_step(&e->out, STEP_POSITIONS, ACCESS_READ);
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_rms_norm(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    params[RMS_NORM_DEVICE_HIDDEN] = (int64_t)e->graph->values[node->inputs[0]].width;
    params[RMS_NORM_DEVICE_DTYPE] = weight_dtype(e, node->weights[0]);
    params[RMS_NORM_DEVICE_EPS_BITS] = float_param(node->eps);
    params[RMS_NORM_DEVICE_OUT_DTYPE] = value_dtype(e, node->outputs[0]);
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_matmul(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct graph_weight *weight = &e->graph->weights[node->weights[0]];
    bool bias = node->weights[1] >= 0, residual = node->inputs[1] >= 0, norm = node->weights[2] >= 0;
    params[MATMUL_DEVICE_N] = (int64_t)weight->rows;
    params[MATMUL_DEVICE_K] = (int64_t)weight->depth;
    params[MATMUL_DEVICE_DTYPE] = weight->encoding;
    params[MATMUL_DEVICE_OUT_DTYPE] = value_dtype(e, node->outputs[0]);
    params[MATMUL_DEVICE_EPILOGUE] = node->swiglu ? MATMUL_EPILOGUE_SWIGLU : MATMUL_EPILOGUE_NONE;
    params[MATMUL_DEVICE_HAS_BIAS] = bias;
    params[MATMUL_DEVICE_BIAS_DTYPE] = weight_dtype(e, node->weights[1]);
    params[MATMUL_DEVICE_HAS_RESIDUAL] = residual;
    params[MATMUL_DEVICE_HAS_NORM] = norm;
    params[MATMUL_DEVICE_NORM_DTYPE] = weight_dtype(e, node->weights[2]);
    params[MATMUL_DEVICE_EPS_BITS] = float_param(norm ? node->eps : 0.0f);
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    if (bias) put_weight(&e->out, node->weights[1]);
    if (residual) put_value(&e->out, node->inputs[1], ACCESS_READ);
    if (norm) put_weight(&e->out, node->weights[2]);
}

static void emit_rope_append(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct model_config *config = e->graph->config;
    const struct plan_geometry *geometry = &e->lowering->geometry;
    bool norm = node->weights[0] >= 0;
    params[ROPE_APPEND_DEVICE_HEADS] = (int64_t)config->heads;
    params[ROPE_APPEND_DEVICE_KV_HEADS] = (int64_t)config->kv_heads;
    params[ROPE_APPEND_DEVICE_HEAD_DIM] = (int64_t)config->head_dim;
    params[ROPE_APPEND_DEVICE_PAGE_TOKENS] = (int64_t)geometry->page_tokens;
    params[ROPE_APPEND_DEVICE_PAGES_PER_SLOT] = (int64_t)geometry->pages_per_slot;
    params[ROPE_APPEND_DEVICE_PAGE_BYTES] = (int64_t)geometry->page_bytes;
    params[ROPE_APPEND_DEVICE_SLOT_COUNT] = (int64_t)geometry->slots;
    params[ROPE_APPEND_DEVICE_KV_DTYPE] = e->lowering->kv_dtype;
    params[ROPE_APPEND_DEVICE_X_DTYPE] = value_dtype(e, node->outputs[0]);
    params[ROPE_APPEND_DEVICE_HAS_NORM] = norm;
    params[ROPE_APPEND_DEVICE_NORM_DTYPE] = weight_dtype(e, node->weights[0]);
    params[ROPE_APPEND_DEVICE_EPS_BITS] = float_param(norm ? node->eps : 0.0f);
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_value(&e->out, node->inputs[3], ACCESS_READ);
    put_step(&e->out, STEP_SLOTS, ACCESS_READ);
    put_step(&e->out, STEP_POSITIONS, ACCESS_READ);
    put_state(&e->out, STATE_PAGE_TABLE, ACCESS_READ);
    put_kv(&e->out, node, ACCESS_WRITE);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    if (!norm) return;
    put_weight(&e->out, node->weights[0]);
    put_weight(&e->out, node->weights[1]);
}

static void emit_attention(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct model_config *config = e->graph->config;
    const struct plan_geometry *geometry = &e->lowering->geometry;
    params[ATTENTION_DEVICE_HEADS] = (int64_t)config->heads;
    params[ATTENTION_DEVICE_KV_HEADS] = (int64_t)config->kv_heads;
    params[ATTENTION_DEVICE_HEAD_DIM] = (int64_t)config->head_dim;
    params[ATTENTION_DEVICE_PAGE_TOKENS] = (int64_t)geometry->page_tokens;
    params[ATTENTION_DEVICE_PAGES_PER_SLOT] = (int64_t)geometry->pages_per_slot;
    params[ATTENTION_DEVICE_PAGE_BYTES] = (int64_t)geometry->page_bytes;
    params[ATTENTION_DEVICE_SLOT_COUNT] = (int64_t)geometry->slots;
    params[ATTENTION_DEVICE_KV_DTYPE] = e->lowering->kv_dtype;
    params[ATTENTION_DEVICE_X_DTYPE] = value_dtype(e, node->outputs[0]);
    params[ATTENTION_DEVICE_WINDOW] = (int64_t)node->window;
    params[ATTENTION_DEVICE_SCALE_BITS] = float_param(node->scale);
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_step(&e->out, STEP_SLOTS, ACCESS_READ);
    put_step(&e->out, STEP_POSITIONS, ACCESS_READ);
    put_state(&e->out, STATE_PAGE_TABLE, ACCESS_READ);
    put_kv(&e->out, node, ACCESS_READ);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void rope_attention_params(const struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    const struct model_config *config = e->graph->config;
    const struct plan_geometry *geometry = &e->lowering->geometry;
    bool norm = node->weights[0] >= 0;
    params[ROPE_ATTENTION_ROWS] = operand_rows(&e->out, node->outputs[0]);
    params[ROPE_ATTENTION_COUNT_INDEX] = operand_count_index(&e->out, node->outputs[0]);
    params[ROPE_ATTENTION_HEADS] = (int64_t)config->heads;
    params[ROPE_ATTENTION_KV_HEADS] = (int64_t)config->kv_heads;
    params[ROPE_ATTENTION_HEAD_DIM] = (int64_t)config->head_dim;
    params[ROPE_ATTENTION_PAGE_TOKENS] = (int64_t)geometry->page_tokens;
    params[ROPE_ATTENTION_PAGES_PER_SLOT] = (int64_t)geometry->pages_per_slot;
    params[ROPE_ATTENTION_PAGE_BYTES] = (int64_t)geometry->page_bytes;
    params[ROPE_ATTENTION_SLOT_COUNT] = (int64_t)geometry->slots;
    params[ROPE_ATTENTION_KV_DTYPE] = e->lowering->kv_dtype;
    params[ROPE_ATTENTION_X_DTYPE] = value_dtype(e, node->outputs[0]);
    params[ROPE_ATTENTION_WINDOW] = (int64_t)node->window;
    params[ROPE_ATTENTION_SCALE_BITS] = float_param(node->scale);
    params[ROPE_ATTENTION_HAS_NORM] = norm;
    params[ROPE_ATTENTION_NORM_DTYPE] = weight_dtype(e, node->weights[0]);
    params[ROPE_ATTENTION_EPS_BITS] = float_param(norm ? node->eps : 0.0f);
}

static void emit_rope_attention(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    rope_attention_params(e, node, params);
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_value(&e->out, node->inputs[3], ACCESS_READ);
    put_step(&e->out, STEP_SLOTS, ACCESS_READ);
    put_step(&e->out, STEP_POSITIONS, ACCESS_READ);
    put_state(&e->out, STATE_PAGE_TABLE, ACCESS_READ);
    put_kv(&e->out, node, ACCESS_READ_WRITE);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    put_operand(&e->out, SPACE_ARENA, ACCESS_READ_WRITE, 0, e->lowering->scratch_bytes);
    if (node->weights[0] < 0) return;
    put_weight(&e->out, node->weights[0]);
    put_weight(&e->out, node->weights[1]);
}

static void emit_all_reduce(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    bool residual = node->inputs[1] >= 0, norm = node->weights[0] >= 0;
    const struct residual_rows shared = residual_rows(e->graph, node, e->out.rows, e->out.out_rows);
    params[ALL_REDUCE_DEVICE_WIDTH] = (int64_t)e->graph->values[node->outputs[0]].width;
    params[ALL_REDUCE_DEVICE_RANKS] = (int64_t)e->graph->ranks;
    params[ALL_REDUCE_DEVICE_X_DTYPE] = value_dtype(e, node->inputs[0]);
    params[ALL_REDUCE_DEVICE_HAS_RESIDUAL] = shared.residual;
    params[ALL_REDUCE_DEVICE_HAS_NORM] = shared.norm;
    params[ALL_REDUCE_DEVICE_NORM_DTYPE] = weight_dtype(e, node->weights[0]);
    params[ALL_REDUCE_DEVICE_EPS_BITS] = float_param(norm ? node->eps : 0.0f);
    params[ALL_REDUCE_DEVICE_OUT_DTYPE] = norm ? (int64_t)value_dtype(e, node->outputs[1]) : (int64_t)DTYPE_BF16;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_comm_header(&e->out, ACCESS_READ_WRITE);
    put_exchange(&e->out, node);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    if (residual) put_value(&e->out, node->inputs[1], ACCESS_READ);
    if (!norm) return;
    put_weight(&e->out, node->weights[0]);
    put_value(&e->out, node->outputs[1], ACCESS_WRITE);
}

static void emit_all_gather(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    params[ALL_GATHER_DEVICE_WIDTH] = (int64_t)e->graph->values[node->inputs[0]].width;
    params[ALL_GATHER_DEVICE_OUT_WIDTH] = (int64_t)e->graph->values[node->outputs[0]].width;
    params[ALL_GATHER_DEVICE_RANKS] = (int64_t)e->graph->ranks;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_comm_header(&e->out, ACCESS_READ_WRITE);
    put_exchange(&e->out, node);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_select_rows(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    /* Rows are copied as 32-bit words, whatever is in them. */
    const struct graph_value *x = &e->graph->values[node->inputs[0]];
    params[SELECT_ROWS_DEVICE_WIDTH] = (int64_t)(x->width * dtype_bytes(x->dtype) / sizeof(float));
    params[SELECT_ROWS_DEVICE_IN_ROWS] = e->out.rows;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_step(&e->out, STEP_OUT_ROWS, ACCESS_READ);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
}

static void emit_sample(struct device_emitter *e, const struct graph_node *node, int64_t *params)
{
    bool feedback = e->graph->kind == PLAN_DECODE;
    params[SAMPLE_DEVICE_COUNT_INDEX] = COUNT_OUT;
    params[SAMPLE_DEVICE_ROWS] = e->out.out_rows;
    params[SAMPLE_DEVICE_VOCAB] = (int64_t)e->lowering->geometry.vocab_size;
    params[SAMPLE_DEVICE_SLOT_COUNT] = (int64_t)e->lowering->geometry.slots;
    params[SAMPLE_DEVICE_IN_ROWS] = e->out.rows;
    params[SAMPLE_DEVICE_FEEDBACK] = feedback;
    put_value(&e->out, node->inputs[0], ACCESS_READ);
    put_step(&e->out, STEP_OUT_ROWS, ACCESS_READ);
    put_step(&e->out, STEP_SLOTS, ACCESS_READ);
    put_state(&e->out, STATE_SAMPLERS, ACCESS_READ_WRITE);
    put_state(&e->out, STATE_SEEN, ACCESS_READ_WRITE);
    put_value(&e->out, node->outputs[0], ACCESS_WRITE);
    if (!feedback) return;
    put_step(&e->out, STEP_TOKENS, ACCESS_WRITE);
    put_step(&e->out, STEP_POSITIONS, ACCESS_READ_WRITE);
}

typedef void emit_op(struct device_emitter *e, const struct graph_node *node, int64_t *params);
static emit_op *const emitters[OP_COUNT] = {
    [OP_EMBED] = emit_embed,
    [OP_ROPE_TABLE] = emit_rope_table,
    [OP_RMS_NORM] = emit_rms_norm,
    [OP_MATMUL] = emit_matmul,
    [OP_ROPE_APPEND] = emit_rope_append,
    [OP_ATTENTION] = emit_attention,
    [OP_ROPE_ATTENTION] = emit_rope_attention,
    [OP_SELECT_ROWS] = emit_select_rows,
    [OP_SAMPLE] = emit_sample,
    [OP_ALL_REDUCE] = emit_all_reduce,
    [OP_ALL_GATHER] = emit_all_gather,
};

static bool emit_node(struct device_emitter *e, const struct graph_node *node, const struct device_facts *gpu,
                      struct device_launch *launch, struct status *status)
{
    int64_t params[PLAN_MAX_PARAMS] = {0};
    if (!emitters[node->op])
        return status_fail(status, STATUS_INTERNAL, "op '%s' has no device form", plan_op_name(node->op));
    /* Parameters 0 and 1 of every op, operand 0 likewise (kernels/op/op.h). */
    params[OP_PARAM_ROWS] = operand_rows(&e->out, node->outputs[0]);
    params[OP_PARAM_COUNT_INDEX] = operand_count_index(&e->out, node->outputs[0]);
    launch->op = node->op;
    launch->layer = node->layer;
    launch->record = launch->problem = PLAN_NO_TACTIC;
    e->out.operands = launch->operands;
    e->out.count = 0;
    put_step(&e->out, STEP_COUNTS, ACCESS_READ);
    emitters[node->op](e, node, params);
    launch->operand_count = e->out.count;
    if (device_tactics(node->op, params, gpu, &launch->tactic, 1) == 1) return true;
    return status_fail(status, STATUS_BAD_INPUT, "%s of %lld rows: no kernel for this model on '%s': %s",
                       plan_op_name(node->op), (long long)params[OP_PARAM_ROWS], gpu->name,
                       device_tactics_reason(node->op, params, gpu));
}

uint64_t device_scratch_bytes(const struct graph *graph, const struct lowering *lowering,
                              const struct device_facts *gpu, uint32_t rows)
{
    struct device_tactic tactics[DEVICE_MOST_TACTICS];
    struct device_emitter e = {.graph = graph, .lowering = lowering};
    uint64_t most = PLAN_ALIGNMENT;
    e.out.graph = graph;
    e.out.rows = e.out.out_rows = rows;
    for (int n = 0; n < graph->node_count; n++) {
        if (graph->nodes[n].op != OP_ROPE_ATTENTION) continue;
        int64_t params[PLAN_MAX_PARAMS] = {0};
        rope_attention_params(&e, &graph->nodes[n], params);
        int count = device_tactics(OP_ROPE_ATTENTION, params, gpu, tactics, DEVICE_MOST_TACTICS);
        for (int i = 0; i < count; i++) {
            uint64_t bytes = rope_attention_workspace_bytes(tactics[i].params);
            if (bytes > most) most = bytes;
        }
    }
    return (most + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

bool lower_device_plan(const struct graph *graph, const struct lowering *lowering, const struct device_facts *gpu,
                       uint32_t rows, struct device_plan *plan, struct status *status)
{
    bool ok = false;
    struct memory_plan memory = {0};
    struct device_emitter e = {.graph = graph, .lowering = lowering};
    memset(plan, 0, sizeof *plan);
    if (!operands_begin(&e.out, graph, lowering, &memory, rows, NULL, status) ||
        !plan_memory(graph, lowering, rows, e.out.out_rows, &memory, status))
        return false;
    plan->launches = calloc((size_t)graph->node_count + 1, sizeof *plan->launches);
    if (!plan->launches) {
        status_fail(status, STATUS_MACHINE, "out of memory while lowering");
        goto done;
    }
    plan->header.kind = graph->kind;
    plan->header.rows = rows;
    plan->header.out_rows = e.out.out_rows;
    plan->header.arena_bytes = memory.arena_bytes;
    plan->header.step_bytes = e.out.step_bytes;
    plan->vocab_size = lowering->geometry.vocab_size;
    for (int n = 0; n < graph->node_count; n++, plan->count++)
        if (!emit_node(&e, &graph->nodes[n], gpu, &plan->launches[n], status)) goto done;
    ok = true;
done:
    memory_plan_free(&memory);
    if (!ok) device_plan_free(plan);
    return ok;
}
