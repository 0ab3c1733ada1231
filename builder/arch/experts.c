/* SPDX-License-Identifier: Apache-2.0 */
/* An MLP of experts: a router chooses some of them for each row, and the row's output is the weighted sum of theirs, to which
 * an expert that every row goes through may add its own. */
#include "builder/arch/family.h"
#include "kernels/matmul/matmul.h"
#include "kernels/router/router.h"

const struct expert_names expert_usual_names = {
    .router = "mlp.gate",
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
};

const struct expert_names expert_shared_names = {
    .router = "mlp.gate",
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_expert",
    .shared_gate = "mlp.shared_expert_gate",
};

const struct expert_names expert_biased_names = {
    .router = "mlp.gate",
    .selection_bias = "mlp.gate.e_score_correction_bias",
    .bias_dimensions = 1,
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_experts",
};

/* The matrices of equally shaped experts, all gates and ups, all ups or all downs, as one weight. */
struct stack {
    const char *layers; /* module of the layers */
    uint32_t layer;
    const char *module; /* of the experts; followed by a number where `numbered` */
    bool numbered;
    const char *names[2]; /* of an expert's matrices; the second NULL: there is one */
    bool fused; /* one tensor [experts, parts * rows, columns] called names[0], which has the rows of all parts */
    bool parameters, by_turns, transposed; /* fused, as struct expert_names says */
    uint64_t experts, parts, rows, columns;
    enum shard shard;
    uint64_t shared; /* experts after these, of the rows or columns of another module's matrices; 0: none */
    const char *shared_module, *shared_names[2];
};

static uint64_t all_experts(const struct stack *stack) { return stack->experts + stack->shared; }

static void tensor_name(const struct stack *stack, uint64_t expert, uint64_t part, bool bias,
                        char name[2 * GRAPH_NAME_BYTES])
{
    const size_t size = 2 * GRAPH_NAME_BYTES;
    const char *kind = bias ? "bias" : "weight";
    if (stack->parameters)
        snprintf(name, size, "%s.%u.%s%s", stack->layers, stack->layer, stack->names[0], bias ? "_bias" : "");
    else if (stack->fused)
        snprintf(name, size, "%s.%u.%s.%s", stack->layers, stack->layer, stack->names[0], kind);
    else if (stack->numbered)
        snprintf(name, size, "%s.%u.%s.%u.%s.%s", stack->layers, stack->layer, stack->module, (unsigned)expert,
                 stack->names[part], kind);
    else
        snprintf(name, size, "%s.%u.%s.%s.%s", stack->layers, stack->layer, stack->module, stack->names[part], kind);
}

/* Where a part of an expert's matrix, or of its bias, is. */
static struct weight_source source_of(const struct graph *graph, const struct stack *stack, uint64_t expert,
                                      uint64_t part, bool bias)
{
    const uint64_t all_rows = stack->parts * stack->rows;
    if (!stack->fused) return (struct weight_source){.shape = {stack->rows, bias ? 0 : stack->columns}};
    struct weight_source source = {
        .shape = {stack->experts, all_rows, bias ? 0 : stack->columns},
        .flat = bias,
        .first_row = expert * all_rows + part * stack->rows,
        .rows = stack->rows,
    };
    if (stack->by_turns) {
        source.first_row = expert * all_rows + part;
        source.run = 1;
        source.period = stack->parts;
    }
    if (bias || !stack->parameters) return source;
    if (graph->config->quantisation.method == QUANT_MXFP4) {
        source.codes = ENCODING_MXFP4;
        return source;
    }
    if (!stack->transposed) return source;
    source.transposed = true;
    source.shape[1] = stack->columns;
    source.shape[2] = all_rows;
    return source;
}

/* A module with the rows of several experts, or with the columns of their last matrices, becomes one expert after the other. */
static void append_shared(struct graph *graph, int weight, const struct stack *stack)
{
    const bool by_columns = stack->shard == SHARD_COLUMNS;
    const uint64_t rows = stack->rows, columns = stack->columns;
    for (uint64_t expert = 0; expert < stack->shared; expert++)
        for (uint64_t part = 0; part < stack->parts; part++) {
            struct weight_source source = {.rows = rows, .columns = columns};
            source.shape[0] = by_columns ? rows : stack->shared * rows;
            source.shape[1] = by_columns ? stack->shared * columns : columns;
            *(by_columns ? &source.first_column : &source.first_row) = expert * (by_columns ? columns : rows);
            graph_weight_append(graph, weight, &source, "%s.%u.%s.%s.weight", stack->layers, stack->layer,
                                stack->shared_module, stack->shared_names[part]);
        }
    if (stack->shared) graph_mark_join(graph, weight, GRAPH_JOIN_SHARED, (int)(stack->experts * stack->parts));
}

