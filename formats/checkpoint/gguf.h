/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of one GGUF file, versions 2 and 3, little endian: its metadata and where its tensors lie. Checked before it returns:
 * every count, length and type, keys and tensors that stand twice, the alignment, and that tensors follow each other without
 * overlap up to the end of the file. What keys and tensors mean for a model: gguf_model.h. */
#ifndef FORMATS_CHECKPOINT_GGUF_H
#define FORMATS_CHECKPOINT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

/* Values are those of the file. */
enum gguf_value_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};

enum gguf_tensor_type {
    GGUF_TENSOR_F32 = 0,
    GGUF_TENSOR_F16 = 1,
    GGUF_TENSOR_Q4_0 = 2,
    GGUF_TENSOR_Q4_1 = 3,
    GGUF_TENSOR_Q5_0 = 6,
    GGUF_TENSOR_Q5_1 = 7,
    GGUF_TENSOR_Q8_0 = 8,
    GGUF_TENSOR_Q2_K = 10,
    GGUF_TENSOR_Q3_K = 11,
    GGUF_TENSOR_Q4_K = 12,
    GGUF_TENSOR_Q5_K = 13,
    GGUF_TENSOR_Q6_K = 14,
    GGUF_TENSOR_IQ4_NL = 20,
    GGUF_TENSOR_IQ4_XS = 23,
    GGUF_TENSOR_BF16 = 30,
    GGUF_TENSOR_MXFP4 = 39,
};

enum { GGUF_MAX_RANK = 4, GGUF_MAX_KEYS = 1 << 16, GGUF_MAX_TENSORS = 1 << 16 };

struct gguf_value {
    enum gguf_value_type type, element; /* element: of an array */
    uint64_t count;                     /* bytes of a string, elements of an array, otherwise 1 */
    const uint8_t *data; /* borrowed from the file, unaligned; strings of an array: each with its length */
};

struct gguf_key {
    const char *name;
    uint32_t name_bytes;
    struct gguf_value value;
    bool is_read; /* a getter below found it */
};

struct gguf_tensor {
    const char *name;
    uint32_t name_bytes;
    enum gguf_tensor_type type;
    int rank;
    uint64_t shape[GGUF_MAX_RANK]; /* row-major: the reverse of the file's order, none is 0 */
    const uint8_t *data;           /* borrowed from the file */
    uint64_t bytes;
};

struct gguf {
    const char *path;      /* borrowed, for messages */
    struct gguf_key *keys; /* owned, sorted by name */
    size_t key_count;
    struct gguf_tensor *tensors; /* owned, sorted by name */
    size_t tensor_count;
    char *names; /* owned storage of the names */
};

/* Requires: `data` and `path` outlive the result. */
bool gguf_parse(struct gguf *file, const void *data, uint64_t size, const char *path, struct status *status);
void gguf_free(struct gguf *file);

const struct gguf_tensor *gguf_find_tensor(const struct gguf *file, const char *name);
const char *gguf_tensor_type_name(enum gguf_tensor_type type); /* "Q4_K" */
uint64_t gguf_block_columns(enum gguf_tensor_type type);       /* elements of a block, 1 of a plain type */
uint64_t gguf_block_bytes(enum gguf_tensor_type type);

/* The value of a key, which is then read; NULL: there is none. */
const struct gguf_value *gguf_get(struct gguf *file, const char *key);

/* Typed getters. A missing key leaves *out unchanged if `required` is false. A wrong type or a missing required key fails and
 * names key, expected and found. Integers of every width are accepted for u64, floats of both for real. */
bool gguf_get_u64(struct gguf *file, const char *key, bool required, uint64_t *out, struct status *status);
bool gguf_get_real(struct gguf *file, const char *key, bool required, double *out, struct status *status);
bool gguf_get_bool(struct gguf *file, const char *key, bool required, bool *out, struct status *status);
/* The text is borrowed from the file and not terminated. */
bool gguf_get_string(struct gguf *file, const char *key, bool required, const char **text, size_t *bytes,
                     struct status *status);
/* An array with elements of the type; *array is NULL if the key is missing and not required. */
bool gguf_get_array(struct gguf *file, const char *key, bool required, enum gguf_value_type element,
                    const struct gguf_value **array, struct status *status);

/* Steps through an array of strings: `*at` begins as the array's data. */
void gguf_next_string(const uint8_t **at, const char **text, size_t *bytes);
uint32_t gguf_u32_at(const uint8_t *data, uint64_t index);
float gguf_f32_at(const uint8_t *data, uint64_t index);

/* "FILE: key 'KEY': expected ..., found ..."; false. */
bool gguf_fail_key(const struct gguf *file, const char *key, const char *expected, const char *found,
                   struct status *status);

#endif
