/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the "decoder" of tokenizer.json and applies its steps for single tokens. Supported are sequences of the form
 *
 *   (Replace | Strip | WordPiece)* [Metaspace] [ByteFallback] [Fuse [Strip]]
 *   (Replace | Strip | WordPiece)* ByteLevel [Strip]
 *   (Replace | Strip | WordPiece)* BPEDecoder [Fuse]
 *
 * since these can be streamed: all steps before the first bracket act on one token and are applied here, once. WordPiece
 * treats the first token of a text in another way, so that tokens are decoded twice then. BPEDecoder makes a space of the
 * suffix of each token but the last, which is the same as to strip one space from the end of the text. */
#include <stdlib.h>
#include <string.h>

#include "formats/tokenizer/tokenizer_import.h"
#include "formats/tokenizer/tokenizer_pattern.h"

static const char supported_order[] =
    "supported: Replace, Strip and WordPiece, then Metaspace, then ByteFallback, then Fuse, then "
    "Strip; or Replace, Strip and WordPiece, then ByteLevel, then Strip, or BPEDecoder, then Fuse";

/* Progress through the sequence; each decoder may only advance it. */
enum decoder_stage { STAGE_TOKENS, STAGE_METASPACE, STAGE_BYTES, STAGE_TEXT, STAGE_STRIPPED };

struct decoder_import {
    struct tokenizer_import *import;
    enum decoder_stage stage;
    const char *path;
};

static bool out_of_order(struct decoder_import *decoder, const char *type)
{
    return tokenizer_import_fail(decoder->import, "%s: '%s' at this place of the sequence is not supported (%s)",
                                 decoder->path, type, supported_order);
}

static bool add_decode_step(struct decoder_import *decoder, struct decode_step step)
{
    struct tokenizer_import *import = decoder->import;
    if (import->decode_step_count == TOKENIZER_STEP_LIMIT)
        return tokenizer_import_fail(import, "%s: more than %d steps", decoder->path, TOKENIZER_STEP_LIMIT);
    import->decode_steps[import->decode_step_count++] = step;
    return true;
}

static bool import_replace(struct decoder_import *decoder, struct json_reader *reader)
{
    struct decode_step step = {0};
    json_t *pattern = json_reader_get(reader, "pattern");
    json_t *string = json_object_get(pattern, "String"), *regex = json_object_get(pattern, "Regex");
    if (decoder->stage != STAGE_TOKENS) return out_of_order(decoder, "Replace");
    if (json_object_size(pattern) != 1 || !(json_is_string(string) || json_is_string(regex)) ||
        json_string_length(string ? string : regex) == 0)
        return tokenizer_import_fail(decoder->import,
                                     "%s: field 'pattern': expected {\"String\": ...} or {\"Regex\": ...}, not empty",
                                     decoder->path);
    step.kind = string ? DECODE_REPLACE_STRING : DECODE_REPLACE_REGEX;
    step.pattern = json_string_value(string ? string : regex);
    return json_reader_string(reader, "content", true, &step.content, decoder->import->status) &&
           add_decode_step(decoder, step);
}

static bool import_strip(struct decoder_import *decoder, struct json_reader *reader)
{
    struct image_header *header = &decoder->import->header;
    uint64_t start = 0, stop = 0;
    uint32_t character = 0;
    const char *content;
    if (!tokenizer_import_character(decoder->import, reader, "content", &content, &character) ||
        !json_reader_u64(reader, "start", true, 0, INT32_MAX, &start, decoder->import->status) ||
        !json_reader_u64(reader, "stop", true, 0, TOKENIZER_STRIP_LIMIT, &stop, decoder->import->status))
        return false;
    if (decoder->stage == STAGE_TOKENS)
        return add_decode_step(decoder, (struct decode_step){.kind = DECODE_STRIP,
                                                             .character = character,
                                                             .start = (uint32_t)start,
                                                             .stop = (uint32_t)stop});
    if (decoder->stage != STAGE_TEXT) return out_of_order(decoder, "Strip");
    decoder->stage = STAGE_STRIPPED;
    header->strip_character = character;
    header->strip_start = (uint32_t)start;
    header->strip_stop = (uint32_t)stop;
    return true;
}

