/* SPDX-License-Identifier: Apache-2.0 */
/* The part of matmul's kernels that instruction sets share, as a template. A file that includes it defines before:
 *
 *   MATMUL_LANES                   floats in a vector: 4, 8 or 16
 *   typedef ... vec;               float vector of that many lanes (a GCC vector type or an intrinsic one)
 *   vec_broadcast(pointer)         *pointer in every lane
 *   vec_multiply_add(a, b, c)      a * b + c
 *   vec_bf16_even(pointer), vec_bf16_odd(pointer)
 *                                  first and second of each pair of bf16
 *   vec_f16(pointer)               f16 to f32
 *   vec_int4(pointer, place, table), vec_e2m1(pointer, place, table), vec_looked_up(pointer, place, table), vec_int8(pointer, place)
 *                                  numbers of codes (int4: less 8) at a place from 0 on of a line of codes (panel.h), of as
 *                                  many rows as there are lanes, the first of which has its word at `pointer`
 *   typedef ... vec_numbers;       what vec_table makes
 *   vec_table(encoding)            the table that vec_int4, vec_e2m1 and vec_looked_up use, if they use one
 *   vec_e4m3(pointer)              numbers of consecutive e4m3 codes, times 2^-8
 *   vec_e8m0(pointer)              powers of two of consecutive e8m0 codes; 0 for code 0
 *
 * and gets tile_float and tile_coded (tiles with activations in float form) and finish (the epilogue). */
#ifndef KERNELS_MATMUL_MATMUL_KERNELS_H
#define KERNELS_MATMUL_MATMUL_KERNELS_H

#include "kernels/matmul/matmul_tile.h"

enum { VECTORS_PER_PANEL = PANEL_ROWS / MATMUL_LANES };

typedef float vec_unaligned __attribute__((vector_size(4 * MATMUL_LANES), aligned(4), may_alias));
typedef uint32_t vec_bits __attribute__((vector_size(4 * MATMUL_LANES)));
typedef int32_t vec_mask __attribute__((vector_size(4 * MATMUL_LANES)));

MATMUL_INLINE vec vec_load(const float *from) { return (vec)(*(const vec_unaligned *)from); }
MATMUL_INLINE void vec_store(float *to, vec value) { *(vec_unaligned *)to = (vec_unaligned)value; }

/* Vector `part` of a panel at place `k` of a pair of k, or of a line of codes, that begins at `line`. */
MATMUL_INLINE vec load_weights(const unsigned char *line, const int part, const int k, const enum matmul_weights kind,
                               const vec_numbers table)
{
    const unsigned char *words = line + part * 4 * MATMUL_LANES;
    switch (kind) {
    case MATMUL_WEIGHTS_BF16: return k ? vec_bf16_odd(words) : vec_bf16_even(words);
    case MATMUL_WEIGHTS_F16: return vec_f16(line + k * 2 * PANEL_ROWS + part * 2 * MATMUL_LANES);
    case MATMUL_WEIGHTS_INT4: return vec_int4(words, k, table);
    case MATMUL_WEIGHTS_E2M1: return vec_e2m1(words, k, table);
    case MATMUL_WEIGHTS_TABLE: return vec_looked_up(words, k, table);
    case MATMUL_WEIGHTS_INT8: return vec_int8(words, k);
    case MATMUL_WEIGHTS_E4M3: return vec_e4m3(line + k * PANEL_ROWS + part * MATMUL_LANES);
    default: return vec_load((const float *)(const void *)(line + k * 4 * PANEL_ROWS + part * 4 * MATMUL_LANES));
    }
}

