/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata of a GGUF file as config.json. Sources: keys as llama.cpp's converter writes them (gguf-py/gguf/constants.py,
 * convert_hf_to_gguf.py), and what llama.cpp computes with them. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/checkpoint/gguf_model.h"

static const struct architecture {
    const char *name;                    /* general.architecture */
    const char *model_type, *of_experts; /* of config.json; with experts, NULL: it has none, or always some */
    bool rotary_pairs;                   /* the converter permutes rows of q and k */
    bool attention_biases;               /* config.json says whether there are some; otherwise the class does */
    bool mlp_biases;
} architectures[] = {
    {"llama", "llama", "mixtral", true, true, true},
    {"qwen2", "qwen2", NULL, false, false, false},
    {"qwen3", "qwen3", NULL, false, true, false},
    {"qwen3moe", NULL, "qwen3_moe", false, true, false},
};

/* The keys of the file while they become config.json. */
struct translation {
    struct gguf *file;
    const struct architecture *architecture;
    uint64_t experts;
    json_t *config; /* owned */
    struct status *status;
    char key[96]; /* the last that key_of made */
};

/* ARCHITECTURE.name */
static const char *key_of(struct translation *t, const char *name)
{
    snprintf(t->key, sizeof t->key, "%s.%s", t->architecture->name, name);
    return t->key;
}

static bool put(struct translation *t, json_t *object, const char *field, json_t *value)
{
    return json_put(object, field, value) || status_fail(t->status, STATUS_MACHINE, "out of memory");
}

/* jansson has integers of 63 bits; larger numbers are out of every range. */
static bool put_u64(struct translation *t, json_t *object, const char *field, uint64_t value)
{
    return put(t, object, field, json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value));
}

static bool copy_u64(struct translation *t, const char *name, const char *field, uint64_t *value)
{
    return gguf_get_u64(t->file, key_of(t, name), true, value, t->status) && put_u64(t, t->config, field, *value);
}

/* A number of the file: JSON has no NaN and no infinity. */
static bool copy_real(struct translation *t, const char *name, bool required, json_t *object, const char *field)
{
    double value = -1;
    const char *key = key_of(t, name);
    if (!required && !gguf_get(t->file, key)) return true;
    if (!gguf_get_real(t->file, key, true, &value, t->status)) return false;
    if (value - value != 0) return gguf_fail_key(t->file, key, "a finite number", "NaN or infinity", t->status);
    return put(t, object, field, json_real(value));
}

/* A key that, if it is there, must have this value: what others mean is not implemented. */
static bool demand_u64(struct translation *t, const char *key, uint64_t value)
{
    char expected[32], found[32];
    uint64_t has = value;
    if (!gguf_get_u64(t->file, key, false, &has, t->status)) return false;
    snprintf(expected, sizeof expected, "%" PRIu64, value);
    snprintf(found, sizeof found, "%" PRIu64, has);
    return has == value || gguf_fail_key(t->file, key, expected, found, t->status);
}

/* ---- the file ---- */

static bool find_architecture(struct translation *t)
{
    const char *text = NULL;
    size_t bytes = 0;
    char found[64];
    if (!gguf_get_string(t->file, "general.architecture", true, &text, &bytes, t->status)) return false;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (strlen(architectures[i].name) == bytes && memcmp(architectures[i].name, text, bytes) == 0)
            t->architecture = &architectures[i];
    if (t->architecture) return true;
    bool printable = bytes < 48;
    for (size_t i = 0; printable && i < bytes; i++) printable = text[i] >= ' ' && text[i] < 0x7f;
    snprintf(found, sizeof found, printable ? "'%.*s'" : "other text", (int)(bytes < 48 ? bytes : 48), text);
    return gguf_fail_key(t->file, "general.architecture", "'llama', 'qwen2', 'qwen3' or 'qwen3moe'", found, t->status);
}

/* A whole model: no adapter, no part of a split one. */
static bool check_file(struct translation *t)
{
    const char *text = NULL;
    size_t bytes = 0;
    uint64_t parts = 1;
    if (!gguf_get_string(t->file, "general.type", false, &text, &bytes, t->status) ||
        !gguf_get_u64(t->file, "split.count", false, &parts, t->status))
        return false;
    if (text && (bytes != 5 || memcmp(text, "model", 5) != 0))
        return gguf_fail_key(t->file, "general.type", "'model'", "another type of file", t->status);
    return parts <= 1 || status_fail(t->status, STATUS_BAD_INPUT,
                                     "%s: expected a whole model, found one of %" PRIu64
                                     " parts; join them with llama-gguf-split --merge",
                                     t->file->path, parts);
}