static bool import_metaspace(struct decoder_import *decoder, struct json_reader *reader)
{
    struct image_header *header = &decoder->import->header;
    struct metaspace_fields fields;
    if (decoder->stage != STAGE_TOKENS) return out_of_order(decoder, "Metaspace");
    if (!tokenizer_import_metaspace(decoder->import, reader, &fields)) return false;
    header->metaspace_character = fields.character;
    header->decoder_flags |=
        DECODER_METASPACE | (fields.scheme == METASPACE_NEVER ? 0u : (uint32_t)DECODER_METASPACE_DROP);
    decoder->stage = STAGE_METASPACE;
    return true;
}

static bool import_byte_fallback(struct decoder_import *decoder)
{
    if (decoder->stage > STAGE_METASPACE) return out_of_order(decoder, "ByteFallback");
    /* a byte token must be the same before and after Metaspace */
    if (decoder->stage == STAGE_METASPACE && decoder->import->header.metaspace_character < 0x80)
        return tokenizer_import_fail(decoder->import,
                                     "%s: Metaspace with an ASCII replacement before ByteFallback is not supported",
                                     decoder->path);
    decoder->import->header.decoder_flags |= DECODER_BYTE_FALLBACK;
    decoder->stage = STAGE_BYTES;
    return true;
}

static bool import_bytes(struct decoder_import *decoder, struct json_reader *reader)
{
    if (decoder->stage != STAGE_TOKENS) return out_of_order(decoder, "ByteLevel");
    decoder->import->header.decoder_flags |= DECODER_BYTES;
    decoder->stage = STAGE_TEXT;
    return tokenizer_import_byte_level_idle(decoder->import, reader); /* they are for encoding */
}

static bool import_word_piece(struct decoder_import *decoder, struct json_reader *reader)
{
    const char *prefix = "";
    bool cleans = true;
    if (decoder->stage != STAGE_TOKENS) return out_of_order(decoder, "WordPiece");
    decoder->import->decodes_first = true;
    return json_reader_string(reader, "prefix", true, &prefix, decoder->import->status) &&
           json_reader_bool(reader, "cleanup", true, &cleans, decoder->import->status) &&
           add_decode_step(decoder, (struct decode_step){.kind = DECODE_CONTINUE, .pattern = prefix}) &&
           (!cleans || add_decode_step(decoder, (struct decode_step){.kind = DECODE_CLEAN}));
}

static bool import_suffix(struct decoder_import *decoder, struct json_reader *reader)
{
    struct image_header *header = &decoder->import->header;
    const char *suffix = "";
    if (decoder->stage != STAGE_TOKENS) return out_of_order(decoder, "BPEDecoder");
    if (!json_reader_string(reader, "suffix", true, &suffix, decoder->import->status)) return false;
    if (*suffix == '\0')
        return tokenizer_import_fail(decoder->import, "%s: an empty suffix is not supported", decoder->path);
    decoder->stage = STAGE_STRIPPED;
    header->strip_character = ' ';
    header->strip_stop = 1;
    return add_decode_step(decoder, (struct decode_step){.kind = DECODE_SUFFIX, .pattern = suffix});
}

