/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/engine/test_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/base/hash.h"
#include "formats/tuning/tuning_record.h"

enum { VOCAB = TEST_ENGINE_VOCAB, HIDDEN = 16, HEADS = 2, KV_HEADS = 1, HEAD_DIM = 8, PAGE_TOKENS = 4, SLOTS = 2 };
enum { MAX_CONTEXT = 10, ARENA_BLOCK = 4096, ARENA_BLOCKS = 8, COUNT_OF_ROWS = 0, COUNT_OF_OUT_ROWS = 1 };
enum { EXCHANGE_OFFSET = 256, EXCHANGE_BUFFERS = 3 };
enum tensor { TABLE, HEAD, NORM, FREQUENCIES };

/* A plan under construction. */
struct builder {
    struct test_plan *storage;
    struct plan_header *header;
    const struct plan_field *step, *state;
    const struct test_engine *engine;
};

static void add_operand(struct builder *builder, enum plan_space space, enum plan_access access, uint64_t offset,
                        uint64_t bytes)
{
    builder->storage->operands[builder->header->operand_count++] =
        (struct plan_operand){.space = (uint8_t)space, .access = (uint8_t)access, .offset = offset, .bytes = bytes};
    builder->storage->launches[builder->header->launch_count - 1].operand_count++;
}

static void step_operand(struct builder *builder, enum step_field field, enum plan_access access)
{
    add_operand(builder, SPACE_STEP, access, builder->step[field].offset, builder->step[field].bytes);
}

static void state_operand(struct builder *builder, enum state_field field, enum plan_access access)
{
    add_operand(builder, SPACE_STATE, access, builder->state[field].offset, builder->state[field].bytes);
}

static void weight_operand(struct builder *builder, enum tensor index)
{
    const struct engine_tensor *tensor = &builder->engine->tensors[index];
    add_operand(builder, SPACE_WEIGHTS, ACCESS_READ, tensor->offset, tensor->bytes);
}

/* The arena consists of equal blocks, each large enough for any value here. */
static void arena_operand(struct builder *builder, unsigned block, enum plan_access access)
{
    add_operand(builder, SPACE_ARENA, access, (uint64_t)block * ARENA_BLOCK, ARENA_BLOCK);
}

/* One of the buffers after the header of the COMM space. */
static void comm_operand(struct builder *builder, uint64_t buffer, uint64_t bytes)
{
    add_operand(builder, SPACE_COMM, ACCESS_READ_WRITE, EXCHANGE_OFFSET + buffer * TEST_ENGINE_EXCHANGE, bytes);
}

static void comm_header_operand(struct builder *builder, enum plan_access access)
{
    add_operand(builder, SPACE_COMM, access, 0, sizeof(struct comm_header));
}

static void kv_operand(struct builder *builder, enum plan_access access)
{
    add_operand(builder, SPACE_KV, access, 0, builder->engine->manifest.geometry.page_bytes);
}

/* Begins a launch that depends on the previous one. Every op's first operand is STEP_COUNTS. */
static void begin_launch(struct builder *builder, enum plan_op op, uint32_t tactic, const int64_t *params,
                         uint16_t param_count)
{
    struct plan_header *header = builder->header;
    struct plan_launch *launch = &builder->storage->launches[header->launch_count++];
    *launch = (struct plan_launch){
        .op = (uint16_t)op,
        .param_count = param_count,
        .dependency_count = header->launch_count > 1,
        .first_operand = header->operand_count,
        .first_param = header->param_count,
        .first_dependency = header->dependency_count,
        .tactic = tactic,
        .layer = op == OP_ATTENTION || op == OP_ROPE_APPEND ? 0 : UINT32_MAX,
        .bytes = 4096,
        .flops = 512,
    };
    if (launch->dependency_count) builder->storage->dependencies[header->dependency_count++] = header->launch_count - 2;
    for (uint16_t i = 0; i < param_count; i++)
        builder->storage->params[header->param_count++] =
            (struct plan_param){.id = (uint16_t)(i + 1), .flags = PLAN_PARAM_ESSENTIAL, .value = params[i]};
    step_operand(builder, STEP_COUNTS, ACCESS_READ);
}

