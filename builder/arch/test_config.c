/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/test_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "formats/base/test_support.h"

bool test_config_parse(struct model_config *config, const char *text, struct status *status)
{
    status_clear(status);
    return model_config_parse(config, text, strlen(text), "config.json", arch_read_config, status);
}

bool test_config_parse_with(struct model_config *config, const char *model_type, const char *fields,
                            struct status *status)
{
    char text[2048];
    int length = snprintf(text, sizeof text, "{\"model_type\": \"%s\", " TEST_SIZES "%s%s}", model_type,
                          *fields ? ", " : "", fields);
    assert_true(length > 0 && (size_t)length < sizeof text);
    return test_config_parse(config, text, status);
}

void test_config_refused(const char *model_type, const char *fields, const char *words)
{
    struct status status = {0};
    struct model_config config;
    test_expect_failure(test_config_parse_with(&config, model_type, fields, &status), &status, STATUS_BAD_INPUT, words);
    test_expect_message(&status, "config.json: ");
}

struct model_config test_config_accepted(const char *model_type, const char *fields)
{
    struct status status = {0};
    struct model_config config;
    bool done = test_config_parse_with(&config, model_type, fields, &status);
    if (!done) fail_msg("%s with %s: refused: %s", model_type, fields, status.message);
    return config;
}

/* Appends to text[size], which is large enough. */
static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...)
{
    va_list args;
    const size_t used = strlen(text);
    va_start(args, format);
    const int length = vsnprintf(text + used, size - used, format, args);
    va_end(args);
    assert_true(length >= 0 && (size_t)length < size - used);
}

static void describe_layers(const struct model_config *config, char *text, size_t size)
{
    uint64_t window = 0, windows = 0, still = 0, local = 0, experts = 0, mixers = 0;
    for (uint64_t i = 0; i < config->layers; i++) {
        const struct model_layer *layer = &config->layer[i];
        mixers += mixer_is_recurrent(layer->mixer);
        if (!mixer_attends(layer->mixer)) continue;
        window = layer->window ? layer->window : window;
        windows += layer->window != 0;
        still += layer->rope == LAYER_ROPE_NONE;
        local += layer->rope == LAYER_ROPE_LOCAL;
    }
    for (uint64_t i = 0; i < config->layers; i++) experts += config->layer[i].experts;
    if (mixers) append(text, size, ", %" PRIu64 " recurrent", mixers);
    if (windows) append(text, size, ", window %" PRIu64 " in %" PRIu64, window, windows);
    if (still) append(text, size, ", %" PRIu64 " without rotation", still);
    if (local) append(text, size, ", %" PRIu64 " rotate at %.9g", local, config->local_rope.theta);
    if (experts)
        append(text, size, "; experts in %" PRIu64 ": %" PRIu64 " of %" PRIu64 " x %" PRIu64 ", shared %" PRIu64,
               experts, config->experts.top_k, config->experts.count, config->experts.intermediate_size,
               config->experts.shared_size);
    if (experts && config->experts.groups > 1)
        append(text, size, ", %" PRIu64 " of %" PRIu64 " groups", config->experts.top_groups, config->experts.groups);
}

static void describe(const struct model_config *config, char *text, size_t size)
{
    static const char *const ropes[] = {"", " linear", " llama3", " yarn", " longrope", " proportional"};
    const double scale = config->attention_scale * sqrt((double)config->head_dim);
    append(text, size, "%" PRIu64 " layers of %" PRIu64 ", heads %" PRIu64 "/%" PRIu64 " x %" PRIu64 ", mlp %" PRIu64,
           config->layers, config->hidden_size, config->heads, config->kv_heads, config->head_dim,
           config->intermediate_size);
    append(text, size, ", vocabulary %" PRIu64 ", context %" PRIu64, config->vocab_size, config->max_position);
    append(text, size, ", rope %" PRIu64 " at %.9g%s", config->rope.rotary_dim, config->rope.theta,
           ropes[config->rope.type]);
    if (config->rope.factor > 0 && config->rope.type != ROPE_DEFAULT) append(text, size, " x%g", config->rope.factor);
    describe_layers(config, text, size);
    append(text, size, ";%s%s%s%s", config->tie_word_embeddings ? " tied" : "", config->qkv_bias ? " qkv bias" : "",
           config->output_bias ? " output bias" : "", config->parallel_residual ? " parallel" : "");
    if (config->embedding_scale != 1) append(text, size, " embeddings x%.4g", config->embedding_scale);
    if (fabs(scale - 1) > 1e-6) append(text, size, " scores x%.4g", scale);
    if (config->residual_scale != 1) append(text, size, " residual x%.4g", config->residual_scale);
    if (config->logits_scale != 1) append(text, size, " logits x%.4g", config->logits_scale);
    if (config->scores_cap > 0) append(text, size, " scores to %g", config->scores_cap);
    if (config->logits_cap > 0) append(text, size, " logits to %g", config->logits_cap);
}

void test_config_published(const struct test_published *models, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct status status = {0};
        struct model_config config;
        char found[512] = "";
        char *text = strdup(models[i].config);
        assert_non_null(text);
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        const bool read = test_config_parse(&config, text, &status);
        free(text);
        if (!read) fail_msg("%s: refused: %s", models[i].name, status.message);
        describe(&config, found, sizeof found);
        if (strcmp(found, models[i].expected) != 0)
            fail_msg("%s: expected \"%s\", found \"%s\"", models[i].name, models[i].expected, found);
    }
}
