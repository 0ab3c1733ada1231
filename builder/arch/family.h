/* SPDX-License-Identifier: Apache-2.0 */
/* What a family of models consists of, and the blocks that its file is made of: readers of configuration keys
 * (config.c) and parts of a graph (decoder.c). */
#ifndef BUILDER_ARCH_FAMILY_H
#define BUILDER_ARCH_FAMILY_H

#include "builder/graph/graph.h"
#include "formats/base/json.h"
#include "kernels/op/activation.h"

/* ---- decoder.c: x + attention(x), then x + mlp(x), in each layer ---- */

/* Names of modules where they are not the usual ones, which NULL stands for. */
struct decoder_modules {
    const char *layers;             /* model.layers */
    const char *embedding;          /* model.embed_tokens */
    const char *positions;          /* learned positions; usual: none, q and k are rotated */
    uint64_t first_position;        /* row of that table for position 0; nothing reads those before it */
    const char *final_norm;         /* model.norm */
    const char *head;               /* lm_head */
    const char *q, *k, *v, *output; /* self_attn.q_proj, .. */
    const char *q_norm, *k_norm;    /* self_attn.q_norm, .. */
    const char *gate, *up, *down;   /* mlp.gate_proj, .. */
    const char *state_space;        /* mamba */
    const char *xielu;              /* the numbers of an MLP's activation, which is xielu; usual: none */
    const char *output_gate; /* its sigmoid multiplies what attention gives; usual: none, or rows of q's tensor */
};

/* Modules of a layer that normalise what goes into attention and MLP, and what comes out before it is added; NULL: no
 * norm there. */
struct decoder_norms {
    const char *attention_in, *attention_out, *mlp_in, *mlp_out;
};
#define DECODER_PRE_NORM                                                        \
    {                                                                           \
        .attention_in = "input_layernorm", .mlp_in = "post_attention_layernorm" \
    }

#define DECODER_BOTH_NORMS                                                              \
    {                                                                                   \
        .attention_in = "input_layernorm", .attention_out = "post_attention_layernorm", \
        .mlp_in = "pre_feedforward_layernorm", .mlp_out = "post_feedforward_layernorm"  \
    }

/* RMSNorm of q and k before the rotation: none, over each head, or over all heads of q and over all heads of k; or a layer norm of
 * each head with a weight of its own; or an RMSNorm over each head after the rotation. */
enum decoder_qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WIDTH, QK_NORM_HEADS, QK_NORM_ROTATED };

/* How a norm's weight is applied, and whether the row's mean is taken off before (layer normalisation). PLAIN: norms have no
 * tensors. */
enum decoder_norm {
    NORM_RMS,
    NORM_RMS_PLUS_ONE,
    NORM_RMS_PLAIN,
    NORM_LAYER,
    NORM_LAYER_PLAIN,
    NORM_LAYER_BIAS,
    NORM_LAYER_BIAS_PLUS_ONE
};

/* q, k and v in one tensor: one after the other, or for each KV head its heads of q and then k and v. */
enum decoder_fused { FUSED_IN_ORDER, FUSED_BY_KV_HEAD };

/* Modules of an MLP of experts, after the layer's. */
struct expert_names {
    const char *router;         /* its matrix */
    bool router_bias;           /* its logits have a bias */
    const char *selection_bias; /* a tensor; NULL: none */
    const char *scales;         /* a tensor: factors of the experts' weights; NULL: none */
    uint64_t bias_dimensions;   /* of that tensor, the last of which is the experts */
    const char *experts;        /* NULL: all experts are in one tensor of three dimensions */
    /* Those of an expert; with a plain MLP `gate` is NULL. Without `experts`: `up` is NULL, and `gate` has the rows of both. */
    const char *gate, *up, *down;
    /* Without `experts`: */
    bool parameters;         /* the tensors are called so, and biases with _bias after it */
    bool by_turns;           /* rows of gate and up come by turns */
    bool transposed;         /* matrices are [experts, in, out], but with codes of MXFP4 [experts, out, in] */
    const char *shared;      /* an MLP that every row goes through; NULL: none */
    bool shared_is_mlp;      /* its modules are those of the model's other MLPs (struct decoder_modules) */
    const char *shared_gate; /* its rows' factor, the sigmoid of a product; NULL: 1 */
};
extern const struct expert_names expert_usual_names;  /* without shared experts and biases */
extern const struct expert_names expert_shared_names; /* the same with a shared expert and its gate, as Qwen has them */
/* The same with a selection bias and shared experts, as DeepSeek-V3 has them. */
extern const struct expert_names expert_biased_names;
/* The same without that bias, as DeepSeek-V2 has them. */
extern const struct expert_names expert_latent_names;
/* As Granite has them, and its MLP that stands beside experts or alone. */
extern const struct expert_names expert_granite_names;
#define GRANITE_SHARED_MLP .modules = {.down = "shared_mlp.output_linear"}, .fused_gate_up = "shared_mlp.input_linear"

