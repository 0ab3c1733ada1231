/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of models that read more than text: the tensors of the part that reads and writes text get the names that they have
 * in a checkpoint of that part alone, and those of the other parts (towers) are left out. */
#ifndef FORMATS_CHECKPOINT_WRAPPER_H
#define FORMATS_CHECKPOINT_WRAPPER_H

#include "formats/checkpoint/model_config.h"
#include "formats/checkpoint/safetensors.h"

enum { WRAPPER_MAX_TOWERS = 8 };

/* One line of the list of wrappers (builder/arch/wrappers.c). */
struct model_wrapper {
    const char *model_type, *architecture; /* of the outer configuration */
    /* The module that has the text part; its name ends with "model". It may be in "model.", and so may the towers. */
    const char *module;
    /* Modules that are left out, up to the first NULL. Where the text part has layers or rows that text passes over (struct
     * model_unused), the last of these names stands for them. */
    const char *towers[WRAPPER_MAX_TOWERS];
};

/* What was left out of a checkpoint. */
struct model_tower {
    const char *name; /* borrowed from the wrapper */
    size_t tensors;
    uint64_t bytes;
};

/* Renames the tensors of the text part and takes those of the towers out of the array, with layers and rows that text passes over;
 * the other layers are counted anew. The rest stays as it is. The result is sorted; fails if two tensors get one name. `towers`:
 * [WRAPPER_MAX_TOWERS]; those that the checkpoint has come first. *names: owned by the caller, also after a failure; storage of names
 * of tensors, or NULL. Requires: config->wrapper, config->vocab_size and config->unused are set. */
bool wrapper_unwrap(const struct model_config *config, struct tensor_view *tensors, size_t *count,
                    struct model_tower *towers, char **names, struct status *status);

#endif
