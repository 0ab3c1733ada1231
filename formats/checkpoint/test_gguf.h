/* SPDX-License-Identifier: Apache-2.0 */
/* Writes GGUF files for tests, valid or not, field by field. */
#ifndef FORMATS_CHECKPOINT_TEST_GGUF_H
#define FORMATS_CHECKPOINT_TEST_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "formats/checkpoint/gguf.h"

enum { TEST_GGUF_BYTES = 1 << 16 };

struct test_gguf {
    uint32_t version;
    uint64_t alignment; /* of tensors; writes no key */
    uint8_t keys[TEST_GGUF_BYTES], tensors[TEST_GGUF_BYTES], data[TEST_GGUF_BYTES];
    size_t key_bytes, tensor_bytes, data_bytes;
    uint64_t key_count, tensor_count;
};

void test_gguf_begin(struct test_gguf *file);                               /* version 3, alignment 32 */
void test_gguf_put(uint8_t *bytes, size_t *used, uint64_t value, int size); /* little endian */
void test_gguf_text(uint8_t *bytes, size_t *used, const char *text);        /* length, then text */

/* A key with a value of the type; reals as their bits. */
void test_gguf_number(struct test_gguf *file, const char *key, enum gguf_value_type type, uint64_t value);
void test_gguf_u32(struct test_gguf *file, const char *key, uint32_t value);
void test_gguf_f32(struct test_gguf *file, const char *key, float value);
void test_gguf_string(struct test_gguf *file, const char *key, const char *value);
void test_gguf_strings(struct test_gguf *file, const char *key, const char *const *values, size_t count);
void test_gguf_numbers(struct test_gguf *file, const char *key, enum gguf_value_type type, const uint32_t *values,
                       size_t count);

/* A tensor of [rows, columns], or [columns] where rows is 0, with these bytes, at the place where it must be. NULL: zeros. */
void test_gguf_tensor(struct test_gguf *file, const char *name, enum gguf_tensor_type type, uint64_t rows,
                      uint64_t columns, const void *bytes, size_t size);

/* The file in a heap block of its exact size, so that a sanitizer detects any access beyond it. The caller frees it. */
uint8_t *test_gguf_end(const struct test_gguf *file, size_t *size);

#endif
