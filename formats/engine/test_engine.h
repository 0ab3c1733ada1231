/* SPDX-License-Identifier: Apache-2.0 */
/* A small engine for tests and fuzz targets: consistent in every field, every op in its plans, under 40 KB as a file;
 * and functions that make the checksums of a changed file consistent again. */
#ifndef FORMATS_ENGINE_TEST_ENGINE_H
#define FORMATS_ENGINE_TEST_ENGINE_H

#include "formats/engine/engine_layout.h"

enum {
    TEST_ENGINE_TENSORS = 4,
    TEST_ENGINE_PLANS = 3,     /* decode of 1 row with every op, decode of 2 rows, prefill of 4 rows */
    TEST_ENGINE_LAUNCHES = 13, /* most in a plan: those of the first one on several ranks */
    TEST_ENGINE_VOCAB = 16,
    TEST_ENGINE_WEIGHTS = 2304,
    TEST_ENGINE_RANKS = 2,      /* ranks of test_engine_make_ranks, which share the vocabulary equally */
    TEST_ENGINE_REGION = 4096,  /* bytes of each rank's weights */
    TEST_ENGINE_EXCHANGE = 256, /* bytes of a buffer in the COMM space; there are three, after 256 bytes */
    TEST_ENGINE_KERNELS = 3,    /* two of them under one name; they differ in the number of operands */
    TEST_ENGINE_KERNELS_BYTES = 640,
    TEST_ENGINE_CALLS = 2, /* cuDNN for attention, cuBLASLt for the matmul */
    TEST_ENGINE_CALLS_BYTES = 320,
    TEST_ENGINE_LIBRARY_PLAN = TEST_ENGINE_PLANS, /* replaces the first plan */
};

struct test_plan {
    struct plan_launch launches[TEST_ENGINE_LAUNCHES];
    struct plan_operand operands[TEST_ENGINE_LAUNCHES * PLAN_MAX_OPERANDS];
    struct plan_param params[TEST_ENGINE_LAUNCHES * PLAN_MAX_PARAMS];
    struct plan_tensor_map tensor_maps[2];
    uint32_t dependencies[TEST_ENGINE_LAUNCHES];
};

enum {
    TEST_ENGINE_GOLDEN_ROWS = 3,
    TEST_ENGINE_GOLDEN_CASES = 4,
    TEST_ENGINE_GOLDEN_ITEMS = 5,
    TEST_ENGINE_GOLDEN_TOKENS = 9,
    TEST_ENGINE_GOLDEN_DRAFTS = 2 + TEST_ENGINE_GOLDEN_ROWS, /* of the prompt's tokens, then of the rows */
};

/* Owns no heap memory, but points into itself: must not be copied. */
struct test_engine {
    struct manifest manifest;
    /* test_engine_make_device: the kernels, and their section as the specification has it; none on the CPU */
    struct engine_kernel kernels[TEST_ENGINE_KERNELS];
    size_t kernel_count;
    uint8_t kernels_section[TEST_ENGINE_KERNELS_BYTES];
    /* test_engine_make_library: the library calls, and their section likewise */
    struct engine_call calls[TEST_ENGINE_CALLS];
    size_t call_count;
    uint8_t calls_section[TEST_ENGINE_CALLS_BYTES];
    struct engine_tensor tensors[TEST_ENGINE_TENSORS];
    struct plan plans[2 * TEST_ENGINE_PLANS]; /* from TEST_ENGINE_LIBRARY_PLAN on the library plans */
    size_t plan_count, library_plan_count;
    struct test_plan storage[TEST_ENGINE_PLANS + 1];
    uint8_t weights[TEST_ENGINE_WEIGHTS];
    char tactics[1024];
    uint8_t tokenizer[96];
    uint32_t ranks; /* regions of the weight section, all alike */
    int32_t prompt[3], tokens[2];
    float logits[2 * TEST_ENGINE_VOCAB];
    struct engine_golden golden;
    /* Cases of all plans, of the plan of two rows last. */
    int32_t golden_case_tokens[TEST_ENGINE_GOLDEN_TOKENS];
    float golden_logits[TEST_ENGINE_GOLDEN_ROWS * TEST_ENGINE_VOCAB];
    struct golden_cases golden_plans;
    /* test_engine_make_drafts; a mask is of one word */
    int32_t drafted[TEST_ENGINE_GOLDEN_DRAFTS];
    uint32_t near[TEST_ENGINE_GOLDEN_DRAFTS];
};
bool test_engine_same_cases(const struct golden_cases *left, const struct golden_cases *right);

bool test_engine_make(struct test_engine *engine, struct status *status);
/* The same for several ranks: an all_reduce after the embedding and (first plan) after the layer, an all_gather after
 * the matmul. Each uses the next buffer: the first plan uses three, the others two. */
bool test_engine_make_ranks(struct test_engine *engine, struct status *status);
/* The same for a device. Every launch has a kernel and dimensions; a matmul reads its weights, and attention the KV
 * pool, through tensor maps (test_engine_map). The cubins contain no machine code. */
bool test_engine_make_device(struct test_engine *engine, struct status *status);
/* The same with a library plan: the first plan with attention and the matmul as library calls, and an additional arena
 * block, the matmul's workspace. */
bool test_engine_make_library(struct test_engine *engine, struct status *status);

/* Plans have the step fields of drafts, and golden outputs their drafts. */
bool test_engine_make_drafts(struct test_engine *engine, struct status *status);

/* The first launch of that op in a plan, NULL if it has none. */
struct plan_launch *test_engine_launch(struct test_engine *engine, size_t plan, enum plan_op op);
/* The tensor map of an operand of a plan's launch. */
struct plan_tensor_map *test_engine_map(struct test_engine *engine, size_t plan, const struct plan_launch *launch,
                                        uint32_t operand);

/* Offset of the plan headers in section plans, which lists the state fields first; library plans: after the header. */
enum { TEST_PLANS_HEADERS = sizeof(struct engine_plans_header) + STATE_ALWAYS_COUNT * sizeof(struct plan_field_entry) };

/* All sections but the weights and those of `skip`, which has a bit for each type. An empty section is left out. */
bool test_engine_write_sections(const struct test_engine *engine, struct engine_writer *writer, bool compress,
                                unsigned skip, struct status *status);
bool test_engine_write(const struct test_engine *engine, const char *path, bool compress, struct status *status);

/* The bytes of a written file in memory that engine_open_memory accepts; free() them. NULL if it cannot be read. */
uint8_t *test_engine_read(const char *path, size_t *size);

/* A copy with the alignment that engine_open_memory requires, of exactly this size; free() it. */
uint8_t *test_engine_copy(const uint8_t *data, size_t size);

/* Reads everything that an open engine returns, so that a sanitizer detects bad pointers. */
void test_engine_touch(const struct engine *engine);

/* Recomputes every checksum of a file that may be changed or broken in any way: chunk hashes, sections, weights,
 * header. Skips parts that are not where the table says, or do not fit. */
void engine_fix_checksums(uint8_t *data, size_t size);

/* A copy of a file with an additional last section and right checksums; free() it. */
uint8_t *test_engine_with_section(const uint8_t *data, size_t *size, unsigned type, const void *section, size_t bytes);

bool test_engine_same_plan(const struct plan *a, const struct plan *b);

/* First table entry of that type inside the data, NULL if there is none. */
struct engine_section_entry *test_engine_entry(uint8_t *data, size_t size, unsigned type);

#endif
