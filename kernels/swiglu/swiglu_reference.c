/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/swiglu/swiglu.h"

void swiglu_reference(const struct op_call *call)
{
    const float *gate = call->operands[SWIGLU_GATE], *up = call->operands[SWIGLU_UP];
    float *out = call->operands[SWIGLU_OUT];
    int64_t elements = op_valid_rows(call) * call->params[SWIGLU_WIDTH];
    for (int64_t i = 0; i < elements; i++) {
        double g = gate[i];
        out[i] = (float)(g / (1.0 + exp(-g)) * up[i]);
    }
}
