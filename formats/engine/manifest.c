/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest's JSON form. Every field stands once, in the tables below, from which writing, reading and range checks
 * derive; manifest_check then compares the values with each other.
 *
 * Forward compatibility: a key that this version does not know is an error, because it may change the meaning of the
 * engine. Facts that a later minor version adds for information only go into the top-level object "extra", which this
 * version ignores. */
#include "formats/engine/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/base/json.h"
#include "formats/base/printable.h"

#define MANIFEST_MAX_NUMBER 0x1p50 /* bytes of any memory space, parameters */

/* The groups of the JSON object. */
enum group {
    GROUP_MODEL,
    GROUP_TARGET,
    GROUP_LIMITS,
    GROUP_KV_CACHE,
    GROUP_MEMORY,
    GROUP_TOKENS,
    GROUP_SAMPLING,
    GROUP_PARALLEL, /* only with more than one rank */
    GROUP_COUNT
};
static const char *const group_names[GROUP_COUNT] = {
    "model", "target", "limits", "kv_cache", "memory", "tokens", "sampling", "parallel",
};

enum field_kind {
    FIELD_TEXT,     /* a char array of `maximum` bytes */
    FIELD_NUMBER,   /* a uint64_t */
    FIELD_OPTIONAL, /* a uint64_t; 0: the manifest lacks it */
    FIELD_REAL,     /* a double */
    FIELD_ENCODING, /* an enum encoding_id */
};

