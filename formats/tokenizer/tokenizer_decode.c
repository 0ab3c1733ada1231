/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding. The decoder's steps for single tokens were applied at import, so a token is a lookup of bytes. The remaining steps
 * are a small state machine. It holds back an incomplete character and, if the decoder strips the end of the text, a few
 * characters that may be that end:
 *
 *   token's bytes -> metaspace -> characters (invalid ones become U+FFFD) -> strip start, hold back the end -> out
 *
 * tokenizer_decode uses the same machine as the stream, so they only differ as tokenizer.h states. */
#include <string.h>

#include "formats/tokenizer/tokenizer_internal.h"

/* Output of one push. Requires: it fits. */
struct sink {
    struct decode_stream *stream;
    char *out;
    size_t size;
};

static void put(struct sink *sink, const void *bytes, size_t size)
{
    memcpy(sink->out + sink->size, bytes, size);
    sink->size += size;
}

static void put_strip_character(struct sink *sink, uint32_t count)
{
    char bytes[TEXT_CHARACTER_BYTES];
    size_t size = text_write(sink->stream->tokenizer->header->strip_character, bytes);
    for (; count > 0; count--) put(sink, bytes, size);
}

/* Emits one complete character after the decoder's Strip. */
static void put_character(struct sink *sink, const uint8_t *bytes, size_t size)
{
    struct decode_stream *stream = sink->stream;
    const struct image_header *header = stream->tokenizer->header;
    if (stream->strip_left > 0 || header->strip_stop > 0) {
        uint32_t character;
        text_read((const char *)bytes, &character);
        if (character == header->strip_character) {
            if (stream->strip_left > 0) {
                stream->strip_left--;
            } else if (stream->held < header->strip_stop) {
                stream->held++;
            } else {
                put(sink, bytes, size); /* more than can be stripped: emit the first one held */
            }
            return;
        }
        stream->strip_left = 0;
        put_strip_character(sink, stream->held);
        stream->held = 0;
    }
    put(sink, bytes, size);
}

static void put_replacement(struct sink *sink)
{
    put_character(sink, (const uint8_t *)TEXT_REPLACEMENT, TEXT_REPLACEMENT_BYTES);
}

/* Ends an incomplete character with one U+FFFD. */
static void drop_pending(struct sink *sink)
{
    if (sink->stream->pending_count) put_replacement(sink);
    sink->stream->pending_count = 0;
}

/* Adds bytes, which may begin or end within a character. */
static void put_bytes(struct sink *sink, const uint8_t *bytes, size_t size)
{
    struct decode_stream *stream = sink->stream;
    size_t at = 0;
    while (at < size) {
        size_t length;
        if (stream->pending_count == 0) {
            switch (text_next(bytes + at, size - at, &length)) {
            case TEXT_WHOLE: put_character(sink, bytes + at, length); break;
            case TEXT_BROKEN: put_replacement(sink); break;
            default: memcpy(stream->pending, bytes + at, length); stream->pending_count = (uint8_t)length;
            }
            at += length;
            continue;
        }
        stream->pending[stream->pending_count] = bytes[at];
        switch (text_next(stream->pending, stream->pending_count + 1u, &length)) {
        case TEXT_WHOLE:
            put_character(sink, stream->pending, length);
            stream->pending_count = 0;
            at++;
            break;
        case TEXT_CUT:
            stream->pending_count++;
            at++;
            break;
        default: /* the pending bytes are a maximal ill-formed piece; look at this byte again */ drop_pending(sink);
        }
    }
}

/* Ends a byte run. ByteFallback of Hugging Face replaces every byte of an ill-formed run by U+FFFD. */
static void end_run(struct sink *sink)
{
    struct decode_stream *stream = sink->stream;
    if (!stream->in_run) return;
    for (; stream->pending_count > 0; stream->pending_count--) put_replacement(sink);
    stream->in_run = stream->run_broken = false;
}

