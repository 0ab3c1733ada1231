/* SPDX-License-Identifier: Apache-2.0 */
/* Activations on the host: names, and the oracle. */
#ifndef KERNELS_OP_ACTIVATION_H
#define KERNELS_OP_ACTIVATION_H

#include <math.h>
#include <stdint.h>

#include "kernels/op/activation.cuh"

/* Name of the gated product with this activation; NULL: unknown number. */
static inline const char *activation_name(int64_t activation)
{
    static const char *const names[ACTIVATION_COUNT] = {
#define ACTIVATION_ROW(name, value, text) [value] = text,
        ACTIVATIONS(ACTIVATION_ROW)
#undef ACTIVATION_ROW
    };
    return activation >= 0 && activation < ACTIVATION_COUNT ? names[activation] : 0;
}

static inline double activate_exactly(enum activation activation, double gate)
{
    switch (activation) {
    case ACTIVATION_SILU: return gate / (1 + exp(-gate));
    case ACTIVATION_GELU_TANH: /* (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), which does not cancel where u is far below 0 */
        return gate / (1 + exp(-2 * (GELU_TANH_LINEAR * gate + GELU_TANH_CUBIC * gate * gate * gate)));
    default: return gate;
    }
}

#endif
