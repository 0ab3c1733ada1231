/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/matmul_cublaslt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = matmul_device_illegal(params);
    if (why) return why;
    /* Codes of e4m3 neither: it wants their rows one after the other (tests/bench/RESULTS.md says what that would gain). */
    if (matmul_is_coded(params)) return "cuBLASLt knows no coded weights";
    if (params[MATMUL_HAS_NORM]) return "cuBLASLt normalises no rows";
    if (matmul_matrices(params)) return "cuBLASLt has no experts or blocks here";
    if (params[MATMUL_EPILOGUE] != ACTIVATION_NONE) return "cuBLASLt has no activations in its epilogue here";
    if (params[MATMUL_HAS_BIAS] && params[MATMUL_SCALE_BITS] != OP_FLOAT_ONE_BITS)
        return "cuBLASLt adds a bias after the scale";
    if (params[MATMUL_CUBLASLT_WORKSPACE] < 0 || params[MATMUL_CUBLASLT_WORKSPACE] > MATMUL_CUBLASLT_MOST_WORKSPACE)
        return "WORKSPACE is not in 0..2^25";
    *geometry = (struct device_geometry){{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0};
    return NULL;
}

static bool make_call(const int64_t *params, const void *blob, size_t blob_bytes, struct engine_call *call)
{
    (void)blob, (void)blob_bytes;
    struct matmul_cublaslt_data *data = malloc(sizeof *data);
    if (!data) return false;
    data->workspace_bytes = (uint64_t)params[MATMUL_CUBLASLT_WORKSPACE];
    memcpy(&data->algorithm, params + MATMUL_CUBLASLT_ALGORITHM, sizeof data->algorithm);
    call->version = (uint32_t)params[MATMUL_CUBLASLT_VERSION];
    call->data = data;
    call->bytes = sizeof *data;
    return true;
}

const struct device_kernel device_matmul_cublaslt = {
    .name = "cublaslt",
    .op = OP_MATMUL,
    .library = LIBRARY_CUBLASLT,
    .problem = &op_matmul,
    DEVICE_OWN_NAMES(MATMUL_CUBLASLT_PARAMS - MATMUL_FIRST_TUNABLE, "VERSION", "WORKSPACE", "ALGORITHM0", "ALGORITHM1",
                     "ALGORITHM2", "ALGORITHM3", "ALGORITHM4", "ALGORITHM5", "ALGORITHM6", "ALGORITHM7"),
    .launch = launch,
    .cost = matmul_device_cost,
    .call = make_call,
};

static int data_type(int64_t dtype)
{
    return dtype == DTYPE_F32 ? LT_R_32F : dtype == DTYPE_F16 ? LT_R_16F : LT_R_16BF;
}

static bool lt_ok(int result, struct status *status, const char *what)
{
    return result == LT_SUCCESS ||
           status_fail(status, STATUS_MACHINE, "cuBLASLt: %s failed with status %d", what, result);
}

static bool set_desc(const struct cublaslt *library, lt_matmul_desc desc, int attribute, int value,
                     struct status *status)
{
    return lt_ok(library->MatmulDescSetAttribute(desc, attribute, &value, sizeof value), status,
                 "cublasLtMatmulDescSetAttribute");
}

bool matmul_cublaslt_describe(struct matmul_cublaslt_problem *problem, const struct cublaslt *library,
                              const int64_t *params, struct status *status)
{
    const uint64_t rows = (uint64_t)params[MATMUL_ROWS];
    const uint64_t n = (uint64_t)params[MATMUL_N], k = (uint64_t)params[MATMUL_K];
    memset(problem, 0, sizeof *problem);
    problem->type = data_type(params[MATMUL_DTYPE]);
    problem->out_type = data_type(params[MATMUL_OUT_DTYPE]);
    bool bias = params[MATMUL_HAS_BIAS];
    bool ok = lt_ok(library->MatmulDescCreate(&problem->desc, LT_COMPUTE_32F, LT_R_32F), status,
                    "cublasLtMatmulDescCreate") &&
              set_desc(library, problem->desc, LT_MATMUL_DESC_TRANSA, LT_OP_T, status) &&
              set_desc(library, problem->desc, LT_MATMUL_DESC_TRANSB, LT_OP_N, status) &&
              set_desc(library, problem->desc, LT_MATMUL_DESC_EPILOGUE, bias ? LT_EPILOGUE_BIAS : LT_EPILOGUE_DEFAULT,
                       status) &&
              (!bias || set_desc(library, problem->desc, LT_MATMUL_DESC_BIAS_DATA_TYPE,
                                 data_type(params[MATMUL_BIAS_DTYPE]), status)) &&
              lt_ok(library->MatrixLayoutCreate(&problem->w, problem->type, k, n, (int64_t)k), status,
                    "cublasLtMatrixLayoutCreate") &&
              lt_ok(library->MatrixLayoutCreate(&problem->x, problem->type, k, rows, (int64_t)k), status,
                    "cublasLtMatrixLayoutCreate") &&
              lt_ok(library->MatrixLayoutCreate(&problem->out, problem->out_type, n, rows, (int64_t)n), status,
                    "cublasLtMatrixLayoutCreate");
    if (!ok) matmul_cublaslt_release(problem, library);
    return ok;
}