static bool import_decoder(struct decoder_import *decoder, json_t *part, int depth)
{
    struct tokenizer_import *import = decoder->import;
    struct json_reader reader = {0};
    const char *type = "";
    bool good = false;
    if (!json_reader_open(&reader, part, decoder->path, import->status) ||
        !json_reader_string(&reader, "type", true, &type, import->status))
        goto done;
    if (strcmp(type, "Sequence") == 0) {
        json_t *list = json_reader_get(&reader, "decoders"), *member;
        size_t index;
        good = json_is_array(list) && depth < 8;
        if (!good)
            tokenizer_import_fail(import, "%s: field 'decoders': expected an array, nested at most 8 deep",
                                  decoder->path);
        json_array_foreach (list, index, member) good = good && import_decoder(decoder, member, depth + 1);
    } else if (strcmp(type, "Replace") == 0) {
        good = import_replace(decoder, &reader);
    } else if (strcmp(type, "Strip") == 0) {
        good = import_strip(decoder, &reader);
    } else if (strcmp(type, "Metaspace") == 0) {
        good = import_metaspace(decoder, &reader);
    } else if (strcmp(type, "ByteFallback") == 0) {
        good = import_byte_fallback(decoder);
    } else if (strcmp(type, "Fuse") == 0) {
        if (decoder->stage < STAGE_TEXT) decoder->stage = STAGE_TEXT;
        good = true;
    } else if (strcmp(type, "ByteLevel") == 0) {
        good = import_bytes(decoder, &reader);
    } else if (strcmp(type, "WordPiece") == 0) {
        good = import_word_piece(decoder, &reader);
    } else if (strcmp(type, "BPEDecoder") == 0) {
        good = import_suffix(decoder, &reader);
    } else {
        tokenizer_import_fail(import,
                              "%s: type '%.80s' is not supported (supported: ByteLevel, Replace, ByteFallback, Fuse, "
                              "Strip, Metaspace, WordPiece, BPEDecoder, Sequence)",
                              decoder->path, type);
    }
    good = good && json_reader_all_consumed(&reader, import->status);
done:
    json_reader_close(&reader);
    return good;
}

bool tokenizer_import_decoder(struct tokenizer_import *import, json_t *part)
{
    struct decoder_import decoder = {.import = import, .path = "decoder"};
    if (part) return import_decoder(&decoder, part, 0);
    import->header.decoder_flags = DECODER_JOIN_SPACE; /* as Hugging Face without a decoder */
    return true;
}

/* Strip of one token, in complete characters. */
static void strip_token(const struct decode_step *step, const char **text, size_t *size)
{
    uint32_t character;
    for (uint32_t i = 0; i<step->start && * size> 0; i++) {
        size_t length = text_read(*text, &character);
        if (character != step->character) break;
        *text += length;
        *size -= length;
    }
    for (uint32_t i = 0; i<step->stop && * size> 0; i++) {
        size_t previous = text_previous(*text, *size);
        text_read(*text + previous, &character);
        if (character != step->character) break;
        *size = previous;
    }
}

struct replacement {
    const char *text, *content;
    struct text_buffer *out;
    struct status *status;
};

static bool replace_segment(void *context, size_t start, size_t end, bool matched)
{
    struct replacement *replacement = context;
    const char *bytes = matched ? replacement->content : replacement->text + start;
    size_t size = matched ? strlen(bytes) : end - start;
    if (size > TOKENIZER_TEXT_LIMIT - replacement->out->size) /* also limits growth from step to step */
        return status_fail(replacement->status, STATUS_BAD_INPUT, "the decoder makes more than %d bytes of one token",
                           TOKENIZER_TEXT_LIMIT);
    return tokenizer_text_append(replacement->out, bytes, size, replacement->status);
}

static bool append_limited(struct text_buffer *out, const char *text, size_t size, struct status *status)
{
    struct replacement part = {text, NULL, out, status};
    return replace_segment(&part, 0, size, false);
}

static bool continue_word(const struct decode_step *step, const char *text, size_t size, bool first,
                          struct text_buffer *out, struct status *status)
{
    const size_t prefix = strlen(step->pattern);
    if (first) return append_limited(out, text, size, status);
    if (size >= prefix && memcmp(text, step->pattern, prefix) == 0)
        return append_limited(out, text + prefix, size - prefix, status);
    return append_limited(out, " ", 1, status) && append_limited(out, text, size, status);
}