#define BEGIN(builder, op, tactic, ...)                               \
    begin_launch(builder, op, tactic, (const int64_t[]){__VA_ARGS__}, \
                 sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static int64_t float_bits(float value) { return (int64_t)float_to_bits(value); }

/* Sums an arena block over the ranks. */
static void add_all_reduce(struct builder *builder, int64_t rows, unsigned block, uint64_t buffer)
{
    BEGIN(builder, OP_ALL_REDUCE, PLAN_NO_TACTIC, rows, COUNT_OF_ROWS, HIDDEN, TEST_ENGINE_RANKS, DTYPE_F32, 0, 0,
          DTYPE_BF16, 0, DTYPE_BF16);
    arena_operand(builder, block, ACCESS_READ);
    comm_header_operand(builder, ACCESS_READ_WRITE);
    comm_operand(builder, buffer, (uint64_t)rows * HIDDEN * sizeof(float));
    arena_operand(builder, block, ACCESS_WRITE);
}

/* The attention ops, and the ops that a plan of fused ones does not need. Works on arena block 0. */
static void add_layer(struct builder *builder, int64_t rows)
{
    const struct plan_geometry *geometry = &builder->engine->manifest.geometry;
    int64_t page_bytes = (int64_t)geometry->page_bytes, pages = (int64_t)geometry->pages_per_slot;
    int64_t heads = HEADS / builder->engine->ranks; /* the KV head is on every rank */
    BEGIN(builder, OP_ROPE_TABLE, PLAN_NO_TACTIC, rows, COUNT_OF_ROWS, HEAD_DIM, float_bits(1));
    step_operand(builder, STEP_POSITIONS, ACCESS_READ);
    weight_operand(builder, FREQUENCIES);
    arena_operand(builder, 3, ACCESS_WRITE);
    BEGIN(builder, OP_ROPE_APPEND, PLAN_NO_TACTIC, rows, COUNT_OF_ROWS, heads, KV_HEADS, HEAD_DIM, PAGE_TOKENS, pages,
          page_bytes, SLOTS, DTYPE_F32, DTYPE_F32, 0, DTYPE_BF16, float_bits(0));
    arena_operand(builder, 0, ACCESS_READ);
    arena_operand(builder, 3, ACCESS_READ);
    step_operand(builder, STEP_SLOTS, ACCESS_READ);
    step_operand(builder, STEP_POSITIONS, ACCESS_READ);
    state_operand(builder, STATE_PAGE_TABLE, ACCESS_READ);
    kv_operand(builder, ACCESS_WRITE);
    arena_operand(builder, 4, ACCESS_WRITE);
    BEGIN(builder, OP_ATTENTION, PLAN_NO_TACTIC, rows, COUNT_OF_ROWS, heads, KV_HEADS, HEAD_DIM, PAGE_TOKENS, pages,
          page_bytes, SLOTS, DTYPE_F32, DTYPE_F32, 0, float_bits(0.35f));
    arena_operand(builder, 4, ACCESS_READ);
    step_operand(builder, STEP_SLOTS, ACCESS_READ);
    step_operand(builder, STEP_POSITIONS, ACCESS_READ);
    state_operand(builder, STATE_PAGE_TABLE, ACCESS_READ);
    kv_operand(builder, ACCESS_READ);
    arena_operand(builder, 5, ACCESS_WRITE);
    arena_operand(builder, 6, ACCESS_READ_WRITE); /* workspace, as below */
    BEGIN(builder, OP_ADD, PLAN_NO_TACTIC, rows, COUNT_OF_ROWS, HIDDEN);
    arena_operand(builder, 0, ACCESS_READ);
    arena_operand(builder, 5, ACCESS_READ);
    arena_operand(builder, 7, ACCESS_WRITE);
    BEGIN(builder, OP_ADD, PLAN_NO_TACTIC, rows, COUNT_OF_ROWS, HIDDEN);
    arena_operand(builder, 0, ACCESS_READ);
    arena_operand(builder, 7, ACCESS_READ);
    arena_operand(builder, 1, ACCESS_WRITE);
    if (builder->engine->ranks > 1) add_all_reduce(builder, rows, 1, 1);
}

static bool make_plan(struct test_engine *engine, unsigned index, enum plan_kind kind, uint32_t rows, bool full)
{
    struct plan *plan = &engine->plans[index];
    struct builder builder = {.storage = &engine->storage[index],
                              .header = &plan->header,
                              .step = plan->step,
                              .state = engine->manifest.geometry.state,
                              .engine = engine};
    uint32_t out_rows = kind == PLAN_DECODE ? rows : 1;
    bool several = engine->ranks > 1;
    int64_t vocab = (int64_t)plan_rank_vocab(&engine->manifest.geometry);
    *plan = (struct plan){
        .header = {.kind = kind, .rows = rows, .out_rows = out_rows, .arena_bytes = ARENA_BLOCK * ARENA_BLOCKS},
        .launches = builder.storage->launches,
        .operands = builder.storage->operands,
        .params = builder.storage->params,
        .tensor_maps = builder.storage->tensor_maps,
        .dependencies = builder.storage->dependencies,
    };
    if (!plan_place_step(plan, VOCAB, 0, 0)) return false;
    if (plan->header.step_bytes > engine->manifest.step_bytes) engine->manifest.step_bytes = plan->header.step_bytes;
    BEGIN(&builder, OP_EMBED, PLAN_NO_TACTIC, rows, COUNT_OF_ROWS, HIDDEN, HIDDEN, vocab, DTYPE_F32, several, DTYPE_F32,
          LAYOUT_ROW_MAJOR);
    step_operand(&builder, STEP_TOKENS, ACCESS_READ);
    weight_operand(&builder, TABLE);
    arena_operand(&builder, full ? 0 : 1, ACCESS_WRITE);
    if (several) {
        comm_header_operand(&builder, ACCESS_READ);
        add_all_reduce(&builder, rows, full ? 0 : 1, 0);
    }
    if (full) add_layer(&builder, rows);
    BEGIN(&builder, OP_RMS_NORM, PLAN_NO_TACTIC, rows, COUNT_OF_ROWS, HIDDEN, DTYPE_F32, float_bits(1e-5f), DTYPE_F32,
          0);
    arena_operand(&builder, 1, ACCESS_READ);
    weight_operand(&builder, NORM);
    arena_operand(&builder, 0, ACCESS_WRITE);
    BEGIN(&builder, OP_SELECT_ROWS, PLAN_NO_TACTIC, out_rows, COUNT_OF_OUT_ROWS, HIDDEN, rows, DTYPE_F32);
    arena_operand(&builder, 0, ACCESS_READ);
    step_operand(&builder, STEP_OUT_ROWS, ACCESS_READ);
    arena_operand(&builder, 1, ACCESS_WRITE);
    BEGIN(&builder, OP_MATMUL, full ? 1 : 0, out_rows, COUNT_OF_OUT_ROWS, vocab, HIDDEN, DTYPE_F32, DTYPE_F32, 0, 0,
          DTYPE_BF16, 0, 0, DTYPE_BF16, 0, DTYPE_F32, 1, 1, 0, 0, 1, 0);
    arena_operand(&builder, 1, ACCESS_READ);
    weight_operand(&builder, HEAD);
    if (several)
        arena_operand(&builder, 3, ACCESS_WRITE);
    else
        step_operand(&builder, STEP_LOGITS, ACCESS_WRITE);
    arena_operand(&builder, 2, ACCESS_READ_WRITE);
    if (several) {
        BEGIN(&builder, OP_ALL_GATHER, PLAN_NO_TACTIC, out_rows, COUNT_OF_OUT_ROWS, vocab, VOCAB, TEST_ENGINE_RANKS);
        arena_operand(&builder, 3, ACCESS_READ);
        comm_header_operand(&builder, ACCESS_READ_WRITE);
        comm_operand(&builder, full ? 2 : 1, out_rows * (uint64_t)vocab * sizeof(float));
        step_operand(&builder, STEP_LOGITS, ACCESS_WRITE);
    }
    BEGIN(&builder, OP_SAMPLE, PLAN_NO_TACTIC, out_rows, COUNT_OF_OUT_ROWS, VOCAB, SLOTS, rows, 0);
    step_operand(&builder, STEP_LOGITS, ACCESS_READ);
    step_operand(&builder, STEP_OUT_ROWS, ACCESS_READ);
    step_operand(&builder, STEP_SLOTS, ACCESS_READ);
    state_operand(&builder, STATE_SAMPLERS, ACCESS_READ_WRITE);
    state_operand(&builder, STATE_SEEN, ACCESS_READ_WRITE);
    step_operand(&builder, STEP_NEXT_TOKENS, ACCESS_WRITE);
    arena_operand(&builder, 2, ACCESS_READ_WRITE);
    return true;
}

static void make_tensors(struct test_engine *engine)
{
    static const struct engine_tensor tensors[TEST_ENGINE_TENSORS] = {
        [TABLE] = {.name = "embed.table", .rank = 2, .shape = {VOCAB, HIDDEN}, .bytes = VOCAB * HIDDEN * 4},
        [HEAD] = {.name = "head",
                  .layout = LAYOUT_PANEL16,
                  .rank = 2,
                  .shape = {VOCAB, HIDDEN},
                  .bytes = VOCAB * HIDDEN * 4},
        [NORM] = {.name = "norm", .rank = 1, .shape = {HIDDEN}, .bytes = HIDDEN * 4},
        [FREQUENCIES] = {.name = "rope.inv_freq", .rank = 1, .shape = {HEAD_DIM / 2}, .bytes = HEAD_DIM / 2 * 4},
    };
    uint64_t offset = 0;
    for (int i = 0; i < TEST_ENGINE_TENSORS; i++) {
        engine->tensors[i] = tensors[i];
        struct engine_tensor *tensor = &engine->tensors[i];
        tensor->dtype = DTYPE_F32;
        tensor->offset = offset;
        if (tensor->shape[0] == VOCAB && tensor->rank == 2) {
            tensor->shape[0] /= engine->ranks;
            if (i == TABLE) tensor->bytes /= engine->ranks; /* the head fills a panel all the same */
        }
        offset += (tensor->bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    }
    /* The gap after the last tensor stays zero, as the builder leaves it. */
    for (int i = 0; i < TEST_ENGINE_TENSORS; i++)
        for (uint64_t byte = 0; byte < engine->tensors[i].bytes; byte += 4) {
            float value = (float)((byte * 7 + (uint64_t)i * 3) % 29) / 16 - 1;
            memcpy(engine->weights + engine->tensors[i].offset + byte, &value, sizeof value);
        }
}

static bool make_tactics(struct test_engine *engine, struct status *status)
{
    struct tuning_record record = {
        .values = {{"panels_per_tile", 1}, {"rows_per_tile", 1}},
        .value_count = 2,
        .median_us = 1.5,
        .spread_us = 0.1,
        .bytes = 4096,
        .flops = 512,
        .roofline_us = 0.7,
        .level = "quick",
        .candidates = 3,
    };
    size_t used = 0;
    for (int rows = 1; rows <= 2; rows++) {
        char *line = NULL;
        size_t size = 0;
        snprintf(record.key, sizeof record.key, "test-cpu matmul %dx16x16 F32", rows);
        if (!tuning_record_format(&record, &line, &size, status)) return false;
        if (used + size < sizeof engine->tactics) memcpy(engine->tactics + used, line, size + 1);
        used += size;
        free(line);
    }
    return true;
}

static void make_golden_plans(struct test_engine *engine)
{
    static const struct golden_sequence sequences[] = {{0, 6}, {6, 3}};
    static const struct golden_row rows[TEST_ENGINE_GOLDEN_ROWS] = {{0, 3, 2, 0}, {0, 5, 7, 0}, {1, 2, 9, 0}};
    static const struct golden_case cases[TEST_ENGINE_GOLDEN_CASES] = {{PLAN_PREFILL, 4, 4, 0},
                                                                       {PLAN_PREFILL, 4, 2, 1},
                                                                       {PLAN_DECODE, 1, 1, 2},
                                                                       {PLAN_DECODE, 2, 2, 3}};
    static const uint32_t items[TEST_ENGINE_GOLDEN_ITEMS] = {0, 1, 1, 2, 1};
    for (int i = 0; i < TEST_ENGINE_GOLDEN_TOKENS; i++) engine->golden_case_tokens[i] = (i * 5 + 3) % VOCAB;
    for (int i = 0; i < TEST_ENGINE_GOLDEN_ROWS * VOCAB; i++) engine->golden_logits[i] = (float)(i * 13 % 9) - 4;
    engine->golden_plans = (struct golden_cases){
        .vocab_size = VOCAB,
        .tolerance = 2e-3f,
        .token_count = TEST_ENGINE_GOLDEN_TOKENS,
        .sequence_count = 2,
        .row_count = TEST_ENGINE_GOLDEN_ROWS,
        .case_count = TEST_ENGINE_GOLDEN_CASES,
        .item_count = TEST_ENGINE_GOLDEN_ITEMS,
        .sequences = sequences,
        .rows = rows,
        .cases = cases,
        .items = items,
        .tokens = engine->golden_case_tokens,
        .logits = engine->golden_logits,
    };
}

static bool make(struct test_engine *engine, uint32_t ranks, struct status *status)
{
    *engine = (struct test_engine){.ranks = ranks};
    engine->manifest = (struct manifest){
        .builder_version = "0.1.0-test",
        .model_type = "llama",
        .model_name = "test \xc3\xa9ngine",
        .target = TARGET_CPU,
        .target_name = "a processor",
        .hidden_size = HIDDEN,
        .intermediate_size = HIDDEN,
        .layers = 1,
        .heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = HEAD_DIM,
        .parameters = 2 * VOCAB * HIDDEN + HIDDEN,
        .weight_encoding = ENCODING_F32,
        .kv_dtype = ENCODING_F32,
        .geometry = {.slots = SLOTS,
                     .max_context = MAX_CONTEXT,
                     .page_tokens = PAGE_TOKENS,
                     .pages_per_slot = 3,
                     .page_bytes = 2 * KV_HEADS * PAGE_TOKENS * HEAD_DIM * 4,
                     .vocab_size = VOCAB,
                     .ranks = ranks},
        .weights_bytes = ranks > 1 ? ranks * (uint64_t)TEST_ENGINE_REGION : TEST_ENGINE_WEIGHTS,
        .comm_bytes = ranks > 1 ? EXCHANGE_OFFSET + EXCHANGE_BUFFERS * TEST_ENGINE_EXCHANGE : 0,
        .arena_bytes = ARENA_BLOCK * ARENA_BLOCKS,
        .bos_token = 1,
        .pad_token = -1,
        .eos_tokens = {2, 3},
        .eos_count = 2,
        .chat_format = CHAT_CHATML,
        .temperature = 0.7,
        .top_p = 0.95,
        .repetition_penalty = 1.0,
        .top_k = 40,
        .has_tokenizer = true,
    };
    if (!geometry_place_state(&engine->manifest.geometry, &engine->manifest.state_bytes))
        return status_fail(status, STATUS_INTERNAL, "test engine: state");
    make_tensors(engine);
    if (!make_plan(engine, 0, PLAN_DECODE, 1, true) || !make_plan(engine, 1, PLAN_DECODE, 2, false) ||
        !make_plan(engine, 2, PLAN_PREFILL, 4, false))
        return status_fail(status, STATUS_INTERNAL, "test engine: plans");
    engine->plan_count = TEST_ENGINE_PLANS;
    if (!make_tactics(engine, status)) return false;
    for (size_t i = 0; i < sizeof engine->tokenizer; i++) engine->tokenizer[i] = (uint8_t)(i * 5 + 1);
    for (int i = 0; i < 3; i++) engine->prompt[i] = i + 1;
    for (int i = 0; i < 2; i++) engine->tokens[i] = i + 4;
    for (int i = 0; i < 2 * VOCAB; i++) engine->logits[i] = (float)(i * 11 % 7) - 3;
    engine->golden = (struct engine_golden){
        .prompt_count = 3,
        .token_count = 2,
        .vocab_size = VOCAB,
        .tolerance = 1e-3f,
        .prompt = engine->prompt,
        .tokens = engine->tokens,
        .logits = engine->logits,
    };
    make_golden_plans(engine);
    return true;
}

bool test_engine_same_cases(const struct golden_cases *left, const struct golden_cases *right)
{
#define SAME(list, count) (memcmp(left->list, right->list, (count) * sizeof *left->list) == 0)
    return left->vocab_size == right->vocab_size && left->tolerance == right->tolerance &&
           left->token_count == right->token_count && left->sequence_count == right->sequence_count &&
           left->row_count == right->row_count && left->case_count == right->case_count &&
           left->item_count == right->item_count && SAME(sequences, left->sequence_count) &&
           SAME(rows, left->row_count) && SAME(cases, left->case_count) && SAME(items, left->item_count) &&
           SAME(tokens, left->token_count) && SAME(logits, left->row_count * left->vocab_size) &&
           !left->drafts.tokens == !right->drafts.tokens &&
           (!left->drafts.tokens || (SAME(drafts.tokens, left->row_count) &&
                                     SAME(drafts.near, left->row_count * plan_allowed_words(left->vocab_size))));
#undef SAME
}

bool test_engine_make(struct test_engine *engine, struct status *status) { return make(engine, 1, status); }

bool test_engine_make_ranks(struct test_engine *engine, struct status *status)
{
    return make(engine, TEST_ENGINE_RANKS, status);
}

bool test_engine_make_drafts(struct test_engine *engine, struct status *status)
{
    if (!make(engine, 1, status)) return false;
    for (size_t p = 0; p < engine->plan_count; p++) {
        struct plan *plan = &engine->plans[p];
        if (!plan_place_step(plan, VOCAB, 0, 1)) return status_fail(status, STATUS_INTERNAL, "step layout");
        if (plan->header.step_bytes > engine->manifest.step_bytes)
            engine->manifest.step_bytes = plan->header.step_bytes;
    }
    for (int i = 0; i < TEST_ENGINE_GOLDEN_DRAFTS; i++) {
        engine->drafted[i] = i * 5 % VOCAB;
        engine->near[i] = 1u << engine->drafted[i] | 2;
    }
    engine->golden.drafts = (struct golden_drafts){engine->drafted, engine->near};
    engine->golden_plans.drafts = (struct golden_drafts){engine->drafted + 2, engine->near + 2};
    return true;
}

static bool write_names(struct engine_writer *writer, const struct test_engine *engine, struct status *status)
{
    static const char *const operands[] = {"counts", "x"};
    static const struct engine_param_name params[] = {{1, "rows"}, {2, "count_index"}, {4, "k"}};
    struct engine_name_table ops[OP_COUNT], kernel = {.name = "matmul_head", .params = params, .param_count = 2};
    const char *calls[TEST_ENGINE_CALLS] = {"attention_call", "matmul_call"};
    for (unsigned op = 1; op < OP_COUNT; op++)
        ops[op] = (struct engine_name_table){
            .op = op,
            .name = plan_op_name(op),
            .operands = operands,
            .operand_count = 2,
            .params = params,
            .param_count = 3,
        };
    return engine_writer_names(writer, ops + 1, OP_COUNT - 1, &kernel, engine->kernel_count ? 1 : 0, calls,
                               engine->call_count < TEST_ENGINE_CALLS ? engine->call_count : TEST_ENGINE_CALLS, status);
}

static bool write_weights(const struct test_engine *engine, struct engine_writer *writer, struct status *status)
{
    uint64_t region = engine->ranks > 1 ? engine->manifest.weights_bytes / engine->ranks : TEST_ENGINE_WEIGHTS;
    uint8_t *weights = calloc(1, region);
    bool done = weights && engine_writer_weights_begin(writer, engine->ranks * region, engine->ranks, status);
    for (int i = 0; done && i < TEST_ENGINE_TENSORS; i++) {
        const struct engine_tensor *tensor = &engine->tensors[i];
        memcpy(weights + tensor->offset, engine->weights + tensor->offset, tensor->bytes);
    }
    for (uint32_t rank = 0; rank < engine->ranks; rank++)
        done = done && engine_writer_weights_put(writer, rank * region, weights, region, status);
    free(weights);
    return done && engine_writer_weights_end(writer, status);
}

bool test_engine_write_sections(const struct test_engine *engine, struct engine_writer *writer, bool compress,
                                unsigned skip, struct status *status)
{
    char *manifest = NULL;
    size_t size = 0;
#define UNLESS_SKIPPED(type, call) (skip & 1u << (type) || (call))
#define PUT(type, data, bytes)     UNLESS_SKIPPED(type, engine_writer_section(writer, type, data, bytes, compress, status))
    bool done =
        manifest_format(&engine->manifest, &manifest, &size, status) && PUT(SECTION_MANIFEST, manifest, size) &&
        UNLESS_SKIPPED(SECTION_TENSORS, engine_writer_tensors(writer, engine->tensors, TEST_ENGINE_TENSORS, status)) &&
        UNLESS_SKIPPED(SECTION_PLANS, engine_writer_plans(writer, engine->plans, engine->plan_count,
                                                          &engine->manifest.geometry, status)) &&
        UNLESS_SKIPPED(SECTION_NAMES, write_names(writer, engine, status)) &&
        PUT(SECTION_TACTICS, engine->tactics, strlen(engine->tactics)) &&
        PUT(SECTION_TOKENIZER, engine->tokenizer, sizeof engine->tokenizer) &&
        UNLESS_SKIPPED(SECTION_GOLDEN, engine_writer_golden(writer, &engine->golden, status)) &&
        UNLESS_SKIPPED(SECTION_GOLDEN_PLANS, engine_writer_golden_plans(writer, &engine->golden_plans, status)) &&
        UNLESS_SKIPPED(SECTION_GOLDEN_DRAFTS,
                       engine_writer_golden_drafts(writer, &engine->golden, &engine->golden_plans, status)) &&
        PUT(SECTION_KERNELS, engine->kernels_section, engine->kernel_count ? sizeof engine->kernels_section : 0) &&
        PUT(SECTION_LIBRARY_CALLS, engine->calls_section, engine->call_count ? sizeof engine->calls_section : 0) &&
        UNLESS_SKIPPED(SECTION_LIBRARY_PLANS,
                       engine_writer_library_plans(writer, &engine->plans[TEST_ENGINE_LIBRARY_PLAN],
                                                   engine->library_plan_count, status));
    free(manifest);
    return done;
}

bool test_engine_write(const struct test_engine *engine, const char *path, bool compress, struct status *status)
{
    struct engine_writer *writer = engine_writer_begin(path, status);
    if (!writer) return false;
    if (write_weights(engine, writer, status) && test_engine_write_sections(engine, writer, compress, 0, status))
        return engine_writer_commit(writer, status);
    engine_writer_abandon(writer);
    return false;
}

uint8_t *test_engine_copy(const uint8_t *data, size_t size)
{
    void *copy = NULL;
    if (posix_memalign(&copy, PLAN_ALIGNMENT, size ? size : 1) != 0) return NULL;
    if (size) memcpy(copy, data, size);
    return copy;
}

uint8_t *test_engine_read(const char *path, size_t *size)
{
    struct file_map map;
    if (!file_map_open(&map, path, NULL)) return NULL;
    *size = (size_t)map.size;
    uint8_t *bytes = test_engine_copy(map.data, *size);
    file_map_close(&map);
    return bytes;
}

/* A sum that the compiler must form. */
static void touch(const void *data, uint64_t size)
{
    static volatile uint8_t sink;
    uint8_t sum = 0;
    for (uint64_t i = 0; i < size; i++) sum = (uint8_t)(sum + ((const uint8_t *)data)[i]);
    sink = (uint8_t)(sink + sum);
}

static void touch_plan(const struct plan *plan)
{
    touch(plan->launches, plan->header.launch_count * sizeof *plan->launches);
    touch(plan->operands, plan->header.operand_count * sizeof *plan->operands);
    touch(plan->params, plan->header.param_count * sizeof *plan->params);
    touch(plan->tensor_maps, plan->header.tensor_map_count * sizeof *plan->tensor_maps);
    touch(plan->dependencies, plan->header.dependency_count * sizeof *plan->dependencies);
}

void test_engine_touch(const struct engine *engine)
{
    touch(engine->manifest_text, engine->manifest_text_size);
    touch(engine->weights, engine->manifest.weights_bytes);
    touch(engine->weight_hashes, engine->weight_chunks * sizeof *engine->weight_hashes);
    for (size_t i = 0; i < engine->tensor_count; i++) {
        touch(engine->tensors[i].name, strlen(engine->tensors[i].name));
        touch(engine->weights + engine->tensors[i].offset, engine->tensors[i].bytes);
    }
    for (size_t i = 0; i < engine->kernel_count; i++) {
        touch(engine->kernels[i].entry, strlen(engine->kernels[i].entry));
        touch(engine->kernels[i].cubin, engine->kernels[i].cubin_bytes);
    }
    for (size_t i = 0; i < engine->call_count; i++) touch(engine->calls[i].data, engine->calls[i].bytes);
    for (size_t i = 0; i < engine->plan_count; i++) {
        touch_plan(&engine->plans[i]);
        if (engine->library_plans) touch_plan(&engine->library_plans[i]);
    }
    touch(engine->tactics, engine->tactics_size);
    touch(engine->tokenizer, engine->tokenizer_size);
    const struct engine_golden *golden = &engine->golden;
    touch(golden->prompt, golden->prompt_count * sizeof *golden->prompt);
    touch(golden->tokens, golden->token_count * sizeof *golden->tokens);
    touch(golden->logits, (uint64_t)golden->token_count * golden->vocab_size * sizeof *golden->logits);
    const struct golden_cases *cases = &engine->golden_plans;
    touch(cases->sequences, cases->sequence_count * sizeof *cases->sequences);
    touch(cases->rows, cases->row_count * sizeof *cases->rows);
    touch(cases->cases, cases->case_count * sizeof *cases->cases);
    touch(cases->items, cases->item_count * sizeof *cases->items);
    touch(cases->tokens, cases->token_count * sizeof *cases->tokens);
    touch(cases->logits, (uint64_t)cases->row_count * cases->vocab_size * sizeof *cases->logits);
    const uint64_t words = plan_allowed_words(cases->vocab_size) * sizeof(uint32_t);
    if (!cases->drafts.tokens) return;
    touch(golden->drafts.tokens, golden->token_count * sizeof *golden->drafts.tokens);
    touch(golden->drafts.near, golden->token_count * words);
    touch(cases->drafts.tokens, cases->row_count * sizeof *cases->drafts.tokens);
    touch(cases->drafts.near, cases->row_count * words);
}

/* The part of the table that lies inside the data. */
static struct engine_section_entry *table_of(uint8_t *data, size_t size, size_t *count)
{
    struct engine_header header;
    *count = 0;
    if (size < sizeof header) return NULL;
    memcpy(&header, data, sizeof header);
    size_t room = (size - sizeof header) / sizeof(struct engine_section_entry);
    *count = header.section_count < room ? header.section_count : room;
    if (*count > ENGINE_MAX_SECTIONS) *count = ENGINE_MAX_SECTIONS;
    return (void *)(data + sizeof header);
}

struct engine_section_entry *test_engine_entry(uint8_t *data, size_t size, unsigned type)
{
    size_t count;
    struct engine_section_entry *entries = table_of(data, size, &count);
    for (size_t i = 0; i < count; i++)
        if (entries[i].type == type && checked_range(entries[i].offset, entries[i].stored_bytes, size))
            return &entries[i];
    return NULL;
}

static void fix_weights(uint8_t *data, const struct engine_section_entry *weights,
                        const struct engine_section_entry *hashes)
{
    const uint64_t count = hashes->stored_bytes / sizeof(uint64_t);
    uint64_t regions = 1; /* the manifest, which says how many, may be compressed or broken */
    while (regions < PLAN_MAX_RANKS &&
           (weights->stored_bytes % regions != 0 || weight_chunk_count(weights->stored_bytes, regions) != count))
        regions++;
    const uint64_t chunks = weight_chunk_count(weights->stored_bytes, regions);
    for (uint64_t i = 0; i < count && i < chunks; i++) {
        uint64_t offset, bytes;
        weight_chunk_range(weights->stored_bytes, regions, i, &offset, &bytes);
        uint64_t hash = hash64(data + weights->offset + offset, (size_t)bytes);
        memcpy(data + hashes->offset + i * sizeof hash, &hash, sizeof hash);
    }
}

void engine_fix_checksums(uint8_t *data, size_t size)
{
    struct engine_header header;
    size_t count;
    struct engine_section_entry *entries = table_of(data, size, &count);
    if (!entries) return;
    struct engine_section_entry *weights = test_engine_entry(data, size, SECTION_WEIGHTS);
    struct engine_section_entry *hashes = test_engine_entry(data, size, SECTION_WEIGHT_HASHES);
    /* Hashes that a broken table places over the table itself would only damage it further. */
    bool sane = weights && hashes && hashes->offset >= ENGINE_HEADER_SPACE;
    if (sane) fix_weights(data, weights, hashes);
    for (size_t i = 0; i < count; i++)
        if (checked_range(entries[i].offset, entries[i].stored_bytes, size))
            entries[i].hash = hash64(data + entries[i].offset, (size_t)entries[i].stored_bytes);
    if (sane) weights->hash = hash64(data + hashes->offset, (size_t)hashes->stored_bytes);
    memcpy(&header, data, sizeof header);
    header.header_hash = 0;
    memcpy(data, &header, sizeof header);
    if (header.header_bytes > size) return;
    header.header_hash = hash64(data, header.header_bytes);
    memcpy(data, &header, sizeof header);
}

uint8_t *test_engine_with_section(const uint8_t *data, size_t *size, unsigned type, const void *section, size_t bytes)
{
    uint64_t offset;
    struct engine_header header;
    if (!engine_section_place(type, bytes, *size, &offset)) return NULL;
    uint8_t *whole = calloc(1, offset + bytes);
    if (!whole) return NULL;
    memcpy(whole, data, *size);
    memcpy(whole + offset, section, bytes);
    memcpy(&header, whole, sizeof header);
    const struct engine_section_entry entry = {.type = type,
                                               .offset = offset,
                                               .stored_bytes = bytes,
                                               .raw_bytes = bytes};
    memcpy(whole + header.header_bytes, &entry, sizeof entry);
    header.section_count++;
    header.header_bytes += (uint32_t)sizeof entry;
    header.file_bytes = *size = offset + bytes;
    memcpy(whole, &header, sizeof header);
    engine_fix_checksums(whole, *size);
    uint8_t *copy = test_engine_copy(whole, *size);
    free(whole);
    return copy;
}

bool test_engine_same_plan(const struct plan *a, const struct plan *b)
{
    const struct plan_header *header = &a->header;
    return memcmp(header, &b->header, sizeof *header) == 0 &&
           memcmp(a->launches, b->launches, header->launch_count * sizeof *a->launches) == 0 &&
           memcmp(a->operands, b->operands, header->operand_count * sizeof *a->operands) == 0 &&
           memcmp(a->params, b->params, header->param_count * sizeof *a->params) == 0 &&
           memcmp(a->tensor_maps, b->tensor_maps, header->tensor_map_count * sizeof *a->tensor_maps) == 0 &&
           memcmp(a->step, b->step, sizeof a->step) == 0 &&
           memcmp(a->dependencies, b->dependencies, header->dependency_count * sizeof *a->dependencies) == 0;
}
