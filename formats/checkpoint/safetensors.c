/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/base/json.h"

enum { LENGTH_BYTES = 8, DATA_ALIGNMENT = 8 };

static const char metadata_key[] = "__metadata__";

static uint64_t load_u64_le(const uint8_t *bytes)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

/* Position of a tensor's data while the file is checked; offsets count from the end of the header. */
struct extent {
    uint64_t begin, end;
    const char *name;
};

static int compare_extents(const void *left, const void *right)
{
    const struct extent *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct tensor_view *)left)->name, ((const struct tensor_view *)right)->name);
}

/* Reads "shape" and computes the byte size that it requires. */
static bool parse_shape(struct tensor_view *tensor, const json_t *shape, uint64_t *bytes, struct status *status)
{
    if (!json_is_array(shape))
        return status_fail(status, STATUS_BAD_INPUT, "shape: expected an array, found %s", json_type_name(shape));
    size_t rank = json_array_size(shape);
    if (rank > TENSOR_MAX_RANK)
        return status_fail(status, STATUS_BAD_INPUT, "shape: expected at most %d dimensions, found %zu",
                           TENSOR_MAX_RANK, rank);
    tensor->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *dimension = json_array_get(shape, i);
        if (!json_is_integer(dimension) || json_integer_value(dimension) < 0) {
            char found[80];
            json_value_text(dimension, found, sizeof found);
            return status_fail(status, STATUS_BAD_INPUT, "shape[%zu]: expected an integer of 0 or more, found %s", i,
                               found);
        }
        tensor->shape[i] = (uint64_t)json_integer_value(dimension);
    }
    uint64_t elements;
    if (!checked_product(tensor->shape, rank, &elements) || !checked_mul(elements, dtype_bytes(tensor->dtype), bytes))
        return status_fail(status, STATUS_BAD_INPUT, "the product of its shape overflows 64 bits");
    return true;
}

/* Reads "data_offsets" and checks it against the data area and the size required by dtype and shape. */
static bool parse_offsets(const struct tensor_view *tensor, const json_t *offsets, uint64_t data_bytes,
                          struct extent *extent, struct status *status)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < 0)
        return status_fail(status, STATUS_BAD_INPUT, "data_offsets: expected two integers of 0 or more, found %s",
                           offsets ? "something else" : "nothing");
    *extent = (struct extent){(uint64_t)json_integer_value(begin), (uint64_t)json_integer_value(end), tensor->name};
    if (extent->begin > extent->end)
        return status_fail(status, STATUS_BAD_INPUT,
                           "data_offsets: expected begin <= end, found [%" PRIu64 ", %" PRIu64 "]", extent->begin,
                           extent->end);
    if (extent->end > data_bytes)
        return status_fail(status, STATUS_BAD_INPUT,
                           "data_offsets: expected an end of at most %" PRIu64
                           " (the data in the file; is it truncated?), found %" PRIu64,
                           data_bytes, extent->end);
    if (extent->end - extent->begin != tensor->bytes)
        return status_fail(status, STATUS_BAD_INPUT,
                           "dtype and shape need %" PRIu64 " bytes, data_offsets give %" PRIu64, tensor->bytes,
                           extent->end - extent->begin);
    return true;
}

/* Reads one entry of the header. Requires: tensor->name is set. */
static bool parse_tensor(struct tensor_view *tensor, json_t *entry, const uint8_t *data, uint64_t data_bytes,
                         struct extent *extent, struct status *status)
{
    struct json_reader reader;
    const char *dtype = NULL;
    bool done = json_reader_open(&reader, entry, "header entry", status) &&
                json_reader_string(&reader, "dtype", true, &dtype, status);
    if (done) tensor->dtype = dtype_from_name(dtype);
    if (done && tensor->dtype == DTYPE_NONE)
        done = status_fail(status, STATUS_BAD_INPUT,
                           "dtype: expected F32, F16, BF16, F8_E4M3, F8_E5M2, I8, U8, I32 or I64, found '%s'", dtype);
    done = done && parse_shape(tensor, json_reader_get(&reader, "shape"), &tensor->bytes, status) &&
           parse_offsets(tensor, json_reader_get(&reader, "data_offsets"), data_bytes, extent, status) &&
           json_reader_all_consumed(&reader, status);
    if (done) tensor->data = data + extent->begin;
    json_reader_close(&reader);
    return done;
}