static const struct field {
    enum group group;
    const char *key;
    enum field_kind kind;
    size_t offset;
    double minimum, maximum; /* whole numbers of at most 50 bits are exact */
} fields[] = {
    {GROUP_MODEL, "type", FIELD_TEXT, offsetof(struct manifest, model_type), 1,
     sizeof(((struct manifest *)0)->model_type)},
    {GROUP_MODEL, "name", FIELD_TEXT, offsetof(struct manifest, model_name), 1, MANIFEST_TEXT_BYTES},
    {GROUP_TARGET, "name", FIELD_TEXT, offsetof(struct manifest, target_name), 1, MANIFEST_TEXT_BYTES},
    {GROUP_MODEL, "hidden_size", FIELD_NUMBER, offsetof(struct manifest, hidden_size), 1, 1 << 24},
    {GROUP_MODEL, "intermediate_size", FIELD_NUMBER, offsetof(struct manifest, intermediate_size), 1, 1 << 28},
    {GROUP_MODEL, "layers", FIELD_NUMBER, offsetof(struct manifest, layers), 1, 4096},
    {GROUP_MODEL, "heads", FIELD_NUMBER, offsetof(struct manifest, heads), 1, 1 << 16},
    {GROUP_MODEL, "kv_heads", FIELD_NUMBER, offsetof(struct manifest, kv_heads), 1, 1 << 16},
    {GROUP_MODEL, "head_dim", FIELD_NUMBER, offsetof(struct manifest, head_dim), 1, 1 << 16},
    {GROUP_MODEL, "parameters", FIELD_NUMBER, offsetof(struct manifest, parameters), 1, MANIFEST_MAX_NUMBER},
    {GROUP_MODEL, "vocab_size", FIELD_NUMBER, offsetof(struct manifest, geometry.vocab_size), 1, 1 << 28},
    {GROUP_LIMITS, "slots", FIELD_NUMBER, offsetof(struct manifest, geometry.slots), 1, 1 << 16},
    {GROUP_LIMITS, "max_context", FIELD_NUMBER, offsetof(struct manifest, geometry.max_context), 1, 1 << 30},
    {GROUP_LIMITS, "rope_original", FIELD_OPTIONAL, offsetof(struct manifest, geometry.rope_original), 1, 1 << 30},
    {GROUP_LIMITS, "recurrent_bytes", FIELD_OPTIONAL, offsetof(struct manifest, geometry.recurrent_bytes), 1,
     (double)PLAN_MAX_RECURRENT_BYTES},
    {GROUP_KV_CACHE, "layers", FIELD_OPTIONAL, offsetof(struct manifest, kv_layers), 1, 4096},
    {GROUP_KV_CACHE, "all_bytes", FIELD_OPTIONAL, offsetof(struct manifest, kv_all_bytes), 1, MANIFEST_MAX_NUMBER},
    {GROUP_KV_CACHE, "page_tokens", FIELD_NUMBER, offsetof(struct manifest, geometry.page_tokens), 1, 1 << 16},
    {GROUP_KV_CACHE, "pages_per_slot", FIELD_NUMBER, offsetof(struct manifest, geometry.pages_per_slot), 1, 1 << 30},
    {GROUP_KV_CACHE, "latent_dim", FIELD_OPTIONAL, offsetof(struct manifest, latent_dim), 1, 1 << 16},
    {GROUP_KV_CACHE, "page_bytes", FIELD_NUMBER, offsetof(struct manifest, geometry.page_bytes), 1,
     MANIFEST_MAX_NUMBER},
    {GROUP_MEMORY, "weights_bytes", FIELD_NUMBER, offsetof(struct manifest, weights_bytes), 1, MANIFEST_MAX_NUMBER},
    {GROUP_MEMORY, "arena_bytes", FIELD_NUMBER, offsetof(struct manifest, arena_bytes), 0, MANIFEST_MAX_NUMBER},
    {GROUP_MEMORY, "step_bytes", FIELD_NUMBER, offsetof(struct manifest, step_bytes), 1, MANIFEST_MAX_NUMBER},
    {GROUP_MEMORY, "state_bytes", FIELD_NUMBER, offsetof(struct manifest, state_bytes), 1, MANIFEST_MAX_NUMBER},
    {GROUP_PARALLEL, "ranks", FIELD_NUMBER, offsetof(struct manifest, geometry.ranks), 2, PLAN_MAX_RANKS},
    {GROUP_PARALLEL, "comm_bytes", FIELD_NUMBER, offsetof(struct manifest, comm_bytes), sizeof(struct comm_header),
     MANIFEST_MAX_NUMBER},
    {GROUP_SAMPLING, "top_k", FIELD_NUMBER, offsetof(struct manifest, top_k), 0, INT32_MAX},
    {GROUP_SAMPLING, "temperature", FIELD_REAL, offsetof(struct manifest, temperature), 0.0, 1e6},
    {GROUP_SAMPLING, "top_p", FIELD_REAL, offsetof(struct manifest, top_p), 1e-9, 1.0},
    {GROUP_SAMPLING, "repetition_penalty", FIELD_REAL, offsetof(struct manifest, repetition_penalty), 0.01, 1e6},
    {GROUP_MODEL, "weight_dtype", FIELD_ENCODING, offsetof(struct manifest, weight_encoding), 0, 0},
    {GROUP_KV_CACHE, "dtype", FIELD_ENCODING, offsetof(struct manifest, kv_dtype), 0, 0},
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static void *field_at(struct manifest *manifest, const struct field *field) { return (char *)manifest + field->offset; }
static const void *value_of(const struct manifest *manifest, const struct field *field)
{
    return (const char *)manifest + field->offset;
}

struct plan_space_sizes manifest_space_sizes(const struct manifest *manifest)
{
    return (struct plan_space_sizes){.bytes = {
                                         [SPACE_WEIGHTS] = manifest_rank_weights(manifest),
                                         [SPACE_ARENA] = manifest->arena_bytes,
                                         [SPACE_KV] = manifest->geometry.page_bytes,
                                         [SPACE_STEP] = manifest->step_bytes,
                                         [SPACE_STATE] = manifest->state_bytes,
                                         [SPACE_COMM] = manifest->comm_bytes,
                                     }};
}

const char *chat_format_name(enum chat_format format)
{
    switch (format) {
    case CHAT_NONE: return "none";
    case CHAT_CHATML: return "chatml";
    case CHAT_LLAMA3: return "llama3";
    case CHAT_MISTRAL: return "mistral";
    }
    return "?";
}

const char *engine_target_name(enum engine_target target)
{
    switch (target) {
    case TARGET_CPU: return "cpu";
    case TARGET_CUDA: return "cuda";
    }
    return "?";
}

/* A text that fits its array, is not empty and has no control characters. */
static bool check_text(const char *key, const char *text, size_t capacity, struct status *status)
{
    size_t length = strnlen(text, capacity);
    if (length == 0 || length == capacity)
        return status_fail(status, STATUS_BAD_INPUT, "%s: expected 1 to %zu bytes of text, found %zu%s", key,
                           capacity - 1, length, length == capacity ? " or more" : "");
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bytes = printable_length(text + i, length - i);
        if (!bytes)
            return status_fail(status, STATUS_BAD_INPUT, "%s: expected text, found a control character at byte %zu",
                               key, i);
    }
    return true;
}

/* Code for a compute capability runs on no other, so an engine states it; a CPU has none. */
static bool check_capability(const struct manifest *manifest, struct status *status)
{
    enum { LEAST = 50, MOST = 999 };
    uint64_t found = manifest->target_capability;
    if (manifest->target == TARGET_CPU ? found == 0 : found >= LEAST && found <= MOST) return true;
    return status_fail(status, STATUS_BAD_INPUT, "target: capability: expected %s, found %" PRIu64,
                       manifest->target == TARGET_CPU ? "none for a CPU" : "50 to 999", found);
}

