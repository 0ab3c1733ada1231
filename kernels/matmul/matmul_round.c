/* SPDX-License-Identifier: Apache-2.0 */
/* What --compute rounds activations to, number by number: the definition that every instruction set follows. */
#include <math.h>
#include <string.h>

#include "kernels/matmul/matmul.h"

static void round_block(const float *x, int64_t count, float *out)
{
    uint32_t largest = 0;
    float scale;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t magnitude = float_to_bits(x[i]) & 0x7fffffff;
        if (magnitude > largest) largest = magnitude;
    }
    const float inverse = matmul_int8_scale(largest, &scale);
    /* Not finite: the codes do not matter. */
    for (int64_t i = 0; i < count; i++) out[i] = isnan(scale) ? scale : (float)lrintf(x[i] * inverse) * scale;
}

void matmul_round(const float *x, int64_t count, enum encoding_id compute, float *out)
{
    if (compute == ENCODING_INT8_G32)
        for (int64_t i = 0; i < count; i += MATMUL_INT8_BLOCK)
            round_block(x + i, count - i < MATMUL_INT8_BLOCK ? count - i : MATMUL_INT8_BLOCK, out + i);
    else if (compute == ENCODING_BF16)
        for (int64_t i = 0; i < count; i++) out[i] = bf16_to_float(bf16_from_float(x[i]));
    else
        memcpy(out, x, (size_t)count * sizeof *out);
}
