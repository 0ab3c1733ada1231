/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/wrappers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/field_rules.h"
#include "formats/checkpoint/wrapper.h"

/* ---- the lists ---- */

enum text_kind {
    TEXT_PLAIN,
    TEXT_SECTIONS,        /* positions of the rotary embedding come in sections */
    TEXT_CROSS_ATTENTION, /* some layers attend to an image, and text alone passes over them */
};

/* What a text_config may be. `family`: the model_type of builder/arch that computes the same. `defaults`: of the configuration
 * class, for fields that text_config may omit, where the family requires them or has others; names without quotes. */
struct text_part {
    const char *model_type, *family;
    enum text_kind kind;
    const char *defaults;
};

static const struct text_part texts[] = {
    {"llama", "llama", TEXT_PLAIN,
     "{'vocab_size': 32000, 'hidden_size': 4096, 'intermediate_size': 11008, 'num_hidden_layers': 32, "
     "'num_attention_heads': 32}"},
    {"mistral", "mistral", TEXT_PLAIN,
     "{'vocab_size': 32000, 'hidden_size': 4096, 'intermediate_size': 14336, 'num_hidden_layers': 32, "
     "'num_attention_heads': 32}"},
    {"ministral3", "ministral3", TEXT_PLAIN,
     "{'vocab_size': 131072, 'hidden_size': 4096, 'intermediate_size': 14336, 'num_hidden_layers': 34, "
     "'num_attention_heads': 32}"},
    {"mistral4", "mistral4", TEXT_PLAIN,
     "{'vocab_size': 131072, 'hidden_size': 4096, 'intermediate_size': 12288, 'num_hidden_layers': 36, "
     "'num_attention_heads': 32}"},
    {"granite", "granite", TEXT_PLAIN,
     "{'vocab_size': 32000, 'hidden_size': 4096, 'intermediate_size': 11008, 'num_hidden_layers': 32, "
     "'num_attention_heads': 32}"},
    {"mllama_text_model", "llama", TEXT_CROSS_ATTENTION,
     "{'vocab_size': 128256, 'hidden_size': 4096, 'intermediate_size': 14336, 'num_hidden_layers': 40, "
     "'num_attention_heads': 32, 'num_key_value_heads': 8, 'max_position_embeddings': 131072, 'rms_norm_eps': 1e-5, "
     "'rope_theta': 500000.0, 'bos_token_id': 128000, 'eos_token_id': 128001, 'pad_token_id': 128004}"},
    {"qwen2", "qwen2", TEXT_PLAIN,
     "{'vocab_size': 151936, 'hidden_size': 4096, 'intermediate_size': 22016, 'num_hidden_layers': 32, "
     "'num_attention_heads': 32}"},
    {"qwen3", "qwen3", TEXT_PLAIN,
     "{'vocab_size': 151936, 'hidden_size': 4096, 'intermediate_size': 22016, 'num_hidden_layers': 32, "
     "'num_attention_heads': 32}"},
    {"qwen3_moe", "qwen3_moe", TEXT_PLAIN,
     "{'vocab_size': 151936, 'hidden_size': 2048, 'intermediate_size': 6144, 'num_hidden_layers': 24, "
     "'num_attention_heads': 32}"},
    {"cohere2", "cohere2", TEXT_PLAIN,
     "{'vocab_size': 256000, 'hidden_size': 8192, 'intermediate_size': 22528, 'num_hidden_layers': 40, "
     "'num_attention_heads': 64}"},
    {"lfm2", "lfm2", TEXT_PLAIN,
     "{'vocab_size': 65536, 'hidden_size': 2560, 'intermediate_size': 12288, 'num_hidden_layers': 32, "
     "'num_attention_heads': 32}"},
    {"gpt_oss", "gpt_oss", TEXT_PLAIN,
     "{'vocab_size': 201088, 'hidden_size': 2880, 'intermediate_size': 2880, 'num_hidden_layers': 36, "
     "'num_attention_heads': 64}"},
    {"gemma3_text", "gemma3_text", TEXT_PLAIN,
     "{'vocab_size': 262208, 'hidden_size': 2304, 'intermediate_size': 9216, 'num_hidden_layers': 26, "
     "'num_attention_heads': 8}"},
    {"gemma4_text", "gemma4_text", TEXT_PLAIN,
     "{'vocab_size': 262144, 'hidden_size': 2304, 'intermediate_size': 9216, 'num_hidden_layers': 30, "
     "'num_attention_heads': 8}"},
    {"glm4v_text", "glm4", TEXT_SECTIONS,
     "{'vocab_size': 151552, 'hidden_size': 4096, 'intermediate_size': 13696, 'num_hidden_layers': 40, "
     "'num_attention_heads': 32, 'max_position_embeddings': 32768, 'rms_norm_eps': 1e-5, 'attention_bias': true, "
     "'partial_rotary_factor': 1.0, 'eos_token_id': null, 'pad_token_id': null}"},
    {"glm4v_moe_text", "glm4_moe", TEXT_SECTIONS,
     "{'vocab_size': 151424, 'hidden_size': 4096, 'intermediate_size': 10944, 'num_hidden_layers': 46, "
     "'num_attention_heads': 96, 'max_position_embeddings': 65536, 'attention_bias': true}"},
    {"qwen2_vl_text", "qwen2", TEXT_SECTIONS,
     "{'vocab_size': 152064, 'hidden_size': 8192, 'intermediate_size': 29568, 'num_hidden_layers': 80, "
     "'num_attention_heads': 64, 'num_key_value_heads': 8, 'max_window_layers': 80, 'rms_norm_eps': 1e-5, "
     "'rope_theta': 1000000.0, 'bos_token_id': 151643, 'eos_token_id': 151645}"},
    {"qwen2_5_vl_text", "qwen2", TEXT_SECTIONS,
     "{'vocab_size': 152064, 'hidden_size': 8192, 'intermediate_size': 29568, 'num_hidden_layers': 80, "
     "'num_attention_heads': 64, 'num_key_value_heads': 8, 'max_window_layers': 80, 'rms_norm_eps': 1e-5, "
     "'rope_theta': 1000000.0, 'bos_token_id': 151643, 'eos_token_id': 151645}"},
    {"qwen3_vl_text", "qwen3", TEXT_SECTIONS,
     "{'vocab_size': 151936, 'hidden_size': 4096, 'intermediate_size': 22016, 'num_hidden_layers': 32, "
     "'num_attention_heads': 32, 'max_position_embeddings': 128000, 'rope_theta': 500000.0}"},
    {"qwen3_vl_moe_text", "qwen3_moe", TEXT_SECTIONS,
     "{'vocab_size': 151936, 'hidden_size': 2048, 'intermediate_size': 5632, 'num_hidden_layers': 24, "
     "'num_attention_heads': 16, 'num_key_value_heads': 16, 'max_position_embeddings': 128000, "
     "'num_experts_per_tok': 4, 'moe_intermediate_size': 1408, 'norm_topk_prob': true, 'rope_theta': 500000.0, "
     "'tie_word_embeddings': true}"},
    {"qwen3_5_text", "qwen3_5_text", TEXT_PLAIN,
     "{'vocab_size': 248320, 'hidden_size': 4096, 'intermediate_size': 12288, 'num_hidden_layers': 32, "
     "'num_attention_heads': 16}"},
    {"qwen3_5_moe_text", "qwen3_5_moe_text", TEXT_PLAIN,
     "{'vocab_size': 248320, 'hidden_size': 2048, 'num_hidden_layers': 40, 'num_attention_heads': 16}"},
};
enum { TEXT_COUNT = sizeof texts / sizeof *texts };

