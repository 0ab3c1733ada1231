/* SPDX-License-Identifier: Apache-2.0 */
/* matmul by cuBLASLt: the contract of matmul_device.h without NORM and without a gated epilogue, which a launch of
 * swiglu after it applies (tuner/cuda/library_launches.c). All ROWS rows are computed, whatever the counts say: rows beyond the valid
 * ones are never read. The workspace follows the contract's operands.
 *
 * Weights are the transposed A of a column-major product: D[N, ROWS] = W[N, K] * X[K, ROWS] (+ bias over N) (+ C), C the
 * residual. The scale is alpha; cuBLASLt adds a bias after it. Sums are float32, in the order that the algorithm fixes. */
#ifndef KERNELS_MATMUL_MATMUL_CUBLASLT_H
#define KERNELS_MATMUL_MATMUL_CUBLASLT_H

#include "formats/engine/engine_file.h"
#include "kernels/cuda/vendor/cublaslt.h"
#include "kernels/matmul/matmul_device.h"

/* What an engine stores of a call: the algorithm as cuBLASLt gave it. As tunables of a tactic: the same, in this order. */
enum matmul_cublaslt_param {
    MATMUL_CUBLASLT_VERSION = MATMUL_FIRST_TUNABLE, /* of the library */
    MATMUL_CUBLASLT_WORKSPACE,                      /* bytes, at most MATMUL_CUBLASLT_MOST_WORKSPACE */
    MATMUL_CUBLASLT_ALGORITHM,                      /* 8 words */
    MATMUL_CUBLASLT_PARAMS = MATMUL_CUBLASLT_ALGORITHM + 8
};
enum { MATMUL_CUBLASLT_MOST_WORKSPACE = 32 << 20 };
struct matmul_cublaslt_data {
    uint64_t workspace_bytes;
    struct lt_algorithm algorithm;
};
_Static_assert(sizeof(struct matmul_cublaslt_data) == 72, "encoding");

/* Not in the registry: not code of ours, and raced where the library is. */
extern const struct device_kernel device_matmul_cublaslt;

/* Bytes of workspace that the call's data state; UINT64_MAX if they are no such data. */
uint64_t matmul_cublaslt_workspace(const struct engine_call *call);
/* Checks the call against the library at hand: data of the right size, and an algorithm that it takes for this problem
 * within the stated workspace. The device's context must be current; likewise below. */
bool matmul_cublaslt_check(const struct cublaslt *library, const int64_t *params, const struct engine_call *call,
                           struct status *status);
/* Queues it on the stream, which may be capturing. operands: as the contract's, then the workspace. */
bool matmul_cublaslt_run(const struct cublaslt *library, const int64_t *params, const struct engine_call *call,
                         const cu_deviceptr *operands, cu_stream stream, struct status *status);

/* Builder: tactics for the problem in params, the library's own favourites first, then its whole space of algorithms,
 * tiles, stages, splits, reductions, swizzles, custom options and cluster shapes, as far as it takes them, evenly thinned
 * to `capacity`. Always in the same order for the same library and GPU. Returns how many. */
int matmul_cublaslt_tactics(const struct cublaslt *library, const int64_t *params,
                            int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);

/* The descriptors of a problem. Shared by the files of this tactic. */
struct matmul_cublaslt_problem {
    lt_matmul_desc desc;
    lt_matrix_layout w, x, out; /* out is C, too */
    int type, out_type;         /* cudaDataType_t */
};
bool matmul_cublaslt_describe(struct matmul_cublaslt_problem *problem, const struct cublaslt *library,
                              const int64_t *params, struct status *status);
void matmul_cublaslt_release(struct matmul_cublaslt_problem *problem, const struct cublaslt *library);

#endif
