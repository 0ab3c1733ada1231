/* SPDX-License-Identifier: Apache-2.0 */
/* Activations on the host: names, and the oracle. */
#ifndef KERNELS_OP_ACTIVATION_H
#define KERNELS_OP_ACTIVATION_H

#include <math.h>
#include <stdint.h>

#include "kernels/op/activation.cuh"

/* Name of an epilogue; NULL: unknown number. */
static inline const char *epilogue_name(int64_t epilogue)
{
    static const char *const names[EPILOGUE_COUNT] = {
#define ACTIVATION_ROW(name, value, gated, plain) [value] = gated, [EPILOGUE_PLAIN + value] = plain,
        ACTIVATIONS(ACTIVATION_ROW)
#undef ACTIVATION_ROW
    };
    return epilogue >= 0 && epilogue < EPILOGUE_COUNT ? names[epilogue] : 0;
}

/* SOFTCAP: with cap 1. CLAMPED: of a gate that is clamped. */
static inline double activate_exactly(enum activation activation, double gate)
{
    switch (activation) {
    case ACTIVATION_SILU: return gate / (1 + exp(-gate));
    case ACTIVATION_GELU_TANH: /* (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), which does not cancel where u is far below 0 */
        return gate / (1 + exp(-2 * (GELU_TANH_LINEAR * gate + GELU_TANH_CUBIC * gate * gate * gate)));
    case ACTIVATION_GELU:
        return gate * erfc(-gate * 0.70710678118654752) / 2;  /* erfc does not cancel where gate is far below 0 */
    case ACTIVATION_RELU2: return gate < 0 ? 0 : gate * gate; /* NaN stays */
    case ACTIVATION_RELU: return gate < 0 ? 0 : gate;
    case ACTIVATION_SOFTCAP: return tanh(gate);
    case ACTIVATION_CLAMPED: return gate / (1 + exp(-CLAMPED_SLOPE * gate));
    default: return gate;
    }
}

/* With a gate; `cap`: the limit of CLAMPED. NaN stays. */
static inline double activate_gated(enum activation activation, float cap, double gate, double up)
{
    const double most = (double)cap;
    if (activation != ACTIVATION_CLAMPED) return activate_exactly(activation, gate) * up;
    return activate_exactly(activation, gate > most ? most : gate) * ((up > most ? most : up < -most ? -most : up) + 1);
}

/* Without a gate. */
static inline double activate_capped(enum activation activation, float cap, double value)
{
    return activation == ACTIVATION_SOFTCAP ? (double)cap * tanh(value / (double)cap)
                                            : activate_exactly(activation, value);
}

#endif
