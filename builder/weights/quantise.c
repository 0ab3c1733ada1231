/* SPDX-License-Identifier: Apache-2.0 */
/* Codes and scales for a row of floats. Every group of 4-bit codes is searched by itself for the scale with the least squared error: the
 * scale that just holds the largest element is seldom the best one, since it makes all others coarse. Codes of 8 bits have the
 * scale that just holds it. With feedback an error counts
 * as much as it adds to the errors of products. */
#include <math.h>

#include "builder/weights/calibration.h"
#include "builder/weights/coded.h"
#include "kernels/cpu/vector_portable.h"

enum { MOST_GROUP = 128 }; /* of all encodings */

/* Elements that share a scale. */
struct group {
    const float *values;  /* [count] */
    const float *weights; /* [count]: of squared errors, 0 to 1 */
    uint64_t count;
};

/* Vectors of one width on every processor, so that sums have one order and engines the same codes. Lanes beyond the end are zero. */
static vec load(const float *values, uint64_t i, uint64_t count)
{
    return i + VEC_WIDTH <= count ? vec_load(values + i) : vec_load_part(values + i, (int64_t)(count - i));
}

static vec magnitude(vec value) { return (vec)((vec_int)value & vec_int_set(INT32_MAX)); }

static float largest_magnitude(const float *values, uint64_t count)
{
    vec largest = vec_set(0);
    for (uint64_t i = 0; i < count; i += VEC_WIDTH) largest = vec_max(magnitude(load(values, i, count)), largest);
    return vec_largest(largest);
}

/* The nearest whole number of a float below 2^22 in magnitude, ties to even: what rintf gives. */
static float nearest(float value) { return (value + 0x1.8p23f) - 0x1.8p23f; }

static float clamp(float value, float least, float most) { return value < least ? least : value > most ? most : value; }

static vec clamped_nearest(vec value, float add, float least, float most)
{
    const vec magic = vec_set(0x1.8p23f);
    return vec_min(vec_max((value + magic) - magic + vec_set(add), vec_set(least)), vec_set(most));
}

static float as_f16(float value) { return f16_to_float(f16_from_float(value)); }

/* ---- int4 ---- */

/* Codes from -8 to 7 without a zero point. For given codes c, the scale with the least error of c * scale to w is
 * (w . c) / (c . c), which leaves an error of w . w - (w . c)^2 / (c . c), in weighted products. So of several roundings the one
 * with the largest (w . c)^2 / (c . c) is the best. Either end of the values may get the code -8: scales have a sign. */
static float symmetric_scale(const struct group *group)
{
    static const float ends[] = {6.0f, 6.5f, 7.0f, 7.5f, 8.0f, 8.5f, 9.0f};
    const float largest = largest_magnitude(group->values, group->count);
    float best = largest / 7, best_gain = 0;
    if (largest == 0) return 0;
    for (size_t e = 0; e < 2 * sizeof ends / sizeof *ends; e++) {
        const float inverse = (e % 2 ? -ends[e / 2] : ends[e / 2]) / largest;
        vec products = vec_set(0), squares = vec_set(0);
        for (uint64_t i = 0; i < group->count; i += VEC_WIDTH) {
            const vec values = load(group->values, i, group->count);
            const vec codes = clamped_nearest(values * vec_set(inverse), 0, -8, 7);
            const vec weighted = load(group->weights, i, group->count) * codes;
            products += values * weighted;
            squares += codes * weighted;
        }
        const float product = vec_sum(products), square = vec_sum(squares);
        if (square == 0 || product * product <= best_gain * square) continue;
        best_gain = product * product / square;
        best = product / square;
    }
    return best;
}

static float affine_error(const struct group *group, float scale, float zero)
{
    vec error = vec_set(0);
    for (uint64_t i = 0; i < group->count; i += VEC_WIDTH) {
        const vec values = load(group->values, i, group->count);
        const vec codes = clamped_nearest(values / vec_set(scale), zero, 0, 15) - vec_set(zero);
        const vec differences = values - codes * vec_set(scale);
        error += differences * differences * load(group->weights, i, group->count);
    }
    return vec_sum(error);
}

/* Codes from 0 to 15 less a zero point, which is one of them. */
static float affine_scale(const struct group *group, uint8_t *zero)
{
    static const float parts[] = {1.0f, 0.95f, 0.9f, 0.85f, 0.8f, 0.75f};
    float least = 0, most = 0, best = 0;
    float best_error = INFINITY;
    for (uint64_t i = 0; i < group->count; i++) {
        least = fminf(least, group->values[i]);
        most = fmaxf(most, group->values[i]);
    }
    *zero = 0;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        const float scale = as_f16((most - least) * parts[p] / 15);
        if (!(scale > 0) || !isfinite(scale)) continue;
        const float ideal = clamp(nearest(-least * parts[p] / scale), 0, 15);
        for (int step = -1; step <= 1; step++) {
            const float at = clamp(ideal + (float)step, 0, 15);
            const float error = affine_error(group, scale, at);
            if (error >= best_error) continue;
            best_error = error;
            best = scale;
            *zero = (uint8_t)at;
        }
    }
    return best;
}

