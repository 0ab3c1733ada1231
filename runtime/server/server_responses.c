/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"

enum { ITEM_ID_BYTES = SERVER_ID_BYTES + 32 };

static json_t *text_of(const struct server_buffer *text)
{
    return json_stringn(text->data ? text->data : "", text->size);
}

/* ---- items ---- */

static void name_item(const struct server_job *job, enum server_part_kind kind, size_t index, char id[ITEM_ID_BYTES])
{
    static const char *const names[] =
        {[SERVER_PART_CONTENT] = "msg", [SERVER_PART_REASONING] = "rs", [SERVER_PART_CALL] = "fc"};
    const char *number = strchr(job->id, '_');
    snprintf(id, ITEM_ID_BYTES, "%s%s_%zu", names[kind], number ? number : "", index);
}

/* A part of a message or of reasoning. */
static json_t *content_of(enum server_part_kind kind, const struct server_buffer *text)
{
    if (kind == SERVER_PART_REASONING) return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text_of(text));
    return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", text_of(text), "annotations", "logprobs");
}

/* An item before it has content, or a complete one. */
static json_t *item_of(const struct server_job *job, size_t index, const struct server_part *part, const char *status)
{
    static const struct server_buffer empty;
    const bool begins = strcmp(status, "in_progress") == 0;
    char id[ITEM_ID_BYTES];
    name_item(job, part->kind, index, id);
    if (part->kind == SERVER_PART_CALL)
        return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s}", "type", "function_call", "id", id, "call_id", part->id,
                         "name", part->name, "arguments", text_of(begins ? &empty : &part->text), "status", status);
    json_t *content = json_array();
    if (!content || (!begins && !json_add(content, content_of(part->kind, &part->text)))) {
        json_decref(content);
        return NULL;
    }
    if (part->kind == SERVER_PART_REASONING)
        return json_pack("{s:s, s:s, s:[], s:o, s:s}", "type", "reasoning", "id", id, "summary", "content", content,
                         "status", status);
    return json_pack("{s:s, s:s, s:s, s:o, s:s}", "type", "message", "id", id, "role", "assistant", "content", content,
                     "status", status);
}

/* Items of parts, one for each; the last one of an answer that was cut is incomplete. */
static json_t *output_of(const struct server_job *job, const struct server_parts *parts, bool is_cut)
{
    json_t *output = json_array();
    bool ok = output != NULL;
    for (size_t i = 0; ok && i < parts->count; i++)
        ok = json_add(output,
                      item_of(job, i, &parts->items[i], is_cut && i + 1 == parts->count ? "incomplete" : "completed"));
    if (ok) return output;
    json_decref(output);
    return NULL;
}

/* ---- responses ---- */

static json_t *usage_of(const struct server_job *job)
{
    const json_int_t in = (json_int_t)job->prompt_tokens, out = (json_int_t)job->choices[0].tokens;
    return json_pack("{s:I, s:{s:i, s:i}, s:I, s:{s:i}, s:I}", "input_tokens", in, "input_tokens_details",
                     "cached_tokens", 0, "cache_write_tokens", 0, "output_tokens", out, "output_tokens_details",
                     "reasoning_tokens", 0, "total_tokens", in + out);
}

/* Takes the reference of `output`. NONE: the answer is not complete. */
static json_t *response_of(const char *model, const struct server_job *job, enum server_finish finish, json_t *output)
{
    const bool is_cut = finish == SERVER_FINISH_LENGTH;
    const char *status = !finish ? "in_progress" : is_cut ? "incomplete" : "completed";
    json_t *response =
        json_pack("{s:s, s:s, s:I, s:s, s:n, s:o, s:s, s:o, s:o}", "id", job->id, "object", "response", "created_at",
                  (json_int_t)job->created, "status", status, "error", "incomplete_details",
                  is_cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "model", model, "output",
                  output, "usage", finish ? usage_of(job) : json_null());
    if (!response || !json_object_update_missing(response, job->request.echo_body)) return response;
    json_decref(response);
    return NULL;
}

/* Takes the reference of `value`; NULL: out of memory. */
static bool print(json_t *value, struct server_buffer *out)
{
    char *text = value ? json_format(value, JSON_COMPACT) : NULL;
    bool ok = text && server_buffer_text(out, text);
    free(text);
    json_decref(value);
    return ok;
}

/* Parts of text that follow each other have one kind already: each is an item. */
bool server_responses_reply(const char *model, const struct server_job *job, struct server_buffer *out)
{
    struct server_parts parts = {0};
    const enum server_finish finish = job->choices[0].finish;
    bool ok = server_job_divide(job, 0, &parts) &&
              print(response_of(model, job, finish, output_of(job, &parts, finish == SERVER_FINISH_LENGTH)), out);
    server_parts_free(&parts);
    return ok;
}

/* ---- streams ---- */

/* Takes the reference of `event`, to which type and number are added. */
static bool print_event(struct server_response_items *items, const char *type, json_t *event, struct server_buffer *out)
{
    bool ok = event && json_put(event, "type", json_string(type)) &&
              json_put(event, "sequence_number", json_integer((json_int_t)items->sequence)) &&
              server_buffer_format(out, "event: %s\ndata: ", type);
    items->sequence++;
    if (!ok) {
        json_decref(event);
        return false;
    }
    return print(event, out) && server_buffer_text(out, "\n\n");
}

