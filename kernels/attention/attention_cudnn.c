/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention_cudnn.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention_cudnn_layout.cuh"

enum {
    MOST_TOKENS = 1 << 30, /* of a slot */
    ALIGNMENT = 16,        /* of a page, bytes */
};
static const uint64_t most_workspace_bytes = (uint64_t)1 << 40;

const char *attention_cudnn_illegal(const int64_t *params)
{
    const int64_t page_tokens = params[ATTENTION_PAGE_TOKENS], dtype = params[ATTENTION_X_DTYPE];
    const char *why = op_params_illegal(&op_attention, params);
    if (why) return why;
    if (params[ATTENTION_VALUE_DIM]) return "v is a part of k";
    if (params[ATTENTION_SCATTERED]) return "the rows belong to several sequences";
    if (params[ATTENTION_CAP_BITS]) return "scores have a cap";
    if (params[ATTENTION_HAS_SINKS]) return "heads have sinks";
    if (params[ATTENTION_HEAD_DIM] % 8 || params[ATTENTION_HEAD_DIM] > 256)
        return "HEAD_DIM is not a multiple of 8 in 8..256";
    if (page_tokens & (page_tokens - 1)) return "PAGE_TOKENS is not a power of two in 1..2^30";
    if (params[ATTENTION_PAGES_PER_SLOT] > MOST_TOKENS / page_tokens)
        return "PAGES_PER_SLOT is not positive or makes more than 2^30 tokens";
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "X_DTYPE is not F16 or BF16";
    if (params[ATTENTION_KV_DTYPE] != dtype) return "KV_DTYPE is not X_DTYPE";
    return params[ATTENTION_PAGE_BYTES] % ALIGNMENT ? "PAGE_BYTES is not a multiple of 16 in 1..2^40" : NULL;
}

bool attention_cudnn_has_window(const int64_t *params)
{
    const int64_t window = params[ATTENTION_WINDOW];
    return window && window < params[ATTENTION_PAGES_PER_SLOT] * params[ATTENTION_PAGE_TOKENS];
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ATTENTION_CUDNN_ALIGNMENT - 1) / ATTENTION_CUDNN_ALIGNMENT * ATTENTION_CUDNN_ALIGNMENT;
}

/* Offset in the workspace of the parts after the inputs. */
struct parts {
    uint64_t maxima, sums, own;
};

static struct parts parts_of(const int64_t *params)
{
    const uint64_t pages =
        (uint64_t)ATTENTION_CUDNN_PADDED_PAGES(params[ATTENTION_PAGES_PER_SLOT], params[ATTENTION_PAGE_TOKENS]);
    const uint64_t rows = (uint64_t)(params[ATTENTION_ROWS] * params[ATTENTION_HEADS]) * sizeof(float);
    struct parts parts = {.maxima = aligned(ATTENTION_CUDNN_PAGES_AT + pages * sizeof(int32_t))};
    parts.sums = parts.maxima + aligned(rows);
    parts.own = parts.sums + aligned(rows);
    return parts;
}

bool attention_cudnn_workspace(const int64_t *params, uint64_t plan_bytes, uint64_t *bytes)
{
    if (attention_cudnn_illegal(params) || plan_bytes > most_workspace_bytes) return false;
    *bytes = parts_of(params).own + plan_bytes;
    return true;
}

struct attention_cudnn {
    const struct cudnn *cudnn; /* borrowed */
    cudnn_descriptor plan;
    int64_t params[ATTENTION_PARAMS];
};

