/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/test_lower_cuda.h"

#include "formats/base/test_program.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/attention/attention_device.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul_device.h"
#include "kernels/mean_squares/mean_squares.h"
#include "kernels/multiply/multiply.h"
#include "kernels/op/op.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_query/rope_query.h"
#include "kernels/select_rows/select_rows.h"

enum { GRANULE = PLAN_ALIGNMENT };

const uint32_t test_decode_rows[TEST_DECODES] = {1, 2, 3, 7, 8, 9, 16, 33, 64};
const uint32_t test_prefill_rows[TEST_PREFILLS] = {1, 2, 8, 9, 32, 127, 512, 2048};
const uint32_t test_mixed_rows[TEST_MIXES] = {9, 127, 512};
const uint32_t test_verify_rows[TEST_VERIFIES] = {2, 8, 32};

/* ---- operands ---- */

struct layout {
    struct plan_field step[STEP_FIELD_COUNT], state[STATE_FIELD_COUNT];
};

void test_check_place(const struct plan_operand *operand, enum plan_space space, struct plan_field field)
{
    assert_int_equal(operand->space, space);
    assert_int_equal(operand->offset, field.offset);
    assert_int_equal(operand->bytes, field.bytes);
    assert_int_equal(operand->reserved0, 0);
    assert_int_equal(operand->tensor_map, 0); /* set when the plan is finished */
}

static uint64_t rows_of(const struct graph_value *value, const struct plan_header *header)
{
    return value->rows == ROWS_TOKENS ? header->rows : header->out_rows;
}

/* Where a value is; only the offset of one in the arena is the memory plan's choice. */
static void check_value(const struct graph_value *value, const struct plan_header *header, const struct layout *layout,
                        const struct plan_operand *operand)
{
    const uint64_t bytes = rows_of(value, header) * value->width * dtype_bytes(value->dtype);
    if (value->place != VALUE_ARENA)
        test_check_place(operand, SPACE_STEP, layout->step[value->place == VALUE_LOGITS ? STEP_LOGITS : STEP_HIDDEN]);
    else
        test_check_place(operand, SPACE_ARENA, (struct plan_field){operand->offset, bytes});
}

/* Calls `visit` for every input and output in the arena. */
typedef void visit_value(void *context, int value, const struct plan_operand *operand, bool written);

static uint64_t aligned(uint64_t bytes) { return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT; }

/* Where the op's state begins in a slot's first copy: after that of the layers before, and of its layer's convolution. */
static uint64_t recurrent_place(const struct test_device_model *model, const struct graph_node *node)
{
    const struct model_config *config = &model->rank_config;
    const struct model_recurrent *sizes = &config->recurrent;
    const uint64_t conv = aligned((sizes->kernel - 1) * sizes->channels * sizeof(float));
    const uint64_t rule = aligned(sizes->value_heads * sizes->key_dim * sizes->value_dim * sizeof(float));
    uint64_t place = 0;
    for (uint32_t layer = 0; layer < node->layer; layer++) {
        if (mixer_is_recurrent(config->layer[layer].mixer)) place += conv;
        if (config->layer[layer].mixer == MIXER_DELTA_RULE || mixer_is_state_space(config->layer[layer].mixer))
            place += rule;
    }
    assert_true(place + conv + rule <= model->lowering.geometry.recurrent_bytes / 2);
    return node->op == OP_DELTA_RULE || node->op == OP_STATE_SPACE ? place + conv : place;
}

static void check_state(const struct test_device_model *model, const struct graph_node *node,
                        const struct op_operand *schema, const struct layout *layout,
                        const struct plan_operand *operand)
{
    struct plan_field field = layout->state[schema->field];
    if (schema->field == STATE_RECURRENT) {
        const uint64_t place = recurrent_place(model, node);
        field.offset += place, field.bytes -= place;
    }
    test_check_place(operand, SPACE_STATE, field);
}

