/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_logprobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/printable.h"

/* ---- the list ---- */

static bool reserve(struct server_logprobs *logprobs, size_t capacity)
{
    enum { MOST = 1 << 28 };
    if (capacity <= logprobs->capacity) return true;
    if (capacity > MOST) return false;
    struct server_logprob *tokens = realloc(logprobs->tokens, capacity * sizeof *tokens);
    if (!tokens) return false;
    logprobs->tokens = tokens;
    struct eng_logprob *top = realloc(logprobs->top, (capacity * logprobs->top_count + 1) * sizeof *top);
    if (!top) return false;
    logprobs->top = top;
    logprobs->capacity = capacity;
    return true;
}

bool server_logprobs_add(struct server_logprobs *logprobs, const struct eng_logprob *drawn,
                         const struct eng_logprob *top, uint64_t begin)
{
    enum { LEAST = 16 };
    const size_t count = logprobs->count;
    if (count == logprobs->capacity && !reserve(logprobs, count + count / 2 + LEAST)) return false;
    logprobs->tokens[count] = (struct server_logprob){.drawn = *drawn, .begin = begin, .end = begin};
    if (logprobs->top_count)
        memcpy(logprobs->top + count * logprobs->top_count, top, logprobs->top_count * sizeof *top);
    logprobs->count++;
    return true;
}

void server_logprobs_text(struct server_logprobs *logprobs, uint64_t end, uint64_t released)
{
    if (logprobs->count) logprobs->tokens[logprobs->count - 1].end = end;
    while (logprobs->ready < logprobs->count && logprobs->tokens[logprobs->ready].end <= released) logprobs->ready++;
}

void server_logprobs_finish(struct server_logprobs *logprobs, uint64_t released)
{
    while (logprobs->ready < logprobs->count && logprobs->tokens[logprobs->ready].begin < released) logprobs->ready++;
    logprobs->count = logprobs->ready;
}

bool server_logprobs_take(struct server_logprobs *logprobs, struct server_logprobs *taken)
{
    const size_t count = logprobs->ready, top = logprobs->top_count, rest = logprobs->count - count;
    taken->top_count = top;
    if (!count) return true;
    if (!reserve(taken, count)) return false;
    memcpy(taken->tokens, logprobs->tokens, count * sizeof *taken->tokens);
    memcpy(taken->top, logprobs->top, count * top * sizeof *taken->top);
    memmove(logprobs->tokens, logprobs->tokens + count, rest * sizeof *logprobs->tokens);
    memmove(logprobs->top, logprobs->top + count * top, rest * top * sizeof *logprobs->top);
    taken->count = taken->ready = count;
    logprobs->count = rest;
    logprobs->ready = 0;
    return true;
}

void server_logprobs_free(struct server_logprobs *logprobs)
{
    free(logprobs->tokens);
    free(logprobs->top);
    *logprobs = (struct server_logprobs){0};
}

/* ---- JSON ---- */

/* Appends the bytes of a token; none for one that the vocabulary lacks. */
static bool add_bytes(const struct eng_engine *engine, int32_t token, struct server_buffer *bytes)
{
    char few[256];
    size_t size = 0;
    enum eng_status status = eng_token_bytes(engine, token, few, sizeof few, &size, NULL, NULL);
    if (status == ENG_OK) return server_buffer_add(bytes, few, size);
    if (status != ENG_TOO_LONG) return status == ENG_BAD_INPUT;
    char *many = malloc(size);
    bool ok = many && eng_token_bytes(engine, token, many, size, &size, NULL, NULL) == ENG_OK &&
              server_buffer_add(bytes, many, size);
    free(many);
    return ok;
}

/* Part of a character, as tokens of bytes are. */
static bool is_text(const struct server_buffer *bytes)
{
    size_t at = 0;
    for (size_t length = 1; at < bytes->size && length; at += length)
        length = printable_utf8(bytes->data + at, bytes->size - at);
    return at == bytes->size;
}

/* OpenAI's smallest number stands for the probability 0, since JSON has no infinity. A token without a log-probability has null. */
static bool print_number(float logprob, struct server_buffer *out)
{
    static const double least = -9999;
    const double number = (double)logprob;
    if (isnan(logprob)) return server_buffer_text(out, "null");
    return server_buffer_format(out, "%.9g", number > least ? number : least);
}

/* {"token": , "logprob": , "bytes": [ ]} without the last brace. */
static bool print_chat_token(const struct eng_engine *engine, const struct eng_logprob *logprob,
                             struct server_buffer *out)
{
    struct server_buffer bytes = {0};
    bool ok = add_bytes(engine, logprob->token, &bytes) && server_buffer_text(out, "{\"token\":") &&
              server_buffer_string(out, bytes.data, bytes.size) && server_buffer_text(out, ",\"logprob\":") &&
              print_number(logprob->logprob, out) && server_buffer_text(out, ",\"bytes\":[");
    for (size_t i = 0; ok && i < bytes.size; i++)
        ok = server_buffer_format(out, i ? ",%u" : "%u", (unsigned)(unsigned char)bytes.data[i]);
    ok = ok && server_buffer_text(out, "]");
    server_buffer_free(&bytes);
    return ok;
}

