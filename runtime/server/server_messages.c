/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_messages.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"

/* Takes the reference of `value`; NULL: out of memory. */
static bool print(json_t *value, struct server_buffer *out)
{
    char *text = value ? json_format(value, JSON_COMPACT) : NULL;
    bool ok = text && server_buffer_text(out, text);
    free(text);
    json_decref(value);
    return ok;
}

/* Takes the reference of `data`. */
static bool print_event(const char *name, json_t *data, struct server_buffer *out)
{
    bool ok = server_buffer_format(out, "event: %s\ndata: ", name);
    return print(data, out) && ok && server_buffer_text(out, "\n\n");
}

bool server_messages_count(uint64_t tokens, struct server_buffer *out)
{
    return print(json_pack("{s:I}", "input_tokens", (json_int_t)tokens), out);
}

static json_t *text_of(const struct server_buffer *text)
{
    return json_stringn(text->data ? text->data : "", text->size);
}

static const char *reason_of(enum server_finish finish, size_t calls, const char *stop)
{
    if (finish != SERVER_FINISH_STOP) return "max_tokens";
    if (calls) return "tool_use";
    return stop ? "stop_sequence" : "end_turn";
}

/* Input tokens are those that were not read from the cache. */
static json_t *usage_of(const struct server_job *job, uint64_t cached, uint64_t generated)
{
    return json_pack("{s:I, s:I, s:i, s:I}", "input_tokens", (json_int_t)(job->prompt_tokens - cached), "output_tokens",
                     (json_int_t)generated, "cache_creation_input_tokens", 0, "cache_read_input_tokens",
                     (json_int_t)cached);
}

/* ---- whole replies ---- */

static json_t *block_of(const struct server_part *part)
{
    if (part->kind == SERVER_PART_REASONING)
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", text_of(&part->text), "signature", "");
    if (part->kind != SERVER_PART_CALL) return json_pack("{s:s, s:o}", "type", "text", "text", text_of(&part->text));
    /* A named function's arguments may be cut: a client that reads a stream makes an object of them, too. */
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", part->id, "name", part->name, "input",
                     server_partial_object(part->text.data ? part->text.data : "", part->text.size));
}

static json_t *message_object(const char *model, const struct server_job *job, json_t *content, const char *reason,
                              const char *stop, json_t *usage)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "id", job->id, "type", "message", "role", "assistant",
                     "model", model, "content", content, "stop_reason", reason ? json_string(reason) : json_null(),
                     "stop_sequence", stop ? json_string(stop) : json_null(), "usage", usage);
}

bool server_messages_reply(const char *model, const struct server_job *job, struct server_buffer *out)
{
    const struct server_choice *choice = job->choices;
    struct server_parts parts = {0};
    json_t *content = json_array();
    size_t calls = 0;
    bool ok = content && server_job_divide(job, 0, &parts, &calls);
    for (size_t i = 0; ok && i < parts.count; i++) ok = json_add(content, block_of(&parts.items[i]));
    const char *stop = calls ? NULL : stop_strings_found(&choice->stop);
    ok = ok && print(message_object(model, job, json_incref(content), reason_of(choice->finish, calls, stop), stop,
                                    usage_of(job, server_job_cached_tokens(job), choice->tokens)),
                     out);
    json_decref(content);
    server_parts_free(&parts);
    return ok;
}

/* ---- streams ---- */

bool server_messages_ping(struct server_buffer *out)
{
    return print_event("ping", json_pack("{s:s}", "type", "ping"), out);
}

bool server_messages_begin(const char *model, const struct server_job *job, struct server_buffer *out)
{
    return print_event("message_start",
                       json_pack("{s:s, s:o}", "type", "message_start", "message",
                                 message_object(model, job, json_array(), NULL, NULL, usage_of(job, 0, 0))),
                       out) &&
           server_messages_ping(out);
}

static bool close_block(struct server_message_blocks *blocks, struct server_buffer *out)
{
    if (!blocks->is_open) return true;
    blocks->is_open = false;
    return print_event("content_block_stop",
                       json_pack("{s:s, s:I}", "type", "content_block_stop", "index", (json_int_t)blocks->index++),
                       out);
}

static bool open_block(struct server_message_blocks *blocks, const struct server_part *part, struct server_buffer *out)
{
    json_t *block;
    if (!close_block(blocks, out)) return false;
    if (part->kind == SERVER_PART_CONTENT)
        block = json_pack("{s:s, s:s}", "type", "text", "text", "");
    else if (part->kind == SERVER_PART_REASONING)
        block = json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "");
    else
        block = json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", part->id, "name", part->name, "input");
    blocks->is_open = true;
    blocks->kind = part->kind;
    return print_event("content_block_start",
                       json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index", (json_int_t)blocks->index,
                                 "content_block", block),
                       out);
}

static bool print_delta(const struct server_message_blocks *blocks, const struct server_part *part,
                        struct server_buffer *out)
{
    static const struct {
        const char *type, *member;
    } deltas[] = {[SERVER_PART_CONTENT] = {"text_delta", "text"},
                  [SERVER_PART_REASONING] = {"thinking_delta", "thinking"},
                  [SERVER_PART_CALL] = {"input_json_delta", "partial_json"},
                  [SERVER_PART_ARGUMENTS] = {"input_json_delta", "partial_json"}};
    if (!part->text.size) return true;
    json_t *delta =
        json_pack("{s:s, s:o}", "type", deltas[part->kind].type, deltas[part->kind].member, text_of(&part->text));
    return print_event("content_block_delta",
                       json_pack("{s:s, s:I, s:o}", "type", "content_block_delta", "index", (json_int_t)blocks->index,
                                 "delta", delta),
                       out);
}

bool server_messages_parts(struct server_message_blocks *blocks, const struct server_parts *parts,
                           struct server_buffer *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < parts->count; i++) {
        const struct server_part *part = &parts->items[i];
        const bool goes_on = blocks->is_open && (part->kind == SERVER_PART_ARGUMENTS ||
                                                 (part->kind == blocks->kind && part->kind != SERVER_PART_CALL));
        ok = (goes_on || open_block(blocks, part, out)) && print_delta(blocks, part, out);
    }
    return ok;
}

bool server_messages_end(struct server_message_blocks *blocks, const struct server_job *job, enum server_finish finish,
                         size_t calls, const char *stop, struct server_buffer *out)
{
    if (calls) stop = NULL;
    return close_block(blocks, out) &&
           print_event("message_delta",
                       json_pack("{s:s, s:{s:s, s:o}, s:o}", "type", "message_delta", "delta", "stop_reason",
                                 reason_of(finish, calls, stop), "stop_sequence",
                                 stop ? json_string(stop) : json_null(), "usage",
                                 usage_of(job, server_job_cached_tokens(job), job->choices[0].tokens)),
                       out) &&
           print_event("message_stop", json_pack("{s:s}", "type", "message_stop"), out);
}
