/* SPDX-License-Identifier: Apache-2.0 */
/* Source: the GGUF specification of ggml (docs/gguf.md), and where it is silent, the checks of ggml's own reader. */
#include "formats/checkpoint/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"

enum { DEFAULT_ALIGNMENT = 32, MAX_NAME_BYTES = 65535, SHOWN_BYTES = 120 };
/* The least that a key (length, no name, type, one byte) and a tensor (length, no name, rank, type, offset) take in a file. */
enum { LEAST_KEY_BYTES = 8 + 4 + 1, LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8 };

/* ---- element types ---- */

/* Every type that ggml has or had, so that a message can name it; 0 bytes: not read here. */
static const struct tensor_type {
    uint32_t id, columns, bytes; /* of a block */
    const char *name;
} types[] = {
    {GGUF_TENSOR_F32, 1, 4, "F32"},
    {GGUF_TENSOR_F16, 1, 2, "F16"},
    {GGUF_TENSOR_BF16, 1, 2, "BF16"},
    {GGUF_TENSOR_Q4_0, 32, 2 + 16, "Q4_0"},
    {GGUF_TENSOR_Q4_1, 32, 2 + 2 + 16, "Q4_1"},
    {GGUF_TENSOR_Q5_0, 32, 2 + 4 + 16, "Q5_0"},
    {GGUF_TENSOR_Q5_1, 32, 2 + 2 + 4 + 16, "Q5_1"},
    {GGUF_TENSOR_Q8_0, 32, 2 + 32, "Q8_0"},
    {GGUF_TENSOR_Q2_K, 256, 16 + 64 + 2 + 2, "Q2_K"},
    {GGUF_TENSOR_Q3_K, 256, 32 + 64 + 12 + 2, "Q3_K"},
    {GGUF_TENSOR_Q4_K, 256, 2 + 2 + 12 + 128, "Q4_K"},
    {GGUF_TENSOR_Q5_K, 256, 2 + 2 + 12 + 32 + 128, "Q5_K"},
    {GGUF_TENSOR_Q6_K, 256, 128 + 64 + 16 + 2, "Q6_K"},
    {GGUF_TENSOR_IQ4_NL, 32, 2 + 16, "IQ4_NL"},
    {GGUF_TENSOR_IQ4_XS, 256, 2 + 2 + 4 + 128, "IQ4_XS"},
    {GGUF_TENSOR_MXFP4, 32, 1 + 16, "MXFP4"},
    {4, 0, 0, "Q4_2"},
    {5, 0, 0, "Q4_3"},
    {9, 0, 0, "Q8_1"},
    {15, 0, 0, "Q8_K"},
    {16, 0, 0, "IQ2_XXS"},
    {17, 0, 0, "IQ2_XS"},
    {18, 0, 0, "IQ3_XXS"},
    {19, 0, 0, "IQ1_S"},
    {21, 0, 0, "IQ3_S"},
    {22, 0, 0, "IQ2_S"},
    {24, 0, 0, "I8"},
    {25, 0, 0, "I16"},
    {26, 0, 0, "I32"},
    {27, 0, 0, "I64"},
    {28, 0, 0, "F64"},
    {29, 0, 0, "IQ1_M"},
    {34, 0, 0, "TQ1_0"},
    {35, 0, 0, "TQ2_0"},
    {40, 0, 0, "NVFP4"},
    {41, 0, 0, "Q1_0"},
};

static const struct tensor_type *find_type(uint32_t id)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}

const char *gguf_tensor_type_name(enum gguf_tensor_type type) { return find_type(type)->name; }
uint64_t gguf_block_columns(enum gguf_tensor_type type) { return find_type(type)->columns; }
uint64_t gguf_block_bytes(enum gguf_tensor_type type) { return find_type(type)->bytes; }

static const char *value_type_name(enum gguf_value_type type)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return type < sizeof names / sizeof *names ? names[type] : "?";
}

/* 0: not of a fixed size */
static uint64_t value_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

/* ---- reading in order ---- */

struct cursor {
    const uint8_t *data;
    uint64_t size, at;
    struct status *status;
};