bool server_logprobs_print_list(const struct server_logprobs *logprobs, size_t first, size_t end,
                                const struct eng_engine *engine, struct server_buffer *out)
{
    bool ok = server_buffer_text(out, "[");
    for (size_t i = first; ok && i < end; i++) {
        const struct eng_logprob *top = logprobs->top + i * logprobs->top_count;
        ok = server_buffer_text(out, i > first ? "," : "") &&
             print_chat_token(engine, &logprobs->tokens[i].drawn, out) &&
             server_buffer_text(out, ",\"top_logprobs\":[");
        for (size_t t = 0; ok && t < logprobs->top_count && top[t].token >= 0; t++)
            ok = server_buffer_text(out, t ? "," : "") && print_chat_token(engine, &top[t], out) &&
                 server_buffer_text(out, "}");
        ok = ok && server_buffer_text(out, "]}");
    }
    return ok && server_buffer_text(out, "]");
}

static bool print_chat(const struct server_logprobs *logprobs, const struct eng_engine *engine,
                       struct server_buffer *out)
{
    return server_buffer_text(out, "{\"content\":") &&
           server_logprobs_print_list(logprobs, 0, logprobs->ready, engine, out) &&
           server_buffer_text(out, ",\"refusal\":null}");
}

/* The text as a JSON string; of a token that is no text "bytes:" and its bytes. */
static bool print_name(const struct eng_engine *engine, int32_t token, struct server_buffer *out)
{
    struct server_buffer bytes = {0}, name = {0};
    bool ok = add_bytes(engine, token, &bytes);
    const bool plain = is_text(&bytes);
    if (ok && !plain) ok = server_buffer_text(&name, "bytes:");
    for (size_t i = 0; ok && !plain && i < bytes.size; i++)
        ok = server_buffer_format(&name, "\\x%02x", (unsigned)(unsigned char)bytes.data[i]);
    const struct server_buffer *shown = plain ? &bytes : &name;
    ok = ok && server_buffer_string(out, shown->data, shown->size);
    server_buffer_free(&bytes);
    server_buffer_free(&name);
    return ok;
}

/* Names of an object's members, as places in a buffer. */
struct names {
    size_t count, begins[ENG_MAX_LOGPROBS + 1], sizes[ENG_MAX_LOGPROBS + 1];
};

static bool has_name(const struct names *names, const struct server_buffer *out, size_t begin)
{
    const size_t size = out->size - begin;
    for (size_t i = 0; i < names->count; i++)
        if (names->sizes[i] == size && memcmp(out->data + names->begins[i], out->data + begin, size) == 0) return true;
    return false;
}

static bool print_member(const struct eng_engine *engine, const struct eng_logprob *logprob, struct names *names,
                         struct server_buffer *out)
{
    const size_t before = out->size;
    if (!server_buffer_text(out, names->count ? "," : "")) return false;
    const size_t begin = out->size;
    if (!print_name(engine, logprob->token, out)) return false;
    /* Several tokens can have the same text; the likeliest comes first. */
    if (has_name(names, out, begin)) {
        out->size = before;
        return true;
    }
    names->begins[names->count] = begin;
    names->sizes[names->count++] = out->size - begin;
    return server_buffer_text(out, ":") && print_number(logprob->logprob, out);
}

/* The likeliest tokens, and the drawn one if it is not among them. */
static bool print_top(const struct server_logprobs *logprobs, const struct eng_engine *engine, size_t index,
                      struct server_buffer *out)
{
    const struct eng_logprob *top = logprobs->top + index * logprobs->top_count,
                             *drawn = &logprobs->tokens[index].drawn;
    if (isnan(drawn->logprob)) return server_buffer_text(out, index ? ",null" : "null");
    bool ok = server_buffer_text(out, index ? ",{" : "{"), has_drawn = false;
    struct names names = {0};
    for (size_t t = 0; ok && t < logprobs->top_count && top[t].token >= 0; t++) {
        has_drawn = has_drawn || top[t].token == drawn->token;
        ok = print_member(engine, &top[t], &names, out);
    }
    return ok && (has_drawn || print_member(engine, drawn, &names, out)) && server_buffer_text(out, "}");
}

static bool print_completion(const struct server_logprobs *logprobs, const struct eng_engine *engine,
                             struct server_buffer *out)
{
    const size_t count = logprobs->ready;
    bool ok = server_buffer_text(out, "{\"tokens\":[");
    for (size_t i = 0; ok && i < count; i++)
        ok = server_buffer_text(out, i ? "," : "") && print_name(engine, logprobs->tokens[i].drawn.token, out);
    ok = ok && server_buffer_text(out, "],\"token_logprobs\":[");
    for (size_t i = 0; ok && i < count; i++)
        ok = server_buffer_text(out, i ? "," : "") && print_number(logprobs->tokens[i].drawn.logprob, out);
    ok = ok && server_buffer_text(out, "],\"top_logprobs\":[");
    for (size_t i = 0; ok && i < count; i++) ok = print_top(logprobs, engine, i, out);
    ok = ok && server_buffer_text(out, "],\"text_offset\":[");
    for (size_t i = 0; ok && i < count; i++)
        ok = server_buffer_format(out, i ? ",%llu" : "%llu", (unsigned long long)logprobs->tokens[i].begin);
    return ok && server_buffer_text(out, "]}");
}

bool server_logprobs_print(const struct server_logprobs *logprobs, const struct eng_engine *engine, bool is_chat,
                           struct server_buffer *out)
{
    return is_chat ? print_chat(logprobs, engine, out) : print_completion(logprobs, engine, out);
}
