/* SPDX-License-Identifier: Apache-2.0 */
/* Times of the device kernels at the shapes of Llama 3, those of recurrent layers at the shapes of Qwen 3 Next and LFM2: for every problem and every kernel that takes it the best of
 * its first candidates. Operand sets rotate, so that weights come from memory as in an engine. */
#include <inttypes.h>

#include "kernels/all_reduce/all_reduce.h"
#include "kernels/attention/attention_device.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/registry.h"
#include "kernels/cuda/test_device.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/matmul/matmul_device.h"
#include "kernels/matmul/test_coded.h"
#include "kernels/op/activation.h"
#include "kernels/op/recurrent.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/router/router.h"
#include "tests/bench/op_case.h"
#include "tests/gpu/check.h"

enum {
    MOST_PROBLEMS = 512,
    MOST_CANDIDATES = 64,
    TIMED_CANDIDATES = 8, /* of a kernel; the first are the most promising */
    MOST_TIMINGS = 4096,
    MOST_COPIES = 24,
    CACHES = 4, /* of the L2 cache's size that the operand sets fill */
    PAGE_TOKENS = 64,
    BLOCK_BYTES = 1 << 24, /* of random data, repeated */
    VALUE_HEADS = 32,      /* of delta_rule */
    LINEAR_DIM = 128,
};

struct operand {
    const struct op_operand *schema;
    enum dtype dtype; /* DTYPE_NONE: not of a dtype */
    uint64_t bytes;
    uint64_t stride; /* from one operand set to the next; 0: all share it */
};

struct problem {
    char name[64];
    struct op_case shown;
    struct plan_geometry geometry;
    int64_t params[PLAN_MAX_PARAMS];
    struct operand operands[PLAN_MAX_OPERANDS]; /* those that are present, in order */
    int operand_count, copies;
    uint64_t space_rows;
};

struct shape {
    const char *name;
    int64_t hidden, heads, kv_heads, head_dim, intermediate, vocab;
};
static const struct shape shapes[] = {
    {"llama-3.1-8b", 4096, 32, 8, 128, 14336, 128256},
    {"llama-3.2-1b", 2048, 32, 8, 64, 8192, 128256},
};

static struct problem *problems; /* [MOST_PROBLEMS] */
static int problem_count;
static const char *wanted;
static double copy_bandwidth;

/* Problems */

static enum dtype dtype_of(const struct problem *problem, const struct op_operand *operand)
{
    return operand->dtype ? (enum dtype)problem->params[operand->dtype] : (enum dtype)operand->fixed;
}

/* Every operand set has its own data, so that it comes from memory as in an engine, except operands that all launches of a
 * step share and weights larger than the caches. Tokens differ: they choose the rows of the embedding. */
static bool rotates(const struct op_operand *operand, uint64_t bytes, uint64_t fill)
{
    switch ((enum op_role)operand->role) {
    case ROLE_INPUT:
    case ROLE_OUTPUT:
    case ROLE_EXCHANGE: return true;
    case ROLE_WEIGHT: return bytes < fill;
    case ROLE_STEP: return operand->field == STEP_TOKENS;
    case ROLE_STATE: return operand->field == STATE_RECURRENT;
    default: return false;
    }
}