static void put_run_byte(struct sink *sink, uint8_t byte)
{
    struct decode_stream *stream = sink->stream;
    size_t length;
    stream->in_run = true;
    if (stream->run_broken) {
        put_replacement(sink);
        return;
    }
    stream->pending[stream->pending_count++] = byte;
    switch (text_next(stream->pending, stream->pending_count, &length)) {
    case TEXT_WHOLE:
        put_character(sink, stream->pending, length);
        stream->pending_count = 0;
        break;
    case TEXT_CUT: break;
    default:
        for (; stream->pending_count > 0; stream->pending_count--) put_replacement(sink);
        stream->run_broken = true;
    }
}

static void put_token(struct sink *sink, const uint8_t *bytes, size_t size, bool first)
{
    const struct image_header *header = sink->stream->tokenizer->header;
    if (header->decoder_flags & DECODER_METASPACE) {
        char mark[TEXT_CHARACTER_BYTES];
        size_t mark_size = text_write(header->metaspace_character, mark);
        bool drop = first && (header->decoder_flags & DECODER_METASPACE_DROP);
        const char *found;
        while ((found = text_find((const char *)bytes, size, mark, mark_size)) != NULL) {
            size_t before = (size_t)(found - (const char *)bytes);
            put_bytes(sink, bytes, before);
            if (!drop) put_bytes(sink, (const uint8_t *)" ", 1);
            size -= before + mark_size;
            bytes += before + mark_size;
        }
    }
    put_bytes(sink, bytes, size);
    /* Unless the decoder joins bytes, tokens are complete text; a hostile image may violate that */
    if (!(header->decoder_flags & DECODER_BYTES)) drop_pending(sink);
}

/* The same bytes as put_token's, written as they are. */
static size_t copy_token(const struct tokenizer *tokenizer, const uint8_t *bytes, size_t size, char *out)
{
    const struct image_header *header = tokenizer->header;
    char mark[TEXT_CHARACTER_BYTES];
    const size_t mark_size =
        header->decoder_flags & DECODER_METASPACE ? text_write(header->metaspace_character, mark) : 0;
    size_t used = 0;
    const char *found;
    while (mark_size && (found = text_find((const char *)bytes, size, mark, mark_size)) != NULL) {
        const size_t before = (size_t)(found - (const char *)bytes);
        memcpy(out + used, bytes, before);
        used += before;
        out[used++] = ' ';
        size -= before + mark_size;
        bytes += before + mark_size;
    }
    memcpy(out + used, bytes, size);
    return used + size;
}

static bool is_skipped(const struct image_token *token, bool skip_special)
{
    return !(token->flags & TOKEN_PRESENT) || (skip_special && (token->flags & TOKEN_SPECIAL));
}

static bool is_run_byte(const struct tokenizer *tokenizer, const struct image_token *token)
{
    return (tokenizer->header->decoder_flags & DECODER_BYTE_FALLBACK) && (token->flags & TOKEN_BYTE);
}

static bool check_id(const struct tokenizer *tokenizer, int32_t id, struct status *status)
{
    if (id >= 0 && (uint32_t)id < tokenizer->header->token_count) return true;
    return status_fail(status, STATUS_BAD_INPUT, "token id %d is outside the vocabulary (0 to %u)", id,
                       tokenizer->header->token_count - 1);
}

static void push(struct sink *sink, const struct image_token *token)
{
    struct decode_stream *stream = sink->stream;
    const struct tokenizer *tokenizer = stream->tokenizer;
    const uint8_t *bytes = tokenizer->decoded + token->decoded_offset;
    size_t size = token->decoded_bytes;
    bool first = !stream->started;
    if (is_skipped(token, stream->skip_special)) return;
    stream->started = true;
    if (is_run_byte(tokenizer, token)) {
        put_run_byte(sink, bytes[0]);
        return;
    }
    end_run(sink);
    if (first && tokenizer->extension->first_count > 0) {
        const struct image_decoded *decoded = &tokenizer->first[token - tokenizer->tokens];
        bytes = tokenizer->decoded + decoded->offset;
        size = decoded->bytes;
    }
    if (!first && (tokenizer->header->decoder_flags & DECODER_JOIN_SPACE)) put_bytes(sink, (const uint8_t *)" ", 1);
    put_token(sink, bytes, size, first);
}

static void finish(struct sink *sink)
{
    end_run(sink);
    drop_pending(sink);
    sink->stream->held = 0; /* the text ends here: strip them */
}

