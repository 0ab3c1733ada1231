/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt for the fake driver (fake_cuda.h): takes every problem with a few algorithms of its own, and queues one kernel
 * `fake_cublaslt` for each product, which computes what a test registered, else nothing. A library libcublasLt.so.13 in a
 * folder of its own.
 *
 *   FAKE_CUBLASLT_VERSION=N  default 130100
 *   FAKE_CUBLASLT_FAIL=1     cublasLtMatmul fails
 *   FAKE_CUBLASLT_REFUSE=1   cublasLtMatmulAlgoCheck refuses every algorithm */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/vendor/cublaslt.h"
#include "tests/fake_cuda/library.h"

#define EXPORTED                                 __attribute__((visibility("default")))
#define FAKE_DECLARE(member, symbol, parameters) EXPORTED int symbol parameters;
CUBLASLT_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
EXPORTED size_t cublasLtGetVersion(void);

enum {
    INVALID_VALUE = 7,
    NOT_SUPPORTED = 15,
    EXECUTION_FAILED = 13,
    ALGORITHMS = 2,
    TILES = 3,
    WORKSPACE = 4096,
};
static const uint64_t magic = UINT64_C(0x746c2d6c656e7973); /* first word of every algorithm */

struct lt_handle_opaque {
    struct fake_library library;
};

size_t cublasLtGetVersion(void)
{
    const char *text = getenv("FAKE_CUBLASLT_VERSION");
    return text ? strtoull(text, NULL, 10) : 130100;
}

int cublasLtCreate(lt_handle *handle)
{
    static const char cubin[] = "FAKE CUBIN 90\nkernel fake_cublaslt 8 8 8 8\nend\n";
    struct lt_handle_opaque *made = calloc(1, sizeof *made);
    if (!made || !fake_library_open(&made->library, cubin, "fake_cublaslt")) {
        free(made);
        return EXECUTION_FAILED;
    }
    *handle = made;
    return LT_SUCCESS;
}

int cublasLtDestroy(lt_handle handle)
{
    fake_library_close(&handle->library);
    free(handle);
    return LT_SUCCESS;
}

/* Descriptors: nothing is looked at but that they are there. */
static int make(void *made)
{
    void *object = calloc(1, 8);
    memcpy(made, &object, sizeof object);
    return object ? LT_SUCCESS : EXECUTION_FAILED;
}
static int unmake(void *object)
{
    free(object);
    return LT_SUCCESS;
}
int cublasLtMatmulDescCreate(lt_matmul_desc *desc, int compute_type, int scale_type)
{
    return compute_type == LT_COMPUTE_32F && scale_type == LT_R_32F ? make(desc) : NOT_SUPPORTED;
}
int cublasLtMatmulDescDestroy(lt_matmul_desc desc) { return unmake(desc); }
int cublasLtMatmulDescSetAttribute(lt_matmul_desc desc, int attribute, const void *value, size_t bytes)
{
    (void)attribute;
    return desc && value && bytes ? LT_SUCCESS : INVALID_VALUE;
}
int cublasLtMatrixLayoutCreate(lt_matrix_layout *layout, int type, uint64_t rows, uint64_t columns, int64_t leading)
{
    (void)type;
    return rows && columns && leading >= (int64_t)rows ? make(layout) : INVALID_VALUE;
}
int cublasLtMatrixLayoutDestroy(lt_matrix_layout layout) { return unmake(layout); }
int cublasLtMatmulPreferenceCreate(lt_preference *preference) { return make(preference); }
int cublasLtMatmulPreferenceDestroy(lt_preference preference) { return unmake(preference); }
int cublasLtMatmulPreferenceSetAttribute(lt_preference preference, int attribute, const void *value, size_t bytes)
{
    (void)attribute;
    return preference && value && bytes ? LT_SUCCESS : INVALID_VALUE;
}

