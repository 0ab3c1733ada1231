/* The builder's side of attention by cuDNN: which execution plans the library offers for a problem. */
#ifndef KERNELS_ATTENTION_ATTENTION_CUDNN_BUILD_H
#define KERNELS_ATTENTION_ATTENTION_CUDNN_BUILD_H

#include "kernels/attention/attention_cudnn.h"

struct attention_cudnn_blob {
    void *data; /* malloc'd */
    size_t bytes;
    char name[160]; /* "engine 4, knob 24 = 1, ...": for people, the same in every run */
};

/* The plans for params[0..ATTENTION_DEVICE_FIRST_TUNABLE) that cuDNN makes: those of its heuristics, best first, then
 * every engine with each of its knobs at each value, or at the defaults, without what is there already; at most
 * `capacity`. Sets *count; none is no failure. The context is current.
 *
 * Every plan is compiled, which takes about a second: two cost little, all of them half a minute. A plan's bytes are
 * not the same in every run: cuDNN stores its structures with whatever their padding holds. */
bool attention_cudnn_enumerate(struct cudnn *cudnn, const int64_t *params, struct attention_cudnn_blob *blobs,
                               int capacity, int *count, struct status *status);
void attention_cudnn_blob_free(struct attention_cudnn_blob *blob);

#endif