size_t tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, char *bytes)
{
    if (id < 0 || (uint32_t)id >= tokenizer->header->token_count) return 0;
    const struct image_token *token = &tokenizer->tokens[id];
    if (is_skipped(token, false)) return 0;
    size_t used = 0;
    if ((tokenizer->header->decoder_flags & DECODER_JOIN_SPACE) && !is_run_byte(tokenizer, token)) bytes[used++] = ' ';
    return used + copy_token(tokenizer, tokenizer->decoded + token->decoded_offset, token->decoded_bytes, bytes + used);
}

size_t decode_stream_max_bytes(const struct tokenizer *tokenizer)
{
    /* each byte may become U+FFFD, after a pending character, a joining space and the characters held back */
    return ((size_t)tokenizer->longest_decoded + 4 + 1) * TEXT_REPLACEMENT_BYTES +
           ((size_t)tokenizer->header->strip_stop + 1) * TEXT_CHARACTER_BYTES;
}

void decode_stream_begin(struct decode_stream *stream, const struct tokenizer *tokenizer, bool skip_special)
{
    memset(stream, 0, sizeof *stream);
    stream->tokenizer = tokenizer;
    stream->skip_special = skip_special;
    stream->strip_left = tokenizer->header->strip_start;
}

static bool check_capacity(const struct decode_stream *stream, size_t capacity, struct status *status)
{
    size_t need = decode_stream_max_bytes(stream->tokenizer);
    if (capacity >= need) return true;
    return status_fail(status, STATUS_USAGE, "room for %zu bytes of decoded text, decode_stream_max_bytes is %zu",
                       capacity, need);
}

bool decode_stream_push(struct decode_stream *stream, int32_t id, char *out, size_t capacity, size_t *size,
                        struct status *status)
{
    struct sink sink = {stream, out, 0};
    *size = 0;
    if (!check_capacity(stream, capacity, status) || !check_id(stream->tokenizer, id, status)) return false;
    push(&sink, &stream->tokenizer->tokens[id]);
    *size = sink.size;
    return true;
}

bool decode_stream_finish(struct decode_stream *stream, char *out, size_t capacity, size_t *size, struct status *status)
{
    struct sink sink = {stream, out, 0};
    *size = 0;
    if (!check_capacity(stream, capacity, status)) return false;
    finish(&sink);
    *size = sink.size;
    return true;
}

/* Whether the byte run that begins at ids[0] is valid UTF-8. Requires: the ids were checked. */
static bool run_is_valid(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special)
{
    uint8_t bytes[TEXT_CHARACTER_BYTES];
    size_t held = 0, length;
    for (size_t i = 0; i < count; i++) {
        const struct image_token *token = &tokenizer->tokens[ids[i]];
        if (is_skipped(token, skip_special)) continue;
        if (!is_run_byte(tokenizer, token)) break;
        bytes[held++] = tokenizer->decoded[token->decoded_offset];
        enum text_sequence kind = text_next(bytes, held, &length);
        if (kind == TEXT_BROKEN) return false;
        if (kind == TEXT_WHOLE) held = 0;
    }
    return held == 0;
}

bool tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                      struct text_buffer *text, struct status *status)
{
    struct decode_stream stream;
    size_t room = decode_stream_max_bytes(tokenizer);
    text->size = 0;
    decode_stream_begin(&stream, tokenizer, skip_special);
    for (size_t i = 0; i < count; i++)
        if (!check_id(tokenizer, ids[i], status)) return false;
    for (size_t i = 0; i <= count; i++) {
        if (!tokenizer_text_reserve(text, room + 1, status)) return false;
        struct sink sink = {&stream, text->text + text->size, 0};
        if (i == count) {
            finish(&sink);
        } else {
            const struct image_token *token = &tokenizer->tokens[ids[i]];
            if (!stream.in_run && is_run_byte(tokenizer, token) && !is_skipped(token, skip_special))
                stream.run_broken = !run_is_valid(tokenizer, ids + i, count - i, skip_special);
            push(&sink, token);
        }
        text->size += sink.size;
    }
    text->text[text->size] = '\0';
    return true;
}