/* The matrices, or the biases. */
static int stacked(struct graph *graph, const struct stack *stack, bool bias, const char *label)
{
    char name[2 * GRAPH_NAME_BYTES];
    int weight = -1;
    for (uint64_t expert = 0; expert < stack->experts; expert++)
        for (uint64_t part = 0; part < stack->parts; part++) {
            const struct weight_source source = source_of(graph, stack, expert, part, bias);
            tensor_name(stack, expert, part, bias, name);
            if (expert + part == 0)
                weight = graph_weight_from(graph, stack->layer, bias ? WEIGHT_ROW_MAJOR : WEIGHT_MATRIX, &source, "%s",
                                           name);
            else
                graph_weight_append(graph, weight, &source, "%s", name);
        }
    if (!bias) append_shared(graph, weight, stack);
    if (graph->out_of_memory) return -1;
    struct graph_weight *made = &graph->weights[weight];
    snprintf(made->name, sizeof made->name, "model.layers.%u.%s.%s", stack->layer, label, bias ? "bias" : "weight");
    made->experts = all_experts(stack);
    made->interleave = stack->parts > 1 ? graph_interleave(graph) : PANEL_ROWS; /* whole panels */
    made->rows = graph_weight_rows(made);
    graph_shard(graph, weight, bias && stack->shard == SHARD_COLUMNS ? SHARD_FIRST_RANK : stack->shard);
    return weight;
}

/* The values that a router makes; `lists` is absent on the CPU. */
struct choices {
    int routes, lists;
};

/* The products of the chosen experts, whose matrices are `stack`. */
static int routed(struct graph *graph, int x, struct choices routes, const struct stack *stack, const char *name,
                  int epilogue, double scale, const char *label)
{
    const int weight = stacked(graph, stack, false, name);
    const int bias = graph->config->mlp_bias ? stacked(graph, stack, true, name) : GRAPH_ABSENT;
    if (graph->out_of_memory) return -1;
    struct graph_weight *matrix = &graph->weights[weight];
    const uint64_t top_k = graph->values[routes.routes].width / 2, rows = matrix->rows / all_experts(stack);
    const bool shares_x = epilogue != ACTIVATION_NONE;
    const bool is_padded = !shares_x && stack->rows != rows;
    const uint64_t width = EPILOGUE_IS_GATED(epilogue) ? rows / 2 : is_padded ? stack->rows : rows;
    matrix->depth = graph->values[x].width / (shares_x ? 1 : top_k);
    const int y = graph_value(graph, ROWS_TOKENS, shares_x ? top_k * width : width, "%s%u", label, stack->layer);
    struct graph_node *node = graph_append(graph, OP_MATMUL, stack->layer);
    node->operands[MATMUL_X] = x;
    node->operands[MATMUL_W] = weight;
    node->operands[MATMUL_BIAS] = bias;
    node->operands[MATMUL_ROUTES] = routes.routes;
    node->operands[MATMUL_LISTS] = routes.lists;
    node->operands[MATMUL_OUT] = y;
    node->params[MATMUL_EPILOGUE] = epilogue;
    node->params[MATMUL_SCALE_BITS] = float_to_bits((float)scale);
    node->params[MATMUL_EXPERTS] = (int64_t)all_experts(stack);
    if (is_padded) node->params[MATMUL_BLOCK_N] = (int64_t)stack->rows;
    if (epilogue == ACTIVATION_CLAMPED)
        node->params[MATMUL_CAP_BITS] = float_to_bits((float)graph->config->swiglu_limit);
    return y;
}

/* Logits of `count` experts, then with `gate`, a module, that of the shared ones. The matrix keeps the checkpoint's type: it is small,
 * and a wrong choice costs much. */
