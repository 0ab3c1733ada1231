/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of the kinds of fields that the quantisation methods have in common; part of quant_config.c. A field that is
 * absent or null and not required leaves the output unchanged. */
#ifndef FORMATS_CHECKPOINT_QUANT_FIELDS_H
#define FORMATS_CHECKPOINT_QUANT_FIELDS_H

#include "formats/base/json.h"

enum { QUANT_NAMES_BYTES = 320, QUANT_MAX_ALIASES = 3 };

#define QUANT_COUNT(array) (sizeof(array) / sizeof *(array))

/* A table whose elements begin with a name. Names are compared without regard to case, as the libraries do. */
struct quant_names {
    const void *first;
    size_t count, stride;
};
#define QUANT_NAMES(table) (&(const struct quant_names){table, QUANT_COUNT(table), sizeof *(table)})

/* The index of a name; the size of the table if it is not there. */
size_t quant_find_name(const struct quant_names *names, const char *name);
/* Writes "a, b or c". text: [QUANT_NAMES_BYTES] */
void quant_list_names(const struct quant_names *names, char *text);

/* A string that is one of the names. */
bool quant_read_name(struct json_reader *reader, const char *key, bool required, const struct quant_names *names,
                     size_t *index, struct status *status);
/* The same for an optional field with several keys, which must agree. */
bool quant_read_aliased_name(struct json_reader *reader, const char *const *keys, size_t count,
                             const struct quant_names *names, size_t *index, struct status *status);

/* Marks fields that have no effect on weights as read. `keys` are separated by spaces. */
void quant_ignore(struct json_reader *reader, const char *keys);

bool quant_fail_disagreement(const struct json_reader *reader, const char *one, const char *other,
                             struct status *status);

/* A field with an integer value, under any of its keys, which must agree. */
struct quant_integer_field {
    const char *keys[QUANT_MAX_ALIASES];
    const char *expected;
    json_int_t least, most;
    uint32_t except; /* bit n: the value n is refused */
};
bool quant_read_bits(struct json_reader *reader, const struct quant_integer_field *field, bool required, uint32_t *bits,
                     struct status *status);
/* group_size or q_group_size; -1, which means one group, becomes 0. */
bool quant_read_group_size(struct json_reader *reader, bool required, uint64_t *group_size, struct status *status);

/* Rows and columns that share a scale, as [rows, columns] or, where `text`, "ROWSxCOLUMNS". */
bool quant_read_block(struct json_reader *reader, const char *key, bool text, uint64_t *rows, uint64_t *columns,
                      struct status *status);

/* An array of names of modules or patterns of them. The tensors decide which modules are quantised, so they are not
 * kept. */
bool quant_read_strings(struct json_reader *reader, const char *key, bool required, struct status *status);

#endif