/* The block of the KV pages that the layer reads, which may be that of a layer before it, where all are in one group. */
static struct plan_field kv_place(const struct test_device_model *model, const struct graph *graph, uint32_t layer)
{
    const struct model_layer *layers = model->config.layer;
    const uint64_t planes = graph->config->latent.kv_rank ? 1 : 2;
    const uint32_t owner = layers[layer].shares ? layers[layer].shares - 1 : layer;
    struct plan_field place = {0, 0};
    for (uint32_t i = 0; i <= owner; i++) {
        place.offset += place.bytes;
        place.bytes = 0;
        if (mixer_attends(layers[i].mixer) && !layers[i].shares)
            place.bytes = planes * model_kv_heads(graph->config, i) * model->lowering.geometry.page_tokens *
                          model_head_dim(&model->config, i) * 2;
    }
    return place;
}

static void check_operand(const struct test_device_model *model, const struct graph *graph,
                          const struct device_plan *plan, uint32_t index, int place, const struct plan_operand *operand,
                          const struct layout *layout)
{
    const struct graph_node *node = &graph->nodes[index];
    const struct op_operand *schema = &op_find(node->op)->operands[place];
    const struct graph_weight *weight = NULL;
    assert_int_equal(operand->access, op_operand_access(schema));
    switch ((enum op_role)schema->role) {
    case ROLE_STEP: test_check_place(operand, SPACE_STEP, layout->step[schema->field]); break;
    case ROLE_STATE: check_state(model, node, schema, layout, operand); break;
    case ROLE_KV: test_check_place(operand, SPACE_KV, kv_place(model, graph, node->layer)); break;
    case ROLE_HEADER: test_check_place(operand, SPACE_COMM, (struct plan_field){0, sizeof(struct comm_header)}); break;
    case ROLE_EXCHANGE: assert_int_equal(operand->space, SPACE_COMM); break; /* where: check_exchange */
    case ROLE_WORKSPACE: fail(); break;                                      /* GPUs have none */
    case ROLE_COUNTERS:
        test_check_place(operand, SPACE_ARENA, (struct plan_field){0, model->lowering.scratch_bytes});
        break;
    case ROLE_WEIGHT:
        weight = &graph->weights[node->operands[place]];
        test_check_place(operand, SPACE_WEIGHTS, (struct plan_field){weight->offset, weight->bytes});
        assert_int_equal(operand->offset % 256, 0);
        break;
    case ROLE_INPUT:
    case ROLE_OUTPUT: check_value(&graph->values[node->operands[place]], &plan->header, layout, operand); break;
    }
}

static void check_operands(const struct test_device_model *model, const struct graph *graph,
                           const struct device_plan *plan, uint32_t index, visit_value *visit, void *context)
{
    const struct graph_node *node = &graph->nodes[index];
    const struct device_launch *launch = &plan->launches[index];
    const struct op_descriptor *op = op_find(node->op);
    struct layout layout;
    uint64_t total;
    uint32_t count = 0;
    assert_true(step_layout(plan->header.rows, plan->header.out_rows, model->lowering.geometry.vocab_size,
                            model->lowering.geometry.hidden_size, model->lowering.geometry.drafts, layout.step,
                            &total));
    assert_true(state_layout(&model->lowering.geometry, layout.state, &total));
    for (int i = 0; i < op->operand_count; i++) {
        if (!op_has_operand(op, TARGET_CUDA, launch->tactic.params, i)) continue;
        const struct plan_operand *operand = &launch->operands[count++];
        const bool is_value = graph_reads(node, i) || graph_makes(node, i);
        check_operand(model, graph, plan, index, i, operand, &layout);
        if (is_value && operand->space == SPACE_ARENA) visit(context, node->operands[i], operand, graph_makes(node, i));
    }
    assert_int_equal(launch->operand_count, count);
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) /* nothing of the node is left out */
        if (node->operands[i] >= 0) assert_true(op_has_operand(op, TARGET_CUDA, launch->tactic.params, i));
}

void test_check_schema(const struct test_device_model *model, const struct device_plan *plan, uint32_t index)
{
    const struct device_launch *launch = &plan->launches[index];
    struct plan_launch as_planned = {.op = (uint16_t)launch->op,
                                     .operand_count = (uint16_t)launch->operand_count,
                                     .tactic = PLAN_NO_TACTIC};
    struct plan_param params[PLAN_MAX_PARAMS];
    struct plan view = {.header = plan->header,
                        .launches = &as_planned,
                        .operands = launch->operands,
                        .params = params};
    struct plan_geometry geometry = model->lowering.geometry;
    uint64_t state_bytes;
    struct status status = {0};
    as_planned.param_count = (uint16_t)op_list_params(op_find(launch->op), launch->tactic.params, 0, true, params);
    assert_true(plan_place_step(&view, geometry.vocab_size, geometry.hidden_size, geometry.drafts) &&
                geometry_place_state(&geometry, &state_bytes));
    view.header.launch_count = 1;
    view.header.operand_count = launch->operand_count;
    view.header.param_count = as_planned.param_count;
    test_expect_success(op_verify(&view, 0, TARGET_CUDA, &geometry, "plan", &status), &status);
}

