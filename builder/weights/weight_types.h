/* SPDX-License-Identifier: Apache-2.0 */
/* In which encodings an engine has its matrices. */
#ifndef BUILDER_WEIGHTS_WEIGHT_TYPES_H
#define BUILDER_WEIGHTS_WEIGHT_TYPES_H

#include <stdbool.h>

#include "formats/encoding/encoding.h"

enum { WEIGHT_MOST_KEPT = 32, WEIGHT_PATTERN_BYTES = 128 };

struct weight_types {
    enum encoding_id matrices; /* ENCODING_NONE: as in the checkpoint */
    bool fixed_group;          /* no smaller one, where ranks would divide groups */
    bool
        decodes; /* codes of the checkpoint whose groups ranks would divide become floats; GPUs refuse them without it */
    enum encoding_id head; /* the embedding and the LM head; ENCODING_NONE: as the others */
    bool head_as_it_is;    /* they stay as in the checkpoint */
    /* Weights of which a tensor's name matches a pattern of fnmatch; the first that does counts. */
    struct weight_kept {
        char pattern[WEIGHT_PATTERN_BYTES];
        enum encoding_id encoding; /* ENCODING_NONE: as in the checkpoint */
    } kept[WEIGHT_MOST_KEPT];
    int kept_count;
};

struct graph_weight;
/* Whether the pattern is that of the weight or of one of its tensors. */
bool weight_types_match(const struct weight_kept *kept, const struct graph_weight *weight);
/* What `types` asks for; ENCODING_NONE: nothing. */
enum encoding_id weight_types_ask(const struct weight_types *types, const struct graph_weight *weight);

#endif
