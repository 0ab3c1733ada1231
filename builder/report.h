/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of a build: memory contract, plans, estimate. */
#ifndef BUILDER_REPORT_H
#define BUILDER_REPORT_H

#include <stdio.h>

#include "builder/weights/channel_scales.h"
#include "builder/weights/decoded.h"
#include "tuner/cpu/tune_plans.h"
#include "formats/checkpoint/wrapper.h"
#include "formats/engine/manifest.h"

struct build_report {
    const struct manifest *manifest;
    const struct plan *plans;
    size_t plan_count;
    const struct plan
        *library_plans;            /* [plan_count]: instead of plans where libraries are there; launch_count 0: none */
    const double *plan_us;         /* measured, [plan_count]; NULL, or 0: not measured */
    const struct machine *machine; /* ceilings 0: no estimate */
    const struct tactics *tactics;
    const struct channel_scales_summary *channels; /* matrices 0: none */
    uint32_t tokenizer_tokens;                     /* 0: the engine has no tokenizer, */
    const char *no_tokenizer;                      /* and why */
    const struct chat_templates *chat_templates;   /* NULL: none */
    bool compute_given;                            /* --compute says what products are of, not the checkpoint */
    bool plain_experts;                            /* with eight_bit_rows: matrices of experts, */
    bool plain_blocks;                             /* or blocks of latent attention, are multiplied in bf16 */
    bool kv_dtype_given;                           /* --kv-dtype says what the KV cache is, not the checkpoint */
    uint32_t scaled_layers;                        /* layers whose KV cache has the checkpoint's scales */
    const char *quantised;                         /* quant_method of the checkpoint, NULL: none */
    struct decoded_matrices decoded[DECODED_MOST_REASONS]; /* matrices of the engine whose codes are not kept */
    const struct model_tower *towers; /* [WRAPPER_MAX_TOWERS]: left out, up to the first without a name; NULL: none */
    const char *output;               /* NULL: nothing was written */
    uint64_t file_bytes;              /* 0: nothing was written */
    double seconds;                   /* time until the file was synced to disk */
    bool is_on_record;                /* the target GPU is not on this machine: only its facts are known */
    uint64_t available_bytes;         /* memory of each GPU, or available memory of this machine; used in a dry run */
};

/* Sum over launches of the measured time, or of the roofline if there is none; microseconds per step. */
double estimate_plan_us(const struct plan *plan, const struct machine *machine, const struct tactics *tactics);

/* STATUS_MACHINE, with needed and available bytes, if an engine could not serve one full sequence. */
bool report_check_fit(const struct build_report *report, struct status *status);

void report_print(const struct build_report *report, FILE *out);
/* The same as JSON text, to be freed; NULL: out of memory. */
char *report_json(const struct build_report *report, struct status *status);

#endif
