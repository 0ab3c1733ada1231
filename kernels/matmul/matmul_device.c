/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/matmul_device.h"

#include "formats/encoding/dtype.h"

static int count_before(const int64_t *params, int param)
{
    int count = MATMUL_DEVICE_OPERANDS;
    if (param > MATMUL_DEVICE_HAS_BIAS) count += params[MATMUL_DEVICE_HAS_BIAS] != 0;
    if (param > MATMUL_DEVICE_HAS_RESIDUAL) count += params[MATMUL_DEVICE_HAS_RESIDUAL] != 0;
    if (param > MATMUL_DEVICE_HAS_NORM) count += params[MATMUL_DEVICE_HAS_NORM] != 0;
    return count;
}

static int optional_operand(const int64_t *params, int param)
{
    return params[param] ? count_before(params, param) : -1;
}

int matmul_device_bias_operand(const int64_t *params) { return optional_operand(params, MATMUL_DEVICE_HAS_BIAS); }

int matmul_device_residual_operand(const int64_t *params)
{
    return optional_operand(params, MATMUL_DEVICE_HAS_RESIDUAL);
}

int matmul_device_norm_operand(const int64_t *params) { return optional_operand(params, MATMUL_DEVICE_HAS_NORM); }

int matmul_device_operand_count(const int64_t *params) { return count_before(params, MATMUL_DEVICE_FIRST_TUNABLE); }

static uint64_t element_bytes(int64_t dtype) { return dtype == DTYPE_F32 ? 4 : 2; }

uint64_t matmul_device_operand_bytes(const int64_t *params, int operand)
{
    const uint64_t rows = (uint64_t)params[MATMUL_DEVICE_ROWS], n = (uint64_t)params[MATMUL_DEVICE_N],
                   k = (uint64_t)params[MATMUL_DEVICE_K], weight = element_bytes(params[MATMUL_DEVICE_DTYPE]);
    const bool swiglu = params[MATMUL_DEVICE_EPILOGUE] == MATMUL_EPILOGUE_SWIGLU;
    if (operand == MATMUL_DEVICE_COUNTS) return 8;
    if (operand == MATMUL_DEVICE_X) return rows * k * (params[MATMUL_DEVICE_HAS_NORM] ? 4 : weight);
    if (operand == MATMUL_DEVICE_W) return n * k * weight;
    if (operand == MATMUL_DEVICE_OUT)
        return rows * (swiglu ? n / 2 : n) * element_bytes(params[MATMUL_DEVICE_OUT_DTYPE]);
    if (operand < 0) return 0;
    if (operand == matmul_device_bias_operand(params)) return n * element_bytes(params[MATMUL_DEVICE_BIAS_DTYPE]);
    if (operand == matmul_device_residual_operand(params)) return rows * n * 4;
    if (operand == matmul_device_norm_operand(params)) return k * element_bytes(params[MATMUL_DEVICE_NORM_DTYPE]);
    return 0;
}

static bool is_float(int64_t dtype) { return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static bool is_flag(int64_t value) { return value == 0 || value == 1; }

const char *matmul_device_illegal(const int64_t *params)
{
    const int64_t rows = params[MATMUL_DEVICE_ROWS], n = params[MATMUL_DEVICE_N], k = params[MATMUL_DEVICE_K];
    const int64_t dtype = params[MATMUL_DEVICE_DTYPE], epilogue = params[MATMUL_DEVICE_EPILOGUE];
    const int64_t eps = params[MATMUL_DEVICE_EPS_BITS];
    if (rows < 1 || rows > MATMUL_DEVICE_MOST_ROWS) return "ROWS is not in 1..2^20";
    if (!is_flag(params[MATMUL_DEVICE_COUNT_INDEX])) return "COUNT_INDEX is not 0 or 1";
    if (n < 1 || n > MATMUL_DEVICE_MOST_N) return "N is not in 1..2^24";
    if (k < 8 || k > MATMUL_DEVICE_MOST_K || k % 8) return "K is not a multiple of 8 in 8..2^24";
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "DTYPE is not F16 or BF16";
    if (!is_float(params[MATMUL_DEVICE_OUT_DTYPE])) return "OUT_DTYPE is not F32, F16 or BF16";
    if (epilogue != MATMUL_EPILOGUE_NONE && epilogue != MATMUL_EPILOGUE_SWIGLU) return "EPILOGUE is unknown";
    if (epilogue == MATMUL_EPILOGUE_SWIGLU && n % 16) return "N is not a multiple of 16 with SWIGLU";
    if (!is_flag(params[MATMUL_DEVICE_HAS_BIAS])) return "HAS_BIAS is not 0 or 1";
    if (!is_float(params[MATMUL_DEVICE_BIAS_DTYPE])) return "BIAS_DTYPE is not F32, F16 or BF16";
    if (!is_flag(params[MATMUL_DEVICE_HAS_RESIDUAL])) return "HAS_RESIDUAL is not 0 or 1";
    if (params[MATMUL_DEVICE_HAS_RESIDUAL] && epilogue != MATMUL_EPILOGUE_NONE) return "a residual with SWIGLU";
    if (params[MATMUL_DEVICE_HAS_RESIDUAL] && params[MATMUL_DEVICE_OUT_DTYPE] != DTYPE_F32)
        return "a residual with an OUT_DTYPE that is not F32";
    if (!is_flag(params[MATMUL_DEVICE_HAS_NORM])) return "HAS_NORM is not 0 or 1";
    if (!is_float(params[MATMUL_DEVICE_NORM_DTYPE])) return "NORM_DTYPE is not F32, F16 or BF16";
    if (eps < 0 || eps > 0x7f7fffff) return "EPS_BITS are not of a finite float >= 0"; /* FLT_MAX */
    return NULL;
}

void matmul_device_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    *bytes = 0;
    for (int i = 0; i < matmul_device_operand_count(params); i++) *bytes += matmul_device_operand_bytes(params, i);
    *flops = 2 * (uint64_t)params[MATMUL_DEVICE_ROWS] * (uint64_t)params[MATMUL_DEVICE_N] *
             (uint64_t)params[MATMUL_DEVICE_K];
}
