/* SPDX-License-Identifier: Apache-2.0 */
/* matmul: out[r, n] = SCALE * (sum over k of x[r, k] * W[n, k]  (+ bias[n])) (+ residual[r, n]),
 * or with EPILOGUE_PLAIN + an activation as EPILOGUE act of that, without a residual,
 * or gated, with an activation as EPILOGUE, where W holds gate and up panels in turn and N counts both:
 *   out[r, j] = act(g) * u,  g = x[r] . Wgate[j] (+ bias of that row), u likewise; CLAMPED changes u, too (activation.cuh).
 *
 * Weights are read in place in PANEL16 layout (panel.h); accumulation is float32. Numerics contract: for a given
 * instruction set, each output element is one chain of additions over k = 0, 1, 2, ... that depends neither on rows nor
 * on any tunable nor on the number of threads, so a sequence gives the same bits alone and in a batch. With codes of
 * 4 bits AVX512BF16 splits each activation into two bf16 (hi + lo, relative error 2^-17) and adds hi products before lo products of each
 * pair of k, unless x is rounded to bf16 anyway; other weights, and the other instruction sets, take the float activation. Infinite and NaN
 * activations stay what they are; products of bf16 treat subnormal numbers as zero and make NaN of an infinite weight times a finite activation.
 *
 * AMX multiplies launches with activations in bf16 and weights BF16 or coded (K of 32 or more): the chain is then one over blocks of
 * 32 k (of 16 with groups of 16), and what it adds for a block is the chain of the even k plus that of the odd k, each from 0
 * on. Sums of a group of codes begin at 0 and are multiplied by its scale; zero points are taken off the codes. It rounds to nearest even and treats
 * subnormal numbers as zero. All other launches give the bits of AVX512BF16.
 *
 * With activations in int8 and weights of int4 or int8 codes (K of 32 or more), AVX2, AVX512VNNI and what comes after it multiply
 * integers: the products of 32 k have an exact sum, and the chain is one over blocks of 32 k, the same bits in each of them.
 *
 * Over experts (ROUTES of router.h), W is one matrix after the other for EXPERTS experts, each of N / EXPERTS rows, and a row of
 * x is multiplied by those of its TOP_K choices:
 *   with an activation, gated or not: out[r, c] = what the above makes of x[r] and expert id[r, c], one of TOP_K parts of a row of out
 *   else: out[r] = (residual[r] +) sum over c of weight[r, c] * (SCALE * the product of part c of x[r] and expert id[r, c]),
 * the sum by rising ids. With PARTS there is no sum: out[r, c] = weight[r, c] * (SCALE * the product), one of TOP_K parts of a row
 * of out; on CUDA matmul_gemv alone can do without. A choice whose id names no expert gives zeros, on CUDA nothing. The rows of a
 * step that chose the same expert are multiplied together, so that each expert's weights are read once; the numerics contract
 * holds. On the CPU, without an activation, BLOCK_N may be the rows of each expert, which are padded with zero rows to a multiple of
 * 16, as elements of the bias are; N counts the padding.
 *
 * With BLOCK_N and no experts W is block diagonal: B blocks of BLOCK_N rows and K columns, one after the other, each padded with zero rows to a
 * multiple of 16, and part b of a row of x gives part b of a row of out:
 *   out[r, b * BLOCK_N + n] = SCALE * sum over k of x[r, b * K + k] * W[b, n, k].
 * Rows of x may go on after the last part (X_PITCH).
 *
 * An op call takes about 100 KiB of each member's stack. */
#ifndef KERNELS_MATMUL_MATMUL_H
#define KERNELS_MATMUL_MATMUL_H

#include "kernels/matmul/panel.h"
#include "kernels/op/activation.h"
#include "kernels/op/op.h"
#include "kernels/router/router.h"

