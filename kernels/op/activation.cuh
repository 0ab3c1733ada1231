/* SPDX-License-Identifier: Apache-2.0 */
/* Activations of products: act(gate) * up, or act(product) where there is no gate. One list for host and device code. A row is
 * X(name, value in engine files, never reused, name of the gated product, name without a gate). Its code: a case of
 * activate_exactly (activation.h), of activate (kernels/cuda/include/activation.cuh) and of vec_activate
 * (kernels/matmul/matmul_kernels.h).
 *
 * CLAMPED exists with a gate only, and has a limit c as its parameter: g becomes min(g, c), u becomes max(-c, min(u, c)) + 1, and the
 * product is g / (1 + exp(-1.702 g)) * u. OpenAI 2025, gpt-oss model card, arXiv:2508.10925. */
#ifndef KERNELS_OP_ACTIVATION_CUH
#define KERNELS_OP_ACTIVATION_CUH

#define ACTIVATIONS(X)                                                                                        \
    X(NONE, 0, "none", "none")                                                                                \
    X(SILU, 1, "swiglu", "silu")              /* g / (1 + exp(-g)). Shazeer 2020, arXiv:2002.05202 */         \
    X(GELU_TANH, 2, "geglu", "gelu_tanh")     /* g / 2 * (1 + tanh(h)), h below */                            \
    X(GELU, 3, "geglu_erf", "gelu")           /* g / 2 * (1 + erf(g / sqrt(2))). Hendrycks and Gimpel 2016 */ \
    X(RELU2, 4, "reglu2", "relu2")            /* max(g, 0)^2. So et al. 2021, arXiv:2109.08668 */             \
    X(SOFTCAP, 5, "softcap_gated", "softcap") /* c * tanh(g / c), c a parameter; not gated */                 \
    X(CLAMPED, 6, "clamped_swiglu", "clamped_silu")                                                           \
    X(RELU, 7, "reglu", "relu") /* max(g, 0) */

enum activation {
#define ACTIVATION_ROW(name, value, gated, plain) ACTIVATION_##name = value,
    ACTIVATIONS(ACTIVATION_ROW)
#undef ACTIVATION_ROW
        ACTIVATION_COUNT
};

/* Epilogue of a product: an activation, gated, or with this bit the same of the product itself. */
#define EPILOGUE_PLAIN         16
#define EPILOGUE_COUNT         (EPILOGUE_PLAIN + ACTIVATION_COUNT)
#define EPILOGUE_ACTIVATION(e) ((e) % EPILOGUE_PLAIN)
#define EPILOGUE_IS_GATED(e)   ((e) > 0 && (e) < EPILOGUE_PLAIN)

/* h = GELU_TANH_LINEAR * g + GELU_TANH_CUBIC * g^3, with sqrt(2 / pi) as the first and 0.044715 times it as the second
 * factor; g / 2 * (1 + tanh(h)) = g / (1 + exp(-2 h)). Hendrycks and Gimpel 2016, arXiv:1606.08415. */
#define GELU_TANH_LINEAR 0.7978845608028654
#define GELU_TANH_CUBIC  0.035677408136300125

/* CLAMPED: factor of g in the exponent. */
#define CLAMPED_SLOPE 1.702

#endif
