/* SPDX-License-Identifier: Apache-2.0 */
/* The list of ops. */
#include "kernels/add/add.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_gather_place/all_gather_place.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/all_reduce_finish/all_reduce_finish.h"
#include "kernels/attention/attention.h"
#include "kernels/attention_cudnn_inputs/attention_cudnn_inputs.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/draft/draft.h"
#include "kernels/embed/embed.h"
#include "kernels/group_norm/group_norm.h"
#include "kernels/latent_append/latent_append.h"
#include "kernels/matmul/matmul.h"
#include "kernels/mean_squares/mean_squares.h"
#include "kernels/multiply/multiply.h"
#include "kernels/norm_router/norm_router.h"
#include "kernels/quantise/quantise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_query/rope_query.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/routed_matmul/routed_matmul.h"
#include "kernels/routed_mlp/routed_mlp.h"
#include "kernels/router/router.h"
#include "kernels/sample/sample.h"
#include "kernels/select_columns/select_columns.h"
#include "kernels/select_rows/select_rows.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/sigmoid_gate/sigmoid_gate.h"
#include "kernels/state_space/state_space.h"
#include "kernels/sum_parts/sum_parts.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/xielu/xielu.h"

static const struct op_descriptor *const registry[OP_COUNT] = {
    [OP_EMBED] = &op_embed,
    [OP_ROPE_TABLE] = &op_rope_table,
    [OP_RMS_NORM] = &op_rms_norm,
    [OP_MATMUL] = &op_matmul,
    [OP_ROPE_APPEND] = &op_rope_append,
    [OP_ATTENTION] = &op_attention,
    [OP_SWIGLU] = &op_swiglu,
    [OP_ADD] = &op_add,
    [OP_SELECT_ROWS] = &op_select_rows,
    [OP_SAMPLE] = &op_sample,
    [OP_ROPE_ATTENTION] = &op_rope_attention,
    [OP_ALL_REDUCE] = &op_all_reduce,
    [OP_ALL_GATHER] = &op_all_gather,
    [OP_ALL_REDUCE_FINISH] = &op_all_reduce_finish,
    [OP_ALL_GATHER_PLACE] = &op_all_gather_place,
    [OP_ATTENTION_CUDNN_INPUTS] = &op_attention_cudnn_inputs,
    [OP_QUANTISE] = &op_quantise,
    [OP_ROUTER] = &op_router,
    [OP_SUM_PARTS] = &op_sum_parts,
    [OP_LATENT_APPEND] = &op_latent_append,
    [OP_SHORT_CONV] = &op_short_conv,
    [OP_DELTA_RULE] = &op_delta_rule,
    [OP_SIGMOID_GATE] = &op_sigmoid_gate,
    [OP_MULTIPLY] = &op_multiply,
    [OP_ROPE_QUERY] = &op_rope_query,
    [OP_ROUTED_MATMUL] = &op_routed_matmul,
    [OP_MEAN_SQUARES] = &op_mean_squares,
    [OP_DRAFT] = &op_draft,
    [OP_SELECT_COLUMNS] = &op_select_columns,
    [OP_NORM_ROUTER] = &op_norm_router,
    [OP_STATE_SPACE] = &op_state_space,
    [OP_GROUP_NORM] = &op_group_norm,
    [OP_XIELU] = &op_xielu,
    [OP_ROUTED_MLP] = &op_routed_mlp,
};

const struct op_descriptor *op_find(unsigned id) { return id < OP_COUNT ? registry[id] : NULL; }

const struct op_descriptor *op_of_launch(const struct plan_launch *launch)
{
    const struct op_descriptor *op = op_find(launch->op);
    return op && op->call && launch->attributes & LAUNCH_LIBRARY ? op->call : op;
}
