/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/test_gguf.h"

#include <stdlib.h>
#include <string.h>

void test_gguf_begin(struct test_gguf *file)
{
    memset(file, 0, sizeof *file);
    file->version = 3;
    file->alignment = 32;
}

void test_gguf_put(uint8_t *bytes, size_t *used, uint64_t value, int size)
{
    if (*used + (size_t)size > TEST_GGUF_BYTES) abort();
    for (int i = 0; i < size; i++) bytes[(*used)++] = (uint8_t)(value >> (8 * i));
}

void test_gguf_text(uint8_t *bytes, size_t *used, const char *text)
{
    const size_t length = strlen(text);
    test_gguf_put(bytes, used, length, 8);
    if (*used + length > TEST_GGUF_BYTES) abort();
    memcpy(bytes + *used, text, length);
    *used += length;
}

static void begin_key(struct test_gguf *file, const char *key, enum gguf_value_type type)
{
    test_gguf_text(file->keys, &file->key_bytes, key);
    test_gguf_put(file->keys, &file->key_bytes, type, 4);
    file->key_count++;
}

static int size_of(enum gguf_value_type type)
{
    static const int sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

void test_gguf_number(struct test_gguf *file, const char *key, enum gguf_value_type type, uint64_t value)
{
    begin_key(file, key, type);
    test_gguf_put(file->keys, &file->key_bytes, value, size_of(type));
}

void test_gguf_u32(struct test_gguf *file, const char *key, uint32_t value)
{
    test_gguf_number(file, key, GGUF_U32, value);
}

void test_gguf_f32(struct test_gguf *file, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    test_gguf_number(file, key, GGUF_F32, bits);
}

void test_gguf_string(struct test_gguf *file, const char *key, const char *value)
{
    begin_key(file, key, GGUF_STRING);
    test_gguf_text(file->keys, &file->key_bytes, value);
}

static void begin_array(struct test_gguf *file, const char *key, enum gguf_value_type type, size_t count)
{
    begin_key(file, key, GGUF_ARRAY);
    test_gguf_put(file->keys, &file->key_bytes, type, 4);
    test_gguf_put(file->keys, &file->key_bytes, count, 8);
}

void test_gguf_strings(struct test_gguf *file, const char *key, const char *const *values, size_t count)
{
    begin_array(file, key, GGUF_STRING, count);
    for (size_t i = 0; i < count; i++) test_gguf_text(file->keys, &file->key_bytes, values[i]);
}

void test_gguf_numbers(struct test_gguf *file, const char *key, enum gguf_value_type type, const uint32_t *values,
                       size_t count)
{
    begin_array(file, key, type, count);
    for (size_t i = 0; i < count; i++) test_gguf_put(file->keys, &file->key_bytes, values[i], size_of(type));
}

void test_gguf_tensor(struct test_gguf *file, const char *name, enum gguf_tensor_type type, uint64_t rows,
                      uint64_t columns, const void *bytes, size_t size)
{
    while (file->data_bytes % file->alignment) test_gguf_put(file->data, &file->data_bytes, 0, 1);
    test_gguf_text(file->tensors, &file->tensor_bytes, name);
    test_gguf_put(file->tensors, &file->tensor_bytes, rows ? 2 : 1, 4);
    test_gguf_put(file->tensors, &file->tensor_bytes, columns, 8);
    if (rows) test_gguf_put(file->tensors, &file->tensor_bytes, rows, 8);
    test_gguf_put(file->tensors, &file->tensor_bytes, type, 4);
    test_gguf_put(file->tensors, &file->tensor_bytes, file->data_bytes, 8);
    if (file->data_bytes + size > TEST_GGUF_BYTES) abort();
    if (bytes) memcpy(file->data + file->data_bytes, bytes, size);
    file->data_bytes += size;
    file->tensor_count++;
}

uint8_t *test_gguf_end(const struct test_gguf *file, size_t *size)
{
    uint8_t header[64];
    size_t used = 0;
    memcpy(header, "GGUF", 4), used = 4;
    test_gguf_put(header, &used, file->version, 4);
    test_gguf_put(header, &used, file->tensor_count, 8);
    test_gguf_put(header, &used, file->key_count, 8);
    const size_t head = used + file->key_bytes + file->tensor_bytes, mask = file->alignment - 1;
    const size_t begin = file->tensor_count ? (head + mask) & ~mask : head;
    uint8_t *bytes = calloc(1, begin + file->data_bytes);
    if (!bytes) abort();
    memcpy(bytes, header, used);
    memcpy(bytes + used, file->keys, file->key_bytes);
    memcpy(bytes + used + file->key_bytes, file->tensors, file->tensor_bytes);
    memcpy(bytes + begin, file->data, file->data_bytes);
    *size = begin + file->data_bytes;
    return bytes;
}
