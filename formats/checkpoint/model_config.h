/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and generation_config.json of transformers 4 and 5.
 *
 * Every field is understood, known to have no effect on inference, or refused by name. This folder reads what all models
 * have in common. The keys that describe a family of models are read by a function of the caller (builder/arch), which
 * fills the fields below. */
#ifndef FORMATS_CHECKPOINT_MODEL_CONFIG_H
#define FORMATS_CHECKPOINT_MODEL_CONFIG_H

#include "formats/checkpoint/quant_config.h"
#include "formats/encoding/dtype.h"

struct json_reader;
struct model_wrapper;

/* Size limits, far above any real model. They keep every product that later code forms below 2^63; the largest is the
 * bytes of a KV cache: layers * kv_heads * head_dim * 2 * 4 * max_position <= 2^(10 + 18 + 1 + 2 + 30). */
enum {
    MODEL_MAX_EOS = 16,
    MODEL_MAX_LAYERS = 1024,
    MODEL_MAX_HIDDEN = 1 << 18,
    MODEL_MAX_INTERMEDIATE = 1 << 20,
    MODEL_MAX_HEADS = 1 << 12,
    MODEL_MAX_HEAD_DIM = 1 << 10,
    MODEL_MAX_ATTENTION_WIDTH = 1 << 18, /* heads * head_dim */
    MODEL_MAX_VOCAB = 1 << 24,
    MODEL_MAX_POSITION = 1 << 30,
    MODEL_MAX_EXPERTS = 1 << 10,
    MODEL_MAX_TOP_K = 1 << 6,
};

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_PROPORTIONAL };

struct rope_config {
    enum rope_type type;
    uint64_t rotary_dim; /* elements of a head that are rotated, its first ones: even, at most head_dim */
    double theta;
    double factor;                  /* linear, llama3, yarn, proportional */
    uint64_t turning_pairs;         /* proportional: pairs that turn, the first ones of the rotary_dim / 2 */
    double low_freq_factor;         /* llama3 */
    double high_freq_factor;        /* llama3 */
    uint64_t original_max_position; /* llama3, yarn; 0: max_position_embeddings. longrope: from 1 */
    double beta_fast, beta_slow;    /* yarn: 32 and 1 unless given */
    double attention_factor;        /* yarn, longrope: 0 = derive from factor (and mscale, mscale_all_dim) */
    double mscale, mscale_all_dim;  /* yarn: 0 = absent */
    bool truncate;                  /* yarn: default true */
    /* longrope: divisors of the frequencies of sequences up to original_max_position tokens, and of longer ones. */
    double short_factor[MODEL_MAX_HEAD_DIM / 2], long_factor[MODEL_MAX_HEAD_DIM / 2]; /* [rotary_dim / 2] */
};

/* Which rotary embedding a layer has. */
enum layer_rope { LAYER_ROPE_MAIN, LAYER_ROPE_LOCAL, LAYER_ROPE_NONE, LAYER_ROPE_KINDS };

/* What mixes the tokens of a sequence in a layer. MIXER_BOTH: attention and a state space side by side, whose results are added. */
enum layer_mixer { MIXER_ATTENTION, MIXER_SHORT_CONV, MIXER_DELTA_RULE, MIXER_STATE_SPACE, MIXER_BOTH, MIXER_NONE };
static inline bool mixer_attends(enum layer_mixer mixer) { return mixer == MIXER_ATTENTION || mixer == MIXER_BOTH; }
static inline bool mixer_is_recurrent(enum layer_mixer mixer)
{
    return mixer != MIXER_ATTENTION && mixer != MIXER_NONE;
}
static inline bool mixer_is_state_space(enum layer_mixer mixer)
{
    return mixer == MIXER_STATE_SPACE || mixer == MIXER_BOTH;
}