static bool read_header(const struct cudnn *cudnn, const int64_t *params, const void *blob, size_t bytes,
                        struct attention_cudnn_header *header, struct status *status)
{
    if (bytes < sizeof *header)
        return status_fail(status, STATUS_CORRUPT, "cuDNN attention plan: expected %zu bytes or more, found %zu",
                           sizeof *header, bytes);
    memcpy(header, blob, sizeof *header);
    if (header->magic != ATTENTION_CUDNN_MAGIC)
        return status_fail(status, STATUS_CORRUPT, "cuDNN attention plan: not one, or of another format");
    if (header->plan_bytes == 0 || header->plan_bytes != bytes - sizeof *header)
        return status_fail(status, STATUS_CORRUPT,
                           "cuDNN attention plan: expected %zu bytes after its header, found a length of %" PRIu64,
                           bytes - sizeof *header, header->plan_bytes);
    for (int i = 0; i < ATTENTION_CUDNN_PROBLEM_PARAMS; i++)
        if (header->params[i] != params[i])
            return status_fail(status, STATUS_CORRUPT,
                               "cuDNN attention plan: made for another problem: expected %" PRId64
                               " as parameter %d, found %" PRId64,
                               params[i], i, header->params[i]);
    if (header->cudnn_version != cudnn->version)
        return status_fail(status, STATUS_MACHINE,
                           "cuDNN attention plan: expected cuDNN %" PRIu64
                           ", with which it was made, found %zu; install that version or build the engine anew",
                           header->cudnn_version, cudnn->version);
    return true;
}

/* An error that cuDNN finds in the plan is a defect of the file; any other is one of the machine. */
static bool read_plan(struct attention_cudnn *attention, const char *plan, uint64_t bytes, struct status *status)
{
    enum { BAD_PARAM = 2, PREREQUISITE_MISSING = 3008 }; /* thousands: the category */
    const struct cudnn *cudnn = attention->cudnn;
    cudnn_result result = cudnn->SetAttribute(attention->plan, CUDNN_PLAN_JSON, CUDNN_OF_CHAR, (int64_t)bytes, plan);
    if (!result) result = cudnn->Finalize(attention->plan);
    if (cudnn_ok(cudnn, result, status, "cuDNN: making an attention plan from its bytes%s",
                 result == PREREQUISITE_MISSING ? " (install NVRTC, which it needs)" : ""))
        return true;
    if (result / 1000 == BAD_PARAM) status->code = STATUS_CORRUPT;
    return false;
}

/* cuDNN's own figure must agree with the one used to plan memory. */
static bool check_workspace(const struct attention_cudnn *attention, uint64_t expected, struct status *status)
{
    const struct cudnn *cudnn = attention->cudnn;
    int64_t found = -1, count = 0;
    if (!cudnn_ok(cudnn,
                  cudnn->GetAttribute(attention->plan, CUDNN_PLAN_WORKSPACE_BYTES, CUDNN_OF_INT64, 1, &count, &found),
                  status, "cuDNN attention plan: its workspace"))
        return false;
    if (count == 1 && found >= 0 && (uint64_t)found == expected) return true;
    return status_fail(status, STATUS_CORRUPT,
                       "cuDNN attention plan: expected a workspace of %" PRIu64 " bytes, found %" PRId64, expected,
                       found);
}

struct attention_cudnn *attention_cudnn_prepare(const struct cudnn *cudnn, const int64_t *params, const void *blob,
                                                size_t bytes, struct status *status)
{
    struct attention_cudnn_header header;
    uint64_t workspace;
    const char *why = attention_cudnn_illegal(params);
    if (why) {
        status_fail(status, STATUS_CORRUPT, "cuDNN attention: %s", why);
        return NULL;
    }
    if (!read_header(cudnn, params, blob, bytes, &header, status)) return NULL;
    struct attention_cudnn *attention = calloc(1, sizeof *attention);
    if (!attention) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    attention->cudnn = cudnn;
    memcpy(attention->params, params, sizeof attention->params);
    if (!attention_cudnn_workspace(params, header.workspace_bytes, &workspace)) {
        status_fail(status, STATUS_CORRUPT, "cuDNN attention plan: a workspace of %" PRIu64 " bytes, at most %" PRIu64,
                    header.workspace_bytes, most_workspace_bytes);
        goto failed;
    }
    if (!cudnn_new(cudnn, CUDNN_DESCRIPTOR_PLAN, &attention->plan, status) ||
        !cudnn_set(cudnn, attention->plan, CUDNN_PLAN_HANDLE, CUDNN_OF_HANDLE, 1, &cudnn->handle, status) ||
        !read_plan(attention, (const char *)blob + sizeof header, header.plan_bytes, status))
        goto failed;
    if (!check_workspace(attention, header.workspace_bytes, status)) goto failed;
    return attention;
failed:
    attention_cudnn_free(attention);
    return NULL;
}