static uint64_t load(const uint8_t *data, uint64_t bytes)
{
    uint64_t value = 0;
    for (uint64_t i = bytes; i-- > 0;) value = value << 8 | data[i];
    return value;
}

/* The next bytes of the file; `what` is for the message. */
static const uint8_t *take(struct cursor *cursor, uint64_t bytes, const char *what)
{
    if (!checked_range(cursor->at, bytes, cursor->size)) {
        status_fail(cursor->status, STATUS_BAD_INPUT,
                    "the file ends within %s: expected %" PRIu64 " bytes from byte %" PRIu64 " on, found %" PRIu64
                    "; is it truncated?",
                    what, bytes, cursor->at, cursor->size - cursor->at);
        return NULL;
    }
    const uint8_t *data = cursor->data + cursor->at;
    cursor->at += bytes;
    return data;
}

static bool take_number(struct cursor *cursor, uint64_t bytes, const char *what, uint64_t *value)
{
    const uint8_t *data = take(cursor, bytes, what);
    if (data) *value = load(data, bytes);
    return data != NULL;
}

static const uint8_t *take_string(struct cursor *cursor, const char *what, uint64_t *bytes)
{
    return take_number(cursor, 8, what, bytes) ? take(cursor, *bytes, what) : NULL;
}

/* A name: printable ASCII, so that messages can show it. */
static bool take_name(struct cursor *cursor, const char *what, const char **name, uint32_t *name_bytes)
{
    uint64_t bytes;
    const uint8_t *text = take_string(cursor, what, &bytes);
    if (!text) return false;
    bool good = bytes > 0 && bytes <= MAX_NAME_BYTES;
    for (uint64_t i = 0; good && i < bytes; i++) good = text[i] > ' ' && text[i] < 0x7f;
    if (!good)
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "%s: expected 1 to %d printable ASCII characters, found %" PRIu64 " bytes%s", what,
                           MAX_NAME_BYTES, bytes, bytes > 0 && bytes <= MAX_NAME_BYTES ? " with other characters" : "");
    *name = (const char *)text;
    *name_bytes = (uint32_t)bytes;
    return true;
}

static int shown(uint32_t bytes) { return bytes < SHOWN_BYTES ? (int)bytes : SHOWN_BYTES; }

/* ---- metadata ---- */

static bool take_array(struct cursor *cursor, struct gguf_value *value)
{
    uint64_t element, bytes, ignored;
    if (!take_number(cursor, 4, "the type of an array", &element) ||
        !take_number(cursor, 8, "the length of an array", &value->count))
        return false;
    value->element = (enum gguf_value_type)element;
    value->data = cursor->data + cursor->at;
    if (element == GGUF_STRING) {
        for (uint64_t i = 0; i < value->count; i++) /* each takes 8 bytes or more of the file */
            if (!take_string(cursor, "an array of strings", &ignored)) return false;
        return true;
    }
    if (!value_bytes((uint32_t)element))
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "expected an array of numbers, bools or strings, found one of type %" PRIu64 "%s", element,
                           element == GGUF_ARRAY ? " (arrays)" : "");
    if (!checked_mul(value->count, value_bytes((uint32_t)element), &bytes))
        return status_fail(cursor->status, STATUS_BAD_INPUT, "an array of %" PRIu64 " elements exceeds 64 bits",
                           value->count);
    return take(cursor, bytes, "an array") != NULL;
}

static bool take_value(struct cursor *cursor, struct gguf_value *value)
{
    uint64_t type;
    if (!take_number(cursor, 4, "the type of a value", &type)) return false;
    *value = (struct gguf_value){.type = (enum gguf_value_type)type, .count = 1};
    if (type == GGUF_ARRAY) return take_array(cursor, value);
    if (type == GGUF_STRING) return (value->data = take_string(cursor, "a string", &value->count)) != NULL;
    if (!value_bytes((uint32_t)type))
        return status_fail(cursor->status, STATUS_BAD_INPUT, "expected a type of value from 0 to %d, found %" PRIu64,
                           GGUF_F64, type);
    value->data = take(cursor, value_bytes((uint32_t)type), "a value");
    if (value->data && type == GGUF_BOOL && *value->data > 1)
        return status_fail(cursor->status, STATUS_BAD_INPUT, "expected a bool of 0 or 1, found %d", *value->data);
    return value->data != NULL;
}

