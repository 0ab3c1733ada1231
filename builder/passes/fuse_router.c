/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows: the router's matmul, the router and the first matmul over the experts that it chooses become one launch. The matmul that
 * comes next then reads the routes while that launch still runs. With a few more rows: the norm, the router's matmul and the router. */
#include <string.h>

#include "builder/passes/pass.h"
#include "kernels/norm_router/norm_router.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/routed_matmul/routed_matmul.h"

/* The node that reads the value first; -1: none. */
static int first_reader(const struct graph *graph, int value)
{
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; !graph->nodes[n].removed && i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(&graph->nodes[n], i) && graph->nodes[n].operands[i] == value) return n;
    return -1;
}

static bool is_plain(const struct graph_node *matmul)
{
    return matmul->op == OP_MATMUL && !matmul->params[MATMUL_EXPERTS] && !matmul->params[MATMUL_BLOCK_N] &&
           matmul->params[MATMUL_EPILOGUE] == ACTIVATION_NONE &&
           matmul->params[MATMUL_SCALE_BITS] == OP_FLOAT_ONE_BITS && matmul->operands[MATMUL_RESIDUAL] < 0 &&
           matmul->operands[MATMUL_X_SCALES] < 0;
}

static bool have_one_input(const struct graph_node *a, const struct graph_node *b)
{
    return a->operands[MATMUL_X] == b->operands[MATMUL_X] && a->operands[MATMUL_NORM] == b->operands[MATMUL_NORM] &&
           (a->operands[MATMUL_NORM] < 0 || a->params[MATMUL_EPS_BITS] == b->params[MATMUL_EPS_BITS]);
}

static bool fits(const struct graph *graph, const struct graph_node *logits, const struct graph_node *router,
                 const struct graph_node *up)
{
    const struct graph_weight *matrix = &graph->weights[logits->operands[MATMUL_W]],
                              *experts = &graph->weights[up->operands[MATMUL_W]];
    const int64_t count = (int64_t)matrix->rows - router->params[ROUTER_SHARED_GATE] + router->params[ROUTER_SHARED];
    return up->op == OP_MATMUL && up->params[MATMUL_EXPERTS] == count && matmul_shares_x(up->params) &&
           up->operands[MATMUL_X_SCALES] < 0 && up->params[MATMUL_SCALE_BITS] == OP_FLOAT_ONE_BITS &&
           have_one_input(logits, up) && matrix->depth == experts->depth && graph_gemv_has_experts(graph, up, 1);
}

static void take_matmul(struct graph_node *node, const struct graph_node *up)
{
    node->operands[ROUTED_MATMUL_X] = up->operands[MATMUL_X];
    node->operands[ROUTED_MATMUL_W] = up->operands[MATMUL_W];
    node->operands[ROUTED_MATMUL_OUT] = up->operands[MATMUL_OUT];
    node->operands[ROUTED_MATMUL_BIAS] = up->operands[MATMUL_BIAS];
    node->operands[ROUTED_MATMUL_NORM] = up->operands[MATMUL_NORM];
    node->params[ROUTED_MATMUL_EPILOGUE] = up->params[MATMUL_EPILOGUE];
    node->params[ROUTED_MATMUL_EPS_BITS] = up->params[MATMUL_EPS_BITS];
    node->params[ROUTED_MATMUL_CAP_BITS] = up->params[MATMUL_CAP_BITS];
    node->params[ROUTED_MATMUL_EXPERTS] = up->params[MATMUL_EXPERTS];
}

static void take_router(struct graph_node *node, const struct graph_node *logits, const struct graph_node *router)
{
    node->operands[ROUTED_MATMUL_MATRIX] = logits->operands[MATMUL_W];
    node->operands[ROUTED_MATMUL_ROUTER_BIAS] = logits->operands[MATMUL_BIAS];
    node->operands[ROUTED_MATMUL_ROUTES] = router->operands[ROUTER_OUT];
    node->operands[ROUTED_MATMUL_LISTS] = router->operands[ROUTER_LISTS];
    node->operands[ROUTED_MATMUL_CLAIM_BIAS] = router->operands[ROUTER_BIAS];
    node->operands[ROUTED_MATMUL_SCALES] = router->operands[ROUTER_SCALES];
    node->params[ROUTED_MATMUL_SCORE] = router->params[ROUTER_SCORE];
    node->params[ROUTED_MATMUL_RENORMALISE] = router->params[ROUTER_RENORMALISE];
    node->params[ROUTED_MATMUL_ROUTER_EPS_BITS] = router->params[ROUTER_EPS_BITS];
    node->params[ROUTED_MATMUL_ROUTER_SCALE_BITS] = router->params[ROUTER_SCALE_BITS];
    node->params[ROUTED_MATMUL_ROUTER_GROUPS] = router->params[ROUTER_GROUPS];
    node->params[ROUTED_MATMUL_TOP_GROUPS] = router->params[ROUTER_TOP_GROUPS];
    node->params[ROUTED_MATMUL_GROUP_SCORE] = router->params[ROUTER_GROUP_SCORE];
    node->params[ROUTED_MATMUL_SHARED] = router->params[ROUTER_SHARED];
    node->params[ROUTED_MATMUL_SHARED_GATE] = router->params[ROUTER_SHARED_GATE];
    node->params[ROUTED_MATMUL_HAS_SEEDS] = router->params[ROUTER_HAS_SEEDS];
}

