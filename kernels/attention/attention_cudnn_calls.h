/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN in an engine: the plan of each call is parsed once, which takes tens of milliseconds, and kept.
 * Any thread may use it. Requires, here and below: the device's context is current. */
#ifndef KERNELS_ATTENTION_ATTENTION_CUDNN_CALLS_H
#define KERNELS_ATTENTION_ATTENTION_CUDNN_CALLS_H

#include "formats/engine/engine_file.h"
#include "kernels/attention/attention_cudnn.h"

struct attention_cudnn_calls; /* opaque */

/* `cudnn` is borrowed, its handle too. NULL: out of memory. */
struct attention_cudnn_calls *attention_cudnn_calls_new(const struct cudnn *cudnn, struct status *status);
void attention_cudnn_calls_free(struct attention_cudnn_calls *calls); /* NULL: nothing */

/* Least size of an operand of the call, enum attention_operand or ATTENTION_CUDNN_WORKSPACE, for legal params;
 * UINT64_MAX: the call's data state no size. */
uint64_t attention_cudnn_operand_bytes(const int64_t *params, const struct engine_call *call, int operand);

/* Prepares the call's plan; fails as attention_cudnn_prepare does. `call->data` outlives `calls`. */
bool attention_cudnn_calls_check(struct attention_cudnn_calls *calls, const int64_t *params,
                                 const struct engine_call *call, struct status *status);
/* Likewise, and queues the call on the stream, which may be capturing (relaxed). A capture must not be used after
 * `calls` are freed. pool_bytes: of all KV pages. */
bool attention_cudnn_calls_run(struct attention_cudnn_calls *calls, const int64_t *params,
                               const struct engine_call *call, const cu_deviceptr *operands, uint64_t pool_bytes,
                               cu_stream stream, struct status *status);

#endif