/* The layer that predicts the token after the next one, where its tensors do not have the names of one more layer of the model, with enorm, hnorm,
 * eh_proj and shared_head.norm. */
struct predictor_names {
    const char *layer;                   /* for model.layers.N */
    const char *token_norm, *state_norm; /* for enorm and hnorm, with the path before them */
    const char *projection;              /* for eh_proj */
    const char *norm;                    /* for shared_head.norm; NULL: the model's final norm takes its place */
    bool is_dense;                       /* its MLP has no experts */
};

extern const struct predictor_names predictor_qwen_names;

/* What the class of a model fixes; what config.json says is in struct model_config. */
struct decoder_traits {
    struct decoder_norms norms;
    enum decoder_qk_norm qk_norm;
    enum decoder_norm norm;
    struct decoder_modules modules;
    bool norm_of_experts; /* norms.mlp_out is of layers with experts alone */
    bool norms_apart;     /* with QK_NORM_HEADS each weight is a tensor, not a row of one */
    const char *sinks;    /* tensor of each layer that has a sink for each head; NULL: none */
    bool plain_mlp;       /* no gate: down(act(up(x))) */
    bool transposed;      /* matrices of layers are stored as [in, out] */
    bool shares_norm;     /* with a parallel residual the MLP reads what attention reads */
    const struct decoder_norms
        *other_norms;    /* with config->other_norms in place of `norms`, each with a norm of its own */
    bool embedding_norm; /* a norm without weights after the embedding */
    enum decoder_fused fused;
    bool turns_back;     /* q and k rotate by angles below 0 */
    bool norms_rotated;  /* heads are normalised after they rotate: no rope scaling may scale q and k */
    bool partial_rotary; /* partial_rotary_factor may be below 1 */
    /* Modules that hold q, k and v, and gate and up, one after the other; NULL: each has a module of its own. */
    const char *fused_qkv, *fused_gate_up;
    const struct expert_names *experts;       /* NULL: no layer has experts */
    const struct expert_names *fused_experts; /* with config->fused_experts, `transposed` apart; NULL: the same */
    const struct predictor_names *predictor;  /* NULL: the usual names */
};

/* Module of the layers; and the epilogue of an MLP's first matrix. */
static inline const char *decoder_layers(const struct decoder_traits *traits)
{
    return traits->modules.layers ? traits->modules.layers : "model.layers";
}
static inline int decoder_mlp_epilogue(const struct decoder_traits *traits, const struct model_config *config)
{
    return (int)config->activation + (traits->plain_mlp ? EPILOGUE_PLAIN : 0);
}

/* ---- a family ---- */

struct architecture {
    const char *model_type;   /* config.json: model_type */
    const char *architecture; /* config.json: architectures[0] */
    /* Keys whose meaning depends on the family. Keys that other families read and this function does not must say what
     * their absence means (config_read_unclaimed). */
    model_config_reader *read_config;
    struct decoder_traits decoder;
    const char *own_class; /* architectures[0] of checkpoints from before the class in transformers; NULL: the same */
    bool sections;         /* positions of the rotary embedding come in sections: wrapper_drop_sections */
    bool untried_on_gpu;   /* no engine with it has run on a GPU: for the list of families */
    bool predicts;         /* of the ignored layers, the first one may be used: arch_add_predictor */
    const char *about;     /* for engbuild --list-models and README: a line, with its limits; "small*": see README */
};

