/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/template/chat_templates.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/base/printable.h"

enum { MOST_VARIABLES = 256 };

struct named_template {
    char *name;
    struct template *template; /* NULL: `fault` is set */
    char *fault;
};

struct chat_templates {
    struct named_template items[CHAT_TEMPLATES_MOST];
    size_t count;
    json_t *variables; /* an object; its reference count never changes while threads share it */
    int32_t answer_end;
    int32_t turn_tokens[CHAT_TEMPLATES_MOST_TURN_TOKENS];
    size_t turn_token_count;
};

static struct chat_templates *allocate(struct status *status)
{
    struct chat_templates *templates = calloc(1, sizeof *templates);
    if (templates) templates->variables = json_object();
    if (templates && templates->variables) {
        templates->answer_end = -1;
        return templates;
    }
    chat_templates_close(templates);
    status_fail(status, STATUS_MACHINE, "out of memory");
    return NULL;
}

void chat_templates_close(struct chat_templates *templates)
{
    if (!templates) return;
    for (size_t i = 0; i < templates->count; i++) {
        free(templates->items[i].name);
        free(templates->items[i].fault);
        template_close(templates->items[i].template);
    }
    json_decref(templates->variables);
    free(templates);
}

static const struct named_template *find(const struct chat_templates *templates, const char *name)
{
    for (size_t i = 0; i < templates->count; i++)
        if (strcmp(templates->items[i].name, name) == 0) return &templates->items[i];
    return NULL;
}

/* Exactly one of `text` and `fault` is not NULL. */
static bool add(struct chat_templates *templates, const char *name, const char *text, size_t size, const char *fault,
                struct status *status)
{
    struct status reason = {0};
    struct named_template *item = &templates->items[templates->count++];
    item->name = strdup(name);
    if (text) {
        item->template = template_open(text, size, &reason);
        if (item->template) return item->name || status_fail(status, STATUS_MACHINE, "out of memory");
        if (reason.code == STATUS_MACHINE) return status_fail(status, reason.code, "%s", reason.message);
        fault = reason.message;
    }
    item->fault = strdup(fault);
    return (item->name && item->fault) || status_fail(status, STATUS_MACHINE, "out of memory");
}

/* ---- the document ---- */

static bool is_text(const json_t *value, size_t most)
{
    const size_t size = json_string_length(value);
    return json_is_string(value) && size > 0 && size <= most && printable_text(json_string_value(value), size);
}

static bool read_template(struct chat_templates *templates, json_t *object, struct status *status)
{
    const json_t *name = json_object_get(object, "name"), *text = json_object_get(object, "text"),
                 *fault = json_object_get(object, "fault");
    if (!is_text(name, CHAT_TEMPLATES_MOST_NAME))
        return status_fail(status, STATUS_CORRUPT, "name: expected a text of 1 to %d bytes", CHAT_TEMPLATES_MOST_NAME);
    if (find(templates, json_string_value(name)))
        return status_fail(status, STATUS_CORRUPT, "two templates have the name '%s'", json_string_value(name));
    if (json_is_string(text) == json_is_string(fault) || json_string_length(fault) > STATUS_MESSAGE_BYTES)
        return status_fail(status, STATUS_CORRUPT, "expected a string 'text', or a string 'fault' of up to %d bytes",
                           STATUS_MESSAGE_BYTES);
    return add(templates, json_string_value(name), json_string_value(text), json_string_length(text),
               json_string_value(fault), status);
}

static bool read_templates(struct chat_templates *templates, const json_t *list, struct status *status)
{
    if (!json_is_array(list) || json_array_size(list) > CHAT_TEMPLATES_MOST)
        return status_fail(status, STATUS_CORRUPT, "templates: expected an array of at most %d", CHAT_TEMPLATES_MOST);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!read_template(templates, json_array_get(list, i), status))
            return status_prefix(status, "templates: element %zu", i);
    return true;
}

static bool is_strings(const json_t *value)
{
    bool all = json_is_array(value);
    for (size_t i = 0; all && i < json_array_size(value); i++) all = json_is_string(json_array_get(value, i));
    return all;
}