/* Every key of the architecture was read. */
static bool check_all_read(struct translation *t)
{
    const size_t length = strlen(t->architecture->name);
    for (size_t i = 0; i < t->file->key_count; i++) {
        const struct gguf_key *key = &t->file->keys[i];
        if (key->is_read || strncmp(key->name, t->architecture->name, length) != 0 || key->name[length] != '.')
            continue;
        return status_fail(t->status, STATUS_BAD_INPUT,
                           "%s: key '%.160s' is not understood; an engine without it could compute something else",
                           t->file->path, key->name);
    }
    return true;
}

/* ---- sizes ---- */

static bool has_tensor(const struct translation *t, const char *name)
{
    return gguf_find_tensor(t->file, name) != NULL;
}

/* The embedding has a row for each token. */
static bool translate_vocabulary(struct translation *t)
{
    const struct gguf_tensor *embedding = gguf_find_tensor(t->file, "token_embd.weight");
    if (!embedding || embedding->rank != 2)
        return status_fail(t->status, STATUS_BAD_INPUT, "%s: tensor 'token_embd.weight': expected a matrix, found %s",
                           t->file->path, embedding ? "another shape" : "nothing");
    return demand_u64(t, key_of(t, "vocab_size"), embedding->shape[0]) &&
           put_u64(t, t->config, "vocab_size", embedding->shape[0]) &&
           put(t, t->config, "tie_word_embeddings", json_boolean(!has_tensor(t, "output.weight")));
}

static bool translate_heads(struct translation *t, uint64_t hidden, uint64_t *head_dim)
{
    uint64_t heads = 0;
    if (!copy_u64(t, "attention.head_count", "num_attention_heads", &heads)) return false;
    uint64_t kv_heads = heads;
    *head_dim = heads && hidden % heads == 0 ? hidden / heads : 0;
    if (!gguf_get_u64(t->file, key_of(t, "attention.head_count_kv"), false, &kv_heads, t->status) ||
        !put_u64(t, t->config, "num_key_value_heads", kv_heads) ||
        !gguf_get_u64(t->file, key_of(t, "attention.key_length"), false, head_dim, t->status) ||
        !demand_u64(t, key_of(t, "attention.value_length"), *head_dim))
        return false;
    return !*head_dim || put_u64(t, t->config, "head_dim", *head_dim);
}

static bool translate_experts(struct translation *t)
{
    const struct architecture *architecture = t->architecture;
    const bool always = !architecture->model_type;
    uint64_t used;
    if (!architecture->of_experts)
        return demand_u64(t, key_of(t, "expert_count"), 0) && demand_u64(t, key_of(t, "expert_used_count"), 0);
    if (!gguf_get_u64(t->file, key_of(t, "expert_count"), always, &t->experts, t->status)) return false;
    if (!t->experts && always) return gguf_fail_key(t->file, key_of(t, "expert_count"), "1 or more", "0", t->status);
    if (!t->experts) return demand_u64(t, key_of(t, "expert_used_count"), 0);
    if (!put_u64(t, t->config, always ? "num_experts" : "num_local_experts", t->experts) ||
        !copy_u64(t, "expert_used_count", "num_experts_per_tok", &used))
        return false;
    return !always || (copy_u64(t, "expert_feed_forward_length", "moe_intermediate_size", &used) &&
                       put(t, t->config, "norm_topk_prob", json_true()));
}

static bool translate_sizes(struct translation *t, uint64_t *head_dim, uint64_t *positions)
{
    uint64_t hidden = 0, ignored;
    return copy_u64(t, "embedding_length", "hidden_size", &hidden) &&
           copy_u64(t, "feed_forward_length", "intermediate_size", &ignored) &&
           copy_u64(t, "block_count", "num_hidden_layers", &ignored) &&
           copy_u64(t, "context_length", "max_position_embeddings", positions) &&
           copy_real(t, "attention.layer_norm_rms_epsilon", true, t->config, "rms_norm_eps") && translate_experts(t) &&
           translate_vocabulary(t) && translate_heads(t, hidden, head_dim);
}