static bool is_parallel(const struct manifest *manifest) { return plan_ranks(&manifest->geometry) > 1; }

static bool check_field(const struct manifest *manifest, const struct field *field, struct status *status)
{
    const char *group = group_names[field->group];
    const void *at = value_of(manifest, field);
    switch (field->kind) {
    case FIELD_TEXT:
        return check_text(field->key, at, (size_t)field->maximum, status) || status_prefix(status, "%s", group);
    case FIELD_NUMBER:
    case FIELD_OPTIONAL: {
        const uint64_t value = *(const uint64_t *)at, minimum = (uint64_t)field->minimum,
                       maximum = (uint64_t)field->maximum;
        if ((field->kind == FIELD_OPTIONAL && value == 0) || (value >= minimum && value <= maximum)) return true;
        return status_fail(status, STATUS_BAD_INPUT, "%s: %s: expected %" PRIu64 " to %" PRIu64 ", found %" PRIu64,
                           group, field->key, minimum, maximum, value);
    }
    case FIELD_REAL: {
        const double value = *(const double *)at; /* a NaN is in no range */
        return (value >= field->minimum && value <= field->maximum) ||
               status_fail(status, STATUS_BAD_INPUT, "%s: %s: expected %g to %g, found %g", group, field->key,
                           field->minimum, field->maximum, value);
    }
    case FIELD_ENCODING:
        return encoding_find(*(const enum encoding_id *)at) ||
               status_fail(status, STATUS_BAD_INPUT, "%s: %s: unknown encoding %d", group, field->key,
                           (int)*(const enum encoding_id *)at);
    }
    return false;
}

static bool check_fields(const struct manifest *manifest, struct status *status)
{
    if (!check_text("builder_version", manifest->builder_version, sizeof manifest->builder_version, status))
        return false;
    for (int i = 0; i < FIELD_COUNT; i++)
        if ((fields[i].group != GROUP_PARALLEL || is_parallel(manifest)) && !check_field(manifest, &fields[i], status))
            return false;
    if (manifest->target != TARGET_CPU && manifest->target != TARGET_CUDA)
        return status_fail(status, STATUS_BAD_INPUT, "target: kind: unknown value %d", (int)manifest->target);
    return true;
}

static bool check_token(const char *key, int64_t token, uint64_t vocab_size, struct status *status)
{
    if (token >= 0 && (uint64_t)token < vocab_size) return true;
    return status_fail(status, STATUS_BAD_INPUT, "tokens: %s: expected 0 to %" PRIu64 ", found %" PRId64, key,
                       vocab_size - 1, token);
}

static bool check_tokens(const struct manifest *manifest, struct status *status)
{
    uint64_t vocab_size = manifest->geometry.vocab_size;
    if (manifest->bos_token != -1 && !check_token("bos", manifest->bos_token, vocab_size, status)) return false;
    if (manifest->pad_token != -1 && !check_token("pad", manifest->pad_token, vocab_size, status)) return false;
    if (manifest->eos_count < 0 || manifest->eos_count > MANIFEST_MAX_EOS)
        return status_fail(status, STATUS_BAD_INPUT, "tokens: eos: expected 0 to %d tokens, found %d", MANIFEST_MAX_EOS,
                           manifest->eos_count);
    for (int i = 0; i < manifest->eos_count; i++)
        if (!check_token("eos", manifest->eos_tokens[i], vocab_size, status)) return false;
    if ((int)manifest->chat_format < CHAT_NONE || (int)manifest->chat_format > CHAT_MISTRAL)
        return status_fail(status, STATUS_BAD_INPUT, "tokens: chat_format: unknown value %d",
                           (int)manifest->chat_format);
    return true;
}

static bool check_derived(const char *key, uint64_t stated, uint64_t derived, struct status *status)
{
    if (stated == derived) return true;
    return status_fail(status, STATUS_BAD_INPUT, "%s: expected %" PRIu64 " (from the other fields), found %" PRIu64,
                       key, derived, stated);
}