/* KV: the operand sets are the layers of one page pool. */
static void lay_out(struct problem *problem)
{
    const struct op_descriptor *op = op_find(problem->shown.op);
    struct plan_geometry *geometry = &problem->geometry;
    const uint64_t fill = (uint64_t)CACHES * (uint64_t)test_device()->device.facts.l2_bytes;
    const uint64_t pages = geometry->slots * geometry->pages_per_slot;
    struct operand *kv = NULL;
    uint64_t rotating = 1;
    problem->operand_count = 0;
    for (int i = 0; i < op->operand_count; i++) {
        if (!op_has_operand(op, TARGET_CUDA, problem->params, i)) continue;
        struct operand *operand = &problem->operands[problem->operand_count++];
        *operand = (struct operand){.schema = &op->operands[i], .dtype = dtype_of(problem, &op->operands[i])};
        assert_true(op_operand_bytes(op, TARGET_CUDA, problem->params, geometry, i, &operand->bytes));
        if (operand->schema->role == ROLE_KV) kv = operand;
        if (!rotates(operand->schema, operand->bytes, fill)) continue;
        operand->stride = (operand->bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
        rotating += operand->bytes;
    }
    if (kv) rotating += kv->bytes * pages;
    problem->copies = fill / rotating + 2 < MOST_COPIES ? (int)(fill / rotating + 2) : MOST_COPIES;
    if (!kv) return;
    kv->stride = kv->bytes;
    geometry->page_bytes = kv->bytes * (uint64_t)problem->copies;
    kv->bytes = geometry->page_bytes * pages;
}

static void add(const struct shape *shape, const struct op_case *c)
{
    const struct op_setting model[] = {
        {"hidden", shape->hidden},
        {"pitch", shape->hidden},
        {"width", shape->hidden},
        {"vocab", shape->vocab},
        {"heads", shape->heads},
        {"kv_heads", shape->kv_heads},
        {"head_dim", shape->head_dim},
        {"dtype", DTYPE_BF16},
        {"table_dtype", DTYPE_BF16},
        {"weight_dtype", DTYPE_BF16},
        {"x_dtype", DTYPE_BF16},
        {"kv_dtype", DTYPE_BF16},
        {"out_dtype", c->op == OP_EMBED ? DTYPE_F32 : DTYPE_BF16},
        {"eps_bits", test_float_bits(1e-5f)},
        {"scaling_bits", OP_FLOAT_ONE_BITS},
        {.name = NULL},
    };
    assert_in_range(problem_count, 0, MOST_PROBLEMS - 1);
    struct problem *problem = &problems[problem_count++];
    memset(problem, 0, sizeof *problem);
    snprintf(problem->name, sizeof problem->name, "%s %4d %s", shape->name, c->rows, c->what);
    problem->shown = *c;
    problem->shown.what = NULL; /* the caller's */
    problem->geometry =
        (struct plan_geometry){.slots = c->one_slot ? 1 : (uint64_t)(c->rows - c->prompt_rows + (c->prompt_rows > 0)),
                               .max_context = (uint64_t)c->context,
                               .page_tokens = PAGE_TOKENS,
                               .pages_per_slot = (uint64_t)(c->context + PAGE_TOKENS - 1) / PAGE_TOKENS,
                               .vocab_size = (uint64_t)shape->vocab,
                               .ranks = 1,
                               .recurrent_bytes = op_recurrent_copies(TARGET_CUDA) *
                                                  delta_rule_state_bytes(VALUE_HEADS, LINEAR_DIM, LINEAR_DIM)};
    for (int pass = 0; pass < 2; pass++) { /* the second with the page's size */
        op_case_params(c, model, &problem->geometry, problem->params);
        if (pass == 0) lay_out(problem);
    }
    const char *why = op_params_illegal(op_find(c->op), problem->params);
    if (why) fail_msg("%s: %s", problem->name, why);
    if (problem->geometry.page_bytes)
        problem->space_rows = problem->geometry.slots * problem->geometry.pages_per_slot *
                              problem->geometry.page_bytes / ((uint64_t)shape->head_dim * 2);
}

static void add_matmul(const struct shape *shape, int rows, const char *what, int64_t n, int64_t k,
                       enum dtype out_dtype, bool swiglu, bool residual, bool norm)
{
    add(shape, &(struct op_case){.op = OP_MATMUL,
                                 .what = what,
                                 .rows = rows,
                                 .settings = {{"n", n},
                                              {"k", k},
                                              {"out_dtype", out_dtype},
                                              {"epilogue", swiglu ? ACTIVATION_SILU : ACTIVATION_NONE},
                                              {"has_residual", residual},
                                              {"has_norm", norm},
                                              {"input_dtype", norm ? DTYPE_F32 : DTYPE_BF16}}});
}

/* The same with coded weights, and x of `input`. */
static void add_coded(const char *model, int rows, enum encoding_id encoding, const char *what, int64_t n, int64_t k,
                      enum dtype out_dtype, bool swiglu, bool residual, enum dtype input)
{
    const bool norm = input == DTYPE_F32, codes = input == DTYPE_F8_E4M3 || input == DTYPE_I8;
    const struct shape shape = {.name = model, .hidden = k, .heads = 1, .kv_heads = 1, .head_dim = 128};
    char name[48];
    snprintf(name, sizeof name, "%s, %s%s", what, encoding_name(encoding), codes ? " x too" : "");
    add(&shape, &(struct op_case){.op = OP_MATMUL,
                                  .what = name,
                                  .rows = rows,
                                  .settings = {{"n", n},
                                               {"k", k},
                                               {"dtype", encoding},
                                               {"out_dtype", out_dtype},
                                               {"epilogue", swiglu ? ACTIVATION_SILU : ACTIVATION_NONE},
                                               {"has_residual", residual},
                                               {"has_norm", norm},
                                               {"has_x_scales", codes},
                                               {"input_dtype", input}}});
}

/* The matrices of a layer. */
static void add_coded_layer(const struct shape *shape, int rows, enum encoding_id id, enum dtype input)
{
    const int64_t q = shape->heads * shape->head_dim, qkv = q + 2 * shape->kv_heads * shape->head_dim;
    const enum dtype second = input == DTYPE_F32 ? DTYPE_BF16 : input; /* no norm before these */
    add_coded(shape->name, rows, id, "qkv", qkv, shape->hidden, DTYPE_BF16, false, false, input);
    add_coded(shape->name, rows, id, "attention out", shape->hidden, q, DTYPE_F32, false, true, second);
    add_coded(shape->name, rows, id, "gate, up, swiglu", 2 * shape->intermediate, shape->hidden, DTYPE_BF16, true,
              false, input);
    add_coded(shape->name, rows, id, "down", shape->hidden, shape->intermediate, DTYPE_F32, false, true, second);
}

/* `rows` sequences decode at `context`. */
static void add_rope_attention(const struct shape *shape, int rows, int context, enum encoding_id kv_dtype)
{
    char what[48];
    snprintf(what, sizeof what, "attention at %d%s%s", context, kv_dtype == ENCODING_BF16 ? "" : ", ",
             kv_dtype == ENCODING_BF16 ? "" : encoding_name(kv_dtype));
    add(shape, &(struct op_case){.op = OP_ROPE_ATTENTION,
                                 .what = what,
                                 .rows = rows,
                                 .context = context,
                                 .settings = {{"scale_bits", test_float_bits(0.1f)}, {"kv_dtype", kv_dtype}}});
}

/* `decoding` sequences at `context`, and a part of a prompt. */
static void add_mixed_attention(const struct shape *shape, int decoding, int prompt, int context)
{
    char what[64];
    snprintf(what, sizeof what, "attention, mixed: %d at %d, prompt %d", decoding, context, prompt);
    add(shape, &(struct op_case){.op = OP_ATTENTION,
                                 .what = what,
                                 .rows = decoding + prompt,
                                 .prompt_rows = prompt,
                                 .context = context,
                                 .settings = {{"scale_bits", test_float_bits(0.1f)}, {"scattered", 1}}});
}

/* Batches of as many slots, and prompts of one. */
static void add_recurrent(void)
{
    static const struct shape linear = {"qwen3-next", 2048, 16, 2, 256, 512, 151936},
                              short_conv = {"lfm2", 2048, 32, 8, 64, 8192, 65536};
    static const int batches[] = {1, 4, 16, 64}, chunks[] = {16, 512, 2048};
    enum { BATCHES = sizeof batches / sizeof *batches, CHUNKS = sizeof chunks / sizeof *chunks, CONTEXT = 4096 };
    for (int i = 0; i < BATCHES + CHUNKS; i++) {
        const bool prompt = i >= BATCHES;
        const struct op_case common = {.rows = prompt ? chunks[i - BATCHES] : batches[i],
                                       .context = CONTEXT,
                                       .one_slot = prompt};
        struct op_case c = common;
        c.op = OP_DELTA_RULE, c.what = prompt ? "delta rule, prompt" : "delta rule";
        const struct op_setting of_rule[] = {{"key_heads", VALUE_HEADS / 2}, {"value_heads", VALUE_HEADS},
                                             {"key_dim", LINEAR_DIM},        {"value_dim", LINEAR_DIM},
                                             {"scattered", !prompt},         {"a_dtype", DTYPE_BF16},
                                             {"dt_dtype", DTYPE_BF16},       {"norm_dtype", DTYPE_BF16}};
        memcpy(c.settings, of_rule, sizeof of_rule);
        add(&linear, &c);
        c = common, c.op = OP_SHORT_CONV, c.what = prompt ? "convolution, prompt" : "convolution";
        const struct op_setting of_linear[] = {{"channels", 2 * VALUE_HEADS * LINEAR_DIM},
                                               {"kernel", 4},
                                               {"activation", ACTIVATION_SILU},
                                               {"w_dtype", DTYPE_BF16}};
        memcpy(c.settings, of_linear, sizeof of_linear);
        add(&linear, &c);
        c = common, c.op = OP_SHORT_CONV, c.what = prompt ? "convolution, prompt" : "convolution";
        const struct op_setting of_gated[] = {{"channels", 2048}, {"kernel", 3}, {"gated", 1}, {"w_dtype", DTYPE_BF16}};
        memcpy(c.settings, of_gated, sizeof of_gated);
        add(&short_conv, &c);
        c = common, c.op = OP_SIGMOID_GATE, c.what = "gate of attention";
        c.settings[0] = (struct op_setting){"width", 4096};
        add(&linear, &c);
    }
}

/* Layers of Gemma 4 E2B without a window: large heads, with keys of their own or of another layer; inputs of each layer. */
static void add_wide_heads(void)
{
    static const struct shape shape = {"gemma4-e2b", 1536, 8, 1, 512, 6144, 262144};
    static const int batches[] = {1, 16}, chunks[] = {512, 2048};
    const struct op_setting scale = {"scale_bits", test_float_bits(1)}, norm = {"has_norm", 1};
    for (int i = 0; i < 2; i++) {
        for (int context = 1024; context <= 32768; context *= 32)
            for (int appended = 0; appended <= 1; appended++)
                add(&shape,
                    &(struct op_case){.op = OP_ROPE_ATTENTION,
                                      .what = appended ? "attention, keys of another layer" : "attention",
                                      .rows = batches[i],
                                      .context = context,
                                      .settings = {scale, norm, {"norm_v", !appended}, {"appended", appended}}});
        const struct op_case prompts[] = {
            {.op = OP_ATTENTION, .what = "attention, prompt", .rows = chunks[i], .settings = {scale}},
            {.op = OP_ROPE_APPEND, .what = "norms, rope, append", .rows = chunks[i], .settings = {norm, {"norm_v", 1}}},
            {.op = OP_ROPE_QUERY, .what = "norm, rope", .rows = chunks[i], .settings = {norm, {"rotary_dim", 512}}},
        };
        for (size_t p = 0; p < sizeof prompts / sizeof *prompts; p++) {
            struct op_case c = prompts[p];
            c.one_slot = true;
            c.context = c.rows;
            add(&shape, &c);
        }
    }
    for (int rows = 1; rows <= 2048; rows *= 2048) {
        add(&shape, &(struct op_case){.op = OP_MULTIPLY,
                                      .what = "input of a layer",
                                      .rows = rows,
                                      .settings = {{"width", 256},
                                                   {"has_by", 1},
                                                   {"x_dtype", DTYPE_BF16},
                                                   {"out_dtype", DTYPE_BF16}}});
        add(&shape, &(struct op_case){.op = OP_MULTIPLY,
                                      .what = "factor of a layer",
                                      .rows = rows,
                                      .settings = {{"width", 1536},
                                                   {"has_weight", 1},
                                                   {"x_dtype", DTYPE_F32},
                                                   {"out_dtype", DTYPE_F32}}});
    }
}

/* One rank alone, which exchanges with itself: what the kernel costs without a link. */
static void add_all_reduce(const struct shape *shape, int rows, int ranks)
{
    char what[48];
    const bool large = all_reduce_device_is_large((uint64_t)rows, (uint64_t)shape->hidden, (uint64_t)ranks, DTYPE_BF16);
    const int64_t whose = large ? ALL_REDUCE_OWN_ROWS : ALL_REDUCE_EVERY_ROW; /* as in an engine */
    snprintf(what, sizeof what, "sum of %d ranks, norm, no link", ranks);
    add(shape, &(struct op_case){.op = OP_ALL_REDUCE,
                                 .what = what,
                                 .rows = rows,
                                 .settings = {{"ranks", ranks}, {"has_residual", whose}, {"has_norm", whose}}});
}

static void add_coded_shape(const struct shape *shape)
{
    static const int batches[] = {1, 16, 64, 2048};
    static const enum encoding_id kv_dtypes[] = {ENCODING_BF16, ENCODING_INT8_CHANNEL, ENCODING_E4M3_CHANNEL};
    static const enum encoding_id encodings[] = {ENCODING_INT4_G128, ENCODING_INT8_CHANNEL, ENCODING_E4M3_CHANNEL,
                                                 ENCODING_NVFP4};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        for (size_t e = 0; e < sizeof encodings / sizeof *encodings; e++) {
            const enum encoding_id id = encodings[e];
            const enum dtype input = batches[i] <= MATMUL_GEMV_MOST_ROWS ? DTYPE_F32 : DTYPE_BF16;
            add_coded_layer(shape, batches[i], id, input);
            if (id == ENCODING_INT8_CHANNEL && batches[i] <= 64)
                add_coded(shape->name, batches[i], id, "head", shape->vocab, shape->hidden, DTYPE_F32, false, false,
                          input);
        }
    add_coded_layer(shape, 16, ENCODING_INT4_G128, DTYPE_I8);
    for (int rows = 64; rows <= 2048; rows *= 32) {
        add_coded_layer(shape, rows, ENCODING_E4M3_CHANNEL, DTYPE_F8_E4M3);
        add_coded_layer(shape, rows, ENCODING_E4M3_BLOCK128, DTYPE_F8_E4M3);
        add_coded_layer(shape, rows, ENCODING_INT8_CHANNEL, DTYPE_I8);
        add_coded_layer(shape, rows, ENCODING_INT4_G128, DTYPE_I8);
    }
    for (int rows = 1; rows <= 16; rows *= 16)
        for (int context = 1024; context <= 32768; context *= 32)
            for (size_t e = 0; e < sizeof kv_dtypes / sizeof *kv_dtypes; e++)
                add_rope_attention(shape, rows, context, kv_dtypes[e]);
    add_rope_attention(shape, 64, 256, ENCODING_BF16);
    add_rope_attention(shape, 64, 576, ENCODING_BF16);
    add_mixed_attention(shape, 64, 256, 576);
    add_mixed_attention(shape, 64, 512, 576);
    add_mixed_attention(shape, 256, 512, 576);
    add_mixed_attention(shape, 4, 512, 8192);
    for (int rows = 4; rows <= 8; rows *= 2)
        add(shape, &(struct op_case){.op = OP_ATTENTION,
                                     .what = "attention, verify",
                                     .rows = rows,
                                     .context = 1024,
                                     .one_slot = true,
                                     .settings = {{"scale_bits", test_float_bits(0.1f)}, {"scattered", 1}}});
}

/* Those of which figures of other kernels are public. */
static void add_public_shapes(void)
{
    static const int64_t sizes[][2] = {{8192, 8192}, {16384, 8192}, {20480, 7168}, {81920, 8192}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d x %d", (int)sizes[i][1], (int)sizes[i][0]);
        add_coded("public", 1, ENCODING_INT4_G128, name, sizes[i][0], sizes[i][1], DTYPE_BF16, false, false,
                  DTYPE_BF16);
    }
}

/* Layers of experts: one of which figures of another engine are public, those of gpt-oss-20b and of Qwen3-30B-A3B. */
struct expert_layer {
    const char *name;
    enum encoding_id encoding;
    int experts, top_k, inner, hidden, activation, biases;
};

static void add_expert_layer(const struct expert_layer *layer, int rows)
{
    const struct shape shape = {.name = layer->name,
                                .hidden = layer->hidden,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 64};
    const int experts = layer->experts, top_k = layer->top_k;
    const bool sums = matmul_gemv_sums_choices(rows, experts, top_k, layer->inner);
    const struct op_setting of_experts[] = {{"experts", experts}, {"route_width", 2 * top_k}},
                            encoding = {"dtype", layer->encoding}, bias = {"has_bias", layer->biases},
                            cap = {"cap_bits",
                                   layer->activation == ACTIVATION_CLAMPED ? test_float_bits(7) : OP_FLOAT_ONE_BITS};
    const struct op_case up = {.op = OP_MATMUL,
                               .what = "gate, up, swiglu",
                               .rows = rows,
                               .settings = {{"n", (int64_t)experts * 2 * layer->inner},
                                            {"k", layer->hidden},
                                            {"epilogue", layer->activation},
                                            {"input_dtype", DTYPE_BF16},
                                            encoding,
                                            bias,
                                            cap,
                                            of_experts[0],
                                            of_experts[1]}};
    const struct op_case down = {.op = OP_MATMUL,
                                 .what = sums ? "down, sum" : "down",
                                 .rows = rows,
                                 .settings = {{"n", (int64_t)experts * layer->hidden},
                                              {"k", layer->inner},
                                              {"out_dtype", DTYPE_F32},
                                              {"input_dtype", DTYPE_BF16},
                                              {sums ? "has_residual" : "parts", 1},
                                              encoding,
                                              bias,
                                              of_experts[0],
                                              of_experts[1]}};
    const struct op_case sum = {.op = OP_SUM_PARTS,
                                .what = "sum",
                                .rows = rows,
                                .settings = {{"parts", top_k}, {"out_dtype", DTYPE_F32}, {"has_residual", 1}}};
    const struct op_case routed = {.op = OP_ROUTED_MATMUL,
                                   .what = "router, gate, up",
                                   .rows = rows,
                                   .settings = {{"n", (int64_t)experts * 2 * layer->inner},
                                                {"k", layer->hidden},
                                                {"epilogue", layer->activation},
                                                {"input_dtype", DTYPE_BF16},
                                                {"routed", experts},
                                                encoding,
                                                bias,
                                                cap,
                                                of_experts[0],
                                                of_experts[1]}};
    struct op_case mlp = routed;
    mlp.op = OP_ROUTED_MLP;
    mlp.what = "router, gate, up, down";
    const struct op_setting of_mlp[] = {{"down_n", (int64_t)experts * layer->hidden},
                                        {"down_k", layer->inner},
                                        {"down_dtype", layer->encoding},
                                        {"out_dtype", DTYPE_BF16},
                                        {"has_residual", 1}};
    for (int i = 0, at = 0; i < (int)(sizeof of_mlp / sizeof *of_mlp); i++) {
        while (mlp.settings[at].name) at++;
        mlp.settings[at] = of_mlp[i];
    }
    add(&shape, &up);
    add(&shape, &down);
    if (sums) add(&shape, &routed);
    if (sums) add(&shape, &mlp);
    if (!sums) add(&shape, &sum);
}

static void add_experts(void)
{
    static const struct expert_layer layers[] = {
        {"experts", ENCODING_BF16, 128, 8, 704, 2816, ACTIVATION_SILU, 0},
        {"gpt-oss-20b experts", ENCODING_MXFP4, 32, 4, 2880, 2880, ACTIVATION_CLAMPED, 1},
        {"qwen3-30b experts", ENCODING_E4M3_CHANNEL, 128, 8, 768, 2048, ACTIVATION_SILU, 0},
    };
    for (int rows = 1; rows <= 64; rows *= 8) add_expert_layer(&layers[0], rows);
    for (size_t i = 1; i < sizeof layers / sizeof *layers; i++)
        for (int rows = 1; rows <= 64; rows *= rows == 1 ? 16 : 4) add_expert_layer(&layers[i], rows);
}

/* A router of Qwen3-30B-A3B with its norm: three launches and one. */
static void add_routers(void)
{
    enum { EXPERTS = 128, TOP_K = 8, HIDDEN = 2048 };
    static const struct shape shape = {.name = "router", .hidden = HIDDEN, .heads = 1, .kv_heads = 1, .head_dim = 64};
    static const int batches[] = {9, 16, 32, 64};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        const int rows = batches[i];
        const struct op_setting renormalise = {"renormalise", ROUTER_SUM_PLUS_EPS},
                                route_width = {"route_width", 2 * TOP_K};
        add(&shape, &(struct op_case){.op = OP_RMS_NORM, .what = "norm", .rows = rows});
        add_matmul(&shape, rows, "matrix", EXPERTS, HIDDEN, DTYPE_F32, false, false, false);
        add(&shape, &(struct op_case){.op = OP_ROUTER,
                                      .what = "router",
                                      .rows = rows,
                                      .settings = {{"experts", EXPERTS}, route_width, renormalise}});
        add(&shape, &(struct op_case){.op = OP_NORM_ROUTER,
                                      .what = "norm, matrix, router",
                                      .rows = rows,
                                      .settings = {{"k", HIDDEN},
                                                   {"norm_dtype", DTYPE_BF16},
                                                   {"routed", EXPERTS},
                                                   route_width,
                                                   renormalise}});
    }
}

