/* SPDX-License-Identifier: Apache-2.0 */
/* BPE, Unigram, WordPiece and WordLevel tokenizers: import of tokenizer.json to a flat, position-independent image;
 * opening and validating an image in place; encoding, decoding, streaming decoding.
 *
 * An engine file stores the image. Opening needs no parsing: tables are used in place. An open tokenizer is read-only:
 * several threads may encode and decode at the same time, each with its own scratch. */
#ifndef FORMATS_TOKENIZER_TOKENIZER_H
#define FORMATS_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

/* Parses tokenizer.json and builds the image: 8-byte aligned, deterministic, freed by the caller. Everything in the
 * file that this library would not honour exactly is refused by name. `name` is for messages. "truncation" and
 * "padding" are read and ignored: they are left over from training, transformers replaces them on every call, and an
 * engine never truncates a prompt silently. */
bool tokenizer_import(const char *json, size_t size, const char *name, uint8_t **image, size_t *image_size,
                      struct status *status);

struct tokenizer; /* opaque */

/* Validates every offset, index and table of the image (hostile input) and compiles its patterns. Requires: `image` is
 * 8-byte aligned and outlives the tokenizer. `just_in_time`: patterns may be compiled to machine code (executable
 * memory), which makes encoding faster. */
struct tokenizer *tokenizer_open(const uint8_t *image, size_t image_size, bool just_in_time, struct status *status);
void tokenizer_close(struct tokenizer *tokenizer);

uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer); /* 1 + highest id, added tokens included */
/* Id of a token with exactly this text (added tokens first); -1: none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t size);
/* Raw content of a token as stored in the vocabulary (not decoded); false for an id without a token. */
bool tokenizer_token_text(const struct tokenizer *tokenizer, int32_t id, const char **text, size_t *size);
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);

/* Writes the bytes that a token adds to a text after its first token, which may begin or end within a character, and returns how many:
 * 0 if there is no such token. Special tokens have their text. Requires: room for decode_stream_max_bytes. */
size_t tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, char *bytes);

/* Growable buffers of ids and bytes, reused between calls. Zero-initialised; freed with token_buffer_free or
 * text_buffer_free. */
struct token_buffer {
    int32_t *ids;
    size_t count, capacity;
};
struct text_buffer {
    char *text; /* NUL-terminated only by tokenizer_decode */
    size_t size, capacity;
};
void token_buffer_free(struct token_buffer *buffer);
void text_buffer_free(struct text_buffer *buffer);

/* Encodes `size` bytes of text into tokens, replacing their former content. Added tokens in the text are recognised as
 * in Hugging Face. With `add_special` the post-processor's template is applied (BOS ...). Invalid UTF-8 is replaced by
 * U+FFFD per maximal subpart before encoding. */
bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, bool add_special,
                      struct token_buffer *tokens, struct status *status);

/* The same for untrusted text: special tokens in it are ordinary characters, as with split_special_tokens of Hugging
 * Face, and so are the added tokens `markers` [marker_count] (may be NULL), special or not. A model that has such a
 * token in its vocabulary does not make it of the text either, except BPE where it is a single character (with its
 * prefix and suffix). Other added tokens are recognised. `add_special` still adds the template's tokens. */
bool tokenizer_encode_plain(const struct tokenizer *tokenizer, const char *text, size_t size, bool add_special,
                            const int32_t *markers, size_t marker_count, struct token_buffer *tokens,
                            struct status *status);

/* The same for a text of two origins: special tokens and `markers` are ordinary characters if one of their bytes is foreign,
 * foreign[i] != 0 for text[i], and recognised elsewhere. Text without such tokens in its foreign bytes has the ids of
 * tokenizer_encode. Invalid UTF-8 is STATUS_BAD_INPUT. */
bool tokenizer_encode_mixed(const struct tokenizer *tokenizer, const char *text, size_t size, const uint8_t *foreign,
                            const int32_t *markers, size_t marker_count, struct token_buffer *tokens,
                            struct status *status);

/* Decodes all ids, as `decode` of Hugging Face does; the text is NUL-terminated (size excludes the NUL). An id outside
 * [0, vocab_size) is an error; an unused id of the vocabulary decodes to nothing. `skip_special` leaves special tokens
 * out, by id (Hugging Face 0.23 compares text and so keeps a token whose normalized form differs from its content, such
 * as llama2's <s>). The text is always valid UTF-8. */
bool tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                      struct text_buffer *text, struct status *status);

/* Streaming decoding: bytes are returned as soon as they form a complete character. The concatenation of all pushes and
 * the finish equals tokenizer_decode of all ids, with one exception. ByteFallback of Hugging Face treats a run of
 * <0xNN> tokens as a whole: if the run is not valid UTF-8, each of its bytes becomes U+FFFD, including valid characters
 * before the fault. A stream does not know how a run ends, and withholding text until then would stall every script
 * that the vocabulary lacks. A character of such a run is therefore returned when its last byte arrives; from the first
 * fault on, each byte of the run becomes U+FFFD, as in tokenizer_decode. Runs of valid UTF-8 are always equal. A stream
 * allocates nothing; its fields are private. */
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
/* Length in bytes of the longest text that one push or finish can return for this tokenizer. */
size_t decode_stream_max_bytes(const struct tokenizer *tokenizer);
void decode_stream_begin(struct decode_stream *stream, const struct tokenizer *tokenizer, bool skip_special);
/* Requires: capacity >= decode_stream_max_bytes. Sets *size; no allocation. */
bool decode_stream_push(struct decode_stream *stream, int32_t id, char *out, size_t capacity, size_t *size,
                        struct status *status);
bool decode_stream_finish(struct decode_stream *stream, char *out, size_t capacity, size_t *size,
                          struct status *status);

#endif
