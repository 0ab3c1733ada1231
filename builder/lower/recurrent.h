/* SPDX-License-Identifier: Apache-2.0 */
/* Places of the layers in a slot's block of recurrent state (STATE_RECURRENT), each at a multiple of PLAN_ALIGNMENT. */
#ifndef BUILDER_LOWER_RECURRENT_H
#define BUILDER_LOWER_RECURRENT_H

#include "formats/checkpoint/model_config.h"
#include "formats/engine/manifest.h"

/* Bytes of the block, with all copies of the state; 0: no layer has recurrent state. `config`: of a rank. Below 2^61 for every config
 * that was read. */
uint64_t recurrent_bytes(const struct model_config *config, enum engine_target target);
/* Where the state of the layer's op begins in the block. */
uint64_t recurrent_offset(const struct model_config *config, uint32_t layer, enum plan_op op);

#endif