static void add_shape(const struct shape *shape)
{
    static const int batches[] = {1, 8, 32, 512, 2048};
    static const struct sampler_state sampler = {.temperature = 0.8f, .top_p = 0.95f, .repetition_penalty = 1};
    const int64_t q = shape->heads * shape->head_dim, qkv = q + 2 * shape->kv_heads * shape->head_dim;
    const struct op_setting scale = {"scale_bits", test_float_bits(0.1f)};
    const struct op_case prompts[] = {
        {.op = OP_ATTENTION, .what = "attention, prompt", .rows = 512, .settings = {scale}},
        {.op = OP_ATTENTION, .what = "attention, prompt", .rows = 2048, .settings = {scale}},
        {.op = OP_ROPE_APPEND, .what = "rope, append", .rows = 2048},
        {.op = OP_ROPE_APPEND, .what = "norm, rope, append", .rows = 2048, .settings = {{"has_norm", 1}}},
        {.op = OP_ROPE_TABLE, .what = "rope table", .rows = 2048},
    };
    const struct op_case others[] = {
        {.op = OP_RMS_NORM, .what = "norm", .rows = 1},
        {.op = OP_RMS_NORM, .what = "norm", .rows = 16},
        {.op = OP_RMS_NORM, .what = "norm", .rows = 2048},
        {.op = OP_SWIGLU,
         .what = "swiglu, not fused",
         .rows = 2048,
         .settings = {{"width", shape->intermediate}, {"activation", ACTIVATION_SILU}}},
        {.op = OP_XIELU, .what = "xielu", .rows = 2048, .settings = {{"width", shape->intermediate}}},
        {.op = OP_EMBED, .what = "embed", .rows = 2048},
        {.op = OP_SELECT_COLUMNS, .what = "select columns", .rows = 1},
        {.op = OP_SELECT_COLUMNS, .what = "select columns", .rows = 2048},
        {.op = OP_SELECT_ROWS, .what = "select rows", .rows = 32, .settings = {{"in_rows", 2048}}},
        {.op = OP_SAMPLE, .what = "sample, temperature and top-p", .rows = 1, .sampler = sampler},
        {.op = OP_SAMPLE, .what = "sample, temperature and top-p", .rows = 32, .sampler = sampler},
    };
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        const int rows = batches[i];
        const bool norm = rows <= MATMUL_GEMV_MOST_ROWS;
        add_matmul(shape, rows, "qkv", qkv, shape->hidden, DTYPE_BF16, false, false, norm);
        add_matmul(shape, rows, "attention out", shape->hidden, q, DTYPE_F32, false, true, false);
        add_matmul(shape, rows, "gate, up, swiglu", 2 * shape->intermediate, shape->hidden, DTYPE_BF16, true, false,
                   norm);
        add_matmul(shape, rows, "down", shape->hidden, shape->intermediate, DTYPE_F32, false, true, false);
        if (rows <= 32) add_matmul(shape, rows, "head", shape->vocab, shape->hidden, DTYPE_F32, false, false, norm);
    }
    for (int rows = 1; rows <= 32; rows *= 4)
        for (int context = 1024; context <= 8192; context *= 8) add_rope_attention(shape, rows, context, ENCODING_BF16);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int rows = 1; rows <= 512; rows *= 8) add_all_reduce(shape, rows, ranks);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        struct op_case c = prompts[i];
        c.one_slot = true;
        c.context = c.rows;
        add(shape, &c);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) add(shape, &others[i]);
}