static int router_logits(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer,
                         const char *module, uint64_t count, bool has_bias, const char *gate, const char *label)
{
    const char *layers = decoder_layers(traits);
    const struct weight_source of_gate = {.shape = {1, graph->config->hidden_size}};
    const int weight = graph_matrix(graph, layer, count, graph->config->hidden_size, WEIGHT_MATRIX, "%s.%u.%s.weight",
                                    layers, layer, module);
    if (gate) {
        graph_weight_append(graph, weight, &of_gate, "%s.%u.%s.weight", layers, layer, gate);
        graph_mark_join(graph, weight, GRAPH_JOIN_SHARED, 1);
        count++;
    }
    if (weight >= 0) graph->weights[weight].exact = true;
    const int bias =
        has_bias ? graph_vector(graph, layer, count, "%s.%u.%s.bias", layers, layer, module) : GRAPH_ABSENT;
    const int logits = graph_value(graph, ROWS_TOKENS, count, "%s_logits%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_MATMUL, layer);
    node->operands[MATMUL_X] = x;
    node->operands[MATMUL_W] = weight;
    node->operands[MATMUL_BIAS] = bias;
    node->operands[MATMUL_OUT] = logits;
    return logits;
}

/* `experts`, `top_k`: with the shared ones. */
static struct graph_node *route(struct graph *graph, int logits, uint32_t layer, uint64_t experts, uint64_t top_k,
                                const char *label, struct choices *choices)
{
    const uint64_t list_width = (uint64_t)router_list_width((int64_t)experts, (int64_t)top_k);
    choices->routes = graph_value(graph, ROWS_TOKENS, 2 * top_k, "%s_routes%u", label, layer);
    choices->lists = GRAPH_ABSENT;
    if (graph->target == TARGET_CUDA)
        choices->lists = graph_value(graph, ROWS_TOKENS, list_width, "%s_lists%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_ROUTER, layer);
    node->operands[ROUTER_LOGITS] = logits;
    node->operands[ROUTER_OUT] = choices->routes;
    node->operands[ROUTER_LISTS] = choices->lists;
    return node;
}

/* Which experts of the layer each row goes through; the last `shared` are those of all rows. */
static struct choices router(struct graph *graph, const struct decoder_traits *traits, int x, uint64_t shared,
                             uint32_t layer)
{
    const struct expert_names *names = traits->experts;
    const char *layers = decoder_layers(traits);
    const char *gate = shared ? names->shared_gate : NULL;
    const struct model_experts *experts = &graph->config->experts;
    struct choices routes;
    int bias = GRAPH_ABSENT;
    if (names->selection_bias) {
        const struct weight_source vector = {.shape = {experts->count}}, matrix = {.shape = {1, experts->count}};
        bias = graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, names->bias_dimensions == 1 ? &vector : &matrix,
                                 "%s.%u.%s", layers, layer, names->selection_bias);
        if (bias >= 0) graph->weights[bias].exact = true;
    }
    const int scales = names->scales
                           ? graph_vector(graph, layer, experts->count, "%s.%u.%s", layers, layer, names->scales)
                           : GRAPH_ABSENT;
    const int logits =
        router_logits(graph, traits, x, layer, names->router, experts->count, names->router_bias, gate, "router");
    struct graph_node *node =
        route(graph, logits, layer, experts->count + shared, experts->top_k + shared, "expert", &routes);
    node->operands[ROUTER_BIAS] = bias;
    node->operands[ROUTER_SCALES] = scales;
    node->params[ROUTER_HAS_SEEDS] = 1;
    node->params[ROUTER_SCORE] = experts->score;
    node->params[ROUTER_RENORMALISE] = experts->renormalise;
    node->params[ROUTER_EPS_BITS] = float_to_bits((float)experts->eps);
    node->params[ROUTER_SCALE_BITS] = float_to_bits((float)experts->scale);
    node->params[ROUTER_GROUPS] = (int64_t)experts->groups;
    node->params[ROUTER_TOP_GROUPS] = (int64_t)experts->top_groups;
    node->params[ROUTER_GROUP_SCORE] = experts->group_score;
    node->params[ROUTER_SHARED] = (int64_t)shared;
    node->params[ROUTER_SHARED_GATE] = gate != NULL;
    return routes;
}

/* Both products of the experts that `up` and `down` describe. */
static int expert_products(struct graph *graph, int x, struct choices routes, const struct stack *up,
                           const struct stack *down, int epilogue, const char *label, const char *up_name,
                           const char *down_name)
{
    char activated_label[GRAPH_NAME_BYTES];
    snprintf(activated_label, sizeof activated_label, "%s_activated", label);
    const int activated = routed(graph, x, routes, up, up_name, epilogue, 1.0, activated_label);
    return routed(graph, activated, routes, down, down_name, ACTIVATION_NONE, graph->config->residual_scale, label);
}

uint64_t experts_shared_joined(const struct graph *graph, const struct expert_names *names, uint32_t layer)
{
    const struct model_experts *experts = &graph->config->experts;
    const uint64_t count = experts->shared_size / experts->intermediate_size;
    const bool has_vectors = names->router_bias || names->selection_bias || names->scales; /* one element each */
    if (!graph_may_join(graph, layer, GRAPH_JOIN_SHARED) || !names->shared || names->shared_is_mlp ||
        graph->config->mlp_bias || (names->shared_gate && has_vectors) ||
        experts->shared_size % experts->intermediate_size || experts->count + count > ROUTER_MAX_EXPERTS ||
        experts->top_k + count > ROUTER_MAX_TOP_K)
        return 0;
    return count;
}

int experts_mlp(struct graph *graph, const struct decoder_traits *traits, int routed_by, int x, uint64_t shared,
                uint32_t layer)
{
    const struct expert_names *names = traits->experts;
    const struct model_experts *experts = &graph->config->experts;
    const uint64_t hidden = graph->config->hidden_size, inner = experts->intermediate_size;
    const bool fused = names->experts == NULL, plain = traits->plain_mlp;
    const struct stack up = {.layers = decoder_layers(traits),
                             .layer = layer,
                             .module = names->experts,
                             .numbered = true,
                             .names = {plain ? names->up : names->gate, plain ? NULL : names->up},
                             .fused = fused,
                             .parameters = names->parameters,
                             .by_turns = names->by_turns,
                             .transposed = names->transposed,
                             .experts = experts->count,
                             .parts = plain ? 1 : 2,
                             .rows = inner,
                             .columns = hidden,
                             .shard = SHARD_ROWS,
                             .shared = shared,
                             .shared_module = names->shared,
                             .shared_names = {plain ? "up_proj" : "gate_proj", plain ? NULL : "up_proj"}};
    const struct stack down = {.layers = decoder_layers(traits),
                               .layer = layer,
                               .module = names->experts,
                               .numbered = true,
                               .names = {names->down},
                               .fused = fused,
                               .parameters = names->parameters,
                               .by_turns = names->by_turns,
                               .transposed = names->transposed,
                               .experts = experts->count,
                               .parts = 1,
                               .rows = hidden,
                               .columns = inner,
                               .shard = SHARD_COLUMNS,
                               .shared = shared,
                               .shared_module = names->shared,
                               .shared_names = {"down_proj"}};
    const struct choices routes = router(graph, traits, routed_by, shared, layer);
    return expert_products(graph, x, routes, &up, &down, decoder_mlp_epilogue(traits, graph->config), "experts",
                           plain ? "mlp.experts.up_proj" : "mlp.experts.gate_up_proj", "mlp.experts.down_proj");
}

/* Requires: MLPs have a gate. */
int experts_shared(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer)
{
    const struct expert_names *names = traits->experts;
    const uint64_t hidden = graph->config->hidden_size, inner = graph->config->experts.shared_size;
    struct choices routes;
    const int logits = router_logits(graph, traits, x, layer, names->shared_gate, 1, false, NULL, "shared");
    route(graph, logits, layer, 1, 1, "shared", &routes)->params[ROUTER_SCORE] = ROUTER_SIGMOID;
    const struct stack up = {.layers = decoder_layers(traits),
                             .layer = layer,
                             .module = names->shared,
                             .names = {"gate_proj", "up_proj"},
                             .experts = 1,
                             .parts = 2,
                             .rows = inner,
                             .columns = hidden,
                             .shard = SHARD_ROWS};
    const struct stack down = {.layers = decoder_layers(traits),
                               .layer = layer,
                               .module = names->shared,
                               .names = {"down_proj"},
                               .experts = 1,
                               .parts = 1,
                               .rows = hidden,
                               .columns = inner,
                               .shard = SHARD_COLUMNS};
    return expert_products(graph, x, routes, &up, &down, graph->config->activation, "shared", "mlp.shared.gate_up_proj",
                           "mlp.shared.down_proj");
}