enum matmul_operand {
    MATMUL_COUNTS,
    MATMUL_X,         /* INPUT_DTYPE[rows, matmul_x_pitch] */
    MATMUL_W,         /* DTYPE: CPU panel_count(N) panels, CUDA [N, K], or panels in FRAGMENT16 layout if coded */
    MATMUL_OUT,       /* OUT_DTYPE[rows, N], gated: [rows, N / 2]; may be RESIDUAL, never X */
    MATMUL_BIAS,      /* HAS_BIAS: BIAS_DTYPE[N], ordered as the rows of W */
    MATMUL_RESIDUAL,  /* HAS_RESIDUAL: f32[rows, N] */
    MATMUL_NORM,      /* HAS_NORM: NORM_DTYPE[K] */
    MATMUL_X_SCALES,  /* HAS_X_SCALES: f32[rows], which multiply the rows of x: codes as quantise.h describes */
    MATMUL_ROUTES,    /* ROUTE_WIDTH: f32[rows, ROUTE_WIDTH]: router.h */
    MATMUL_LISTS,     /* CUDA, ROUTE_WIDTH: i32[rows, router_list_width]: router.h */
    MATMUL_WORKSPACE, /* CPU: matmul_workspace_bytes: x in the form the instruction set wants */
    MATMUL_OPERANDS
};
enum matmul_param {
    MATMUL_ROWS,
    MATMUL_COUNT_INDEX,
    MATMUL_N, /* rows of W. Gated: CPU a multiple of 32 (each half padded with zero rows to a multiple of 16), CUDA of 16 */
    MATMUL_K, /* CUDA: a multiple of 8 */
    MATMUL_DTYPE,
    MATMUL_OUT_DTYPE,
    MATMUL_EPILOGUE, /* enum activation, gated unless NONE, or EPILOGUE_PLAIN + enum activation */
    MATMUL_HAS_BIAS,
    MATMUL_BIAS_DTYPE,
    MATMUL_HAS_RESIDUAL, /* not with an activation */
    MATMUL_HAS_NORM,     /* CUDA */
    MATMUL_NORM_DTYPE,
    MATMUL_EPS_BITS,    /* bits of a float32 >= 0 */
    MATMUL_INPUT_DTYPE, /* F8_E4M3 or I8 (CUDA): with x_scales, and a DTYPE whose codes these are: matmul_codes_of_x */
    MATMUL_SCALE_BITS,  /* bits of a float32 above 0; 1 with a gate */
    MATMUL_COMPUTE_DTYPE, /* CPU: F32, or what x is rounded to before it is multiplied (matmul_round): BF16, INT8_G32 */
    MATMUL_HAS_X_SCALES,  /* with INPUT_DTYPE F8_E4M3 or I8, and only then; not with a norm */
    MATMUL_CAP_BITS, /* bits of a float32 above 0, with EPILOGUE_PLAIN + SOFTCAP and the limit with CLAMPED; else of 1 */
    MATMUL_EXPERTS,  /* matrices in W; 0: W is one matrix, and there are no routes */
    MATMUL_ROUTE_WIDTH, /* 2 * TOP_K; 0: no routes */
    MATMUL_PARTS,       /* CUDA, 1: out keeps the addends of the weighted sum */
    MATMUL_BLOCK_N, /* N is a multiple of it, rounded up to 16; no activation, and no bias or residual without experts. 0: one
                     * block, or experts whose rows are not padded */
    MATMUL_X_PITCH, /* with BLOCK_N: elements of a row of x where they are more than B * K; 0: they are as many */
    MATMUL_EARLY_ROUTES, /* CUDA, experts without an activation, 1: with a sum over choices routes are of the launch before, a
                          * routed_matmul, and are read while it still runs; with parts a launch between the one that makes them and
                          * this one triggers only after its device_wait, as every matmul over experts with an activation does, and
                          * they may be read before this one's own wait. Never with parts after a routed_matmul */
    MATMUL_FIRST_TUNABLE, /* tunables of each kernel from here on; those of the CPU: */
    /* Tunables: speed only. A register tile keeps panels times rows accumulators in registers, beside the weights and
     * activations that it multiplies: at most 24 with AVX-512 (of 32 registers), 6 with AVX2 (two registers each, of
     * 16), 3 without (four each). Tiles exist for the sizes listed. */
    MATMUL_PANELS_PER_TILE =
        MATMUL_FIRST_TUNABLE, /* panels that one register tile covers: 1, 2, 3, 4, 6, 8; even with a gate */
    MATMUL_ROWS_PER_TILE,     /* rows of x that one register tile covers: 1, 2, 3, 4, 6, 8, 12 */
    MATMUL_DEPTH_BLOCK,       /* k per pass over the rows of a block: multiple of 64 (whole cache lines, whole pairs of
                             * k), or 0 = all of K; without effect on a single tile of rows */
    MATMUL_ROWS_PER_BLOCK,    /* rows whose activations stay in cache while panels stream: 0 = all, or at least
                             * ROWS_PER_TILE; cut to what 64 KiB of sums hold */
    MATMUL_PANELS_PER_TASK,   /* panels that a thread takes at once: multiple of PANELS_PER_TILE, at most 4096 */
    MATMUL_THREADS,           /* most members that work: 0 = all, at most TEAM_MAX_THREADS */
    MATMUL_PARAMS
};
enum { MATMUL_TUNABLES = MATMUL_PARAMS - MATMUL_FIRST_TUNABLE };
enum { MATMUL_MAX_TASK_PANELS = 4096 };

