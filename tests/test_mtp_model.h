/* SPDX-License-Identifier: Apache-2.0 */
/* A small model with a layer that predicts the token after the next one (of the family glm4_moe, or ernie4_5_moe), as a checkpoint, as an engine,
 * and the layer in plain code, written from its definition (DeepSeek-V3, arXiv:2412.19437, section 2.2). */
#ifndef TESTS_TEST_MTP_MODEL_H
#define TESTS_TEST_MTP_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "builder/build.h"

enum { MTP_HIDDEN = 32, MTP_VOCAB = 53, MTP_CONTEXT = 192, MTP_LARGEST_CHUNK = 32 };

struct mtp_settings {
    bool
        is_ernie; /* its layer has no experts, turns pairs of neighbours, and ends with the model's final norm; without has_own */
    bool cycles;  /* token t + 1 follows token t in the text; else weights are random */
    bool knows;   /* the layer knows that; else its weights are random */
    bool has_own; /* the layer has an embedding and an LM head of its own; else those are copies of the model's */
    /* For the model's files: the tensor without which, or with whose other shape, the checkpoint is written; NULL: all are right. */
    const char *left_out, *misshapen;
    uint32_t layers; /* that predict further tokens, as config.json says; only one is there */
};

/* Writes config.json and model.safetensors. Ends the test on failure. */
void mtp_model_write(const struct mtp_settings *settings, const char *folder);

/* Options for an engine of the checkpoint that drafts and gives hidden states; its file is `output`. */
void mtp_options(struct build_options *options, const char *folder, const char *output);

/* The layer after the rows of a text so far. */
struct mtp_layer {
    uint32_t count;
    double keys[MTP_CONTEXT][MTP_HIDDEN], values[MTP_CONTEXT][MTP_HIDDEN];
};
/* The next row, of the model last written: hidden[MTP_HIDDEN] after the final norm, and the token after the row's. Sets
 * logits[MTP_VOCAB] of the token after that one. */
void mtp_predict(struct mtp_layer *layer, const float *hidden, int32_t following, double *logits);

#endif
