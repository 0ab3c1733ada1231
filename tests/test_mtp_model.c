/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test_mtp_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/test_support.h"

enum { HIDDEN = MTP_HIDDEN, VOCAB = MTP_VOCAB, INNER = 48, HEADS = 2, HEAD = 16, ROTARY = 8, MOST_TENSORS = 48 };
static const double eps = 1e-5, theta = 10000;

static const char ernie_config[] =
    "{'model_type':'ernie4_5_moe','architectures':['Ernie4_5_MoeForCausalLM'],'hidden_size':32,'intermediate_size':48,"
    "'num_hidden_layers':1,'num_attention_heads':2,'num_key_value_heads':1,'head_dim':16,'vocab_size':53,"
    "'max_position_embeddings':256,'rms_norm_eps':1e-5,'rope_theta':10000.0,'moe_num_experts':2,'moe_k':1,"
    "'moe_num_shared_experts':1,'moe_intermediate_size':48,'moe_layer_start_index':1,'use_bias':false,"
    "'hidden_act':'silu','tie_word_embeddings':false,'num_nextn_predict_layers':%u}";
static const char config[] =
    "{'model_type':'glm4_moe','architectures':['Glm4MoeForCausalLM'],'hidden_size':32,'intermediate_size':48,"
    "'num_hidden_layers':1,'num_attention_heads':2,'num_key_value_heads':1,'head_dim':16,'vocab_size':53,"
    "'max_position_embeddings':256,'rms_norm_eps':1e-5,'rope_theta':10000.0,'partial_rotary_factor':0.5,"
    "'n_routed_experts':1,'num_experts_per_tok':1,'n_shared_experts':1,'moe_intermediate_size':48,"
    "'first_k_dense_replace':1,'n_group':1,'topk_group':1,'routed_scaling_factor':1.0,'norm_topk_prob':true,"
    "'hidden_act':'silu','tie_word_embeddings':false,'num_nextn_predict_layers':%u}";

/* A tensor; columns 0: a vector. */
struct tensor {
    char name[80];
    uint64_t rows, columns;
    float *values;
};
static struct tensor tensors[MOST_TENSORS];
static size_t count;
static bool is_ernie; /* the model last written */

static float *add(const char *name, uint64_t rows, uint64_t columns)
{
    assert_true(count < MOST_TENSORS);
    struct tensor *tensor = &tensors[count++];
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->rows = rows, tensor->columns = columns;
    tensor->values = calloc(rows * (columns ? columns : 1), sizeof(float));
    assert_non_null(tensor->values);
    return tensor->values;
}

/* Tensors are called as in the family glm4_moe but in a checkpoint. */
static const char *name_in_file(const char *name)
{
    static const char layer[] = "model.layers.1.";
    static const struct {
        const char *usual, *name;
    } modules[] = {{"enorm.", "model.mtp_emb_norm.0."},
                   {"hnorm.", "model.mtp_hidden_norm.0."},
                   {"eh_proj.", "model.mtp_linear_proj.0."},
                   {"", "model.mtp_block.0."}};
    if (!is_ernie || strncmp(name, layer, sizeof layer - 1) != 0) return name;
    const char *rest = name + sizeof layer - 1;
    size_t i = 0;
    while (strncmp(rest, modules[i].usual, strlen(modules[i].usual)) != 0) i++;
    return test_text("%s%s", modules[i].name, rest + strlen(modules[i].usual));
}

static const float *values_of(const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, name) == 0) return tensors[i].values;
    fail_msg("no tensor %s", name);
    return NULL;
}

static void forget(void)
{
    for (size_t i = 0; i < count; i++) free(tensors[i].values);
    count = 0;
}

/* Matrices keep the size of what they multiply, norms are around 1. */
static void add_random(uint64_t *random, const char *name, uint64_t rows, uint64_t columns, double scale)
{
    float *values = add(name, rows, columns);
    const double reach = columns ? scale * sqrt(3.0 / (double)columns) : 0.2;
    for (uint64_t i = 0; i < rows * (columns ? columns : 1); i++)
        values[i] = (float)((columns ? 0 : 1) + ((double)test_random(random) * 0x1p-30 - 1) * reach);
}