/* Every rank has the same number of heads; each KV head is on one rank, or on all ranks that share it. */
static bool check_ranks(const struct manifest *manifest, struct status *status)
{
    uint64_t ranks = plan_ranks(&manifest->geometry), kv_heads = manifest->kv_heads;
    if (ranks == 1) return check_derived("parallel: comm_bytes", manifest->comm_bytes, 0, status);
    if (manifest->heads % ranks != 0 || manifest->intermediate_size % ranks != 0 ||
        (kv_heads % ranks != 0 && ranks % kv_heads != 0))
        return status_fail(status, STATUS_BAD_INPUT,
                           "parallel: ranks: %" PRIu64 " ranks cannot share %" PRIu64 " heads, %" PRIu64
                           " kv_heads and an intermediate_size of %" PRIu64,
                           ranks, manifest->heads, kv_heads, manifest->intermediate_size);
    if (manifest->weights_bytes % ranks != 0 || manifest_rank_weights(manifest) % ENGINE_REGION_ALIGNMENT != 0)
        return status_fail(status, STATUS_BAD_INPUT,
                           "memory: weights_bytes: %" PRIu64 " are not %" PRIu64 " regions of a multiple of %d bytes",
                           manifest->weights_bytes, ranks, ENGINE_REGION_ALIGNMENT);
    return true;
}

bool kv_block_bytes(enum encoding_id encoding, uint64_t kv_heads, uint64_t page_tokens, uint64_t head_dim,
                    uint64_t latent_dim, uint64_t *bytes)
{
    struct encoding_layout layout;
    uint64_t rows;
    if (!checked_mul(kv_heads, page_tokens, &rows) || !encoding_layout(encoding, rows, head_dim, &layout)) return false;
    return checked_mul(layout.bytes, latent_dim ? 1 : 2, bytes);
}

static bool check_page_groups(const struct manifest *manifest, struct status *status)
{
    const struct plan_geometry *geometry = &manifest->geometry;
    if (geometry->page_groups > PLAN_MAX_PAGE_GROUPS)
        return status_fail(status, STATUS_BAD_INPUT, "kv_cache: windows: expected 1 to %d page groups, found %" PRIu64,
                           PLAN_MAX_PAGE_GROUPS, geometry->page_groups);
    for (unsigned g = 0; g < plan_page_groups(geometry); g++)
        if (geometry->page_window[g] > geometry->max_context)
            return status_fail(status, STATUS_BAD_INPUT,
                               "kv_cache: windows: element %u: expected 0 to %" PRIu64 " (max_context), found %" PRIu64,
                               g, geometry->max_context, geometry->page_window[g]);
    return true;
}

/* One group has all layers; of several, each has a part. That the layers of each lie inside a page is checked with the plans. */
static bool check_page_bytes(const struct manifest *manifest, struct status *status)
{
    const struct plan_geometry *geometry = &manifest->geometry;
    uint64_t layer_bytes, all_bytes;
    if (!kv_block_bytes(manifest->kv_dtype, manifest_rank_kv_heads(manifest), geometry->page_tokens, manifest->head_dim,
                        manifest->latent_dim, &layer_bytes) ||
        !checked_mul(layer_bytes, manifest->kv_layers ? manifest->kv_layers : manifest->layers, &all_bytes))
        return status_fail(status, STATUS_BAD_INPUT, "kv_cache: the size of a page overflows");
    if (manifest->kv_all_bytes) { /* what heads a layer has is in the plans */
        all_bytes = manifest->kv_all_bytes;
        layer_bytes = 1;
    }
    if (plan_page_groups(geometry) == 1) {
        if (!check_derived("kv_cache: page_bytes", geometry->page_bytes, all_bytes, status)) return false;
    } else if (geometry->page_bytes < layer_bytes || geometry->page_bytes >= all_bytes) {
        return status_fail(status, STATUS_BAD_INPUT,
                           "kv_cache: page_bytes: expected those of at least one layer (%" PRIu64
                           ") and fewer than those of all (%" PRIu64 "), found %" PRIu64,
                           layer_bytes, all_bytes, geometry->page_bytes);
    }
    if (geometry->page_bytes % PLAN_ALIGNMENT != 0)
        return status_fail(status, STATUS_BAD_INPUT,
                           "kv_cache: page_bytes: %" PRIu64 " is not a multiple of %d; use a larger page_tokens",
                           geometry->page_bytes, PLAN_ALIGNMENT);
    return true;
}

