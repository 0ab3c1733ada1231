/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer of a GGUF file as the tokenizer.json that the same model has on the Hugging Face hub. */
#ifndef FORMATS_CHECKPOINT_GGUF_TOKENIZER_H
#define FORMATS_CHECKPOINT_GGUF_TOKENIZER_H

#include "formats/checkpoint/gguf.h"

/* One of *text and *missing is set; the caller frees it. *text: tokenizer.json, not checked beyond the JSON. *missing: why the file
 * has no tokenizer that is known to divide texts in the same way. Fails for arrays that contradict each other. */
bool gguf_read_tokenizer(struct gguf *file, char **text, char **missing, struct status *status);

#endif