bool attention_cudnn_execute(struct attention_cudnn *attention, const uint64_t *operands, void *stream,
                             struct status *status)
{
    const struct cudnn *cudnn = attention->cudnn;
    const int64_t *params = attention->params;
    const struct parts parts = parts_of(params);
    const uint64_t workspace = operands[ATTENTION_CUDNN_WORKSPACE], keys = operands[ATTENTION_KV];
    const uint64_t values =
        keys + (uint64_t)(2 * params[ATTENTION_KV_HEADS] * params[ATTENTION_PAGE_TOKENS] * params[ATTENTION_HEAD_DIM]);
    const uint64_t device[] = {
        [ATTENTION_CUDNN_Q] = operands[ATTENTION_Q],
        [ATTENTION_CUDNN_K] = keys,
        [ATTENTION_CUDNN_V] = values,
        [ATTENTION_CUDNN_OUT] = operands[ATTENTION_OUT],
        [ATTENTION_CUDNN_ROW_COUNT] = workspace + ATTENTION_CUDNN_ROW_COUNT_AT,
        [ATTENTION_CUDNN_TOKEN_COUNT] = workspace + ATTENTION_CUDNN_TOKEN_COUNT_AT,
        [ATTENTION_CUDNN_K_PAGES] = workspace + ATTENTION_CUDNN_PAGES_AT,
        [ATTENTION_CUDNN_V_PAGES] = workspace + ATTENTION_CUDNN_PAGES_AT,
        [ATTENTION_CUDNN_MAXIMA] = workspace + parts.maxima,
        [ATTENTION_CUDNN_SUMS] = workspace + parts.sums,
    };
    uint32_t scale_bits = (uint32_t)params[ATTENTION_SCALE_BITS];
    int32_t window = (int32_t)params[ATTENTION_WINDOW];
    float minus_infinity = -INFINITY;
    const bool has_window = attention_cudnn_has_window(params);
    void *pointers[ATTENTION_CUDNN_FIRST_VIRTUAL];
    int64_t ids[ATTENTION_CUDNN_FIRST_VIRTUAL];
    size_t count = 0;
    for (int id = ATTENTION_CUDNN_Q; id < ATTENTION_CUDNN_FIRST_VIRTUAL; id++) {
        if (!has_window && (id == ATTENTION_CUDNN_WINDOW_VALUE || id == ATTENTION_CUDNN_WINDOW_SIZE)) continue;
        ids[count] = id;
        pointers[count++] = id < ATTENTION_CUDNN_SCALE          ? (void *)(uintptr_t)device[id]
                            : id == ATTENTION_CUDNN_SCALE       ? (void *)&scale_bits
                            : id == ATTENTION_CUDNN_WINDOW_SIZE ? (void *)&window
                                                                : (void *)&minus_infinity;
    }
    void *own = (void *)(uintptr_t)(workspace + parts.own);
    cudnn_descriptor pack = NULL;
    const bool ok = cudnn_new(cudnn, CUDNN_DESCRIPTOR_VARIANT_PACK, &pack, status) &&
                    cudnn_set(cudnn, pack, CUDNN_VARIANT_PACK_IDS, CUDNN_OF_INT64, count, ids, status) &&
                    cudnn_set(cudnn, pack, CUDNN_VARIANT_PACK_POINTERS, CUDNN_OF_POINTER, count, pointers, status) &&
                    cudnn_set(cudnn, pack, CUDNN_VARIANT_PACK_WORKSPACE, CUDNN_OF_POINTER, 1, &own, status) &&
                    cudnn_finalize(cudnn, pack, "naming the operands of attention", status) &&
                    cudnn_ok(cudnn, cudnn->SetStream(cudnn->handle, stream), status, "cuDNN: setting the stream") &&
                    cudnn_ok(cudnn, cudnn->Execute(cudnn->handle, attention->plan, pack), status, "cuDNN: attention");
    cudnn_destroy(cudnn, pack);
    return ok;
}

void attention_cudnn_free(struct attention_cudnn *attention)
{
    if (!attention) return;
    cudnn_destroy(attention->cudnn, attention->plan);
    free(attention);
}
