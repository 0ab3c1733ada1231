/* SPDX-License-Identifier: Apache-2.0 */
/* Times of the device kernels at the shapes of Llama 3: for every problem and every kernel that takes it the best of
 * its first candidates. Operand sets rotate, so that weights come from memory as in an engine. */
#include <inttypes.h>

#include "kernels/all_reduce/all_reduce.h"
#include "kernels/attention/attention_device.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/registry.h"
#include "kernels/cuda/test_device.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul_device.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/sample/sample.h"
#include "kernels/select_rows/select_rows.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/gpu/check.h"

enum {
    MOST_PROBLEMS = 128,
    MOST_CANDIDATES = 64,
    TIMED_CANDIDATES = 8, /* of a kernel; the first are the most promising */
    MOST_TIMINGS = 4096,
    MOST_COPIES = 24,
    CACHES = 4, /* of the L2 cache's size that the operand sets fill */
    PAGE_TOKENS = 64,
    BLOCK_BYTES = 1 << 24, /* of random data, repeated */
};

/* How an operand is filled. */
enum content { BF16, FLOAT, LOGITS, INT, COUNT_UP, ZERO, PAGES, SAMPLERS, EMPTY, COMM_HEADER };

struct operand {
    enum content content;
    uint64_t bytes;
    uint64_t stride; /* from one operand set to the next; 0: all share it */
    int32_t value;   /* INT; COMM_HEADER: ranks */
};