/* Checks that the data area is covered exactly once, from its first byte to its last. Sorts `extents`. */
static bool check_coverage(struct extent *extents, size_t count, uint64_t data_bytes, struct status *status)
{
    uint64_t covered = 0;
    const char *previous = NULL;
    if (count) qsort(extents, count, sizeof *extents, compare_extents);
    for (size_t i = 0; i < count; i++) {
        if (extents[i].begin < covered)
            return status_fail(status, STATUS_BAD_INPUT,
                               "tensors '%.140s' and '%.140s' overlap: the second begins at %" PRIu64
                               ", the first ends at %" PRIu64,
                               previous, extents[i].name, extents[i].begin, covered);
        if (extents[i].begin > covered)
            return status_fail(status, STATUS_BAD_INPUT,
                               "gap of %" PRIu64 " bytes before tensor '%s': expected it to begin at %" PRIu64
                               ", found %" PRIu64,
                               extents[i].begin - covered, extents[i].name, covered, extents[i].begin);
        covered = extents[i].end;
        previous = extents[i].name;
    }
    if (covered != data_bytes)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%" PRIu64 " trailing bytes after the last tensor: expected %" PRIu64
                           " bytes of data, found %" PRIu64,
                           data_bytes - covered, covered, data_bytes);
    return true;
}

/* __metadata__: only strings, of which "format" is kept. */
static bool parse_metadata(struct safetensors *file, json_t *metadata, struct status *status)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return status_fail(status, STATUS_BAD_INPUT, "%s: expected an object, found %s", metadata_key,
                           json_type_name(metadata));
    json_object_foreach (metadata, key, value)
        if (!json_is_string(value))
            return status_fail(status, STATUS_BAD_INPUT, "%s: field '%s': expected a string, found %s", metadata_key,
                               key, json_type_name(value));
    const char *format = json_string_value(json_object_get(metadata, "format"));
    if (format && !(file->format = strdup(format))) return status_fail(status, STATUS_MACHINE, "out of memory");
    return true;
}

/* Finds the JSON text of the header in the file and checks everything before it. */
static bool locate_header(const uint8_t *data, uint64_t size, uint64_t *header_bytes, struct status *status)
{
    if (size < LENGTH_BYTES)
        return status_fail(status, STATUS_BAD_INPUT,
                           "not a safetensors file: expected at least %d bytes, found %" PRIu64, LENGTH_BYTES, size);
    *header_bytes = load_u64_le(data);
    if (*header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        return status_fail(status, STATUS_BAD_INPUT,
                           "not a safetensors file: expected a header length of at most %d, found %" PRIu64,
                           SAFETENSORS_MAX_HEADER_BYTES, *header_bytes);
    if (*header_bytes > size - LENGTH_BYTES)
        return status_fail(status, STATUS_BAD_INPUT,
                           "truncated: the header has %" PRIu64 " bytes, the file %" PRIu64 " after its length",
                           *header_bytes, size - LENGTH_BYTES);
    const uint8_t *text = data + LENGTH_BYTES;
    uint64_t spaces = 0;
    while (spaces < *header_bytes && text[spaces] == ' ') spaces++;
    if (spaces == *header_bytes || text[spaces] != '{')
        return status_fail(status, STATUS_BAD_INPUT, "not a safetensors file: the header must begin with '{'");
    return true;
}

/* Copies all tensor names into one block and sets tensors[i].name, in header order. */
static bool store_names(struct safetensors *file, json_t *header, struct status *status)
{
    const char *key;
    json_t *value;
    size_t bytes = 1; /* never 0, so that malloc cannot return NULL on success */
    json_object_foreach (header, key, value)
        if (strcmp(key, metadata_key) != 0) bytes += strlen(key) + 1;
    file->names = malloc(bytes);
    file->tensors = calloc(json_object_size(header) + 1, sizeof *file->tensors);
    if (!file->names || !file->tensors) return status_fail(status, STATUS_MACHINE, "out of memory");
    char *next = file->names;
    json_object_foreach (header, key, value) {
        if (strcmp(key, metadata_key) == 0) continue;
        size_t length = strlen(key) + 1;
        memcpy(next, key, length);
        file->tensors[file->tensor_count++].name = next;
        next += length;
    }
    return true;
}

static bool parse(struct safetensors *file, json_t *header, const uint8_t *data, uint64_t data_bytes,
                  struct status *status)
{
    const char *key;
    json_t *value;
    size_t index = 0;
    if (!store_names(file, header, status)) return false;
    struct extent *extents = calloc(file->tensor_count + 1, sizeof *extents);
    bool ok = extents || status_fail(status, STATUS_MACHINE, "out of memory");
    json_object_foreach (header, key, value) {
        if (!ok) break;
        if (strcmp(key, metadata_key) == 0)
            ok = parse_metadata(file, value, status);
        else
            ok = parse_tensor(&file->tensors[index], value, data, data_bytes, &extents[index], status) ||
                 status_prefix(status, "tensor '%.160s'", key);
        index += strcmp(key, metadata_key) != 0;
    }
    ok = ok && check_coverage(extents, file->tensor_count, data_bytes, status);
    free(extents);
    return ok;
}

bool safetensors_parse(struct safetensors *file, const void *data, uint64_t size, const char *name,
                       struct status *status)
{
    uint64_t header_bytes = 0;
    *file = (struct safetensors){0};
    if (!locate_header(data, size, &header_bytes, status)) return status_prefix(status, "%s", name);
    json_t *header = json_parse((const char *)data + LENGTH_BYTES, (size_t)header_bytes, name, status);
    if (!header) return false;
    const uint8_t *tensor_data = (const uint8_t *)data + LENGTH_BYTES + header_bytes;
    bool done = parse(file, header, tensor_data, size - LENGTH_BYTES - header_bytes, status) ||
                status_prefix(status, "%s", name);
    json_decref(header);
    if (!done)
        safetensors_free(file);
    else if (file->tensor_count)
        qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_names);
    return done;
}