/* Dtype of the codes of x by which a matrix of this encoding and K columns can be multiplied: F8_E4M3 for e4m3; I8 for int8 with one
 * scale a row and no zeros, of fewer than 2^17 columns, whose sums of products fit 32 bits, and for int4 without zeros in groups of 64
 * or 128; else NONE. */
enum dtype matmul_codes_of_x(int64_t encoding, uint64_t k);

/* W holds gate and up rows by turns. */
static inline bool matmul_is_gated(const int64_t *params) { return EPILOGUE_IS_GATED(params[MATMUL_EPILOGUE]); }
static inline enum activation matmul_activation(const int64_t *params)
{
    return (enum activation)EPILOGUE_ACTIVATION(params[MATMUL_EPILOGUE]);
}

/* Rows of the matrix of a block, or of an expert with BLOCK_N, with its padding. */
static inline int64_t matmul_padded_block_n(const int64_t *params)
{
    return (int64_t)(panel_count((uint64_t)params[MATMUL_BLOCK_N]) * PANEL_ROWS);
}
/* Blocks of a block diagonal W; 0: it is not. */
static inline int64_t matmul_blocks(const int64_t *params)
{
    return params[MATMUL_BLOCK_N] > 0 && !params[MATMUL_EXPERTS] ? params[MATMUL_N] / matmul_padded_block_n(params) : 0;
}

/* Over experts with an activation, gated or not: all choices of a row multiply the same x, and each has a part of a row of out. */
static inline bool matmul_shares_x(const int64_t *params)
{
    return params[MATMUL_EXPERTS] && params[MATMUL_EPILOGUE] != ACTIVATION_NONE;
}

/* Over experts: how many each row of x has chosen, 0 without experts; rows of the matrix of one, or of a block; rows that are
 * multiplied. */
static inline bool
matmul_sums_choices(const int64_t *params) /* over experts: a row of out is the sum over a row's choices */
{
    return params[MATMUL_EXPERTS] && !matmul_shares_x(params) && !params[MATMUL_PARTS];
}
static inline int64_t matmul_top_k(const int64_t *params) { return params[MATMUL_ROUTE_WIDTH] / 2; }
static inline int64_t matmul_expert_n(const int64_t *params)
{
    if (params[MATMUL_BLOCK_N] > 0) return params[MATMUL_BLOCK_N];
    return params[MATMUL_EXPERTS] > 0 ? params[MATMUL_N] / params[MATMUL_EXPERTS] : params[MATMUL_N];
}
/* Elements from a row of x to the next. */
static inline int64_t matmul_x_pitch(const int64_t *params)
{
    if (params[MATMUL_X_PITCH] > 0) return params[MATMUL_X_PITCH];
    if (matmul_blocks(params)) return matmul_blocks(params) * params[MATMUL_K];
    return (params[MATMUL_EXPERTS] && !matmul_shares_x(params) ? matmul_top_k(params) : 1) * params[MATMUL_K];
}
/* Matrices in W that rows are gathered for: experts or blocks; 0: W is one matrix. */
static inline int64_t matmul_matrices(const int64_t *params)
{
    return params[MATMUL_EXPERTS] > 0 ? params[MATMUL_EXPERTS] : matmul_blocks(params);
}
static inline int64_t matmul_slots(const int64_t *params, int64_t rows)
{
    if (params[MATMUL_EXPERTS] > 0) return rows * matmul_top_k(params);
    return params[MATMUL_BLOCK_N] > 0 ? rows * matmul_blocks(params) : rows;
}