/* ---- nodes.c ---- */

/* A matrix and its bias, -1 if it has none. */
struct projection {
    int weight, bias;
};

/* Nodes of a layer, each of which returns the value that it makes. `epilogue`: kernels/op/activation.cuh; `scale`: of the product. The
 * norm is a root mean square norm over the width of x. */
int node_matmul(struct graph *graph, int x, uint32_t layer, struct projection by, int epilogue, double scale,
                const char *label);
int node_rms_norm(struct graph *graph, int x, uint32_t layer, int weight, double eps, const char *label);

/* ---- predictor.c ---- */

/* Sources of weights from `first` on that are tensors of layer `layer` become those of `names`. */
void predictor_rename(struct graph *graph, int first, uint32_t layer, const struct predictor_names *names);

/* ---- latent.c ---- */

/* Latent attention (struct model_latent) of a layer. `table`: of the rotary embedding. */
int latent_attention(struct graph *graph, int x, int table, uint32_t layer);

/* ---- per_layer.c ---- */

/* What each layer gets of a token beside x (Gemma 3n and 4), and the number that its output is multiplied by. */
struct per_layer {
    int embedded; /* the value of the embedding */
    int norm;     /* weight */
};
struct per_layer per_layer_begin(struct graph *graph, int embedded);
/* What follows a layer's MLP: x + norm(projection(act(gate(x)) * input of the layer)), times the layer's number; both where the
 * model has them. `norm`: the layer's norm, by its module. */
typedef int decoder_layer_norm(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer,
                               const char *module, const char *label);
int per_layer_end(struct graph *graph, const struct decoder_traits *traits, const struct per_layer *inputs, int x,
                  uint32_t layer, decoder_layer_norm *norm);

/* ---- recurrent.c ---- */

/* What a layer with recurrent state has in place of attention, by its mixer. */
int recurrent_mixer(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer);
/* x times the sigmoid of `gate`, both values of the same width. */
int node_sigmoid_gate(struct graph *graph, int x, int gate, uint32_t layer, const char *label);

/* ---- experts.c ---- */

/* As how many experts beside the routed ones the layer's shared expert is computed (GRAPH_JOIN_SHARED); 0: on its own. */
uint64_t experts_shared_joined(const struct graph *graph, const struct expert_names *names, uint32_t layer);
/* The weighted sum of the chosen experts of a layer, which `routed_by` chooses, and of `shared` joined ones; and its shared expert with a
 * gate, whose factor for each row makes it an expert that is always chosen. Both return a value. */
int experts_mlp(struct graph *graph, const struct decoder_traits *traits, int routed_by, int x, uint64_t shared,
                uint32_t layer);
int experts_shared(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer);

bool import_decoder(struct graph *graph, const struct decoder_traits *traits, struct status *status);

/* ---- config.c ---- */

enum { CONFIG_NO_TOKEN = -1 };

/* Keys of sizes where they are not the usual ones. */
struct config_keys {
    const char *hidden, *inner, *layers, *heads, *max_position;
};
extern const struct config_keys config_usual_keys;

/* Defaults of the config class in transformers 4.57 and 5.17, for keys that config.json may omit. */
struct config_defaults {
    uint64_t kv_heads; /* 0: as many as heads. A null in config.json always means that */
    uint64_t head_dim; /* 0: hidden_size / heads */
    uint64_t max_position;
    double rms_norm_eps;
    const char *norm_eps_key;       /* NULL: rms_norm_eps */
    const struct config_keys *keys; /* NULL: config_usual_keys */
    uint64_t layers;                /* 0: num_hidden_layers must be there */
    uint64_t inner_times;           /* of hidden_size, where intermediate_size is absent or null; 0: it must be there */
    int32_t bos_token, eos_token, pad_token; /* CONFIG_NO_TOKEN: none */
    int32_t more_eos_tokens[2]; /* further ones; 0: none. With them null in config.json means the default */
};

