/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer functions of the API. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/load/load.h"
#include "runtime/text/stop_strings.h"

struct eng_text {
    struct eng_engine *engine;
    bool skip_special;
    struct decode_stream stream;
    struct stop_strings stop; /* strings: owned copies */
    char *released;           /* what the last push or finish released; NULL: there are no stop strings */
    size_t capacity;          /* of buffer, without the NUL */
    char buffer[];
};

static bool check_tokenizer(const struct eng_engine *engine, const char *function, uint32_t flags, uint32_t known,
                            struct status *status)
{
    if (!report_not_null(engine, function, "engine", status)) return false;
    if (flags & ~known)
        return status_fail(status, STATUS_USAGE, "%s: flags are %#x, expected only bits of %#x", function, flags,
                           known);
    if (engine->tokenizer) return true;
    return status_fail(status, STATUS_BAD_INPUT,
                       "%s: the engine has no tokenizer; use token ids, or build it from a checkpoint with a "
                       "tokenizer.json",
                       function);
}

static bool tokenize(const struct eng_engine *engine, const char *text, size_t size, uint32_t flags, int32_t *tokens,
                     size_t capacity, size_t *count, struct status *status)
{
    static const char function[] = "eng_tokenize";
    if (!check_tokenizer(engine, function, flags, ENG_TEXT_ADD_SPECIAL | ENG_TEXT_PLAIN, status) ||
        !report_not_null(size ? text : "", function, "text", status) ||
        !report_not_null(capacity ? (const void *)tokens : "", function, "tokens", status) ||
        !report_not_null(count, function, "count", status))
        return false;
    struct token_buffer buffer = {0};
    bool add_special = (flags & ENG_TEXT_ADD_SPECIAL) != 0;
    if (!size) text = "";
    bool ok = flags & ENG_TEXT_PLAIN
                  ? tokenizer_encode_plain(engine->tokenizer, text, size, add_special, NULL, 0, &buffer, status)
                  : tokenizer_encode(engine->tokenizer, text, size, add_special, &buffer, status);
    if (ok) {
        *count = buffer.count;
        if (buffer.count > capacity)
            ok = status_fail(status, STATUS_TOO_LONG, "%s: %zu tokens, room for %zu", function, buffer.count, capacity);
        else if (buffer.count)
            memcpy(tokens, buffer.ids, buffer.count * sizeof *tokens);
    }
    token_buffer_free(&buffer);
    return ok;
}

enum eng_status eng_tokenize(const struct eng_engine *engine, const char *text, size_t size, uint32_t flags,
                             int32_t *tokens, size_t capacity, size_t *count, struct eng_error *error)
{
    struct status status = {0};
    return report_result(tokenize(engine, text, size, flags, tokens, capacity, count, &status), &status, error);
}

/* A model's vocabulary may be padded beyond the tokenizer's: such ids have no text. */
static bool is_padding(const struct eng_engine *engine, int32_t token)
{
    return token >= 0 && (uint32_t)token >= tokenizer_vocab_size(engine->tokenizer) &&
           (uint64_t)token < engine->file.manifest.geometry.vocab_size;
}

static bool detokenize(const struct eng_engine *engine, const int32_t *tokens, size_t count, uint32_t flags, char *text,
                       size_t capacity, size_t *size, struct status *status)
{
    static const char function[] = "eng_detokenize";
    static const size_t most = PTRDIFF_MAX / sizeof *tokens; /* largest array in memory */
    struct text_buffer buffer = {0};
    int32_t *known = NULL;
    bool ok = false;
    if (!check_tokenizer(engine, function, flags, ENG_TEXT_KEEP_SPECIAL, status) ||
        !report_not_null(count ? (const void *)tokens : "", function, "tokens", status) ||
        !report_not_null(capacity ? text : "", function, "text", status) ||
        !report_not_null(size, function, "size", status))
        goto done;
    if (count > most) {
        status_fail(status, STATUS_USAGE, "%s: count is %zu, expected at most %zu", function, count, most);
        goto done;
    }
    known = malloc((count ? count : 1) * sizeof *known);
    if (!known) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto done;
    }
    size_t known_count = 0;
    for (size_t i = 0; i < count; i++)
        if (!is_padding(engine, tokens[i])) known[known_count++] = tokens[i];
    if (!tokenizer_decode(engine->tokenizer, known, known_count, !(flags & ENG_TEXT_KEEP_SPECIAL), &buffer, status))
        goto done;
    *size = buffer.size;
    if (buffer.size >= capacity) {
        status_fail(status, STATUS_TOO_LONG, "%s: %zu bytes and a NUL, room for %zu", function, buffer.size, capacity);
        goto done;
    }
    if (buffer.size) memcpy(text, buffer.text, buffer.size);
    text[buffer.size] = '\0';
    ok = true;

