/* SPDX-License-Identifier: Apache-2.0 */
/* The body of xielu over the vectors of one instruction set. */
#ifndef KERNELS_XIELU_XIELU_VECTOR_H
#define KERNELS_XIELU_XIELU_VECTOR_H

#include <math.h>

#include "kernels/cpu/share.h"
#include "kernels/xielu/xielu.h"

op_run xielu_run_avx2;

/* What the four numbers stand for. */
struct xielu_numbers {
    float positive, negative, beta, eps;
};

static inline double xielu_softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

static inline struct xielu_numbers xielu_numbers(const void *numbers, enum dtype dtype)
{
    const float beta = op_element(numbers, 2, dtype);
    return (struct xielu_numbers){.positive = (float)xielu_softplus((double)op_element(numbers, 0, dtype)),
                                  .negative = beta + (float)xielu_softplus((double)op_element(numbers, 1, dtype)),
                                  .beta = beta,
                                  .eps = op_element(numbers, 3, dtype)};
}

/* exp(x) - 1 - x. Near 0 by its series, which does not cancel: the first term left out is below 2^-28 of the sum. */
static inline vec xielu_beyond_linear(vec x)
{
    const vec_int is_near = x > vec_set(-0.5f);
    vec p = vec_fma(x, vec_set(1.0f / 362880), vec_set(1.0f / 40320));
    p = vec_fma(p, x, vec_set(1.0f / 5040));
    p = vec_fma(p, x, vec_set(1.0f / 720));
    p = vec_fma(p, x, vec_set(1.0f / 120));
    p = vec_fma(p, x, vec_set(1.0f / 24));
    p = vec_fma(p, x, vec_set(1.0f / 6));
    p = vec_fma(p, x, vec_set(0.5f)) * x * x;
    const vec far = vec_exp(x) - vec_set(1.0f) - x;
    return (vec)(((vec_int)p & is_near) | ((vec_int)far & ~is_near));
}

static inline void xielu_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t width = call->params[XIELU_WIDTH];
    const struct share share = team_share_rows(member, op_valid_rows(call), width);
    const struct xielu_numbers by =
        xielu_numbers(call->operands[XIELU_NUMBERS], (enum dtype)call->params[XIELU_NUMBERS_DTYPE]);
    const vec positive = vec_set(by.positive), negative = vec_set(by.negative), beta = vec_set(by.beta);
    for (int64_t row = share.first; row < share.last; row++) {
        /* No restrict: out may be x. */
        const float *from = (const float *)call->operands[XIELU_X] + row * width;
        float *out = (float *)call->operands[XIELU_OUT] + row * width;
        for (int64_t i = 0; i < width; i += VEC_WIDTH) {
            const vec x = vec_load_dtype(from, i, width - i, DTYPE_F32), least = vec_min(vec_set(by.eps), x);
            const vec_int is_above = x > vec_set(0);
            const vec above = positive * x * x, below = (xielu_beyond_linear(least) + (least - x)) * negative;
            const vec bent = (vec)(((vec_int)above & is_above) | ((vec_int)below & ~is_above));
            vec_store_dtype(out, i, width - i, DTYPE_F32, vec_fma(beta, x, bent));
        }
    }
}

#endif
