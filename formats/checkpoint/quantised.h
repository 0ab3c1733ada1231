/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of quantised checkpoints. The tensors of a module (`P.qweight`, `P.qzeros`, `P.scales`, ...) become one matrix
 * P.weight[rows, columns] whose elements are floats, so that all later code knows weights of one kind. Codes stay in the
 * mapping and are decoded where they are read.
 *
 * Containers: GPTQ (2, 3, 4, 8 bits; versions 1 and 2; act-order), AWQ (gemm, gemv, gemv_fast), compressed-tensors
 * (pack-quantized, int-quantized, float-quantized, nvfp4, mxfp4, mxfp8), FP8 (blocks of 128 x 128, per tensor, per row, e8m0
 * scales), ModelOpt (FP8, NVFP4, both), bitsandbytes (nf4, fp4, int8). Those of GGUF files: gguf_model.h. Names and shapes of the tensors decide which one a module
 * has; config.json must agree. */
#ifndef FORMATS_CHECKPOINT_QUANTISED_H
#define FORMATS_CHECKPOINT_QUANTISED_H

#include "formats/checkpoint/quant_config.h"
#include "formats/checkpoint/safetensors.h"

/* Where the code of an element is. The plane is a matrix [r, c]; elements are r = row, c = column of the weight, or the other
 * way round where the plane is transposed. */
enum quantised_order {
    ORDER_ROWS,      /* row r is a bit stream: element c at bit c * bits, lowest first */
    ORDER_ROWS_HIGH, /* 4 bits: the first of two elements in the high bits of a byte; rows follow each other without a gap */
    ORDER_WORDS,        /* row r is words of 32 bits with as many whole elements as they hold */
    ORDER_COLUMNS,      /* column c is a bit stream through words [.., c], with `pitch` words a row */
    ORDER_COLUMN_WORDS, /* likewise, but words have as many whole elements as they hold */
    ORDER_AWQ,          /* row r is words of eight 4-bit elements in the order 0, 2, 4, 6, 1, 3, 5, 7 */
    ORDER_AWQ_FAST,     /* four rows and 64 columns by turns: see quantised_read.c */
    ORDER_BLOCKS,       /* codes alone: a row is blocks of codes and scales, see `block` below */
};
struct quantised_plane {
    const uint8_t *data; /* NULL: there is no such plane */
    enum quantised_order order;
    bool transposed;
    uint32_t bits;
    uint64_t pitch;    /* bytes of a row; ORDER_COLUMNS, ORDER_COLUMN_WORDS: words of a row */
    uint32_t word_add; /* to every 32-bit word before a code is taken from it: undoes zeros that were stored less one */
};

enum quantised_code { QUANTISED_UNSIGNED, QUANTISED_INT8, QUANTISED_E4M3, QUANTISED_E2M1, QUANTISED_TABLE };
enum quantised_scale {
    QUANTISED_F32,
    QUANTISED_F16,
    QUANTISED_BF16,
    QUANTISED_E4M3_SCALE,
    QUANTISED_E8M0,
    QUANTISED_NESTED, /* from here on with two levels */
    /* Blocks of GGUF, with float16 d, or d and m, at `factors`: d * scale, and m * minimum less. Scales are from `scales` on. */
    QUANTISED_FOUR_BITS,       /* Q2_K: 16 bytes, each a scale in the low and a minimum in the high half */
    QUANTISED_SIX_BITS,        /* Q4_K, Q5_K: 8 scales and 8 minima of 6 bits */
    QUANTISED_SIGNED_SIX_BITS, /* Q3_K: 16 scales of 6 bits, less 32 */
    QUANTISED_DIVIDED_SIX_BITS, /* IQ4_XS: 8 scales of 6 bits, less 32: the high bits of all in a word, then the low halves */
    QUANTISED_INT8_SCALE        /* Q6_K: 16 scales of int8 */
};

