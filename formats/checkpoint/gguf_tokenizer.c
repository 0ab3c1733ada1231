/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: keys as llama.cpp's converter writes them; expressions and defaults by tokenizer.ggml.pre as in llama-vocab.cpp, and as the
 * tokenizer.json of the models has them that these names are of (Llama 3, Qwen 2, SmolLM, StarCoder, GPT-2, DeepSeek, Command R,
 * Falcon, gpt-oss, Mistral Nemo); merges of a vocabulary with scores as transformers makes them (convert_slow_tokenizer.py: generate_merges). */
#include "formats/checkpoint/gguf_tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"

/* tokenizer.ggml.token_type */
enum token_type { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE };

enum {
    MAX_TOKENS = 1 << 24,
    MAX_SPLIT_BYTES = 256
}; /* longer pieces are not made of others: real ones have up to 100 bytes */

#define BYTE_LEVEL(regex) \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": " regex "}"
#define SPLIT(regex)                                                                                          \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"Isolated\", \"invert\": " \
    "false}"
#define SEQUENCE(steps) "{\"type\": \"Sequence\", \"pretokenizers\": [" steps "]}"
#define DIGITS(each)    "{\"type\": \"Digits\", \"individual_digits\": " each "}"
#define CLITICS         "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES          "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
/* Words with the character before them, numbers, other characters, runs of spaces. */
#define WORDS(digits)                                                         \
    SEQUENCE(SPLIT(CLITICS "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits \
                           "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*" SPACES) ", " BYTE_LEVEL("false"))
/* The same with words divided where a lower-case letter precedes an upper-case one. */
#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define CASED(clitics, digits)                                                              \
    SEQUENCE(SPLIT("[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+" clitics             \
                   "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "+" LOWER "*" clitics "|" digits \
                   "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" SPACES) ", " BYTE_LEVEL("false"))

/* Kinds of byte-level BPE: parts of tokenizer.json as text, NULL: null. add_bos: as in llama-vocab.cpp, for files without
 * tokenizer.ggml.add_bos_token. */
static const struct byte_level {
    const char *name, *normalizer, *pre_tokenizer;
    bool ignore_merges, add_bos;
} byte_levels[] = {
    {"llama-bpe", NULL, WORDS("\\\\p{N}{1,3}"), true, true},
    {"qwen2", "{\"type\": \"NFC\"}", WORDS("\\\\p{N}"), false, false},
    {"smollm", NULL, SEQUENCE(DIGITS("true") ", " BYTE_LEVEL("true")), false, false},
    {"starcoder", NULL, SEQUENCE(DIGITS("true") ", " BYTE_LEVEL("true")), false, false},
    {"refact", NULL, SEQUENCE(DIGITS("true") ", " BYTE_LEVEL("true")), false, false},
    {"command-r", "{\"type\": \"NFC\"}", SEQUENCE(DIGITS("true") ", " BYTE_LEVEL("true")), false, false},
    {"gpt-2", NULL, BYTE_LEVEL("true"), false, false},
    {"gpt-4o", NULL, CASED(CLITICS "?", "\\\\p{N}{1,3}"), false, false},
    {"tekken", NULL, CASED("", "\\\\p{N}"), true, true},
    {"deepseek-coder", NULL,
     SEQUENCE(SPLIT("[\\r\\n]") ", " SPLIT("\\\\s?\\\\p{L}+") ", " SPLIT("\\\\s?\\\\p{P}+") ", " SPLIT(
         "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+") ", " DIGITS("true") ", " BYTE_LEVEL("false")),
     false, false},
    {"deepseek-v3", NULL,
     SEQUENCE(SPLIT("\\\\p{N}{1,3}") ", " SPLIT("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+") ", " SPLIT(
         "[!\\\"#$%&'()*+,\\\\-./"
         ":;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}"
         "\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*" SPACES) ", " BYTE_LEVEL("false")),
     false, false},
    {"falcon", NULL,
     SEQUENCE("{\"type\": \"Punctuation\", \"behavior\": \"Contiguous\"}, " BYTE_LEVEL("true") ", " DIGITS(
         "false") ", " SPLIT("[0-9][0-9][0-9]")),
     false, false},
};

/* SentencePiece's way: spaces are a character of their own, and what has no piece becomes bytes. */
static const char pieces_replace[] =
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\u2581\"}";
static const char pieces_prepend[] = "{\"type\": \"Prepend\", \"prepend\": \"\u2581\"}";
static const char pieces_decoders[] = "[{\"type\": \"Replace\", \"pattern\": {\"String\": \"\u2581\"}, \"content\": \" "
                                      "\"}, {\"type\": \"ByteFallback\"}, "
                                      "{\"type\": \"Fuse\"}]";
static const char pieces_strip[] = "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}";

/* A piece that is made of two others. */
struct merge {
    uint32_t id, left_id, right_id;
    uint32_t left_characters, right_characters, left_bytes;
    float score;
};

struct reading {
    struct gguf *file;
    struct status *status;
    char **missing;
    uint64_t count;
    const char **texts; /* owned: [count], borrowed from the vocabulary; NULL: unused */
    uint8_t *types;     /* owned: [count] */
    json_t *root, *vocabulary;
    struct merge *merges; /* owned */
    size_t merge_count, merge_capacity;
};

static bool out_of_memory(struct reading *r) { return status_fail(r->status, STATUS_MACHINE, "out of memory"); }

/* The file has no tokenizer that can be used; the build goes on. Returns false without a status. */
static bool lacks(struct reading *r, const char *reason)
{
    if (!*r->missing && asprintf(r->missing, "'%s': %s", r->file->path, reason) < 0) *r->missing = NULL;
    return *r->missing ? false : out_of_memory(r);
}

static bool is_text(const char *text, size_t bytes, const char *expected)
{
    return bytes == strlen(expected) && memcmp(text, expected, bytes) == 0;
}

static bool put(struct reading *r, json_t *object, const char *key, json_t *value)
{
    return json_put(object, key, value) || out_of_memory(r);
}

/* A part of tokenizer.json that is a constant text here. NULL: out of memory, which json_loads overlooks. */
static json_t *constant(const char *text)
{
    struct status ignored = {0};
    return text ? json_parse(text, strlen(text), "tokenizer", &ignored) : json_null();
}

static bool put_text(struct reading *r, json_t *object, const char *key, const char *text)
{
    return put(r, object, key, constant(text));
}

/* ---- tokens ---- */

static bool read_types(struct reading *r)
{
    const struct gguf_value *types;
    static const char key[] = "tokenizer.ggml.token_type";
    char expected[48], found[48];
    if (!gguf_get_array(r->file, key, true, GGUF_I32, &types, r->status)) return false;
    if (types->count != r->count) {
        snprintf(expected, sizeof expected, "%" PRIu64 " elements, one for each token", r->count);
        snprintf(found, sizeof found, "%" PRIu64, types->count);
        return gguf_fail_key(r->file, key, expected, found, r->status);
    }
    for (uint64_t i = 0; i < r->count; i++) {
        const uint32_t type = gguf_u32_at(types->data, i);
        if (type < TOKEN_NORMAL || type > TOKEN_BYTE)
            return gguf_fail_key(r->file, key, "types from 1 to 6", "others", r->status);
        r->types[i] = (uint8_t)type;
    }
    return true;
}

/* All tokens but unused ones, added tokens as well: those keep their ids whatever their place. */
static bool read_tokens(struct reading *r)
{
    static const char key[] = "tokenizer.ggml.tokens";
    const struct gguf_value *tokens;
    if (!gguf_get_array(r->file, key, false, GGUF_STRING, &tokens, r->status)) return false;
    if (!tokens || !tokens->count) return lacks(r, "it has no tokens");
    if (tokens->count > MAX_TOKENS) return gguf_fail_key(r->file, key, "at most 2^24 tokens", "more", r->status);
    r->count = tokens->count;
    r->texts = calloc(r->count, sizeof *r->texts);
    r->types = calloc(r->count, 1);
    r->vocabulary = json_object();
    if (!r->texts || !r->types || !r->vocabulary) return out_of_memory(r);
    if (!read_types(r)) return false;
    const uint8_t *at = tokens->data;
    for (uint64_t i = 0; i < r->count; i++) {
        const char *text;
        size_t bytes;
        gguf_next_string(&at, &text, &bytes);
        if (r->types[i] == TOKEN_UNUSED) continue;
        errno = 0;
        json_t *string = memchr(text, 0, bytes) ? NULL : json_stringn(text, bytes);
        if (!string && errno == ENOMEM) return out_of_memory(r);
        if (!string) return lacks(r, "a token is not UTF-8 or has a zero byte");
        const bool is_new = !json_object_get(r->vocabulary, json_string_value(string));
        const bool ok = !is_new || json_put(r->vocabulary, json_string_value(string), json_integer((json_int_t)i));
        json_decref(string);
        if (!ok) return out_of_memory(r);
        if (!is_new) return lacks(r, "two tokens have the same text");
    }
    const char *name;
    json_t *id;
    json_object_foreach (r->vocabulary, name, id) r->texts[json_integer_value(id)] = name;
    return true;
}

/* Control tokens are special; user-defined ones are found in a text first, too, but are text themselves. */
static bool put_added(struct reading *r)
{
    json_t *list = json_array();
    bool ok = list || out_of_memory(r);
    for (uint64_t i = 0; ok && i < r->count; i++) {
        const uint8_t type = r->types[i];
        if (!r->texts[i] || (type != TOKEN_UNKNOWN && type != TOKEN_CONTROL && type != TOKEN_USER_DEFINED)) continue;
        ok = json_add(list, json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i, "content",
                                      r->texts[i], "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0,
                                      "special", type != TOKEN_USER_DEFINED)) ||
             out_of_memory(r);
    }
    ok = ok && put(r, r->root, "added_tokens", json_incref(list));
    json_decref(list);
    return ok;
}

/* ---- tokens before and after a text ---- */

/* The token of `id_key` if the file says that it is added; NULL: none. */
static bool find_special(struct reading *r, const char *add_key, const char *id_key, bool absent, json_int_t absent_id,
                         json_int_t *id)
{
    bool add = absent;
    uint64_t value = absent_id < 0 ? UINT64_MAX : (uint64_t)absent_id;
    *id = -1;
    if (!gguf_get_bool(r->file, add_key, false, &add, r->status) ||
        !gguf_get_u64(r->file, id_key, false, &value, r->status))
        return false;
    if (!add || value == UINT64_MAX) return true;
    if (value >= r->count || !r->texts[value]) return gguf_fail_key(r->file, id_key, "a token", "none", r->status);
    *id = (json_int_t)value;
    return true;
}

static bool add_special(json_t *single, json_t *tokens, const char *text, json_int_t id)
{
    return json_add(single, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", 0)) &&
           json_put(tokens, text, json_pack("{s:s, s:[I], s:[s]}", "id", text, "ids", id, "tokens", text));
}

static bool put_template(struct reading *r, bool add_bos, bool has_defaults)
{
    json_int_t bos, eos;
    if (!find_special(r, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", add_bos, has_defaults ? 1 : -1,
                      &bos) ||
        !find_special(r, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false, has_defaults ? 2 : -1,
                      &eos))
        return false;
    if (bos < 0 && eos < 0) return put(r, r->root, "post_processor", json_null());
    json_t *single = json_array(), *pair = json_array(), *tokens = json_object();
    bool ok = (bos < 0 || add_special(single, tokens, r->texts[bos], bos)) &&
              json_add(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0)) &&
              (eos < 0 || add_special(single, tokens, r->texts[eos], eos));
    for (int i = 0; ok && i < 2; i++)
        ok = json_add(pair, json_pack("{s:{s:s, s:i}}", "Sequence", "id", i ? "B" : "A", "type_id", i));
    ok = ok && put(r, r->root, "post_processor",
                   json_pack("{s:s, s:O, s:O, s:O}", "type", "TemplateProcessing", "single", single, "pair", pair,
                             "special_tokens", tokens));
    ok = ok || out_of_memory(r);
    json_decref(single);
    json_decref(pair);
    json_decref(tokens);
    return ok;
}

/* ---- byte-level BPE ---- */

static bool put_byte_level(struct reading *r, json_t *model)
{
    const char *pre = "default";
    size_t bytes = 7;
    const struct byte_level *kind = NULL;
    const struct gguf_value *merges;
    if (!gguf_get_string(r->file, "tokenizer.ggml.pre", false, &pre, &bytes, r->status)) return false;
    for (size_t i = 0; i < sizeof byte_levels / sizeof *byte_levels; i++)
        if (is_text(pre, bytes, byte_levels[i].name)) kind = &byte_levels[i];
    if (!kind)
        return lacks(
            r, "its tokenizer.ggml.pre is not llama-bpe, qwen2, smollm, starcoder, refact, command-r, gpt-2, gpt-4o, "
               "tekken, deepseek-coder, deepseek-v3 or falcon, so that it is not known how texts are split");
    if (!gguf_get_array(r->file, "tokenizer.ggml.merges", true, GGUF_STRING, &merges, r->status)) return false;
    json_t *list = json_array();
    const uint8_t *at = merges->data;
    bool ok = list || out_of_memory(r);
    for (uint64_t i = 0; ok && i < merges->count; i++) {
        const char *text;
        size_t size;
        gguf_next_string(&at, &text, &size);
        errno = 0;
        ok = json_add(list, json_stringn(text, size)) ||
             (errno == ENOMEM ? out_of_memory(r) : lacks(r, "a merge is not UTF-8"));
    }
    ok = ok && put(r, model, "merges", json_incref(list)) &&
         put(r, model, "ignore_merges", json_boolean(kind->ignore_merges)) &&
         put_text(r, r->root, "normalizer", kind->normalizer) &&
         put_text(r, r->root, "pre_tokenizer", kind->pre_tokenizer) &&
         put_text(r, r->root, "decoder", BYTE_LEVEL("true")) && put_template(r, kind->add_bos, false);
    json_decref(list);
    return ok;
}

/* ---- pieces with scores ---- */

static int compare_merges(const void *left, const void *right)
{
    const struct merge *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->left_characters != b->left_characters) return a->left_characters > b->left_characters ? -1 : 1;
    if (a->right_characters != b->right_characters) return a->right_characters > b->right_characters ? -1 : 1;
    if (a->id != b->id) return a->id < b->id ? -1 : 1;
    if (a->left_id != b->left_id) return a->left_id < b->left_id ? -1 : 1;
    return (a->right_id > b->right_id) - (a->right_id < b->right_id);
}

static bool is_continuation(char byte) { return ((unsigned char)byte & 0xc0) == 0x80; }

/* Only these become longer pieces: control tokens never come of a text's characters. */
static bool is_piece(const struct reading *r, uint64_t id)
{
    return r->texts[id] && (r->types[id] == TOKEN_NORMAL || r->types[id] == TOKEN_USER_DEFINED);
}

static int64_t find_piece(const struct reading *r, const char *text)
{
    const json_t *id = json_object_get(r->vocabulary, text);
    return id && is_piece(r, (uint64_t)json_integer_value(id)) ? (int64_t)json_integer_value(id) : -1;
}

/* Every division of a piece into two others. */
static bool add_merges(struct reading *r, uint64_t id, float score)
{
    char left[MAX_SPLIT_BYTES + 1];
    const char *text = r->texts[id];
    const size_t bytes = strlen(text);
    uint32_t characters = 0, before = 1;
    if (bytes > MAX_SPLIT_BYTES) return true;
    for (size_t i = 0; i < bytes; i++) characters += !is_continuation(text[i]);
    memcpy(left, text, bytes + 1);
    for (size_t i = 1; i < bytes; i++) {
        if (is_continuation(text[i])) continue;
        left[i] = '\0';
        const int64_t left_id = find_piece(r, left), right_id = left_id < 0 ? -1 : find_piece(r, text + i);
        left[i] = text[i];
        const uint32_t left_characters = before++;
        if (right_id < 0) continue;
        if (r->merge_count == r->merge_capacity) {
            const size_t capacity = r->merge_capacity ? 2 * r->merge_capacity : 1024;
            struct merge *larger = realloc(r->merges, capacity * sizeof *larger);
            if (!larger) return out_of_memory(r);
            r->merges = larger;
            r->merge_capacity = capacity;
        }
        r->merges[r->merge_count++] = (struct merge){(uint32_t)id,
                                                     (uint32_t)left_id,
                                                     (uint32_t)right_id,
                                                     left_characters,
                                                     characters - left_characters,
                                                     (uint32_t)i,
                                                     score};
    }
    return true;
}

/* The pair whose piece has the highest score is joined first, which ranks of merges say as well. */
static bool put_merges(struct reading *r, json_t *model)
{
    static const char key[] = "tokenizer.ggml.scores";
    const struct gguf_value *scores;
    if (!gguf_get_array(r->file, key, true, GGUF_F32, &scores, r->status)) return false;
    if (scores->count != r->count)
        return gguf_fail_key(r->file, key, "one for each token", "another number of them", r->status);
    for (uint64_t i = 0; i < r->count; i++) {
        const float score = gguf_f32_at(scores->data, i);
        if (score - score != 0) return gguf_fail_key(r->file, key, "finite numbers", "NaN or infinity", r->status);
        if (is_piece(r, i) && !add_merges(r, i, score)) return false;
    }
    if (r->merge_count) qsort(r->merges, r->merge_count, sizeof *r->merges, compare_merges);
    json_t *list = json_array();
    bool ok = list || out_of_memory(r);
    for (size_t i = 0; ok && i < r->merge_count; i++)
        ok = json_add(list, json_pack("[s, s]", r->texts[r->merges[i].left_id], r->texts[r->merges[i].right_id])) ||
             out_of_memory(r);
    ok = ok && put(r, model, "merges", json_incref(list));
    json_decref(list);
    return ok;
}

static bool put_pieces(struct reading *r, json_t *model)
{
    bool prefix = true, strip = false;
    uint64_t unknown = UINT64_MAX;
    for (uint64_t i = 0; unknown == UINT64_MAX && i < r->count; i++)
        if (r->types[i] == TOKEN_UNKNOWN) unknown = i;
    if (!gguf_get_bool(r->file, "tokenizer.ggml.add_space_prefix", false, &prefix, r->status) ||
        !gguf_get_bool(r->file, "tokenizer.ggml.remove_extra_whitespaces", false, &strip, r->status))
        return false;
    if (strip || gguf_get(r->file, "tokenizer.ggml.precompiled_charsmap"))
        return lacks(r, "its tokenizer changes spaces or characters of a text (remove_extra_whitespaces, "
                        "precompiled_charsmap), which is not read");
    if (!put_merges(r, model)) return false;
    json_t *normalizers = json_array(), *decoders = constant(pieces_decoders);
    bool ok =
        ((!prefix || (json_add(normalizers, constant(pieces_prepend)) && json_add(decoders, constant(pieces_strip)))) &&
         json_add(normalizers, constant(pieces_replace))) ||
        out_of_memory(r);
    ok = ok && put(r, r->root, "normalizer", json_pack("{s:s, s:O}", "type", "Sequence", "normalizers", normalizers)) &&
         put(r, r->root, "decoder", json_pack("{s:s, s:O}", "type", "Sequence", "decoders", decoders)) &&
         put_text(r, r->root, "pre_tokenizer", NULL) &&
         put(r, model, "unk_token", unknown == UINT64_MAX ? json_null() : json_string(r->texts[unknown])) &&
         put(r, model, "fuse_unk", json_true()) && put(r, model, "byte_fallback", json_true()) &&
         put_template(r, true, true);
    json_decref(normalizers);
    json_decref(decoders);
    return ok;
}

/* ---- the file ---- */

static bool read_all(struct reading *r)
{
    const char *kind = NULL;
    size_t bytes = 0;
    if (!gguf_get_string(r->file, "tokenizer.ggml.model", false, &kind, &bytes, r->status)) return false;
    if (!kind) return lacks(r, "it has no tokenizer (key tokenizer.ggml.model)");
    const bool pieces = is_text(kind, bytes, "llama");
    if (!pieces && !is_text(kind, bytes, "gpt2"))
        return lacks(r, "its tokenizer.ggml.model is not llama or gpt2; other kinds are not read");
    if (!read_tokens(r)) return false;
    json_t *model = json_object();
    bool ok = put(r, model, "type", json_string("BPE")) && put(r, model, "vocab", json_incref(r->vocabulary)) &&
              put(r, r->root, "version", json_string("1.0")) && put_added(r) &&
              (pieces ? put_pieces(r, model) : put_byte_level(r, model)) &&
              put(r, r->root, "model", json_incref(model));
    json_decref(model);
    return ok;
}

bool gguf_read_tokenizer(struct gguf *file, char **text, char **missing, struct status *status)
{
    struct reading r = {.file = file, .status = status, .missing = missing, .root = json_object()};
    *text = *missing = NULL;
    bool ok = (r.root || out_of_memory(&r)) && read_all(&r);
    if (ok && !(*text = json_format(r.root, JSON_COMPACT))) ok = out_of_memory(&r);
    json_decref(r.root);
    json_decref(r.vocabulary);
    free(r.texts);
    free(r.types);
    free(r.merges);
    return ok || *missing;
}