/* Operands */

/* Coded weights: a few panels of random codes, repeated. */
static void fill_panels(uint8_t *block, const struct problem *problem, uint64_t bytes)
{
    enum { PANELS = 2 };
    struct test_random random = {78};
    struct test_memory memory = {0};
    struct panel_form form;
    const int64_t encoding = problem->params[MATMUL_DTYPE];
    const uint64_t k = (uint64_t)problem->params[MATMUL_K], panel = fragment_bytes(k, encoding);
    assert_true(fragment_form(encoding, &form));
    uint8_t *panels = test_take(&memory, PANELS * panel);
    float *values = test_take(&memory, PANELS * PANEL_ROWS * k * sizeof *values);
    test_coded_matrix(&random, &form, panel, PANELS * PANEL_ROWS, k, panels, values);
    for (uint64_t at = 0; at < bytes; at += PANELS * panel)
        memcpy(block + at, panels, bytes - at < PANELS * panel ? bytes - at : PANELS * panel);
    test_release(&memory);
}

/* Where a block may end, to be followed by its beginning: at the end of an element or of a panel. */
static uint64_t unit_bytes(const struct problem *problem, const struct operand *operand)
{
    const bool coded =
        operand->schema->role == ROLE_WEIGHT && operand->dtype && !encoding_is_plain((enum encoding_id)operand->dtype);
    return coded ? fragment_bytes((uint64_t)problem->params[MATMUL_K], operand->dtype) : 64;
}

