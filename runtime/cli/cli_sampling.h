/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling options of engrun: values of flags that are no plain numbers, and log-probabilities as JSON lines. */
#ifndef RUNTIME_CLI_CLI_SAMPLING_H
#define RUNTIME_CLI_CLI_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"
#include "runtime/eng.h"

struct cli_logit_biases {
    struct eng_logit_bias entries[ENG_MAX_LOGIT_BIASES];
    uint32_t count;
};

/* struct cli_flag.read: a double, and struct cli_logit_biases from "ID:BIAS,ID:BIAS". */
bool cli_read_presence_penalty(const char *text, void *to);
bool cli_read_frequency_penalty(const char *text, void *to);
bool cli_read_logit_bias(const char *text, void *to);

/* Writes a line to stdout for the token that the last step drew: its log-probability and those of the `count` likeliest tokens. 0 has the
 * number null. */
bool cli_write_logprobs(const struct eng_logprob *drawn, const struct eng_logprob *top, size_t count,
                        struct status *status);

#endif