/* An algorithm: the magic word, its number, its tile, its split. */
int cublasLtMatmulAlgoGetIds(lt_handle handle, int compute_type, int scale_type, int a_type, int b_type, int c_type,
                             int d_type, int most, int *ids, int *count)
{
    (void)handle, (void)compute_type, (void)scale_type, (void)a_type, (void)b_type, (void)c_type, (void)d_type;
    for (*count = 0; *count < ALGORITHMS && *count < most; ++*count) ids[*count] = *count + 1;
    return LT_SUCCESS;
}
int cublasLtMatmulAlgoInit(lt_handle handle, int compute_type, int scale_type, int a_type, int b_type, int c_type,
                           int d_type, int id, struct lt_algorithm *algorithm)
{
    (void)handle, (void)compute_type, (void)scale_type, (void)a_type, (void)b_type, (void)c_type, (void)d_type;
    *algorithm = (struct lt_algorithm){{magic, (uint64_t)id}};
    return LT_SUCCESS;
}
int cublasLtMatmulAlgoCapGetAttribute(const struct lt_algorithm *algorithm, int attribute, void *value, size_t bytes,
                                      size_t *written)
{
    static const uint32_t tiles[TILES] = {10, 11, 12};
    const uint32_t split = 1;
    if (algorithm->opaque[0] != magic) return INVALID_VALUE;
    if (attribute == LT_ALGO_CAP_TILE_IDS && bytes >= sizeof tiles) {
        memcpy(value, tiles, sizeof tiles);
        *written = sizeof tiles;
    } else if (attribute == LT_ALGO_CAP_SPLITK_SUPPORT && bytes >= sizeof split) {
        memcpy(value, &split, sizeof split);
        *written = sizeof split;
    } else {
        return NOT_SUPPORTED;
    }
    return LT_SUCCESS;
}
int cublasLtMatmulAlgoConfigSetAttribute(struct lt_algorithm *algorithm, int attribute, const void *value, size_t bytes)
{
    uint32_t number = 0;
    memcpy(&number, value, bytes < sizeof number ? bytes : sizeof number);
    if (attribute == LT_ALGO_CONFIG_TILE_ID) algorithm->opaque[2] = number;
    if (attribute == LT_ALGO_CONFIG_SPLITK_NUM) algorithm->opaque[3] = number;
    return LT_SUCCESS;
}
int cublasLtMatmulAlgoCheck(lt_handle handle, lt_matmul_desc desc, lt_matrix_layout a, lt_matrix_layout b,
                            lt_matrix_layout c, lt_matrix_layout d, const struct lt_algorithm *algorithm,
                            struct lt_heuristic_result *result)
{
    if (!handle || !desc || !a || !b || !c || !d) return INVALID_VALUE;
    if (algorithm->opaque[0] != magic || getenv("FAKE_CUBLASLT_REFUSE")) return NOT_SUPPORTED;
    *result = (struct lt_heuristic_result){.algorithm = *algorithm, .workspace_bytes = WORKSPACE, .waves = 1};
    return LT_SUCCESS;
}
int cublasLtMatmulAlgoGetHeuristic(lt_handle handle, lt_matmul_desc desc, lt_matrix_layout a, lt_matrix_layout b,
                                   lt_matrix_layout c, lt_matrix_layout d, lt_preference preference, int most,
                                   struct lt_heuristic_result *results, int *count)
{
    if (!preference) return INVALID_VALUE;
    for (*count = 0; *count < ALGORITHMS && *count < most; ++*count) {
        const struct lt_algorithm algorithm = {{magic, (uint64_t)*count + 1, 10, 1}};
        int checked = cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, &algorithm, &results[*count]);
        if (checked != LT_SUCCESS) return checked;
    }
    return LT_SUCCESS;
}

int cublasLtMatmul(lt_handle handle, lt_matmul_desc desc, const void *alpha, const void *a, lt_matrix_layout a_layout,
                   const void *b, lt_matrix_layout b_layout, const void *beta, const void *c, lt_matrix_layout c_layout,
                   void *d, lt_matrix_layout d_layout, const struct lt_algorithm *algorithm, void *workspace,
                   size_t workspace_bytes, cu_stream stream)
{
    void *arguments[] = {&a, &b, &d, &workspace};
    if (!handle || !desc || !alpha || !beta || !a || !b || !c || !d || !a_layout || !b_layout || !c_layout ||
        !d_layout || algorithm->opaque[0] != magic || !workspace || workspace_bytes < WORKSPACE)
        return INVALID_VALUE;
    if (getenv("FAKE_CUBLASLT_FAIL")) return EXECUTION_FAILED;
    return fake_library_launch(&handle->library, arguments, stream) ? LT_SUCCESS : EXECUTION_FAILED;
}
