/* SPDX-License-Identifier: Apache-2.0 */
/* What keys and tensors of a GGUF file mean for a model: metadata as the config.json that the same model has on the Hugging
 * Face hub, so that one reader of each family knows its fields, and tensors by the names of that checkpoint. */
#ifndef FORMATS_CHECKPOINT_GGUF_MODEL_H
#define FORMATS_CHECKPOINT_GGUF_MODEL_H

#include "formats/checkpoint/gguf.h"
#include "formats/checkpoint/model_config.h"
#include "formats/checkpoint/quantised.h"

/* Reads the configuration. Every key of the architecture is understood, known to have no effect, or refused by name. A general key
 * describes the file, not the computation; of these general.architecture, general.type and split.count are checked. */
bool gguf_read_config(struct gguf *file, struct model_config *config, model_config_reader *read_family,
                      struct status *status);

/* The tensors with the names of Hugging Face checkpoints of model_type, as gguf_read_config has it; a tensor of all experts becomes one for each. Blocks of codes stay in the mapping and are decoded where they are
 * read; a scale that is not finite is found there. rope_freqs.weight, which the configuration has, is left out. The caller calls
 * quantised_close, also after a failure. */
bool gguf_read_tensors(const struct gguf *file, const char *model_type, struct quantised_tensors *result,
                       struct status *status);

#endif