static bool is_of_router(const struct operand *operand)
{
    return operand->schema == &op_matmul.operands[MATMUL_ROUTES] ||
           operand->schema == &op_matmul.operands[MATMUL_LISTS];
}

/* Routes, or their lists, of every operand set: other experts in each, so that their matrices come from memory. */
static void fill_router(uint8_t *block, const struct problem *problem, const struct operand *operand)
{
    const int64_t rows = problem->params[MATMUL_ROWS], top_k = matmul_top_k(problem->params);
    const int64_t experts = problem->params[MATMUL_EXPERTS];
    struct test_random random = {79};
    struct test_memory memory = {0};
    float *routes = test_take(&memory, (size_t)(rows * 2 * top_k) * sizeof *routes);
    for (int copy = 0; copy < problem->copies; copy++) {
        uint8_t *to = block + (uint64_t)copy * operand->stride;
        for (int64_t row = 0; row < rows; row++) {
            int32_t order[ROUTER_MAX_EXPERTS];
            for (int64_t i = 0; i < experts; i++) order[i] = (int32_t)i;
            test_shuffle(&random, order, (size_t)experts);
            for (int64_t i = 0; i < top_k; i++) {
                routes[row * 2 * top_k + i] = 1 / (float)top_k;
                routes[row * 2 * top_k + top_k + i] = (float)order[i];
            }
        }
        if (operand->schema == &op_matmul.operands[MATMUL_ROUTES]) {
            memcpy(to, routes, (size_t)(rows * 2 * top_k) * sizeof *routes);
        } else {
            int32_t *begin = (int32_t *)(void *)to;
            const struct expert_lists lists = {experts, begin, begin + experts + 1};
            matmul_fill_expert_lists(routes, rows, top_k, &lists);
        }
    }
    test_release(&memory);
}

