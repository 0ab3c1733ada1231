/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt, opened at run time only if an engine calls it or a builder measures it. As in driver.h, the declarations
 * repeat the library's binary interface (CUDA 12 and 13) with names of cublasLt.h; abi_test.c compares them with it if
 * there is one. */
#ifndef KERNELS_CUDA_VENDOR_CUBLASLT_H
#define KERNELS_CUDA_VENDOR_CUBLASLT_H

#include "kernels/cuda/device.h"

typedef struct lt_handle_opaque *lt_handle;
typedef struct lt_matmul_desc_opaque *lt_matmul_desc;
typedef struct lt_matrix_layout_opaque *lt_matrix_layout;
typedef struct lt_preference_opaque *lt_preference;

/* cublasLtMatmulAlgo_t: opaque; may be copied and stored. */
struct lt_algorithm {
    uint64_t opaque[8];
};
struct lt_heuristic_result { /* cublasLtMatmulHeuristicResult_t */
    struct lt_algorithm algorithm;
    size_t workspace_bytes;
    int state; /* cublasStatus_t */
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct lt_heuristic_result) == 96, "cublasLtMatmulHeuristicResult_t");

enum lt_value {
    LT_SUCCESS = 0,
    LT_R_32F = 0, /* cudaDataType_t */
    LT_R_16F = 2,
    LT_R_16BF = 14,
    LT_COMPUTE_32F = 68,
    LT_OP_N = 0,
    LT_OP_T = 1,
    LT_EPILOGUE_DEFAULT = 1,
    LT_EPILOGUE_BIAS = 4,
    LT_MATMUL_DESC_TRANSA = 3,
    LT_MATMUL_DESC_TRANSB = 4,
    LT_MATMUL_DESC_EPILOGUE = 7,
    LT_MATMUL_DESC_BIAS_POINTER = 8,
    LT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
    LT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    LT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    LT_REDUCTION_SCHEME_INPLACE = 1,
    LT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    LT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
    LT_ALGO_CAP_SPLITK_SUPPORT = 0,
    LT_ALGO_CAP_REDUCTION_SCHEME_MASK = 1,
    LT_ALGO_CAP_CTA_SWIZZLING_SUPPORT = 2,
    LT_ALGO_CAP_TILE_IDS = 6,
    LT_ALGO_CAP_CUSTOM_OPTION_MAX = 7,
    LT_ALGO_CAP_STAGES_IDS = 13,
    LT_ALGO_CONFIG_TILE_ID = 1,
    LT_ALGO_CONFIG_SPLITK_NUM = 2,
    LT_ALGO_CONFIG_REDUCTION_SCHEME = 3,
    LT_ALGO_CONFIG_CTA_SWIZZLING = 4,
    LT_ALGO_CONFIG_CUSTOM_OPTION = 5,
    LT_ALGO_CONFIG_STAGES_ID = 6,
    LT_ALGO_CONFIG_CLUSTER_SHAPE_ID = 8,
};

/* X(member, symbol, parameters): every function that is looked up; all return a cublasStatus_t. */
#define CUBLASLT_FUNCTIONS(X)                                                                                         \
    X(Create, cublasLtCreate, (lt_handle * handle))                                                                   \
    X(Destroy, cublasLtDestroy, (lt_handle handle))                                                                   \
    X(MatmulDescCreate, cublasLtMatmulDescCreate, (lt_matmul_desc * desc, int compute_type, int scale_type))          \
    X(MatmulDescDestroy, cublasLtMatmulDescDestroy, (lt_matmul_desc desc))                                            \
    X(MatmulDescSetAttribute, cublasLtMatmulDescSetAttribute,                                                         \
      (lt_matmul_desc desc, int attribute, const void *value, size_t bytes))                                          \
    X(MatrixLayoutCreate, cublasLtMatrixLayoutCreate,                                                                 \
      (lt_matrix_layout * layout, int type, uint64_t rows, uint64_t columns, int64_t leading))                        \
    X(MatrixLayoutDestroy, cublasLtMatrixLayoutDestroy, (lt_matrix_layout layout))                                    \
    X(Matmul, cublasLtMatmul,                                                                                         \
      (lt_handle handle, lt_matmul_desc desc, const void *alpha, const void *a, lt_matrix_layout a_layout,            \
       const void *b, lt_matrix_layout b_layout, const void *beta, const void *c, lt_matrix_layout c_layout, void *d, \
       lt_matrix_layout d_layout, const struct lt_algorithm *algorithm, void *workspace, size_t workspace_bytes,      \
       cu_stream stream))                                                                                             \
    X(MatmulAlgoCheck, cublasLtMatmulAlgoCheck,                                                                       \
      (lt_handle handle, lt_matmul_desc desc, lt_matrix_layout a, lt_matrix_layout b, lt_matrix_layout c,             \
       lt_matrix_layout d, const struct lt_algorithm *algorithm, struct lt_heuristic_result *result))                 \
    X(MatmulPreferenceCreate, cublasLtMatmulPreferenceCreate, (lt_preference * preference))                           \
    X(MatmulPreferenceDestroy, cublasLtMatmulPreferenceDestroy, (lt_preference preference))                           \
    X(MatmulPreferenceSetAttribute, cublasLtMatmulPreferenceSetAttribute,                                             \
      (lt_preference preference, int attribute, const void *value, size_t bytes))                                     \
    X(MatmulAlgoGetHeuristic, cublasLtMatmulAlgoGetHeuristic,                                                         \
      (lt_handle handle, lt_matmul_desc desc, lt_matrix_layout a, lt_matrix_layout b, lt_matrix_layout c,             \
       lt_matrix_layout d, lt_preference preference, int most, struct lt_heuristic_result *results, int *count))      \
    X(MatmulAlgoGetIds, cublasLtMatmulAlgoGetIds,                                                                     \
      (lt_handle handle, int compute_type, int scale_type, int a_type, int b_type, int c_type, int d_type, int most,  \
       int *ids, int *count))                                                                                         \
    X(MatmulAlgoInit, cublasLtMatmulAlgoInit,                                                                         \
      (lt_handle handle, int compute_type, int scale_type, int a_type, int b_type, int c_type, int d_type, int id,    \
       struct lt_algorithm *algorithm))                                                                               \
    X(MatmulAlgoCapGetAttribute, cublasLtMatmulAlgoCapGetAttribute,                                                   \
      (const struct lt_algorithm *algorithm, int attribute, void *value, size_t bytes, size_t *written))              \
    X(MatmulAlgoConfigSetAttribute, cublasLtMatmulAlgoConfigSetAttribute,                                             \
      (struct lt_algorithm * algorithm, int attribute, const void *value, size_t bytes))

struct cublaslt {
    void *library;    /* of dlopen; NULL: not open */
    uint32_t version; /* as cublasLtGetVersion: 130200 for 13.2.0 */
    lt_handle handle;
#define CUBLASLT_MEMBER(member, symbol, parameters) int(*member) parameters;
    CUBLASLT_FUNCTIONS(CUBLASLT_MEMBER)
#undef CUBLASLT_MEMBER
};

/* Opens libcublasLt.so.13 or .12 and creates a handle. STATUS_MACHINE, with expected, found and remedy, if the library
 * is missing, lacks a function or, unless `version` is 0, has another version. Requires: the device's context is
 * current. */
bool cublaslt_open(struct cublaslt *library, uint32_t version, struct status *status);
void cublaslt_close(struct cublaslt *library); /* does nothing on one that is all zero */

#endif
