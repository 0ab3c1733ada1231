/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a build. */
#ifndef BUILDER_BUILD_OPTIONS_H
#define BUILDER_BUILD_OPTIONS_H

#include <stdio.h>

#include "builder/weights/weight_types.h"
#include "formats/engine/manifest.h"
#include "tuner/records.h"

enum { BUILD_MAX_PLANS = 32 }; /* of a kind */

struct build_options {
    const char *model;                        /* .safetensors, .index.json or folder */
    const char *output;                       /* engine file */
    uint64_t max_batch;                       /* 0: largest of batch_sizes */
    uint64_t max_context;                     /* 0: the model's, at most BUILD_DEFAULT_CONTEXT */
    uint32_t batch_sizes[BUILD_MAX_PLANS];    /* rising; count 0: powers of two up to max_batch */
    uint32_t prefill_chunks[BUILD_MAX_PLANS]; /* rising; count 0: defaults */
    uint32_t mixed_steps[BUILD_MAX_PLANS];    /* rows of mixed plans, rising; count 0: defaults; 0: none */
    uint32_t verify_rows[BUILD_MAX_PLANS];    /* rows of verification plans, likewise */
    int batch_size_count, prefill_chunk_count, mixed_step_count, verify_row_count;
    enum engine_target target;
    uint32_t gpus;             /* ranks that share the model; the CPU target has threads for them */
    int device;                /* CUDA: ordinal of the GPU to build on */
    bool no_peer_access;       /* CUDA, gpus > 1: they exchange data through host memory even if a direct link exists */
    struct weight_types types; /* CUDA: matrices without codes are all BF16 or, where none has codes, all F16 */
    const char *calibrate;     /* file of text, or "self": text that the model draws; NULL: no calibration */
    bool no_accuracy;          /* do not measure what weights of fewer bits cost */
    /* To what matmuls round activations. CPU: BF16, INT8_G32, or F32 (ENCODING_NONE: likewise). CUDA: the type
     * of matrices without codes; E4M3_CHANNEL, INT8_G32: codes with a scale for each row in plans of many rows; ENCODING_NONE: what
     * the checkpoint was made for. */
    enum encoding_id compute;
    enum encoding_id
        kv_dtype; /* ENCODING_NONE: E4M3_CHANNEL if the checkpoint says so, else F32 on the CPU, that of the matrices
                                * on a GPU */
    enum tune_level tune;
    const char *tuning_cache; /* NULL: memory only */
    bool lean;                /* CUDA: no tactics of libraries */
    bool mtp;                 /* drafts by the layer that predicts further tokens */
    bool hidden;              /* the engine gives hidden states; else only where the checkpoint is one for embeddings */
    bool dry_run;    /* plan and estimate, write nothing; STATUS_MACHINE, after the report, where it does not fit */
    const char *gpu; /* CUDA, dry_run or list_candidates: plan for the GPU of this name (gpu_record.h) instead of
                                 one of this machine; NULL: likewise, for the first on record, if this machine has none */
    bool list_candidates;   /* print the tuner's space of every problem, write nothing */
    const char *dump_after; /* pass name, or NULL */
    int threads;            /* for tuning and golden outputs; 0: all */
    /* The first word of a command of this program that compiles kernels beside the build (compile_workers.h); NULL: it has none. */
    const char *compile_worker;
    FILE *progress; /* NULL: silent */
    FILE *warnings; /* warnings; NULL: silent */
    FILE *out;      /* dumps, dry-run report, summary */
    bool json;      /* report as JSON */
};
enum { BUILD_DEFAULT_CONTEXT = 32768, BUILD_DEFAULT_BATCH = 8, BUILD_PAGE_TOKENS = 16 };
enum { BUILD_DEFAULT_BATCH_CUDA = 32, BUILD_PAGE_TOKENS_CUDA = 64 };

void build_options_init(struct build_options *options);

#endif