/* Sizes, heads, rms_norm_eps, tie_word_embeddings, and the class defaults of token ids. All scales become 1, that of
 * attention 1 / sqrt(head_dim). tie_word_embeddings is what it was where the key is absent. */
bool config_sizes(struct model_config *config, struct json_reader *reader, const struct config_defaults *defaults,
                  struct status *status);

/* attention_bias: biases on q, k, v and o; mlp_bias. Default false. */
bool config_attention_bias(struct model_config *config, struct json_reader *reader, struct status *status);
bool config_mlp_bias(struct model_config *config, struct json_reader *reader, struct status *status);
/* A key that the class ignores because it always has this property, or never: another value is refused. */
bool config_fixed(struct json_reader *reader, const char *key, bool value, struct status *status);
bool config_fixed_text(struct json_reader *reader, const char *key, const char *value, struct status *status);

/* How many experts there are and how many a row chooses, by the first of `count_keys` that is there, and their intermediate size
 * (key NULL: intermediate_size is theirs); all 0: no default, the key is required. All layers get experts; groups, eps and scale
 * become those of a plain router. `count_keys`: [2]. */
struct experts_defaults {
    uint64_t count, top_k, intermediate_size;
};
bool config_experts(struct model_config *config, struct json_reader *reader, const char *const *count_keys,
                    const char *top_k_key, const char *size_key, const struct experts_defaults *defaults,
                    struct status *status);
/* Keys of experts that only training reads. */
bool config_unused_experts(struct json_reader *reader, struct status *status);
/* decoder_sparse_step and mlp_only_layers: which layers have experts. */
bool config_sparse_layers(struct model_config *config, struct json_reader *reader, struct status *status);
/* n_group and topk_group, which keep what they are where config.json has no such key. */
bool config_expert_groups(struct model_config *config, struct json_reader *reader, struct status *status);
/* How many experts every row goes through, which are one MLP, and how many layers from the first one on have no experts. */
struct shared_experts_defaults {
    const char *count_key, *dense_key; /* NULL: n_shared_experts, first_k_dense_replace */
    uint64_t count, dense;
};
bool config_shared_experts(struct model_config *config, struct json_reader *reader,
                           const struct shared_experts_defaults *defaults, struct status *status);
/* mlp_layer_types, of "dense" and "sparse", which has experts; absent: the layers are as config_shared_experts left them, and where
 * first_k_dense_replace is there, too, both must agree, unless the former wins. */
bool config_mlp_layers(struct model_config *config, struct json_reader *reader, bool wins, struct status *status);
/* Experts with sigmoid scores and a selection bias, as DeepSeek-V3 has them: all keys above but mlp_layer_types, and
 * routed_scaling_factor. */
struct biased_experts_defaults {
    const char *count_keys[2];
    struct experts_defaults experts;
    struct shared_experts_defaults shared;
    uint64_t groups, top_groups;
    double scale;
    bool renormalise;
};
bool config_biased_experts(struct model_config *config, struct json_reader *reader,
                           const struct biased_experts_defaults *defaults, struct status *status);
/* norm_topk_prob; `absent`: its default. */
bool config_renormalise(struct model_config *config, struct json_reader *reader, bool absent, struct status *status);

/* config_latent.c: q_lora_rank, kv_lora_rank and the widths of heads, and their defaults (NULL: those of DeepSeek-V2 and V3); heads,
 * biases and the scale of attention. Requires: config_sizes has been called, with head_dim 64 as its default. */
bool config_latent(struct model_config *config, struct json_reader *reader, const struct model_latent *defaults,
                   struct status *status);
/* Keys of DeepSeek's own configuration classes that must have one value, or have no effect. */
bool config_deepseek_keys(struct json_reader *reader, const char *scoring, struct status *status);

/* config_recurrent.c: layer_types, of "full_attention" and `name`, which stands for `mixer`. *given: config.json has it; else all
 * layers are as they were. */
bool config_mixers(struct model_config *config, struct json_reader *reader, const char *name, enum layer_mixer mixer,
                   bool *given, struct status *status);
