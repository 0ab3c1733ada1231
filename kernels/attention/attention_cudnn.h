/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a chunk of a prompt by cuDNN: an alternative to attention_prefill for the same contract and operands
 * (attention_device.h; all valid rows belong to slots[0] and positions[r] = positions[0] + r), which the builder races
 * against it.
 *
 * It takes two launches. The kernel attention_cudnn_inputs writes lengths and the slot's pages into the workspace, and
 * the library call reads them there. cuDNN's execution plan is made by the builder (attention_cudnn_build.h), stored as
 * a blob: a header of ours and the plan as cuDNN serialises it, which no other version of cuDNN may read. */
#ifndef KERNELS_ATTENTION_ATTENTION_CUDNN_H
#define KERNELS_ATTENTION_ATTENTION_CUDNN_H

#include "kernels/attention/attention_device.h"
#include "kernels/cuda/vendor/cudnn.h"

/* The library call's operands: those of enum attention_device_operand, then the workspace. COUNTS, SLOTS, POSITIONS and
 * PAGE_TABLE are not read. */
enum { ATTENTION_CUDNN_WORKSPACE = ATTENTION_DEVICE_OPERANDS, ATTENTION_CUDNN_OPERANDS };

/* The pool is sized when the engine is loaded, the plan is made before: cuDNN is told of a pool of this many pages,
 * which it uses as a bound alone. Whoever has the pool checks that it has no more: cuDNN reads zeros behind. */
enum { ATTENTION_CUDNN_MOST_PAGES = 1 << 20 };

/* Why cuDNN cannot take params[0..ATTENTION_DEVICE_FIRST_TUNABLE), NULL if it may: K, V and Q of one type, F16 or BF16;
 * HEAD_DIM a multiple of 8; PAGE_TOKENS a power of two; PAGE_BYTES a multiple of 16. Never trusts a parameter. */
const char *attention_cudnn_illegal(const int64_t *params);

/* WINDOW hides something: it is less than what a slot holds. */
bool attention_cudnn_has_window(const int64_t *params);

/* A blob begins with this, little-endian; then the plan's bytes, nothing behind them. */
struct attention_cudnn_header {
    uint64_t magic;           /* ATTENTION_CUDNN_MAGIC */
    uint64_t cudnn_version;   /* as cudnnGetVersion */
    uint64_t workspace_bytes; /* cuDNN's own */
    uint64_t plan_bytes;
    int64_t params[ATTENTION_DEVICE_FIRST_TUNABLE]; /* the problem it was made for */
};
_Static_assert(sizeof(struct attention_cudnn_header) == 136, "header of a cuDNN plan");
#define ATTENTION_CUDNN_MAGIC UINT64_C(0x31304e4e44554341) /* "ACUDNN01" */

/* The numbers by which a plan knows its tensors. */
enum attention_cudnn_tensor {
    ATTENTION_CUDNN_Q = 1,
    ATTENTION_CUDNN_K,
    ATTENTION_CUDNN_V,
    ATTENTION_CUDNN_OUT,
    ATTENTION_CUDNN_ROW_COUNT,
    ATTENTION_CUDNN_TOKEN_COUNT,
    ATTENTION_CUDNN_K_PAGES,
    ATTENTION_CUDNN_V_PAGES,
    ATTENTION_CUDNN_MAXIMA, /* float [HEADS, ROWS], of the scores of a row: written, read by nobody */
    ATTENTION_CUDNN_SUMS,
    ATTENTION_CUDNN_SCALE,         /* float, by value, as all below */
    ATTENTION_CUDNN_PADDING_VALUE, /* float: what a score outside of the lengths becomes */
    ATTENTION_CUDNN_CAUSAL_VALUE,  /* float: one behind the diagonal */
    ATTENTION_CUDNN_WINDOW_VALUE,  /* float: one before the window */
    ATTENTION_CUDNN_WINDOW_SIZE,   /* i32; the last two only where there is a window */
    ATTENTION_CUDNN_FIRST_VIRTUAL
};

/* Bytes of the workspace of a problem: inputs, and cuDNN's own `plan_bytes`. It begins at a multiple of
 * ATTENTION_CUDNN_ALIGNMENT. False: illegal params or too much. */
bool attention_cudnn_workspace(const int64_t *params, uint64_t plan_bytes, uint64_t *bytes);

/* Makes the plan of a blob. A wrong length, another problem than `params` or a plan that cuDNN does not take is
 * STATUS_CORRUPT; another version of cuDNN or another GPU is STATUS_MACHINE. The plan itself cuDNN reads, whose parser
 * ends the process over some malformed ones: only bytes whose checksum has been verified may come here. cuDNN wants
 * NVRTC to be there, although the plan holds compiled code. The context is current, here and below; `cudnn` outlives
 * the result. */
struct attention_cudnn *attention_cudnn_prepare(const struct cudnn *cudnn, const int64_t *params, const void *blob,
                                                size_t bytes, struct status *status);
/* Queues the call on `stream`, which may be capturing (relaxed). operands[ATTENTION_CUDNN_OPERANDS] are device
 * addresses; they become part of what is captured. Rows behind the valid ones may be set to zero. */
bool attention_cudnn_execute(struct attention_cudnn *attention, const uint64_t *operands, void *stream,
                             struct status *status);
void attention_cudnn_free(struct attention_cudnn *attention); /* NULL: nothing */

/* attention_cudnn_inputs, the launch before the call. Besides filling the workspace it sets v of the tokens behind the
 * last valid one to zero, as far as the slot's last page goes: cuDNN multiplies them by zero, and in memory that was
 * never written, or belonged to somebody else, there may be NaN. Nothing reads them before they are written anew. */
enum attention_cudnn_inputs_operand {
    ATTENTION_CUDNN_INPUTS_COUNTS,
    ATTENTION_CUDNN_INPUTS_SLOTS,
    ATTENTION_CUDNN_INPUTS_POSITIONS,
    ATTENTION_CUDNN_INPUTS_PAGE_TABLE,
    ATTENTION_CUDNN_INPUTS_KV,        /* the layer's block in page 0 of the pool */
    ATTENTION_CUDNN_INPUTS_WORKSPACE, /* written as attention_cudnn_layout.cuh says */
    ATTENTION_CUDNN_INPUTS_OPERANDS
};
enum attention_cudnn_inputs_param {
    ATTENTION_CUDNN_INPUTS_ROWS,
    ATTENTION_CUDNN_INPUTS_COUNT_INDEX,
    ATTENTION_CUDNN_INPUTS_KV_HEADS,
    ATTENTION_CUDNN_INPUTS_HEAD_DIM,
    ATTENTION_CUDNN_INPUTS_PAGE_TOKENS,
    ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT,
    ATTENTION_CUDNN_INPUTS_PAGE_BYTES,
    ATTENTION_CUDNN_INPUTS_SLOT_COUNT,
    ATTENTION_CUDNN_INPUTS_PARAMS
};
/* The kernel's params[ATTENTION_CUDNN_INPUTS_PARAMS] for a problem of attention. */
void attention_cudnn_inputs_params(const int64_t *attention_params, int64_t *params);
extern const struct device_kernel device_attention_cudnn_inputs;

#endif
