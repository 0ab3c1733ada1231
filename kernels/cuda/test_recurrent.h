/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of an op with recurrent state, one after the other as in an engine, against the reference on the CPU: chunks, batches in any
 * order, decode steps that are discarded or run twice, slots that begin again. */
#ifndef KERNELS_CUDA_TEST_RECURRENT_H
#define KERNELS_CUDA_TEST_RECURRENT_H

#include "kernels/cuda/test_launch.h"

enum {
    TEST_RECURRENT_SLOTS = 7,
    TEST_RECURRENT_BEFORE = 128 /* bytes of another layer before and after the layer's part of a copy */
};

/* What the walk needs to know of an op; numbers are those of its schema. */
struct test_recurrent {
    const struct device_kernel *kernel;
    int slots, positions, state, out;
    int inputs[4]; /* of the rows, filled at random; ended by 0 */
    double absolute, relative;
    uint64_t part; /* bytes of the layer's state */
};

/* RECURRENT_BYTES for such a part. */
int64_t test_recurrent_bytes(uint64_t part);
/* So many steps. The launch is open, and its weights are filled. */
void test_recurrent_walk(struct test_launch *launch, const struct test_recurrent *op, struct test_random *random,
                         int steps);

#endif
