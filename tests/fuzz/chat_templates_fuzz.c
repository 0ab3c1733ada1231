/* SPDX-License-Identifier: Apache-2.0 */
/* Section *chat templates*: any bytes are refused with a message, or are templates of which each renders a conversation or says why it
 * does not. */
#include <string.h>

#include "formats/base/json.h"
#include "formats/template/chat_templates.h"
#include "tests/fuzz/fuzz.h"

/* As for single templates, of which a document has up to CHAT_TEMPLATES_MOST. */
const struct fuzz_cost fuzz_cost = {.base_ms = 60000,
                                    .us_per_byte = 50000,
                                    .base_bytes = 768 << 20,
                                    .bytes_per_byte = 1024};

static void render(const struct chat_templates *templates, const char *name, bool usable)
{
    static const struct tm now = {.tm_year = 126, .tm_mday = 2, .tm_wday = 5};
    struct status status = {0};
    struct template_result result = {0};
    json_t *variables =
        json_pack("{s:[{s:s, s:s}], s:s}", "messages", "role", "user", "content", "hi", "chat_template", name);
    require(variables != NULL);
    if (!chat_templates_render(templates, variables, &now, &result, &status)) {
        require(status.code != STATUS_OK && status.message[0] && !result.text);
    } else {
        require(usable && result.text[result.size] == 0);
        for (size_t i = 0; i < result.size; i++) require(result.foreign[i] <= 1);
    }
    template_result_free(&result);
    json_decref(variables);
}

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    struct chat_templates *templates = chat_templates_open((const char *)data, size, "section", &status);
    if (!templates) {
        require(status.code != STATUS_OK && status.message[0]);
        return 0;
    }
    const char *name;
    bool usable;
    size_t count;
    const int32_t *turns = chat_templates_turn_tokens(templates, &count);
    require(count <= CHAT_TEMPLATES_MOST_TURN_TOKENS && chat_templates_answer_end(templates) >= -1);
    for (size_t i = 0; i < count; i++) require(turns[i] >= 0);
    for (size_t i = 0; (name = chat_templates_name(templates, i, &usable)); i++) render(templates, name, usable);
    require(chat_templates_can_render(templates, &status) || status.message[0]);
    chat_templates_close(templates);
    return 0;
}
