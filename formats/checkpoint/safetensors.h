/* SPDX-License-Identifier: Apache-2.0 */
/* Reader and writer of one safetensors file. The reader checks all rules of the format before it returns: header length
 * limit, JSON object that begins with '{' after optional spaces, duplicate keys, dtype, shape products, begin <= end,
 * no gap, no overlap, no trailing byte. Tensor data is used in place. */
#ifndef FORMATS_CHECKPOINT_SAFETENSORS_H
#define FORMATS_CHECKPOINT_SAFETENSORS_H

#include "formats/encoding/dtype.h"
#include "formats/base/file.h"
#include "formats/base/status.h"

enum { TENSOR_MAX_RANK = 8, SAFETENSORS_MAX_HEADER_BYTES = 100000000 };

struct quantised;

struct tensor_view {
    const char *name; /* borrowed from the container */
    enum dtype dtype;
    int rank;
    uint64_t shape[TENSOR_MAX_RANK]; /* row-major */
    const void *data;                /* borrowed from the mapping; may be unaligned for its dtype */
    uint64_t bytes;
    const struct quantised *quantised; /* quantised.h: the elements are decoded, and there is no data; NULL: plain */
};

struct safetensors {
    struct tensor_view *tensors; /* sorted by name */
    size_t tensor_count;
    char *names;  /* owned storage of the names */
    char *format; /* __metadata__["format"], owned, NULL if absent */
};

/* Requires: `data` outlives the result. `name` is the file name for messages. */
bool safetensors_parse(struct safetensors *file, const void *data, uint64_t size, const char *name,
                       struct status *status);
void safetensors_free(struct safetensors *file);
const struct tensor_view *safetensors_find(const struct safetensors *file, const char *name);

/* Writes the 8-byte length and the header for these tensors (data pointers unused), padded with spaces so that data
 * begins 8-byte aligned. The caller then writes the data of each tensor in the same order without gaps. */
bool safetensors_write_header(struct file_output *output, const struct tensor_view *tensors, size_t count,
                              struct status *status);

#endif