/* One layer, where layers of a model differ. */
struct model_layer {
    enum layer_mixer mixer;
    uint64_t window; /* attention reads this many latest positions; 0: all */
    enum layer_rope rope;
    bool experts; /* its MLP is one of experts */
    bool no_mlp;  /* it ends after its mixer */
    /* Where they are not those of the model (0: they are): KV heads, elements of a head, and rows of the MLP without experts. */
    uint64_t kv_heads, head_dim, inner;
    bool keys_are_values; /* v is what k is before its norm and its rotation */
    uint32_t shares;      /* the layer has no keys and values, but reads those of layer shares - 1; 0: it has its own */
};

/* The MLPs of experts, the same in all layers that have them. count 0: no layer has. */
struct model_experts {
    uint64_t count, top_k, intermediate_size;
    uint64_t shared_size; /* intermediate size of the expert that every row goes through; 0: there is none */
    /* The router, in the terms of kernels/router/router.h. */
    int score, renormalise, group_score;
    double eps, scale;
    uint64_t groups, top_groups;
};

/* Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): the keys and values of all heads are products of one latent row,
 * which the KV cache has instead of them. kv_rank 0: the model has none. Else head_dim is kv_rank + rope_dim, the width of a row of
 * the cache, and kv_heads is 1. */
struct model_latent {
    uint64_t kv_rank;                       /* elements of the latent row */
    uint64_t q_rank;                        /* of the row that q is a product of; 0: q is one of the layer's input */
    uint64_t nope_dim, rope_dim, value_dim; /* of a head: elements of q and k that do not rotate and that do; of v */
};

/* Layers with recurrent state (kernels/short_conv, kernels/delta_rule, kernels/state_space), the same in all layers that have it. */
struct model_recurrent {
    uint64_t kernel;      /* tokens that a convolution reads; 0: no layer has recurrent state */
    uint64_t channels;    /* of the convolution */
    bool conv_bias;       /* of the convolution */
    bool projection_bias; /* of the projections around it; not of MIXER_DELTA_RULE */
    /* MIXER_DELTA_RULE. MIXER_STATE_SPACE: B and C are the keys and queries of a group of heads, x the values. */
    uint64_t key_heads, value_heads, key_dim, value_dim;
    double dt_min, dt_max; /* MIXER_STATE_SPACE: limits of the time step; dt_max 0: no layer is one */
    uint64_t
        norm_groups; /* MIXER_STATE_SPACE: equal groups of columns that are normalised before the last projection */
    /* MIXER_STATE_SPACE: factors on the rows of the first projection, z, x, B, C and dt, and on the product of the last one; 0: 1. */
    double z_scale, xbc_scale[3], dt_scale, out_scale;
    bool
        apart; /* its projections: q, k and v in one tensor, z, b and a each in another; else the rows of two by key heads */
};

/* What the text part of a checkpoint has for other input alone, and text passes over. */
struct model_unused {
    uint64_t layers;              /* of the checkpoint, with those that are left out; 0: none is */
    bool layer[MODEL_MAX_LAYERS]; /* [layers] */
    uint64_t embedding_rows;      /* of the embedding after those of the vocabulary */
};