/* Biases are there if those of the first layer are; the others must be, too, when weights are bound. */
static bool translate_biases(struct translation *t)
{
    const bool attention = has_tensor(t, "blk.0.attn_q.bias") || has_tensor(t, "blk.0.attn_output.bias");
    if (t->experts && t->architecture->model_type) return true; /* Mixtral's class has none */
    if (t->architecture->attention_biases && !put(t, t->config, "attention_bias", json_boolean(attention)))
        return false;
    return !t->architecture->mlp_biases ||
           put(t, t->config, "mlp_bias", json_boolean(has_tensor(t, "blk.0.ffn_gate.bias")));
}

/* ---- rotary embedding ---- */

/* rope_freqs.weight: divisors of the frequencies, of Llama 3.1 for example, whatever formula they come from. They are what
 * longrope calls short_factor; it has no factor on the scores as long as all positions count as short. */
static bool translate_divisors(struct translation *t, const struct gguf_tensor *divisors, uint64_t positions,
                               json_t *scaling)
{
    if (divisors->type != GGUF_TENSOR_F32 || divisors->rank != 1 || divisors->shape[0] > MODEL_MAX_HEAD_DIM / 2)
        return status_fail(t->status, STATUS_BAD_INPUT,
                           "%s: tensor 'rope_freqs.weight': expected F32 with one element for each frequency, found "
                           "another type or shape",
                           t->file->path);
    json_t *list = json_array();
    bool ok = list != NULL;
    for (uint64_t i = 0; ok && i < divisors->shape[0]; i++) {
        const double value = (double)gguf_f32_at(divisors->data, i);
        ok = json_add(list, value - value == 0 ? json_real(value) : json_null()); /* null is refused as no number */
    }
    ok = ok && json_put(scaling, "rope_type", json_string("longrope")) &&
         json_put(scaling, "short_factor", json_incref(list)) && json_put(scaling, "long_factor", json_incref(list)) &&
         json_put(scaling, "original_max_position_embeddings", json_integer((json_int_t)positions));
    json_decref(list);
    return ok || status_fail(t->status, STATUS_MACHINE, "out of memory");
}

static bool translate_yarn(struct translation *t, json_t *scaling)
{
    double factor = 1; /* on yarn's own factor on the scores */
    const char *key = key_of(t, "rope.scaling.attn_factor");
    if (!gguf_get_real(t->file, key, false, &factor, t->status)) return false;
    if (factor != 1) return gguf_fail_key(t->file, key, "1", "another number", t->status);
    uint64_t original = 0;
    if (!gguf_get_u64(t->file, key_of(t, "rope.scaling.original_context_length"), false, &original, t->status) ||
        (original && !put_u64(t, scaling, "original_max_position_embeddings", original)))
        return false;
    return put(t, scaling, "rope_type", json_string("yarn")) &&
           copy_real(t, "rope.scaling.factor", true, scaling, "factor") &&
           copy_real(t, "rope.scaling.yarn_beta_fast", false, scaling, "beta_fast") &&
           copy_real(t, "rope.scaling.yarn_beta_slow", false, scaling, "beta_slow");
}

static bool is_text(const char *text, size_t bytes, const char *expected)
{
    return bytes == strlen(expected) && memcmp(text, expected, bytes) == 0;
}

static bool translate_scaling(struct translation *t, uint64_t positions, json_t *scaling)
{
    const struct gguf_tensor *divisors = gguf_find_tensor(t->file, "rope_freqs.weight");
    const char *type = "none";
    size_t bytes = 4;
    if (!gguf_get_string(t->file, key_of(t, "rope.scaling.type"), false, &type, &bytes, t->status)) return false;
    gguf_get(t->file, key_of(t, "rope.scaling.finetuned")); /* how the model came to be */
    if (divisors && !is_text(type, bytes, "none"))
        return gguf_fail_key(t->file, key_of(t, "rope.scaling.type"), "'none' beside tensor 'rope_freqs.weight'",
                             "another type", t->status);
    if (divisors) return translate_divisors(t, divisors, positions, scaling);
    if (is_text(type, bytes, "none")) return true;
    if (is_text(type, bytes, "yarn")) return translate_yarn(t, scaling);
    if (!is_text(type, bytes, "linear"))
        return gguf_fail_key(t->file, key_of(t, "rope.scaling.type"), "'none', 'linear' or 'yarn'", "another type",
                             t->status);
    return put(t, scaling, "rope_type", json_string("linear")) &&
           copy_real(t, "rope.scaling.factor", true, scaling, "factor");
}