static uint64_t op_bytes_of_w(const int64_t *params)
{
    return matmul_device_operand_bytes(params, matmul_device_operand(params, MATMUL_W));
}

static const struct graph_node *producer_of(const struct graph *graph, int value)
{
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
            if (graph_makes(&graph->nodes[n], i) && graph->nodes[n].operands[i] == value) return &graph->nodes[n];
    fail_msg("nothing makes '%s'", graph->values[value].name);
    return NULL;
}

/* Columns of a sum over ranks: those of the residual stream, unless it is of mean squares or of a layer's table of tokens. */
static uint64_t width_of_sum(const struct test_device_model *model, const struct graph *graph,
                             const struct graph_node *reduce)
{
    const struct graph_node *of = producer_of(graph, reduce->operands[ALL_REDUCE_X]);
    while (of->op == OP_SELECT_ROWS) of = producer_of(graph, of->operands[SELECT_ROWS_X]);
    if (of->op == OP_MEAN_SQUARES) return MEAN_SQUARES_WIDTH;
    const bool of_layer = of->op == OP_EMBED && of->layer != GRAPH_NO_LAYER && !of->params[EMBED_FOLLOWS];
    return of_layer ? model->config.per_layer_size : model->config.hidden_size;
}

static void check_params(const struct test_device_model *model, const struct graph *graph,
                         const struct device_plan *plan, uint32_t index)
{
    const struct graph_node *node = &graph->nodes[index];
    const int64_t *params = plan->launches[index].tactic.params;
    const bool out_rows = graph_node_rows(graph, node) == ROWS_OUT;
    assert_int_equal(params[OP_PARAM_ROWS], out_rows ? plan->header.out_rows : plan->header.rows);
    assert_int_equal(params[OP_PARAM_COUNT_INDEX], out_rows);
    if (node->op == OP_MATMUL) {
        const struct graph_weight *weight = &graph->weights[node->operands[MATMUL_W]];
        const bool norm = node->operands[MATMUL_NORM] >= 0;
        assert_int_equal(params[MATMUL_N], weight->rows);
        assert_int_equal(params[MATMUL_K], weight->depth);
        assert_int_equal(params[MATMUL_DTYPE], weight->encoding);
        assert_int_equal(weight->bytes, op_bytes_of_w(params));
        assert_int_equal(params[MATMUL_OUT_DTYPE], graph->values[node->operands[MATMUL_OUT]].dtype);
        assert_int_equal(params[MATMUL_INPUT_DTYPE], norm ? DTYPE_F32 : graph->compute_dtype);
        assert_int_equal(params[MATMUL_EPILOGUE], node->params[MATMUL_EPILOGUE]);
        assert_int_equal(params[MATMUL_HAS_NORM], norm);
        assert_int_equal(params[MATMUL_EPS_BITS], norm ? float_to_bits((float)model->config.rms_norm_eps) : 0);
    } else if (node->op == OP_EMBED) {
        assert_int_equal(params[EMBED_SHARDED], graph->ranks > 1);
        assert_int_equal(params[EMBED_OUT_DTYPE], graph->values[node->operands[EMBED_OUT]].dtype);
        const struct graph_weight *table = &graph->weights[node->operands[EMBED_TABLE]];
        const uint64_t vocab = table->rows;
        assert_int_equal(params[EMBED_VOCAB], vocab);
        assert_int_equal(params[EMBED_TABLE_DTYPE], table->encoding);
        assert_int_equal(params[EMBED_LAYOUT],
                         encoding_is_plain(table->encoding) ? LAYOUT_ROW_MAJOR : LAYOUT_FRAGMENT16);
        if (graph->ranks > 1) assert_int_equal(vocab, (model->config.vocab_size + graph->ranks - 1) / graph->ranks);
    } else if (node->op == OP_ALL_REDUCE) {
        bool norm = node->operands[ALL_REDUCE_NORM] >= 0;
        assert_int_equal(params[ALL_REDUCE_RANKS], graph->ranks);
        assert_int_equal(params[ALL_REDUCE_WIDTH], width_of_sum(model, graph, node));
        assert_int_equal(params[ALL_REDUCE_X_DTYPE], graph->values[node->operands[ALL_REDUCE_X]].dtype);
        assert_int_equal(params[ALL_REDUCE_HAS_RESIDUAL] != 0,
                         node->operands[ALL_REDUCE_RESIDUAL] >= 0); /* which rows: below */
        assert_int_equal(params[ALL_REDUCE_HAS_NORM] != 0, norm);
        assert_int_equal(params[ALL_REDUCE_EPS_BITS], norm ? float_to_bits((float)model->config.rms_norm_eps) : 0);
        assert_int_equal(graph->values[node->operands[ALL_REDUCE_OUT]].dtype, DTYPE_F32);
        if (norm)
            assert_int_equal(params[ALL_REDUCE_OUT_DTYPE], graph->values[node->operands[ALL_REDUCE_NORMED]].dtype);
    } else if (node->op == OP_ALL_GATHER) {
        assert_int_equal(params[ALL_GATHER_RANKS], graph->ranks);
        assert_int_equal(params[ALL_GATHER_OUT_WIDTH], model->config.vocab_size);
        assert_int_equal(graph->values[node->operands[ALL_GATHER_X]].dtype, DTYPE_F32);
    } else if (node->op == OP_ATTENTION) { /* rows of other steps belong to different sequences */
        assert_int_equal(params[ATTENTION_SCATTERED], graph->kind != PLAN_PREFILL);
        const struct device_kernel *kernel = plan->launches[index].tactic.kernel;
        if (graph->config->latent.kv_rank)
            assert_ptr_equal(kernel, &device_attention_latent);
        else if (graph->kind != PLAN_PREFILL)
            assert_true(kernel == &device_attention_prefill || kernel == &device_attention_generic);
        assert_int_equal(params[ATTENTION_WINDOW], node->params[ATTENTION_WINDOW]);
        assert_int_equal(params[ATTENTION_SCALE_BITS], node->params[ATTENTION_SCALE_BITS]);
        assert_int_equal(params[ATTENTION_PAGE_BYTES], model->lowering.geometry.page_bytes);
    } else if (node->op == OP_ROPE_ATTENTION) {
        assert_int_equal(params[ROPE_ATTENTION_WINDOW], node->params[ROPE_ATTENTION_WINDOW]);
        assert_int_equal(params[ROPE_ATTENTION_SCALE_BITS], node->params[ROPE_ATTENTION_SCALE_BITS]);
        assert_int_equal(params[ROPE_ATTENTION_PAGE_BYTES], model->lowering.geometry.page_bytes);
        assert_int_equal(params[ROPE_ATTENTION_HEAD_DIM], model_head_dim(&model->config, node->layer));
        assert_int_equal(params[ROPE_ATTENTION_KV_HEADS], model_kv_heads(graph->config, node->layer));
        assert_int_equal(params[ROPE_ATTENTION_APPENDED], model->config.layer[node->layer].shares != 0);
        assert_int_equal(params[ROPE_ATTENTION_NORM_V],
                         model->config.value_norms && !model->config.layer[node->layer].shares);
        assert_int_equal(params[ROPE_ATTENTION_CENTRED], model->config.head_norms);
        const bool has_means = node->operands[ROPE_ATTENTION_MEANS] >= 0;
        const bool after = strncmp(model->config.model_type, "hunyuan_v1_", strlen("hunyuan_v1_")) == 0;
        assert_int_equal(params[ROPE_ATTENTION_NORM_SCOPE], has_means                  ? ROPE_APPEND_NORM_WIDTH
                                                            : model->config.head_norms ? ROPE_APPEND_NORM_HEADS
                                                            : after                    ? ROPE_APPEND_NORM_ROTATED
                                                                                       : ROPE_APPEND_NORM_HEAD);
        assert_true(!has_means || graph->ranks > 1);
    } else if (node->op == OP_ROPE_APPEND) {
        assert_int_equal(params[ROPE_APPEND_NORM_V], model->config.value_norms);
        assert_int_equal(params[ROPE_APPEND_CENTRED], model->config.head_norms);
        assert_int_equal(params[ROPE_APPEND_HAS_MEANS],
                         graph->ranks > 1 && params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH);
    } else if (node->op == OP_ROPE_QUERY) {
        assert_int_equal(params[ROPE_QUERY_HEAD_DIM], model_head_dim(&model->config, node->layer));
        assert_int_equal(params[ROPE_QUERY_X_DTYPE], graph->compute_dtype);
    } else if (node->op == OP_MULTIPLY) {
        const bool by_weight = node->operands[MULTIPLY_WEIGHT] >= 0;
        assert_int_equal(params[MULTIPLY_HAS_WEIGHT], by_weight);
        assert_int_equal(params[MULTIPLY_X_DTYPE], by_weight ? DTYPE_F32 : graph->compute_dtype);
        assert_int_equal(params[MULTIPLY_OUT_DTYPE], by_weight ? DTYPE_F32 : graph->compute_dtype);
        if (!by_weight) assert_int_equal(params[MULTIPLY_BY_DTYPE], DTYPE_F32); /* what a norm adds to */
    }
}

