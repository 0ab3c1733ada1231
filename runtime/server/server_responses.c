/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_responses.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"

enum { ITEM_ID_BYTES = SERVER_ID_BYTES + 32 };

static json_t *text_of(const struct server_buffer *text)
{
    return json_stringn(text->data ? text->data : "", text->size);
}

static void name_item(const struct server_job *job, enum server_part_kind kind, size_t index, char id[ITEM_ID_BYTES])
{
    static const char *const names[] =
        {[SERVER_PART_CONTENT] = "msg", [SERVER_PART_REASONING] = "rs", [SERVER_PART_CALL] = "fc"};
    const char *number = strchr(job->id, '_');
    snprintf(id, ITEM_ID_BYTES, "%s%s_%zu", names[kind], number ? number : "", index);
}

/* ---- log-probabilities ---- */

/* A tree of them takes many times the memory of their text, so a string that no client can foresee stands for them until the text is printed. */
static json_t *logprobs_of(const struct server_job *job, struct server_token_range tokens)
{
    if (tokens.first == tokens.end) return json_array();
    return json_sprintf("%s:%zu:%zu", job->id, tokens.first, tokens.end);
}

static bool print_text(const char *text, const struct server_response_items *items, const struct server_job *job,
                       struct server_buffer *out)
{
    char sign[SERVER_ID_BYTES + 32];
    size_t first, end;
    snprintf(sign, sizeof sign, "\"logprobs\":\"%s:", job->id);
    for (const char *found; (found = strstr(text, sign)); text = strchr(found + strlen(sign), '"') + 1) {
        if (sscanf(found + strlen(sign), "%zu:%zu", &first, &end) != 2 || end > items->logprobs.count) return false;
        if (!server_buffer_add(out, text, (size_t)(found - text)) || !server_buffer_text(out, "\"logprobs\":") ||
            !server_logprobs_print_list(&items->logprobs, first, end, items->engine, out))
            return false;
    }
    return server_buffer_text(out, text);
}

/* Takes the reference of `value`; NULL: out of memory. */
static bool print(json_t *value, const struct server_response_items *items, const struct server_job *job,
                  struct server_buffer *out)
{
    char *text = value ? json_format(value, JSON_COMPACT) : NULL;
    bool ok = text && print_text(text, items, job, out);
    free(text);
    json_decref(value);
    return ok;
}

bool server_responses_count(uint64_t tokens, struct server_buffer *out)
{
    return server_buffer_format(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%" PRIu64 "}", tokens);
}

/* ---- items ---- */

/* A part of a message or of reasoning. Takes the reference of `logprobs`, which reasoning has none of. */
static json_t *content_of(enum server_part_kind kind, const struct server_buffer *text, json_t *logprobs)
{
    if (kind != SERVER_PART_REASONING)
        return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text_of(text), "annotations",
                         "logprobs", logprobs);
    json_decref(logprobs);
    return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text_of(text));
}

static const struct server_token_range no_tokens;

static struct server_token_range range_of(const struct server_response_items *items, size_t index)
{
    return items->ranges ? items->ranges[index] : no_tokens;
}

/* The complete content of an item. */
static json_t *whole_content_of(const struct server_response_items *items, const struct server_job *job, size_t index)
{
    const struct server_part *part = &items->parts.items[index];
    return content_of(part->kind, &part->text, logprobs_of(job, range_of(items, index)));
}

/* An item before it has content, or a complete one. */
static json_t *item_of(const struct server_response_items *items, const struct server_job *job, size_t index,
                       const char *status)
{
    static const struct server_buffer empty;
    const struct server_part *part = &items->parts.items[index];
    const bool begins = strcmp(status, "in_progress") == 0;
    char id[ITEM_ID_BYTES];
    name_item(job, part->kind, index, id);
    if (part->kind == SERVER_PART_CALL)
        return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s}", "type", "function_call", "id", id, "call_id", part->id,
                         "name", part->name, "arguments", text_of(begins ? &empty : &part->text), "status", status);
    json_t *content = json_array();
    if (!content || (!begins && !json_add(content, whole_content_of(items, job, index)))) {
        json_decref(content);
        return NULL;
    }
    if (part->kind == SERVER_PART_REASONING)
        return json_pack("{s:s, s:s, s:[], s:o, s:s}", "type", "reasoning", "id", id, "summary", "content", content,
                         "status", status);
    return json_pack("{s:s, s:s, s:s, s:o, s:s}", "type", "message", "id", id, "role", "assistant", "content", content,
                     "status", status);
}

/* The last item of an answer that was cut is incomplete, but for a call: those that are cut are left out, unless the function is named. */
static const char *status_of_last(const struct server_response_items *items, bool is_cut)
{
    const struct server_part *last = items->parts.count ? &items->parts.items[items->parts.count - 1] : NULL;
    if (!last || !is_cut) return "completed";
    if (last->kind != SERVER_PART_CALL) return "incomplete";
    json_t *arguments = json_loadb(last->text.data ? last->text.data : "", last->text.size, 0, NULL);
    const char *status = arguments ? "completed" : "incomplete";
    json_decref(arguments);
    return status;
}

