/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN's plans as tactics of attention. Builder only. */
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "kernels/attention/attention_cudnn_build.h"

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    uint64_t most;
    const char *why = attention_cudnn_illegal(params);
    if (why) return why;
    const int64_t workspace = params[ATTENTION_CUDNN_TACTIC_WORKSPACE];
    if (!attention_cudnn_workspace(params, ATTENTION_CUDNN_MOST_OWN, &most) || workspace < 0 ||
        (uint64_t)workspace > most)
        return "WORKSPACE is too large";
    *geometry = (struct device_geometry){{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    device_attention_generic.cost(params, context, bytes, flops);
}

static bool make_call(const int64_t *params, const void *blob, size_t blob_bytes, struct engine_call *call)
{
    void *data = malloc(blob_bytes ? blob_bytes : 1);
    if (!data) return false;
    if (blob_bytes) memcpy(data, blob, blob_bytes);
    call->version = (uint32_t)params[ATTENTION_CUDNN_TACTIC_VERSION];
    call->data = data;
    call->bytes = blob_bytes;
    return true;
}

const struct device_kernel device_attention_cudnn = {
    .name = "attention_cudnn",
    .op = OP_ATTENTION,
    .library = LIBRARY_CUDNN,
    .problem = &op_attention,
    DEVICE_OWN_NAMES(ATTENTION_CUDNN_TACTIC_PARAMS - ATTENTION_PARAMS, "VERSION", "PLAN", "HASH0", "HASH1",
                     "WORKSPACE"),
    .launch = launch,
    .cost = cost,
    .call = make_call,
};

bool attention_cudnn_tactic(const int64_t *params, const struct attention_cudnn_blob *blob, int plan,
                            int64_t params_out[PLAN_MAX_PARAMS])
{
    struct attention_cudnn_header header;
    uint64_t workspace;
    if (blob->bytes < sizeof header) return false;
    memcpy(&header, blob->data, sizeof header);
    if (header.workspace_bytes > ATTENTION_CUDNN_MOST_OWN ||
        !attention_cudnn_workspace(params, header.workspace_bytes, &workspace))
        return false;
    const uint64_t hash = hash64(blob->data, blob->bytes);
    memset(params_out, 0, PLAN_MAX_PARAMS * sizeof *params_out);
    memcpy(params_out, params, ATTENTION_PARAMS * sizeof *params);
    params_out[ATTENTION_CUDNN_TACTIC_VERSION] = (int64_t)header.cudnn_version;
    params_out[ATTENTION_CUDNN_TACTIC_PLAN] = plan;
    params_out[ATTENTION_CUDNN_TACTIC_HASH0] = (int64_t)(hash >> 32);
    params_out[ATTENTION_CUDNN_TACTIC_HASH1] = (int64_t)(hash & UINT32_MAX);
    params_out[ATTENTION_CUDNN_TACTIC_WORKSPACE] = (int64_t)workspace;
    return true;
}

uint64_t attention_cudnn_tactic_hash(const int64_t *params)
{
    return (uint64_t)params[ATTENTION_CUDNN_TACTIC_HASH0] << 32 | (uint64_t)params[ATTENTION_CUDNN_TACTIC_HASH1];
}
