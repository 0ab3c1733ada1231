/* SPDX-License-Identifier: Apache-2.0 */
/* Codes and scales for a row of floats. Every group is searched by itself for the scale with the least squared error: the
 * scale that just holds the largest element is seldom the best one, since it makes all others coarse. */
#include <math.h>

#include "builder/weights/calibration.h"
#include "builder/weights/coded.h"

static float largest_magnitude(const float *values, uint64_t count)
{
    float largest = 0;
    for (uint64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(values[i]));
    return largest;
}

/* The nearest whole number of a float below 2^22 in magnitude, ties to even: what rintf gives, in a form that compilers
 * vectorise. */
static float nearest(float value) { return (value + 0x1.8p23f) - 0x1.8p23f; }

static float clamp(float value, float least, float most) { return value < least ? least : value > most ? most : value; }

static float as_f16(float value) { return f16_to_float(f16_from_float(value)); }

/* ---- int4 ---- */

/* Codes from -8 to 7 without a zero point. For given codes c, the scale with the least error of c * scale to w is
 * (w . c) / (c . c), which leaves an error of w . w - (w . c)^2 / (c . c). So of several roundings the one with the largest
 * (w . c)^2 / (c . c) is the best. Either end of the values may get the code -8: scales have a sign. */
static float symmetric_scale(const float *values, uint64_t count)
{
    static const float ends[] = {6.0f, 6.5f, 7.0f, 7.5f, 8.0f, 8.5f, 9.0f};
    const float largest = largest_magnitude(values, count);
    float best = largest / 7, best_gain = 0;
    if (largest == 0) return 0;
    for (size_t e = 0; e < 2 * sizeof ends / sizeof *ends; e++) {
        const float inverse = (e % 2 ? -ends[e / 2] : ends[e / 2]) / largest;
        float product = 0, square = 0;
        for (uint64_t i = 0; i < count; i++) {
            const float code = clamp(nearest(values[i] * inverse), -8, 7);
            product += values[i] * code;
            square += code * code;
        }
        if (square == 0 || product * product <= best_gain * square) continue;
        best_gain = product * product / square;
        best = product / square;
    }
    return best;
}

static double affine_error(const float *values, uint64_t count, float scale, float zero)
{
    double error = 0;
    for (uint64_t i = 0; i < count; i++) {
        const float code = clamp(nearest(values[i] / scale) + zero, 0, 15);
        const float difference = values[i] - (code - zero) * scale;
        error += (double)(difference * difference);
    }
    return error;
}

/* Codes from 0 to 15 less a zero point, which is one of them. */
static float affine_scale(const float *values, uint64_t count, uint8_t *zero)
{
    static const float parts[] = {1.0f, 0.95f, 0.9f, 0.85f, 0.8f, 0.75f};
    float least = 0, most = 0, best = 0;
    double best_error = INFINITY;
    for (uint64_t i = 0; i < count; i++) {
        least = fminf(least, values[i]);
        most = fmaxf(most, values[i]);
    }
    *zero = 0;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        const float scale = as_f16((most - least) * parts[p] / 15);
        if (!(scale > 0) || !isfinite(scale)) continue;
        const float ideal = clamp(nearest(-least * parts[p] / scale), 0, 15);
        for (int step = -1; step <= 1; step++) {
            const float at = clamp(ideal + (float)step, 0, 15);
            const double error = affine_error(values, count, scale, at);
            if (error >= best_error) continue;
            best_error = error;
            best = scale;
            *zero = (uint8_t)at;
        }
    }
    return best;
}

/* ---- e2m1 ---- */

static double e2m1_error(const float *values, uint64_t count, float scale)
{
    double error = 0;
    for (uint64_t i = 0; i < count; i++) {
        const float difference = values[i] - e2m1_to_float(e2m1_from_float(values[i] / scale)) * scale;
        error += (double)(difference * difference);
    }
    return error;
}

/* The better of two scales, either of which may be 0: no scale. */
static float better_e2m1(const float *values, uint64_t count, float a, float b)
{
    if (!(a > 0)) return b;
    if (!(b > 0)) return a;
    return e2m1_error(values, count, b) < e2m1_error(values, count, a) ? b : a;
}

/* A power of two. */
static float mx_scale(const float *values, uint64_t count)
{
    const float largest = largest_magnitude(values, count);
    if (largest < 0x1p-120f) return 0x1p-126f;
    const float power = ldexpf(1, ilogbf(largest) - 2); /* the largest magnitude becomes 4 to 8 */
    return better_e2m1(values, count, power, 2 * power);
}