struct model_config {
    char model_type[32];
    char architecture[64]; /* architectures[0], "" if absent */
    uint64_t hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, vocab_size, max_position;
    const char *position_limit; /* why max_position is less than max_position_embeddings; a constant; NULL: it is not */
    double rms_norm_eps;
    bool tie_word_embeddings;
    bool
        tied_without_head; /* whether embeddings are tied is said by the checkpoint, which has an LM head or not; without
                             * weights tie_word_embeddings counts */
    /* All experts of a layer are in mlp.experts.gate_up_proj and down_proj; as [experts, in, out]. */
    bool fused_experts, fused_transposed;
    const struct model_wrapper
        *wrapper;               /* borrowed: the model is the text part of a checkpoint with others; NULL: it is all */
    struct model_unused unused; /* with a wrapper */
    bool qkv_bias, output_bias; /* of the attention projections */
    bool mlp_bias;              /* of all matrices of the MLP, and of its experts */
    bool head_bias;             /* of the LM head, which is not tied then */
    bool parallel_residual;     /* attention and MLP read the same x, and both are added to it */
    bool other_norms;           /* norms of layers have other names, and those of attention and MLP are two */
    int activation;             /* of the MLP: enum activation (kernels/op/activation.cuh) */
    double swiglu_limit;        /* of ACTIVATION_CLAMPED */
    double logits_cap;          /* logits become cap * tanh(logits / cap); 0: they do not */
    double scores_cap;          /* scores of attention likewise */
    /* Factors on embeddings, on the scores of attention, on what attention and MLP add to the residual, and on logits. */
    double embedding_scale, attention_scale, residual_scale, logits_scale;
    bool scores_by_layer; /* scores of attention are divided by the number of the layer, too, from 1 on */
    /* What attention adds, the gate of the MLP before its activation, and what the MLP adds, are multiplied by these, too; 0: 1. */
    double attention_out_scale, gate_scale, mlp_out_scale;
    struct model_layer layer[MODEL_MAX_LAYERS]; /* [layers] */
    struct model_experts experts;
    struct model_latent latent;
    struct model_recurrent recurrent;
    bool output_gate; /* attention: q has a gate of the same width, whose sigmoid multiplies what attention gives */
    bool no_qk_norm;  /* q and k are not normalised, though the family's class may do so */
    bool value_norms; /* each head of v is normalised without a weight */
    /* Elements of a vector of each token that each layer gets beside x (builder/arch/per_layer.c); 0: there is none. */
    uint64_t per_layer_size;
    bool experts_beside; /* layers with experts have the other MLP, too, and a norm before and after each */
    bool layer_scalars;  /* what a layer makes is multiplied by a number of the layer */
    bool head_norms;     /* each head of q and k has a layer norm of its own, without a bias */
    uint64_t
        ignored_layers; /* layers after the last one that the checkpoint has for other uses than predicting the next token */
    /* The last of `layers` predicts the token after the next one (arch_add_predictor); it may have an embedding and an LM head of its own. */
    bool predicts, predictor_embedding, predictor_head;
    const char
        *ignored_prefix; /* of tensors that serve other uses, those of ignored layers, too; a constant; NULL: none */
    enum dtype dtype;    /* torch_dtype / dtype, DTYPE_NONE if absent */
    struct rope_config rope, local_rope; /* of layers with LAYER_ROPE_MAIN and with LAYER_ROPE_LOCAL */
    bool has_local_rope;                 /* config.json may describe both: rope_config_parse */
    bool
        rotary_pairs; /* rows of q and k in the checkpoint: x0, y0, x1, y1, .. of the pairs that turn, not all x, then all y */
    struct quant_config quantisation;
    /* Token ids; -1: none. generation_config.json overrides config.json, which overrides the family's defaults; null
     * means none. */
    int64_t bos_token, pad_token;
    int32_t eos_tokens[MODEL_MAX_EOS];
    int eos_count;
    /* Sampling defaults of generation_config.json; without do_sample greedy (temperature 0). Absent values are 1. top_k
     * 0 means no limit; with do_sample and no top_k it is 50, as in transformers. */
    bool do_sample;
    double temperature, top_p, repetition_penalty;
    uint64_t top_k;
};

/* Reads the keys of a family. Called with model_type set in a config that is 0 otherwise. Sets architecture, all sizes,
 * biases and layers, the rotary embedding (rope_config_parse), and the class defaults of bos_token, pad_token and
 * eos_tokens. Fails with STATUS_BAD_INPUT for a model_type that it does not know. */
typedef bool model_config_reader(struct model_config *config, struct json_reader *reader, struct status *status);

/* Parses config.json (`text`, `size`); `name` is for messages. Fields that neither `read_family` nor this folder reads
 * are refused. */
