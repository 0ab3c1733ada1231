/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the config.json parser with files of their own; private to formats/. */
#ifndef FORMATS_CHECKPOINT_MODEL_CONFIG_INTERNAL_H
#define FORMATS_CHECKPOINT_MODEL_CONFIG_INTERNAL_H

#include "formats/base/json.h"

struct model_config;

/* Token ids, sampling defaults and other fields that control generation (generation_config.c). They belong in
 * generation_config.json, but older checkpoints have them in config.json: both are read by the same rules. */
bool generation_fields_parse(struct model_config *config, struct json_reader *reader, struct status *status);

#endif
