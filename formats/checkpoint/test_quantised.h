/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised checkpoints with random contents for tests, each with the elements that a reader must find in them. Bits are laid
 * out by formulas of the formats' libraries, one at a time. */
#ifndef FORMATS_CHECKPOINT_TEST_QUANTISED_H
#define FORMATS_CHECKPOINT_TEST_QUANTISED_H

#include "formats/checkpoint/quantised.h"

enum test_container {
    TEST_GPTQ,
    TEST_AWQ_GEMM,
    TEST_AWQ_GEMV,
    TEST_AWQ_FAST,
    TEST_CT_PACKED,
    TEST_CT_INT8,
    TEST_CT_FLOAT8,
    TEST_CT_NVFP4,
    TEST_CT_MXFP4,
    TEST_CT_MXFP8,
    TEST_FP8_INVERSE, /* weight_scale_inv */
    TEST_FP8_SCALE,   /* weight_scale */
    TEST_MODELOPT_FP8,
    TEST_MODELOPT_NVFP4,
    TEST_BNB_4BIT,
    TEST_BNB_INT8,
    TEST_CONTAINERS
};

enum {
    TEST_SYMMETRIC = 1,
    TEST_LESS_ONE = 2,    /* GPTQ, version 1 */
    TEST_GPTQMODEL = 4,   /* GPTQ, version 1: one is subtracted from packed words, and zero points may be 0 */
    TEST_MISLABELLED = 8, /* GPTQ, symmetric: zeros of the other version */
    TEST_TRIVIAL = 16,    /* a tensor of groups that says column / group; AWQ, symmetric: zero points in the middle */
    TEST_ACT_ORDER = 32,  /* a tensor of groups in random order */
    TEST_OLD_WORDS = 64,  /* compressed-tensors: no code crosses the end of a word */
    TEST_TENSOR = 128,    /* one scale of shape [1] */
    TEST_SCALAR = 256,    /* one scale of shape [] */
    TEST_NESTED = 512,    /* bitsandbytes: double quantisation */
};

struct test_quantised {
    enum test_container container;
    uint32_t flags;
    uint64_t rows, columns, group; /* group 0: the whole row */
    uint32_t bits;
    enum dtype scale;
    uint64_t block_rows; /* that share a scale; 0: 1 */
};

enum { TEST_MAX_TENSORS = 64, TEST_MAX_MODULES = 4 };
struct test_checkpoint {
    struct quant_config config;
    struct tensor_view
        tensors[TEST_MAX_TENSORS]; /* names and data are owned; data has the exact size and is not aligned */
    size_t count;
    struct test_module {
        const char *name;
        struct test_quantised what;
        float *expected; /* [rows, columns], owned */
        uint32_t ulps;   /* by which an element may differ */
    } modules[TEST_MAX_MODULES];
    size_t module_count;
    uint64_t random;
};

/* Adds a module with the scales of activations that its container may have, and sets the config (with one more scheme, where
 * bits or groups are others than before). */
void test_quantised_add(struct test_checkpoint *checkpoint, const char *module, const struct test_quantised *what);
/* Adds a tensor of zeros. Returns its data. */
uint8_t *test_quantised_tensor(struct test_checkpoint *checkpoint, const char *name, enum dtype dtype, int rank,
                               uint64_t first, uint64_t second);
/* Gives a tensor memory for its dtype and shape, with the old contents as far as they go. */
void test_quantised_resize(struct tensor_view *tensor);
/* By name; the first module's, by what follows "module.", if there is none of that name. */
struct tensor_view *test_quantised_find(struct test_checkpoint *checkpoint, const char *name);
void test_quantised_sort(struct test_checkpoint *checkpoint);
void test_quantised_free(struct test_checkpoint *checkpoint);

#endif