static json_t *output_of(const struct server_response_items *items, const struct server_job *job, bool is_cut)
{
    const size_t count = items->parts.count;
    json_t *output = json_array();
    bool ok = output != NULL;
    for (size_t i = 0; ok && i < count; i++)
        ok = json_add(output, item_of(items, job, i, i + 1 == count ? status_of_last(items, is_cut) : "completed"));
    if (ok) return output;
    json_decref(output);
    return NULL;
}

/* ---- responses ---- */

static json_t *usage_of(const struct server_job *job)
{
    uint64_t reasoning;
    const json_int_t in = (json_int_t)job->prompt_tokens, out = (json_int_t)server_job_tokens(job, &reasoning);
    return json_pack("{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I}", "input_tokens", in, "input_tokens_details",
                     "cached_tokens", (json_int_t)server_job_cached_tokens(job), "cache_write_tokens", 0,
                     "output_tokens", out, "output_tokens_details", "reasoning_tokens", (json_int_t)reasoning,
                     "total_tokens", in + out);
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

/* ---- streams ---- */

/* Takes the reference of `event`, to which type and number are added. */
static bool print_event(struct server_response_items *items, const struct server_job *job, const char *type,
                        json_t *event, struct server_buffer *out)
{
    if (!out) {
        json_decref(event);
        return true;
    }
    bool ok = event && json_put(event, "type", json_string(type)) &&
              json_put(event, "sequence_number", json_integer((json_int_t)items->sequence)) &&
              server_buffer_format(out, "event: %s\ndata: ", type);
    items->sequence++;
    if (!ok) {
        json_decref(event);
        return false;
    }
    return print(event, items, job, out) && server_buffer_text(out, "\n\n");
}

bool server_responses_begin(struct server_response_items *items, const char *model, const struct server_job *job,
                            struct server_buffer *out)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    bool ok = true;
    for (int i = 0; ok && i < 2; i++)
        ok =
            print_event(items, job, types[i],
                        json_pack("{s:o}", "response", response_of(model, job, SERVER_FINISH_NONE, json_array())), out);
    return ok;
}

/* An event of the last item: its place, and another member, whose reference is taken; for a text, tokens with log-probabilities. */
static bool print_item_event(struct server_response_items *items, const struct server_job *job, const char *type,
                             const char *member, json_t *value, struct server_token_range tokens,
                             struct server_buffer *out)
{
    const size_t index = items->parts.count - 1;
    const enum server_part_kind kind = items->parts.items[index].kind;
    char id[ITEM_ID_BYTES];
    name_item(job, kind, index, id);
    json_t *event = json_pack("{s:s, s:I, s:o}", "item_id", id, "output_index", (json_int_t)index, member, value);
    bool ok = event && (kind == SERVER_PART_CALL || json_put(event, "content_index", json_integer(0)));
    const bool is_text = kind == SERVER_PART_CONTENT && strcmp(member, "part") != 0;
    ok = ok && (!is_text || json_put(event, "logprobs", logprobs_of(job, tokens)));
    if (ok) return print_event(items, job, type, event, out);
    json_decref(event);
    return false;
}

static bool print_item(struct server_response_items *items, const struct server_job *job, const char *type,
                       const char *status, struct server_buffer *out)
{
    const size_t index = items->parts.count - 1;
    return print_event(items, job, type,
                       json_pack("{s:I, s:o}", "output_index", (json_int_t)index, "item",
                                 item_of(items, job, index, status)),
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
    const size_t index = items->parts.count - 1;
    const struct server_part *part = &items->parts.items[index];
    items->is_open = false;
    return print_item_event(items, job, names[part->kind].done, names[part->kind].member, text_of(&part->text),
                            range_of(items, index), out) &&
           (part->kind == SERVER_PART_CALL || print_item_event(items, job, "response.content_part.done", "part",
                                                               whole_content_of(items, job, index), no_tokens, out)) &&
           print_item(items, job, "response.output_item.done", status, out);
}

/* For the item that was added last. */
static bool add_range(struct server_response_items *items)
{
    const size_t count = items->parts.count;
    struct server_token_range *ranges = realloc(items->ranges, count * sizeof *ranges);
    if (!ranges) return false;
    items->ranges = ranges;
    ranges[count - 1] = no_tokens;
    return true;
}

/* The tokens that wait become part of the last item if that is a message. Returns them. */
static struct server_token_range take_pending(struct server_response_items *items)
{
    const size_t last = items->parts.count - 1;
    const struct server_token_range taken = {items->pending, items->logprobs.count};
    if (!items->ranges || items->parts.items[last].kind != SERVER_PART_CONTENT || taken.first == taken.end)
        return no_tokens;
    struct server_token_range *range = &items->ranges[last];
    *range = (struct server_token_range){range->first == range->end ? taken.first : range->first, taken.end};
    items->pending = taken.end;
    return taken;
}

/* Adds an empty item. */
static bool open_item(struct server_response_items *items, const struct server_job *job, const struct server_part *part,
                      struct server_buffer *out)
{
    static const struct server_buffer empty;
    if (!close_item(items, job, "completed", out) || !server_parts_begin(&items->parts, part)) return false;
    items->is_open = true;
    if (job->request.wants_logprobs && !add_range(items)) return false;
    return print_item(items, job, "response.output_item.added", "in_progress", out) &&
           (part->kind == SERVER_PART_CALL ||
            print_item_event(items, job, "response.content_part.added", "part",
                             content_of(part->kind, &empty, json_array()), no_tokens, out));
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
             print_item_event(items, job, names[item->kind].delta, "delta", text_of(&part->text), take_pending(items),
                              out);
    }
    return ok;
}

