/* SPDX-License-Identifier: Apache-2.0 */
/* The chat templates of a checkpoint: named templates, and the special-token strings that transformers passes to them as
 * variables. One JSON document holds them (formats/engine/engine_file.md, section chat templates); it is not trusted. */
#ifndef FORMATS_TEMPLATE_CHAT_TEMPLATES_H
#define FORMATS_TEMPLATE_CHAT_TEMPLATES_H

#include "formats/template/template.h"

enum {
    CHAT_TEMPLATES_MOST = 64,       /* templates of one checkpoint */
    CHAT_TEMPLATES_MOST_NAME = 128, /* bytes of a template's name */
    CHAT_TEMPLATES_MOST_TURN_TOKENS = 64,
    CHAT_TEMPLATES_MOST_BYTES = 512 << 10, /* of the document */
};

struct chat_templates; /* immutable: threads may share it */

/* The document's bytes. A template whose text does not parse is kept with the reason instead of its text. Owned. */
struct chat_templates *chat_templates_open(const char *json, size_t size, const char *name, struct status *status);
/* One template, the default, and no variables of its own. Fails if the text does not parse. Owned. */
struct chat_templates *chat_templates_of_text(const char *text, size_t size, const char *name, struct status *status);
void chat_templates_close(struct chat_templates *templates);

/* Names in their order; NULL: there are no more. *usable: it can be used. */
const char *chat_templates_name(const struct chat_templates *templates, size_t index, bool *usable);
/* The text of a template, borrowed; `name` NULL: of the one for conversations with tools. NULL: there is none that can be used. */
const char *chat_templates_text(const struct chat_templates *templates, const char *name);
/* Whether a conversation without tools has a template; if not, *status has the reason. */
bool chat_templates_can_render(const struct chat_templates *templates, struct status *status);
/* The token that ends an answer, -1: unknown; and the added tokens that the template writes around a message. */
int32_t chat_templates_answer_end(const struct chat_templates *templates);
const int32_t *chat_templates_turn_tokens(const struct chat_templates *templates, size_t *count);

/* What apply_chat_template of transformers makes of a JSON object of variables: "chat_template" in it names the template
 * (absent or null: "tool_use" if there are tools and such a template, else "default"); "tools" and "documents" are null
 * and "add_generation_prompt" is false unless given; the special-token strings are variables unless given. Fails and
 * marks bytes as template_render does. */
bool chat_templates_render(const struct chat_templates *templates, const json_t *variables, const struct tm *now,
                           struct template_result *result, struct status *status);

/* Reads YYYY-MM-DDThh:mm:ss, a day of the calendar. */
bool chat_templates_read_time(const char *text, struct tm *time);

#endif