/* The numbers of W have scales. */
static inline bool matmul_is_coded(const int64_t *params)
{
    return !encoding_is_plain((enum encoding_id)params[MATMUL_DTYPE]);
}

/* With a gate over an intermediate size I that is no multiple of 16, N = 2 * 16 * panel_count(I) and out has
 * N / 2 columns, the last ones zero. */

/* Raised whenever a change of the kernels can change which tunables are best: timings of older revisions are then
 * measured anew. */
enum { MATMUL_REVISION = 4 };

extern const struct op_descriptor op_matmul;

/* The choices of all rows in the order of experts, and where those of each begin; those that name no expert come last, from
 * begin[experts] on. With slots right after begin they are the lists that a router makes on CUDA. */
struct expert_lists {
    int64_t experts;
    int32_t *begin; /* [experts + 1] */
    int32_t *slots; /* [rows * top_k]: row * top_k + choice */
};
void matmul_fill_expert_lists(const float *routes, int64_t rows, int64_t top_k, const struct expert_lists *lists);

/* Matrices in W that a launch reads: over experts those that some row has chosen, on average over rows that choose at random. */
int64_t matmul_matrices_read(const int64_t *params);

uint64_t matmul_workspace_bytes(const int64_t *params); /* room for every instruction set */

/* INT8_G32 as MATMUL_COMPUTE_DTYPE: each 32 k of a row of x, from k = 0 on, become 32 integers of -127 to 127 times a float32
 * scale, the largest magnitude / 127. */
enum { MATMUL_INT8_BLOCK = 32 };

/* The scale of a block from the bits of its largest magnitude; returns what its elements are multiplied by before they are rounded to
 * the nearest integer, of two the even one. A block with an element that is not finite has the scale NaN, one with none of
 * 2^-100 or more has 0. */
static inline float matmul_int8_scale(uint32_t largest, float *scale)
{
    const float value = float_from_bits(largest);
    *scale = largest >= 0x7f800000u ? float_from_bits(0x7fc00000u) : value < 0x1p-100f ? 0 : value / 127;
    return *scale > 0 ? 127 / value : 0;
}

/* `count` elements of a row of x, from a multiple of MATMUL_INT8_BLOCK on, as they are multiplied. `out` may be x. */
void matmul_round(const float *x, int64_t count, enum encoding_id compute, float *out);

/* Why tunables (params[MATMUL_FIRST_TUNABLE...]) are illegal for this problem and instruction set, NULL if legal.
 * The runtime accepts any tunables that are legal for some instruction set and clamps the register tile to what its
 * own can hold, so an engine tuned on one processor runs on another. */
const char *matmul_tunables_illegal(const int64_t *params, enum cpu_isa isa);

/* Good tunables without measuring, and the tunables that a tuner should measure: legal ones for this problem and
 * instruction set, the default first, the others from promising to less so, always in the same order. Returns how many,
 * at most `capacity`. Both read params below MATMUL_FIRST_TUNABLE only; `threads`: the size of the team. */
void matmul_default_tunables(const int64_t *params, enum cpu_isa isa, int threads, int64_t *tunables);
int matmul_candidates(const int64_t *params, enum cpu_isa isa, int threads, int64_t (*candidates)[MATMUL_TUNABLES],
                      int capacity);

/* Reference for rows [first, last) of W (panels must not be split between callers with a gate). */
void matmul_reference_range(const struct op_call *call, int64_t first, int64_t last);

#endif
