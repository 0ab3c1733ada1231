/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/test_config.h"

#include "formats/base/test_support.h"

bool test_config_parse(struct model_config *config, const char *text, struct status *status)
{
    status_clear(status);
    return model_config_parse(config, text, strlen(text), "config.json", arch_read_config, status);
}

bool test_config_parse_with(struct model_config *config, const char *model_type, const char *fields,
                            struct status *status)
{
    char text[2048];
    int length = snprintf(text, sizeof text, "{\"model_type\": \"%s\", " TEST_SIZES "%s%s}", model_type,
                          *fields ? ", " : "", fields);
    assert_true(length > 0 && (size_t)length < sizeof text);
    return test_config_parse(config, text, status);
}

void test_config_refused(const char *model_type, const char *fields, const char *words)
{
    struct status status = {0};
    struct model_config config;
    test_expect_failure(test_config_parse_with(&config, model_type, fields, &status), &status, STATUS_BAD_INPUT, words);
    test_expect_message(&status, "config.json: ");
}

struct model_config test_config_accepted(const char *model_type, const char *fields)
{
    struct status status = {0};
    struct model_config config;
    bool done = test_config_parse_with(&config, model_type, fields, &status);
    if (!done) fail_msg("%s with %s: refused: %s", model_type, fields, status.message);
    return config;
}