/* Codes from -128 to 127 less a zero point, which is one of them: so many that no range but the whole is worth a trial. */
static float affine_byte_scale(const struct group *group, uint8_t *zero)
{
    float least = 0, most = 0;
    for (uint64_t i = 0; i < group->count; i++) {
        least = fminf(least, group->values[i]);
        most = fmaxf(most, group->values[i]);
    }
    const float scale = as_f16((most - least) / 255);
    *zero = 0;
    if (scale > 0 && isfinite(scale)) *zero = (uint8_t)(int8_t)(clamp(nearest(-least / scale), 0, 255) - 128);
    return scale;
}

/* ---- e2m1 ---- */

static double e2m1_error(const struct group *group, float scale)
{
    double error = 0;
    for (uint64_t i = 0; i < group->count; i++) {
        const float value = group->values[i];
        const float difference = value - e2m1_to_float(e2m1_from_float(value / scale)) * scale;
        error += (double)(difference * difference * group->weights[i]);
    }
    return error;
}

/* The better of two scales, either of which may be 0: no scale. */
static float better_e2m1(const struct group *group, float a, float b)
{
    if (!(a > 0)) return b;
    if (!(b > 0)) return a;
    return e2m1_error(group, b) < e2m1_error(group, a) ? b : a;
}

/* A power of two. */
static float mx_scale(const struct group *group)
{
    const float largest = largest_magnitude(group->values, group->count);
    if (largest < 0x1p-120f) return 0x1p-126f;
    const float power = ldexpf(1, ilogbf(largest) - 2); /* the largest magnitude becomes 4 to 8 */
    return better_e2m1(group, power, 2 * power);
}

/* An e4m3 number, times `global`: the largest magnitude becomes 6, or 4, below which codes are finer. */
static float nv_scale(const struct group *group, float global)
{
    const float largest = largest_magnitude(group->values, group->count);
    if (!(global > 0)) return 0;
    const float six = e4m3_to_float(e4m3_from_float(largest / 6 / global)),
                four = e4m3_to_float(e4m3_from_float(largest / 4 / global));
    return better_e2m1(group, six * global, four * global) == six * global ? six : four;
}

/* The least power of two by which the largest magnitude becomes a number of e4m3. */
static float e4m3_power(float largest)
{
    if (largest < 0x1p-110f) return 0x1p-118f;
    const float power = ldexpf(1, ilogbf(largest) - 8);
    return largest > 448 * power ? 2 * power : power;
}

/* ---- rows ---- */

static uint8_t code_of_number(const struct encoding *encoding, float number, int zero)
{
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_INT8:
        return (uint8_t)(int8_t)(encoding->zeros
                                     ? clamp(nearest(clamp(number, -256, 256)) + (float)(int8_t)zero, -128, 127)
                                     : clamp(nearest(number), -127, 127));
    case CODE_UINT4: return (uint8_t)clamp(nearest(clamp(number, -16, 16)) + (float)zero, 0, 15);
    case CODE_E4M3: return e4m3_from_float(number);
    case CODE_E2M1: return e2m1_from_float(number);
    case CODE_TABLE: return table_from_float(encoding->table, number);
    }
    return 0;
}

static void encode(const struct encoding *encoding, const float *values, uint64_t count, float scale, int zero,
                   uint8_t *codes)
{
    uint64_t i = 0;
    for (; encoding->code == CODE_UINT4 && scale != 0 && i + VEC_WIDTH <= count; i += VEC_WIDTH) {
        const vec numbers = vec_min(vec_max(vec_load(values + i) / vec_set(scale), vec_set(-16)), vec_set(16));
        vec_store_bytes(codes + i, __builtin_convertvector(clamped_nearest(numbers, (float)zero, 0, 15), vec_int));
    }
    for (; i < count; i++) codes[i] = code_of_number(encoding, scale == 0 ? 0 : values[i] / scale, zero);
}