/* Elements of a dtype are random. */
static void fill_host(uint8_t *block, const struct problem *problem, const struct operand *operand, uint64_t bytes)
{
    struct test_random random = {77};
    const struct op_operand *schema = operand->schema;
    memset(block, 0, bytes);
    if (is_of_router(operand))
        fill_router(block, problem, operand);
    else if (schema->role == ROLE_STEP)
        op_case_step(&problem->shown, &problem->geometry, (enum step_field)schema->field, (int32_t *)(void *)block,
                     bytes / sizeof(int32_t));
    else if (schema->role == ROLE_STATE)
        op_case_state(&problem->shown, &problem->geometry, (enum state_field)schema->field, block);
    else if (schema->role == ROLE_EXCHANGE)
        memset(block, 0xff, bytes); /* nothing has arrived */
    else if (schema->role == ROLE_INPUT && problem->shown.op == OP_SAMPLE)
        op_case_logits((float *)(void *)block, bytes / sizeof(float));
    else if (schema->role == ROLE_KV) { /* numbers as bf16, as float32, and of e4m3 as no byte is its NaN */
        test_fill(&random, block, bytes / 2, DTYPE_BF16, -1, 1);
        for (uint64_t i = 0; i < bytes; i++) block[i] &= 0xbf;
    } else if (operand->dtype == DTYPE_F8_E4M3) {
        for (uint64_t i = 0; i < bytes; i++) block[i] = e4m3_from_float((float)test_random_range(&random, -448, 448));
    } else if (operand->dtype == DTYPE_I8) {
        for (uint64_t i = 0; i < bytes; i++) block[i] = (uint8_t)(int8_t)test_random_range(&random, -127, 127);
    } else if (operand->dtype == DTYPE_I32) {
        return; /* lists, which a router writes */
    } else if (operand->dtype && !encoding_is_plain((enum encoding_id)operand->dtype))
        fill_panels(block, problem, bytes);
    else if (operand->dtype)
        test_fill(&random, block, bytes / dtype_bytes(operand->dtype), operand->dtype, -1, 1);
}