static bool take_keys(struct cursor *cursor, struct gguf *file)
{
    for (size_t i = 0; i < file->key_count; i++) {
        struct gguf_key *key = &file->keys[i];
        if (!take_name(cursor, "the name of a key", &key->name, &key->name_bytes)) return false;
        if (!take_value(cursor, &key->value))
            return status_prefix(cursor->status, "key '%.*s'", shown(key->name_bytes), key->name);
    }
    return true;
}

/* ---- tensors ---- */

static bool fail_tensor(struct cursor *cursor, const struct gguf_tensor *tensor, const char *what, uint64_t expected,
                        uint64_t found)
{
    return status_fail(cursor->status, STATUS_BAD_INPUT, "tensor '%.*s': %s: expected %" PRIu64 ", found %" PRIu64,
                       shown(tensor->name_bytes), tensor->name, what, expected, found);
}

/* Bytes of the tensor by its type and shape. */
static bool measure(struct cursor *cursor, struct gguf_tensor *tensor)
{
    const struct tensor_type *type = find_type(tensor->type);
    const int name_bytes = shown(tensor->name_bytes);
    if (!type || !type->bytes)
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "tensor '%.*s': expected type F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K or MXFP4, found "
                           "%s (%d); use a file with other types: they are part of its name",
                           name_bytes, tensor->name, type ? type->name : "an unknown type", (int)tensor->type);
    uint64_t elements;
    if (!checked_product(tensor->shape, (size_t)tensor->rank, &elements) ||
        !checked_mul(elements, type->bytes, &tensor->bytes))
        return status_fail(cursor->status, STATUS_BAD_INPUT, "tensor '%.*s': the product of its shape exceeds 64 bits",
                           name_bytes, tensor->name);
    const uint64_t columns = tensor->shape[tensor->rank - 1];
    if (columns % type->columns)
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "tensor '%.*s': expected rows of a multiple of %u elements, as %s has blocks of them, found "
                           "%" PRIu64,
                           name_bytes, tensor->name, type->columns, type->name, columns);
    tensor->bytes /= type->columns;
    return true;
}

/* One entry of the list, less the place of its data. */
static bool take_tensor(struct cursor *cursor, struct gguf_tensor *tensor, uint64_t *offset)
{
    uint64_t rank, type;
    if (!take_name(cursor, "the name of a tensor", &tensor->name, &tensor->name_bytes) ||
        !take_number(cursor, 4, "the list of tensors", &rank))
        return false;
    if (rank < 1 || rank > GGUF_MAX_RANK)
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "tensor '%.*s': expected 1 to %d dimensions, found %" PRIu64, shown(tensor->name_bytes),
                           tensor->name, GGUF_MAX_RANK, rank);
    tensor->rank = (int)rank;
    for (uint64_t i = rank; i-- > 0;) {
        if (!take_number(cursor, 8, "the list of tensors", &tensor->shape[i])) return false;
        if (!tensor->shape[i])
            return status_fail(cursor->status, STATUS_BAD_INPUT, "tensor '%.*s': expected no dimension of 0, found one",
                               shown(tensor->name_bytes), tensor->name);
    }
    if (!take_number(cursor, 4, "the list of tensors", &type) || !take_number(cursor, 8, "the list of tensors", offset))
        return false;
    tensor->type = (enum gguf_tensor_type)type;
    return measure(cursor, tensor);
}

