/* SPDX-License-Identifier: Apache-2.0 */
/* Activations of gated products, act(gate) * up: one list for host and device code. A row is X(name, value in engine files,
 * never reused, name of the gated product). Its code: a case of activate_exactly (activation.h), of
 * activate (kernels/cuda/include/activation.cuh) and of vec_activate (kernels/matmul/matmul_kernels.h). */
#ifndef KERNELS_OP_ACTIVATION_CUH
#define KERNELS_OP_ACTIVATION_CUH

#define ACTIVATIONS(X)                                                               \
    X(NONE, 0, "none")       /* no gate */                                           \
    X(SILU, 1, "swiglu")     /* g / (1 + exp(-g)). Shazeer 2020, arXiv:2002.05202 */ \
    X(GELU_TANH, 2, "geglu") /* g / 2 * (1 + tanh(h)), h below */

enum activation {
#define ACTIVATION_ROW(name, value, text) ACTIVATION_##name = value,
    ACTIVATIONS(ACTIVATION_ROW)
#undef ACTIVATION_ROW
        ACTIVATION_COUNT
};

/* h = GELU_TANH_LINEAR * g + GELU_TANH_CUBIC * g^3, with sqrt(2 / pi) as the first and 0.044715 times it as the second
 * factor; g / 2 * (1 + tanh(h)) = g / (1 + exp(-2 h)). Hendrycks and Gimpel 2016, arXiv:1606.08415. */
#define GELU_TANH_LINEAR 0.7978845608028654
#define GELU_TANH_CUBIC  0.035677408136300125

#endif