/* One replacement after the other, each over the whole token; none makes the text longer. */
static bool clean_token(const char *text, size_t size, struct text_buffer *out, struct status *status)
{
    static const char *const replacements[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    if (!append_limited(out, text, size, status)) return false;
    for (size_t i = 0; i < sizeof replacements / sizeof *replacements; i++) {
        const size_t from = strlen(replacements[i][0]), to = strlen(replacements[i][1]);
        size_t written = 0;
        for (size_t at = 0; at < out->size;) {
            if (out->size - at >= from && memcmp(out->text + at, replacements[i][0], from) == 0) {
                memcpy(out->text + written, replacements[i][1], to);
                written += to;
                at += from;
            } else {
                out->text[written++] = out->text[at++];
            }
        }
        out->size = written;
    }
    return true;
}

/* Only tokens for which one space at the end of the text tells whether the last one had the suffix. */
static bool replace_suffix(const struct decode_step *step, const char *text, size_t size, struct text_buffer *out,
                           struct status *status)
{
    const size_t suffix = strlen(step->pattern);
    const char *found = text_find(text, size, step->pattern, suffix);
    const bool at_end = found && found + suffix == text + size;
    if ((found && !at_end) || (!found && (size == 0 || text[size - 1] == ' ')))
        return status_fail(status, STATUS_BAD_INPUT,
                           "decoder: BPEDecoder with a token '%.*s', which %s, is not supported",
                           (int)(size < 80 ? size : 80), text,
                           found ? "has the suffix not only at its end" : "is empty or ends with a space");
    return append_limited(out, text, found ? size - suffix : size, status) &&
           (!found || append_limited(out, " ", 1, status));
}

/* The byte of "<0x0A>", or -1. Rust's number parser, which Hugging Face uses, also accepts a leading '+'. */
static int byte_token(const char *text, size_t size)
{
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = text[3] == '+' ? 0 : text_hex_digit(text[3]), low = text_hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* ByteLevel: characters of the byte alphabet become bytes; a token with any other character is unchanged. */
static bool append_bytes(struct tokenizer_import *import, const int16_t *byte_of, const char *text, size_t size)
{
    size_t begin = import->decoded.size;
    for (size_t at = 0; at < size;) {
        uint32_t character;
        at += text_read(text + at, &character);
        if (character >= 0x200 || byte_of[character] < 0) {
            import->decoded.size = begin;
            return tokenizer_text_append(&import->decoded, text, size, import->status);
        }
        uint8_t byte = (uint8_t)byte_of[character];
        if (!tokenizer_text_append(&import->decoded, &byte, 1, import->status)) return false;
    }
    return true;
}

/* State for applying the steps to the whole vocabulary. */
struct decoding {
    struct tokenizer_import *import;
    struct tokenizer_pattern *patterns[TOKENIZER_STEP_LIMIT];
    struct tokenizer_matcher matcher;
    struct text_buffer buffers[2]; /* results of Replace, alternating: each step reads the other one */
    int16_t byte_of[0x200];        /* inverse byte alphabet, -1: not in it */
};

static bool decoding_open(struct decoding *decoding, struct tokenizer_import *import)
{
    uint16_t alphabet[256];
    memset(decoding, 0, sizeof *decoding);
    decoding->import = import;
    tokenizer_byte_alphabet(alphabet);
    for (size_t i = 0; i < 0x200; i++) decoding->byte_of[i] = -1;
    for (int16_t byte = 0; byte < 256; byte++) decoding->byte_of[alphabet[byte]] = byte;
    for (uint32_t i = 0; i < import->decode_step_count; i++) {
        const struct decode_step *step = &import->decode_steps[i];
        if (step->kind != DECODE_REPLACE_STRING && step->kind != DECODE_REPLACE_REGEX) continue;
        decoding->patterns[i] =
            step->kind == DECODE_REPLACE_REGEX
                ? tokenizer_pattern_regex(step->pattern, strlen(step->pattern), false, import->status)
                : tokenizer_pattern_string(step->pattern, strlen(step->pattern), import->status);
        if (!decoding->patterns[i]) return false;
    }
    return tokenizer_matcher_open(&decoding->matcher, import->pool.size, import->status);
}

static void decoding_close(struct decoding *decoding)
{
    for (uint32_t i = 0; i < TOKENIZER_STEP_LIMIT; i++) tokenizer_pattern_free(decoding->patterns[i]);
    tokenizer_matcher_close(&decoding->matcher);
    for (size_t i = 0; i < 2; i++) text_buffer_free(&decoding->buffers[i]);
}

static bool apply_step(struct decoding *decoding, uint32_t index, const char *text, size_t size, bool first,
                       struct text_buffer *out)
{
    struct status *status = decoding->import->status;
    const struct decode_step *step = &decoding->import->decode_steps[index];
    struct replacement replacement = {text, step->content, out, status};
    out->size = 0;
    switch (step->kind) {
    case DECODE_CONTINUE: return continue_word(step, text, size, first, out, status);
    case DECODE_CLEAN: return clean_token(text, size, out, status);
    case DECODE_SUFFIX: return replace_suffix(step, text, size, out, status);
    default:
        return tokenizer_pattern_segments(decoding->patterns[index], &decoding->matcher, text, size, replace_segment,
                                          &replacement, status);
    }
}

/* Appends what the token decodes to; *byte is the byte that it stands for, -1: none. */
static bool decode_token(struct decoding *decoding, const char *text, size_t size, bool first, int *byte,
                         struct image_decoded *decoded)
{
    struct tokenizer_import *import = decoding->import;
    int turn = 0;
    *byte = -1;
    for (uint32_t i = 0; i < import->decode_step_count; i++) {
        const struct decode_step *step = &import->decode_steps[i];
        if (step->kind == DECODE_STRIP) {
            strip_token(step, &text, &size);
            continue;
        }
        if (size == 0 && step->kind != DECODE_CONTINUE && step->kind != DECODE_SUFFIX) continue;
        struct text_buffer *out = &decoding->buffers[turn];
        turn ^= 1;
        if (!apply_step(decoding, i, text, size, first, out)) return false;
        text = out->text ? out->text : "";
        size = out->size;
    }
    if (import->header.decoder_flags & DECODER_BYTE_FALLBACK) *byte = byte_token(text, size);
    decoded->offset = (uint32_t)import->decoded.size;
    if (*byte >= 0) {
        uint8_t value = (uint8_t)*byte;
        if (!tokenizer_text_append(&import->decoded, &value, 1, import->status)) return false;
    } else if (import->header.decoder_flags & DECODER_BYTES) {
        if (!append_bytes(import, decoding->byte_of, text, size)) return false;
    } else if (!tokenizer_text_append(&import->decoded, text, size, import->status)) {
        return false;
    }
    decoded->bytes = (uint32_t)(import->decoded.size - decoded->offset);
    return import->decoded.size <= INT32_MAX ||
           tokenizer_import_fail(import, "the vocabulary decodes to more than 2 GiB");
}

static bool decode_id(struct decoding *decoding, uint32_t id, const char *text, size_t size)
{
    struct image_token *token = &decoding->import->tokens[id];
    struct image_decoded decoded;
    int byte, first_byte;
    if (!decode_token(decoding, text, size, false, &byte, &decoded)) return false;
    token->decoded_offset = decoded.offset;
    token->decoded_bytes = decoded.bytes;
    if (byte >= 0) token->flags |= TOKEN_BYTE;
    if (!decoding->import->decodes_first) return true;
    if (!decode_token(decoding, text, size, true, &first_byte, &decoding->import->first[id])) return false;
    return byte == first_byte ||
           tokenizer_import_fail(decoding->import,
                                 "decoder: token %u, which stands for a byte in one place only, is not supported", id);
}

bool tokenizer_import_decoded(struct tokenizer_import *import)
{
    struct decoding decoding;
    const struct added_token **renamed = calloc(import->header.token_count, sizeof *renamed); /* [id] */
    bool good = decoding_open(&decoding, import);
    if (good && import->decodes_first) import->first = calloc(import->header.token_count, sizeof *import->first);
    if (!renamed || (import->decodes_first && !import->first))
        good = status_fail(import->status, STATUS_MACHINE, "out of memory");
    /* Hugging Face 0.23 decodes an added token from its normalized form, as if the model had produced it */
    for (size_t i = 0; good && i < import->added_count; i++)
        if (import->added[i].normalized) renamed[import->added[i].id] = &import->added[i];
    for (uint32_t id = 0; good && id < import->header.token_count; id++) {
        const struct image_token *token = &import->tokens[id];
        if (!(token->flags & TOKEN_PRESENT)) continue;
        if (renamed[id])
            good = decode_id(&decoding, id, renamed[id]->normalized, renamed[id]->normalized_size);
        else
            good = decode_id(&decoding, id, import->pool.text + token->text_offset, token->text_bytes);
    }
    decoding_close(&decoding);
    free(renamed);
    return good;
}
