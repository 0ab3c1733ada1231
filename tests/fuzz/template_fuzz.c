/* SPDX-License-Identifier: Apache-2.0 */
/* A chat template, a byte 0 and its variables in JSON: any bytes are refused with a message, or make a text whose marks are 0 and 1, and
 * the same text again. Without the byte there are no variables. */
#include <string.h>

#include "formats/base/json.h"
#include "formats/template/template.h"
#include "tests/fuzz/fuzz.h"

/* A short template may use all the steps and all the memory that templates have. */
const struct fuzz_cost fuzz_cost = {.base_ms = 60000,
                                    .us_per_byte = 50,
                                    .base_bytes = 768 << 20,
                                    .bytes_per_byte = 1024};

static const struct tm now = {.tm_year = 126, .tm_mday = 2, .tm_hour = 3, .tm_min = 4, .tm_sec = 5, .tm_wday = 5};

static json_t *variables_of(const uint8_t *data, size_t size)
{
    struct status status = {0};
    json_t *variables = size ? json_parse((const char *)data, size, "variables", &status) : NULL;
    if (json_is_object(variables)) return variables;
    json_decref(variables);
    return json_object();
}

static void check(const struct template_result *result)
{
    require(strlen(result->text) <= result->size && result->text[result->size] == 0);
    for (size_t i = 0; i < result->size; i++) require(result->foreign[i] <= 1);
}

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t text_size = zero ? (size_t)(zero - data) : size;
    struct template *template = template_open((const char *)data, text_size, &status);
    if (!template) {
        require(status.code != STATUS_OK && status.message[0]);
        return 0;
    }
    json_t *variables = zero ? variables_of(zero + 1, size - text_size - 1) : json_object();
    json_t *own = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
    struct template_result first = {0}, second = {0};
    const bool done = template_render(template, variables, own, &now, &first, &status);
    if (!done) {
        require(status.code != STATUS_OK && status.message[0] && !first.text && !first.foreign);
    } else {
        check(&first);
        require(template_render(template, variables, own, &now, &second, &status));
        require(first.size == second.size && memcmp(first.text, second.text, first.size) == 0);
        require(memcmp(first.foreign, second.foreign, first.size) == 0);
    }
    template_result_free(&first);
    template_result_free(&second);
    json_decref(variables);
    json_decref(own);
    template_close(template);
    return 0;
}
