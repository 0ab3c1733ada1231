/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/recurrent.h"

#include "kernels/delta_rule/delta_rule.h"
#include "kernels/op/recurrent.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/state_space/state_space.h"

static uint64_t aligned(uint64_t bytes) { return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT; }

/* A layer's convolution comes before its delta rule or state space. */
static uint64_t conv_bytes(const struct model_config *config, uint64_t layer)
{
    if (!mixer_is_recurrent(config->layer[layer].mixer)) return 0;
    return aligned(short_conv_state_bytes(config->recurrent.channels, config->recurrent.kernel));
}

static uint64_t rule_bytes(const struct model_config *config, uint64_t layer)
{
    const struct model_recurrent *sizes = &config->recurrent;
    switch (config->layer[layer].mixer) {
    case MIXER_DELTA_RULE: return aligned(delta_rule_state_bytes(sizes->value_heads, sizes->key_dim, sizes->value_dim));
    case MIXER_STATE_SPACE:
    case MIXER_BOTH: return aligned(state_space_state_bytes(sizes->value_heads, sizes->key_dim, sizes->value_dim));
    default: return 0;
    }
}

uint64_t recurrent_bytes(const struct model_config *config, enum engine_target target)
{
    return op_recurrent_copies(target) * recurrent_offset(config, (uint32_t)config->layers, OP_SHORT_CONV);
}

uint64_t recurrent_offset(const struct model_config *config, uint32_t layer, enum plan_op op)
{
    uint64_t offset = 0;
    for (uint64_t i = 0; i < layer; i++) offset += conv_bytes(config, i) + rule_bytes(config, i);
    return op == OP_DELTA_RULE || op == OP_STATE_SPACE ? offset + conv_bytes(config, layer) : offset;
}