static void add_layer(uint64_t *random, int layer, const char *const *mlps, int mlp_count, double scale)
{
    static const struct {
        const char *module;
        uint64_t rows, columns;
    } attention[] = {{"q_proj", HEADS * HEAD, HIDDEN}, {"k_proj", HEAD, HIDDEN}, {"v_proj", HEAD, HIDDEN}};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "post_attention" : "input";
        add_random(random, test_text("model.layers.%d.%s_layernorm.weight", layer, name), HIDDEN, 0, 1);
    }
    for (int i = 0; i < 3; i++) {
        const char *name = test_text("model.layers.%d.self_attn.%s.weight", layer, attention[i].module);
        add_random(random, name, attention[i].rows, attention[i].columns, 1);
    }
    add_random(random, test_text("model.layers.%d.self_attn.o_proj.weight", layer), HIDDEN, HEADS * HEAD, scale);
    for (int i = 0; i < mlp_count; i++)
        for (int part = 0; part < 3; part++) {
            static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
            const char *name = test_text("model.layers.%d.%s.%s.weight", layer, mlps[i], parts[part]);
            add_random(random, name, part < 2 ? INNER : HIDDEN, part < 2 ? HIDDEN : INNER, part < 2 ? 1 : scale);
        }
}

static void copy(const char *name, const char *from, uint64_t rows, uint64_t columns)
{
    memcpy(add(name, rows, columns), values_of(from), rows * columns * sizeof(float));
}

/* Row t + 1 of the LM head is row t of the embedding. */
static void make_cycle(void)
{
    const float *embedding = values_of("model.embed_tokens.weight");
    float *head = (float *)(uintptr_t)values_of("lm_head.weight");
    for (int t = 0; t < VOCAB; t++)
        memcpy(head + (t + 1) % VOCAB * HIDDEN, embedding + t * HIDDEN, HIDDEN * sizeof *head);
}

/* The layer passes the token's embedding on. */
static void make_known(void)
{
    float *projection = (float *)(uintptr_t)values_of("model.layers.1.eh_proj.weight");
    for (int row = 0; row < HIDDEN; row++)
        for (int k = 0; k < 2 * HIDDEN; k++) projection[row * 2 * HIDDEN + k] = row == k;
}

/* What only the layer of glm4_moe has. */
static void add_parts_of_glm(uint64_t *random, bool has_own)
{
    add_random(random, "model.layers.1.mlp.gate.weight", 1, HIDDEN, 1);
    add_random(random, "model.layers.1.mlp.gate.e_score_correction_bias", 1, 0, 1);
    add_random(random, "model.layers.1.shared_head.norm.weight", HIDDEN, 0, 1);
    if (has_own) {
        add_random(random, "model.layers.1.embed_tokens.weight", VOCAB, HIDDEN, 1);
        add_random(random, "model.layers.1.shared_head.head.weight", VOCAB, HIDDEN, 3);
    } else {
        copy("model.layers.1.embed_tokens.weight", "model.embed_tokens.weight", VOCAB, HIDDEN);
        copy("model.layers.1.shared_head.head.weight", "lm_head.weight", VOCAB, HIDDEN);
    }
}