bool server_responses_begin(struct server_response_items *items, const char *model, const struct server_job *job,
                            struct server_buffer *out)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    bool ok = true;
    for (int i = 0; ok && i < 2; i++)
        ok =
            print_event(items, types[i],
                        json_pack("{s:o}", "response", response_of(model, job, SERVER_FINISH_NONE, json_array())), out);
    return ok;
}

/* An event of the last item: its place, and another member, whose reference is taken. */
static bool print_item_event(struct server_response_items *items, const struct server_job *job, const char *type,
                             const char *member, json_t *value, struct server_buffer *out)
{
    const size_t index = items->parts.count - 1;
    const enum server_part_kind kind = items->parts.items[index].kind;
    char id[ITEM_ID_BYTES];
    name_item(job, kind, index, id);
    json_t *event = json_pack("{s:s, s:I, s:o}", "item_id", id, "output_index", (json_int_t)index, member, value);
    bool ok = event && (kind == SERVER_PART_CALL || json_put(event, "content_index", json_integer(0)));
    const bool is_text = kind == SERVER_PART_CONTENT && strcmp(member, "part") != 0;
    ok = ok && (!is_text || json_put(event, "logprobs", json_array()));
    if (ok) return print_event(items, type, event, out);
    json_decref(event);
    return false;
}

static bool print_item(struct server_response_items *items, const struct server_job *job, const char *type,
                       const char *status, struct server_buffer *out)
{
    const size_t index = items->parts.count - 1;
    return print_event(items, type,
                       json_pack("{s:I, s:o}", "output_index", (json_int_t)index, "item",
                                 item_of(job, index, &items->parts.items[index], status)),
                       out);
}

/* Names of events by the kind of the item. */
static const struct {
    const char *delta, *done, *member;
} names[] = {[SERVER_PART_CONTENT] = {"response.output_text.delta", "response.output_text.done", "text"},
             [SERVER_PART_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done", "text"},
             [SERVER_PART_CALL] = {"response.function_call_arguments.delta", "response.function_call_arguments.done",
                                   "arguments"}};

static bool close_item(struct server_response_items *items, const struct server_job *job, const char *status,
                       struct server_buffer *out)
{
    if (!items->is_open) return true;
    const struct server_part *part = &items->parts.items[items->parts.count - 1];
    items->is_open = false;
    return print_item_event(items, job, names[part->kind].done, names[part->kind].member, text_of(&part->text), out) &&
           (part->kind == SERVER_PART_CALL || print_item_event(items, job, "response.content_part.done", "part",
                                                               content_of(part->kind, &part->text), out)) &&
           print_item(items, job, "response.output_item.done", status, out);
}

/* Adds an empty item. */
static bool open_item(struct server_response_items *items, const struct server_job *job, const struct server_part *part,
                      struct server_buffer *out)
{
    static const struct server_buffer empty;
    if (!close_item(items, job, "completed", out) || !server_parts_begin(&items->parts, part)) return false;
    items->is_open = true;
    return print_item(items, job, "response.output_item.added", "in_progress", out) &&
           (part->kind == SERVER_PART_CALL ||
            print_item_event(items, job, "response.content_part.added", "part", content_of(part->kind, &empty), out));
}

bool server_responses_parts(struct server_response_items *items, const struct server_job *job,
                            const struct server_parts *parts, struct server_buffer *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < parts->count; i++) {
        const struct server_part *part = &parts->items[i];
        const struct server_part *last = items->is_open ? &items->parts.items[items->parts.count - 1] : NULL;
        const bool goes_on = last && (part->kind == SERVER_PART_ARGUMENTS ||
                                      (part->kind == last->kind && part->kind != SERVER_PART_CALL));
        ok = (goes_on || open_item(items, job, part, out));
        struct server_part *item = &items->parts.items[items->parts.count - 1];
        ok = ok && server_buffer_add(&item->text, part->text.data, part->text.size) &&
             print_item_event(items, job, names[item->kind].delta, "delta", text_of(&part->text), out);
    }
    return ok;
}

bool server_responses_end(struct server_response_items *items, const char *model, const struct server_job *job,
                          enum server_finish finish, struct server_buffer *out)
{
    const bool is_cut = finish == SERVER_FINISH_LENGTH;
    return close_item(items, job, is_cut ? "incomplete" : "completed", out) &&
           print_event(items, is_cut ? "response.incomplete" : "response.completed",
                       json_pack("{s:o}", "response",
                                 response_of(model, job, finish, output_of(job, &items->parts, is_cut))),
                       out);
}

bool server_responses_fail(struct server_response_items *items, const struct server_error *failure,
                           struct server_buffer *out)
{
    return print_event(items, "error",
                       json_pack("{s:s, s:s, s:o}", "code", failure->code ? failure->code : "server_error", "message",
                                 failure->message, "param",
                                 failure->param[0] ? json_string(failure->param) : json_null()),
                       out);
}

void server_responses_free(struct server_response_items *items)
{
    server_parts_free(&items->parts);
    *items = (struct server_response_items){0};
}
