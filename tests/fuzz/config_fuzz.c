/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and generation_config.json: any bytes are either refused with a message or give a model whose sizes hold
 * the limits that later code relies on. Every input is read as both. */
#include "builder/arch/arch.h"
#include "formats/checkpoint/model_config.h"
#include "kernels/op/activation.h"

#include <math.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

static void check_tokens(const struct model_config *config)
{
    require(config->bos_token >= -1 && config->bos_token < (int64_t)config->vocab_size);
    require(config->eos_count >= 0 && config->eos_count <= MODEL_MAX_EOS);
    for (int i = 0; i < config->eos_count; i++)
        require(config->eos_tokens[i] >= 0 && (uint64_t)config->eos_tokens[i] < config->vocab_size);
    require(config->temperature >= 0 && config->top_p >= 0 && config->top_p <= 1 && config->repetition_penalty > 0);
}

static void check_layer(const struct model_config *config, uint32_t index)
{
    const struct model_layer *layer = &config->layer[index];
    const uint64_t head_dim = model_head_dim(config, index), kv_heads = model_kv_heads(config, index);
    const uint32_t source = model_kv_layer(config, index);
    require(layer->window <= UINT64_C(1) << 30);
    require(head_dim >= 2 && head_dim / 2 <= 512 && config->heads * head_dim <= UINT64_C(1) << 18);
    require(kv_heads >= 1 && config->heads % kv_heads == 0);
    require(source <= index && !config->layer[source].shares && config->layer[source].mixer == layer->mixer);
    require(model_head_dim(config, source) == head_dim && model_kv_heads(config, source) == kv_heads);
    require(!config->layer[source].window == !layer->window && layer->inner <= UINT64_C(1) << 20);
}

static void check_config(const struct model_config *config)
{
    float inv_freq[2 * 512], scaling;
    struct status status = {0};
    require(config->layers >= 1 && config->layers <= MODEL_MAX_LAYERS);
    require(config->kv_heads >= 1 && config->heads % config->kv_heads == 0);
    require(config->rope.rotary_dim >= 2 && config->rope.rotary_dim % 2 == 0 &&
            config->rope.rotary_dim <= rope_whole_dim(config));
    require(!config->has_local_rope || config->local_rope.rotary_dim <= rope_dim_of(config, LAYER_ROPE_LOCAL));
    require(config->head_dim >= 2 && rope_whole_dim(config) % 2 == 0 && config->head_dim / 2 <= 512);
    const struct model_latent *latent = &config->latent;
    require(latent->kv_rank == 0 || (config->kv_heads == 1 && latent->kv_rank + latent->rope_dim == config->head_dim &&
                                     config->heads * (latent->nope_dim + latent->value_dim) <= UINT64_C(1) << 18));
    require(config->layers * config->kv_heads * config->head_dim <= UINT64_C(1) << 28);
    require(config->max_position >= 1 && config->max_position <= UINT64_C(1) << 30);
    for (uint32_t i = 0; i < config->layers; i++) check_layer(config, i);
    const double scales[] = {config->embedding_scale, config->attention_scale, config->residual_scale,
                             config->logits_scale};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) require(scales[i] > 9e-7 && scales[i] < 1.1e6);
    if (config->activation == ACTIVATION_CLAMPED) require(config->swiglu_limit > 9e-7 && config->swiglu_limit < 1.1e6);
    require(rope_latent_score_scale(&config->rope) >= 1 && rope_latent_score_scale(&config->rope) < 1e13);
    check_tokens(config);
    if (rope_frequencies(&config->rope, config->max_position, inv_freq, &scaling, &status))
        for (size_t i = 0; i < rope_sets(&config->rope, config->max_position) * (config->rope.rotary_dim / 2); i++)
            require(isfinite(inv_freq[i]));
    else
        require(status.code == STATUS_BAD_INPUT && status.message[0]);
}

/* Nodes of a JSON tree: a byte of text may be one. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 20, .base_bytes = 256 << 10, .bytes_per_byte = 256};

int fuzz_try(const uint8_t *data, size_t size)
{
    static struct model_config config; /* large: kept off the stack */
    struct status status = {0};
    if (model_config_parse(&config, (const char *)data, size, "config.json", arch_read_config, &status))
        check_config(&config);
    else
        require(status.code == STATUS_BAD_INPUT && status.message[0]);
    config = (struct model_config){.vocab_size = 1000,
                                   .bos_token = -1,
                                   .temperature = 1,
                                   .top_p = 1,
                                   .repetition_penalty = 1};
    status_clear(&status);
    if (generation_config_parse(&config, (const char *)data, size, "generation_config.json", &status))
        check_tokens(&config);
    else
        require(status.code == STATUS_BAD_INPUT && status.message[0]);
    return 0;
}