void matmul_cublaslt_release(struct matmul_cublaslt_problem *problem, const struct cublaslt *library)
{
    if (problem->desc) library->MatmulDescDestroy(problem->desc);
    if (problem->w) library->MatrixLayoutDestroy(problem->w);
    if (problem->x) library->MatrixLayoutDestroy(problem->x);
    if (problem->out) library->MatrixLayoutDestroy(problem->out);
    memset(problem, 0, sizeof *problem);
}

uint64_t matmul_cublaslt_workspace(const struct engine_call *call)
{
    struct matmul_cublaslt_data data;
    if (call->bytes != sizeof data) return UINT64_MAX;
    memcpy(&data, call->data, sizeof data);
    return data.workspace_bytes;
}

static bool read_data(const int64_t *params, const struct engine_call *call, struct matmul_cublaslt_data *data,
                      struct status *status)
{
    struct device_geometry geometry;
    int64_t checked[PLAN_MAX_PARAMS] = {0};
    if (call->bytes != sizeof *data)
        return status_fail(status, STATUS_CORRUPT, "cuBLASLt call: expected %zu bytes, found %" PRIu64, sizeof *data,
                           call->bytes);
    memcpy(data, call->data, sizeof *data);
    memcpy(checked, params, MATMUL_FIRST_TUNABLE * sizeof *params);
    checked[MATMUL_CUBLASLT_WORKSPACE] = data->workspace_bytes > INT64_MAX ? -1 : (int64_t)data->workspace_bytes;
    const char *why = launch(checked, NULL, &geometry);
    return !why || status_fail(status, STATUS_CORRUPT, "cuBLASLt call: %s", why);
}

bool matmul_cublaslt_check(const struct cublaslt *library, const int64_t *params, const struct engine_call *call,
                           struct status *status)
{
    struct matmul_cublaslt_data data;
    struct matmul_cublaslt_problem problem;
    struct lt_heuristic_result result;
    if (!read_data(params, call, &data, status) || !matmul_cublaslt_describe(&problem, library, params, status))
        return false;
    memset(&result, 0, sizeof result);
    int checked = library->MatmulAlgoCheck(library->handle, problem.desc, problem.w, problem.x, problem.out,
                                           problem.out, &data.algorithm, &result);
    matmul_cublaslt_release(&problem, library);
    if (checked != LT_SUCCESS)
        return status_fail(status, STATUS_MACHINE, "cuBLASLt %" PRIu32 " refuses the recorded algorithm with status %d",
                           library->version, checked);
    if (result.workspace_bytes > data.workspace_bytes)
        return status_fail(status, STATUS_MACHINE,
                           "cuBLASLt %" PRIu32 ": expected an algorithm with %" PRIu64
                           " bytes of workspace, found one with %zu",
                           library->version, data.workspace_bytes, result.workspace_bytes);
    return true;
}

static const void *device_pointer(cu_deviceptr address) { return (const void *)(uintptr_t)address; }

bool matmul_cublaslt_run(const struct cublaslt *library, const int64_t *params, const struct engine_call *call,
                         const cu_deviceptr *operands, cu_stream stream, struct status *status)
{
    static const float one = 1, zero = 0;
    const float scale = op_float_param(params, MATMUL_SCALE_BITS);
    struct matmul_cublaslt_data data;
    struct matmul_cublaslt_problem problem;
    if (!read_data(params, call, &data, status) || !matmul_cublaslt_describe(&problem, library, params, status))
        return false;
    int bias = matmul_device_operand(params, MATMUL_BIAS), residual = matmul_device_operand(params, MATMUL_RESIDUAL);
    int workspace = matmul_device_operand_count(params);
    const void *bias_pointer = bias >= 0 ? device_pointer(operands[bias]) : NULL;
    cu_deviceptr out = operands[MATMUL_OUT], c = residual >= 0 ? operands[residual] : out;
    bool ok =
        (bias < 0 || lt_ok(library->MatmulDescSetAttribute(problem.desc, LT_MATMUL_DESC_BIAS_POINTER, &bias_pointer,
                                                           sizeof bias_pointer),
                           status, "cublasLtMatmulDescSetAttribute")) &&
        lt_ok(library->Matmul(library->handle, problem.desc, &scale, device_pointer(operands[MATMUL_W]), problem.w,
                              device_pointer(operands[MATMUL_X]), problem.x, residual >= 0 ? &one : &zero,
                              device_pointer(c), problem.out, (void *)(uintptr_t)out, problem.out, &data.algorithm,
                              (void *)(uintptr_t)operands[workspace], data.workspace_bytes, stream),
              status, "cublasLtMatmul");
    matmul_cublaslt_release(&problem, library);
    return ok;
}