/* Derived fields must agree with the fields that they derive from: kernels and loaders rely on both. */
static bool check_geometry(const struct manifest *manifest, struct status *status)
{
    const struct plan_geometry *geometry = &manifest->geometry;
    if (manifest->heads % manifest->kv_heads != 0)
        return status_fail(status, STATUS_BAD_INPUT,
                           "model: heads: %" PRIu64 " is not a multiple of the %" PRIu64 " kv_heads", manifest->heads,
                           manifest->kv_heads);
    if (!check_ranks(manifest, status)) return false;
    uint64_t pages =
        geometry->max_context / geometry->page_tokens + (geometry->max_context % geometry->page_tokens != 0);
    if (!check_derived("kv_cache: pages_per_slot", geometry->pages_per_slot, pages, status)) return false;
    if (manifest->latent_dim && (manifest->latent_dim > manifest->head_dim || manifest->kv_heads != 1))
        return status_fail(status, STATUS_BAD_INPUT,
                           "kv_cache: latent_dim: expected at most head_dim (%" PRIu64
                           ") and one KV head, found %" PRIu64 " and %" PRIu64,
                           manifest->head_dim, manifest->latent_dim, manifest->kv_heads);
    if (manifest->kv_layers > manifest->layers)
        return status_fail(status, STATUS_BAD_INPUT, "kv_cache: layers: expected at most %" PRIu64 ", found %" PRIu64,
                           manifest->layers, manifest->kv_layers);
    return check_page_groups(manifest, status) && check_page_bytes(manifest, status);
}

static bool manifest_check(const struct manifest *manifest, struct status *status)
{
    return check_fields(manifest, status) && check_capability(manifest, status) && check_tokens(manifest, status) &&
           check_geometry(manifest, status);
}

/* 15 digits print numbers as written (0.7 stays 0.7); 17 always read back the same. */
static size_t real_precision(const struct manifest *manifest)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (fields[i].kind != FIELD_REAL) continue;
        double value = *(const double *)value_of(manifest, &fields[i]);
        char text[40];
        snprintf(text, sizeof text, "%.15g", value);
        double back = strtod(text, NULL);
        if (memcmp(&back, &value, sizeof value) != 0) return 17;
    }
    return 15;
}

static json_t *format_field(const struct manifest *manifest, const struct field *field)
{
    const void *at = value_of(manifest, field);
    switch (field->kind) {
    case FIELD_TEXT: return json_string(at);
    case FIELD_NUMBER:
    case FIELD_OPTIONAL: return json_integer((json_int_t) * (const uint64_t *)at);
    case FIELD_REAL: return json_real(*(const double *)at);
    case FIELD_ENCODING: return json_string(encoding_label(*(const enum encoding_id *)at));
    }
    return NULL;
}

static json_t *format_group(const struct manifest *manifest, enum group group)
{
    json_t *object = json_object();
    bool good = object != NULL;
    for (int i = 0; good && i < FIELD_COUNT; i++) {
        if (fields[i].group != group) continue;
        if (fields[i].kind == FIELD_OPTIONAL && *(const uint64_t *)value_of(manifest, &fields[i]) == 0) continue;
        good = json_put(object, fields[i].key, format_field(manifest, &fields[i]));
    }
    if (good) return object;
    json_decref(object);
    return NULL;
}

/* Absent where there is one group without a window: readers before 2.3 know no other engines. */
static bool format_windows(const struct plan_geometry *geometry, json_t *kv_cache)
{
    if (plan_page_groups(geometry) == 1 && !geometry->page_window[0]) return true;
    json_t *windows = json_array();
    bool good = windows && json_put(kv_cache, "windows", windows);
    for (unsigned g = 0; g < plan_page_groups(geometry); g++)
        good = good && json_add(windows, json_integer((json_int_t)geometry->page_window[g]));
    return good;
}

static bool format_tokens(const struct manifest *manifest, json_t *tokens)
{
    json_t *eos = json_array();
    bool good = eos && json_put(tokens, "eos", eos);
    for (int i = 0; i < manifest->eos_count; i++) good = good && json_add(eos, json_integer(manifest->eos_tokens[i]));
    if (manifest->bos_token != -1) good = good && json_put(tokens, "bos", json_integer(manifest->bos_token));
    if (manifest->pad_token != -1) good = good && json_put(tokens, "pad", json_integer(manifest->pad_token));
    good = good && json_put(tokens, "chat_format", json_string(chat_format_name(manifest->chat_format)));
    return good && json_put(tokens, "tokenizer", json_boolean(manifest->has_tokenizer));
}

static json_t *format_accuracy(const struct manifest_accuracy *accuracy)
{
    json_t *values = json_pack("{s:I, s:f, s:f}", "tokens", (json_int_t)accuracy->tokens, "kl", accuracy->kl, "top1",
                               accuracy->top1);
    if (!accuracy->calibration_tokens ||
        json_put(values, "calibration_tokens", json_integer((json_int_t)accuracy->calibration_tokens)))
        return values;
    json_decref(values);
    return NULL;
}

