/* SPDX-License-Identifier: Apache-2.0 */
/* Compares cublaslt.h with the toolkit's cublasLt.h, as abi_test.c compares driver.h with cuda.h: all of it at compile
 * time. */
#include <stdio.h>

#include "formats/base/test_program.h"

#include "kernels/cuda/vendor/cublaslt.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
#define SAME_SIZE(ours, theirs)  _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_MEMBER(ours, theirs)                                                                                   \
    _Static_assert(offsetof(struct lt_heuristic_result, ours) == offsetof(cublasLtMatmulHeuristicResult_t, theirs), \
                   #ours)

SAME_VALUE(LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME_VALUE(LT_R_32F, CUDA_R_32F);
SAME_VALUE(LT_R_16F, CUDA_R_16F);
SAME_VALUE(LT_R_16BF, CUDA_R_16BF);
SAME_VALUE(LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME_VALUE(LT_OP_N, CUBLAS_OP_N);
SAME_VALUE(LT_OP_T, CUBLAS_OP_T);
SAME_VALUE(LT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME_VALUE(LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME_VALUE(LT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME_VALUE(LT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME_VALUE(LT_MATMUL_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME_VALUE(LT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME_VALUE(LT_MATMUL_DESC_BIAS_DATA_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME_VALUE(LT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME_VALUE(LT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME_VALUE(LT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_INPLACE);
SAME_VALUE(LT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME_VALUE(LT_REDUCTION_SCHEME_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
SAME_VALUE(LT_ALGO_CAP_SPLITK_SUPPORT, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT);
SAME_VALUE(LT_ALGO_CAP_REDUCTION_SCHEME_MASK, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK);
SAME_VALUE(LT_ALGO_CAP_CTA_SWIZZLING_SUPPORT, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT);
SAME_VALUE(LT_ALGO_CAP_TILE_IDS, CUBLASLT_ALGO_CAP_TILE_IDS);
SAME_VALUE(LT_ALGO_CAP_CUSTOM_OPTION_MAX, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX);
SAME_VALUE(LT_ALGO_CAP_STAGES_IDS, CUBLASLT_ALGO_CAP_STAGES_IDS);
SAME_VALUE(LT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_TILE_ID);
SAME_VALUE(LT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
SAME_VALUE(LT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
SAME_VALUE(LT_ALGO_CONFIG_CTA_SWIZZLING, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
SAME_VALUE(LT_ALGO_CONFIG_CUSTOM_OPTION, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
SAME_VALUE(LT_ALGO_CONFIG_STAGES_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID);
SAME_VALUE(LT_ALGO_CONFIG_CLUSTER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);

SAME_SIZE(struct lt_algorithm, cublasLtMatmulAlgo_t);
SAME_SIZE(struct lt_heuristic_result, cublasLtMatmulHeuristicResult_t);
SAME_MEMBER(algorithm, algo);
SAME_MEMBER(workspace_bytes, workspaceSize);
SAME_MEMBER(state, state);
SAME_MEMBER(waves, wavesCount);

/* Parameter lists with our types replaced; enums of the library are int here. */
#define IS(symbol, result, ...) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), result(__VA_ARGS__)), #symbol)
IS(cublasLtGetVersion, size_t, void);
IS(cublasLtMatmul, cublasStatus_t, cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
   cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t,
   void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t);
IS(cublasLtMatmulAlgoCheck, cublasStatus_t, cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
   cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *,
   cublasLtMatmulHeuristicResult_t *);
IS(cublasLtMatrixLayoutCreate, cublasStatus_t, cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t);

static const bool compared = true;
#else
static const bool compared = false;
#endif

TEST(declarations_agree)
{
    if (compared) return;
    fprintf(stderr, "skipped: no cublasLt.h to compare cublaslt.h with\n");
    skip();
}

int main(void) { return test_run(); }