static void visit(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *router = &graph->nodes[n];
    const int value = router->operands[ROUTER_LOGITS], producer = index->producer[value];
    const int reader = first_reader(graph, router->operands[ROUTER_OUT]);
    if (producer < 0 || index->uses[value] != 1 || reader < 0) return;
    struct graph_node *logits = &graph->nodes[producer], *up = &graph->nodes[reader];
    if (!is_plain(logits) || !fits(graph, logits, router, up)) return;
    struct graph_node node = {.op = OP_ROUTED_MATMUL, .layer = up->layer};
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) node.operands[i] = GRAPH_ABSENT;
    take_matmul(&node, up);
    take_router(&node, logits, router);
    *up = node;
    logits->removed = router->removed = true;
    int next = reader + 1;
    while (next < graph->node_count && graph->nodes[next].removed) next++;
    struct graph_node *down = next < graph->node_count ? &graph->nodes[next] : NULL;
    if (down && down->op == OP_MATMUL && matmul_sums_choices(down->params) &&
        down->operands[MATMUL_ROUTES] == node.operands[ROUTED_MATMUL_ROUTES])
        down->params[MATMUL_EARLY_ROUTES] = 1;
}

/* ---- with the norm ---- */

static bool is_plain_norm(const struct graph_node *norm)
{
    static const uint8_t others[] = {RMS_NORM_RESIDUAL, RMS_NORM_ADD_TO, RMS_NORM_COPY,
                                     RMS_NORM_SCALES,   RMS_NORM_BIAS,   RMS_NORM_FACTOR};
    bool plain = norm->op == OP_RMS_NORM && !norm->params[RMS_NORM_CENTRED];
    for (size_t i = 0; i < sizeof others; i++) plain = plain && norm->operands[others[i]] < 0;
    return plain;
}

static bool fits_norm(const struct graph *graph, const struct graph_node *norm, const struct graph_node *logits,
                      const struct graph_node *router)
{
    if (!is_plain_norm(norm)) return false;
    const struct graph_value *y = &graph->values[norm->operands[RMS_NORM_OUT]];
    return logits->operands[MATMUL_NORM] < 0 && y->dtype == graph->compute_dtype &&
           y->rows == graph->values[router->operands[ROUTER_OUT]].rows &&
           graph->weights[logits->operands[MATMUL_W]].depth == y->width;
}

static void visit_norm(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *router = &graph->nodes[n];
    const int value = router->operands[ROUTER_LOGITS], producer = index->producer[value];
    if (producer < 0 || index->uses[value] != 1 || !is_plain(&graph->nodes[producer])) return;
    struct graph_node *logits = &graph->nodes[producer];
    const int first = index->producer[logits->operands[MATMUL_X]];
    if (first < 0 || !fits_norm(graph, &graph->nodes[first], logits, router)) return;
    struct graph_node *norm = &graph->nodes[first];
    struct graph_node node = {.op = OP_NORM_ROUTER, .layer = router->layer};
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) node.operands[i] = GRAPH_ABSENT;
    node.operands[NORM_ROUTER_X] = norm->operands[RMS_NORM_X];
    node.operands[NORM_ROUTER_NORM] = norm->operands[RMS_NORM_WEIGHT];
    node.operands[NORM_ROUTER_OUT] = norm->operands[RMS_NORM_OUT];
    node.operands[NORM_ROUTER_ROUTES] = router->operands[ROUTER_OUT];
    node.operands[NORM_ROUTER_LISTS] = router->operands[ROUTER_LISTS];
    node.operands[NORM_ROUTER_MATRIX] = logits->operands[MATMUL_W];
    node.operands[NORM_ROUTER_ROUTER_BIAS] = logits->operands[MATMUL_BIAS];
    node.operands[NORM_ROUTER_CLAIM_BIAS] = router->operands[ROUTER_BIAS];
    node.operands[NORM_ROUTER_SCALES] = router->operands[ROUTER_SCALES];
    node.params[NORM_ROUTER_EPS_BITS] = norm->params[RMS_NORM_EPS_BITS];
    node.params[NORM_ROUTER_SCORE] = router->params[ROUTER_SCORE];
    node.params[NORM_ROUTER_RENORMALISE] = router->params[ROUTER_RENORMALISE];
    node.params[NORM_ROUTER_ROUTER_EPS_BITS] = router->params[ROUTER_EPS_BITS];
    node.params[NORM_ROUTER_ROUTER_SCALE_BITS] = router->params[ROUTER_SCALE_BITS];
    node.params[NORM_ROUTER_ROUTER_GROUPS] = router->params[ROUTER_GROUPS];
    node.params[NORM_ROUTER_TOP_GROUPS] = router->params[ROUTER_TOP_GROUPS];
    node.params[NORM_ROUTER_GROUP_SCORE] = router->params[ROUTER_GROUP_SCORE];
    node.params[NORM_ROUTER_SHARED] = router->params[ROUTER_SHARED];
    node.params[NORM_ROUTER_SHARED_GATE] = router->params[ROUTER_SHARED_GATE];
    node.params[NORM_ROUTER_HAS_SEEDS] = router->params[ROUTER_HAS_SEEDS];
    *norm = node; /* all that it reads is there, and y is made where it was */
    logits->removed = router->removed = true;
}

static bool run(struct graph *graph, struct status *status)
{
    if (!graph->has_routed_matmul || graph->plan_rows == GRAPH_ROWS_ANY) return true;
    return pass_visit(graph, OP_ROUTER, graph_has_few_rows(graph) ? visit : visit_norm, status);
}

const struct pass pass_fuse_router =
    {"fuse_router", "few rows: the router in one launch with the experts' first matmul, or with the norm that it reads",
     run, PASS_FOR(TARGET_CUDA)};