/* Bytes of the text's first characters. */
static size_t bytes_of(const char *text, size_t size, uint64_t characters)
{
    size_t at = 0;
    for (; at < size && characters; characters--)
        for (at++; at < size && ((unsigned char)text[at] & 0xc0) == 0x80;) at++;
    return at;
}

/* The text of a token, or what follows the last one. Tokens of which no message can come any more are dropped. */
static bool push_token(struct server_response_items *items, const struct server_job *job, struct server_answer *answer,
                       const char *text, size_t size, enum server_finish finish, struct server_buffer *out)
{
    struct server_parts parts = {0};
    bool ok = server_answer_push(answer, text, size, &parts) &&
              (!finish || server_answer_finish(answer, finish == SERVER_FINISH_LENGTH, &parts)) &&
              server_responses_parts(items, job, &parts, out);
    const bool is_marker = size && !answer->held.size && !answer->space.size;
    if (parts.count || is_marker || answer->has_dropped) items->logprobs.count = items->logprobs.ready = items->pending;
    items->characters += server_count_characters(text, size);
    server_parts_free(&parts);
    return ok;
}

bool server_responses_tokens(struct server_response_items *items, const struct server_job *job,
                             struct server_answer *answer, const struct server_buffer *text, enum server_finish finish,
                             const struct server_logprobs *logprobs, struct server_buffer *out)
{
    const char *data = text->data ? text->data : "";
    size_t at = 0;
    bool ok = true;
    items->logprobs.top_count = logprobs->top_count;
    for (size_t i = 0; ok && i < logprobs->ready; i++) {
        const struct server_logprob *token = &logprobs->tokens[i];
        const uint64_t left = token->end > items->characters ? token->end - items->characters : 0;
        const size_t size = bytes_of(data + at, text->size - at, left);
        ok = server_logprobs_add(&items->logprobs, &token->drawn, logprobs->top + i * logprobs->top_count,
                                 token->begin) &&
             push_token(items, job, answer, data + at, size, SERVER_FINISH_NONE, out);
        at += size;
    }
    ok = ok && push_token(items, job, answer, data + at, text->size - at, finish, out);
    /* Those at its end that have no text. */
    if (ok && finish && items->is_open) take_pending(items);
    return ok;
}

bool server_responses_end(struct server_response_items *items, const char *model, const struct server_job *job,
                          enum server_finish finish, struct server_buffer *out)
{
    const bool is_cut = finish == SERVER_FINISH_LENGTH;
    return close_item(items, job, status_of_last(items, is_cut), out) &&
           print_event(items, job, is_cut ? "response.incomplete" : "response.completed",
                       json_pack("{s:o}", "response", response_of(model, job, finish, output_of(items, job, is_cut))),
                       out);
}

bool server_responses_fail(struct server_response_items *items, const struct server_job *job, struct server_buffer *out)
{
    const struct server_error *failure = &job->failure;
    return print_event(items, job, "error",
                       json_pack("{s:s, s:s, s:o}", "code", failure->code ? failure->code : "server_error", "message",
                                 failure->message, "param",
                                 failure->param[0] ? json_string(failure->param) : json_null()),
                       out);
}

void server_responses_free(struct server_response_items *items)
{
    server_parts_free(&items->parts);
    server_logprobs_free(&items->logprobs);
    free(items->ranges);
    *items = (struct server_response_items){0};
}

/* ---- whole responses ---- */

/* Parts of text that follow each other have one kind already: each is an item. */
static bool divide(struct server_response_items *items, const struct server_job *job)
{
    const struct server_choice *choice = job->choices;
    struct server_answer answer;
    size_t calls;
    if (!job->request.wants_logprobs) return server_job_divide(job, 0, &items->parts, &calls);
    server_job_begin_answer(job, &answer);
    const bool ok = server_responses_tokens(items, job, &answer, &choice->out, choice->finish, &choice->logprobs, NULL);
    server_answer_free(&answer);
    return ok;
}

bool server_responses_reply(const char *model, const struct eng_engine *engine, const struct server_job *job,
                            struct server_buffer *out)
{
    struct server_response_items items = {.engine = engine};
    const enum server_finish finish = job->choices[0].finish;
    bool ok = divide(&items, job) &&
              print(response_of(model, job, finish, output_of(&items, job, finish == SERVER_FINISH_LENGTH)), &items,
                    job, out);
    server_responses_free(&items);
    return ok;
}