done:
    free(known);
    text_buffer_free(&buffer);
    return ok;
}

enum eng_status eng_detokenize(const struct eng_engine *engine, const int32_t *tokens, size_t count, uint32_t flags,
                               char *text, size_t capacity, size_t *size, struct eng_error *error)
{
    struct status status = {0};
    return report_result(detokenize(engine, tokens, count, flags, text, capacity, size, &status), &status, error);
}

static bool token_bytes(const struct eng_engine *engine, int32_t token, char *bytes, size_t capacity, size_t *size,
                        uint32_t *is_special, struct status *status)
{
    static const char function[] = "eng_token_bytes";
    if (!check_tokenizer(engine, function, 0, 0, status) ||
        !report_not_null(capacity ? bytes : "", function, "bytes", status) ||
        !report_not_null(size, function, "size", status))
        return false;
    if (token < 0 || (uint64_t)token >= engine->file.manifest.geometry.vocab_size)
        return status_fail(status, STATUS_BAD_INPUT, "%s: token is %d, expected 0 to %u", function, token,
                           (unsigned)engine->file.manifest.geometry.vocab_size - 1);
    char *own = malloc(decode_stream_max_bytes(engine->tokenizer));
    if (!own) return status_fail(status, STATUS_MACHINE, "out of memory");
    *size = tokenizer_token_bytes(engine->tokenizer, token, own);
    if (is_special) *is_special = tokenizer_is_special(engine->tokenizer, token);
    const bool fits = *size <= capacity;
    if (fits && *size) memcpy(bytes, own, *size);
    free(own);
    return fits || status_fail(status, STATUS_TOO_LONG, "%s: token %d has %zu bytes, room for %zu", function, token,
                               *size, capacity);
}

enum eng_status eng_token_bytes(const struct eng_engine *engine, int32_t token, char *bytes, size_t capacity,
                                size_t *size, uint32_t *is_special, struct eng_error *error)
{
    struct status status = {0};
    return report_result(token_bytes(engine, token, bytes, capacity, size, is_special, &status), &status, error);
}

static bool token_find(const struct eng_engine *engine, const char *text, size_t size, int32_t *token,
                       struct status *status)
{
    static const char function[] = "eng_token_find";
    if (!check_tokenizer(engine, function, 0, 0, status) ||
        !report_not_null(size ? text : "", function, "text", status) ||
        !report_not_null(token, function, "token", status))
        return false;
    const int32_t found = size ? tokenizer_find(engine->tokenizer, text, size) : -1;
    if (found < 0)
        return status_fail(status, STATUS_NOT_FOUND, "%s: the vocabulary has no token of these %zu bytes", function,
                           size);
    *token = found;
    return true;
}

enum eng_status eng_token_find(const struct eng_engine *engine, const char *text, size_t size, int32_t *token,
                               struct eng_error *error)
{
    struct status status = {0};
    return report_result(token_find(engine, text, size, token, &status), &status, error);
}

enum eng_status eng_text_create(const struct eng_engine *engine, uint32_t flags, struct eng_text **stream,
                                struct eng_error *error)
{
    struct status status = {0};
    if (!check_tokenizer(engine, "eng_text_create", flags, ENG_TEXT_KEEP_SPECIAL, &status) ||
        !report_not_null((const void *)stream, "eng_text_create", "stream", &status))
        return report_status(&status, error);
    size_t capacity = decode_stream_max_bytes(engine->tokenizer);
    struct eng_text *created = malloc(sizeof *created + capacity + 1);
    if (!created) {
        status_fail(&status, STATUS_MACHINE, "out of memory");
        return report_status(&status, error);
    }
    /* Only the engine's reference count changes. */
    created->engine = (struct eng_engine *)(uintptr_t)engine;
    load_retain(created->engine);
    created->stop = (struct stop_strings){0};
    created->released = NULL;
    created->capacity = capacity;
    created->skip_special = !(flags & ENG_TEXT_KEEP_SPECIAL);
    decode_stream_begin(&created->stream, engine->tokenizer, created->skip_special);
    *stream = created;
    return report_ok(error);
}

