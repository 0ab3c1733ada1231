/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level and SentencePiece-style BPE tokenizers: import from tokenizer.json into a flat, position-independent
 * image; open and validate such an image in place; encode, decode, streaming decode.
 *
 * The image is what an engine file stores, so opening it costs no parsing: tables are used where they lie.
 * An open tokenizer is read-only: encode and decode may run on several threads at once, each with its own scratch. */
#ifndef FORMATS_TOKENIZER_TOKENIZER_H
#define FORMATS_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

/* Parses tokenizer.json and builds the image. *image is malloc'd (free()), 8-byte aligned, deterministic for the same
 * input. Anything in the file that this library would not honour exactly is refused by name. `name` is for messages.
 * "truncation" and "padding" are read and not applied: they are what a training run left behind, transformers replaces
 * both on every call, and an engine never cuts a prompt silently. */
bool tokenizer_import(const char *json, size_t size, const char *name, uint8_t **image, size_t *image_size,
                      struct status *status);

struct tokenizer; /* opaque */

/* Validates every offset, index and table of the image (hostile input) and compiles its patterns. `image` is borrowed,
 * must be 8-byte aligned and outlive the tokenizer. `just_in_time`: patterns may become machine code (executable memory),
 * which makes encoding a little faster. */
struct tokenizer *tokenizer_open(const uint8_t *image, size_t image_size, bool just_in_time, struct status *status);
void tokenizer_close(struct tokenizer *tokenizer);

uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer); /* 1 + highest id, added tokens included */
/* Id of an exact token string (added tokens first), -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t size);
/* Raw content of a token as stored in the vocabulary (not decoded); false for an id without a token. */
bool tokenizer_token_text(const struct tokenizer *tokenizer, int32_t id, const char **text, size_t *size);
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);

/* Growable id and byte buffers, reused between calls. Zero-initialise; buffer_free at the end. */
struct token_buffer {
    int32_t *ids;
    size_t count, capacity;
};
struct text_buffer {
    char *text; /* not NUL-terminated unless tokenizer_decode says so */
    size_t size, capacity;
};
void token_buffer_free(struct token_buffer *buffer);
void text_buffer_free(struct text_buffer *buffer);

/* Encodes `size` bytes of text into tokens, whose former content is dropped. Added tokens in the text are recognised as
 * Hugging Face does. With `add_special`, the post-processor's template is applied (BOS ...). Invalid
 * UTF-8 is replaced by U+FFFD per maximal subpart before encoding. */
bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, bool add_special,
                      struct token_buffer *tokens, struct status *status);

/* The same for text that is not to be trusted: special tokens in it are read as the characters that they are written with, as
 * Hugging Face does with split_special_tokens; so are the added tokens `markers` [marker_count] (may be NULL), special or
 * not. Other added tokens are recognised. `add_special` still adds what the template has. */
bool tokenizer_encode_plain(const struct tokenizer *tokenizer, const char *text, size_t size, bool add_special,
                            const int32_t *markers, size_t marker_count, struct token_buffer *tokens,
                            struct status *status);

/* Decodes all ids at once, as Hugging Face `decode` does; text is NUL-terminated (size excludes it). An id outside
 * [0, vocab_size) is an error; an id in a hole of the vocabulary decodes to nothing. `skip_special` leaves special
 * tokens out, by id (Hugging Face 0.23 compares text and so keeps one whose normalized form differs from its
 * content, such as llama2's <s>). The text is always valid UTF-8. */
bool tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                      struct text_buffer *text, struct status *status);

/* Streaming decode: bytes come out as soon as they form a complete character. The concatenation over all pushes and the
 * finish equals tokenizer_decode of all ids, with one exception. Hugging Face's ByteFallback judges a whole run of
 * <0xNN> tokens at once: if the run is not valid UTF-8, each of its bytes becomes U+FFFD, the valid characters before
 * the fault included. A stream cannot know how a run ends, and holding text back until it does would stall every
 * script that the vocabulary lacks. So a character of such a run is emitted when its last byte arrives; from the
 * first fault on, each byte of the run becomes U+FFFD, as in tokenizer_decode. Runs of valid UTF-8 are always equal.
 * A stream holds no heap memory; its fields are private. */
struct decode_stream {
    const struct tokenizer *tokenizer;
    bool skip_special;
    bool started;            /* a token has been decoded                                      */
    bool in_run, run_broken; /* inside a run of byte tokens; the run is known to be ill-formed */
    uint8_t pending[4];      /* an incomplete character                                       */
    uint8_t pending_count;
    uint32_t strip_left; /* leading characters that may still be stripped                 */
    uint32_t held;       /* trailing strip characters held back: the text may end here    */
};
/* Longest text that one push or finish can produce for this tokenizer, in bytes. */
size_t decode_stream_max_bytes(const struct tokenizer *tokenizer);
void decode_stream_begin(struct decode_stream *stream, const struct tokenizer *tokenizer, bool skip_special);
/* Writes at most `capacity` bytes (>= decode_stream_max_bytes) and sets *size; no allocation. */
bool decode_stream_push(struct decode_stream *stream, int32_t id, char *out, size_t capacity, size_t *size,
                        struct status *status);
bool decode_stream_finish(struct decode_stream *stream, char *out, size_t capacity, size_t *size,
                          struct status *status);

#endif