static bool read_variables(struct chat_templates *templates, json_t *variables, struct status *status)
{
    const char *key;
    json_t *value;
    if (!json_is_object(variables) || json_object_size(variables) > MOST_VARIABLES)
        return status_fail(status, STATUS_CORRUPT, "variables: expected an object of at most %d", MOST_VARIABLES);
    json_object_foreach (variables, key, value)
        if (!json_is_string(value) && !is_strings(value))
            return status_fail(status, STATUS_CORRUPT, "variables: expected strings and arrays of strings");
    json_decref(templates->variables);
    templates->variables = json_incref(variables);
    return true;
}

static bool is_token(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= INT32_MAX;
}

static bool read_tokens(struct chat_templates *templates, const json_t *end, const json_t *turns, struct status *status)
{
    if (end && !is_token(end)) return status_fail(status, STATUS_CORRUPT, "answer_end: expected a token id");
    if (end) templates->answer_end = (int32_t)json_integer_value(end);
    if (!turns) return true;
    if (!json_is_array(turns) || json_array_size(turns) > CHAT_TEMPLATES_MOST_TURN_TOKENS)
        return status_fail(status, STATUS_CORRUPT, "turn_tokens: expected an array of at most %d",
                           CHAT_TEMPLATES_MOST_TURN_TOKENS);
    for (size_t i = 0; i < json_array_size(turns); i++) {
        const json_t *token = json_array_get(turns, i);
        if (!is_token(token)) return status_fail(status, STATUS_CORRUPT, "turn_tokens: expected token ids");
        templates->turn_tokens[templates->turn_token_count++] = (int32_t)json_integer_value(token);
    }
    return true;
}

struct chat_templates *chat_templates_open(const char *json, size_t size, const char *name, struct status *status)
{
    struct status found = {0};
    struct chat_templates *templates = NULL;
    if (size > CHAT_TEMPLATES_MOST_BYTES) {
        status_fail(status, STATUS_CORRUPT, "%s: expected at most %d bytes, found %zu", name, CHAT_TEMPLATES_MOST_BYTES,
                    size);
        return NULL;
    }
    json_t *document = json_parse(json, size, name, &found);
    if (!document) {
        status_fail(status, found.code == STATUS_BAD_INPUT ? STATUS_CORRUPT : found.code, "%s", found.message);
        return NULL;
    }
    bool good = (templates = allocate(status)) != NULL;
    if (good && !json_is_object(document)) good = status_fail(status, STATUS_CORRUPT, "expected an object");
    good = good && read_templates(templates, json_object_get(document, "templates"), status) &&
           read_variables(templates, json_object_get(document, "variables"), status) &&
           read_tokens(templates, json_object_get(document, "answer_end"), json_object_get(document, "turn_tokens"),
                       status);
    json_decref(document);
    if (good) return templates;
    chat_templates_close(templates);
    return NULL;
}

struct chat_templates *chat_templates_of_text(const char *text, size_t size, const char *name, struct status *status)
{
    struct chat_templates *templates = allocate(status);
    if (!templates) return NULL;
    bool good = add(templates, "default", text, size, NULL, status);
    if (good && templates->items[0].fault)
        good = status_fail(status, STATUS_BAD_INPUT, "%s: %s", name, templates->items[0].fault);
    if (good) return templates;
    chat_templates_close(templates);
    return NULL;
}

const char *chat_templates_name(const struct chat_templates *templates, size_t index, bool *usable)
{
    if (index >= templates->count) return NULL;
    *usable = templates->items[index].template != NULL;
    return templates->items[index].name;
}

int32_t chat_templates_answer_end(const struct chat_templates *templates) { return templates->answer_end; }

const int32_t *chat_templates_turn_tokens(const struct chat_templates *templates, size_t *count)
{
    *count = templates->turn_token_count;
    return templates->turn_tokens;
}

/* ---- rendering ---- */

