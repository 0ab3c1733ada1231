/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and generation_config.json as transformers 4 and 5 write them, for the Llama family.
 *
 * Every field is either understood, known to have no effect on inference, or refused by name. The fields below are
 * facts of the checkpoint; which model_type uses which of them is the business of builder/import_*.c. */
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
    bool attention_bias; /* llama: q,k,v,o projections have biases; qwen2 always has q,k,v biases (import decides) */
    bool mlp_bias;
    uint64_t sliding_window;             /* 0: none */
    bool layer_slides[MODEL_MAX_LAYERS]; /* per layer: uses sliding_window (layer_types, max_window_layers, ...) */
    enum dtype dtype;                    /* torch_dtype / dtype, DTYPE_NONE if absent */
    struct rope_config rope;
    /* Token ids; -1 if there is none. generation_config.json overrides config.json where it names them; llama and
     * mistral have bos 1 and eos 2 where config.json does not mention them (null means none), as in transformers. */
    int64_t bos_token, pad_token;
    int32_t eos_tokens[MODEL_MAX_EOS];
    int eos_count;
    /* Sampling defaults of generation_config.json; do_sample false means greedy (temperature 0). Absent values are 1;
     * top_k 0 means no limit, and is 50 where do_sample is set without top_k, as in transformers. */
    bool do_sample;
    double temperature, top_p, repetition_penalty;
    uint64_t top_k;
};

/* Parses config.json (`text`, `size`); `name` is for messages. A model_type outside the supported list fails with
 * STATUS_BAD_INPUT, naming it and the supported ones. Sizes are range-checked (heads divisible by kv_heads, even
 * head_dim, ...), every product that later code forms is known to fit 63 bits. */
bool model_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                        struct status *status);
/* Applies generation_config.json on top. Fields that would change which tokens come out in a way that is not
 * implemented (beams, suppressed tokens, ...) are refused; those that only steer sampling are refused where do_sample
 * is set; fields that GenerationConfig does not know pass, since transformers ignores them too. */
bool generation_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                             struct status *status);

/* inv_freq[head_dim / 2] and the factor on cos and sin, as transformers computes them in float32: the same roundings in
 * the same order, but for theta's power, which is rounded correctly here and to one unit in the last place there. They stay
 * in float32 whatever the checkpoint's dtype, as transformers keeps them. */
bool rope_frequencies(const struct model_config *config, float *inv_freq, float *attention_scaling,
                      struct status *status);

#endif