struct quantised {
    const char *container; /* for messages: "GPTQ" */
    uint64_t rows, columns;
    enum quantised_code code;
    struct quantised_plane codes, zeros;
    struct { /* ORDER_BLOCKS: a block of GGUF */
        uint32_t columns, bytes;
        uint32_t codes; /* offset of the codes' low bits: `half` elements in the lowest bits of as many bytes, */
        uint32_t low;   /* then as many in the next ones; `low`: bits of each, 2, 4 or 8 */
        uint32_t half;
        uint32_t high;            /* offset of the other bits: 32 elements in the lowest bits of 32 bytes, .. */
        bool high_stream;         /* or those of all elements, one bit each, one after the other */
        uint32_t factors, scales; /* offsets */
    } block;
    uint64_t code_bytes;  /* of the tensor that has the codes */
    uint32_t zero;        /* of QUANTISED_UNSIGNED where there is no plane of zeros */
    uint32_t zero_add;    /* to a code of the plane of zeros, modulo 2^bits */
    const uint8_t *table; /* QUANTISED_TABLE: 16 float32 */
    struct {
        enum quantised_scale type;
        const uint8_t *data;
        bool transposed;                    /* [group of columns, row] */
        bool flat;                          /* one per block_columns elements of the weight, row after row */
        uint64_t pitch;                     /* elements of a row */
        uint64_t step;                      /* bytes from one to the next; 0: their size */
        uint64_t block_rows, block_columns; /* elements of the weight that share a scale */
        /* QUANTISED_NESTED: the scale is nested_table[byte] * nested[index / nested_block] + offset. */
        const uint8_t *nested, *nested_table;
        uint64_t nested_block;
        float offset;
    } scale;
    const uint8_t *added;  /* where the scales are, in float16: an element is code * scale + added; NULL: none */
    const uint8_t *groups; /* int32[columns]: the group of each column; NULL: column / block_columns */
    float global;          /* multiplies every scale */
};

/* A list of tensors in which those of quantised modules are replaced. */
struct quantised_tensors {
    struct tensor_view *tensors; /* owned, sorted by name; quantised ones have dtype F32 and no data */
    size_t count;
    struct quantised *matrices; /* owned; what their `quantised` points to */
    size_t matrix_count;
    char *names; /* owned storage of the names that are new */
    struct tensor_view
        *cache_scales; /* owned: those of the list that are scales of a KV cache, which `tensors` has not */
    size_t cache_scale_count;
};

/* `tensors`: [count], sorted by name; borrowed, and what they point to must outlive the result. Checks of every module: all
 * planes are there with shapes and dtypes that fit together and agree with the configuration; scales are finite; groups are
 * complete; zeros do not contradict a symmetric scheme. A tensor that a module does not need for its weights (scales of
 * activations or of a KV cache) is left out of the list; one that belongs to no module stays, so that it is refused where nothing reads
 * it. NaN codes are found where elements are read. */
bool quantised_open(struct quantised_tensors *result, const struct quant_config *config,
                    const struct tensor_view *tensors, size_t count, struct status *status);
void quantised_close(struct quantised_tensors *tensors);

/* Static scales of a layer's KV cache (quantised_cache.c): one for all KV heads or one for each. An element of the cache is its
 * code times the scale. */
struct quantised_cache_scales {
    const struct tensor_view *k, *v; /* NULL, both: the layer has none */
};
/* Those of layers [0, layers), scales[layers]. By all names that are in use: P.k_scale and P.v_scale, P.k_proj.k_scale and P.v_proj.v_scale, P.kv_scale for both,
 * P.k_proj.output_scale and P.v_proj.output_scale. Fails if there is one of k or v alone, or two of either. Layers
 * that are not in used[layers] (NULL: all are) have none, whatever the checkpoint has; names that begin with `ignored` (NULL: none do) do not count. */
bool quantised_find_cache_scales(const struct quantised_tensors *tensors, uint64_t layers, const bool *used,
                                 const char *ignored, struct quantised_cache_scales *scales, struct status *status);
/* The numbers of such a tensor: scales[kv_heads * step], every `step`-th. Fails if shape or dtype are others, or if a number is not
 * from `least` to `most`. */
bool quantised_read_cache_scales(const struct tensor_view *tensor, uint64_t kv_heads, uint64_t step, float least,
                                 float most, float *scales, struct status *status);
/* Whether a tensor of a quantised checkpoint is such a scale, by its name. */
bool quantised_is_cache_scale(const char *name);

/* Elements [first_column, first_column + count) of a row as floats: (code - zero) * scale * global, each multiplication rounded
 * once. */
void quantised_read(const struct quantised *matrix, uint64_t row, uint64_t first_column, uint64_t count, float *values);
/* The same of columns[count], fastest where those of a group are together. Requires: the matrix has `groups`. */
void quantised_read_columns(const struct quantised *matrix, uint64_t row, const uint32_t *columns, uint64_t count,
                            float *values);
/* What the elements around (row, column) share: an element is (code - zero) * scale * global + added. `zero`: of unsigned codes. */
struct quantised_group {
    float scale;
    int32_t zero;
    float added;
};
struct quantised_group quantised_group_at(const struct quantised *matrix, uint64_t row, uint64_t column);
/* Scale number `index`, without `global`; the zero point of a group of a row. */
float quantised_scale(const struct quantised *matrix, uint64_t index);
uint32_t quantised_zero(const struct quantised *matrix, uint64_t row, uint64_t group);

#endif