/* The layers with attention are those of an array of indices, all others are of `mixer`, if config.json has it. applies false: layers
 * stay as they are, but the key must be possible. */
bool config_attention_indices(struct model_config *config, struct json_reader *reader, const char *key,
                              enum layer_mixer mixer, bool applies, struct status *status);
/* Refuses a model without attention: engines have a KV cache. */
bool config_some_attention(const struct model_config *config, const struct json_reader *reader, struct status *status);
/* The sizes of state spaces, by keys that differ between families, and their defaults. All layers are as they were. */
struct state_space_keys {
    const char *heads, *groups, *state_dim, *head_dim, *kernel, *expand, *conv_bias, *projection_bias, *chunk;
    const char *activation; /* of the convolution and the gate: silu alone */
};
extern const struct state_space_keys config_mamba_keys;
struct state_space_defaults {
    uint64_t heads, groups, state_dim;
    uint64_t head_dim; /* 0: the elements of all heads / heads */
    uint64_t width;    /* elements of all heads, which the class reads under another key; 0: expand * hidden_size */
};
bool config_state_space(struct model_config *config, struct json_reader *reader, const struct state_space_keys *keys,
                        const struct state_space_defaults *defaults, struct status *status);
/* Marks all keys of state spaces as read, for a model without them. */
void config_no_state_space(struct json_reader *reader, const struct state_space_keys *keys);
/* time_step_limit: the least and the greatest time step. */
bool config_time_step_limit(struct model_config *config, struct json_reader *reader, struct status *status);
/* What LFM2 has with experts and without. */
extern const struct config_defaults config_lfm2_defaults;
#define LFM2_TRAITS                                                                            \
    .norms = {.attention_in = "operator_norm", .mlp_in = "ffn_norm"}, .qk_norm = QK_NORM_HEAD, \
    .modules = {.final_norm = "model.embedding_norm",                                          \
                .output = "self_attn.out_proj",                                                \
                .q_norm = "self_attn.q_layernorm",                                             \
                .k_norm = "self_attn.k_layernorm",                                             \
                .gate = "feed_forward.w1",                                                     \
                .up = "feed_forward.w3",                                                       \
                .down = "feed_forward.w2"}
/* conv_L_cache and conv_bias, where some layers have MIXER_SHORT_CONV. */
bool config_short_conv(struct model_config *config, struct json_reader *reader, struct status *status);
/* The same for the delta rule: by layer_types ("linear_attention"), else all layers but every full_attention_interval-th. */
bool config_delta_rule_layers(struct model_config *config, struct json_reader *reader, struct status *status);
/* linear_*: heads and widths of the delta rule. */
bool config_delta_rule(struct model_config *config, struct json_reader *reader, struct status *status);

/* All keys of a Command R but use_qk_norm, a DeepSeek-V3, a Gemma 2, a GLM, a GPT-2, a Granite, one with experts, a Hunyuan, in the files
 * of these, for the families that go on from it. */
model_config_reader config_cohere, config_deepseek_v3, config_gemma2, config_glm, config_gpt2, config_granite,
    config_granitemoe, config_hunyuan;

/* ministral3.c: takes llama_4_scaling_beta out of the objects that describe the rotary embedding; if it is not 0, positions end where it
 * would count. *given: there is such an object. */
bool config_llama_4_scaling(struct model_config *config, struct json_reader *reader, bool *given,
                            struct status *status);

/* What Hunyuan has with experts and without. */
#define HUNYUAN_TRAITS                                                            \
    .norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_ROTATED, .norms_rotated = true, \
    .modules = {.q_norm = "self_attn.query_layernorm", .k_norm = "self_attn.key_layernorm"}

/* A factor from 1e-6 to 1e6. *value is unchanged if config.json has no such key. */
bool config_factor(struct json_reader *reader, const char *key, double *value, struct status *status);
/* A rotary embedding's theta under a key of the family's own; *theta stays where the key is absent. */
bool config_theta(struct json_reader *reader, const char *key, double *theta, struct status *status);

/* Which layers attend through a sliding window: sliding_window, use_sliding_window, max_window_layers, layer_types.
 * `absent`: the window if config.json has no sliding_window, 0: none. */