static bool has_extra(const struct manifest *manifest) { return manifest->accuracy.tokens || manifest->eight_bit_rows; }

static json_t *format_extra(const struct manifest *manifest)
{
    json_t *extra = json_object();
    bool good = extra != NULL;
    if (good && manifest->accuracy.tokens) good = json_put(extra, "accuracy", format_accuracy(&manifest->accuracy));
    if (good && manifest->eight_bit_rows)
        good = json_put(extra, "eight_bit_rows", json_integer((json_int_t)manifest->eight_bit_rows));
    if (good && manifest->eight_bit_rows && manifest->eight_bit_inputs == DTYPE_I8)
        good = json_put(extra, "eight_bit_inputs", json_string(dtype_name(manifest->eight_bit_inputs)));
    if (good) return extra;
    json_decref(extra);
    return NULL;
}

bool manifest_format(const struct manifest *manifest, char **text, size_t *size, struct status *status)
{
    *text = NULL;
    if (!manifest_check(manifest, status)) return status_prefix(status, "manifest");
    errno = 0;
    json_t *root = json_object();
    bool good = root && json_put(root, "builder_version", json_string(manifest->builder_version));
    for (int group = 0; group < GROUP_COUNT; group++) {
        if (group == GROUP_PARALLEL && !is_parallel(manifest)) continue;
        json_t *object = good ? format_group(manifest, (enum group)group) : NULL;
        good = object && json_put(root, group_names[group], object);
        if (good && group == GROUP_TOKENS) good = format_tokens(manifest, object);
        if (good && group == GROUP_KV_CACHE) good = format_windows(&manifest->geometry, object);
        if (good && group == GROUP_TARGET)
            good = json_put(object, "kind", json_string(engine_target_name(manifest->target)));
        if (good && group == GROUP_TARGET && manifest->target == TARGET_CUDA)
            good = json_put(object, "capability", json_integer((json_int_t)manifest->target_capability));
    }
    if (good && has_extra(manifest)) {
        json_t *extra = format_extra(manifest);
        good = extra && json_put(root, "extra", extra);
    }
    if (good) *text = json_format(root, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(real_precision(manifest)));
    if (!*text) json_fail_build(status, "manifest");
    json_decref(root);
    if (!*text) return false;
    *size = strlen(*text);
    return true;
}

static bool parse_text(struct json_reader *reader, const char *key, char *out, size_t capacity, struct status *status)
{
    const char *text = NULL;
    if (!json_reader_string(reader, key, true, &text, status)) return false;
    size_t length = strlen(text);
    if (length >= capacity)
        return status_fail(status, STATUS_BAD_INPUT, "%s: %s: expected at most %zu bytes of text, found %zu",
                           reader->path, key, capacity - 1, length);
    memcpy(out, text, length + 1);
    return true;
}

static bool parse_encoding(struct json_reader *reader, const char *key, enum encoding_id *out, struct status *status)
{
    const char *text = NULL;
    if (!json_reader_string(reader, key, true, &text, status)) return false;
    *out = encoding_from_label(text);
    if (*out != ENCODING_NONE) return true;
    return status_fail(status, STATUS_BAD_INPUT, "%s: %s: unknown element type '%.32s'", reader->path, key, text);
}

static bool parse_target(struct json_reader *reader, struct manifest *manifest, struct status *status)
{
    const char *text = NULL;
    if (!json_reader_string(reader, "kind", true, &text, status)) return false;
    for (int target = TARGET_CPU; target <= TARGET_CUDA; target++) {
        if (strcmp(text, engine_target_name((enum engine_target)target)) != 0) continue;
        manifest->target = (enum engine_target)target;
        return target == TARGET_CPU ||
               json_reader_u64(reader, "capability", true, 0, INT32_MAX, &manifest->target_capability, status);
    }
    return status_fail(status, STATUS_VERSION, "%s: kind: expected \"cpu\" or \"cuda\", found \"%.32s\"", reader->path,
                       text);
}

static bool parse_chat_format(struct json_reader *reader, enum chat_format *out, struct status *status)
{
    const char *text = NULL;
    if (!json_reader_string(reader, "chat_format", true, &text, status)) return false;
    for (int format = CHAT_NONE; format <= CHAT_MISTRAL; format++) {
        if (strcmp(text, chat_format_name((enum chat_format)format)) != 0) continue;
        *out = (enum chat_format)format;
        return true;
    }
    return status_fail(status, STATUS_VERSION, "%s: chat_format: unknown value \"%.32s\"", reader->path, text);
}

