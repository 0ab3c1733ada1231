/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_reasoning.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_buffer.h"
#include "runtime/server/server_convert.h"

#define EFFORTS "\"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\""

json_t *server_reasoning_switch(const char *mode, json_t *budget)
{
    const bool thinks = strcmp(mode, "disabled") != 0;
    json_t *made =
        json_pack("{s:b, s:b, s:s}", "enable_thinking", (int)thinks, "thinking", (int)thinks, "thinking_mode", mode);
    if (!made || (thinks && !budget)) return made;
    if (json_put(made, "thinking_budget", thinks ? json_incref(budget) : json_integer(0))) return made;
    json_decref(made);
    return NULL;
}

/* Takes the reference of `variables`; NULL: out of memory. */
static bool add_all(json_t *variables, json_t *added, struct server_error *error)
{
    const bool ok = variables && !json_object_update(added, variables);
    json_decref(variables);
    return ok || server_fail_memory(error);
}

static bool add_effort(const char *effort, json_t *added, struct server_error *error)
{
    return server_convert_put(added, "reasoning_effort", json_string(effort), error);
}

/* A template may have efforts while the marks of its reasoning are not known. */
static bool reasons(const struct server_dialect *dialect) { return dialect->thought || dialect->has_effort; }

/* The variables of the switch are there already: they are those of the body. */
static bool apply_thinking(const struct server_dialect *dialect, const struct server_request *request, json_t *added,
                           struct server_error *error)
{
    if (dialect->has_switch || request->thinking == SERVER_THINKING_FREE) return true;
    /* No reasoning may be what the template does without an effort. */
    if (request->thinking == SERVER_THINKING_ON && dialect->no_effort)
        return request->effort || add_effort("high", added, error);
    if (request->thinking == SERVER_THINKING_ON)
        return reasons(dialect) ||
               server_fail(error, 400, "unsupported_parameter", "thinking",
                           "thinking: the chat template of this model has no switch for it, and no reasoning; leave it "
                           "out, or set its type to \"disabled\" or \"adaptive\"");
    if (dialect->no_effort) return add_effort(dialect->no_effort, added, error);
    return !reasons(dialect) ||
           server_fail(
               error, 400, "unsupported_parameter", "thinking",
               "thinking: the chat template of this model has no switch that would turn reasoning off; leave it "
               "out, or set its type to \"adaptive\"");
}

static bool refuse_effort(const char *effort, const char *expected, struct server_error *error)
{
    return server_fail(error, 400, "unsupported_parameter", "reasoning_effort",
                       "reasoning_effort: the chat template of this model has no such choice; leave the effort out or "
                       "set it to %s, found '%.64s'",
                       expected, effort);
}

static bool is_known_effort(const char *effort)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    bool found = false;
    for (size_t i = 0; !found && i < sizeof known / sizeof *known; i++) found = strcmp(effort, known[i]) == 0;
    return found;
}

/* In Anthropic's API an effort does not say whether the model reasons, and "high" is what it is without one. Clients send one with each request:
 * where reasoning has a switch alone, any is taken. */
static bool apply_messages_effort(const struct server_dialect *dialect, const char *effort, json_t *added,
                                  struct server_error *error)
{
    if (!dialect->has_effort && !dialect->has_switch)
        return strcmp(effort, "high") == 0 || refuse_effort(effort, "\"high\"", error);
    if (strcmp(effort, "none") == 0 || !is_known_effort(effort)) return refuse_effort(effort, EFFORTS, error);
    if (!dialect->has_effort || json_object_get(added, "reasoning_effort")) return true;
    return add_effort(effort, added, error);
}

static bool apply_none(const struct server_dialect *dialect, json_t *added, struct server_error *error)
{
    if (dialect->no_effort && !add_effort(dialect->no_effort, added, error)) return false;
    if (dialect->has_switch) return add_all(server_reasoning_switch("disabled", NULL), added, error);
    if (dialect->no_effort || !reasons(dialect)) return true;
    return refuse_effort("none", dialect->has_effort ? EFFORTS : "\"medium\"", error);
}

/* Any effort but "none" turns reasoning on. "medium" is what OpenAI's API takes where nothing is said. */
static bool apply_effort(const struct server_dialect *dialect, const char *effort, json_t *added,
                         struct server_error *error)
{
    const char *none = dialect->no_effort ? dialect->no_effort : "none";
    if (strcmp(effort, "none") == 0 || strcmp(effort, none) == 0) return apply_none(dialect, added, error);
    if (!dialect->has_effort && !dialect->has_switch)
        return (dialect->thought && strcmp(effort, "medium") == 0) ||
               refuse_effort(effort, dialect->thought ? "\"medium\"" : "\"none\"", error);
    if (!is_known_effort(effort))
        return refuse_effort(effort, dialect->has_switch || dialect->no_effort ? "\"none\", " EFFORTS : EFFORTS, error);
    if (dialect->has_effort && !add_effort(effort, added, error)) return false;
    return !dialect->has_switch || add_all(server_reasoning_switch("enabled", NULL), added, error);
}

/* Puts the members at the beginning of the text of the variables, which has others. */
static bool put_variables(const json_t *added, struct server_request *request, struct server_error *error)
{
    struct server_buffer text = {0};
    char *members = json_format(added, JSON_COMPACT);
    const bool ok = members && server_buffer_add(&text, members, strlen(members) - 1) &&
                    server_buffer_text(&text, ",") && server_buffer_text(&text, request->variables + 1) &&
                    server_buffer_add(&text, "", 1);
    free(members);
    if (!ok) {
        server_buffer_free(&text);
        return server_fail_memory(error);
    }
    free(request->variables);
    request->variables = text.data;
    return true;
}

bool server_reasoning_apply(const struct server_dialect *dialect, struct server_request *request,
                            struct server_error *error)
{
    const json_t *given = json_object_get(request->body, "chat_template_kwargs");
    const char *effort = request->effort, *name;
    json_t *added = json_object(), *value;
    bool ok = (added || server_fail_memory(error)) && apply_thinking(dialect, request, added, error);
    if (ok && effort)
        ok = request->shape == SERVER_MESSAGES ? apply_messages_effort(dialect, effort, added, error)
                                               : apply_effort(dialect, effort, added, error);
    if (ok)
        json_object_foreach ((json_t *)(uintptr_t)given, name, value) json_object_del(added, name);
    ok = ok && (!json_object_size(added) || put_variables(added, request, error));
    json_decref(added);
    return ok;
}