/* Each tensor begins where the one before it ends, at the next multiple of the alignment, as ggml demands, too. */
static bool place_tensors(struct cursor *cursor, struct gguf *file, const uint64_t *offsets, uint64_t alignment)
{
    uint64_t begin, end = 0, next = 0;
    if (!checked_align(cursor->at, alignment, &begin) || (file->tensor_count && begin > cursor->size))
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "the file ends before its tensors: %" PRIu64 " bytes; is it truncated?", cursor->size);
    const uint64_t room = begin < cursor->size ? cursor->size - begin : 0;
    for (size_t i = 0; i < file->tensor_count; i++) {
        struct gguf_tensor *tensor = &file->tensors[i];
        if (offsets[i] != next)
            return fail_tensor(cursor, tensor, "offset, which is the aligned end of the tensor before it", next,
                               offsets[i]);
        if (!checked_range(next, tensor->bytes, room))
            return fail_tensor(cursor, tensor, "bytes in the file (is it truncated?)", tensor->bytes,
                               next < room ? room - next : 0);
        tensor->data = cursor->data + begin + next;
        end = next + tensor->bytes;
        if (!checked_align(end, alignment, &next)) return fail_tensor(cursor, tensor, "size", 0, tensor->bytes);
    }
    if (room > next)
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "expected the end of the file after the last tensor, at byte %" PRIu64 ", found %" PRIu64
                           " more bytes",
                           begin + end, room - end);
    return true;
}

/* ---- the file ---- */

static int compare_text(const char *left, uint32_t left_bytes, const char *right, uint32_t right_bytes)
{
    const int order = memcmp(left, right, left_bytes < right_bytes ? left_bytes : right_bytes);
    return order ? order : (left_bytes > right_bytes) - (left_bytes < right_bytes);
}

static int compare_keys(const void *left, const void *right)
{
    const struct gguf_key *a = left, *b = right;
    return compare_text(a->name, a->name_bytes, b->name, b->name_bytes);
}

static int compare_tensors(const void *left, const void *right)
{
    const struct gguf_tensor *a = left, *b = right;
    return compare_text(a->name, a->name_bytes, b->name, b->name_bytes);
}

static bool sort(struct gguf *file, struct status *status)
{
    if (file->key_count) qsort(file->keys, file->key_count, sizeof *file->keys, compare_keys);
    if (file->tensor_count) qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_tensors);
    for (size_t i = 1; i < file->key_count; i++)
        if (compare_keys(&file->keys[i - 1], &file->keys[i]) == 0)
            return status_fail(status, STATUS_BAD_INPUT, "key '%.*s': expected once, found twice",
                               shown(file->keys[i].name_bytes), file->keys[i].name);
    for (size_t i = 1; i < file->tensor_count; i++)
        if (compare_tensors(&file->tensors[i - 1], &file->tensors[i]) == 0)
            return status_fail(status, STATUS_BAD_INPUT, "tensor '%.*s': expected once, found twice",
                               shown(file->tensors[i].name_bytes), file->tensors[i].name);
    return true;
}

static const char *store_name(char **next, const char *name, uint32_t bytes)
{
    char *stored = *next;
    memcpy(stored, name, bytes);
    stored[bytes] = '\0';
    *next += bytes + 1;
    return stored;
}

/* Copies the names, so that they are terminated. */
static bool store_names(struct gguf *file, struct status *status)
{
    size_t bytes = 1; /* never 0, so that malloc cannot return NULL on success */
    for (size_t i = 0; i < file->key_count; i++) bytes += file->keys[i].name_bytes + 1;
    for (size_t i = 0; i < file->tensor_count; i++) bytes += file->tensors[i].name_bytes + 1;
    char *next = file->names = malloc(bytes);
    if (!next) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (size_t i = 0; i < file->key_count; i++)
        file->keys[i].name = store_name(&next, file->keys[i].name, file->keys[i].name_bytes);
    for (size_t i = 0; i < file->tensor_count; i++)
        file->tensors[i].name = store_name(&next, file->tensors[i].name, file->tensors[i].name_bytes);
    return true;
}