/* Whatever buffer the rank exchanges through, it finds it again: only distances from the header count. */
static void write_comm_header(struct test_device_buffer *buffer, uint32_t ranks)
{
    struct comm_header header;
    cuda_comm_header_alone(&header, ranks, buffer->data);
    test_device_write(buffer, &header, sizeof header);
}

/* Repeats a block, or what one set has if that is less; tokens and routes, which differ from set to set, fit into a block. */
static struct test_device_buffer upload(const struct problem *problem, const struct operand *operand, uint8_t *block)
{
    const bool tokens = operand->schema->role == ROLE_STEP || is_of_router(operand),
               kv = operand->schema->role == ROLE_KV;
    const uint64_t bytes = operand->stride && !kv ? operand->stride * (uint64_t)problem->copies : operand->bytes;
    const uint64_t set = operand->stride && !kv && !tokens ? operand->stride : bytes;
    const uint64_t unit = unit_bytes(problem, operand);
    const uint64_t period = set < BLOCK_BYTES ? set : BLOCK_BYTES / unit * unit;
    struct test_device_buffer buffer = test_device_buffer_new(bytes ? bytes : 1);
    fill_host(block, problem, operand, period);
    for (uint64_t at = 0; at < bytes; at += period) {
        struct test_device_buffer part = {.data = buffer.data + at, .bytes = bytes - at};
        test_device_write(&part, block, part.bytes < period ? part.bytes : period);
    }
    if (operand->schema->role == ROLE_HEADER) write_comm_header(&buffer, (uint32_t)problem->params[ALL_REDUCE_RANKS]);
    return buffer;
}

/* Timings */