static bool parse_optional_token(struct json_reader *reader, const char *key, int64_t *out, struct status *status)
{
    uint64_t token = UINT64_MAX;
    if (!json_reader_u64(reader, key, false, 0, INT32_MAX, &token, status)) return false;
    *out = token == UINT64_MAX ? -1 : (int64_t)token;
    return true;
}

static bool parse_tokens(struct json_reader *reader, struct manifest *manifest, struct status *status)
{
    if (!parse_optional_token(reader, "bos", &manifest->bos_token, status)) return false;
    if (!parse_optional_token(reader, "pad", &manifest->pad_token, status)) return false;
    if (!parse_chat_format(reader, &manifest->chat_format, status)) return false;
    if (!json_reader_bool(reader, "tokenizer", true, &manifest->has_tokenizer, status)) return false;
    const json_t *eos = json_reader_get(reader, "eos");
    if (!json_is_array(eos) || json_array_size(eos) > MANIFEST_MAX_EOS)
        return status_fail(status, STATUS_BAD_INPUT, "%s: eos: expected an array of at most %d tokens", reader->path,
                           MANIFEST_MAX_EOS);
    manifest->eos_count = (int)json_array_size(eos);
    for (int i = 0; i < manifest->eos_count; i++) {
        const json_t *token = json_array_get(eos, (size_t)i);
        json_int_t value = json_is_integer(token) ? json_integer_value(token) : -1;
        if (value < 0 || value > INT32_MAX)
            return status_fail(status, STATUS_BAD_INPUT, "%s: eos: element %d is not a token id", reader->path, i);
        manifest->eos_tokens[i] = (int32_t)value;
    }
    return true;
}

static bool parse_windows(struct json_reader *reader, struct plan_geometry *geometry, struct status *status)
{
    const json_t *windows = json_reader_get(reader, "windows");
    const size_t count = json_array_size(windows);
    if (!windows) return true;
    if (!json_is_array(windows) || count < 1 || count > PLAN_MAX_PAGE_GROUPS)
        return status_fail(status, STATUS_BAD_INPUT, "%s: windows: expected an array of 1 to %d integers, found %s %zu",
                           reader->path, PLAN_MAX_PAGE_GROUPS, json_is_array(windows) ? "an array of" : "another type,",
                           count);
    geometry->page_groups = count;
    for (size_t g = 0; g < count; g++) {
        const json_t *window = json_array_get(windows, g);
        const json_int_t value = json_is_integer(window) ? json_integer_value(window) : -1;
        if (value < 0 || value > INT32_MAX)
            return status_fail(status, STATUS_BAD_INPUT, "%s: windows: element %zu: expected an integer from 0 to %d",
                               reader->path, g, INT32_MAX);
        geometry->page_window[g] = (uint64_t)value;
    }
    return true;
}

static bool parse_field(struct json_reader *reader, const struct field *field, struct manifest *manifest,
                        struct status *status)
{
    void *at = field_at(manifest, field);
    switch (field->kind) {
    case FIELD_TEXT: return parse_text(reader, field->key, at, (size_t)field->maximum, status);
    case FIELD_NUMBER:
    case FIELD_OPTIONAL:
        return json_reader_u64(reader, field->key, field->kind == FIELD_NUMBER, (uint64_t)field->minimum,
                               (uint64_t)field->maximum, at, status);
    case FIELD_REAL: return json_reader_double(reader, field->key, true, at, status);
    case FIELD_ENCODING: return parse_encoding(reader, field->key, at, status);
    }
    return false;
}

static bool parse_group_fields(struct json_reader *reader, enum group group, struct manifest *manifest,
                               struct status *status)
{
    for (int i = 0; i < FIELD_COUNT; i++)
        if (fields[i].group == group && !parse_field(reader, &fields[i], manifest, status)) return false;
    if (group == GROUP_TOKENS) return parse_tokens(reader, manifest, status);
    if (group == GROUP_KV_CACHE) return parse_windows(reader, &manifest->geometry, status);
    if (group == GROUP_TARGET) return parse_target(reader, manifest, status);
    return true;
}

static bool parse_group(json_t *object, enum group group, struct manifest *manifest, struct status *status)
{
    struct json_reader reader = {0};
    if (!json_is_object(object))
        return status_fail(status, STATUS_BAD_INPUT, "manifest: %s: expected an object, found %s", group_names[group],
                           json_type_name(object));
    char path[32];
    snprintf(path, sizeof path, "manifest: %s", group_names[group]);
    bool done = json_reader_open(&reader, object, path, status) &&
                parse_group_fields(&reader, group, manifest, status) && json_reader_all_consumed(&reader, status);
    json_reader_close(&reader);
    return done;
}