/* An e4m3 number, times `global`: the largest magnitude becomes 6, or 4, below which codes are finer. */
static float nv_scale(const float *values, uint64_t count, float global)
{
    const float largest = largest_magnitude(values, count);
    if (!(global > 0)) return 0;
    const float six = e4m3_to_float(e4m3_from_float(largest / 6 / global)),
                four = e4m3_to_float(e4m3_from_float(largest / 4 / global));
    return better_e2m1(values, count, six * global, four * global) == six * global ? six : four;
}

/* The least power of two by which the largest magnitude becomes a number of e4m3. */
static float e4m3_power(float largest)
{
    if (largest < 0x1p-110f) return 0x1p-118f;
    const float power = ldexpf(1, ilogbf(largest) - 8);
    return largest > 448 * power ? 2 * power : power;
}

/* ---- rows ---- */

static void encode(const struct encoding *encoding, const float *values, uint64_t count, float scale, int zero,
                   uint8_t *codes)
{
    for (uint64_t i = 0; i < count; i++) {
        const float number = scale == 0 ? 0 : values[i] / scale;
        switch (encoding->code) {
        case CODE_FLOAT: break;
        case CODE_INT8: codes[i] = (uint8_t)(int8_t)clamp(nearest(number), -127, 127); break;
        case CODE_UINT4: codes[i] = (uint8_t)clamp(nearest(clamp(number, -16, 16)) + (float)zero, 0, 15); break;
        case CODE_E4M3: codes[i] = e4m3_from_float(number); break;
        case CODE_E2M1: codes[i] = e2m1_from_float(number); break;
        }
    }
}

static float group_scale(const struct encoding *encoding, const float *values, uint64_t count, float global,
                         uint8_t *zero)
{
    *zero = 8;
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_UINT4:
        return encoding->zeros ? affine_scale(values, count, zero) : as_f16(symmetric_scale(values, count));
    case CODE_INT8: return as_f16(largest_magnitude(values, count) / 127);
    case CODE_E4M3:
        if (encoding->scale == SCALE_E8M0) return e4m3_power(largest_magnitude(values, count));
        return largest_magnitude(values, count) / 448;
    case CODE_E2M1: return encoding->global ? nv_scale(values, count, global) : mx_scale(values, count);
    }
    return 0;
}

/* Rounds a group, and lets the elements after it in their block make good its errors. */
static void encode_with_feedback(const struct encoding *encoding, float *values, uint64_t first, uint64_t count,
                                 uint64_t length, float scale, int zero, const float *factors, uint8_t *codes)
{
    for (uint64_t i = first; i < first + length; i++) {
        const uint64_t block = i / CALIBRATION_BLOCK, place = i % CALIBRATION_BLOCK, left = count - i;
        const uint64_t rest = CALIBRATION_BLOCK - place < left ? CALIBRATION_BLOCK - place : left;
        const float *row = factors + (block * CALIBRATION_BLOCK + place) * CALIBRATION_BLOCK + place;
        float *value = values + i;
        encode(encoding, value, 1, scale, zero, codes + i);
        const float error = *value - coded_number(encoding, codes[i], zero) * scale;
        for (uint64_t k = 1; k < rest; k++) value[k] -= error * row[k];
    }
}

bool coded_from_floats(const struct panel_form *form, float *values, uint64_t count, const float *factors,
                       struct coded_row *to, uint64_t *refused)
{
    const struct encoding *encoding = form->encoding;
    for (*refused = 0; *refused < count; ++*refused)
        if (!isfinite(values[*refused])) return false;
    const float largest = largest_magnitude(values, count);
    to->factor = encoding->global ? largest / (448.0f * 6.0f) : 1;
    if (!form->group) {
        to->factor = largest / (encoding->code == CODE_INT8 ? 127.0f : 448.0f);
        encode(encoding, values, count, to->factor, 0, to->codes);
        return true;
    }
    for (uint64_t begin = 0, g = 0; begin < count; begin += form->group, g++) {
        const uint64_t length = count - begin < form->group ? count - begin : form->group;
        float scale = group_scale(encoding, values + begin, length, to->factor, &to->zeros[g]);
        if (!isfinite(scale)) {
            for (*refused = begin; fabsf(values[*refused]) < largest_magnitude(values + begin, length); ++*refused)
                continue;
            return false;
        }
        to->scales[g] = scale;
        if (encoding->global) scale *= to->factor;
        if (factors)
            encode_with_feedback(encoding, values, begin, count, length, scale, to->zeros[g], factors, to->codes);
        else
            encode(encoding, values + begin, length, scale, to->zeros[g], to->codes + begin);
    }
    return true;
}