static struct problem *timing_problems[MOST_TIMINGS];
static struct test_variants timings;

static void add_timings(struct problem *problem)
{
    static struct device_tactic tactics[MOST_CANDIDATES];
    const struct device_facts *facts = &test_device()->device.facts;
    int count = device_tactics(problem->shown.op, problem->params, facts, tactics, MOST_CANDIDATES), of_kernel = 0;
    if (count < 1) fail_msg("%s: no kernel takes it", problem->name);
    for (int i = 0; i < count && timings.count < MOST_TIMINGS; i++) {
        of_kernel = i && tactics[i].kernel == tactics[i - 1].kernel ? of_kernel + 1 : 0;
        if (of_kernel >= TIMED_CANDIDATES) continue;
        for (int o = 0; tactics[i].kernel->counter_bytes && o < problem->operand_count; o++) {
            const uint64_t bytes = tactics[i].kernel->counter_bytes(tactics[i].params);
            struct operand *operand = &problem->operands[o];
            if (operand->schema->role == ROLE_COUNTERS && operand->bytes < bytes) operand->bytes = bytes;
        }
        timing_problems[test_variants_add(&timings, tactics[i].kernel, tactics[i].params)] = problem;
    }
}

static void print_best(const struct problem *problem, const struct device_kernel *kernel, const int64_t *params,
                       double us)
{
    uint64_t bytes = 0, flops = 0;
    char tunables[128] = "";
    size_t used = 0;
    /* A row of a prompt sees half of it on average. */
    const int context = problem->shown.context - (problem->shown.one_slot ? problem->shown.rows / 2 : 0);
    kernel->cost(params, context > 0 ? (uint64_t)context : 0, &bytes, &flops);
    for (int i = device_problem_count(kernel); i < device_param_count(kernel) && used + 24 < sizeof tunables; i++)
        used += (size_t)snprintf(tunables + used, sizeof tunables - used, " %" PRId64, params[i]);
    const double rate = (double)bytes / us * 1e6;
    printf("%-48s %-18s %9.2f us %7.0f GB/s %4.0f %% %7.1f TFLOP/s  %s\n", problem->name, kernel->name, us, rate * 1e-9,
           100 * rate / copy_bandwidth, (double)flops / us * 1e-6, tunables);
    fflush(stdout);
}

/* Timings first to last are all of one problem. */
static void time_problem(int first, int last)
{
    static cu_deviceptr sets[MOST_COPIES][PLAN_MAX_OPERANDS];
    const struct problem *problem = timing_problems[first];
    const int copies = problem->copies, count = problem->operand_count;
    struct test_device_buffer buffers[PLAN_MAX_OPERANDS];
    cu_deviceptr *packed = &sets[0][0];
    uint8_t *block = malloc(BLOCK_BYTES);
    assert_non_null(block);
    for (int i = 0; i < count; i++) buffers[i] = upload(problem, &problem->operands[i], block);
    free(block);
    for (int c = 0; c < copies; c++)
        for (int i = 0; i < count; i++)
            packed[c * count + i] = buffers[i].data + (uint64_t)c * problem->operands[i].stride;
    double best_us = 0;
    int best = -1;
    for (int t = first; t < last; t++) {
        struct test_kernel kernel;
        test_kernel_open(&kernel, timings.kernels[t], timings.params[t]);
        double us = test_kernel_time(&kernel, packed, count, copies, problem->space_rows);
        test_kernel_close(&kernel);
        if (best < 0 || us < best_us) best_us = us, best = t;
        if (t + 1 < last && timings.kernels[t + 1] == timings.kernels[t]) continue;
        print_best(problem, timings.kernels[best], timings.params[best], best_us);
        best = -1;
    }
    for (int i = 0; i < count; i++) test_device_buffer_free(&buffers[i]);
}

static void times(void **state)
{
    (void)state;
    assert_non_null(test_device());
    problems = calloc(MOST_PROBLEMS, sizeof *problems);
    assert_non_null(problems);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        add_shape(&shapes[i]);
        add_coded_shape(&shapes[i]);
    }
    add_public_shapes();
    add_experts();
    add_routers();
    add_recurrent();
    add_wide_heads();
    for (int i = 0; i < problem_count; i++)
        if (!wanted || strstr(problems[i].name, wanted)) add_timings(&problems[i]);
    printf("compiling %d candidates\n", timings.count);
    fflush(stdout);
    test_variants_compile(&timings);
    copy_bandwidth = test_copy_bandwidth();
    printf("a copy inside the device's memory, read and written: %.0f GB/s; per cent below are of that\n",
           copy_bandwidth * 1e-9);
    printf("%-48s %-18s %12s %12s %6s %15s  %s\n", "model, rows, what", "kernel", "best", "bytes moved", "copy",
           "operations", "tunables");
    for (int first = 0, last; first < timings.count; first = last) {
        for (last = first; last < timings.count && timing_problems[last] == timing_problems[first];) last++;
        time_problem(first, last);
    }
    free(problems);
}

int kernel_times_run(const char *only)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(times)};
    wanted = only;
    return cmocka_run_group_tests(tests, NULL, NULL) ? CHECK_FAILED : CHECK_PASSED;
}
