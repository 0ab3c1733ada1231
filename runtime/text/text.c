/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer functions of the API. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/load/load.h"

struct eng_text {
    struct eng_engine *engine;
    bool skip_special;
    struct decode_stream stream;
    size_t capacity; /* of buffer, without the NUL */
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
    created->capacity = capacity;
    created->skip_special = !(flags & ENG_TEXT_KEEP_SPECIAL);
    decode_stream_begin(&created->stream, engine->tokenizer, created->skip_special);
    *stream = created;
    return report_ok(error);
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
    stream->buffer[*size] = '\0';
    *text = stream->buffer;
    return report_ok(error);
}

enum eng_status eng_text_finish(struct eng_text *stream, const char **text, size_t *size, struct eng_error *error)
{
    struct status status = {0};
    if (!check_stream(stream, text, size, "eng_text_finish", &status)) return report_status(&status, error);
    *size = 0;
    if (!decode_stream_finish(&stream->stream, stream->buffer, stream->capacity, size, &status))
        return report_status(&status, error);
    stream->buffer[*size] = '\0';
    *text = stream->buffer;
    decode_stream_begin(&stream->stream, stream->engine->tokenizer, stream->skip_special);
    return report_ok(error);
}

void eng_text_destroy(struct eng_text **stream)
{
    if (!stream || !*stream) return;
    load_release((*stream)->engine);
    free(*stream);
    *stream = NULL;
}