/* Adds the products of one k. The side of the tile with fewer vectors is held in registers, the other one streams. */
MATMUL_INLINE void add_products(vec sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS * VECTORS_PER_PANEL],
                                const unsigned char *line, size_t panel_bytes, const float *x, const int panels,
                                const int rows, const int k, const enum matmul_weights kind, const vec_numbers table)
{
    if (rows <= panels * VECTORS_PER_PANEL) {
        vec values[MATMUL_MAX_TILE_ROWS];
        MATMUL_UNROLL
        for (int row = 0; row < rows; row++) values[row] = vec_broadcast(x + row);
        MATMUL_UNROLL
        for (int column = 0; column < panels * VECTORS_PER_PANEL; column++) {
            vec weights = load_weights(line + (size_t)(column / VECTORS_PER_PANEL) * panel_bytes,
                                       column % VECTORS_PER_PANEL, k, kind, table);
            MATMUL_UNROLL
            for (int row = 0; row < rows; row++)
                sums[row][column] = vec_multiply_add(weights, values[row], sums[row][column]);
        }
    } else {
        vec weights[MATMUL_MAX_TILE_PANELS * VECTORS_PER_PANEL];
        MATMUL_UNROLL
        for (int column = 0; column < panels * VECTORS_PER_PANEL; column++)
            weights[column] = load_weights(line + (size_t)(column / VECTORS_PER_PANEL) * panel_bytes,
                                           column % VECTORS_PER_PANEL, k, kind, table);
        MATMUL_UNROLL
        for (int row = 0; row < rows; row++) {
            vec value = vec_broadcast(x + row);
            MATMUL_UNROLL
            for (int column = 0; column < panels * VECTORS_PER_PANEL; column++)
                sums[row][column] = vec_multiply_add(weights[column], value, sums[row][column]);
        }
    }
}

MATMUL_INLINE void tile_float(const struct matmul_tile_call *call, const int panels, const int rows,
                              const enum matmul_weights kind)
{
    const size_t panel_bytes = call->panel_bytes, prefetch_step = call->prefetch_step;
    const unsigned char *weights = call->weights, *prefetch = call->prefetch;
    const float *x = call->activations;
    const int pair_bytes = 2 * PANEL_ROWS * (kind == MATMUL_WEIGHTS_F32 ? 4 : 2);
    vec sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS * VECTORS_PER_PANEL];
    MATMUL_UNROLL
    for (int row = 0; row < rows; row++) {
        MATMUL_UNROLL
        for (int column = 0; column < panels * VECTORS_PER_PANEL; column++)
            sums[row][column] = vec_load(call->sums + (row * panels * VECTORS_PER_PANEL + column) * MATMUL_LANES);
    }
    for (int64_t pair = call->depth / 2; pair > 0; pair--) {
        for (int line = 0; line < pair_bytes / 64; line++) {
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++) __builtin_prefetch(prefetch + (size_t)panel * panel_bytes);
            prefetch += prefetch_step;
        }
        add_products(sums, weights, panel_bytes, x, panels, rows, 0, kind, (vec_numbers){0});
        add_products(sums, weights, panel_bytes, x + rows, panels, rows, 1, kind, (vec_numbers){0});
        weights += pair_bytes;
        x += 2 * rows;
    }
    if (call->depth % 2) add_products(sums, weights, panel_bytes, x, panels, rows, 0, kind, (vec_numbers){0});
    MATMUL_UNROLL
    for (int row = 0; row < rows; row++) {
        MATMUL_UNROLL
        for (int column = 0; column < panels * VECTORS_PER_PANEL; column++)
            vec_store(call->sums + (row * panels * VECTORS_PER_PANEL + column) * MATMUL_LANES, sums[row][column]);
    }
}

/* ---- codes with scales ---- */

/* Scales of the rows of vector `part`. */
MATMUL_INLINE vec load_scales(const struct panel_form *form, const unsigned char *scales, const int part)
{
    switch (form->encoding->scale) {
    case SCALE_F16: return vec_f16(scales + part * 2 * MATMUL_LANES);
    case SCALE_E4M3: return vec_e4m3(scales + part * MATMUL_LANES);
    case SCALE_E8M0: return vec_e8m0(scales + part * MATMUL_LANES);
    default: return vec_load((const float *)(const void *)(scales + part * 4 * MATMUL_LANES));
    }
}

/* Sums of the activations of a group, row by row: what its zero point counts. */
__attribute__((noinline)) static void sum_activations(const float *x, int64_t depth, int rows,
                                                      float sums[MATMUL_MAX_TILE_ROWS])
{
    for (int row = 0; row < rows; row++) {
        float parts[4] = {0};
        for (int64_t k = 0; k < depth; k++) parts[k % 4] += x[k * rows + row];
        sums[row] = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    }
}

/* Adds a group's sums of products, times its scales, to those of the call. `head`: of the span, `place`: of the group in it.
 * One function for all tiles, with sums in memory: it would be most of their code. */
