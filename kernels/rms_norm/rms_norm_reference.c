/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/op/op.h"
#include "kernels/rms_norm/rms_norm.h"

void rms_norm_reference(const struct op_call *call)
{
    int64_t width = call->params[RMS_NORM_HIDDEN], rows = op_valid_rows(call), parts = call->params[RMS_NORM_PARTS];
    enum dtype dtype = (enum dtype)call->params[RMS_NORM_WEIGHT_DTYPE];
    const void *bias = call->operands[RMS_NORM_BIAS];
    const enum dtype bias_dtype = (enum dtype)call->params[RMS_NORM_BIAS_DTYPE];
    double eps = (double)op_float_param(call->params, RMS_NORM_EPS_BITS);
    bool has_residual = call->params[RMS_NORM_HAS_RESIDUAL] != 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = (const float *)call->operands[RMS_NORM_X] + r * parts * width;
        float *out = (float *)call->operands[RMS_NORM_OUT] + r * width;
        if (has_residual) {
            const float *residual = (const float *)call->operands[RMS_NORM_RESIDUAL] + r * width;
            float *sum = (float *)call->operands[RMS_NORM_SUM] + r * width;
            for (int64_t i = 0; i < width; i++) {
                float all = residual[i];
                for (int64_t part = 0; part < parts; part++) all += x[part * width + i];
                sum[i] = all;
            }
            x = sum;
        }
        const float *add_to = NULL;
        if (call->params[RMS_NORM_HAS_ADD_TO]) add_to = (const float *)call->operands[RMS_NORM_ADD_TO] + r * width;
        double mean = 0, squares = 0;
        for (int64_t i = 0; i < width && call->params[RMS_NORM_CENTRED]; i++) mean += (double)x[i] / (double)width;
        for (int64_t i = 0; i < width; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
        double scale = 1.0 / sqrt(squares / (double)width + eps);
        for (int64_t i = 0; i < width; i++) {
            const double factor = call->params[RMS_NORM_HAS_FACTOR]
                                      ? (double)op_element(call->operands[RMS_NORM_FACTOR], i,
                                                           (enum dtype)call->params[RMS_NORM_FACTOR_DTYPE])
                                      : 1;
            out[i] =
                (float)(factor *
                        (((double)x[i] - mean) * scale * (double)op_element(call->operands[RMS_NORM_WEIGHT], i, dtype) +
                         (call->params[RMS_NORM_HAS_BIAS] ? (double)op_element(bias, i, bias_dtype) : 0.0) +
                         (add_to ? (double)add_to[i] : 0.0)));
        }
    }
}