bool model_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                        model_config_reader *read_family, struct status *status);
/* Marks the fields as read that this folder knows to have no effect on what any model computes; some must have one value. */
bool model_config_check_plain_fields(struct json_reader *reader, struct status *status);
/* rope_theta, partial_rotary_factor, original_max_position_embeddings, rope_scaling and rope_parameters of config.json.
 * Where rope.theta, rope.rotary_dim or local_rope.theta are not 0, they are the family's defaults; where rope.type is not
 * ROPE_DEFAULT, all of rope is, for a config.json that has no such object. With has_local_rope,
 * rope_parameters may have an object for each kind of layer ("full_attention", "sliding_attention"), and all other keys
 * describe the main embedding; the local one is then plain, with local_rope.theta or else the main theta.
 * Requires: head_dim and max_position are set. */
bool rope_config_parse(struct model_config *config, struct json_reader *reader, struct status *status);
/* Applies generation_config.json. Fields that would change the generated tokens in a way that is not implemented
 * (beams, suppressed tokens, ...) are refused; those that only change sampling are refused with do_sample. Fields
 * unknown to GenerationConfig are allowed, since transformers ignores them too. */
bool generation_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                             struct status *status);

static inline uint64_t model_head_dim(const struct model_config *config, uint64_t layer)
{
    return config->layer[layer].head_dim ? config->layer[layer].head_dim : config->head_dim;
}
static inline uint64_t model_kv_heads(const struct model_config *config, uint64_t layer)
{
    return config->layer[layer].kv_heads ? config->layer[layer].kv_heads : config->kv_heads;
}
/* The layer whose keys and values the layer reads. */
static inline uint32_t model_kv_layer(const struct model_config *config, uint32_t layer)
{
    return config->layer[layer].shares ? config->layer[layer].shares - 1 : layer;
}

/* Elements of a head that rotate where partial_rotary_factor is 1, in layers with this embedding. The number of layers may not
 * have been checked yet. */
static inline uint64_t rope_dim_of(const struct model_config *config, enum layer_rope kind)
{
    if (config->latent.kv_rank) return config->latent.rope_dim;
    for (uint64_t i = 0; i < config->layers && i < MODEL_MAX_LAYERS; i++)
        if (config->layer[i].rope == kind && mixer_attends(config->layer[i].mixer)) return model_head_dim(config, i);
    return config->head_dim;
}
static inline uint64_t rope_whole_dim(const struct model_config *config)
{
    return rope_dim_of(config, LAYER_ROPE_MAIN);
}

/* Layers that have a KV cache. */
static inline uint64_t model_attention_layers(const struct model_config *config)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < config->layers; i++)
        count += mixer_attends(config->layer[i].mixer) && !config->layer[i].shares;
    return count;
}

/* What multiplies the scores of latent attention beside 1 / sqrt(nope_dim + rope_dim): the square of YaRN's factor for all
 * dimensions, with mscale_all_dim; else 1. */
double rope_latent_score_scale(const struct rope_config *rope);

/* Sets of frequencies of an embedding: 2 if longer sequences than original_max_position have others (longrope), else 1.
 * `max_position`: the model's. */
uint64_t rope_sets(const struct rope_config *rope, uint64_t max_position);
/* Computes inv_freq[rope_sets, rotary_dim / 2] and the factor on cos and sin, as transformers does in float32: the same roundings in
 * the same order, except theta's power, which is correctly rounded here and within one unit in the last place there.
 * They are float32 for every dtype of the checkpoint, as in transformers. */
bool rope_frequencies(const struct rope_config *rope, uint64_t max_position, float *inv_freq, float *attention_scaling,
                      struct status *status);

/* Token ids, sampling defaults and other fields that control generation (generation_config.c). They belong in
 * generation_config.json, but older checkpoints have them in config.json: both are read by the same rules. */
bool generation_fields_parse(struct model_config *config, struct json_reader *reader, struct status *status);

#endif