static bool take_header(struct cursor *cursor, uint64_t *tensors, uint64_t *keys)
{
    uint64_t version;
    if (cursor->size < 4 || memcmp(cursor->data, "GGUF", 4) != 0)
        return status_fail(cursor->status, STATUS_BAD_INPUT, "not a GGUF file: it does not begin with 'GGUF'");
    cursor->at = 4;
    if (!take_number(cursor, 4, "the header", &version)) return false;
    if (version == 0x02000000 || version == 0x03000000)
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "expected a little-endian GGUF file, found a big-endian one; convert it with "
                           "gguf_convert_endian.py of llama.cpp");
    if (version != 2 && version != 3)
        return status_fail(cursor->status, STATUS_BAD_INPUT, "expected GGUF version 2 or 3, found %" PRIu64, version);
    if (!take_number(cursor, 8, "the header", tensors) || !take_number(cursor, 8, "the header", keys)) return false;
    if (*keys > GGUF_MAX_KEYS || *keys > (cursor->size - cursor->at) / LEAST_KEY_BYTES)
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "number of keys: expected at most %d, and what the file has room for, found %" PRIu64,
                           GGUF_MAX_KEYS, *keys);
    if (*tensors > GGUF_MAX_TENSORS || *tensors > (cursor->size - cursor->at) / LEAST_TENSOR_BYTES)
        return status_fail(cursor->status, STATUS_BAD_INPUT,
                           "number of tensors: expected at most %d, and what the file has room for, found %" PRIu64,
                           GGUF_MAX_TENSORS, *tensors);
    return true;
}

/* The alignment stands among the keys, which are in the file's order still. */
static bool find_alignment(const struct cursor *cursor, const struct gguf *file, uint64_t *alignment)
{
    static const char name[] = "general.alignment";
    *alignment = DEFAULT_ALIGNMENT;
    for (size_t i = 0; i < file->key_count; i++) {
        const struct gguf_key *key = &file->keys[i];
        if (compare_text(key->name, key->name_bytes, name, sizeof name - 1) != 0) continue;
        if (key->value.type != GGUF_U32)
            return status_fail(cursor->status, STATUS_BAD_INPUT, "key '%s': expected u32, found %s", name,
                               value_type_name(key->value.type));
        *alignment = load(key->value.data, 4);
        if (*alignment == 0 || (*alignment & (*alignment - 1)))
            return status_fail(cursor->status, STATUS_BAD_INPUT, "key '%s': expected a power of two, found %" PRIu64,
                               name, *alignment);
    }
    return true;
}

bool gguf_parse(struct gguf *file, const void *data, uint64_t size, const char *path, struct status *status)
{
    struct cursor cursor = {.data = data, .size = size, .status = status};
    uint64_t keys = 0, tensors = 0, alignment, *offsets = NULL;
    bool ok = false;
    *file = (struct gguf){.path = path};
    if (!take_header(&cursor, &tensors, &keys)) goto done;
    file->keys = calloc(keys + 1, sizeof *file->keys);
    file->tensors = calloc(tensors + 1, sizeof *file->tensors);
    offsets = calloc(tensors + 1, sizeof *offsets);
    if (!file->keys || !file->tensors || !offsets) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto done;
    }
    file->key_count = (size_t)keys;
    file->tensor_count = (size_t)tensors;
    if (!take_keys(&cursor, file) || !find_alignment(&cursor, file, &alignment)) goto done;
    for (size_t i = 0; i < file->tensor_count; i++)
        if (!take_tensor(&cursor, &file->tensors[i], &offsets[i])) goto done;
    ok = place_tensors(&cursor, file, offsets, alignment) && sort(file, status) && store_names(file, status);
done:
    free(offsets);
    if (ok) return true;
    gguf_free(file);
    return status_prefix(status, "%s", path);
}

void gguf_free(struct gguf *file)
{
    free(file->keys);
    free(file->tensors);
    free(file->names);
    *file = (struct gguf){0};
}

/* ---- access ---- */

const struct gguf_tensor *gguf_find_tensor(const struct gguf *file, const char *name)
{
    const struct gguf_tensor wanted = {.name = name, .name_bytes = (uint32_t)strlen(name)};
    if (!file->tensor_count) return NULL;
    return bsearch(&wanted, file->tensors, file->tensor_count, sizeof wanted, compare_tensors);
}

