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
    bool weighted; /* else all weights are 1 */
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

static vec nearest_of(vec value) { return (value + vec_set(0x1.8p23f)) - vec_set(0x1.8p23f); }

static float clamp(float value, float least, float most) { return value < least ? least : value > most ? most : value; }

static vec clamp_of(vec value, float least, float most)
{
    return vec_min(vec_max(value, vec_set(least)), vec_set(most));
}

static vec clamped_nearest(vec value, float add, float least, float most)
{
    return clamp_of(nearest_of(value) + vec_set(add), least, most);
}

static float as_f16(float value) { return f16_to_float(f16_from_float(value)); }

/* ---- int4 ---- */

/* Sums over a group for codes of a scale and for those of the negative scale. */
struct sums {
    float products[2], squares[2]; /* values times codes, codes times codes, weighted */
};

/* `mirrored`: no code of either scale is beyond -7 to 7, so that the codes of one are those of the other with the other sign. */
static inline __attribute__((always_inline)) struct sums sum_codes(const struct group *group, float inverse,
                                                                   bool mirrored, bool weighted)
{
    vec products[2] = {vec_set(0), vec_set(0)}, squares[2] = {vec_set(0), vec_set(0)};
    for (uint64_t i = 0; i < group->count; i += VEC_WIDTH) {
        const vec values = load(group->values, i, group->count), whole = nearest_of(values * vec_set(inverse));
        const vec weights = weighted ? load(group->weights, i, group->count) : vec_set(1);
        for (int sign = 0; sign < (mirrored ? 1 : 2); sign++) {
            const vec codes = mirrored ? whole : clamp_of(sign ? -whole : whole, -8, 7);
            const vec weighted_codes = weighted ? weights * codes : codes;
            products[sign] += values * weighted_codes;
            squares[sign] += codes * weighted_codes;
        }
    }
    const float product = vec_sum(products[0]), square = vec_sum(squares[0]);
    if (mirrored) return (struct sums){{product, -product}, {square, square}};
    return (struct sums){{product, vec_sum(products[1])}, {square, vec_sum(squares[1])}};
}

static struct sums sums_of_scale(const struct group *group, float inverse, bool mirrored)
{
    if (mirrored)
        return group->weighted ? sum_codes(group, inverse, true, true) : sum_codes(group, inverse, true, false);
    return group->weighted ? sum_codes(group, inverse, false, true) : sum_codes(group, inverse, false, false);
}

/* Codes from -8 to 7 without a zero point. For given codes c, the scale with the least error of c * scale to w is
 * (w . c) / (c . c), which leaves an error of w . w - (w . c)^2 / (c . c), in weighted products. So of several roundings the one
 * with the largest (w . c)^2 / (c . c) is the best. Either end of the values may get the code -8: scales have a sign. */
