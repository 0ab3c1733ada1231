/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of the CUDA target: what remains of every model's graph, in which order, in which dtypes. */
#include "builder/passes/pass.h"
#include "formats/base/test_program.h"
#include "builder/test_device_model.h"
#include "builder/test_graph.h"
#include "kernels/add/add.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/select_rows/select_rows.h"

/* ---- what a graph must be, written down from the model's side in the form of graph_dump() ---- */

struct text {
    FILE *out;
    const struct model_config *config;
    const char *rows;  /* T; after the selection R */
    bool fuses_norms;  /* not with fp16, whose range the fused form leaves */
    const char *layer; /* the end of a line */
};

/* In a buffer that is reused after 63 more calls. */
static const char *format(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *format(const char *format, ...)
{
    static char texts[64][256];
    static int next;
    char *text = texts[next++ % 64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof texts[0], format, arguments);
    va_end(arguments);
    return text;
}

static double single(double value) { return (double)(float)value; }

/* A parameter, unless it has its default. */
static const char *param(const char *name, double value, double fallback)
{
    return single(value) == fallback ? "" : format(" %s=%.9g", name, single(value));
}

static const char *vector(const char *operand, const char *name, uint64_t width)
{
    return name ? format(", %s=@%s[%lu row-major]", operand, name, width) : "";
}

struct matmul {
    const char *out, *x, *weight, *bias, *residual, *norm;
    uint64_t rows, columns;
    bool gate;
    double scale;
};

static void print_matmul(const struct text *t, struct matmul m)
{
    const char *bias =
        !m.bias ? "" : format(", bias=@%s[%lu %s]", m.bias, m.rows, m.gate ? "bias gate/up" : "row-major");
    fprintf(t->out, "%%%s[%s,%lu] = matmul(x=%%%s, w=@%s[%lu,%lu %s]%s%s%s)%s%s%s%s", m.out, t->rows,
            m.gate ? m.rows / 2 : m.rows, m.x, m.weight, m.rows, m.columns, m.gate ? "gate/up" : "matrix", bias,
            m.residual ? format(", residual=%%%s", m.residual) : "", vector("norm", m.norm, t->config->hidden_size),
            m.gate ? " epilogue=1" : "", param("eps_bits", m.norm ? t->config->rms_norm_eps : 0, 0),
            param("scale_bits", m.scale, 1), t->layer);
}

/* The normalised x as a matmul's input: with few rows x itself and the norm as an operand of the matmul. */
static void normalise(const struct text *t, bool few_rows, const char *x, const char *out, const char *weight,
                      struct matmul *reader)
{
    const bool fused = few_rows && t->fuses_norms;
    reader->x = fused ? x : out;
    reader->norm = fused ? weight : NULL;
    if (fused) return;
    fprintf(t->out, "%%%s[%s,%lu] = rms_norm(x=%%%s%s)%s%s", out, t->rows, t->config->hidden_size, x,
            vector("weight", weight, t->config->hidden_size), param("eps_bits", t->config->rms_norm_eps, 0), t->layer);
}

static void print_attention(const struct text *t, bool prefill, uint32_t layer)
{
    const struct model_config *config = t->config;
    const bool norms = strcmp(config->model_type, "qwen3") == 0;
    const uint64_t width = config->heads * config->head_dim;
    const char *heads =
        format(" heads=%lu kv_heads=%lu head_dim=%lu", config->heads, config->kv_heads, config->head_dim);
    const char *scale = format("%s%s", param("window", (double)config->layer[layer].window, 0),
                               param("scale_bits", config->attention_scale, 0));
    const char *norm[2] = {"", ""};
    for (int i = 0; norms && i < 2; i++)
        norm[i] = vector(i ? "norm_k" : "norm_q", format("model.layers.%u.self_attn.%c_norm.weight", layer, "qk"[i]),
                         config->head_dim);
    const char *eps = param("eps_bits", norms ? config->rms_norm_eps : 0, 0);
    const char *rotary =
        config->rope.rotary_dim == config->head_dim ? "" : param("rotary_dim", (double)config->rope.rotary_dim, 0);
    if (prefill)
        fprintf(t->out,
                "%%rotated%u[T,%lu] = rope_append(qkv=%%qkv%u, table=%%rope%s%s)%s%s%s%s"
                "%%attention%u[T,%lu] = attention(q=%%rotated%u)%s%s%s",
                layer, width, layer, norm[0], norm[1], heads, eps, rotary, t->layer, layer, width, layer, heads, scale,
                t->layer);
    else
        fprintf(t->out, "%%attention%u[T,%lu] = rope_attention(qkv=%%qkv%u, table=%%rope%s%s)%s%s%s%s%s", layer, width,
                layer, norm[0], norm[1], heads, scale, eps, rotary, t->layer);
}

static void print_layer(struct text *t, enum test_graph which, uint32_t layer, const char **x)
{
    const struct model_config *config = t->config;
    const bool prefill = which == TEST_PREFILL, last = prefill && layer + 1 == config->layers;
    const bool few_rows = which == TEST_SMALL_BATCH || last;
    const uint64_t hidden = config->hidden_size, q_width = config->heads * config->head_dim;
    const uint64_t inner = (config->intermediate_size + 7) / 8 * 8;
    const char *modules = format("model.layers.%u", layer), *mixed = format("attention%u", layer);
    t->layer = format(" # layer %u\n", layer);

    struct matmul qkv = {.out = format("qkv%u", layer),
                         .weight = format("%s.self_attn.qkv_proj.weight", modules),
                         .bias = config->qkv_bias ? format("%s.self_attn.qkv_proj.bias", modules) : NULL,
                         .rows = q_width + 2 * config->kv_heads * config->head_dim,
                         .columns = hidden,
                         .scale = 1};
    normalise(t, which == TEST_SMALL_BATCH, *x, format("attention_in%u", layer),
              format("%s.input_layernorm.weight", modules), &qkv);
    print_matmul(t, qkv);
    print_attention(t, prefill, layer);
    if (last) { /* from here on the last token alone; the residual is selected where the sum was formed */
        const char *const both[] = {mixed, *x};
        t->rows = "R";
        for (int i = 0; i < 2; i++)
            fprintf(t->out, "%%last_%s[R,%lu] = select_rows(x=%%%s)%s", both[i], i ? hidden : q_width, both[i],
                    t->layer);
        mixed = format("last_%s", mixed);
        *x = format("last_%s", *x);
    }
    const char *sum = format("after_attention%u", layer), *activated = format("activated%u", layer);
    print_matmul(t, (struct matmul){.out = sum,
                                    .x = mixed,
                                    .weight = format("%s.self_attn.o_proj.weight", modules),
                                    .bias = config->output_bias ? format("%s.self_attn.o_proj.bias", modules) : NULL,
                                    .residual = *x,
                                    .rows = hidden,
                                    .columns = q_width,
                                    .scale = config->residual_scale});
    struct matmul gate = {.out = activated,
                          .weight = format("%s.mlp.gate_up_proj.weight", modules),
                          .bias = config->mlp_bias ? format("%s.mlp.gate_up_proj.bias", modules) : NULL,
                          .rows = 2 * inner,
                          .columns = hidden,
                          .gate = true,
                          .scale = 1};
    normalise(t, few_rows, sum, format("mlp_in%u", layer), format("%s.post_attention_layernorm.weight", modules),
              &gate);
    print_matmul(t, gate);
    *x = format("after_mlp%u", layer);
    print_matmul(t, (struct matmul){.out = *x,
                                    .x = activated,
                                    .weight = format("%s.mlp.down_proj.weight", modules),
                                    .bias = config->mlp_bias ? format("%s.mlp.down_proj.bias", modules) : NULL,
                                    .residual = sum,
                                    .rows = hidden,
                                    .columns = config->intermediate_size,
                                    .scale = config->residual_scale});
}

static void print_model(struct text *t, enum test_graph which)
{
    const struct model_config *config = t->config;
    const uint64_t hidden = config->hidden_size, vocab = config->vocab_size, rotary = config->rope.rotary_dim;
    const bool tied = config->tie_word_embeddings;
    const char *x = "embedded";
    float frequencies[2 * 512], scaling;
    struct status status = {0};
    test_expect_success(rope_frequencies(&config->rope, config->max_position, frequencies, &scaling, &status), &status);
    fprintf(t->out, "%%embedded[T,%lu] = embed(table=@model.embed_tokens.weight[%lu,%lu %s])%s\n", hidden, vocab,
            hidden, tied ? "matrix" : "row-major", param("scale_bits", config->embedding_scale, 1));
    fprintf(t->out, "%%rope[T,%lu] = rope_table(inv_freq=@rope.inv_freq[%lu constant])%s%s\n", rotary,
            rope_sets(&config->rope, config->max_position) * rotary / 2, param("scaling_bits", (double)scaling, 0),
            rope_sets(&config->rope, config->max_position) > 1 ? " switches=1" : "");
    for (uint32_t layer = 0; layer < config->layers; layer++) print_layer(t, which, layer, &x);
    t->layer = "\n";
    struct matmul head = {.out = "logits",
                          .weight = tied ? "model.embed_tokens.weight" : "lm_head.weight",
                          .rows = vocab,
                          .columns = hidden,
                          .scale = config->logits_scale};
    normalise(t, which == TEST_SMALL_BATCH || which == TEST_PREFILL, x, "final", "model.norm.weight", &head);
    print_matmul(t, head);
    fprintf(t->out, "sample(logits=%%logits)%s\n", which == TEST_PREFILL ? "" : " feedback=1");
}

/* What the text does not tell: the residual stream, table and logits are float32, and all that tensor cores read is of
 * the weights' dtype; every weight has a place. */
static void check_dtypes(const struct graph *graph)
{
    static const char *const wide[] = {"embedded",       "rope",   "after_attention", "after_mlp",
                                       "last_after_mlp", "logits", "last_embedded"};
    for (int n = 0; n < graph->node_count; n++)
        for (int o = 0; o < PLAN_MAX_OPERANDS; o++) {
            const int id = graph->nodes[n].operands[o];
            if (graph_has_weight(&graph->nodes[n], o)) assert_true(graph->weights[id].used);
            if (!graph_makes(&graph->nodes[n], o)) continue;
            const struct graph_value *value = &graph->values[id];
            bool is_wide = false;
            for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
                is_wide |= strncmp(value->name, wide[i], strlen(wide[i])) == 0;
            const enum dtype expected = is_wide ? DTYPE_F32 : graph->compute_dtype;
            if (value->dtype != expected)
                fail_msg("%s: expected %s, found %s", value->name, dtype_name(expected), dtype_name(value->dtype));
        }
}

/* Whether print_model prints its form. Others have norms after attention and MLP (norms_add_and_copy), other norms or
 * activations, or several rotary embeddings. */
static bool is_plain(const char *model_type)
{
    static const char *const plain[] = {"llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "seed_oss"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(plain[i], model_type) == 0) return true;
    return false;
}

TEST(every_plain_model_becomes_the_expected_graph)
{
    static struct test_device_model model;
    static const enum dtype halves[] = {DTYPE_BF16, DTYPE_F16};
    const char *source;
    for (size_t m = 0; (source = test_device_model_source(m)); m++)
        for (int h = 0; h < 2; h++) {
            test_device_model_open(&model, source, halves[h]);
            for (int g = 0; is_plain(model.config.model_type) && g < TEST_MIXED; g++) {
                char *expected;
                size_t size;
                struct text text = {open_memstream(&expected, &size), &model.config, "T", halves[h] != DTYPE_F16, "\n"};
                assert_non_null(text.out);
                print_model(&text, (enum test_graph)g);
                assert_int_equal(fclose(text.out), 0);
                test_graph_expect(&model.graphs[g], expected);
                free(expected);
                for (int n = 0; n < model.graphs[g].node_count; n++) assert_false(model.graphs[g].nodes[n].removed);
                check_dtypes(&model.graphs[g]);
            }
            test_device_model_close(&model);
        }
}

/* ---- single passes on graphs made by hand ---- */

static const struct model_config no_config = {.model_type = "llama"};

static void begin(struct graph *graph, enum plan_kind kind, bool small_batch)
{
    graph_init(graph, &no_config, kind);
    graph->target = TARGET_CUDA;
    graph->compute_dtype = DTYPE_BF16;
    if (small_batch) graph->plan_rows = GRAPH_ROWS_SMALL_BATCH;
}

enum { WIDTH = 8 };

/* Appends a node of square shape; the new value. `b`: the residual, second summand or table. */
static int node(struct graph *graph, enum plan_op op, int a, int b, const char *output)
{
    int weight = op == OP_MATMUL  ? graph_matrix(graph, GRAPH_NO_LAYER, WIDTH, WIDTH, WEIGHT_MATRIX, "w.%s", output)
                 : op == OP_EMBED ? graph_matrix(graph, GRAPH_NO_LAYER, WIDTH, WIDTH, WEIGHT_ROW_MAJOR, "w.%s", output)
                 : op == OP_RMS_NORM   ? graph_vector(graph, GRAPH_NO_LAYER, WIDTH, "w.%s", output)
                 : op == OP_ROPE_TABLE ? graph_vector(graph, GRAPH_NO_LAYER, WIDTH / 2, "w.%s", output)
                                       : -1;
    int value = graph_value(graph, ROWS_TOKENS, WIDTH, "%s", output), inputs = 0, weights = 0, outputs = 0;
    struct graph_node *made = graph_append(graph, op, GRAPH_NO_LAYER);
    assert_non_null(made);
    for (int i = 0; i < op_find(op)->operand_count; i++) {
        const enum op_role role = (enum op_role)op_find(op)->operands[i].role;
        if (role == ROLE_INPUT && inputs < 2) made->operands[i] = inputs++ ? b : a;
        if (role == ROLE_WEIGHT && weights++ == 0) made->operands[i] = weight;
        if (role == ROLE_OUTPUT && outputs++ == 0) made->operands[i] = value;
    }
    if (op == OP_RMS_NORM) made->params[RMS_NORM_EPS_BITS] = float_to_bits(0.5f);
    return value;
}

static void run(struct graph *graph, const struct pass *pass)
{
    struct status status = {0};
    test_expect_success(graph_check(graph, "the test", &status), &status);
    test_expect_success(pass->run(graph, &status), &status);
    test_expect_success(graph_check(graph, pass->name, &status), &status);
}

static int live(const struct graph *graph, enum plan_op op)
{
    int count = 0;
    for (int n = 0; n < graph->node_count; n++) count += !graph->nodes[n].removed && graph->nodes[n].op == op;
    return count;
}

/* The other summand may be made after the product: the fused matmul waits for it. */
TEST(the_fused_matmul_stands_where_the_addition_stood)
{
    for (int side = 0; side < 2; side++) {
        struct graph graph;
        begin(&graph, PLAN_DECODE, false);
        int x = node(&graph, OP_EMBED, -1, -1, "x"), product = node(&graph, OP_MATMUL, x, -1, "product");
        int late = node(&graph, OP_RMS_NORM, x, -1, "summand");
        int sum = node(&graph, OP_ADD, side ? late : product, side ? product : late, "sum");
        node(&graph, OP_RMS_NORM, sum, -1, "after");
        graph.nodes[1].params[MATMUL_SCALE_BITS] = float_to_bits(0.25f);
        run(&graph, &pass_fuse_residual_matmul);
        test_graph_expect(&graph,
                          "%x[T,8] = embed(table=@w.x[8,8 row-major])\n"
                          "%summand[T,8] = rms_norm(x=%x, weight=@w.summand[8 row-major]) eps_bits=0.5\n"
                          "%sum[T,8] = matmul(x=%x, w=@w.product[8,8 matrix], residual=%summand) scale_bits=0.25\n"
                          "%after[T,8] = rms_norm(x=%sum, weight=@w.after[8 row-major]) eps_bits=0.5\n");
        graph_free(&graph);
    }
}

/* ---- what joins the sum of several ranks ---- */

static void begin_ranks(struct graph *graph)
{
    begin(graph, PLAN_DECODE, false);
    graph->ranks = 2;
    graph->rank_config = &no_config;
}

/* Addition and norm after a sum become part of it, at the place of the addition. */
TEST(a_sum_takes_residual_and_norm)
{
    for (int variant = 0; variant < 8; variant++) {
        bool left = variant & 1, has_add = variant & 2, has_norm = variant & 4;
        struct graph graph;
        begin_ranks(&graph);
        int part = node(&graph, OP_EMBED, -1, -1, "part"), stream = node(&graph, OP_ALL_REDUCE, part, -1, "stream");
        int product = node(&graph, OP_MATMUL, stream, -1, "product");
        int sum = node(&graph, OP_ALL_REDUCE, product, -1, "sum");
        int late = node(&graph, OP_RMS_NORM, stream, -1, "summand"), end = sum;
        if (has_add) end = node(&graph, OP_ADD, left ? late : sum, left ? sum : late, "added");
        if (has_norm) node(&graph, OP_MATMUL, node(&graph, OP_RMS_NORM, end, -1, "normed"), -1, "last");
        node(&graph, OP_MATMUL, end, -1, "reader");
        run(&graph, &pass_fuse_all_reduce);
        char expected[1024];
        const char *name = has_add ? "added" : "sum";
        snprintf(expected, sizeof expected,
                 "%%part[T,8] = embed(table=@w.part[8,8 row-major])\n"
                 "%%stream[T,8], %%summand[T,8] = all_reduce(x=%%part, norm=@w.summand[8 row-major]) eps_bits=0.5\n"
                 "%%product[T,8] = matmul(x=%%stream, w=@w.product[8,8 matrix])\n"
                 "%%%s[T,8]%s = all_reduce(x=%%product%s%s)%s\n%s"
                 "%%reader[T,8] = matmul(x=%%%s, w=@w.reader[8,8 matrix])\n",
                 name, has_norm ? ", %normed[T,8]" : "", has_add ? ", residual=%summand" : "",
                 has_norm ? ", norm=@w.normed[8 row-major]" : "", has_norm ? " eps_bits=0.5" : "",
                 has_norm ? "%last[T,8] = matmul(x=%normed, w=@w.last[8,8 matrix])\n" : "", name);
        test_graph_expect(&graph, expected);
        graph_free(&graph);
    }
}

/* A sum that another node reads without the addition stays as it is; a second norm stays a separate launch. */
TEST(a_sum_with_other_readers_stays)
{
    struct graph graph;
    begin_ranks(&graph);
    int part = node(&graph, OP_EMBED, -1, -1, "part"), sum = node(&graph, OP_ALL_REDUCE, part, -1, "sum");
    int added = node(&graph, OP_ADD, sum, node(&graph, OP_MATMUL, sum, -1, "other"), "added");
    int first = node(&graph, OP_RMS_NORM, sum, -1, "first"), second = node(&graph, OP_RMS_NORM, sum, -1, "second");
    node(&graph, OP_MATMUL, first, second, "a");
    node(&graph, OP_MATMUL, added, -1, "b");
    run(&graph, &pass_fuse_all_reduce);
    test_graph_expect(&graph, "%part[T,8] = embed(table=@w.part[8,8 row-major])\n"
                              "%sum[T,8], %first[T,8] = all_reduce(x=%part, norm=@w.first[8 row-major]) eps_bits=0.5\n"
                              "%other[T,8] = matmul(x=%sum, w=@w.other[8,8 matrix])\n"
                              "%added[T,8] = add(a=%sum, b=%other)\n"
                              "%second[T,8] = rms_norm(x=%sum, weight=@w.second[8 row-major]) eps_bits=0.5\n"
                              "%a[T,8] = matmul(x=%first, w=@w.a[8,8 matrix], residual=%second)\n"
                              "%b[T,8] = matmul(x=%added, w=@w.b[8,8 matrix])\n");
    graph_free(&graph);
}

/* A product that another node also reads, or that has an epilogue already, stays; the remaining addition is refused,
 * since no device kernel adds. */
TEST(additions_that_stay_are_refused)
{
    for (int variant = 0; variant < 4; variant++) {
        struct graph graph;
        struct status status = {0};
        begin(&graph, PLAN_DECODE, false);
        int x = node(&graph, OP_EMBED, -1, -1, "x"), product = node(&graph, OP_MATMUL, x, -1, "product");
        if (variant == 1) { /* with a residual already */
            graph.nodes[1].operands[MATMUL_RESIDUAL] = x;
        } else if (variant == 2) { /* of no matmul */
            product = node(&graph, OP_RMS_NORM, product, -1, "normed");
        } else if (variant == 3) {
            graph.nodes[1].params[MATMUL_EPILOGUE] = ACTIVATION_SILU;
            graph.weights[graph.nodes[1].operands[MATMUL_W]].rows *= 2;
        }
        node(&graph, OP_ADD, x, product, "sum");
        if (variant == 0) node(&graph, OP_RMS_NORM, product, -1, "other reader");
        run(&graph, &pass_fuse_residual_matmul);
        assert_int_equal(live(&graph, OP_ADD), 1);
        test_expect_failure(pass_activation_dtypes.run(&graph, &status), &status, STATUS_BAD_INPUT,
                            "neither a matmul nor a norm produces|--target cpu");
        graph_free(&graph);
    }
}

/* A decoder with norms after attention and MLP: sums become part of the norms, and matmuls read 16-bit copies of them. */
TEST(norms_add_and_copy)
{
    struct graph graph;
    begin(&graph, PLAN_DECODE, false);
    int x = node(&graph, OP_EMBED, -1, -1, "x"), product = node(&graph, OP_MATMUL, x, -1, "product");
    int normed = node(&graph, OP_RMS_NORM, product, -1, "normed"), sum = node(&graph, OP_ADD, x, normed, "sum");
    node(&graph, OP_MATMUL, sum, -1, "next"), node(&graph, OP_MATMUL, sum, -1, "other");
    run(&graph, &pass_fuse_norm_add);
    assert_int_equal(graph.value_count, 6); /* no copy yet */
    run(&graph, &pass_matmul_inputs);
    run(&graph, &pass_activation_dtypes);
    test_graph_expect(&graph,
                      "%x[T,8] = embed(table=@w.x[8,8 row-major])\n"
                      "%x.copy[T,8] = embed(table=@w.x[8,8 row-major])\n"
                      "%product[T,8] = matmul(x=%x.copy, w=@w.product[8,8 matrix])\n"
                      "%sum[T,8], %sum.copy[T,8] = rms_norm(x=%product, weight=@w.normed[8 row-major], add_to=%x) "
                      "eps_bits=0.5\n"
                      "%next[T,8] = matmul(x=%sum.copy, w=@w.next[8,8 matrix])\n"
                      "%other[T,8] = matmul(x=%sum.copy, w=@w.other[8,8 matrix])\n");
    assert_int_equal(graph.values[x].dtype, DTYPE_F32);
    assert_int_equal(graph.values[sum].dtype, DTYPE_F32);
    assert_int_equal(graph.values[product].dtype, DTYPE_F32); /* what a norm reads */
    for (int v = 0; v < graph.value_count; v++)
        if (strstr(graph.values[v].name, ".copy")) assert_int_equal(graph.values[v].dtype, graph.compute_dtype);
    graph_free(&graph);

    /* A result of the norm that something else reads, too, stays apart; a sum in a matmul has no copy. */
    begin(&graph, PLAN_DECODE, false);
    x = node(&graph, OP_EMBED, -1, -1, "x"), normed = node(&graph, OP_RMS_NORM, x, -1, "normed");
    node(&graph, OP_ADD, x, normed, "sum"), node(&graph, OP_MATMUL, normed, x, "reader");
    run(&graph, &pass_fuse_norm_add);
    assert_int_equal(live(&graph, OP_ADD), 1);
    struct status status = {0};
    node(&graph, OP_MATMUL, graph.nodes[3].operands[MATMUL_OUT], -1, "after the sum");
    test_expect_failure(pass_matmul_inputs.run(&graph, &status), &status, STATUS_BAD_INPUT,
                        "no norm follows|--target cpu");
    graph_free(&graph);
}

/* Whatever is inserted for one embedding, the next node gets its copy, too. */
TEST(embeddings_one_after_the_other_have_copies)
{
    struct graph graph;
    begin(&graph, PLAN_PREFILL, false);
    const int first = node(&graph, OP_EMBED, -1, -1, "first"), second = node(&graph, OP_EMBED, -1, -1, "second");
    const int selected = graph_value(&graph, ROWS_OUT, WIDTH, "selected");
    struct graph_node *select = graph_append(&graph, OP_SELECT_ROWS, GRAPH_NO_LAYER);
    select->operands[SELECT_ROWS_X] = first;
    select->operands[SELECT_ROWS_OUT] = selected;
    graph.values[node(&graph, OP_MATMUL, selected, -1, "of_selected")].rows = ROWS_OUT;
    node(&graph, OP_MATMUL, second, -1, "of_second");
    run(&graph, &pass_matmul_inputs);
    test_graph_expect(&graph, "%first[T,8] = embed(table=@w.first[8,8 row-major])\n"
                              "%first.copy[T,8] = embed(table=@w.first[8,8 row-major])\n"
                              "%second[T,8] = embed(table=@w.second[8,8 row-major])\n"
                              "%second.copy[T,8] = embed(table=@w.second[8,8 row-major])\n"
                              "%selected[R,8] = select_rows(x=%first)\n"
                              "%selected.copy[R,8] = select_rows(x=%first.copy)\n"
                              "%of_selected[R,8] = matmul(x=%selected.copy, w=@w.of_selected[8,8 matrix])\n"
                              "%of_second[T,8] = matmul(x=%second.copy, w=@w.of_second[8,8 matrix])\n");
    graph_free(&graph);
}

TEST(norms_join_all_their_readers_or_none)
{
    enum { ONE, TWO, ALSO_RESIDUAL, ALSO_ADDED, WIDE, UNREAD, CASES };
    for (int variant = 0; variant < CASES; variant++) {
        struct graph graph;
        begin(&graph, PLAN_DECODE, variant != WIDE);
        int x = node(&graph, OP_EMBED, -1, -1, "x"), normed = node(&graph, OP_RMS_NORM, x, -1, "normed");
        int norm = graph.nodes[1].operands[RMS_NORM_WEIGHT];
        if (variant != UNREAD) node(&graph, OP_MATMUL, normed, variant == ALSO_RESIDUAL ? normed : -1, "a");
        if (variant == TWO) node(&graph, OP_MATMUL, normed, x, "b");
        if (variant == ALSO_ADDED) node(&graph, OP_ADD, x, normed, "b");
        run(&graph, &pass_fuse_norm_matmul);
        bool fused = variant == ONE || variant == TWO;
        assert_int_equal(live(&graph, OP_RMS_NORM), !fused);
        for (int n = 2; n < graph.node_count; n++) {
            const struct graph_node *matmul = &graph.nodes[n];
            if (matmul->op != OP_MATMUL) continue;
            assert_int_equal(matmul->operands[MATMUL_NORM], fused ? norm : -1);
            assert_int_equal(matmul->operands[MATMUL_X], fused ? x : normed);
            assert_int_equal(matmul->params[MATMUL_EPS_BITS], fused ? float_to_bits(0.5f) : 0);
        }
        graph_free(&graph);
    }
}

TEST(rotation_joins_attention_in_decode_alone)
{
    enum { FUSED, PARTIAL, STATIC_SCALES, WITH_MEANS, PREFILL, READ_TWICE, WIDE_NORM, CASES };
    for (int variant = 0; variant < CASES; variant++) {
        struct graph graph;
        begin(&graph, variant == PREFILL ? PLAN_PREFILL : PLAN_DECODE, true);
        int x = node(&graph, OP_EMBED, -1, -1, "x"), table = node(&graph, OP_ROPE_TABLE, -1, -1, "table");
        int matrix = graph_matrix(&graph, GRAPH_NO_LAYER, 3 * WIDTH, WIDTH, WEIGHT_MATRIX, "qkv");
        int qkv = graph_value(&graph, ROWS_TOKENS, 3 * WIDTH, "qkv");
        struct graph_node *project = graph_append(&graph, OP_MATMUL, GRAPH_NO_LAYER);
        assert_non_null(project);
        project->operands[MATMUL_X] = x;
        project->operands[MATMUL_W] = matrix;
        project->operands[MATMUL_OUT] = qkv;
        int q = node(&graph, OP_ROPE_APPEND, qkv, table, "q"), rope = graph.node_count - 1;
        const int norm_q = graph_vector(&graph, GRAPH_NO_LAYER, WIDTH, "norm_q"),
                  norm_k = graph_vector(&graph, GRAPH_NO_LAYER, WIDTH, "norm_k");
        graph.nodes[rope].operands[ROPE_APPEND_NORM_Q] = norm_q;
        graph.nodes[rope].operands[ROPE_APPEND_NORM_K] = norm_k;
        graph.nodes[rope].params[ROPE_APPEND_EPS_BITS] = float_to_bits(0.5f);
        if (variant == WIDE_NORM || variant == WITH_MEANS)
            graph.nodes[rope].params[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_WIDTH;
        if (variant == WITH_MEANS) graph.nodes[rope].operands[ROPE_APPEND_MEANS] = x; /* of 8 columns, too */
        if (variant == STATIC_SCALES)
            graph.nodes[rope].operands[ROPE_APPEND_KV_SCALES] =
                graph_constant(&graph, (const float[]){1, 2}, 2, "scales");
        if (variant == PARTIAL) {
            graph.nodes[rope].params[ROPE_APPEND_ROTARY_DIM] = WIDTH / 2;
            graph.values[table].width = WIDTH / 2;
            graph.weights[graph.nodes[1].operands[ROPE_TABLE_INV_FREQ]].rows = WIDTH / 4;
        }
        node(&graph, OP_ATTENTION, q, -1, "mixed");
        const int last = graph.node_count - 1;
        graph.nodes[last].params[ATTENTION_SCALE_BITS] = float_to_bits(0.25f);
        graph.nodes[last].params[ATTENTION_WINDOW] = 7;
        for (int n = rope; n <= last; n++) {
            graph.nodes[n].params[PAGED_HEADS] = graph.nodes[n].params[PAGED_KV_HEADS] = 1;
            graph.nodes[n].params[PAGED_HEAD_DIM] = WIDTH;
        }
        if (variant == READ_TWICE) node(&graph, OP_RMS_NORM, q, -1, "other reader");
        run(&graph, &pass_fuse_rope_attention);
        if (variant <= WITH_MEANS) {
            char expected[1024];
            const int rotary = variant == PARTIAL ? WIDTH / 2 : WIDTH;
            snprintf(expected, sizeof expected,
                     "%%x[T,8] = embed(table=@w.x[8,8 row-major])\n"
                     "%%table[T,%d] = rope_table(inv_freq=@w.table[%d row-major])\n"
                     "%%qkv[T,24] = matmul(x=%%x, w=@qkv[24,8 matrix])\n"
                     "%%mixed[T,8] = rope_attention(qkv=%%qkv, table=%%table, norm_q=@norm_q[8 row-major], "
                     "norm_k=@norm_k[8 row-major]%s) heads=1 kv_heads=1 head_dim=8 window=7 scale_bits=0.25 "
                     "eps_bits=0.5%s\n",
                     rotary, rotary / 2,
                     variant == STATIC_SCALES ? ", kv_scales=@scales[2 constant]"
                     : variant == WITH_MEANS  ? ", means=%x"
                                              : "",
                     variant == PARTIAL      ? " rotary_dim=4"
                     : variant == WITH_MEANS ? " norm_scope=1"
                                             : "");
            test_graph_expect(&graph, expected);
        } else {
            assert_false(graph.nodes[rope].removed);
            assert_int_equal(graph.nodes[last].op, OP_ATTENTION);
        }
        graph_free(&graph);
    }
}

int main(void) { return test_run(); }
