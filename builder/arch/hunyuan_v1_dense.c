/* SPDX-License-Identifier: Apache-2.0 */
/* Hunyuan without experts: a Llama whose heads of q and k are normalised after their rotation. Published models multiply theta
 * once, by a power of alpha, which their rope_scaling calls "dynamic". */
#include <math.h>
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 0,
};

/* Keys of Tencent's own class that the one in transformers does not read. */
static const struct field_rule unused[] = {
    {"add_classification_head", FIELD_FALSE},
    {"cla_share_factor", FIELD_NO_EFFECT},
    {"class_num", FIELD_NO_EFFECT},
    {"dense_list", FIELD_NO_EFFECT},
    {"eod_token_id", FIELD_NO_EFFECT},
    {"im_end_id", FIELD_NO_EFFECT},
    {"im_newline_id", FIELD_NO_EFFECT},
    {"im_start_id", FIELD_NO_EFFECT},
    {"mask_init_id", FIELD_NO_EFFECT},
    {"norm_type", FIELD_NO_EFFECT},
    {"org_vocab_size", FIELD_NO_EFFECT},
    {"pad_id", FIELD_NO_EFFECT},
    {"pool_type", FIELD_NO_EFFECT},
    {"position_embedding_xdrope", FIELD_FALSE},
    {"text_end_id", FIELD_NO_EFFECT},
    {"text_start_id", FIELD_NO_EFFECT},
    {"use_cla", FIELD_FALSE},
    {"use_qk_norm", FIELD_TRUE},
    {"use_rotary_pos_emb", FIELD_TRUE},
};

/* Beside alpha, where the class reads none of them. */
static const struct field_rule of_other_scalings[] = {
    {"beta_fast", FIELD_NO_EFFECT}, {"beta_slow", FIELD_NO_EFFECT},      {"factor", FIELD_NO_EFFECT},
    {"mscale", FIELD_NO_EFFECT},    {"mscale_all_dim", FIELD_NO_EFFECT},
};

/* The theta of an object of type "dynamic". *theta: beside the object, or the default. */
static bool read_alpha(const struct model_config *config, json_t *object, const char *path, double *theta,
                       struct status *status)
{
    static const char key[] = "alpha", types[2][10] = {"rope_type", "type"};
    const double most = 1e9, dim = (double)config->head_dim;
    struct json_reader reader;
    double alpha = 0;
    if (!json_reader_open(&reader, object, path, status)) return false;
    for (int i = 0; i < 2; i++) json_reader_get(&reader, types[i]);
    bool done =
        json_reader_double(&reader, key, false, &alpha, status) &&
        json_reader_double(&reader, "rope_theta", false, theta, status) &&
        field_rules_check(&reader, of_other_scalings, sizeof of_other_scalings / sizeof *of_other_scalings, status);
    if (done && !(alpha > 0 && alpha <= most && dim > 2))
        done = json_reader_fail(&reader, key, "a number above 0, at most 1e9, with heads of more than 2 elements",
                                json_object_get(object, key), status);
    done = done && json_reader_all_consumed(&reader, status);
    json_reader_close(&reader);
    if (done) *theta *= pow(alpha, dim / (dim - 2));
    return done && (isfinite(*theta) || status_fail(status, STATUS_BAD_INPUT,
                                                    "%s: rope_theta: expected a finite number after the multiplication "
                                                    "by a power of alpha (%g), found none",
                                                    path, alpha));
}

/* An object of type "dynamic" becomes the theta that it stands for: no sequence is longer than max_position_embeddings. */
static bool resolve_rotation(struct model_config *config, struct json_reader *reader, const char *key,
                             struct status *status)
{
    json_t *object = json_object_get(reader->object, key);
    const json_t *type = json_object_get(object, "rope_type");
    const char *name = json_string_value(type ? type : json_object_get(object, "type"));
    char path[300];
    double theta = 10000;
    if (!name) return true;
    if (strcmp(name, "dynamic") != 0) return true;
    if (!json_reader_double(reader, "rope_theta", false, &theta, status)) return false;
    snprintf(path, sizeof path, "%.200s: %s", reader->path, key);
    if (!read_alpha(config, object, path, &theta, status)) return false;
    json_object_del(reader->object, key);
    return json_object_set_new(reader->object, "rope_theta", json_real(theta)) == 0 ||
           status_fail(status, STATUS_MACHINE, "out of memory while reading %s", path);
}

bool config_hunyuan(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_attention_head_dim(config, reader, status))
        return false;
    const json_t *parameters = json_object_get(reader->object, "rope_parameters");
    return field_rules_check(reader, unused, sizeof unused / sizeof *unused, status) &&
           resolve_rotation(config, reader, json_object_size(parameters) ? "rope_parameters" : "rope_scaling", status);
}

const struct architecture arch_hunyuan_v1_dense = {
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    config_hunyuan,
    {HUNYUAN_TRAITS},
    .about = "small*: Hunyuan without experts: heads normalised after their rotation",
};
