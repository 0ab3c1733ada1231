/* SPDX-License-Identifier: Apache-2.0 */
/* The chat templates of a checkpoint, as transformers finds them: chat_template.jinja and additional_chat_templates/NAME.jinja,
 * which replace those in tokenizer_config.json; its special-token strings, which templates read as variables. */
#ifndef FORMATS_CHECKPOINT_CHECKPOINT_TEMPLATES_H
#define FORMATS_CHECKPOINT_CHECKPOINT_TEMPLATES_H

#include <jansson.h>

#include "formats/checkpoint/gguf.h"

/* Each makes the document of section *chat templates* (formats/engine/engine_file.md) without token ids; NULL with STATUS_OK: the
 * checkpoint has no template. A file that cannot be read or has the wrong form becomes the fault of the default template, since
 * an engine is usable without one. Texts of templates are not parsed. Fails only without memory. Owned (json_decref). */
json_t *checkpoint_read_templates(const char *folder, struct status *status);
json_t *gguf_read_templates(struct gguf *file, struct status *status);

#endif
