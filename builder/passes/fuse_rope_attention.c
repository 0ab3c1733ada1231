/* SPDX-License-Identifier: Apache-2.0 */
/* Decode: rows are of different sequences, so each can rotate, append and attend on its own: one launch instead of two.
 * In a prefill a row attends to what other rows of the step append. A layer that reads what another one has appended rotates and attends. */
#include <string.h>

#include "builder/passes/pass.h"
#include "kernels/attention/attention.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_query/rope_query.h"

static void take_append(struct graph_node *attention, const struct graph_node *rope)
{
    attention->operands[ROPE_ATTENTION_QKV] = rope->operands[ROPE_APPEND_QKV];
    attention->operands[ROPE_ATTENTION_TABLE] = rope->operands[ROPE_APPEND_TABLE];
    attention->operands[ROPE_ATTENTION_NORM_Q] = rope->operands[ROPE_APPEND_NORM_Q];
    attention->operands[ROPE_ATTENTION_NORM_K] = rope->operands[ROPE_APPEND_NORM_K];
    attention->operands[ROPE_ATTENTION_KV_SCALES] = rope->operands[ROPE_APPEND_KV_SCALES];
    attention->operands[ROPE_ATTENTION_MEANS] = rope->operands[ROPE_APPEND_MEANS];
    attention->params[ROPE_ATTENTION_EPS_BITS] = rope->params[ROPE_APPEND_EPS_BITS];
    attention->params[ROPE_ATTENTION_ROTARY_DIM] = rope->params[ROPE_APPEND_ROTARY_DIM];
    attention->params[ROPE_ATTENTION_NORM_SCOPE] = rope->params[ROPE_APPEND_NORM_SCOPE];
    attention->params[ROPE_ATTENTION_NORM_V] = rope->params[ROPE_APPEND_NORM_V];
    attention->params[ROPE_ATTENTION_CENTRED] = rope->params[ROPE_APPEND_CENTRED];
}

static void take_query(struct graph_node *attention, const struct graph_node *rope)
{
    attention->operands[ROPE_ATTENTION_QKV] = rope->operands[ROPE_QUERY_X];
    attention->operands[ROPE_ATTENTION_TABLE] = rope->operands[ROPE_QUERY_TABLE];
    attention->operands[ROPE_ATTENTION_NORM_Q] = rope->operands[ROPE_QUERY_NORM];
    attention->operands[ROPE_ATTENTION_NORM_K] = rope->operands[ROPE_QUERY_NORM]; /* not read */
    attention->params[ROPE_ATTENTION_EPS_BITS] = rope->params[ROPE_QUERY_EPS_BITS];
    attention->params[ROPE_ATTENTION_ROTARY_DIM] = rope->params[ROPE_QUERY_ROTARY_DIM];
    attention->params[ROPE_ATTENTION_APPENDED] = 1;
}

static void fuse(struct graph_node *rope, struct graph_node *attention)
{
    const struct graph_node from = *attention;
    attention->op = OP_ROPE_ATTENTION;
    memset(attention->params, 0, sizeof attention->params);
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) attention->operands[i] = GRAPH_ABSENT;
    attention->operands[ROPE_ATTENTION_OUT] = from.operands[ATTENTION_OUT];
    memcpy(attention->params, from.params, PAGED_PARAMS * sizeof *from.params);
    attention->operands[ROPE_ATTENTION_SINKS] = from.operands[ATTENTION_SINKS];
    attention->params[ROPE_ATTENTION_CAP_BITS] = from.params[ATTENTION_CAP_BITS];
    attention->params[ROPE_ATTENTION_WINDOW] = from.params[ATTENTION_WINDOW];
    attention->params[ROPE_ATTENTION_SCALE_BITS] = from.params[ATTENTION_SCALE_BITS];
    (rope->op == OP_ROPE_QUERY ? take_query : take_append)(attention, rope);
    rope->removed = true;
}

/* A block of the fused launch has the heads of one kv head: it cannot form the mean over all of them. */
static bool can_fuse(const struct graph_node *rope)
{
    const bool over_width = rope->params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH;
    return !over_width || (rope->operands[ROPE_APPEND_MEANS] >= 0 && !rope->params[ROPE_APPEND_NORM_V]);
}

static void visit(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *attention = &graph->nodes[n];
    const int q = attention->operands[ATTENTION_Q];
    if (index->producer[q] < 0 || index->uses[q] != 1) return;
    struct graph_node *rope = &graph->nodes[index->producer[q]];
    if (rope->op == OP_ROPE_QUERY || (rope->op == OP_ROPE_APPEND && can_fuse(rope))) fuse(rope, attention);
}

static bool run(struct graph *graph, struct status *status)
{
    return graph->kind != PLAN_DECODE || pass_visit(graph, OP_ATTENTION, visit, status);
}

const struct pass pass_fuse_rope_attention = {"fuse_rope_attention",
                                              "decode: rotation, KV append and attention in one launch", run,
                                              PASS_FOR(TARGET_CUDA)};
