/* SPDX-License-Identifier: Apache-2.0 */
/* What sentence-transformers files beside a checkpoint say of its embeddings: modules.json lists the steps from a text to its
 * embedding, and the configuration of the pooling step which hidden states become it. */
#ifndef FORMATS_CHECKPOINT_EMBEDDING_CONFIG_H
#define FORMATS_CHECKPOINT_EMBEDDING_CONFIG_H

#include <stdbool.h>

#include "formats/base/status.h"

enum embedding_kind {
    EMBEDDING_NONE,       /* no modules.json: the checkpoint says nothing of embeddings */
    EMBEDDING_LAST_TOKEN, /* the hidden state of the last token, of length 1 or not */
    EMBEDDING_OTHER,      /* something else: `other` */
};

struct embedding_config {
    enum embedding_kind kind;
    char other[STATUS_MESSAGE_BYTES]; /* what was expected and what was found */
};

/* Fails for files that are no such JSON. */
bool embedding_config_read(struct embedding_config *config, const char *folder, struct status *status);

#endif
