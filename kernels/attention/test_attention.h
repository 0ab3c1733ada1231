/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of device kernels for chunks of prompts share: a launch with a KV pool, and the reference of some rows. */
#ifndef KERNELS_ATTENTION_TEST_ATTENTION_H
#define KERNELS_ATTENTION_TEST_ATTENTION_H

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_device.h"
#include "kernels/cpu/test_pages.h"
#include "kernels/cuda/test_launch.h"

struct attention_shape {
    int64_t rows, valid;
    int64_t start; /* position of row 0 */
    int64_t kv_heads, group, head_dim, window;
    enum dtype x_dtype;
    enum encoding_id kv_dtype;
    int64_t page_tokens; /* 0: 64 */
    bool scattered;      /* rows of several slots */
    bool in_place;       /* out is q */
    bool nan_rows;       /* q of rows that are not valid is NaN */
    int64_t count_index;
    float cap;         /* 0: none */
    enum dtype sinks;  /* DTYPE_NONE: none */
    int64_t value_dim; /* 0: v is no part of k */
    bool runs;     /* scattered: each slot's rows follow each other and their positions rise by one; else in no order */
    int64_t slots; /* 0: ATTENTION_FEW_SLOTS */
};

enum {
    ATTENTION_FEW_SLOTS = 5,
    ATTENTION_MOST_SLOTS = 80,
    ATTENTION_TEST_SLOT = 3, /* of rows that are not scattered */
    MOST_CHECKED_ROWS = 48
};

/* In the pool only what a row may see is filled, all else is NaN; page table entries and row data that must not be used
 * are wild. */
struct attention_setup {
    struct attention_shape shape;
    struct test_launch launch; /* of operands alone */
    int64_t heads, page_tokens, kv_offset;
    int64_t out_width; /* of a row */
    /* Rows that are checked: the first, the last valid ones, and others in between; what they must be. */
    int64_t rows[MOST_CHECKED_ROWS], row_count;
    float *expected; /* [row_count, out_width] */
};
void attention_setup_open(struct attention_setup *setup, struct test_random *random,
                          const struct attention_shape *shape);
/* Pages of a pool with the layout of the setup's. */
struct pages attention_setup_pages(const struct attention_setup *setup, void *pool);
/* Up to `most` candidates of the kernel, of which there must be one at least, twice each, against the reference. */
void attention_check_candidates(struct test_random *random, const struct attention_shape *shape,
                                const struct device_kernel *kernel, int most, double tolerance);
/* What the launch found in OUT is what the rows must be. */
void attention_setup_check(struct attention_setup *setup, double tolerance, const char *what);

#endif
