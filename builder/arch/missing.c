/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/missing.h"

#include <stddef.h>
#include <string.h>

static const char altup[] = "its layers predict and correct several copies of the residual (AltUp), add a residual of "
                            "low rank (LAuReL) and keep "
                            "the largest elements of an MLP's gate alone (activation_sparsity_pattern), and no block "
                            "of engbuild computes these";
static const char state_space[] = "it has layers of state spaces (Mamba) in a form that no block of engbuild computes";
static const char lightning[] =
    "it has layers of lightning attention (layer_types: \"linear_attention\"), whose state decays by a fixed factor of "
    "each head, and no block of engbuild computes these";
static const char distances[] =
    "a multiple of the distance is added to the scores of attention (ALiBi), and no block of "
    "engbuild computes this";

struct missing {
    const char *key; /* a model_type or a field */
    const char *text, *nearest;
};

/* Types that always have it, whether a field says so or not. */
static const struct missing types[] = {
    {"gemma3n", altup, "gemma4_text"},
    {"gemma3n_text", altup, "gemma4_text"},
    {"paligemma",
     "each token of its prompt attends to all others of the prompt, and engines attend to earlier tokens alone", NULL},
    {"mamba", state_space, "qwen3_next"},
    {"mamba2", state_space, "qwen3_next"},
    {"falcon_mamba", state_space, "qwen3_next"},
    {"minimax", lightning, "mixtral"},
    {"minimax_m1", lightning, "mixtral"},
    {"minimax_text_01", lightning, "mixtral"},
    {"bloom", distances, "gpt_neox"},
    {"mpt", distances, "gpt_neox"},
};

/* Fields, where they are neither null nor false. */
static const struct missing fields[] = {
    {"altup_num_inputs", altup, "gemma4_text"},
    {"state_size", state_space, NULL},
    {"ssm_state_size", state_space, "nemotron_h"},
    {"mamba_d_state", state_space, NULL},
    {"alibi", distances, NULL},
    {"hc_mult",
     "its layers mix several copies of the residual (hyper-connections, hc_mult), and no block of engbuild computes "
     "these",
     "deepseek_v3"},
    {"index_topk",
     "each token attends to those that an indexer chooses (index_topk), and no block of engbuild computes this",
     "deepseek_v3"},
    {"linear_attn_config",
     "it has layers of Kimi delta attention (linear_attn_config), and no block of engbuild computes these",
     "deepseek_v3"},
    {"block_configs", "its layers have sizes of their own (block_configs), and engines have layers of one size", NULL},
};

const char *missing_block(const char *model_type, const json_t *config, const char **nearest)
{
    const struct missing *found = NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types && !found; i++)
        if (strcmp(types[i].key, model_type) == 0) found = &types[i];
    for (size_t i = 0; i < sizeof fields / sizeof *fields && !found; i++) {
        const json_t *value = json_object_get(config, fields[i].key);
        if (value && !json_is_null(value) && !json_is_false(value)) found = &fields[i];
    }
    *nearest = found ? found->nearest : NULL;
    return found ? found->text : NULL;
}