const struct gguf_value *gguf_get(struct gguf *file, const char *key)
{
    const struct gguf_key wanted = {.name = key, .name_bytes = (uint32_t)strlen(key)};
    if (!file->key_count) return NULL;
    struct gguf_key *found = bsearch(&wanted, file->keys, file->key_count, sizeof wanted, compare_keys);
    if (found) found->is_read = true;
    return found ? &found->value : NULL;
}

bool gguf_fail_key(const struct gguf *file, const char *key, const char *expected, const char *found,
                   struct status *status)
{
    return status_fail(status, STATUS_BAD_INPUT, "%s: key '%s': expected %s, found %s", file->path, key, expected,
                       found);
}

static bool fail_type(const struct gguf *file, const char *key, const char *expected, const struct gguf_value *value,
                      struct status *status)
{
    char found[64];
    snprintf(found, sizeof found, "%s%s", value ? value_type_name(value->type) : "nothing",
             !value || value->type != GGUF_ARRAY     ? ""
             : value->element == GGUF_STRING         ? " of strings"
             : value_bytes((uint32_t)value->element) ? " of numbers"
                                                     : "");
    return gguf_fail_key(file, key, expected, found, status);
}

bool gguf_get_u64(struct gguf *file, const char *key, bool required, uint64_t *out, struct status *status)
{
    const struct gguf_value *value = gguf_get(file, key);
    if (!value && !required) return true;
    static const char expected[] = "an integer of 0 or more";
    if (!value) return fail_type(file, key, expected, value, status);
    const uint64_t bytes = value_bytes(value->type);
    switch (value->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64: break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        if (value->data[bytes - 1] & 0x80) return gguf_fail_key(file, key, expected, "a negative one", status);
        break;
    default: return fail_type(file, key, expected, value, status);
    }
    *out = load(value->data, bytes);
    return true;
}

bool gguf_get_real(struct gguf *file, const char *key, bool required, double *out, struct status *status)
{
    const struct gguf_value *value = gguf_get(file, key);
    if (!value && !required) return true;
    if (!value || (value->type != GGUF_F32 && value->type != GGUF_F64))
        return fail_type(file, key, "f32 or f64", value, status);
    if (value->type == GGUF_F64)
        memcpy(out, value->data, sizeof *out);
    else
        *out = (double)gguf_f32_at(value->data, 0);
    return true;
}

bool gguf_get_bool(struct gguf *file, const char *key, bool required, bool *out, struct status *status)
{
    const struct gguf_value *value = gguf_get(file, key);
    if (!value && !required) return true;
    if (!value || value->type != GGUF_BOOL) return fail_type(file, key, "a bool", value, status);
    *out = *value->data != 0;
    return true;
}

bool gguf_get_string(struct gguf *file, const char *key, bool required, const char **text, size_t *bytes,
                     struct status *status)
{
    const struct gguf_value *value = gguf_get(file, key);
    if (!value && !required) return true;
    if (!value || value->type != GGUF_STRING) return fail_type(file, key, "a string", value, status);
    *text = (const char *)value->data;
    *bytes = (size_t)value->count;
    return true;
}

bool gguf_get_array(struct gguf *file, const char *key, bool required, enum gguf_value_type element,
                    const struct gguf_value **array, struct status *status)
{
    char expected[32];
    snprintf(expected, sizeof expected, "an array of %s", value_type_name(element));
    *array = gguf_get(file, key);
    if (!*array && !required) return true;
    return (*array && (*array)->type == GGUF_ARRAY && (*array)->element == element) ||
           fail_type(file, key, expected, *array, status);
}

void gguf_next_string(const uint8_t **at, const char **text, size_t *bytes)
{
    *bytes = (size_t)load(*at, 8);
    *text = (const char *)*at + 8;
    *at += 8 + *bytes;
}

uint32_t gguf_u32_at(const uint8_t *data, uint64_t index) { return (uint32_t)load(data + 4 * index, 4); }

float gguf_f32_at(const uint8_t *data, uint64_t index)
{
    const uint32_t bits = gguf_u32_at(data, index);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