static void make_tensors(const struct mtp_settings *settings)
{
    static const char *const dense[] = {"mlp"}, *const experts[] = {"mlp.experts.0", "mlp.shared_experts"};
    uint64_t random = 11;
    const double scales[] = {settings->cycles ? 0.001 : 1, settings->knows ? 0.001 : 1}; /* of what layers add */
    forget();
    add_random(&random, "model.embed_tokens.weight", VOCAB, HIDDEN, 1);
    add_random(&random, "lm_head.weight", VOCAB, HIDDEN, 3);
    add_random(&random, "model.norm.weight", HIDDEN, 0, 1);
    add_layer(&random, 0, dense, 1, scales[0]);
    add_layer(&random, 1, is_ernie ? dense : experts, is_ernie ? 1 : 2, scales[1]);
    add_random(&random, "model.layers.1.enorm.weight", HIDDEN, 0, 1);
    add_random(&random, "model.layers.1.hnorm.weight", HIDDEN, 0, 1);
    add_random(&random, "model.layers.1.eh_proj.weight", HIDDEN, 2 * HIDDEN, 1);
    if (settings->cycles) make_cycle();
    if (settings->knows) make_known();
    if (!is_ernie) add_parts_of_glm(&random, settings->has_own);
}

static bool is_called(const struct tensor *tensor, const char *name)
{
    return name && strcmp(name_in_file(tensor->name), name) == 0;
}

void mtp_model_write(const struct mtp_settings *settings, const char *folder)
{
    char text[2048], header[16384] = "{";
    uint64_t size, end = 0;
    is_ernie = settings->is_ernie;
    make_tensors(settings);
    snprintf(text, sizeof text, is_ernie ? ernie_config : config, settings->layers);
    test_write_text(test_path(folder, "config.json"), test_json(text));
    for (size_t i = 0; i < count; i++) {
        struct tensor *tensor = &tensors[i];
        if (is_called(tensor, settings->left_out)) continue;
        const bool misshapen = is_called(tensor, settings->misshapen);
        const uint64_t rows = tensor->rows - misshapen, columns = tensor->columns ? tensor->columns : 1;
        char shape[48];
        snprintf(shape, sizeof shape, tensor->columns ? "[%d,%d]" : "[%d]", (int)rows, (int)columns);
        snprintf(header + strlen(header), sizeof header - strlen(header),
                 "%s\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%d,%d]}", end ? "," : "",
                 name_in_file(tensor->name), shape, (int)end, (int)(end + rows * columns * sizeof(float)));
        end += rows * columns * sizeof(float);
    }
    strcat(header, "}");
    size = strlen(header);
    FILE *file = fopen(test_path(folder, "model.safetensors"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&size, sizeof size, 1, file), 1);
    assert_int_equal(fwrite(header, size, 1, file), 1);
    for (size_t i = 0; i < count; i++) {
        if (is_called(&tensors[i], settings->left_out)) continue;
        const bool misshapen = is_called(&tensors[i], settings->misshapen);
        const size_t columns = tensors[i].columns ? tensors[i].columns : 1;
        const size_t elements = (tensors[i].rows - misshapen) * columns;
        assert_int_equal(fwrite(tensors[i].values, sizeof(float), elements, file), elements);
    }
    assert_int_equal(fclose(file), 0);
}

void mtp_options(struct build_options *options, const char *folder, const char *output)
{
    build_options_init(options);
    options->model = folder;
    options->output = output;
    options->mtp = options->hidden = true;
    options->max_context = MTP_CONTEXT;
    options->max_batch = 4;
    options->prefill_chunks[0] = 8;
    options->prefill_chunks[1] = MTP_LARGEST_CHUNK;
    options->prefill_chunk_count = 2;
    options->tune = TUNE_OFF;
    options->tuning_cache = NULL;
    options->progress = NULL;
}

/* ---- the layer ---- */

/* A weight of the layer or, by its full name, of the model. */
static const float *weight(const char *module)
{
    const bool of_model = strncmp(module, "model.", 6) == 0 || strcmp(module, "lm_head") == 0;
    return values_of(test_text(of_model ? "%s.weight" : "model.layers.1.%s.weight", module));
}

static void multiply(const float *matrix, int rows, int columns, const double *x, double *y)
{
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int k = 0; k < columns; k++) sum += (double)matrix[r * columns + k] * x[k];
        y[r] = sum;
    }
}