static float group_scale(const struct encoding *encoding, const struct group *group, float global, uint8_t *zero)
{
    const float largest = largest_magnitude(group->values, group->count);
    *zero = 8;
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_UINT4: return encoding->zeros ? affine_scale(group, zero) : as_f16(symmetric_scale(group));
    case CODE_INT8: return encoding->zeros ? affine_byte_scale(group, zero) : as_f16(largest / 127);
    case CODE_E4M3:
        if (encoding->scale == SCALE_E8M0) return e4m3_power(largest);
        return largest / 448;
    case CODE_E2M1: return encoding->global ? nv_scale(group, global) : mx_scale(group);
    case CODE_TABLE: return largest; /* of a table it is 1 */
    }
    return 0;
}

/* Rounds a group, and lets the elements after it in their block make good its errors. */
static void encode_with_feedback(const struct encoding *encoding, float *values, uint64_t first, uint64_t count,
                                 uint64_t length, float scale, int zero, struct coded_feedback *feedback,
                                 uint8_t *codes)
{
    for (uint64_t i = first; i < first + length; i++) {
        const uint64_t block = i / CALIBRATION_BLOCK, place = i % CALIBRATION_BLOCK, left = count - i;
        const uint64_t rest = CALIBRATION_BLOCK - place < left ? CALIBRATION_BLOCK - place : left;
        const float *row = feedback->factors + (block * CALIBRATION_BLOCK + place) * CALIBRATION_BLOCK + place;
        const float column = feedback->scales ? feedback->scales[i] : 1, step = scale / column;
        float *value = values + i;
        const float scaled = *value * column;
        encode(encoding, &scaled, 1, scale, zero, codes + i);
        const float error = *value - coded_number(encoding, codes[i], zero) * step;
        feedback->error += (double)(error * error) * (double)feedback->error_weights[i];
        for (uint64_t k = 1; k < rest; k++) value[k] -= error * row[k];
    }
}

/* The values whose codes are wanted: those of a group, in `scaled` if columns have scales. */
static const float *scale_columns(const struct coded_feedback *feedback, const float *values, uint64_t first,
                                  uint64_t count, float *scaled)
{
    if (!feedback || !feedback->scales) return values + first;
    for (uint64_t i = 0; i < count; i++) scaled[i] = values[first + i] * feedback->scales[first + i];
    return scaled;
}

/* What the error of each element of a group counts, in parts of the largest; `feedback` NULL: all alike. */
static void weigh(const struct coded_feedback *feedback, uint64_t first, uint64_t count, float *weights)
{
    for (uint64_t i = 0; i < count; i++) {
        const float scale = feedback && feedback->scales ? feedback->scales[first + i] : 1;
        weights[i] = feedback ? feedback->error_weights[first + i] / (scale * scale) : 1;
    }
    const float largest = feedback ? largest_magnitude(weights, count) : 1;
    for (uint64_t i = 0; feedback && i < count; i++) weights[i] = largest > 0 ? weights[i] / largest : 1;
}

bool coded_from_floats(const struct panel_form *form, float *values, uint64_t count, struct coded_feedback *feedback,
                       struct coded_row *to, uint64_t *refused)
{
    const struct encoding *encoding = form->encoding;
    float scaled[MOST_GROUP], weights[MOST_GROUP], largest = 0;
    for (*refused = 0; *refused < count; ++*refused)
        if (!isfinite(values[*refused])) return false;
    if (!form->group) {
        largest = largest_magnitude(values, count);
        to->factor = largest / (encoding->code == CODE_INT8 ? 127.0f : 448.0f);
        encode(encoding, values, count, to->factor, 0, to->codes);
        return true;
    }
    for (uint64_t begin = 0; begin < count; begin += form->group) {
        const uint64_t length = count - begin < form->group ? count - begin : form->group;
        const float of_group = largest_magnitude(scale_columns(feedback, values, begin, length, scaled), length);
        largest = of_group > largest ? of_group : largest;
    }
    to->factor = encoding->global ? largest / (448.0f * 6.0f) : 1;
    if (feedback) feedback->error = 0;
    for (uint64_t begin = 0, g = 0; begin < count; begin += form->group, g++) {
        const uint64_t length = count - begin < form->group ? count - begin : form->group;
        const struct group group = {scale_columns(feedback, values, begin, length, scaled), weights, length};
        weigh(feedback, begin, length, weights);
        float scale = group_scale(encoding, &group, to->factor, &to->zeros[g]);
        if (!isfinite(scale)) {
            *refused = 0;
            while (fabsf(group.values[*refused]) < largest_magnitude(group.values, length)) ++*refused;
            *refused += begin;
            return false;
        }
        to->scales[g] = scale;
        if (encoding->global) scale *= to->factor;
        if (feedback)
            encode_with_feedback(encoding, values, begin, count, length, scale, to->zeros[g], feedback, to->codes);
        else
            encode(encoding, values + begin, length, scale, to->zeros[g], to->codes + begin);
    }
    return true;
}
