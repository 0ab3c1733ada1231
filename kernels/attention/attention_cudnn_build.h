/* SPDX-License-Identifier: Apache-2.0 */
/* The builder's part of attention by cuDNN: the execution plans that the library offers for a problem, and how each is
 * raced. */
#ifndef KERNELS_ATTENTION_ATTENTION_CUDNN_BUILD_H
#define KERNELS_ATTENTION_ATTENTION_CUDNN_BUILD_H

#include "kernels/attention/attention_cudnn.h"

struct attention_cudnn_blob {
    void *data; /* malloc'd */
    size_t bytes;
    char name[160]; /* "engine 4, knob 24 = 1, ...": for display, the same in every run */
};

/* The plans for params[0..ATTENTION_PARAMS) that cuDNN makes: those of its heuristics, best first, then
 * every engine with each of its knobs at each value, or at the defaults, without duplicates; at most
 * `capacity`. Sets *count; none is no failure. The context is current.
 *
 * Every plan is compiled, which takes about a second: two cost little, all of them half a minute. A plan's bytes are
 * not the same in every run: cuDNN stores its structures with whatever their padding holds. */
bool attention_cudnn_enumerate(const struct cudnn *cudnn, const int64_t *params, struct attention_cudnn_blob *blobs,
                               int capacity, int *count, struct status *status);
void attention_cudnn_blob_free(struct attention_cudnn_blob *blob);

/* Tunables of a plan as a tactic, whose blob is the plan's. */
enum attention_cudnn_tactic_param {
    ATTENTION_CUDNN_TACTIC_VERSION = ATTENTION_PARAMS, /* of cuDNN */
    ATTENTION_CUDNN_TACTIC_PLAN,                       /* its number in the order of attention_cudnn_enumerate */
    ATTENTION_CUDNN_TACTIC_HASH0,                      /* XXH3-64 of the blob, upper half */
    ATTENTION_CUDNN_TACTIC_HASH1,                      /* lower half */
    ATTENTION_CUDNN_TACTIC_WORKSPACE,                  /* bytes of the whole workspace */
    ATTENTION_CUDNN_TACTIC_PARAMS
};
enum { ATTENTION_CUDNN_MOST_OWN = 32 << 20 }; /* most bytes of cuDNN's own workspace of a plan that races */

/* Not in the registry: it is no kernel of ours, and is raced if the library is open. */
extern const struct device_kernel device_attention_cudnn;

/* The tactic of a blob, plan number `plan` of the problem in params; false: it is not a valid blob, or needs more than
 * ATTENTION_CUDNN_MOST_OWN. */
bool attention_cudnn_tactic(const int64_t *params, const struct attention_cudnn_blob *blob, int plan,
                            int64_t params_out[PLAN_MAX_PARAMS]);
/* The blob's hash that the tactic names. */
uint64_t attention_cudnn_tactic_hash(const int64_t *params);

#endif
