/* SPDX-License-Identifier: Apache-2.0 */
/* Messages for files that are not supported: weights and tokenizers in other formats, with the way to convert them, and
 * names of the hub that are no folder. Opens no file. */
#ifndef FORMATS_CHECKPOINT_CHECKPOINT_OTHERS_H
#define FORMATS_CHECKPOINT_CHECKPOINT_OTHERS_H

#include <stdbool.h>

#include "formats/base/status.h"

/* Whether the file name is that of weights in another format; *status then names the format and how to convert it. */
bool checkpoint_is_other_weights(const char *folder, const char *name, struct status *status);
/* The same for the first such file in a folder. */
bool checkpoint_has_other_weights(const char *folder, struct status *status);

/* Name of a tokenizer in another format in the folder, owned by the caller; NULL: none (or out of memory). */
char *checkpoint_find_other_tokenizer(const char *folder);
/* Whether transformers can convert it to tokenizer.json. */
bool checkpoint_can_convert_tokenizer(const char *name);

/* Whether a path that does not exist looks like ORG/NAME of the hub; *status then says how to get the model. */
bool checkpoint_is_hub_name(const char *path, struct status *status);

#endif