/* A wrapper. `texts`: the model types that its text_config may have, separated by spaces; a text_config without one has the first. */
struct wrapper_row {
    struct model_wrapper model;
    const char *texts;
    const char *fields;   /* more fields than outer_fields, of the other parts alone; separated by spaces; NULL: none */
    bool flat;            /* without text_config its fields are those of config.json */
    const char *defaults; /* instead of those of the text part's class; NULL: none */
};

#define ANY_TEXT "llama mistral qwen2 qwen3 qwen3_moe cohere2 lfm2 gemma3_text"

static const struct wrapper_row wrappers[] = {
    {.model = {"gemma3", "Gemma3ForConditionalGeneration", "language_model", {"vision_tower", "multi_modal_projector"}},
     .texts = "gemma3_text"},
    {.model = {"gemma4",
               "Gemma4ForConditionalGeneration",
               "language_model",
               {"vision_tower", "embed_vision", "audio_tower", "embed_audio"}},
     .texts = "gemma4_text"},
    {.model =
         {"mistral3", "Mistral3ForConditionalGeneration", "language_model", {"vision_tower", "multi_modal_projector"}},
     .texts = "mistral ministral3 mistral4"},
    {.model = {"llava",
               "LlavaForConditionalGeneration",
               "language_model",
               {"vision_tower", "multi_modal_projector", "image_newline"}},
     .texts = ANY_TEXT},
    /* Granite as below: transformers 5.17 leaves its logits_scaling out here, too. */
    {.model = {"llava_next",
               "LlavaNextForConditionalGeneration",
               "language_model",
               {"vision_tower", "multi_modal_projector", "image_newline"}},
     .texts = ANY_TEXT " granite"},
    {.model = {"llava_onevision",
               "LlavaOnevisionForConditionalGeneration",
               "language_model",
               {"vision_tower", "multi_modal_projector", "image_newline"}},
     .texts = "qwen2 llama mistral qwen3"},
    {.model = {"llava_next_video",
               "LlavaNextVideoForConditionalGeneration",
               "language_model",
               {"vision_tower", "multi_modal_projector", "image_newline", "vision_resampler"}},
     .texts = "llama mistral qwen2"},
    {.model = {"video_llava",
               "VideoLlavaForConditionalGeneration",
               "language_model",
               {"image_tower", "video_tower", "multi_modal_projector"}},
     .texts = "llama"},
    {.model =
         {"vipllava", "VipLlavaForConditionalGeneration", "language_model", {"vision_tower", "multi_modal_projector"}},
     .texts = "llama"},
    {.model = {"deepseek_vl", "DeepseekVLForConditionalGeneration", "language_model", {"vision_model", "aligner"}},
     .texts = "llama"},
    {.model =
         {"voxtral", "VoxtralForConditionalGeneration", "language_model", {"audio_tower", "multi_modal_projector"}},
     .texts = "llama",
     .defaults = "{'vocab_size': 131072, 'hidden_size': 3072, 'intermediate_size': 8192, 'num_hidden_layers': 30, "
                 "'num_key_value_heads': 8, 'max_position_embeddings': 131072, 'rms_norm_eps': 1e-5, 'rope_theta': "
                 "100000000.0, "
                 "'head_dim': 128}"},
    {.model =
         {"internvl", "InternVLForConditionalGeneration", "language_model", {"vision_tower", "multi_modal_projector"}},
     .texts = "qwen2 qwen3 qwen3_moe llama mistral gpt_oss"},
    /* The next two: transformers 5.17 leaves logit_scale out. Engines multiply logits by it, as Cohere 2 alone has them; the largest
     * logit is the same. */
    {.model = {"aya_vision",
               "AyaVisionForConditionalGeneration",
               "language_model",
               {"vision_tower", "multi_modal_projector"}},
     .texts = "cohere2"},
    {.model = {"cohere2_vision",
               "Cohere2VisionForConditionalGeneration",
               "language_model",
               {"vision_tower", "multi_modal_projector"}},
     .texts = "cohere2"},
    {.model =
         {"lfm2_vl", "Lfm2VlForConditionalGeneration", "language_model", {"vision_tower", "multi_modal_projector"}},
     .texts = "lfm2"},
    {.model = {"idefics3", "Idefics3ForConditionalGeneration", "text_model", {"vision_model", "connector"}},
     .texts = "llama mistral qwen2"},
    {.model = {"smolvlm", "SmolVLMForConditionalGeneration", "text_model", {"vision_model", "connector"}},
     .texts = "llama"},
    {.model = {"qwen2_audio",
               "Qwen2AudioForConditionalGeneration",
               "language_model",
               {"audio_tower", "multi_modal_projector"}},
     .texts = "qwen2"},
    {.model =
         {"got_ocr2", "GotOcr2ForConditionalGeneration", "language_model", {"vision_tower", "multi_modal_projector"}},
     .texts = "qwen2"},
    {.model = {"ovis2", "Ovis2ForConditionalGeneration", "language_model", {"vision_tower", "visual_embeddings_table"}},
     .texts = "qwen2 qwen3 llama",
     .fields = "visual_indicator_token_ids"},
    {.model = {"perception_lm",
               "PerceptionLMForConditionalGeneration",
               "language_model",
               {"vision_tower", "multi_modal_projector"}},
     .texts = "llama",
     .fields = "projector_pooling_ratio vision_use_cls_token"},
    /* transformers 5.17 leaves logits_scaling out. Engines divide logits by it, as Granite alone has them; the largest logit is the
     * same. The LoRA adapter, which transformers switches off where there is no sound, is a file of its own. */
    {.model = {"granite_speech", "GraniteSpeechForConditionalGeneration", "language_model", {"encoder", "projector"}},
     .texts = "granite",
     .fields = "downsample_rate encoder_config has_lora_adapter projector_config window_size"},
    {.model = {"mllama",
               "MllamaForConditionalGeneration",
               "language_model",
               {"vision_model", "multi_modal_projector", "cross_attention_layers"}},
     .texts = "mllama_text_model"},
    {.model = {"glm4v", "Glm4vForConditionalGeneration", "language_model", {"visual"}}, .texts = "glm4v_text"},
    {.model = {"glm4v_moe", "Glm4vMoeForConditionalGeneration", "language_model", {"visual"}},
     .texts = "glm4v_moe_text"},
    {.model = {"glm46v", "Glm46VForConditionalGeneration", "language_model", {"visual"}},
     .texts = "glm4v_text glm4v_moe_text"},
    {.model = {"qwen2_vl", "Qwen2VLForConditionalGeneration", "language_model", {"visual"}},
     .texts = "qwen2_vl_text",
     .flat = true},
    {.model = {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "language_model", {"visual"}},
     .texts = "qwen2_5_vl_text",
     .flat = true},
    {.model = {"qwen3_vl", "Qwen3VLForConditionalGeneration", "language_model", {"visual"}}, .texts = "qwen3_vl_text"},
    {.model = {"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "language_model", {"visual"}},
     .texts = "qwen3_vl_moe_text"},
    {.model = {"qwen3_5", "Qwen3_5ForConditionalGeneration", "language_model", {"visual"}}, .texts = "qwen3_5_text"},
    {.model = {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "language_model", {"visual"}},
     .texts = "qwen3_5_moe_text"},
};
enum { WRAPPER_COUNT = sizeof wrappers / sizeof *wrappers };

/* Fields around text_config that text alone does not depend on: the other parts, and the tokens that stand for their input. Some
 * writers repeat them in text_config. */
static const struct field_rule outer_fields[] = {
    {"adapter_layer_norm_eps", FIELD_NO_EFFECT},
    {"alignment_intermediate_size", FIELD_NO_EFFECT},
    {"audio_config", FIELD_NO_EFFECT},
    {"audio_end_token_id", FIELD_NO_EFFECT},
    {"audio_start_token_id", FIELD_NO_EFFECT},
    {"audio_token_id", FIELD_NO_EFFECT},
    {"audio_token_index", FIELD_NO_EFFECT},
    {"boa_token_id", FIELD_NO_EFFECT},
    {"boi_token_id", FIELD_NO_EFFECT},
    {"boi_token_index", FIELD_NO_EFFECT},
    {"do_image_splitting", FIELD_NO_EFFECT},
    {"downsample_factor", FIELD_NO_EFFECT},
    {"downsample_ratio", FIELD_NO_EFFECT},
    {"encoder_patch_size", FIELD_NO_EFFECT},
    {"eoa_token_id", FIELD_NO_EFFECT},
    {"eoa_token_index", FIELD_NO_EFFECT},
    {"eoi_token_id", FIELD_NO_EFFECT},
    {"eoi_token_index", FIELD_NO_EFFECT},
    {"ignore_index", FIELD_NO_EFFECT},
    {"image_end_token_id", FIELD_NO_EFFECT},
    {"image_grid_pinpoints", FIELD_NO_EFFECT},
    {"image_seq_len", FIELD_NO_EFFECT},
    {"image_seq_length", FIELD_NO_EFFECT},
    {"image_start_token_id", FIELD_NO_EFFECT},
    {"image_token_id", FIELD_NO_EFFECT},
    {"image_token_index", FIELD_NO_EFFECT},
    {"language_model_only", FIELD_NO_EFFECT},
    {"max_image_tokens", FIELD_NO_EFFECT},
    {"max_num_patches", FIELD_NO_EFFECT},
    {"max_pixels_tolerance", FIELD_NO_EFFECT},
    {"max_splits_per_img", FIELD_NO_EFFECT},
    {"max_tiles", FIELD_NO_EFFECT},
    {"min_image_tokens", FIELD_NO_EFFECT},
    {"min_tiles", FIELD_NO_EFFECT},
    {"mm_tokens_per_image", FIELD_NO_EFFECT},
    {"multimodal_projector_bias", FIELD_NO_EFFECT},
    {"processor_class", FIELD_NO_EFFECT},
    {"projector_bias", FIELD_NO_EFFECT},
    {"projector_hidden_act", FIELD_NO_EFFECT},
    {"projector_hidden_size", FIELD_NO_EFFECT},
    {"projector_layernorm_eps", FIELD_NO_EFFECT},
    {"projector_use_layernorm", FIELD_NO_EFFECT},
    {"scale_factor", FIELD_NO_EFFECT},
    {"spatial_merge_size", FIELD_NO_EFFECT},
    {"tile_size", FIELD_NO_EFFECT},
    {"spatial_pool_mode", FIELD_NO_EFFECT},
    {"spatial_pool_stride", FIELD_NO_EFFECT},
    {"use_image_newline_parameter", FIELD_NO_EFFECT},
    {"use_image_special_tokens", FIELD_NO_EFFECT},
    {"use_reentrant_checkpointing", FIELD_NO_EFFECT},
    {"use_thumbnail", FIELD_NO_EFFECT},
    {"video_end_token_id", FIELD_NO_EFFECT},
    {"video_seq_length", FIELD_NO_EFFECT},
    {"video_start_token_id", FIELD_NO_EFFECT},
    {"video_token_id", FIELD_NO_EFFECT},
    {"video_token_index", FIELD_NO_EFFECT},
    {"vision_aspect_ratio", FIELD_NO_EFFECT},
    {"vision_config", FIELD_NO_EFFECT},
    {"vision_end_token_id", FIELD_NO_EFFECT},
    {"vision_feature_layer", FIELD_NO_EFFECT},
    {"vision_feature_layers", FIELD_NO_EFFECT},
    {"vision_feature_select_strategy", FIELD_NO_EFFECT},
    {"vision_start_token_id", FIELD_NO_EFFECT},
    {"vision_soft_tokens_per_image", FIELD_NO_EFFECT},
    {"vision_token_id", FIELD_NO_EFFECT},
};

/* Fields that writers of Idefics 3 and SmolVLM left in text_config, which its class does not have. */
static const struct field_rule inner_fields[] = {
    {"_resampler_config", FIELD_NO_EFFECT},
    {"perceiver_config", FIELD_NO_EFFECT},
    {"pixel_shuffle_factor", FIELD_NO_EFFECT},
    {"qk_layer_norms", FIELD_FALSE},
    {"use_resampler", FIELD_FALSE},
};

const char *wrapper_model_type(size_t index) { return index < WRAPPER_COUNT ? wrappers[index].model.model_type : NULL; }

/* ---- text types ---- */

/* Whether the list of words has `word`. */
static bool has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; length && (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

static const struct text_part *find_text(const char *model_type, size_t length)
{
    for (size_t i = 0; i < TEXT_COUNT; i++)
        if (strlen(texts[i].model_type) == length && strncmp(texts[i].model_type, model_type, length) == 0)
            return &texts[i];
    return NULL;
}

static const struct text_part *usual_text(const struct wrapper_row *row)
{
    return find_text(row->texts, strcspn(row->texts, " "));
}

void wrapper_about(size_t index, char *about, size_t size)
{
    const struct wrapper_row *row = &wrappers[index];
    const char *const *towers = row->model.towers;
    size_t used = (size_t)snprintf(about, size, "text part (");
    for (const char *word = row->texts; used < size && *word;) {
        const size_t length = strcspn(word, " ");
        const struct text_part *text = find_text(word, length);
        const char *family = text ? text->family : word;
        used += (size_t)snprintf(about + used, size - used, "%s`%s`", word == row->texts ? "" : ", ", family);
        word += length + strspn(word + length, " ");
    }
    if (used < size) used += (size_t)snprintf(about + used, size - used, "); left out:");
    for (int i = 0; used < size && i < WRAPPER_MAX_TOWERS && towers[i]; i++)
        used += (size_t)snprintf(about + used, size - used, "%s `%s`", i ? "," : "", towers[i]);
}

/* ---- fields ---- */

/* Fields of both configurations that transformers reads in the outer one. */
static bool move_fields(struct json_reader *outer, json_t *inner)
{
    static const char *const keys[] = {"bos_token_id",       "eos_token_id", "pad_token_id", "quantization_config",
                                       "compression_config", "dtype",        "torch_dtype",  "do_sample",
                                       "temperature",        "top_k",        "top_p",        "repetition_penalty"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_reader_get(outer, keys[i]);
        if (!value) continue;
        if (strstr(keys[i], "dtype")) { /* two names of one field */
            json_object_del(inner, "dtype");
            json_object_del(inner, "torch_dtype");
        }
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_reader_get(outer, keys[i]);
        if (value && json_object_set(inner, keys[i], value) != 0) return false;
    }
    return true;
}

/* tie_word_embeddings: version 5 of transformers reads the outer field, earlier ones read the inner one. Where these are not the
 * same, the checkpoint says which is meant: it has an LM head or not. */
static bool move_tie(struct model_config *config, struct json_reader *outer, json_t *inner, struct status *status)
{
    static const char key[] = "tie_word_embeddings";
    bool tied = false;
    const json_t *own = json_object_get(inner, key);
    if (!json_reader_get(outer, key)) {
        config->tied_without_head = true;
        return true;
    }
    if (!json_reader_bool(outer, key, false, &tied, status)) return false;
    if (json_is_boolean(own) && json_is_true(own) != tied)
        config->tied_without_head = true;
    else if (!json_put(inner, key, json_boolean(tied)))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    return true;
}

/* Every field around the text part is known, or text_config has it, too, with the same value. */
static bool check_outer(const struct wrapper_row *row, struct json_reader *outer, const json_t *inner,
                        struct status *status)
{
    const char *key;
    json_t *value;
    static const char *const read[] = {"model_type", "architectures", "text_config"};
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) json_reader_get(outer, read[i]);
    for (const char *word = row->fields ? row->fields : ""; *word;) {
        char field[40];
        const size_t length = strcspn(word, " ");
        snprintf(field, sizeof field, "%.*s", (int)length, word);
        json_reader_get(outer, field);
        word += length + strspn(word + length, " ");
    }
    struct model_config *unused = calloc(1, sizeof *unused);
    if (!unused) return status_fail(status, STATUS_MACHINE, "out of memory");
    unused->vocab_size = MODEL_MAX_VOCAB;
    unused->temperature = unused->top_p = unused->repetition_penalty = 1;
    const bool plain = field_rules_check(outer, outer_fields, sizeof outer_fields / sizeof *outer_fields, status) &&
                       model_config_check_plain_fields(outer, status) && generation_fields_parse(unused, outer, status);
    free(unused);
    if (!plain) return false;
    json_object_foreach (outer->object, key, value) {
        const json_t *own = json_object_get(inner, key);
        if (!own || !json_reader_is_unread(outer, key)) continue;
        json_reader_get(outer, key);
        if (!json_equal(value, own)) {
            char expected[160];
            snprintf(expected, sizeof expected, "the same as in text_config, of which '%s' is read",
                     row->model.model_type);
            return json_reader_fail(outer, key, expected, value, status);
        }
    }
    return json_reader_all_consumed(outer, status);
}

/* Either object that describes the rotary embedding has the key. */
static bool rope_has(const json_t *inner, const char *key)
{
    return json_object_get(json_object_get(inner, "rope_parameters"), key) ||
           json_object_get(json_object_get(inner, "rope_scaling"), key);
}

/* `fields`: what inner may lack. */
static bool set_defaults(json_t *inner, const char *fields, struct status *status)
{
    char *quoted = strdup(fields);
    const char *key;
    json_t *value;
    for (char *c = quoted; c && *c; c++)
        if (*c == '\'') *c = '"';
    json_t *defaults = quoted ? json_parse(quoted, strlen(quoted), "defaults", status) : NULL;
    bool ok = defaults != NULL;
    json_object_foreach (defaults, key, value) {
        if (json_object_get(inner, key) || rope_has(inner, key)) continue;
        ok = ok && json_object_set(inner, key, value) == 0;
    }
    json_decref(defaults);
    free(quoted);
    if (!ok && status->code == STATUS_OK) status_fail(status, STATUS_MACHINE, "out of memory");
    return ok;
}

/* A position of these models is three numbers (time, height, width), and each section of the rotary embedding turns by one of
 * them. The three numbers of a text token are equal (Qwen2-VL, arXiv:2409.12191, section 2.1: "identical position IDs, making M-RoPE
 * functionally equivalent to 1D-RoPE"; transformers 5.17: get_rope_index repeats one range three times where no token is of an image
 * or video), so that the angle of an element does not depend on its section, whether sections are consecutive or interleaved: with text
 * alone the embedding is the usual one. */
bool wrapper_drop_sections(json_t *text, const char *path, struct status *status)
{
    static const char *const objects[] = {"rope_parameters", "rope_scaling"}, *const types[] = {"rope_type", "type"};
    for (size_t i = 0; i < 2; i++) {
        json_t *rope = json_object_get(text, objects[i]);
        char where[300];
        struct json_reader reader;
        bool interleaved;
        if (!json_is_object(rope)) continue;
        snprintf(where, sizeof where, "%.200s: %s", path, objects[i]);
        if (!json_reader_open(&reader, rope, where, status)) return false;
        const json_t *sections = json_reader_get(&reader, "mrope_section");
        bool ok = !sections || (json_is_array(sections) && json_array_size(sections) == 3);
        for (size_t s = 0; ok && sections && s < 3; s++) {
            const json_t *size = json_array_get(sections, s);
            ok = json_is_integer(size) && json_integer_value(size) >= 0;
        }
        if (!ok) json_reader_fail(&reader, "mrope_section", "an array of three sizes", sections, status);
        ok = ok && json_reader_bool(&reader, "mrope_interleaved", false, &interleaved, status);
        json_reader_close(&reader);
        if (!ok) return false;
        json_object_del(rope, "mrope_section");
        json_object_del(rope, "mrope_interleaved");
        for (size_t t = 0; t < 2; t++) {
            const char *type = json_string_value(json_object_get(rope, types[t]));
            if (type && strcmp(type, "mrope") == 0 && !json_put(rope, types[t], json_string("default")))
                return status_fail(status, STATUS_MACHINE, "out of memory");
        }
    }
    return true;
}

/* ---- entering ---- */

/* The text_config is of a type that the wrapper may have; one without a type, or with the wrapper's own, is of the first. */
static const struct text_part *text_of(const struct wrapper_row *row, const json_t *inner, const char *path,
                                       struct status *status)
{
    const json_t *type = json_object_get(inner, "model_type");
    const char *name = json_string_value(type);
    if (!type || json_is_null(type) || (name && strcmp(name, row->model.model_type) == 0)) return usual_text(row);
    if (name && has_word(row->texts, name)) return find_text(name, strlen(name));
    char found[80];
    json_value_text(type, found, sizeof found);
    status_fail(status, STATUS_BAD_INPUT,
                "%s: text_config: field 'model_type': the text part of a '%s' model is supported if it is one of: %s; "
                "found %s",
                path, row->model.model_type, row->texts, found);
    return NULL;
}

static bool enter(const struct wrapper_row *row, struct model_config *config, struct json_reader *reader,
                  struct status *status)
{
    json_t *outer = reader->object, *inner = json_object_get(outer, "text_config");
    const json_t *architectures = json_reader_get(reader, "architectures");
    const char *first = json_string_value(json_array_get(architectures, 0));
    const bool flat = row->flat && (!inner || json_is_null(inner));
    if (architectures && (!first || strcmp(first, row->model.architecture) != 0))
        return status_fail(status, STATUS_BAD_INPUT, "%s: field 'architectures': expected [\"%s\"], found \"%.80s\"",
                           reader->path, row->model.architecture, first ? first : json_type_name(architectures));
    if (flat) inner = outer;
    if (!json_is_object(inner)) return json_reader_fail(reader, "text_config", "an object", inner, status);
    const struct text_part *text = text_of(row, inner, reader->path, status);
    if (!text) return false;
    config->wrapper = &row->model;
    snprintf(config->model_type, sizeof config->model_type, "%s", text->family);
    if (flat) {
        json_object_del(outer, "text_config");
    } else if (!move_fields(reader, inner)) {
        return status_fail(status, STATUS_MACHINE, "out of memory");
    } else if (!move_tie(config, reader, inner, status) || !check_outer(row, reader, inner, status)) {
        return false;
    }
    if (first) snprintf(config->architecture, sizeof config->architecture, "%s", first);
    if ((row->defaults && !set_defaults(inner, row->defaults, status)) || !set_defaults(inner, text->defaults, status))
        return false;
    json_object_del(inner, "architectures"); /* of either configuration */
    if (!json_put(inner, "model_type", json_string(text->family)))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    return (flat || json_reader_descend(reader, "text_config", status)) &&
           (text->kind != TEXT_CROSS_ATTENTION || wrapper_drop_cross_attention(config, reader, status)) &&
           (text->kind != TEXT_SECTIONS || wrapper_drop_sections(reader->object, reader->path, status)) &&
           field_rules_check(reader, outer_fields, sizeof outer_fields / sizeof *outer_fields, status) &&
           field_rules_check(reader, inner_fields, sizeof inner_fields / sizeof *inner_fields, status);
}

bool wrapper_enter(struct model_config *config, struct json_reader *reader, struct status *status)
{
    for (size_t i = 0; i < WRAPPER_COUNT; i++)
        if (strcmp(wrappers[i].model.model_type, config->model_type) == 0)
            return enter(&wrappers[i], config, reader, status);
    return true;
}