static void normalise(const char *module, const double *x, double *y)
{
    double sum = 0;
    for (int k = 0; k < HIDDEN; k++) sum += x[k] * x[k];
    const double factor = 1 / sqrt(sum / HIDDEN + eps);
    for (int k = 0; k < HIDDEN; k++) y[k] = x[k] * factor * (double)weight(module)[k];
}

static void rotate(double *head, uint32_t position)
{
    const int rotary = is_ernie ? HEAD : ROTARY;
    for (int i = 0; i < rotary / 2; i++) {
        double *first = is_ernie ? head + 2 * i : head + i, *second = is_ernie ? first + 1 : first + rotary / 2;
        const double angle = position * pow(theta, -2.0 * i / rotary), a = *first, b = *second;
        *first = a * cos(angle) - b * sin(angle);
        *second = b * cos(angle) + a * sin(angle);
    }
}

static void attend(struct mtp_layer *layer, const double *x, double *out)
{
    double q[HEADS * HEAD], mixed[HEADS * HEAD] = {0}, weights[MTP_CONTEXT];
    const uint32_t position = layer->count++;
    multiply(weight("self_attn.q_proj"), HEADS * HEAD, HIDDEN, x, q);
    multiply(weight("self_attn.k_proj"), HEAD, HIDDEN, x, layer->keys[position]);
    multiply(weight("self_attn.v_proj"), HEAD, HIDDEN, x, layer->values[position]);
    rotate(layer->keys[position], position);
    for (int h = 0; h < HEADS; h++) {
        double total = 0;
        rotate(q + h * HEAD, position);
        for (uint32_t p = 0; p <= position; p++) {
            double score = 0;
            for (int i = 0; i < HEAD; i++) score += q[h * HEAD + i] * layer->keys[p][i];
            total += weights[p] = exp(score / sqrt(HEAD));
        }
        for (uint32_t p = 0; p <= position; p++)
            for (int i = 0; i < HEAD; i++) mixed[h * HEAD + i] += weights[p] / total * layer->values[p][i];
    }
    multiply(weight("self_attn.o_proj"), HIDDEN, HEADS * HEAD, mixed, out);
}

/* Adds an expert's output. The routed one has all of the weight, being the only one. */
static void add_mlp(const char *module, const double *x, double *sum)
{
    double gate[INNER], up[INNER], down[HIDDEN];
    multiply(weight(test_text("%s.gate_proj", module)), INNER, HIDDEN, x, gate);
    multiply(weight(test_text("%s.up_proj", module)), INNER, HIDDEN, x, up);
    for (int i = 0; i < INNER; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    multiply(weight(test_text("%s.down_proj", module)), HIDDEN, INNER, up, down);
    for (int k = 0; k < HIDDEN; k++) sum[k] += down[k];
}

void mtp_predict(struct mtp_layer *layer, const float *hidden, int32_t following, double *logits)
{
    double token[HIDDEN], state[HIDDEN], both[2 * HIDDEN], x[HIDDEN], normed[HIDDEN], out[HIDDEN];
    for (int k = 0; k < HIDDEN; k++) {
        token[k] = (double)weight(is_ernie ? "model.embed_tokens" : "embed_tokens")[following * HIDDEN + k];
        state[k] = (double)hidden[k];
    }
    normalise("enorm", token, both);
    normalise("hnorm", state, both + HIDDEN);
    multiply(weight("eh_proj"), HIDDEN, 2 * HIDDEN, both, x);
    normalise("input_layernorm", x, normed);
    attend(layer, normed, out);
    for (int k = 0; k < HIDDEN; k++) x[k] += out[k];
    normalise("post_attention_layernorm", x, normed);
    add_mlp(is_ernie ? "mlp" : "mlp.experts.0", normed, x);
    if (!is_ernie) add_mlp("mlp.shared_experts", normed, x);
    normalise(is_ernie ? "model.norm" : "shared_head.norm", x, normed);
    multiply(weight(is_ernie ? "lm_head" : "shared_head.head"), VOCAB, HIDDEN, normed, logits);
}
