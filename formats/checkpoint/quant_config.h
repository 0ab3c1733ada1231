/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config of config.json: the container in which the matrices of a quantised checkpoint lie. The tensors of a
 * module decide what it has (quantised.h); this adds what they leave open, and what both say must agree. */
#ifndef FORMATS_CHECKPOINT_QUANT_CONFIG_H
#define FORMATS_CHECKPOINT_QUANT_CONFIG_H

#include <jansson.h>
#include <stdint.h>

#include "formats/base/status.h"

enum quant_method {
    QUANT_NONE,
    QUANT_GPTQ,
    QUANT_AWQ,
    QUANT_COMPRESSED_TENSORS,
    QUANT_FP8,
    QUANT_MXFP4,
    QUANT_MODELOPT,
    QUANT_BITSANDBYTES,
    QUANT_GGUF, /* of a GGUF file, which has no config.json */
};

enum quant_order { QUANT_GEMM, QUANT_GEMV, QUANT_GEMV_FAST }; /* of the words of AWQ */

/* What a module of the checkpoint may be. */
struct quant_scheme {
    bool is_float;       /* codes are floats of `bits` bits, not integers */
    uint32_t bits;       /* 2 to 8 */
    uint64_t group_size; /* columns that share a scale; 0: all, or the tensors alone say it */
    bool symmetric;      /* no zero points, or all the same */
    bool act_order;      /* groups are of any columns, so that a tensor must list them */
};

/* What the configuration says about the codes of a KV cache, to which the checkpoint's scales of one belong. */
enum quant_cache { QUANT_CACHE_UNSAID, QUANT_CACHE_E4M3, QUANT_CACHE_OTHER };

enum { QUANT_MAX_SCHEMES = 16 };
struct quant_config {
    enum quant_method method;
    char name[32]; /* quant_method as config.json has it, for messages */
    struct quant_scheme schemes[QUANT_MAX_SCHEMES];
    int scheme_count;       /* at least 1 with a method; the first is the default */
    bool zeros_less_one;    /* GPTQ, version 1: a zero point is stored less one */
    bool by_gptqmodel;      /* GPTQ: meta.quantizer begins with "gptqmodel" */
    enum quant_order order; /* AWQ */
    /* sym does not say which modules are symmetric: some differ from the default, or, of AWQ, it has sym, which says true
     * beside zero points of any kind, and no zero_point. */
    bool zeros_decide;
    uint64_t block_rows, block_columns; /* FP8: elements that share a scale; 0: not given */
    enum quant_cache cache;
    /* Activations had these codes when the model was trained or calibrated: e4m3 where weights are; int8, without zeros, where weights
     * are, with whole rows or more to a scale. */
    bool fp8_inputs, int8_inputs;
};

/* Reads a quantization_config: every field is understood, known to have no effect on weights, or refused by name, as are
 * methods and variants that are not read. `quantization` NULL or JSON null: QUANT_NONE. `path` is for messages:
 * "FILE: quantization_config". */
bool quant_config_parse(struct quant_config *config, json_t *quantization, const char *path, struct status *status);

#endif
