/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs against the model's equations, written down once more: a plain forward pass in double,
 * straight from the checkpoint's tensors, that shares no code with import, passes, lowering or kernels. */
#include <math.h>

#include "builder/build.h"
#include "builder/test_model.h"
#include "formats/engine/engine_file.h"

enum { MOST_TOKENS = 16 };

struct mirror {
    struct test_model model;
    int count;
    double stream[MOST_TOKENS][TEST_HIDDEN];
    double logits[MOST_TOKENS][TEST_VOCAB];
};

static const struct test_tensor *tensor_of(struct mirror *mirror, int layer, const char *name)
{
    char full[80];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    return test_model_find(&mirror->model, full);
}

/* y = W x + b, with the bias where the checkpoint has one. */
static void linear(struct mirror *mirror, int layer, const char *module, const double *x, double *y)
{
    char weight_name[64], bias_name[64];
    snprintf(weight_name, sizeof weight_name, "%s.weight", module);
    snprintf(bias_name, sizeof bias_name, "%s.bias", module);
    const struct test_tensor *weight = tensor_of(mirror, layer, weight_name),
                             *bias = tensor_of(mirror, layer, bias_name);
    assert_non_null(weight);
    for (uint64_t n = 0; n < weight->rows; n++) {
        y[n] = bias ? (double)test_tensor_value(bias, n) : 0;
        for (uint64_t k = 0; k < weight->columns; k++)
            y[n] += (double)test_tensor_value(weight, n * weight->columns + k) * x[k];
    }
}

static void rms_norm(struct mirror *mirror, int layer, const char *name, int width, const double *x, double *y)
{
    const struct test_tensor *weight = tensor_of(mirror, layer, name);
    double sum = 0;
    assert_non_null(weight);
    for (int i = 0; i < width; i++) sum += x[i] * x[i];
    double scale = 1 / sqrt(sum / width + 1e-5);
    for (int i = 0; i < width; i++) y[i] = x[i] * scale * (double)test_tensor_value(weight, (uint64_t)i);
}

static void rotate(double *head, int position)
{
    enum { HALF = TEST_HEAD_DIM / 2 };
    for (int i = 0; i < HALF; i++) {
        double angle = position * pow(10000.0, -2.0 * i / TEST_HEAD_DIM), a = head[i], b = head[i + HALF];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + HALF] = b * cos(angle) + a * sin(angle);
    }
}

static void attend(struct mirror *mirror, int layer)
{
    enum { D = TEST_HEAD_DIM, Q = TEST_HEADS * D, KV = TEST_KV_HEADS * D };
    static double q[MOST_TOKENS][Q], k[MOST_TOKENS][KV], v[MOST_TOKENS][KV];
    int window = mirror->model.family == TEST_MISTRAL ? TEST_WINDOW : MOST_TOKENS;
    for (int t = 0; t < mirror->count; t++) {
        double normed[TEST_HIDDEN];
        rms_norm(mirror, layer, "input_layernorm.weight", TEST_HIDDEN, mirror->stream[t], normed);
        linear(mirror, layer, "self_attn.q_proj", normed, q[t]);
        linear(mirror, layer, "self_attn.k_proj", normed, k[t]);
        linear(mirror, layer, "self_attn.v_proj", normed, v[t]);
        for (int h = 0; h < TEST_HEADS + TEST_KV_HEADS; h++) {
            bool is_q = h < TEST_HEADS;
            double *head = is_q ? q[t] + h * D : k[t] + (h - TEST_HEADS) * D;
            const char *norm = is_q ? "self_attn.q_norm.weight" : "self_attn.k_norm.weight";
            if (mirror->model.family == TEST_QWEN3) rms_norm(mirror, layer, norm, D, head, head);
            rotate(head, t);
        }
    }
    for (int t = 0; t < mirror->count; t++) {
        double mixed[Q] = {0}, out[TEST_HIDDEN];
        int first = t - window + 1 > 0 ? t - window + 1 : 0;
        for (int h = 0; h < TEST_HEADS; h++) {
            int group = h / (TEST_HEADS / TEST_KV_HEADS) * D;
            double total = 0;
            for (int s = first; s <= t; s++) {
                double score = 0;
                for (int i = 0; i < D; i++) score += q[t][h * D + i] * k[s][group + i];
                double weight = exp(score / sqrt(D));
                total += weight;
                for (int i = 0; i < D; i++) mixed[h * D + i] += weight * v[s][group + i];
            }
            for (int i = 0; i < D; i++) mixed[h * D + i] /= total;
        }
        linear(mirror, layer, "self_attn.o_proj", mixed, out);
        for (int i = 0; i < TEST_HIDDEN; i++) mirror->stream[t][i] += out[i];
    }
}

