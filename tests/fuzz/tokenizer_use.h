/* SPDX-License-Identifier: Apache-2.0 */
/* What both tokenizer fuzz targets do with a tokenizer that opened: encode and decode, and check what must hold
 * whatever the tokenizer is. */
#ifndef TESTS_FUZZ_TOKENIZER_USE_H
#define TESTS_FUZZ_TOKENIZER_USE_H

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/hash.h"
#include "formats/tokenizer/tokenizer.h"
#include "formats/tokenizer/tokenizer_text.h"
#include "tests/fuzz/fuzz.h"

/* A stream's text is valid UTF-8 push by push, and equals the batch unless a byte run was ill-formed. */
static inline void use_decoder(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special)
{
    struct text_buffer batch = {0}, streamed = {0};
    struct status status = {0};
    struct decode_stream stream;
    size_t room = decode_stream_max_bytes(tokenizer), size;
    char *piece = malloc(room);
    require(piece && tokenizer_decode(tokenizer, ids, count, skip_special, &batch, &status));
    require(text_is_valid((const uint8_t *)batch.text, batch.size) && batch.text[batch.size] == '\0');
    decode_stream_begin(&stream, tokenizer, skip_special);
    for (size_t i = 0; i <= count; i++) {
        if (i < count)
            require(decode_stream_push(&stream, ids[i], piece, room, &size, &status));
        else
            require(decode_stream_finish(&stream, piece, room, &size, &status));
        require(size <= room && text_is_valid((const uint8_t *)piece, size));
        require(tokenizer_text_append(&streamed, piece, size, &status));
    }
    if (!memmem(batch.text, batch.size, TEXT_REPLACEMENT, TEXT_REPLACEMENT_BYTES))
        require(streamed.size == batch.size && memcmp(streamed.text, batch.text, batch.size) == 0);
    free(piece);
    text_buffer_free(&batch);
    text_buffer_free(&streamed);
}

static inline void use_encoder(const struct tokenizer *tokenizer, const char *text, size_t size, bool add_special)
{
    struct token_buffer tokens = {0};
    struct status status = {0};
    if (tokenizer_encode(tokenizer, text, size, add_special, &tokens, &status)) {
        for (size_t i = 0; i < tokens.count; i++)
            require(tokens.ids[i] >= 0 && (uint32_t)tokens.ids[i] < tokenizer_vocab_size(tokenizer));
        use_decoder(tokenizer, tokens.ids, tokens.count, !add_special);
    } else {
        require(status.code != STATUS_OK && status.code != STATUS_INTERNAL && status.message[0]);
    }
    token_buffer_free(&tokens);
}

static inline double thread_seconds(void)
{
    struct timespec now;
    require(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A long text ends in time, whatever the tokenizer does to it: repetitions of a piece, then one byte over and over. What looks
 * at the rest of the text from each of its positions takes 4 s and more here; the budget of patterns lasts for half a second.
 * Processor time, and one input of some: it is the slowest of all that is tried. Code with sanitizers and the fuzzer's counters
 * takes five times as long. */
static inline void use_long_text(const struct tokenizer *tokenizer, const uint8_t *data, size_t size)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
    enum { MOST_SECONDS = 9 };
#else
    enum { MOST_SECONDS = 3 };
#endif
    enum { BYTES = 160 << 10, REPETITIONS = 16 << 10, ONE_OF = 8 };
    size_t piece = size < 100 ? size : 100;
    if (piece == 0 || hash64(data, size) % ONE_OF != 0) return;
    char *text = malloc(BYTES);
    struct token_buffer tokens = {0};
    struct status status = {0};
    require(text != NULL);
    for (size_t at = 0; at < BYTES; at++)
        text[at] = (char)(at < REPETITIONS ? data[size - piece + at % piece] : data[size - piece / 2 - 1]);
    double start = thread_seconds();
    bool encoded = tokenizer_encode_plain(tokenizer, text, BYTES, false, NULL, 0, &tokens, &status);
    require(thread_seconds() - start < MOST_SECONDS);
    require(encoded || status.message[0]);
    token_buffer_free(&tokens);
    free(text);
}

/* `data`: the input itself, part of which serves as text. */
static inline void use_tokenizer(const struct tokenizer *tokenizer, const uint8_t *data, size_t size)
{
    static const char sample[] =
        "Hello ab  aabb<s> \xE2\x96\x81x\xC3\xA9 1234\r\n\xF0\x9F\x98\x81 <0x0A>'s E\xCC\x81\xFF!";
    int32_t ids[64];
    uint32_t vocabulary = tokenizer_vocab_size(tokenizer);
    size_t tail = size < 100 ? size : 100;
    use_encoder(tokenizer, sample, sizeof sample - 1, true);
    use_encoder(tokenizer, (const char *)data + size - tail, tail, false);
    use_encoder(tokenizer, "", 0, true);
    use_long_text(tokenizer, data, size);
    for (uint32_t i = 0; i < 64; i++) ids[i] = (int32_t)(((uint64_t)i * i * 7 + i / 3) % vocabulary);
    use_decoder(tokenizer, ids, 64, false);
    use_decoder(tokenizer, ids, 64, true);
    for (uint32_t id = 0; id < vocabulary && id < 64; id++) {
        const char *text;
        size_t text_size;
        if (tokenizer_token_text(tokenizer, (int32_t)id, &text, &text_size))
            require(tokenizer_find(tokenizer, text, text_size) == (int32_t)id);
        (void)tokenizer_is_special(tokenizer, (int32_t)id);
    }
}

#endif