static bool fail_unknown(const struct chat_templates *templates, const char *name, struct status *status)
{
    char names[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < templates->count && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%s'", i ? ", " : "", templates->items[i].name);
    if (!templates->count) return status_fail(status, STATUS_BAD_INPUT, "the checkpoint has no chat template");
    return status_fail(status, STATUS_BAD_INPUT, "chat_template: expected %s%s, found '%.128s'",
                       templates->count > 1 ? "one of " : "", names, name);
}

static const struct named_template *choose(const struct chat_templates *templates, const char *name, bool has_tools,
                                           struct status *status)
{
    const struct named_template *found = NULL;
    if (!name && has_tools) found = find(templates, "tool_use");
    if (!name) name = "default";
    if (!found) found = find(templates, name);
    if (!found) {
        fail_unknown(templates, name, status);
    } else if (found->fault) {
        status_fail(status, STATUS_BAD_INPUT, "the chat template '%s' cannot be used: %s", found->name, found->fault);
        found = NULL;
    }
    return found;
}

bool chat_templates_can_render(const struct chat_templates *templates, struct status *status)
{
    return choose(templates, NULL, false, status) != NULL;
}

const char *chat_templates_text(const struct chat_templates *templates, const char *name)
{
    struct status ignored = {0};
    const struct named_template *chosen = choose(templates, name, true, &ignored);
    return chosen ? template_text(chosen->template) : NULL;
}

/* A copy of the variables with what transformers adds, and one of the templates' own without those that are given.
 * jansson counts references of values without regard to threads: what threads share is copied in full. */
static bool complete_variables(const struct chat_templates *templates, const json_t *variables, json_t **complete,
                               json_t **own)
{
    static const char *const absent[] = {"tools", "documents"};
    const char *key;
    json_t *value;
    *own = json_deep_copy(templates->variables);
    *complete = json_copy((json_t *)(uintptr_t)variables);
    bool good = *own && *complete;
    json_object_foreach ((json_t *)(uintptr_t)variables, key, value)
        if (good) json_object_del(*own, key);
    if (good) json_object_del(*complete, "chat_template");
    for (size_t i = 0; good && i < sizeof absent / sizeof *absent; i++)
        if (!json_object_get(*complete, absent[i])) good = json_put(*complete, absent[i], json_null());
    if (good && !json_object_get(*complete, "add_generation_prompt"))
        good = json_put(*complete, "add_generation_prompt", json_false());
    return good;
}

bool chat_templates_render(const struct chat_templates *templates, const json_t *variables, const struct tm *now,
                           struct template_result *result, struct status *status)
{
    json_t *complete = NULL, *own = NULL;
    *result = (struct template_result){0};
    if (!json_is_object(variables))
        return status_fail(status, STATUS_BAD_INPUT, "expected a JSON object of variables, found %s",
                           json_type_name(variables));
    const json_t *name = json_object_get(variables, "chat_template"), *tools = json_object_get(variables, "tools");
    if (name && !json_is_null(name) && !json_is_string(name))
        return status_fail(status, STATUS_BAD_INPUT, "chat_template: expected the name of a template, found %s",
                           json_type_name(name));
    const struct named_template *chosen =
        choose(templates, json_string_value(name), tools && !json_is_null(tools), status);
    if (!chosen) return false;
    bool done = complete_variables(templates, variables, &complete, &own) ||
                status_fail(status, STATUS_MACHINE, "out of memory");
    done = done && template_render(chosen->template, complete, own, now, result, status);
    json_decref(complete);
    json_decref(own);
    return done;
}

/* ---- the clock ---- */

/* `count` digits, moving on; -1: something else. */
static int digits(const char **text, int count)
{
    int number = 0;
    for (int i = 0; i < count; i++, ++*text) {
        if (**text < '0' || **text > '9') return -1;
        number = 10 * number + (**text - '0');
    }
    return number;
}

bool chat_templates_read_time(const char *text, struct tm *time)
{
    static const struct {
        int digits;
        char end;
    } fields[] = {{4, '-'}, {2, '-'}, {2, 'T'}, {2, ':'}, {2, ':'}, {2, '\0'}};
    int numbers[6];
    for (size_t i = 0; i < 6; i++) {
        numbers[i] = digits(&text, fields[i].digits);
        if (numbers[i] < 0 || *text != fields[i].end) return false;
        text++;
    }
    *time = (struct tm){.tm_year = numbers[0] - 1900,
                        .tm_mon = numbers[1] - 1,
                        .tm_mday = numbers[2],
                        .tm_hour = numbers[3],
                        .tm_min = numbers[4],
                        .tm_sec = numbers[5]};
    /* Fills the day of the week and of the year, and changes fields that are no date. */
    return timegm(time) != (time_t)-1 && time->tm_year == numbers[0] - 1900 && time->tm_mon == numbers[1] - 1 &&
           time->tm_mday == numbers[2] && time->tm_hour == numbers[3] && time->tm_min == numbers[4] &&
           time->tm_sec == numbers[5];
}