enum config_window {
    CONFIG_WINDOW_NEVER,   /* the class ignores the keys: only values that mean no window are allowed */
    CONFIG_WINDOW_ALWAYS,  /* all, if there is a window */
    CONFIG_WINDOW_IF_USED, /* all, if use_sliding_window */
    /* As layer_types says, else, if use_sliding_window: */
    CONFIG_WINDOW_BY_LAYER,   /* those from max_window_layers on */
    CONFIG_WINDOW_BY_TURNS,   /* every other one below max_window_layers, from the first on */
    CONFIG_WINDOW_UNROTATED,  /* those that do not rotate. Requires: their rope is known */
    CONFIG_WINDOW_FROM_LAYER, /* as layer_types says, else those from max_window_layers (62) on, if there is a window */
};
bool config_window(struct model_config *config, struct json_reader *reader, enum config_window kind, uint64_t absent,
                   struct status *status);
/* Layers slide as layer_types says, else all but every `period`-th; sliding_window_pattern may give another period. A null
 * sliding_window: no layer slides. */
bool config_window_pattern(struct model_config *config, struct json_reader *reader, uint64_t period, uint64_t absent,
                           struct status *status);
/* Refuses sliding_window_pattern, for classes that do not read it. Before config_window_pattern. */
bool config_no_window_pattern(struct json_reader *reader, struct status *status);
/* Refuses a rope_theta other than `theta` beside no "rope_parameters" (or, with `scaling`, "rope_scaling"), for classes that read it there alone. */
bool config_theta_within(struct json_reader *reader, double theta, bool scaling, struct status *status);
/* As config_window_pattern; where some layers have a window, only those rotate. */
bool config_window_rotates(struct model_config *config, struct json_reader *reader, uint64_t period, uint64_t absent,
                           struct status *status);

/* Defaults of the family for keys of the rotary embedding: theta, and the part of a head that rotates. */
bool config_rope_defaults(struct model_config *config, struct json_reader *reader, double theta,
                          double partial_rotary_factor, struct status *status);
/* Layers with a window have a rotary embedding of their own. theta: its default, 0: that of the main one. */
void config_local_rope(struct model_config *config, double theta);

/* Scores are divided by the root of query_pre_attn_scalar, and capped by attn_logit_softcapping, logits by
 * final_logit_softcapping; null: not. */
bool config_scalar_and_caps(struct model_config *config, struct json_reader *reader, double scores, double logits,
                            struct status *status);

/* attention_head_dim, another name of head_dim, must say the same. */
bool config_attention_head_dim(const struct model_config *config, struct json_reader *reader, struct status *status);

/* final_logit_softcapping alone; null: no cap. `absent`: its default, 0: none. */
bool config_cap(struct model_config *config, struct json_reader *reader, double absent, struct status *status);

/* gemma.c: what all Gemmas have, but for scores, windows and rotation. hidden_act is passed over. */
bool config_gemma(struct model_config *config, struct json_reader *reader, uint64_t kv_heads, uint64_t max_position,
                  struct status *status);

/* use_bidirectional_attention: only models that attend to earlier tokens alone are supported. */
bool config_causal(struct json_reader *reader, struct status *status);

/* The activation under another key than hidden_act, `absent` where config.json has no such key. */
bool config_activation(struct model_config *config, struct json_reader *reader, const char *key, enum activation absent,
                       struct status *status);

/* auto_map: the checkpoint brings modelling code of its own, which is not run. Allowed are the classes in the list: code
 * that computes what the class in transformers does. */
bool config_own_code(const struct model_config *config, struct json_reader *reader, const char *const *classes,
                     size_t count, struct status *status);

/* The activation under the key that the class reads; hidden_act, which it does not read, must say the same. */
bool config_own_activation(struct model_config *config, struct json_reader *reader, const char *key,
                           enum activation absent, struct status *status);

/* hidden_act, auto_map, and the keys of the blocks above, as far as read_config left them: each must say what its
 * absence means. */
bool config_read_unclaimed(struct model_config *config, struct json_reader *reader, struct status *status);

#endif
