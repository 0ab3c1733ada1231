/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention_cudnn.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "kernels/attention/attention_cudnn_layout.cuh"

enum {
    MOST_ROWS = 1 << 20,
    MOST_HEADS = 1 << 12,
    MOST_HEAD_DIM = 256,
    MOST_TOKENS = 1 << 30, /* of a slot */
    MOST_SLOTS = 1 << 20,
    ALIGNMENT = 16, /* of a page, bytes */
};
static const int64_t most_page_bytes = (int64_t)1 << 40;
static const uint64_t most_workspace_bytes = (uint64_t)1 << 40;

static bool in_range(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

/* Products of the checked parameters fit 64 bits: 2 * 2^12 * 2^30 * 2^8 * 2. */
const char *attention_cudnn_illegal(const int64_t *params)
{
    const int64_t heads = params[ATTENTION_DEVICE_HEADS], kv_heads = params[ATTENTION_DEVICE_KV_HEADS];
    const int64_t head_dim = params[ATTENTION_DEVICE_HEAD_DIM], page_tokens = params[ATTENTION_DEVICE_PAGE_TOKENS];
    const int64_t page_bytes = params[ATTENTION_DEVICE_PAGE_BYTES], scale = params[ATTENTION_DEVICE_SCALE_BITS];
    const int64_t dtype = params[ATTENTION_DEVICE_X_DTYPE];
    if (!in_range(params[ATTENTION_DEVICE_ROWS], 1, MOST_ROWS)) return "ROWS is not in 1..2^20";
    if (!in_range(params[ATTENTION_DEVICE_COUNT_INDEX], 0, 1)) return "COUNT_INDEX is not 0 or 1";
    if (params[ATTENTION_SCATTERED]) return "the rows belong to several sequences";
    if (!in_range(heads, 1, MOST_HEADS)) return "HEADS is not in 1..2^12";
    if (!in_range(kv_heads, 1, MOST_HEADS)) return "KV_HEADS is not in 1..2^12";
    if (heads % kv_heads) return "HEADS is not a multiple of KV_HEADS";
    if (!in_range(head_dim, 8, MOST_HEAD_DIM) || head_dim % 8) return "HEAD_DIM is not a multiple of 8 in 8..256";
    if (!in_range(page_tokens, 1, MOST_TOKENS) || (page_tokens & (page_tokens - 1)))
        return "PAGE_TOKENS is not a power of two in 1..2^30";
    if (!in_range(params[ATTENTION_DEVICE_PAGES_PER_SLOT], 1, MOST_TOKENS / page_tokens))
        return "PAGES_PER_SLOT is not positive or makes more than 2^30 tokens";
    if (!in_range(params[ATTENTION_DEVICE_SLOT_COUNT], 1, MOST_SLOTS)) return "SLOT_COUNT is not in 1..2^20";
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "X_DTYPE is not F16 or BF16";
    if (params[ATTENTION_DEVICE_KV_DTYPE] != dtype) return "KV_DTYPE is not X_DTYPE";
    if (!in_range(page_bytes, 1, most_page_bytes) || page_bytes % ALIGNMENT)
        return "PAGE_BYTES is not a multiple of 16 in 1..2^40";
    if (page_bytes < 4 * kv_heads * page_tokens * head_dim) return "PAGE_BYTES is less than K and V of a page";
    if (!in_range(params[ATTENTION_DEVICE_WINDOW], 0, INT32_MAX)) return "WINDOW is not in 0..2^31-1";
    if (!in_range(scale, 1, 0x7f7fffff)) return "SCALE_BITS are not of a finite float > 0"; /* FLT_MAX */
    return NULL;
}

bool attention_cudnn_has_window(const int64_t *params)
{
    const int64_t window = params[ATTENTION_DEVICE_WINDOW];
    return window && window < params[ATTENTION_DEVICE_PAGES_PER_SLOT] * params[ATTENTION_DEVICE_PAGE_TOKENS];
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
    const uint64_t pages = (uint64_t)ATTENTION_CUDNN_PADDED_PAGES(params[ATTENTION_DEVICE_PAGES_PER_SLOT],
                                                                  params[ATTENTION_DEVICE_PAGE_TOKENS]);
    const uint64_t rows = (uint64_t)(params[ATTENTION_DEVICE_ROWS] * params[ATTENTION_DEVICE_HEADS]) * sizeof(float);
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
    int64_t params[ATTENTION_DEVICE_FIRST_TUNABLE];
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
    const uint64_t workspace = operands[ATTENTION_CUDNN_WORKSPACE], keys = operands[ATTENTION_DEVICE_KV];
    const uint64_t values = keys + (uint64_t)(2 * params[ATTENTION_DEVICE_KV_HEADS] *
                                              params[ATTENTION_DEVICE_PAGE_TOKENS] * params[ATTENTION_DEVICE_HEAD_DIM]);
    const uint64_t device[] = {
        [ATTENTION_CUDNN_Q] = operands[ATTENTION_DEVICE_Q],
        [ATTENTION_CUDNN_K] = keys,
        [ATTENTION_CUDNN_V] = values,
        [ATTENTION_CUDNN_OUT] = operands[ATTENTION_DEVICE_OUT],
        [ATTENTION_CUDNN_ROW_COUNT] = workspace + ATTENTION_CUDNN_ROW_COUNT_AT,
        [ATTENTION_CUDNN_TOKEN_COUNT] = workspace + ATTENTION_CUDNN_TOKEN_COUNT_AT,
        [ATTENTION_CUDNN_K_PAGES] = workspace + ATTENTION_CUDNN_PAGES_AT,
        [ATTENTION_CUDNN_V_PAGES] = workspace + ATTENTION_CUDNN_PAGES_AT,
        [ATTENTION_CUDNN_MAXIMA] = workspace + parts.maxima,
        [ATTENTION_CUDNN_SUMS] = workspace + parts.sums,
    };
    uint32_t scale_bits = (uint32_t)params[ATTENTION_DEVICE_SCALE_BITS];
    int32_t window = (int32_t)params[ATTENTION_DEVICE_WINDOW];
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