__attribute__((noinline)) static void add_group(const struct matmul_tile_call *call, const unsigned char *head,
                                                int place, const float *x_sums, const float *group_sums, int panels,
                                                int rows)
{
    const struct panel_form *form = call->form;
    const vec_numbers table = vec_table(form->encoding);
    for (int panel = 0; panel < panels; panel++, head += call->panel_bytes) {
        const unsigned char *scales = head + (size_t)place * form->scale_bytes;
        const unsigned char *zeros = head + form->span_groups * form->scale_bytes;
        for (int part = 0; part < VECTORS_PER_PANEL; part++) {
            const vec scale = load_scales(form, scales, part);
            const unsigned char *of_part = zeros + part * 4 * MATMUL_LANES;
            const vec zero = !form->encoding->zeros              ? (vec){0}
                             : form->encoding->code == CODE_INT8 ? vec_int8(of_part, place)
                                                                 : vec_int4(of_part, place, table);
            for (int row = 0; row < rows; row++) {
                const int at = (row * panels + panel) * PANEL_ROWS + part * MATMUL_LANES;
                vec sum = vec_load(group_sums + at);
                if (form->encoding->zeros) sum -= zero * x_sums[row];
                vec_store(call->sums + at, vec_multiply_add(scale, sum, vec_load(call->sums + at)));
            }
        }
    }
}

MATMUL_INLINE void tile_coded(const struct matmul_tile_call *call, const int panels, const int rows,
                              const enum matmul_weights kind)
{
    const struct panel_form *form = call->form;
    const size_t panel_bytes = call->panel_bytes, prefetch_step = call->prefetch_step;
    const unsigned char *weights = call->weights, *prefetch = call->prefetch, *head = weights;
    const float *x = call->activations;
    const int line_k = kind == MATMUL_WEIGHTS_INT8 || kind == MATMUL_WEIGHTS_E4M3 ? 4 : 8;
    const int64_t group = form->group ? form->group : call->depth;
    const vec_numbers table = vec_table(form->encoding);
    const float *from = form->group ? matmul_no_sums : call->sums;
    float group_sums[MATMUL_MAX_TILE_SUMS], *to = form->group ? group_sums : call->sums;
    vec sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS * VECTORS_PER_PANEL];
    int place = 0;
    for (int64_t left = call->depth; left > 0; left -= group) {
        const int64_t depth = left < group ? left : group;
        float x_sums[MATMUL_MAX_TILE_ROWS] = {0};
        if (form->group && place == 0) {
            head = weights;
            weights += form->head_bytes;
        }
        if (form->encoding->zeros) sum_activations(x, depth, rows, x_sums);
        MATMUL_UNROLL
        for (int row = 0; row < rows; row++) {
            MATMUL_UNROLL
            for (int column = 0; column < panels * VECTORS_PER_PANEL; column++)
                sums[row][column] = vec_load(from + (row * panels * VECTORS_PER_PANEL + column) * MATMUL_LANES);
        }
        int64_t k = 0;
        /* With one row the work for a k is so little that the place in the line has to be a constant; with more rows one
         * piece of code for all places keeps the library small. */
        for (; rows == 1 && MATMUL_LANES > 4 && k + line_k <= depth; k += line_k) {
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++) __builtin_prefetch(prefetch + (size_t)panel * panel_bytes);
            prefetch += prefetch_step;
            MATMUL_UNROLL
            for (int i = 0; i < line_k; i++)
                add_products(sums, weights, panel_bytes, x + i, panels, rows, i, kind, table);
            weights += PANEL_LINE_BYTES;
            x += line_k;
        }
        for (int i = 0; k < depth; k++, x += rows) {
            add_products(sums, weights, panel_bytes, x, panels, rows, i, kind, table);
            if (++i < line_k) continue;
            i = 0;
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++) __builtin_prefetch(prefetch + (size_t)panel * panel_bytes);
            prefetch += prefetch_step;
            weights += PANEL_LINE_BYTES;
        }
        MATMUL_UNROLL
        for (int row = 0; row < rows; row++) {
            MATMUL_UNROLL
            for (int column = 0; column < panels * VECTORS_PER_PANEL; column++)
                vec_store(to + (row * panels * VECTORS_PER_PANEL + column) * MATMUL_LANES, sums[row][column]);
        }
        if (!form->group) continue;
        add_group(call, head, place, x_sums, group_sums, panels, rows);
        place = place + 1 == (int)form->span_groups ? 0 : place + 1;
    }
}