struct problem {
    char name[64];
    enum plan_op op;
    int64_t params[PLAN_MAX_PARAMS];
    struct operand operands[PLAN_MAX_OPERANDS];
    int operand_count, copies;
    uint64_t context, space_rows;
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

static struct problem *add(enum plan_op op, const struct shape *shape, int64_t rows, const char *what)
{
    assert_in_range(problem_count, 0, MOST_PROBLEMS - 1);
    struct problem *problem = &problems[problem_count++];
    memset(problem, 0, sizeof *problem);
    snprintf(problem->name, sizeof problem->name, "%s %4d %s", shape->name, (int)rows, what);
    problem->op = op;
    problem->params[0] = rows; /* of every op; params[1] is COUNT_INDEX */
    return problem;
}

static void operand(struct problem *problem, enum content content, int64_t bytes)
{
    problem->operands[problem->operand_count++] = (struct operand){
        .content = content,
        .bytes = (uint64_t)bytes,
        .stride = ((uint64_t)bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT,
    };
}

/* The same memory in all operand sets. */
static void common(struct problem *problem, enum content content, int64_t bytes, int64_t value)
{
    problem->operands[problem->operand_count++] =
        (struct operand){.content = content, .bytes = (uint64_t)bytes, .value = (int32_t)value};
}

static void counts(struct problem *problem) { common(problem, INT, 8, problem->params[0]); }

static void add_matmul(const struct shape *shape, int64_t rows, const char *what, int64_t n, int64_t k,
                       enum dtype out_dtype, bool swiglu, bool residual, bool norm)
{
    struct problem *problem = add(OP_MATMUL, shape, rows, what);
    int64_t *params = problem->params;
    params[MATMUL_N] = n;
    params[MATMUL_K] = k;
    params[MATMUL_DTYPE] = DTYPE_BF16;
    params[MATMUL_OUT_DTYPE] = out_dtype;
    params[MATMUL_EPILOGUE] = swiglu ? ACTIVATION_SILU : ACTIVATION_NONE;
    params[MATMUL_BIAS_DTYPE] = DTYPE_F32;
    params[MATMUL_HAS_RESIDUAL] = residual;
    params[MATMUL_HAS_NORM] = norm;
    params[MATMUL_NORM_DTYPE] = DTYPE_BF16;
    params[MATMUL_INPUT_DTYPE] = norm ? DTYPE_F32 : DTYPE_BF16;
    params[MATMUL_EPS_BITS] = norm ? test_float_bits(1e-5f) : 0;
    test_complete_params(&op_matmul, params);
    assert_null(matmul_device_illegal(params));
    counts(problem);
    for (int i = 1; i < matmul_device_operand_count(params); i++) {
        bool is_float = (i == MATMUL_X && norm) || i == matmul_device_operand(params, MATMUL_RESIDUAL);
        operand(problem, is_float ? FLOAT : BF16, (int64_t)matmul_device_operand_bytes(params, i));
    }
}

/* `rows` sequences decode at `context`, or one reads `rows` tokens from 0 on; each operand set is a layer. */
static void paged(struct problem *problem, const struct shape *shape, int64_t slots, int64_t context,
                  uint64_t layer_bytes, int64_t *page_bytes, int64_t *block)
{
    const uint64_t fill = (uint64_t)CACHES * (uint64_t)test_device()->device.facts.l2_bytes;
    const int64_t pages = slots * ((context + PAGE_TOKENS - 1) / PAGE_TOKENS);
    problem->copies = (int)(fill / layer_bytes) + 1;
    if (problem->copies > MOST_COPIES) problem->copies = MOST_COPIES;
    *block = 4 * shape->kv_heads * shape->head_dim * PAGE_TOKENS;
    *page_bytes = *block * problem->copies;
    problem->space_rows = (uint64_t)(((pages - 1) * *page_bytes + *block) / (shape->head_dim * 2));
}

static void cache(struct problem *problem, int64_t slots, int64_t context, int64_t page_bytes, int64_t block)
{
    const int64_t pages = slots * ((context + PAGE_TOKENS - 1) / PAGE_TOKENS);
    common(problem, PAGES, pages * 4, 0);
    common(problem, BF16, pages * page_bytes, 0);
    problem->operands[problem->operand_count - 1].stride = (uint64_t)block;
}

static void add_rope_attention(const struct shape *shape, int64_t rows, int64_t context)
{
    char what[32];
    int64_t page_bytes, block;
    snprintf(what, sizeof what, "attention at %d", (int)context);
    struct problem *problem = add(OP_ROPE_ATTENTION, shape, rows, what);
    paged(problem, shape, rows, context, (uint64_t)(4 * rows * context * shape->kv_heads * shape->head_dim),
          &page_bytes, &block);
    const int64_t params[ROPE_ATTENTION_SPLITS] = {
        [ROPE_ATTENTION_ROWS] = rows,
        [ROPE_ATTENTION_HEADS] = shape->heads,
        [ROPE_ATTENTION_KV_HEADS] = shape->kv_heads,
        [ROPE_ATTENTION_HEAD_DIM] = shape->head_dim,
        [ROPE_ATTENTION_PAGE_TOKENS] = PAGE_TOKENS,
        [ROPE_ATTENTION_PAGES_PER_SLOT] = (context + PAGE_TOKENS - 1) / PAGE_TOKENS,
        [ROPE_ATTENTION_PAGE_BYTES] = page_bytes,
        [ROPE_ATTENTION_SLOT_COUNT] = rows,
        [ROPE_ATTENTION_KV_DTYPE] = DTYPE_BF16,
        [ROPE_ATTENTION_X_DTYPE] = DTYPE_BF16,
        [ROPE_ATTENTION_SCALE_BITS] = test_float_bits(0.1f),
        [ROPE_ATTENTION_NORM_DTYPE] = DTYPE_F32,
    };
    memcpy(problem->params, params, sizeof params);
    problem->context = (uint64_t)context;
    counts(problem);
    operand(problem, BF16, rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim * 2);
    common(problem, FLOAT, rows * shape->head_dim * 4, 0);
    common(problem, COUNT_UP, rows * 4, 0);
    common(problem, INT, rows * 4, context - 1);
    cache(problem, rows, context, page_bytes, block);
    operand(problem, BF16, rows * shape->heads * shape->head_dim * 2);
    common(problem, ZERO, 0, 0); /* the workspace: its size depends on the candidate */
}

static void add_prefill_attention(const struct shape *shape, int64_t rows)
{
    int64_t page_bytes, block;
    struct problem *problem = add(OP_ATTENTION, shape, rows, "attention, prompt");
    paged(problem, shape, 1, rows, (uint64_t)(4 * rows * shape->kv_heads * shape->head_dim), &page_bytes, &block);
    const int64_t params[ATTENTION_PARAMS] = {
        [ATTENTION_ROWS] = rows,
        [ATTENTION_HEADS] = shape->heads,
        [ATTENTION_KV_HEADS] = shape->kv_heads,
        [ATTENTION_HEAD_DIM] = shape->head_dim,
        [ATTENTION_PAGE_TOKENS] = PAGE_TOKENS,
        [ATTENTION_PAGES_PER_SLOT] = (rows + PAGE_TOKENS - 1) / PAGE_TOKENS,
        [ATTENTION_PAGE_BYTES] = page_bytes,
        [ATTENTION_SLOT_COUNT] = 1,
        [ATTENTION_KV_DTYPE] = DTYPE_BF16,
        [ATTENTION_X_DTYPE] = DTYPE_BF16,
        [ATTENTION_SCALE_BITS] = test_float_bits(0.1f),
    };
    memcpy(problem->params, params, sizeof params);
    problem->context = (uint64_t)rows / 2; /* a row sees half of them on average */
    counts(problem);
    operand(problem, BF16, rows * shape->heads * shape->head_dim * 2);
    common(problem, ZERO, rows * 4, 0);
    common(problem, COUNT_UP, rows * 4, 0);
    cache(problem, 1, rows, page_bytes, block);
    operand(problem, BF16, rows * shape->heads * shape->head_dim * 2);
}

static void add_rope_append(const struct shape *shape, int64_t rows, bool norm)
{
    int64_t page_bytes, block;
    struct problem *problem = add(OP_ROPE_APPEND, shape, rows, norm ? "norm, rope, append" : "rope, append");
    paged(problem, shape, 1, rows, (uint64_t)(4 * rows * shape->kv_heads * shape->head_dim), &page_bytes, &block);
    const int64_t params[ROPE_APPEND_PARAMS] = {
        [ROPE_APPEND_ROWS] = rows,
        [ROPE_APPEND_HEADS] = shape->heads,
        [ROPE_APPEND_KV_HEADS] = shape->kv_heads,
        [ROPE_APPEND_HEAD_DIM] = shape->head_dim,
        [ROPE_APPEND_PAGE_TOKENS] = PAGE_TOKENS,
        [ROPE_APPEND_PAGES_PER_SLOT] = (rows + PAGE_TOKENS - 1) / PAGE_TOKENS,
        [ROPE_APPEND_PAGE_BYTES] = page_bytes,
        [ROPE_APPEND_SLOT_COUNT] = 1,
        [ROPE_APPEND_KV_DTYPE] = DTYPE_BF16,
        [ROPE_APPEND_X_DTYPE] = DTYPE_BF16,
        [ROPE_APPEND_HAS_NORM] = norm,
        [ROPE_APPEND_NORM_DTYPE] = DTYPE_F32,
        [ROPE_APPEND_EPS_BITS] = test_float_bits(1e-6f),
    };
    memcpy(problem->params, params, sizeof params);
    counts(problem);
    operand(problem, BF16, rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim * 2);
    common(problem, FLOAT, rows * shape->head_dim * 4, 0);
    common(problem, ZERO, rows * 4, 0);
    common(problem, COUNT_UP, rows * 4, 0);
    cache(problem, 1, rows, page_bytes, block);
    operand(problem, BF16, rows * shape->heads * shape->head_dim * 2);
    for (int i = 0; norm && i < 2; i++) common(problem, FLOAT, shape->head_dim * 4, 0);
}

static void add_rms_norm(const struct shape *shape, int64_t rows)
{
    struct problem *problem = add(OP_RMS_NORM, shape, rows, "norm");
    problem->params[RMS_NORM_HIDDEN] = shape->hidden;
    problem->params[RMS_NORM_WEIGHT_DTYPE] = DTYPE_BF16;
    problem->params[RMS_NORM_EPS_BITS] = test_float_bits(1e-5f);
    problem->params[RMS_NORM_OUT_DTYPE] = DTYPE_BF16;
    counts(problem);
    operand(problem, FLOAT, rows * shape->hidden * 4);
    operand(problem, BF16, shape->hidden * 2);
    operand(problem, BF16, rows * shape->hidden * 2);
}

static void add_swiglu(const struct shape *shape, int64_t rows)
{
    struct problem *problem = add(OP_SWIGLU, shape, rows, "swiglu, not fused");
    problem->params[SWIGLU_WIDTH] = shape->intermediate;
    problem->params[SWIGLU_X_DTYPE] = DTYPE_BF16;
    problem->params[SWIGLU_ACTIVATION] = ACTIVATION_SILU;
    counts(problem);
    operand(problem, BF16, rows * shape->intermediate * 4);
    operand(problem, BF16, rows * shape->intermediate * 2);
}

static void add_embed(const struct shape *shape, int64_t rows)
{
    struct problem *problem = add(OP_EMBED, shape, rows, "embed");
    problem->params[EMBED_HIDDEN] = shape->hidden;
    problem->params[EMBED_PITCH] = shape->hidden;
    problem->params[EMBED_VOCAB] = shape->vocab;
    problem->params[EMBED_TABLE_DTYPE] = DTYPE_BF16;
    problem->params[EMBED_OUT_DTYPE] = DTYPE_F32;
    problem->copies = MOST_COPIES;
    counts(problem);
    common(problem, COUNT_UP, rows * 4, 0);
    common(problem, BF16, shape->vocab * shape->hidden * 2, 0);
    /* Each set reads rows of its own. */
    problem->operands[EMBED_TABLE].bytes += (uint64_t)(MOST_COPIES * rows * shape->hidden * 2);
    problem->operands[EMBED_TABLE].stride = (uint64_t)(rows * shape->hidden * 2);
    operand(problem, FLOAT, rows * shape->hidden * 4);
}

/* One rank alone, which exchanges with itself: what the kernel costs without a link. */
static void add_all_reduce(const struct shape *shape, int64_t rows, int64_t ranks)
{
    char what[48];
    uint64_t buffer_bytes;
    snprintf(what, sizeof what, "sum of %d ranks, norm, no link", (int)ranks);
    struct problem *problem = add(OP_ALL_REDUCE, shape, rows, what);
    problem->params[ALL_REDUCE_WIDTH] = shape->hidden;
    problem->params[ALL_REDUCE_RANKS] = ranks;
    problem->params[ALL_REDUCE_X_DTYPE] = DTYPE_BF16;
    const bool large = all_reduce_device_is_large((uint64_t)rows, (uint64_t)shape->hidden, (uint64_t)ranks, DTYPE_BF16);
    const int64_t whose = large ? ALL_REDUCE_OWN_ROWS : ALL_REDUCE_EVERY_ROW; /* as in an engine */
    problem->params[ALL_REDUCE_HAS_RESIDUAL] = whose;
    problem->params[ALL_REDUCE_HAS_NORM] = whose;
    problem->params[ALL_REDUCE_NORM_DTYPE] = DTYPE_BF16;
    problem->params[ALL_REDUCE_EPS_BITS] = test_float_bits(1e-5f);
    problem->params[ALL_REDUCE_OUT_DTYPE] = DTYPE_BF16;
    assert_true(all_reduce_device_buffer_bytes((uint64_t)rows, (uint64_t)shape->hidden, (uint64_t)ranks, DTYPE_BF16,
                                               DTYPE_BF16, &buffer_bytes));
    counts(problem);
    operand(problem, BF16, rows * shape->hidden * 2);
    common(problem, COMM_HEADER, sizeof(struct comm_header), ranks);
    operand(problem, EMPTY, (int64_t)buffer_bytes);
    operand(problem, FLOAT, rows * shape->hidden * 4);
    operand(problem, FLOAT, rows * shape->hidden * 4);
    common(problem, BF16, shape->hidden * 2, 0);
    operand(problem, BF16, rows * shape->hidden * 2);
}

static void add_rope_table(const struct shape *shape, int64_t rows)
{
    struct problem *problem = add(OP_ROPE_TABLE, shape, rows, "rope table");
    problem->params[ROPE_TABLE_HEAD_DIM] = shape->head_dim;
    problem->params[ROPE_TABLE_SCALING_BITS] = test_float_bits(1);
    counts(problem);
    common(problem, COUNT_UP, rows * 4, 0);
    common(problem, FLOAT, shape->head_dim * 2, 0);
    operand(problem, FLOAT, rows * shape->head_dim * 4);
}

static void add_select_rows(const struct shape *shape, int64_t rows, int64_t in_rows)
{
    struct problem *problem = add(OP_SELECT_ROWS, shape, rows, "select rows");
    problem->params[SELECT_ROWS_WIDTH] = shape->hidden;
    problem->params[SELECT_ROWS_IN_ROWS] = in_rows;
    counts(problem);
    operand(problem, FLOAT, in_rows * shape->hidden * 4);
    common(problem, COUNT_UP, rows * 4, 0);
    operand(problem, FLOAT, rows * shape->hidden * 4);
}

static void add_sample(const struct shape *shape, int64_t rows)
{
    struct problem *problem = add(OP_SAMPLE, shape, rows, "sample, temperature and top-p");
    problem->params[SAMPLE_VOCAB] = shape->vocab;
    problem->params[SAMPLE_SLOT_COUNT] = rows;
    problem->params[SAMPLE_IN_ROWS] = rows;
    problem->params[SAMPLE_FEEDBACK] = 1;
    counts(problem);
    operand(problem, LOGITS, rows * shape->vocab * 4);
    common(problem, COUNT_UP, rows * 4, 0);
    common(problem, COUNT_UP, rows * 4, 0);
    common(problem, SAMPLERS, rows * (int64_t)sizeof(struct sampler_state), 0);
    common(problem, ZERO, rows * ((shape->vocab + 7) / 8), 0);
    common(problem, ZERO, rows * 4, 0);
    common(problem, ZERO, rows * 4, 0);
    common(problem, ZERO, rows * 4, 0);
}

static void add_shape(const struct shape *shape)
{
    static const int64_t batches[] = {1, 8, 32, 512, 2048};
    const int64_t q = shape->heads * shape->head_dim, qkv = q + 2 * shape->kv_heads * shape->head_dim;
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        const int64_t rows = batches[i];
        const bool norm = rows <= MATMUL_GEMV_MOST_ROWS;
        add_matmul(shape, rows, "qkv", qkv, shape->hidden, DTYPE_BF16, false, false, norm);
        add_matmul(shape, rows, "attention out", shape->hidden, q, DTYPE_F32, false, true, false);
        add_matmul(shape, rows, "gate, up, swiglu", 2 * shape->intermediate, shape->hidden, DTYPE_BF16, true, false,
                   norm);
        add_matmul(shape, rows, "down", shape->hidden, shape->intermediate, DTYPE_F32, false, true, false);
        if (rows <= 32) add_matmul(shape, rows, "head", shape->vocab, shape->hidden, DTYPE_F32, false, false, norm);
    }
    for (int64_t rows = 1; rows <= 32; rows *= 4)
        for (int64_t context = 1024; context <= 8192; context *= 8) add_rope_attention(shape, rows, context);
    add_prefill_attention(shape, 512);
    add_prefill_attention(shape, 2048);
    add_rope_append(shape, 2048, false);
    add_rope_append(shape, 2048, true);
    for (int64_t ranks = 2; ranks <= 8; ranks *= 2)
        for (int64_t rows = 1; rows <= 512; rows *= 8) add_all_reduce(shape, rows, ranks);
    add_rms_norm(shape, 1);
    add_rms_norm(shape, 16);
    add_rms_norm(shape, 2048);
    add_swiglu(shape, 2048);
    add_embed(shape, 2048);
    add_rope_table(shape, 2048);
    add_select_rows(shape, 32, 2048);
    add_sample(shape, 1);
    add_sample(shape, 32);
}

/* Operands */

static void fill_host(uint8_t *block, const struct operand *operand)
{
    struct test_random random = {77};
    float *floats = (float *)block;
    int32_t *ints = (int32_t *)block;
    struct sampler_state *samplers = (struct sampler_state *)block;
    uint64_t bytes = operand->bytes < BLOCK_BYTES ? operand->bytes : BLOCK_BYTES;
    switch (operand->content) {
    case BF16: test_fill(&random, block, bytes / 2, DTYPE_BF16, -1, 1); break;
    case FLOAT: test_fill(&random, block, bytes / 4, DTYPE_F32, -1, 1); break;
    case LOGITS: /* about normal, with a deviation of 2.5, and few that stand out */
        for (uint64_t i = 0; i < bytes / 4; i++) {
            floats[i] = i % 20011 ? 0 : 12;
            for (int j = 0; j < 4; j++) floats[i] += test_random_float(&random, -2.2f, 2.2f);
        }
        break;
    case INT:
        for (uint64_t i = 0; i < bytes / 4; i++) ints[i] = operand->value;
        break;
    case COUNT_UP:
    case PAGES:
        for (uint64_t i = 0; i < bytes / 4; i++) ints[i] = (int32_t)i;
        break;
    case ZERO: memset(block, 0, bytes); break;
    case EMPTY: memset(block, 0xff, bytes); break;
    case COMM_HEADER: break; /* has its own address: write_comm_header */
    case SAMPLERS:
        for (uint64_t i = 0; i < bytes / sizeof *samplers; i++)
            samplers[i] =
                (struct sampler_state){.temperature = 0.8f, .top_p = 0.95f, .repetition_penalty = 1, .seed = i};
        break;
    }
}

/* Whatever buffer the rank exchanges through, it finds it again: only distances from the header count. */
static void write_comm_header(struct test_device_buffer *buffer, uint32_t ranks)
{
    struct comm_header header;
    cuda_comm_header_alone(&header, ranks, buffer->data);
    test_device_write(buffer, &header, sizeof header);
}

static struct test_device_buffer upload(const struct operand *operand, int copies, uint8_t *block)
{
    uint64_t bytes = operand->stride >= operand->bytes ? operand->stride * (uint64_t)copies : operand->bytes;
    if (operand->stride < operand->bytes) bytes += operand->stride; /* the last set's tail */
    struct test_device_buffer buffer = test_device_buffer_new(bytes ? bytes : 1);
    fill_host(block, operand);
    const uint64_t period = operand->bytes < BLOCK_BYTES && operand->stride ? operand->stride : BLOCK_BYTES;
    for (uint64_t at = 0; at < bytes; at += period) {
        struct test_device_buffer part = {.data = buffer.data + at, .bytes = bytes - at};
        test_device_write(&part, block, part.bytes < period ? part.bytes : period);
    }
    if (operand->content == COMM_HEADER) write_comm_header(&buffer, (uint32_t)operand->value);
    return buffer;
}

static int copies_of(const struct problem *problem)
{
    const uint64_t fill = (uint64_t)CACHES * (uint64_t)test_device()->device.facts.l2_bytes;
    uint64_t bytes = 1;
    if (problem->copies) return problem->copies;
    for (int i = 0; i < problem->operand_count; i++)
        if (problem->operands[i].stride) bytes += problem->operands[i].bytes;
    uint64_t copies = fill / bytes + 2;
    return copies < MOST_COPIES ? (int)copies : MOST_COPIES;
}

/* Timings */

static struct problem *timing_problems[MOST_TIMINGS];
static struct test_variants timings;

static void add_timings(struct problem *problem)
{
    static struct device_tactic tactics[MOST_CANDIDATES];
    const struct device_facts *facts = &test_device()->device.facts;
    int count = device_tactics(problem->op, problem->params, facts, tactics, MOST_CANDIDATES), of_kernel = 0;
    for (int i = 0; i < count && timings.count < MOST_TIMINGS; i++) {
        of_kernel = i && tactics[i].kernel == tactics[i - 1].kernel ? of_kernel + 1 : 0;
        if (of_kernel >= TIMED_CANDIDATES) continue;
        if (problem->op == OP_ROPE_ATTENTION) {
            uint64_t bytes = rope_attention_workspace_bytes(tactics[i].params);
            struct operand *workspace = &problem->operands[ROPE_ATTENTION_WORKSPACE];
            if (bytes > workspace->bytes) workspace->bytes = bytes;
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
    kernel->cost(params, problem->context, &bytes, &flops);
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
    const int copies = copies_of(problem), count = problem->operand_count;
    struct test_device_buffer buffers[PLAN_MAX_OPERANDS];
    cu_deviceptr *packed = &sets[0][0];
    uint8_t *block = malloc(BLOCK_BYTES);
    assert_non_null(block);
    for (int i = 0; i < count; i++) buffers[i] = upload(&problem->operands[i], copies, block);
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
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) add_shape(&shapes[i]);
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
