/* SPDX-License-Identifier: Apache-2.0 */
/* What a model's folder may hold that is not read: weights and tokenizers in other formats, each with what to do about it; and
 * names of the hub that are no folder. Messages alone: nothing is opened. */
#ifndef FORMATS_CHECKPOINT_CHECKPOINT_OTHERS_H
#define FORMATS_CHECKPOINT_CHECKPOINT_OTHERS_H

#include <stdbool.h>

#include "formats/base/status.h"

/* Whether a file's name is that of weights in another format. Then *status says what it is and how to convert it. */
bool checkpoint_is_other_weights(const char *folder, const char *name, struct status *status);
/* The same for the first such file of a folder. */
bool checkpoint_has_other_weights(const char *folder, struct status *status);

/* Name of a tokenizer in another format in the folder: owned by the caller, NULL if there is none (or no memory). */
char *checkpoint_find_other_tokenizer(const char *folder);
/* Whether transformers makes a tokenizer.json of it. */
bool checkpoint_can_convert_tokenizer(const char *name);

/* Whether a path that does not exist reads like ORG/NAME of the hub. Then *status says how to get the model. */
bool checkpoint_is_hub_name(const char *path, struct status *status);

#endif