/* For display: absent in most engines. */
static bool parse_accuracy(json_t *object, struct manifest_accuracy *accuracy, struct status *status)
{
    struct json_reader reader = {0};
    if (!object) return true;
    bool done = json_is_object(object) ||
                status_fail(status, STATUS_BAD_INPUT, "manifest: extra: accuracy: expected an object, found %s",
                            json_type_name(object));
    done = done && json_reader_open(&reader, object, "manifest: accuracy", status) &&
           json_reader_u64(&reader, "tokens", true, 1, INT64_MAX, &accuracy->tokens, status) &&
           json_reader_u64(&reader, "calibration_tokens", false, 1, INT64_MAX, &accuracy->calibration_tokens, status) &&
           json_reader_double(&reader, "kl", true, &accuracy->kl, status) &&
           json_reader_double(&reader, "top1", true, &accuracy->top1, status);
    json_reader_close(&reader);
    return done;
}

/* Likewise. */
static bool parse_eight_bit_rows(const json_t *value, uint64_t *rows, struct status *status)
{
    if (!value) return true;
    const json_int_t found = json_is_integer(value) ? json_integer_value(value) : 0;
    *rows = found > 0 ? (uint64_t)found : 0;
    return found > 0 || status_fail(status, STATUS_BAD_INPUT,
                                    "manifest: extra: eight_bit_rows: expected an integer from 1 on, found %s",
                                    json_is_integer(value) ? "a smaller one" : json_type_name(value));
}

/* Likewise, after eight_bit_rows: F8_E4M3 where it is not there. */
static bool parse_eight_bit_inputs(const json_t *value, struct manifest *manifest, struct status *status)
{
    const char *name = json_string_value(value);
    if (value && !name)
        return status_fail(status, STATUS_BAD_INPUT,
                           "manifest: extra: eight_bit_inputs: expected the name of a type, found %s",
                           json_type_name(value));
    if (!manifest->eight_bit_rows) return true;
    manifest->eight_bit_inputs = name ? dtype_from_name(name) : DTYPE_F8_E4M3;
    if (manifest->eight_bit_inputs != DTYPE_I8 && manifest->eight_bit_inputs != DTYPE_F8_E4M3)
        manifest->eight_bit_inputs = DTYPE_NONE;
    return true;
}

const char *manifest_eight_bit_label(const struct manifest *manifest)
{
    return manifest->eight_bit_inputs == DTYPE_I8        ? "int8"
           : manifest->eight_bit_inputs == DTYPE_F8_E4M3 ? "fp8"
                                                         : "codes of 8 bits";
}

static bool parse_root(struct json_reader *reader, struct manifest *manifest, struct status *status)
{
    if (!parse_text(reader, "builder_version", manifest->builder_version, sizeof manifest->builder_version, status))
        return false;
    for (int group = 0; group < GROUP_COUNT; group++) {
        json_t *object = json_reader_get(reader, group_names[group]);
        if (group == GROUP_PARALLEL && !object) continue;
        if (!parse_group(object, (enum group)group, manifest, status)) return false;
    }
    const json_t *extra = json_reader_get(reader, "extra");
    if (extra && !json_is_object(extra))
        return status_fail(status, STATUS_BAD_INPUT, "manifest: extra: expected an object, found %s",
                           json_type_name(extra));
    return parse_accuracy(json_object_get(extra, "accuracy"), &manifest->accuracy, status) &&
           parse_eight_bit_rows(json_object_get(extra, "eight_bit_rows"), &manifest->eight_bit_rows, status) &&
           parse_eight_bit_inputs(json_object_get(extra, "eight_bit_inputs"), manifest, status) &&
           json_reader_all_consumed(reader, status);
}

bool manifest_parse(struct manifest *manifest, const char *text, size_t size, struct status *status)
{
    struct json_reader reader = {0};
    bool done = false;
    *manifest = (struct manifest){.geometry.ranks = 1, .bos_token = -1, .pad_token = -1};
    json_t *root = json_parse(text, size, "manifest", status);
    if (!root) return false;
    if (!json_is_object(root)) {
        status_fail(status, STATUS_BAD_INPUT, "manifest: expected an object, found %s", json_type_name(root));
        goto cleanup;
    }
    if (!json_reader_open(&reader, root, "manifest", status)) goto cleanup;
    if (!parse_root(&reader, manifest, status)) goto cleanup;
    if (!manifest_check(manifest, status)) {
        status_prefix(status, "manifest");
        goto cleanup;
    }
    done = true;
cleanup:
    json_reader_close(&reader);
    json_decref(root);
    return done;
}
