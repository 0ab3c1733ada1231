/* SPDX-License-Identifier: Apache-2.0 */
/* What a build prints about its result: memory contract, plans, estimate. */
#ifndef BUILDER_REPORT_H
#define BUILDER_REPORT_H

#include <stdio.h>

#include "tuner/cpu/tune_plans.h"
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
    uint32_t tokenizer_tokens; /* 0: the engine has no tokenizer, */
    const char *no_tokenizer;  /* and why */
    const char *output;        /* NULL: nothing was written */
    uint64_t file_bytes;       /* 0: nothing was written */
    double seconds;            /* until the file had all its bytes on the disk */
    bool is_on_record;         /* the target is a GPU of which this machine knows the facts alone */
    uint64_t available_bytes;  /* memory of each GPU, or what this machine has left; looked at in a dry run */
};

/* Sum over launches of the measured time where there is one, else of the roofline; microseconds per step. */
double estimate_plan_us(const struct plan *plan, const struct machine *machine, const struct tactics *tactics);

/* STATUS_MACHINE, with what is needed and available, where an engine could not serve one full sequence. */
bool report_check_fit(const struct build_report *report, struct status *status);

void report_print(const struct build_report *report, FILE *out);
/* The same as JSON text, to be freed; NULL: out of memory. */
char *report_json(const struct build_report *report, struct status *status);

#endif