static void feed_forward(struct mirror *mirror, int layer)
{
    for (int t = 0; t < mirror->count; t++) {
        double normed[TEST_HIDDEN], gate[TEST_INNER], up[TEST_INNER], out[TEST_HIDDEN];
        rms_norm(mirror, layer, "post_attention_layernorm.weight", TEST_HIDDEN, mirror->stream[t], normed);
        linear(mirror, layer, "mlp.gate_proj", normed, gate);
        linear(mirror, layer, "mlp.up_proj", normed, up);
        for (int i = 0; i < TEST_INNER; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
        linear(mirror, layer, "mlp.down_proj", gate, out);
        for (int i = 0; i < TEST_HIDDEN; i++) mirror->stream[t][i] += out[i];
    }
}

static void forward(struct mirror *mirror, const int32_t *tokens, int count)
{
    const struct test_tensor *embedding = test_model_find(&mirror->model, "model.embed_tokens.weight");
    bool tied = !test_model_find(&mirror->model, "lm_head.weight");
    mirror->count = count;
    for (int t = 0; t < count; t++)
        for (int i = 0; i < TEST_HIDDEN; i++)
            mirror->stream[t][i] = (double)test_tensor_value(embedding, (uint64_t)(tokens[t] * TEST_HIDDEN + i));
    for (int layer = 0; layer < TEST_LAYERS; layer++) {
        attend(mirror, layer);
        feed_forward(mirror, layer);
    }
    for (int t = 0; t < count; t++) {
        double normed[TEST_HIDDEN];
        rms_norm(mirror, -1, "model.norm.weight", TEST_HIDDEN, mirror->stream[t], normed);
        linear(mirror, -1, tied ? "model.embed_tokens" : "lm_head", normed, mirror->logits[t]);
    }
}

static void build(const struct test_model *model, const char *folder, const struct build_options *wanted,
                  struct engine *engine)
{
    struct status status = {0};
    struct build_options options = *wanted;
    options.model = folder;
    options.output = test_path(folder, "x.eng");
    options.out = fopen("/dev/null", "w");
    assert_non_null(options.out);
    test_model_write(model, folder);
    test_expect_success(build_engine(&options, &status), &status);
    fclose(options.out);
    test_expect_success(engine_open(engine, test_path(folder, "x.eng"), &status), &status);
}

static void check_golden(enum test_family family, enum dtype dtype, const struct build_options *options)
{
    char *folder = test_folder();
    struct mirror *mirror = calloc(1, sizeof *mirror);
    struct engine engine;
    int32_t tokens[MOST_TOKENS];
    assert_non_null(mirror);
    test_model_init(&mirror->model, family, dtype);
    build(&mirror->model, folder, options, &engine);
    const struct engine_golden *golden = &engine.golden;
    assert_true(golden->prompt_count == 5 && golden->token_count == 3 && golden->vocab_size == TEST_VOCAB);
    assert_int_equal(golden->prompt[0], 1); /* the beginning of a sequence */
    memcpy(tokens, golden->prompt, 5 * sizeof *tokens);
    memcpy(tokens + 5, golden->tokens, 3 * sizeof *tokens);
    forward(mirror, tokens, 8);
    for (int t = 0; t < 3; t++) {
        const float *logits = golden->logits + t * TEST_VOCAB;
        int best = 0;
        for (int i = 0; i < TEST_VOCAB; i++) {
            double error = fabs((double)logits[i] - mirror->logits[4 + t][i]);
            if (error > 1e-4) fail_msg("family %d token %d logit %d: off by %g", (int)family, t, i, error);
            if (logits[i] > logits[best]) best = i;
        }
        assert_int_equal(golden->tokens[t], best);
    }
    engine_close(&engine);
    free(mirror);
    test_folder_remove(folder);
}

static void equals_the_equations(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct build_options options;
    build_options_init(&options);
    options.tune = TUNE_OFF;
    options.threads = 2;
    for (int family = 0; family < TEST_FAMILIES; family++)
        for (size_t d = 0; d < 3; d++) check_golden((enum test_family)family, dtypes[d], &options);
}

/* The prompt of five tokens takes one, two or five steps. */
static void chunks_change_nothing(void **state)
{
    (void)state;
    struct build_options options;
    build_options_init(&options);
    options.tune = TUNE_OFF;
    options.prefill_chunk_count = 1;
    for (uint32_t chunk = 1; chunk <= 4; chunk++) {
        options.prefill_chunks[0] = chunk;
        options.threads = (int)chunk;
        check_golden(TEST_MISTRAL, DTYPE_BF16, &options);
        check_golden(TEST_QWEN3, DTYPE_BF16, &options);
    }
}

/* However short the context, the golden outputs fit it, and the engine opens. */
static void short_contexts(void **state)
{
    (void)state;
    for (uint64_t context = 1; context <= 20; context++) {
        struct test_model model;
        struct engine engine;
        struct build_options options;
        char *folder = test_folder();
        build_options_init(&options);
        options.tune = TUNE_OFF;
        options.threads = 1;
        options.max_context = context;
        test_model_init(&model, TEST_LLAMA, DTYPE_BF16);
        build(&model, folder, &options, &engine);
        assert_int_equal(engine.manifest.geometry.max_context, context);
        assert_true(context < 2 ? engine.golden.token_count == 0 : engine.golden.token_count > 0);
        engine_close(&engine);
        test_folder_remove(folder);
    }
}

/* What ranks compute together, each with its share of heads, inner width and vocabulary. */
static void ranks_equal_the_equations(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct build_options options;
    build_options_init(&options);
    options.tune = TUNE_OFF;
    options.gpus = TEST_RANKS;
    for (int family = 0; family < TEST_FAMILIES; family++)
        for (size_t d = 0; d < 3; d++) {
            options.threads = 1 + (int)d * 4; /* fewer than ranks, or more */
            options.prefill_chunk_count = d == 1;
            options.prefill_chunks[0] = 2;
            check_golden((enum test_family)family, dtypes[d], &options);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_equations),
        cmocka_unit_test(ranks_equal_the_equations),
        cmocka_unit_test(chunks_change_nothing),
        cmocka_unit_test(short_contexts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