/* One tile function, and its place in the table. */
#define MATMUL_DEFINE_CODED(PANELS, ROWS, KIND)                                      \
    static void tile_##KIND##_##PANELS##x##ROWS(const struct matmul_tile_call *call) \
    {                                                                                \
        tile_coded(call, PANELS, ROWS, MATMUL_WEIGHTS_##KIND);                       \
    }
#define MATMUL_DEFINE_TILE(PANELS, ROWS, KIND)                                       \
    static void tile_##KIND##_##PANELS##x##ROWS(const struct matmul_tile_call *call) \
    {                                                                                \
        tile_float(call, PANELS, ROWS, MATMUL_WEIGHTS_##KIND);                       \
    }
#define MATMUL_LIST_TILE(PANELS, ROWS, KIND) MATMUL_TILE_AT(PANELS, ROWS, KIND, tile_##KIND##_##PANELS##x##ROWS)

/* e^x within 2 units in the last place. Only separate multiplications and additions, so that every instruction set
 * gives the same bits. */
MATMUL_INLINE vec vec_exp(vec x)
{
    /* Beyond these the result is infinite or zero; NaN passes both comparisons and stays. */
    const vec zero = {0}, high = zero + 128.0f, low = zero - 128.0f;
    vec_mask above = x > high, below = x < low;
    x = (vec)(((vec_mask)x & ~above & ~below) | ((vec_mask)high & above) | ((vec_mask)low & below));

    /* x = count * ln 2 + rest. Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum. */
    const vec magic = zero + 12582912.0f;
    vec shifted = x * 1.44269504f + magic;
    vec count = shifted - magic;
    vec rest =
        (x - count * 0.693359375f) - count * -2.12194440e-4f; /* ln 2 in two parts: count times the first is exact */

    /* Taylor polynomial: |rest| <= 0.347, so the first term left out is below 2^-25. */
    vec power = rest * (1.0f / 5040.0f) + (1.0f / 720.0f);
    power = power * rest + (1.0f / 120.0f);
    power = power * rest + (1.0f / 24.0f);
    power = power * rest + (1.0f / 6.0f);
    power = power * rest + 0.5f;
    power = power * rest + 1.0f;
    power = power * rest + 1.0f;

    /* times 2^count in two steps, because count reaches 185: the half is shifted into the exponent field. */
    vec_mask whole = (vec_mask)shifted - (vec_mask)magic;
    vec_mask half = whole >> 1, other = whole - half;
    vec first = (vec)((vec_bits)(half + 127) << 23), second = (vec)((vec_bits)(other + 127) << 23);
    return power * first * second;
}

/* 16 biases from row n of W on as floats, zero beyond `columns`. */
MATMUL_INLINE void load_bias(const struct matmul_problem *problem, int64_t n, int64_t columns, float bias[PANEL_ROWS])
{
    for (int64_t i = 0; i < PANEL_ROWS; i++) {
        if (!problem->bias || i >= columns)
            bias[i] = 0;
        else if (problem->bias_dtype == DTYPE_F32)
            bias[i] = ((const float *)problem->bias)[n + i];
        else if (problem->bias_dtype == DTYPE_BF16)
            bias[i] = bf16_to_float(((const uint16_t *)problem->bias)[n + i]);
        else
            bias[i] = f16_to_float(((const uint16_t *)problem->bias)[n + i]);
    }
}

/* erfc(z) / exp(-z^2) = t exp(p(t)), t = 2 / (2 + z), z from 0: p interpolates the logarithm at Chebyshev nodes of t (relative
 * error 7.5e-8). Then x / 2 * erfc(-x / sqrt(2)), and for x above 0, where erfc would be of a negative number, x less that. */
MATMUL_INLINE vec vec_gelu(vec x)
{
    static const float c[] = {-0x1.43f804p+0f, 0x1.ffe96ap-1f,  0x1.80c8e2p-2f, 0x1.6dc7e0p-4f,  -0x1.55db94p-3f,
                              0x1.fdad72p-3f,  -0x1.1b9f52p+0f, 0x1.79a9e6p+0f, -0x1.a3ae9ep-1f, 0x1.5e38cap-3f};
    const vec zero = {0}, most = zero + 20.0f;
    const vec all = (vec)((vec_mask)x & INT32_MAX);
    const vec_mask is_large = (vec_mask)(all > most);
    const vec magnitude = (vec)(((vec_mask)most & is_large) | ((vec_mask)all & ~is_large)), z = magnitude * 0.70710678f;
    const vec t = (zero + 2.0f) / (z + 2.0f);
    vec p = zero + c[9];
    for (int i = 8; i >= 0; i--) p = p * t + c[i];
    const vec tail = magnitude * 0.5f * t * vec_exp(p - z * z); /* |x| / 2 * erfc(|x| / sqrt(2)) */
    const vec_mask is_above = (vec_mask)(x > zero);
    return (vec)(((vec_mask)(x - tail) & is_above) | ((vec_mask)(zero - tail) & ~is_above));
}

/* act(x) within a few units in the last place; SOFTCAP, with cap 1, within 1.2e-7. */
MATMUL_INLINE vec vec_activate(const enum activation activation, vec x)
{
    const vec zero = {0};
    switch (activation) {
    case ACTIVATION_SILU: return x / (vec_exp(zero - x) + 1.0f);
    case ACTIVATION_GELU_TANH:
        return x / (vec_exp(x * (x * x * (float)(-2 * GELU_TANH_CUBIC) + (float)(-2 * GELU_TANH_LINEAR))) + 1.0f);
    case ACTIVATION_GELU: return vec_gelu(x);
    case ACTIVATION_RELU2: return (vec)((vec_mask)(x * x) & ~(vec_mask)(x < zero));
    case ACTIVATION_RELU: return (vec)((vec_mask)x & ~(vec_mask)(x < zero));
    case ACTIVATION_SOFTCAP: return 1.0f - 2.0f / (vec_exp(x * 2.0f) + 1.0f);
    case ACTIVATION_CLAMPED: return x / (vec_exp(x * (float)-CLAMPED_SLOPE) + 1.0f);
    default: return x;
    }
}

/* The same by a call: activations that few models have, once for all places. */
__attribute__((noinline)) static void activate_any(enum activation activation, float *values, int count)
{
    for (int i = 0; i < count; i += MATMUL_LANES) vec_store(values + i, vec_activate(activation, vec_load(values + i)));
}

/* The smaller one; NaN stays. */
MATMUL_INLINE vec vec_at_most(vec x, vec most)
{
    const vec_mask is_above = (vec_mask)(x > most);
    return (vec)(((vec_mask)most & is_above) | ((vec_mask)x & ~is_above));
}

MATMUL_INLINE void finish_gated(const struct matmul_finish_call *call, const enum activation activation)
{
    const struct matmul_problem *problem = call->problem;
    for (int64_t panel = 0; panel < call->panels; panel += 2) {
        int64_t n = (call->first_panel + panel) * PANEL_ROWS;
        float gate_bias[PANEL_ROWS], up_bias[PANEL_ROWS];
        load_bias(problem, n, PANEL_ROWS, gate_bias);
        load_bias(problem, n + PANEL_ROWS, PANEL_ROWS, up_bias);
        for (int64_t row = 0; row < call->rows; row++) {
            const float *sums = call->sums + (row * call->panels + panel) * PANEL_ROWS;
            float *out = problem->out + matmul_out_row(problem, call->first_row + row) * problem->out_columns + n / 2;
            for (int i = 0; i < PANEL_ROWS; i += MATMUL_LANES) {
                vec gate = vec_load(sums + i), up = vec_load(sums + PANEL_ROWS + i);
                if (problem->bias) {
                    gate += vec_load(gate_bias + i);
                    up += vec_load(up_bias + i);
                }
                if (activation == ACTIVATION_SILU || activation == ACTIVATION_GELU_TANH) {
                    gate = vec_activate(activation, gate);
                } else {
                    float values[MATMUL_LANES];
                    if (problem->activation == ACTIVATION_CLAMPED) {
                        const vec zero = {0}, most = zero + problem->cap;
                        gate = vec_at_most(gate, most);
                        up = zero - vec_at_most(zero - vec_at_most(up, most), most) + 1.0f;
                    }
                    vec_store(values, gate);
                    activate_any(problem->activation, values, MATMUL_LANES);
                    gate = vec_load(values);
                }
                vec_store(out + i, gate * up);
            }
        }
    }
}

/* Products of an expert join those of experts before it. */
static void finish_routed(const struct matmul_finish_call *call)
{
    const struct matmul_problem *problem = call->problem;
    for (int64_t panel = 0; panel < call->panels; panel++) {
        const int64_t n = (call->first_panel + panel) * PANEL_ROWS;
        const int64_t columns = problem->n - n < PANEL_ROWS ? problem->n - n : PANEL_ROWS;
        float bias[PANEL_ROWS];
        load_bias(problem, n, columns, bias);
        for (int64_t row = 0; row < call->rows; row++) {
            const float *sums = call->sums + (row * call->panels + panel) * PANEL_ROWS;
            const float weight = matmul_route_weight(problem, call->first_row + row);
            float *out = problem->out + matmul_out_row(problem, call->first_row + row) * problem->n + n;
            for (int64_t i = 0; i < columns; i++) {
                const float value = (sums[i] + bias[i]) * problem->scale;
                out[i] += value * weight;
            }
        }
    }
}

static void finish_plain(const struct matmul_finish_call *call)
{
    const struct matmul_problem *problem = call->problem;
    if (problem->routes) {
        finish_routed(call);
        return;
    }
    for (int64_t panel = 0; panel < call->panels; panel++) {
        int64_t n = (call->first_panel + panel) * PANEL_ROWS;
        int64_t columns = problem->n - n < PANEL_ROWS ? problem->n - n : PANEL_ROWS;
        float bias[PANEL_ROWS];
        load_bias(problem, n, columns, bias);
        for (int64_t row = 0; row < call->rows; row++) {
            const float *sums = call->sums + (row * call->panels + panel) * PANEL_ROWS;
            int64_t to = matmul_out_row(problem, call->first_row + row) * problem->n + n;
            if (columns == PANEL_ROWS) {
                for (int i = 0; i < PANEL_ROWS; i += MATMUL_LANES) {
                    vec value = vec_load(sums + i);
                    if (problem->bias) value += vec_load(bias + i);
                    value *= problem->scale;
                    if (problem->residual) value += vec_load(problem->residual + to + i);
                    vec_store(problem->out + to + i, value);
                }
            } else {
                for (int64_t i = 0; i < columns; i++) {
                    float value = sums[i];
                    if (problem->bias) value += bias[i];
                    value *= problem->scale;
                    if (problem->residual) value += problem->residual[to + i];
                    problem->out[to + i] = value;
                }
            }
        }
    }
}

/* An activation of the product itself. */
static void finish_activated(const struct matmul_finish_call *call)
{
    const struct matmul_problem *problem = call->problem;
    for (int64_t panel = 0; panel < call->panels; panel++) {
        int64_t n = (call->first_panel + panel) * PANEL_ROWS;
        int64_t columns = problem->n - n < PANEL_ROWS ? problem->n - n : PANEL_ROWS;
        float bias[PANEL_ROWS] = {0}, values[PANEL_ROWS];
        load_bias(problem, n, columns, bias);
        for (int64_t row = 0; row < call->rows; row++) {
            const float *sums = call->sums + (row * call->panels + panel) * PANEL_ROWS;
            for (int i = 0; i < PANEL_ROWS; i += MATMUL_LANES) {
                const vec value = (vec_load(sums + i) + vec_load(bias + i)) * problem->scale;
                vec_store(values + i, value / problem->cap);
            }
            activate_any(problem->activation, values, PANEL_ROWS);
            for (int i = 0; i < PANEL_ROWS; i++) values[i] *= problem->cap;
            memcpy(problem->out + matmul_out_row(problem, call->first_row + row) * problem->n + n, values,
                   (size_t)columns * sizeof *values);
        }
    }
}

/* Factors of the rows of W, which encodings of one scale a row and those with a global scale have. */
static void multiply_row_factors(const struct matmul_finish_call *call)
{
    const struct matmul_problem *problem = call->problem;
    for (int64_t panel = 0; panel < call->panels; panel++) {
        const float *factors =
            (const void *)(problem->weights + (size_t)(call->first_panel + panel) * problem->panel_bytes);
        for (int64_t row = 0; row < call->rows; row++) {
            float *sums = call->sums + (row * call->panels + panel) * PANEL_ROWS;
            for (int i = 0; i < PANEL_ROWS; i += MATMUL_LANES)
                vec_store(sums + i, vec_load(sums + i) * vec_load(factors + i));
        }
    }
}

static void finish(const struct matmul_finish_call *call)
{
    if (call->problem->form.factor_bytes) multiply_row_factors(call);
    if (!call->problem->is_gated) {
        call->problem->activation == ACTIVATION_NONE ? finish_plain(call) : finish_activated(call);
        return;
    }
    switch (call->problem->activation) {
    case ACTIVATION_SILU: finish_gated(call, ACTIVATION_SILU); break;
    case ACTIVATION_GELU_TANH: finish_gated(call, ACTIVATION_GELU_TANH); break;
    default: finish_gated(call, ACTIVATION_NONE); break; /* by a call */
    }
}

#endif
