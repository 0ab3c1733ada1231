/* SPDX-License-Identifier: Apache-2.0 */
/* Configs in tests of the families: their texts, and whether they are read or refused. */
#ifndef BUILDER_ARCH_TEST_CONFIG_H
#define BUILDER_ARCH_TEST_CONFIG_H

#include "builder/arch/arch.h"

/* The required fields of every config. */
#define TEST_SIZES                                                                                           \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 8, " \
    "\"vocab_size\": 512"

bool test_config_parse(struct model_config *config, const char *text, struct status *status);
/* A config of `model_type` with sizes and additional fields: parsed, refused with these words, read. */
bool test_config_parse_with(struct model_config *config, const char *model_type, const char *fields,
                            struct status *status);
void test_config_refused(const char *model_type, const char *fields, const char *words);
struct model_config test_config_accepted(const char *model_type, const char *fields);

/* A published config.json, with single quotes, and its description in the words of test_config.c. */
struct test_published {
    const char *name, *config, *expected;
};
/* Fails unless each is read and its description equals the expected one. */
void test_config_published(const struct test_published *models, size_t count);

#endif