static float symmetric_scale(const struct group *group, float largest)
{
    static const float ends[] = {6.0f, 6.5f, 7.0f, 7.5f, 8.0f, 8.5f, 9.0f};
    float best = largest / 7, best_gain = 0;
    if (!isfinite(9.0f / largest)) return best; /* so small that all gains are 0 */
    for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
        const struct sums sums = sums_of_scale(group, ends[e] / largest, ends[e] <= 7);
        for (int sign = 0; sign < 2; sign++) {
            const float product = sums.products[sign], square = sums.squares[sign];
            if (square == 0 || product * product <= best_gain * square) continue;
            best_gain = product * product / square;
            best = product / square;
        }
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

/* The nearest number of e2m1 of a magnitude. Adding 3/2 times a power of two leaves one bit of mantissa after the first; below
 * 1 the numbers lie as far apart as from 1 on. */
static vec nearest_e2m1(vec value)
{
    const vec power = (vec)((vec_int)vec_max(value, vec_set(1)) & vec_int_set(0x7f800000));
    const vec magic = power * vec_set(0x1.8p22f);
    return vec_min((value + magic) - magic, vec_set(6));
}

static double e2m1_error(const struct group *group, float scale)
{
    double error = 0;
    for (uint64_t i = 0; i < group->count; i += VEC_WIDTH) {
        const vec values = magnitude(load(group->values, i, group->count));
        const vec difference = values - nearest_e2m1(values / vec_set(scale)) * vec_set(scale);
        const vec errors = difference * difference * load(group->weights, i, group->count);
        for (int lane = 0; lane < VEC_WIDTH; lane++) error += (double)errors[lane];
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
static float mx_scale(const struct group *group, float largest)
{
    if (largest < 0x1p-120f) return 0x1p-126f;
    const float power = ldexpf(1, ilogbf(largest) - 2); /* the largest magnitude becomes 4 to 8 */
    return better_e2m1(group, power, 2 * power);
}

/* An e4m3 number, times `global`: the largest magnitude becomes 6, or 4, below which codes are finer. */
static float nv_scale(const struct group *group, float largest, float global)
{
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

enum { BLOCK = 16 }; /* a vector of bytes */

/* Numbers of at most `range` in magnitude, larger ones as that, rounded to whole ones, plus zero, clamped. Requires: count is a multiple
 * of BLOCK. */
static void encode_whole(const float *numbers, uint64_t count, float range, float zero, float least, float most,
                         uint8_t *codes)
{
    for (; count > 0; numbers += BLOCK, codes += BLOCK, count -= BLOCK) {
        float whole[BLOCK];
        for (int i = 0; i < BLOCK; i += VEC_WIDTH)
            vec_store(whole + i, clamped_nearest(clamp_of(vec_load(numbers + i), -range, range), zero, least, most));
        for (int i = 0; i < BLOCK; i++) codes[i] = (uint8_t)(int32_t)whole[i];
    }
}

static void encode(const struct encoding *encoding, const float *values, uint64_t count, float scale, int zero,
                   uint8_t *to)
{
    float numbers[MOST_GROUP];
    uint8_t codes[MOST_GROUP];
    for (uint64_t part; count > 0; values += part, to += part, count -= part) {
        part = count < MOST_GROUP ? count : MOST_GROUP;
        uint64_t padded = 0; /* with zeros to whole blocks */
        for (; padded < part || padded % BLOCK; padded += VEC_WIDTH) {
            const vec each = padded < part ? load(values, padded, part) : vec_set(0);
            vec_store(numbers + padded, scale == 0 ? vec_set(0) : each / vec_set(scale));
        }
        switch (encoding->code) {
        case CODE_FLOAT: break;
        case CODE_INT8:
            if (encoding->zeros)
                encode_whole(numbers, padded, 256, (float)(int8_t)zero, -128, 127, codes);
            else
                encode_whole(numbers, padded, 256, 0, -127, 127, codes);
            break;
        case CODE_UINT4: encode_whole(numbers, padded, 16, (float)zero, 0, 15, codes); break;
        case CODE_E4M3: e4m3_from_floats(padded, numbers, codes); break;
        case CODE_E2M1: e2m1_from_floats(padded, numbers, codes); break;
        case CODE_TABLE:
            for (uint64_t i = 0; i < part; i++) codes[i] = table_from_float(encoding->table, numbers[i]);
            break;
        }
        memcpy(to, codes, part);
    }
}

static float group_scale(const struct encoding *encoding, const struct group *group, float global, uint8_t *zero)
{
    const float largest = largest_magnitude(group->values, group->count);
    *zero = 8;
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_UINT4: return encoding->zeros ? affine_scale(group, zero) : as_f16(symmetric_scale(group, largest));
    case CODE_INT8: return encoding->zeros ? affine_byte_scale(group, zero) : as_f16(largest / 127);
    case CODE_E4M3:
        if (encoding->scale == SCALE_E8M0) return e4m3_power(largest);
        return largest / 448;
    case CODE_E2M1: return encoding->global ? nv_scale(group, largest, global) : mx_scale(group, largest);
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

/* Times 0 NaN and infinity become NaN, all else 0. */
static bool all_finite(const float *values, uint64_t count)
{
    vec sum = vec_set(0);
    for (uint64_t i = 0; i < count; i += VEC_WIDTH) sum += load(values, i, count) * vec_set(0);
    return vec_sum(sum) == 0;
}

bool coded_from_floats(const struct panel_form *form, float *values, uint64_t count, struct coded_feedback *feedback,
                       struct coded_row *to, uint64_t *refused)
{
    const struct encoding *encoding = form->encoding;
    float scaled[MOST_GROUP], weights[MOST_GROUP], largest = 0;
    if (!all_finite(values, count)) {
        for (*refused = 0; isfinite(values[*refused]);) ++*refused;
        return false;
    }
    *refused = 0;
    if (!form->group) {
        largest = largest_magnitude(values, count);
        to->factor = largest / (encoding->code == CODE_INT8 ? 127.0f : 448.0f);
        encode(encoding, values, count, to->factor, 0, to->codes);
        return true;
    }
    for (uint64_t begin = 0; encoding->global && begin < count; begin += form->group) {
        const uint64_t length = count - begin < form->group ? count - begin : form->group;
        const float of_group = largest_magnitude(scale_columns(feedback, values, begin, length, scaled), length);
        largest = of_group > largest ? of_group : largest;
    }
    to->factor = encoding->global ? largest / (448.0f * 6.0f) : 1;
    if (feedback) feedback->error = 0;
    for (uint64_t begin = 0, g = 0; begin < count; begin += form->group, g++) {
        const uint64_t length = count - begin < form->group ? count - begin : form->group;
        const struct group group = {scale_columns(feedback, values, begin, length, scaled), weights, length,
                                    feedback != NULL};
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
