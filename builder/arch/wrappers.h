/* SPDX-License-Identifier: Apache-2.0 */
/* Models that read images, video or sound beside text: config.json has the configuration of the text part in itself, under
 * text_config. An engine is of that part, which one of the families describes. */
#ifndef BUILDER_ARCH_WRAPPERS_H
#define BUILDER_ARCH_WRAPPERS_H

#include "formats/base/json.h"
#include "formats/checkpoint/model_config.h"

/* If model_type is that of a wrapper: checks the fields around the text part, gives the text part's the defaults that its class
 * has in transformers 5.17, and goes on with them: `reader` then reads them, and config->model_type is that of a family.
 * Otherwise nothing changes. */
bool wrapper_enter(struct model_config *config, struct json_reader *reader, struct status *status);

/* Checks the sections of positions (mrope_section) in the rotary embedding of a text part, and takes them out: text has no use for
 * them. */
bool wrapper_drop_sections(json_t *text, const char *path, struct status *status);

/* mllama.c: takes the layers in which text attends to an image out of num_hidden_layers; their tensors are left out. */
bool wrapper_drop_cross_attention(struct model_config *config, struct json_reader *reader, struct status *status);

/* The model types of wrappers and a line about each, for engbuild --list-models; NULL after the last. `about`: [size]. */
const char *wrapper_model_type(size_t index);
void wrapper_about(size_t index, char *about, size_t size);

#endif