static bool check_stops(const struct eng_text *stream, const char *const *strings, size_t count, struct status *status)
{
    static const char function[] = "eng_text_set_stops";
    if (!report_not_null(stream, function, "stream", status) ||
        !report_not_null(count ? (const void *)strings : "", function, "strings", status))
        return false;
    if (count > ENG_MAX_STOP_STRINGS)
        return status_fail(status, STATUS_USAGE, "%s: count is %zu, expected at most %d", function, count,
                           ENG_MAX_STOP_STRINGS);
    if (stream->stop.size)
        return status_fail(status, STATUS_USAGE,
                           "%s: the stream holds %zu bytes of text back; call eng_text_finish first", function,
                           stream->stop.size);
    for (size_t i = 0; i < count; i++) {
        if (!report_not_null(strings[i], function, "strings", status)) return false;
        const size_t size = strnlen(strings[i], ENG_MAX_STOP_BYTES + 1);
        if (size < 1 || size > ENG_MAX_STOP_BYTES)
            return status_fail(status, STATUS_USAGE, "%s: stop string %zu has %s%zu bytes, expected 1 to %d", function,
                               i, size > ENG_MAX_STOP_BYTES ? "at least " : "", size, ENG_MAX_STOP_BYTES);
        if (((unsigned char)strings[i][0] & 0xc0) == 0x80)
            return status_fail(status, STATUS_USAGE, "%s: stop string %zu begins within a UTF-8 character", function,
                               i);
    }
    return true;
}

static void free_stops(struct eng_text *stream)
{
    free((void *)(uintptr_t)stream->stop.strings);
    stop_strings_free(&stream->stop);
    free(stream->released);
    stream->released = NULL;
}

/* Copies of the strings, after an array of their addresses. NULL: out of memory. */
static const char *const *copy_strings(const char *const *strings, size_t count)
{
    size_t size = count * sizeof *strings;
    for (size_t i = 0; i < count; i++) size += strlen(strings[i]) + 1;
    const char **copies = malloc(size);
    char *at = (char *)(copies + count);
    for (size_t i = 0; copies && i < count; i++) {
        const size_t length = strlen(strings[i]) + 1;
        copies[i] = memcpy(at, strings[i], length);
        at += length;
    }
    return copies;
}

enum eng_status eng_text_set_stops(struct eng_text *stream, const char *const *strings, size_t count,
                                   struct eng_error *error)
{
    struct status status = {0};
    if (!check_stops(stream, strings, count, &status)) return report_status(&status, error);
    struct eng_text made = {.stop = {.count = count}};
    if (count) {
        made.stop.strings = copy_strings(strings, count);
        bool ok = made.stop.strings && stop_strings_reserve(&made.stop, stream->capacity);
        made.released = ok ? malloc(made.stop.capacity + 1) : NULL;
        if (!made.released) {
            free_stops(&made);
            status_fail(&status, STATUS_MACHINE, "out of memory");
            return report_status(&status, error);
        }
    }
    free_stops(stream);
    stream->stop = made.stop;
    stream->released = made.released;
    return report_ok(error);
}

int32_t eng_text_stopped(const struct eng_text *stream)
{
    return stream && stream->stop.found ? (int32_t)stream->stop.which : -1;
}

/* Gives the caller text[*size] of the buffer, less what may be part of a stop string. */
static bool release(struct eng_text *stream, bool is_last, const char **text, size_t *size, struct status *status)
{
    size_t released;
    stream->buffer[*size] = '\0';
    *text = stream->buffer;
    if (!stream->stop.count) return true;
    if (!stop_strings_push(&stream->stop, stream->buffer, *size, &released))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    if (is_last) stop_strings_finish(&stream->stop, &released);
    memcpy(stream->released, stream->stop.held, released);
    stream->released[released] = '\0';
    stop_strings_drop(&stream->stop, released);
    *text = stream->released;
    *size = released;
    return true;
}

static bool check_stream(const struct eng_text *stream, const char *const *text, const size_t *size,
                         const char *function, struct status *status)
{
    return report_not_null(stream, function, "stream", status) &&
           report_not_null((const void *)text, function, "text", status) &&
           report_not_null(size, function, "size", status);
}

enum eng_status eng_text_push(struct eng_text *stream, int32_t token, const char **text, size_t *size,
                              struct eng_error *error)
{
    struct status status = {0};
    if (!check_stream(stream, text, size, "eng_text_push", &status)) return report_status(&status, error);
    *size = 0;
    if (!is_padding(stream->engine, token) &&
        !decode_stream_push(&stream->stream, token, stream->buffer, stream->capacity, size, &status))
        return report_status(&status, error);
    return report_result(release(stream, false, text, size, &status), &status, error);
}

enum eng_status eng_text_finish(struct eng_text *stream, const char **text, size_t *size, struct eng_error *error)
{
    struct status status = {0};
    if (!check_stream(stream, text, size, "eng_text_finish", &status)) return report_status(&status, error);
    *size = 0;
    if (!decode_stream_finish(&stream->stream, stream->buffer, stream->capacity, size, &status) ||
        !release(stream, true, text, size, &status))
        return report_status(&status, error);
    decode_stream_begin(&stream->stream, stream->engine->tokenizer, stream->skip_special);
    stop_strings_begin(&stream->stop);
    return report_ok(error);
}

void eng_text_destroy(struct eng_text **stream)
{
    if (!stream || !*stream) return;
    load_release((*stream)->engine);
    free_stops(*stream);
    free(*stream);
    *stream = NULL;
}