void safetensors_free(struct safetensors *file)
{
    free(file->tensors);
    free(file->names);
    free(file->format);
    *file = (struct safetensors){0};
}

const struct tensor_view *safetensors_find(const struct safetensors *file, const char *name)
{
    if (!file->tensor_count) return NULL;
    struct tensor_view key = {.name = name};
    return bsearch(&key, file->tensors, file->tensor_count, sizeof key, compare_names);
}

/* The header entry of one tensor with data at *offset, which advances to their end; NULL with *status filled. */
static json_t *header_entry(const struct tensor_view *tensor, uint64_t *offset, struct status *status)
{
    uint64_t elements, bytes, begin = *offset;
    if (tensor->rank < 0 || tensor->rank > TENSOR_MAX_RANK || !dtype_bytes(tensor->dtype) ||
        !checked_product(tensor->shape, (size_t)tensor->rank, &elements) ||
        !checked_mul(elements, dtype_bytes(tensor->dtype), &bytes) || bytes != tensor->bytes ||
        !checked_add(begin, bytes, offset) || *offset > INT64_MAX) {
        status_fail(status, STATUS_INTERNAL, "tensor '%s': dtype, shape and size (%" PRIu64 " bytes) do not agree",
                    tensor->name, tensor->bytes);
        return NULL;
    }
    json_t *shape =
        json_array(); /* a dimension above INT64_MAX is only possible with another of 0, which no tensor here has */
    bool good = shape != NULL;
    for (int i = 0; good && i < tensor->rank; i++) good = json_add(shape, json_integer((json_int_t)tensor->shape[i]));
    json_t *entry = good ? json_pack("{s:s, s:O, s:[I, I]}", "dtype", dtype_name(tensor->dtype), "shape", shape,
                                     "data_offsets", (json_int_t)begin, (json_int_t)*offset)
                         : NULL;
    json_decref(shape);
    if (!entry) status_fail(status, STATUS_MACHINE, "out of memory");
    return entry;
}

bool safetensors_write_header(struct file_output *output, const struct tensor_view *tensors, size_t count,
                              struct status *status)
{
    static const char spaces[DATA_ALIGNMENT] = "        ";
    bool done = false;
    char *text = NULL;
    uint64_t offset = 0;
    /* Readers of the Hugging Face stack require "pt". */
    json_t *header = json_pack("{s:{s:s}}", metadata_key, "format", "pt");
    for (size_t i = 0; header && i < count; i++) {
        if (strcmp(tensors[i].name, metadata_key) == 0 || json_object_get(header, tensors[i].name)) {
            status_fail(status, STATUS_INTERNAL, "tensor name '%s' is reserved or given twice", tensors[i].name);
            goto done;
        }
        json_t *entry = header_entry(&tensors[i], &offset, status);
        if (!entry) goto done;
        errno = 0;
        if (!json_put(header, tensors[i].name, entry)) {
            status_fail(status, errno == ENOMEM ? STATUS_MACHINE : STATUS_INTERNAL, "tensor name '%s': %s",
                        tensors[i].name, errno == ENOMEM ? "out of memory" : "not UTF-8");
            goto done;
        }
    }
    text = header ? json_format(header, JSON_COMPACT) : NULL; /* keeps the order of insertion */
    if (!text) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto done;
    }
    size_t length = strlen(text), padding = (DATA_ALIGNMENT - length % DATA_ALIGNMENT) % DATA_ALIGNMENT;
    uint64_t header_bytes = length + padding;
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES) {
        status_fail(status, STATUS_BAD_INPUT, "safetensors header: expected at most %d bytes, found %" PRIu64,
                    SAFETENSORS_MAX_HEADER_BYTES, header_bytes);
        goto done;
    }
    uint8_t length_field[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) length_field[i] = (uint8_t)(header_bytes >> (8 * i));
    done = file_output_write(output, length_field, sizeof length_field, status) &&
           file_output_write(output, text, length, status) && file_output_write(output, spaces, padding, status);
done:
    free(text);
    json_decref(header);
    return done;
}
