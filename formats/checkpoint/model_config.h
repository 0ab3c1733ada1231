/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and generation_config.json of transformers 4 and 5, for the Llama family.
 *
 * Every field is understood, known to have no effect on inference, or refused by name. The fields below are facts of
 * the checkpoint; builder/arch decides which model_type uses which of them. */
#ifndef FORMATS_CHECKPOINT_MODEL_CONFIG_H
#define FORMATS_CHECKPOINT_MODEL_CONFIG_H

#include "formats/encoding/dtype.h"
#include "formats/base/status.h"

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope_config {
    enum rope_type type;
    double theta;
    double factor;                  /* linear, llama3, yarn */
    double low_freq_factor;         /* llama3 */
    double high_freq_factor;        /* llama3 */
    uint64_t original_max_position; /* llama3, yarn; 0: max_position_embeddings */
    double beta_fast, beta_slow;    /* yarn: 32 and 1 unless given */
    double attention_factor;        /* yarn: 0 = derive from factor (and mscale, mscale_all_dim) */
    double mscale, mscale_all_dim;  /* yarn: 0 = absent */
    bool truncate;                  /* yarn: default true */
};

enum { MODEL_MAX_EOS = 16, MODEL_MAX_LAYERS = 1024 };

struct model_config {
    char model_type[32];   /* "llama", "mistral", "qwen2", "qwen3" */
    char architecture[64]; /* architectures[0], "" if absent */
    uint64_t hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, vocab_size, max_position;
    double rms_norm_eps;
    bool tie_word_embeddings;
    bool
        attention_bias; /* llama: q, k, v, o projections have biases; qwen2 always has q, k, v biases (builder/arch decides) */
    bool mlp_bias;
    uint64_t sliding_window; /* 0: none */
    bool layer_slides
        [MODEL_MAX_LAYERS]; /* whether the layer uses sliding_window (layer_types, max_window_layers, ...) */
    enum dtype dtype;       /* torch_dtype / dtype, DTYPE_NONE if absent */
    struct rope_config rope;
    /* Token ids; -1: none. generation_config.json overrides config.json. As in transformers, llama and mistral have bos
     * 1 and eos 2 if config.json does not have the fields; null means none. */
    int64_t bos_token, pad_token;
    int32_t eos_tokens[MODEL_MAX_EOS];
    int eos_count;
    /* Sampling defaults of generation_config.json; without do_sample greedy (temperature 0). Absent values are 1. top_k
     * 0 means no limit; with do_sample and no top_k it is 50, as in transformers. */
    bool do_sample;
    double temperature, top_p, repetition_penalty;
    uint64_t top_k;
};

/* Parses config.json (`text`, `size`); `name` is for messages. An unsupported model_type fails with STATUS_BAD_INPUT,
 * which names it and the supported ones. Sizes are range-checked (heads divisible by kv_heads, even head_dim, ...);
 * every product that later code forms fits in 63 bits. */
bool model_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                        struct status *status);
/* Applies generation_config.json. Fields that would change the generated tokens in a way that is not implemented
 * (beams, suppressed tokens, ...) are refused; those that only change sampling are refused with do_sample. Fields
 * unknown to GenerationConfig are allowed, since transformers ignores them too. */
bool generation_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                             struct status *status);

/* Computes inv_freq[head_dim / 2] and the factor on cos and sin, as transformers does in float32: the same roundings in
 * the same order, except theta's power, which is correctly rounded here and within one unit in the last place there.
 * They are float32 for every dtype of the checkpoint, as in transformers. */
bool rope_frequencies(const struct model_config *config, float *inv_freq, float *attention_scaling,
                      struct status *status);

#endif
