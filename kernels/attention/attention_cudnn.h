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
#include "kernels/attention_cudnn_inputs/attention_cudnn_inputs.h"
#include "kernels/cuda/vendor/cudnn.h"

/* The library call's operands: those of enum attention_operand, then the workspace. COUNTS, SLOTS, POSITIONS and
 * PAGE_TABLE are not read. */
enum { ATTENTION_CUDNN_WORKSPACE = ATTENTION_DEVICE_OPERANDS, ATTENTION_CUDNN_OPERANDS };

/* The pool is sized when the engine is loaded, after the plan is made: cuDNN is told of a pool of this many pages,
 * which it uses as a bound only. The owner of the pool checks that it has no more, since cuDNN reads zeros after
 * them. */
enum { ATTENTION_CUDNN_MOST_PAGES = 1 << 20 };

/* Why params[0..ATTENTION_PARAMS) are illegal for cuDNN; NULL if they are legal: K, V and Q of one type,
 * F16 or BF16; HEAD_DIM a multiple of 8; PAGE_TOKENS a power of two; PAGE_BYTES a multiple of 16. Never trusts a
 * parameter. */
const char *attention_cudnn_illegal(const int64_t *params);

/* WINDOW has an effect: it is less than the tokens of a slot. */
bool attention_cudnn_has_window(const int64_t *params);

/* Parameters of the problem that a blob's header holds. Later parameters of the op have their defaults. */
enum { ATTENTION_CUDNN_PROBLEM_PARAMS = ATTENTION_SCATTERED };

/* Header of a blob, little-endian; the plan's bytes follow, up to the end. */
struct attention_cudnn_header {
    uint64_t magic;           /* ATTENTION_CUDNN_MAGIC */
    uint64_t cudnn_version;   /* as cudnnGetVersion */
    uint64_t workspace_bytes; /* cuDNN's own */
    uint64_t plan_bytes;
    int64_t params[ATTENTION_CUDNN_PROBLEM_PARAMS]; /* the problem it was made for */
};
_Static_assert(sizeof(struct attention_cudnn_header) == 136, "header of a cuDNN plan");
#define ATTENTION_CUDNN_MAGIC UINT64_C(0x31304e4e44554341) /* "ACUDNN01" */

/* Numbers that identify the tensors of a plan. */
enum attention_cudnn_tensor {
    ATTENTION_CUDNN_Q = 1,
    ATTENTION_CUDNN_K,
    ATTENTION_CUDNN_V,
    ATTENTION_CUDNN_OUT,
    ATTENTION_CUDNN_ROW_COUNT,
    ATTENTION_CUDNN_TOKEN_COUNT,
    ATTENTION_CUDNN_K_PAGES,
    ATTENTION_CUDNN_V_PAGES,
    ATTENTION_CUDNN_MAXIMA, /* float [HEADS, ROWS], of the scores of a row: written, never read */
    ATTENTION_CUDNN_SUMS,
    ATTENTION_CUDNN_SCALE,         /* float, by value, as all below */
    ATTENTION_CUDNN_PADDING_VALUE, /* float: value of a score outside of the lengths */
    ATTENTION_CUDNN_CAUSAL_VALUE,  /* float: one after the diagonal */
    ATTENTION_CUDNN_WINDOW_VALUE,  /* float: one before the window */
    ATTENTION_CUDNN_WINDOW_SIZE,   /* i32; the last two only with a window */
    ATTENTION_CUDNN_FIRST_VIRTUAL
};

/* Bytes of the workspace of a problem: inputs, and cuDNN's own `plan_bytes`. It begins at a multiple of
 * ATTENTION_CUDNN_ALIGNMENT. False: illegal params or too much. */
bool attention_cudnn_workspace(const int64_t *params, uint64_t plan_bytes, uint64_t *bytes);

/* Makes the plan of a blob. A wrong length, another problem than `params` or a plan that cuDNN refuses is
 * STATUS_CORRUPT; another version of cuDNN or another GPU is STATUS_MACHINE. cuDNN's parser ends the process on some
 * malformed plans. Requires: the checksum of the bytes has been verified; NVRTC is installed, although the plan
 * contains compiled code; the context is current, here and below; `cudnn` outlives the result. */
struct attention_cudnn *attention_cudnn_prepare(const struct cudnn *cudnn, const int64_t *params, const void *blob,
                                                size_t bytes, struct status *status);
/* Queues the call on `stream`, which may be capturing (relaxed). operands[ATTENTION_CUDNN_OPERANDS] are device
 * addresses; a capture includes them. Rows after the valid ones may be set to zero. */
bool attention_cudnn_execute(struct attention_cudnn *attention, const uint64_t *operands, void *stream,
                             struct status *status);
void attention_cudnn_free(struct attention_cudnn *attention); /* NULL: nothing */

#endif
