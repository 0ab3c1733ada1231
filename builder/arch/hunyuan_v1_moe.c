/* SPDX-License-Identifier: Apache-2.0 */
/* Hunyuan with experts (A13B): a Hunyuan whose MLPs are experts, beside one that every row goes through. */
#include <inttypes.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/router/router.h"

static const struct experts_defaults experts = {.count = 1, .top_k = 1};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};
static const char *const own_code[] = {"configuration_hunyuan.HunYuanConfig", "hunyuan.HunYuanModel",
                                       "hunyuan.HunYuanMoEV1ForCausalLM"};

/* Keys of Tencent's own class that the one in transformers does not read. */
static const struct field_rule rules[] = {
    {"capacity_factor", FIELD_NO_EFFECT}, /* of training, as the next two */
    {"moe_drop_tokens", FIELD_FALSE},
    {"moe_random_routing_dropped_token", FIELD_NO_EFFECT},
    {"moe_layer_num_skipped", FIELD_ZERO},
    {"use_mixed_mlp_moe", FIELD_TRUE},
    {"norm_topk_prob", FIELD_TRUE},
    {"group_limited_greedy", FIELD_FALSE},
    {"n_group", FIELD_NO_EFFECT}, /* with group_limited_greedy, as the next two */
    {"topk_group", FIELD_NO_EFFECT},
    {"routed_scaling_factor", FIELD_NO_EFFECT},
    {"use_mla", FIELD_FALSE},
    {"q_lora_rank", FIELD_NO_EFFECT}, /* with use_mla, as the next four */
    {"kv_lora_rank", FIELD_NO_EFFECT},
    {"qk_nope_head_dim", FIELD_NO_EFFECT},
    {"qk_rope_head_dim", FIELD_NO_EFFECT},
    {"v_head_dim", FIELD_NO_EFFECT},
};

/* An array with the same number for each layer becomes that number. */
static bool take_common(const struct model_config *config, struct json_reader *reader, const char *key,
                        struct status *status)
{
    char expected[96];
    json_t *values = json_object_get(reader->object, key);
    if (!json_is_array(values)) return true;
    json_t *first = json_array_get(values, 0);
    bool same = json_array_size(values) == config->layers && json_is_integer(first);
    for (size_t i = 0; same && i < config->layers; i++) same = json_equal(json_array_get(values, i), first);
    snprintf(expected, sizeof expected, "a number, or the same one for each of num_hidden_layers (%" PRIu64 ")",
             config->layers);
    if (!same) return json_reader_fail(reader, key, expected, values, status);
    return json_object_set(reader->object, key, first) == 0 ||
           status_fail(status, STATUS_MACHINE, "out of memory while reading %s", reader->path);
}

/* A key that the class does not read, because the value follows from another key. */
static bool check_same(struct json_reader *reader, const char *key, uint64_t value, const char *expected,
                       struct status *status)
{
    uint64_t found = value;
    return json_reader_u64(reader, key, false, 0, UINT32_MAX, &found, status) &&
           (found == value || json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status));
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const by_layer[] = {"moe_topk", "moe_intermediate_size", "num_shared_expert"};
    if (!config_hunyuan(config, reader, status)) return false;
    for (size_t i = 0; i < sizeof by_layer / sizeof *by_layer; i++)
        if (!take_common(config, reader, by_layer[i], status)) return false;
    if (!config_experts(config, reader, count_keys, by_layer[0], NULL, &experts, status) ||
        !check_same(reader, by_layer[1], config->intermediate_size, "intermediate_size", status) ||
        !check_same(reader, by_layer[2], 1, "1", status) ||
        !field_rules_check(reader, rules, sizeof rules / sizeof *rules, status) ||
        !config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status))
        return false;
    config->experts.renormalise = ROUTER_SUM_PLUS_EPS;
    config->experts.shared_size = config->intermediate_size;
    return true;
}

static const struct expert_names names = {
    .router = "mlp.gate.wg",
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_mlp",
};

const struct architecture arch_hunyuan_v1_moe = {
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    read_config,
    {HUNYUAN_TRAITS, .experts = &names},
    .about = "small*: Hunyuan A13B: as `hunyuan_v1_dense`, with experts and a shared one",
};