/* ---- memory ---- */

/* Last writer of each granule of the arena; -1: none. */
struct arena {
    const struct test_device_model *model;
    const struct graph *graph;
    const struct device_plan *plan;
    uint32_t launch;
    int *owner;
    size_t granules;
};

static void read_or_write(struct arena *arena, int value, const struct plan_operand *operand, bool written)
{
    size_t first = operand->offset / GRANULE, end = (operand->offset + operand->bytes + GRANULE - 1) / GRANULE;
    assert_int_equal(operand->offset % GRANULE, 0);
    assert_true(end <= arena->granules);
    assert_true(operand->offset >= arena->model->lowering.scratch_bytes);
    for (size_t g = first; g < end; g++) {
        if (!written && arena->owner[g] != value)
            fail_msg("launch %u reads '%s' where '%s' was written last", arena->launch,
                     arena->graph->values[value].name,
                     arena->owner[g] < 0 ? "nothing" : arena->graph->values[arena->owner[g]].name);
        if (written) arena->owner[g] = value;
    }
}

static void visit_reads(void *context, int value, const struct plan_operand *operand, bool written)
{
    if (!written) read_or_write(context, value, operand, false);
}

static void visit_writes(void *context, int value, const struct plan_operand *operand, bool written)
{
    if (written) read_or_write(context, value, operand, true);
}