static bool translate_rope(struct translation *t, uint64_t head_dim, uint64_t positions)
{
    uint64_t rotated = head_dim;
    /* llama.cpp's default, which Mixtral's class has not. */
    if (t->experts && !gguf_get(t->file, key_of(t, "rope.freq_base")) &&
        !put(t, t->config, "rope_theta", json_real(10000)))
        return false;
    if (!copy_real(t, "rope.freq_base", false, t->config, "rope_theta") ||
        !gguf_get_u64(t->file, key_of(t, "rope.dimension_count"), false, &rotated, t->status))
        return false;
    if (rotated != head_dim && head_dim &&
        !put(t, t->config, "partial_rotary_factor", json_real((double)rotated / (double)head_dim)))
        return false;
    json_t *scaling = json_object();
    bool ok = scaling || status_fail(t->status, STATUS_MACHINE, "out of memory");
    ok = ok && translate_scaling(t, positions, scaling) &&
         (!json_object_size(scaling) || put(t, t->config, "rope_scaling", json_incref(scaling)));
    json_decref(scaling);
    return ok;
}

/* ---- token ids ---- */

/* Null where the file has none, unless its tokenizer has llama.cpp's defaults, which are the class's. */
static bool translate_tokens(struct translation *t)
{
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    static const struct {
        const char *key, *field;
    } singles[] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                   {"tokenizer.ggml.padding_token_id", "pad_token_id"}};
    const char *model = "";
    size_t bytes = 0;
    if (!gguf_get_string(t->file, "tokenizer.ggml.model", false, &model, &bytes, t->status)) return false;
    const bool has_defaults = is_text(model, bytes, "llama");
    for (size_t i = 0; i < 2; i++) {
        uint64_t id = UINT64_MAX;
        if (!gguf_get_u64(t->file, singles[i].key, false, &id, t->status)) return false;
        if (id != UINT64_MAX ? !put_u64(t, t->config, singles[i].field, id)
                             : !has_defaults && !put(t, t->config, singles[i].field, json_null()))
            return false;
    }
    json_t *list = json_array();
    bool ok = list || status_fail(t->status, STATUS_MACHINE, "out of memory");
    for (size_t i = 0; ok && i < sizeof stops / sizeof *stops; i++) {
        uint64_t id = UINT64_MAX;
        ok = gguf_get_u64(t->file, stops[i], false, &id, t->status);
        bool is_new = ok && id <= INT32_MAX;
        for (size_t j = 0; is_new && j < json_array_size(list); j++)
            is_new = json_integer_value(json_array_get(list, j)) != (json_int_t)id;
        if (is_new && !json_add(list, json_integer((json_int_t)id)))
            ok = status_fail(t->status, STATUS_MACHINE, "out of memory");
    }
    if (ok && json_array_size(list))
        ok = put(t, t->config, "eos_token_id", json_incref(list));
    else if (ok && !has_defaults)
        ok = put(t, t->config, "eos_token_id", json_null());
    json_decref(list);
    return ok;
}

bool gguf_read_config(struct gguf *file, struct model_config *config, model_config_reader *read_family,
                      struct status *status)
{
    struct translation t = {.file = file, .status = status, .config = json_object()};
    uint64_t head_dim = 0, positions = 0;
    char *text = NULL, *name = NULL;
    bool ok = t.config || status_fail(status, STATUS_MACHINE, "out of memory");
    ok = ok && find_architecture(&t) && check_file(&t) && translate_sizes(&t, &head_dim, &positions) &&
         put(&t, t.config, "model_type",
             json_string(t.experts ? t.architecture->of_experts : t.architecture->model_type)) &&
         translate_biases(&t) && translate_rope(&t, head_dim, positions) && translate_tokens(&t) && check_all_read(&t);
    if (ok && (!(text = json_format(t.config, JSON_COMPACT)) ||
               asprintf(&name, "%s (metadata as config.json)", file->path) < 0))
        ok = status_fail(status, STATUS_MACHINE, "out of memory");
    ok = ok && model_config_parse(config, text, strlen(text), name, read_family, status);
    if (ok) config->rotary_pairs = t.architecture->rotary_pairs;
    json_decref(t.config);
    free(text);
    free(name);
    return ok;
}
