/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs against the model's equations, written down once more: a plain forward pass in double,
 * straight from the checkpoint's tensors, that shares no code with import, passes, lowering or kernels. */
#include <math.h>

#include "builder/build.h"
#include "formats/base/test_program.h"
#include "builder/golden/golden_cpu.h"
#include "builder/test_model.h"
#include "formats/engine/engine_file.h"
#include "kernels/attention/attention.h"

enum { MOST_TOKENS = 64 }; /* the context of the models */

struct mirror {
    struct test_model model;
    struct test_piece pieces[TEST_MAX_PIECES];
    size_t piece_count;
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

static const struct test_piece *piece_of(struct mirror *mirror, int layer, const char *module, const char *kind)
{
    char full[128];
    if (layer < 0)
        snprintf(full, sizeof full, "%s.%s", module, kind);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s.%s", layer, module, kind);
    for (size_t i = 0; i < mirror->piece_count; i++)
        if (strcmp(mirror->pieces[i].name, full) == 0) return &mirror->pieces[i];
    return NULL;
}

/* y = W x + b, with the bias where the checkpoint has one. */
static void linear(struct mirror *mirror, int layer, const char *module, const double *x, double *y)
{
    const struct test_piece *weight = piece_of(mirror, layer, module, "weight"),
                            *bias = piece_of(mirror, layer, module, "bias");
    assert_non_null(weight);
    for (uint64_t n = 0; n < weight->rows; n++) {
        y[n] = bias ? (double)test_piece_value(bias, n, 0) : 0;
        for (uint64_t k = 0; k < weight->columns; k++) y[n] += (double)test_piece_value(weight, n, k) * x[k];
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

/* The same where the model has this norm; otherwise x. */
static void norm_if_any(struct mirror *mirror, int layer, const char *name, const double *x, double *y)
{
    if (tensor_of(mirror, layer, name))
        rms_norm(mirror, layer, name, TEST_HIDDEN, x, y);
    else
        memmove(y, x, TEST_HIDDEN * sizeof *y);
}

/* Rotates the first `rotary_dim` elements. */
static void rotate(double *head, int rotary_dim, int position)
{
    const int half = rotary_dim / 2;
    for (int i = 0; i < half; i++) {
        double angle = position * pow(10000.0, -2.0 * i / rotary_dim), a = head[i], b = head[i + half];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + half] = b * cos(angle) + a * sin(angle);
    }
}

/* As test_model.c writes them into config.json. */
struct factors {
    double embedding, attention, residual, logits;
};

static const struct factors *factors_of(const struct mirror *mirror)
{
    static const struct factors none = {1, 0.35355339059327376 /* 1 / sqrt(TEST_HEAD_DIM) */, 1, 1};
    static const struct factors granite = {3, 0.2, 0.5, 0.5};
    return mirror->model.family == TEST_GRANITE ? &granite : &none;
}

static void attend(struct mirror *mirror, int layer)
{
    enum { D = TEST_HEAD_DIM, Q = TEST_HEADS * D, KV = TEST_KV_HEADS * D };
    static double q[MOST_TOKENS][Q], k[MOST_TOKENS][KV], v[MOST_TOKENS][KV];
    const struct factors *factors = factors_of(mirror);
    const enum test_family family = mirror->model.family;
    int window = family == TEST_MISTRAL || family == TEST_PHI3 ? TEST_WINDOW : MOST_TOKENS;
    for (int t = 0; t < mirror->count; t++) {
        double normed[TEST_HIDDEN];
        norm_if_any(mirror, layer, "input_layernorm.weight", mirror->stream[t], normed);
        linear(mirror, layer, "self_attn.q_proj", normed, q[t]);
        linear(mirror, layer, "self_attn.k_proj", normed, k[t]);
        linear(mirror, layer, "self_attn.v_proj", normed, v[t]);
        if (family == TEST_OLMO2) {
            rms_norm(mirror, layer, "self_attn.q_norm.weight", Q, q[t], q[t]);
            rms_norm(mirror, layer, "self_attn.k_norm.weight", KV, k[t], k[t]);
        }
        for (int h = 0; h < TEST_HEADS + TEST_KV_HEADS; h++) {
            bool is_q = h < TEST_HEADS;
            double *head = is_q ? q[t] + h * D : k[t] + (h - TEST_HEADS) * D;
            const char *norm = is_q ? "self_attn.q_norm.weight" : "self_attn.k_norm.weight";
            if (family == TEST_QWEN3) rms_norm(mirror, layer, norm, D, head, head);
            rotate(head, family == TEST_PHI3 ? 3 * D / 4 : D, t);
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
                double weight = exp(score * factors->attention);
                total += weight;
                for (int i = 0; i < D; i++) mixed[h * D + i] += weight * v[s][group + i];
            }
            for (int i = 0; i < D; i++) mixed[h * D + i] /= total;
        }
        linear(mirror, layer, "self_attn.o_proj", mixed, out);
        if (family == TEST_OLMO2) rms_norm(mirror, layer, "post_attention_layernorm.weight", TEST_HIDDEN, out, out);
        for (int i = 0; i < TEST_HIDDEN; i++) mirror->stream[t][i] += factors->residual * out[i];
    }
}

static void feed_forward(struct mirror *mirror, int layer)
{
    for (int t = 0; t < mirror->count; t++) {
        double normed[TEST_HIDDEN], gate[TEST_INNER], up[TEST_INNER], out[TEST_HIDDEN];
        if (mirror->model.family == TEST_OLMO2)
            memcpy(normed, mirror->stream[t], sizeof normed);
        else
            rms_norm(mirror, layer, "post_attention_layernorm.weight", TEST_HIDDEN, mirror->stream[t], normed);
        linear(mirror, layer, "mlp.gate_proj", normed, gate);
        linear(mirror, layer, "mlp.up_proj", normed, up);
        for (int i = 0; i < TEST_INNER; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
        linear(mirror, layer, "mlp.down_proj", gate, out);
        norm_if_any(mirror, layer, "post_feedforward_layernorm.weight", out, out);
        for (int i = 0; i < TEST_HIDDEN; i++) mirror->stream[t][i] += factors_of(mirror)->residual * out[i];
    }
}

static void forward(struct mirror *mirror, const int32_t *tokens, int count)
{
    const struct test_tensor *embedding = test_model_find(&mirror->model, "model.embed_tokens.weight");
    const struct factors *factors = factors_of(mirror);
    bool tied = !test_model_find(&mirror->model, "lm_head.weight");
    mirror->count = count;
    mirror->piece_count = test_model_pieces(&mirror->model, mirror->pieces);
    for (int t = 0; t < count; t++)
        for (int i = 0; i < TEST_HIDDEN; i++)
            mirror->stream[t][i] =
                factors->embedding * (double)test_tensor_value(embedding, (uint64_t)(tokens[t] * TEST_HIDDEN + i));
    for (int layer = 0; layer < TEST_LAYERS; layer++) {
        attend(mirror, layer);
        feed_forward(mirror, layer);
    }
    for (int t = 0; t < count; t++) {
        double normed[TEST_HIDDEN];
        rms_norm(mirror, -1, "model.norm.weight", TEST_HIDDEN, mirror->stream[t], normed);
        linear(mirror, -1, tied ? "model.embed_tokens" : "lm_head", normed, mirror->logits[t]);
        for (int i = 0; i < TEST_VOCAB; i++) mirror->logits[t][i] *= factors->logits;
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

static void check_row(struct mirror *mirror, const struct golden_cases *cases, uint32_t row)
{
    const struct golden_row *golden = &cases->rows[row];
    const float *logits = cases->logits + row * TEST_VOCAB;
    assert_true(golden->position < MOST_TOKENS);
    for (int i = 0; i < TEST_VOCAB; i++) {
        double error = fabs((double)logits[i] - mirror->logits[golden->position][i]);
        if (error > 1e-4)
            fail_msg("sequence %u position %u logit %d: off by %g", golden->sequence, golden->position, i, error);
        assert_true(logits[i] <= logits[golden->token]);
    }
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
    const struct golden_cases *cases = &engine.golden_plans;
    for (uint32_t r = 0; r < cases->row_count; r++) {
        const uint32_t sequence = cases->rows[r].sequence;
        if (r == 0 || cases->rows[r - 1].sequence != sequence)
            forward(mirror, golden_tokens(cases, sequence), (int)cases->sequences[sequence].token_count);
        check_row(mirror, cases, r);
    }
    engine_close(&engine);
    free(mirror);
    test_folder_remove(folder);
}

TEST(equals_the_equations)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct build_options options;
    build_options_init(&options);
    options.tune = TUNE_OFF;
    options.threads = 2;
    for (int family = 0; family < TEST_FAMILIES; family++)
        for (size_t d = 0; d < 3; d++) check_golden((enum test_family)family, dtypes[d], &options);
}

/* The prompt of five tokens takes one, two or five steps. */
TEST(chunks_change_nothing)
{
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
TEST(short_contexts)
{
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
TEST(ranks_equal_the_equations)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct build_options options;
    build_options_init(&options);
    options.tune = TUNE_OFF;
    options.gpus = TEST_RANKS;
    for (int family = 0; family < TEST_RANK_FAMILIES; family++)
        for (size_t d = 0; d < 3; d++) {
            options.threads = 1 + (int)d * 4; /* fewer than ranks, or more */
            options.prefill_chunk_count = d == 1;
            options.prefill_chunks[0] = 2;
            check_golden((enum test_family)family, dtypes[d], &options);
        }
}

/* ---- every plan ---- */

enum { PLANS = 9, SLOTS = 5 };

static void build_several_plans(const char *folder, uint32_t gpus, struct engine *engine)
{
    struct test_model model;
    struct build_options options;
    build_options_init(&options);
    options.tune = TUNE_OFF;
    options.threads = 2;
    options.gpus = gpus;
    options.max_batch = SLOTS;
    options.batch_sizes[0] = 2;
    options.batch_size_count = 1;
    options.prefill_chunks[0] = 3;
    options.prefill_chunks[1] = 16;
    options.prefill_chunk_count = 2;
    test_model_init(&model, TEST_MISTRAL, DTYPE_BF16);
    build(&model, folder, &options, engine);
    assert_int_equal(engine->plan_count, PLANS);
}

/* Every plan has cases; among them are a second page, a second chunk, a passed window, different positions in one batch. */
TEST(every_plan_has_cases)
{
    struct engine engine;
    char *folder = test_folder();
    build_several_plans(folder, 1, &engine);
    const struct golden_cases *cases = &engine.golden_plans;
    const uint32_t longest = golden_longest(cases);
    const struct plan_geometry *geometry = &engine.manifest.geometry;
    assert_true(longest > 2 * geometry->page_tokens && longest > TEST_WINDOW);
    assert_int_equal(geometry->page_window[0], TEST_WINDOW);
    assert_true(longest > plan_ring_pages(geometry, 0, 16) * geometry->page_tokens);
    for (size_t p = 0; p < engine.plan_count; p++) {
        const struct plan_header *header = &engine.plans[p].header;
        const uint32_t items_of_plan = golden_most_items(header), most = items_of_plan < SLOTS ? items_of_plan : SLOTS;
        uint32_t positions = 0, full = 0, partial_with_past = 0, found = 0;
        for (uint32_t c = 0; c < cases->case_count; c++) {
            const struct golden_case *one = &cases->cases[c];
            const uint32_t *items = cases->items + one->first_item;
            if (one->kind != header->kind || one->rows != header->rows) continue;
            found++;
            if (plan_has_chunks(one->kind)) {
                /* Two prompts with a past, and sequences that decode. */
                assert_int_equal(one->count, most);
                assert_int_equal(golden_chunk(cases, one, 0), one->rows / 2);
                assert_true(cases->rows[items[0]].position > one->rows);
                assert_int_equal(golden_chunk(cases, one, 1), one->rows > 4 ? one->rows / 4 : 1);
                assert_int_equal(golden_chunk(cases, one, 2), 1);
            }
            full += one->count == one->rows;
            partial_with_past += one->count < one->rows && cases->rows[items[0]].position >= one->count;
            for (uint32_t i = 0; i < golden_case_items(one); i++) {
                bool is_new = true;
                for (uint32_t k = 0; k < i; k++)
                    is_new = is_new && cases->rows[items[k]].position != cases->rows[items[i]].position;
                positions += is_new;
            }
        }
        if (header->kind == PLAN_PREFILL) {
            assert_int_equal(full, 2); /* one on pages that are used again */
            assert_int_equal(partial_with_past, 1);
        } else {
            assert_int_equal(found, 1);
            assert_int_equal(full, header->rows == most);
            assert_int_equal(positions, most < 3 ? most : 3);
        }
    }
    engine_close(&engine);
    test_folder_remove(folder);
}

/* Doubles the scale of attention in one layer: a plan that is legal and wrong. */
static void damage(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->header.launch_count; i++) {
        const struct plan_launch *launch = &plan->launches[i];
        if (launch->op != OP_ATTENTION || launch->layer != 1) continue;
        for (uint32_t k = 0; k < launch->param_count; k++) {
            struct plan_param *param = (struct plan_param *)&plan->params[launch->first_param + k];
            if (param->id == ATTENTION_SCALE_BITS + 1) param->value += 1 << 23; /* the exponent */
        }
        return;
    }
    fail_msg("the plan has no attention");
}

TEST(a_wrong_plan_fails_and_is_named)
{
    char *folder = test_folder();
    uint32_t refused = 0;
    for (uint32_t gpus = 1; gpus <= TEST_RANKS; gpus += TEST_RANKS - 1)
        for (size_t wrong = 0; wrong <= PLANS; wrong++) { /* PLANS: none */
            struct engine engine;
            struct golden_outputs outputs;
            struct status status = {0};
            char name[GOLDEN_NAME_BYTES];
            struct team *team = team_create(3, &status);
            assert_non_null(team);
            build_several_plans(folder, gpus, &engine);
            if (wrong < PLANS) damage(&engine.plans[wrong]);
            bool ok = compute_golden(&engine.manifest, engine.plans, engine.plan_count, engine.weights, team,
                                     CPU_PORTABLE, NULL, &outputs, &status);
            assert_int_equal(ok, wrong == PLANS);
            if (ok) {
                assert_int_equal(outputs.plans.row_count, engine.golden_plans.row_count);
                golden_outputs_free(&outputs);
            } else {
                /* The references run the launches of plan 0: where it is wrong, the others differ. */
                if (wrong > 0 && !strstr(status.message, golden_plan_name(&engine.plans[wrong].header, name)))
                    fail_msg("expected '%s', found '%s'", name, status.message);
                assert_non_null(strstr(status.message, ", tolerance "));
                assert_null(outputs.plans.rows);
                refused++;
            }
            team_destroy(team);
            engine_close(&engine);
        }
    assert_int_equal(refused, 2 * PLANS);
    test_folder_remove(folder);
}

int main(void) { return test_run(); }
