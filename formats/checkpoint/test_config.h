/* SPDX-License-Identifier: Apache-2.0 */
/* A family for tests of this folder, which knows none: model_type "test", sizes by the names of struct model_config. */
#ifndef FORMATS_CHECKPOINT_TEST_CONFIG_H
#define FORMATS_CHECKPOINT_TEST_CONFIG_H

#include "formats/checkpoint/model_config.h"

/* Fields that a config.json needs at least. */
#define TEST_CONFIG "'model_type': 'test', 'vocab_size': 512"

/* Reads hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, vocab_size and max_position, each with a
 * default but the last, without limits; the rotary embedding; bos 1 and eos 2. */
model_config_reader test_read_config;

#endif
