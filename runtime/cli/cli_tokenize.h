/* SPDX-License-Identifier: Apache-2.0 */
/* engrun --tokenize and --detokenize: lines of JSON in, lines of JSON out. */
#ifndef RUNTIME_CLI_CLI_TOKENIZE_H
#define RUNTIME_CLI_CLI_TOKENIZE_H

#include <stdbool.h>

struct tokenize_options {
    const char *path; /* an engine file or a tokenizer.json */
    bool detokenize;
    bool add_special;  /* --tokenize: as the tokenizer's post-processor adds them */
    bool plain;        /* --tokenize: special tokens are text */
    bool no_jit;       /* patterns are not compiled to machine code */
    bool skip_special; /* --detokenize: special tokens are left out */
};

/* Returns the exit code; messages are printed. */
int tokenize_lines(const struct tokenize_options *options);

#endif
