/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's manifest: everything a loader must know before it allocates, as JSON in the file. manifest_parse
 * range-checks every number and recomputes the derived ones. */
#ifndef FORMATS_ENGINE_MANIFEST_H
#define FORMATS_ENGINE_MANIFEST_H

#include "formats/engine/plan.h"

enum { MANIFEST_MAX_EOS = 16, MANIFEST_TEXT_BYTES = 128 };
enum {
    ENGINE_WEIGHT_CHUNK_BYTES = 4 << 20, /* one XXH3-64 per chunk of a rank's region; the last chunk may be shorter */
    ENGINE_REGION_ALIGNMENT = 4096, /* several ranks: each region is a multiple of it, so that large matrices begin on a
                                     * page */
};

enum engine_target { TARGET_CPU = 1, TARGET_CUDA = 2 };
enum chat_format { CHAT_NONE, CHAT_CHATML, CHAT_LLAMA3, CHAT_MISTRAL };

/* How far a model of weights with fewer bits is from the one that it was made of, over tokens that that one drew. */
struct manifest_accuracy {
    uint64_t tokens;             /* 0: not measured */
    double kl;                   /* mean Kullback-Leibler divergence of the next token's distribution, in nats */
    uint64_t calibration_tokens; /* 0: the weights are not calibrated */
    double top1;                 /* part of the tokens for which both find the same one the likeliest */
};

struct manifest {
    /* who and what */
    char builder_version[32];
    char model_type[32];
    char model_name[MANIFEST_TEXT_BYTES]; /* folder or file name of the checkpoint, for display */
    enum engine_target target;
    char target_name[MANIFEST_TEXT_BYTES]; /* CPU model or GPU name the tactics were measured on */
    uint64_t target_capability;            /* CUDA: compute capability of its code, 10 * major + minor; CPU: 0 */
    /* facts of the model, for display and tools */
    uint64_t hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, parameters;
    uint64_t
        latent_dim; /* pages of the KV cache have no V: it is the first so many elements of the rows of K; 0: they have V */
    uint64_t kv_layers; /* layers that have a KV cache; 0: all */
    uint64_t
        kv_all_bytes; /* where their blocks in pages differ in size: the bytes of all of them, on each rank; else 0 */
    enum encoding_id weight_encoding; /* of most matrices */
    enum encoding_id kv_dtype;        /* of the KV cache */
    uint64_t eight_bit_rows; /* CUDA: plans of so many rows or more multiply codes of activations; 0: no plan does */
    enum dtype
        eight_bit_inputs; /* with eight_bit_rows: what these are, F8_E4M3 or I8; NONE: none that this version knows */
    /* limits and geometry */
    struct plan_geometry geometry;
    /* exact memory contract, bytes */
    uint64_t weights_bytes /* of all ranks */, arena_bytes /* largest over plans */,
        step_bytes /* largest over plans */, state_bytes, comm_bytes /* for each rank; 0 with one rank */;
    /* tokens and defaults */
    int64_t bos_token, pad_token; /* -1: none */
    int32_t eos_tokens[MANIFEST_MAX_EOS];
    int eos_count;
    enum chat_format chat_format;
    double temperature, top_p, repetition_penalty; /* defaults from generation_config; temperature 0: greedy */
    uint64_t top_k;
    bool has_tokenizer;
    struct manifest_accuracy accuracy; /* of weights that the builder encoded with fewer bits */
};

/* "fp8" or "int8", for display. Requires: eight_bit_rows is not 0. */
const char *manifest_eight_bit_label(const struct manifest *manifest);

/* Canonical JSON text (sorted keys, stable numbers), NUL-terminated, to be freed by the caller. */
bool manifest_format(const struct manifest *manifest, char **text, size_t *size, struct status *status);
bool manifest_parse(struct manifest *manifest, const char *text, size_t size, struct status *status);

/* Bytes of each rank's region of the weight section; the regions are consecutive. */
static inline uint64_t manifest_rank_weights(const struct manifest *manifest)
{
    return manifest->weights_bytes / plan_ranks(&manifest->geometry);
}

/* The chunks of `regions` equal, consecutive regions of weights. */
static inline uint64_t weight_chunk_count(uint64_t weights_bytes, uint64_t regions)
{
    const uint64_t region = weights_bytes / regions;
    return regions * (region / ENGINE_WEIGHT_CHUNK_BYTES + (region % ENGINE_WEIGHT_CHUNK_BYTES != 0));
}
/* Range of the chunk in the weights. */
static inline void weight_chunk_range(uint64_t weights_bytes, uint64_t regions, uint64_t chunk, uint64_t *offset,
                                      uint64_t *bytes)
{
    const uint64_t region = weights_bytes / regions, chunks = weight_chunk_count(weights_bytes, regions) / regions,
                   begin = chunk % chunks * ENGINE_WEIGHT_CHUNK_BYTES, rest = region - begin;
    *offset = chunk / chunks * region + begin;
    *bytes = rest < ENGINE_WEIGHT_CHUNK_BYTES ? rest : ENGINE_WEIGHT_CHUNK_BYTES;
}

/* Sizes of the spaces of each rank; that of KV is one page. */
struct plan_space_sizes manifest_space_sizes(const struct manifest *manifest);

/* KV heads of each of `ranks` ranks: an equal part, or 1 if ranks share a head; 0 of none. */
static inline uint64_t rank_kv_heads(uint64_t kv_heads, uint64_t ranks)
{
    return kv_heads > ranks ? kv_heads / ranks : kv_heads > 0;
}
static inline uint64_t manifest_rank_kv_heads(const struct manifest *manifest)
{
    return rank_kv_heads(manifest->kv_heads, plan_ranks(&manifest->geometry));
}

/* Bytes of one layer's keys and values in a page of the KV cache: two matrices of a row for each KV head and token, one if values
 * are a part of keys (latent_dim above 0). False on overflow or for an unknown encoding. */
bool kv_block_bytes(enum encoding_id encoding, uint64_t kv_heads, uint64_t page_tokens, uint64_t head_dim,
                    uint64_t latent_dim, uint64_t *bytes);

const char *chat_format_name(enum chat_format format);
const char *engine_target_name(enum engine_target target);

#endif
