/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention_cudnn_calls.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention_cudnn_layout.cuh"

struct prepared {
    const void *data; /* of the call */
    int64_t params[ATTENTION_PARAMS];
    struct attention_cudnn *attention;
    struct prepared *next;
};

struct attention_cudnn_calls {
    pthread_mutex_t lock; /* guards all fields below: sessions on several threads share one handle */
    struct cudnn cudnn;
    struct prepared *first;
};

struct attention_cudnn_calls *attention_cudnn_calls_new(const struct cudnn *cudnn, struct status *status)
{
    struct attention_cudnn_calls *calls = calloc(1, sizeof *calls);
    if (!calls || pthread_mutex_init(&calls->lock, NULL) != 0) {
        free(calls);
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    calls->cudnn = *cudnn;
    return calls;
}

void attention_cudnn_calls_free(struct attention_cudnn_calls *calls)
{
    if (!calls) return;
    for (struct prepared *prepared = calls->first, *next; prepared; prepared = next) {
        next = prepared->next;
        attention_cudnn_free(prepared->attention);
        free(prepared);
    }
    pthread_mutex_destroy(&calls->lock);
    free(calls);
}

static uint64_t workspace_bytes(const int64_t *params, const struct engine_call *call)
{
    struct attention_cudnn_header header;
    uint64_t bytes;
    if (call->bytes < sizeof header) return UINT64_MAX;
    memcpy(&header, call->data, sizeof header);
    return attention_cudnn_workspace(params, header.workspace_bytes, &bytes) ? bytes : UINT64_MAX;
}

uint64_t attention_cudnn_operand_bytes(const int64_t *params, const struct engine_call *call, int operand)
{
    const struct plan_geometry geometry = {.slots = (uint64_t)params[ATTENTION_SLOT_COUNT],
                                           .pages_per_slot = (uint64_t)params[ATTENTION_PAGES_PER_SLOT]};
    uint64_t bytes;
    if (operand == ATTENTION_CUDNN_WORKSPACE) return workspace_bytes(params, call);
    if (operand < 0 || operand > ATTENTION_OUT) return 0;
    return op_operand_bytes(&op_attention, TARGET_CUDA, params, &geometry, operand, &bytes) ? bytes : UINT64_MAX;
}

/* Requires: the lock is held. The blob states its params, so a call with others is an error. */
static struct attention_cudnn *find(struct attention_cudnn_calls *calls, const int64_t *params,
                                    const struct engine_call *call, struct status *status)
{
    for (const struct prepared *known = calls->first; known; known = known->next)
        if (known->data == call->data && memcmp(known->params, params, sizeof known->params) == 0)
            return known->attention;
    struct prepared *made = calloc(1, sizeof *made);
    if (!made) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    made->data = call->data;
    memcpy(made->params, params, sizeof made->params);
    made->attention = attention_cudnn_prepare(&calls->cudnn, params, call->data, call->bytes, status);
    if (!made->attention) {
        free(made);
        return NULL;
    }
    made->next = calls->first;
    calls->first = made;
    return made->attention;
}

bool attention_cudnn_calls_check(struct attention_cudnn_calls *calls, const int64_t *params,
                                 const struct engine_call *call, struct status *status)
{
    pthread_mutex_lock(&calls->lock);
    bool ok = find(calls, params, call, status) != NULL;
    pthread_mutex_unlock(&calls->lock);
    return ok;
}

bool attention_cudnn_calls_run(struct attention_cudnn_calls *calls, const int64_t *params,
                               const struct engine_call *call, const cu_deviceptr *operands, uint64_t pool_bytes,
                               cu_stream stream, struct status *status)
{
    const uint64_t pages = pool_bytes / (uint64_t)params[ATTENTION_PAGE_BYTES];
    if (pages > ATTENTION_CUDNN_MOST_PAGES)
        return status_fail(status, STATUS_MACHINE,
                           "cuDNN attention: expected a pool of at most %d KV pages, found %" PRIu64
                           "; ask for a smaller one, or build the engine with --lean",
                           ATTENTION_CUDNN_MOST_PAGES, pages);
    if (operands[ATTENTION_CUDNN_WORKSPACE] % ATTENTION_CUDNN_ALIGNMENT)
        return status_fail(status, STATUS_CORRUPT, "cuDNN attention: expected a workspace at a multiple of %d bytes",
                           ATTENTION_CUDNN_ALIGNMENT);
    pthread_mutex_lock(&calls->lock);
    struct attention_cudnn *attention = find(calls, params, call, status);
    bool ok = attention && attention_cudnn_execute(attention, operands, stream, status);
    pthread_mutex_unlock(&calls->lock);
    return ok;
}