static bool overlap(const struct plan_operand *a, const struct plan_operand *b)
{
    return a->space == b->space && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* The operand of the schema at a place of the launch's list. */
static const struct op_operand *operand_at(const struct device_launch *launch, uint32_t position, int *index)
{
    const struct op_descriptor *op = op_find(launch->op);
    for (*index = 0; *index < op->operand_count; ++*index)
        if (op_operand_position(op, TARGET_CUDA, launch->tactic.params, *index) == (int)position)
            return &op->operands[*index];
    fail();
    return NULL;
}

/* A launch writes over nothing that it reads, except a result over an input that the schema lets it replace, place for
 * place. */
static void check_overlaps(const struct device_launch *launch)
{
    for (uint32_t i = 0; i < launch->operand_count; i++)
        for (uint32_t j = 0; j < launch->operand_count; j++) {
            const struct plan_operand *a = &launch->operands[i], *b = &launch->operands[j];
            int output, input;
            if (i == j || !(a->access & ACCESS_WRITE) || !overlap(a, b)) continue;
            const struct op_operand *schema = operand_at(launch, i, &output);
            operand_at(launch, j, &input);
            assert_true(schema->replaces & (1u << input));
            assert_int_equal(a->offset, b->offset);
            assert_int_equal(a->bytes, b->bytes);
        }
}

/* Enough for every tactic that the tuner may put here. */
static void check_scratch(const struct test_device_model *model, const struct device_launch *launch,
                          const struct device_facts *gpu)
{
    static struct device_tactic tactics[64];
    int count = device_tactics(launch->op, launch->tactic.params, gpu, tactics, 64);
    assert_true(count >= 1);
    for (int i = 0; i < count; i++)
        if (tactics[i].kernel->counter_bytes)
            assert_true(tactics[i].kernel->counter_bytes(tactics[i].params) <= model->lowering.scratch_bytes);
}

/* The buffers of successive collectives, in this plan or from its end to its beginning, do not overlap, and lie inside
 * the COMM space after its header. */
static void check_exchange(const struct test_device_model *model, const struct device_plan *plan)
{
    const struct plan_operand *first = NULL, *last = NULL;
    uint64_t comm_bytes;
    assert_true(lower_comm_bytes(&model->lowering, &comm_bytes));
    for (uint32_t l = 0; l < plan->count; l++) {
        const struct device_launch *launch = &plan->launches[l];
        if (!plan_op_is_collective(launch->op)) continue;
        assert_int_equal((int)ALL_GATHER_BUFFER, (int)ALL_REDUCE_BUFFER);
        const struct plan_operand *buffer = &launch->operands[ALL_REDUCE_BUFFER];
        assert_true(buffer->offset >= sizeof(struct comm_header));
        assert_true(buffer->offset + buffer->bytes <= comm_bytes);
        assert_int_equal(buffer->offset % PLAN_ALIGNMENT, 0);
        assert_false(last && overlap(last, buffer));
        if (!first) first = buffer;
        last = buffer;
    }
    assert_int_equal(first != NULL, model->ranks > 1);
    assert_false(first && first != last && overlap(first, last));
}

/* No other rank reads data that only the owners of rows have; if there are too many rows for one shot, owners share
 * them. */
static void check_shared_rows(const struct test_device_model *model, const struct device_plan *plan)
{
    const struct plan_operand *shared = NULL;
    uint32_t large = 0, of_tokens = 0, own_residuals = 0, own_norms = 0;
    /* Layer normalisation is no part of a sum, nor is a norm with an addition after it: every rank needs every row. */
    for (uint32_t l = 0; l < plan->count; l++)
        if (plan->launches[l].op == OP_RMS_NORM &&
            (plan->launches[l].tactic.params[RMS_NORM_CENTRED] || plan->launches[l].tactic.params[RMS_NORM_HAS_ADD_TO]))
            return;
    for (uint32_t l = 0; l < plan->count; l++) {
        const struct device_launch *launch = &plan->launches[l];
        const int64_t *p = launch->tactic.params;
        for (uint32_t o = 0; shared && o < launch->operand_count; o++) {
            if (!overlap(&launch->operands[o], shared) || !(launch->operands[o].access & ACCESS_READ)) continue;
            assert_int_equal(launch->op, OP_ALL_REDUCE);
            assert_int_equal(o, op_operand_position(&op_all_reduce, TARGET_CUDA, p, ALL_REDUCE_RESIDUAL));
            assert_int_equal(p[ALL_REDUCE_HAS_RESIDUAL], ALL_REDUCE_OWN_ROWS);
        }
        for (uint32_t o = 0; shared && o < launch->operand_count; o++)
            if (overlap(&launch->operands[o], shared) && launch->operands[o].access & ACCESS_WRITE) shared = NULL;
        if (launch->op != OP_ALL_REDUCE) continue;
        bool own_residual = p[ALL_REDUCE_HAS_RESIDUAL] == ALL_REDUCE_OWN_ROWS;
        bool own_norm = p[ALL_REDUCE_HAS_NORM] == ALL_REDUCE_OWN_ROWS;
        bool is_large = all_reduce_device_is_large((uint64_t)p[ALL_REDUCE_ROWS], (uint64_t)p[ALL_REDUCE_WIDTH],
                                                   model->ranks, (enum dtype)p[ALL_REDUCE_X_DTYPE]);
        assert_false((own_residual || own_norm) && !is_large);
        if (is_large) assert_int_not_equal(p[ALL_REDUCE_HAS_RESIDUAL], ALL_REDUCE_EVERY_ROW);
        if (own_norm) shared = &launch->operands[ALL_REDUCE_OUT];
        of_tokens += p[ALL_REDUCE_ROWS] == plan->header.rows;
        large += is_large, own_residuals += own_residual, own_norms += own_norm;
    }
    if (!large || large != of_tokens) return;
    /* The last layer takes some rows of the last sum of all rows of a prefill or mixed step, whichever rank owns them. */
    assert_int_equal(own_residuals, of_tokens - 1);
    assert_int_equal(own_norms, of_tokens - (plan->header.kind != PLAN_DECODE));
}

/* Returns the sum of all values' sizes. */
uint64_t test_check_plan(const struct test_device_model *model, const struct graph *graph,
                         const struct device_plan *plan, const struct device_facts *gpu)
{
    struct arena arena = {.model = model, .graph = graph, .plan = plan};
    uint64_t sum = 0;
    assert_int_equal(plan->count, graph->node_count);
    arena.granules = plan->header.arena_bytes / GRANULE;
    arena.owner = malloc((arena.granules + 1) * sizeof *arena.owner);
    assert_non_null(arena.owner);
    for (size_t g = 0; g < arena.granules; g++) arena.owner[g] = -1;
    for (arena.launch = 0; arena.launch < plan->count; arena.launch++) {
        const struct device_launch *launch = &plan->launches[arena.launch];
        const struct graph_node *node = &graph->nodes[arena.launch];
        struct device_geometry geometry;
        assert_int_equal(launch->op, node->op);
        assert_int_equal(launch->layer, node->layer);
        assert_int_equal(launch->record, PLAN_NO_TACTIC);
        assert_int_equal(launch->tactic.kernel->op, node->op);
        assert_true(device_kernel_runs_on(launch->tactic.kernel, gpu));
        assert_null(launch->tactic.kernel->launch(launch->tactic.params, gpu, &geometry));
        check_operands(model, graph, plan, arena.launch, visit_reads, &arena);
        check_operands(model, graph, plan, arena.launch, visit_writes, &arena);
        check_params(model, graph, plan, arena.launch);
        test_check_schema(model, plan, arena.launch);
        check_overlaps(launch);
        check_scratch(model, launch, gpu);
        for (int o = 0; o < PLAN_MAX_OPERANDS; o++) {
            const struct graph_value *out = graph_makes(node, o) ? &graph->values[node->operands[o]] : NULL;
            if (out && out->place == VALUE_ARENA)
                sum += rows_of(out, &plan->header) * out->width * dtype_bytes(out->dtype);
        }
    }
    check_exchange(model, plan);
    check_shared_rows(model, plan);
    free(arena.owner);
    return sum;
}

void test_lower_and_check(struct test_device_model *model, const struct device_facts *gpu, enum plan_kind kind,
                          uint32_t rows)
{
    struct device_plan plan;
    struct status status = {0};
    const struct graph *graph = test_device_model_graph(model, kind, rows);
    if (!lower_device_plan(graph, &model->lowering, gpu, rows, &plan, &status))
        fail_msg("%s on '%s', kind %d, %u rows: %s", model->name, gpu->name, (int)kind, rows, status.message);
    assert_int_equal(plan.header.kind, kind);
    assert_int_equal(plan.header.rows, rows);
    assert_int_equal(plan.header.out_rows, plan_out_rows(kind, rows, model->lowering.geometry.slots));
    uint64_t sum = test_check_plan(model, graph, &plan, gpu);
    /* Lifetimes pay: less than every value at its own place. */
    if (rows >= 32) assert_true(plan.header.arena_bytes - model->lowering.scratch_bytes < sum);
    device_plan_free(&plan);
}

void test_lower_all(struct test_device_model *model, const struct device_facts *gpu)
{
    test_device_model_scratch(model, gpu, test_decode_rows, TEST_DECODES);
    for (int r = 0; r < TEST_DECODES; r++) test_lower_and_check(model, gpu, PLAN_DECODE, test_decode_rows[r]);
    for (int r = 0; r < TEST_PREFILLS; r++) test_lower_and_check(model, gpu, PLAN_PREFILL, test_prefill_rows[r]);
    for (int r = 0; r < TEST_MIXES; r++) test_lower_and_check(model, gpu, PLAN_MIXED, test_mixed_rows[r]);
    for (int r = 0; r < TEST_VERIFIES; r++) test_lower_and_check(model, gpu, PLAN_VERIFY, test_verify_rows[r]);
}
