/* SPDX-License-Identifier: Apache-2.0 */
/* Scales and codes of rows of floats, bit for bit, against the search written for clarity: every candidate by itself, element after
 * element. Engines of one checkpoint must not differ from one release to the next. */
#include <math.h>

#include "builder/weights/calibration.h"
#include "builder/weights/coded.h"
#include "formats/base/test_support.h"

enum { COUNT = 515, LANES = 4 };

static uint64_t seed = 3;
static float factors[3 * CALIBRATION_BLOCK * CALIBRATION_BLOCK]; /* zeros: no error moves to another element */
static float error_weights[3 * CALIBRATION_BLOCK];

static float random_float(void) { return (float)(test_random(&seed) % (1 << 24)) * 0x1p-23f - 1; }

/* Rows of weights and odd ones: with zeros, ties, one sign, subnormal numbers, and all of these sizes in one. */
enum kind { USUAL, SPARSE, TIES, ONE_SIGN, LEAST, ALL_SIZES, KINDS };

static float random_value(enum kind kind, uint64_t i)
{
    switch (kind) {
    case USUAL: return (random_float() + random_float()) * 0.02f;
    case SPARSE: return test_random(&seed) % 5 ? 0 : random_float();
    case TIES: return (float)((int)(test_random(&seed) % 31) - 15) * 0.25f;
    case ONE_SIGN: return fabsf(random_float()) * (i / 32 % 2 ? -3.0f : 1.0f);
    case LEAST: return ldexpf((float)((int)(test_random(&seed) % 17) - 8), -126 - (int)(i / 16 % 24));
    case ALL_SIZES: return ldexpf(random_float(), -(int)(i / 16 * 13 % 150));
    case KINDS: break;
    }
    return 0;
}

/* Elements that share a scale. */
struct group {
    const float *values;
    float weights[128];
    uint64_t count;
};

static float largest_of(const float *values, uint64_t count)
{
    float largest = 0;
    for (uint64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(values[i]));
    return largest;
}

static struct group group_of(const float *values, uint64_t begin, uint64_t length, bool weighted)
{
    struct group group = {.values = values + begin, .count = length};
    const float largest = weighted ? largest_of(error_weights + begin, length) : 1;
    for (uint64_t i = 0; i < length; i++) group.weights[i] = weighted ? error_weights[begin + i] / largest : 1;
    return group;
}

static float sum(const float lanes[LANES]) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }

/* NaN, a product of 0 and an infinite reciprocal, becomes the least. */
static float clamp(float value, float least, float most)
{
    return !(value > least) ? least : value < most ? value : most;
}

static float int4_scale(const struct group *group)
{
    static const float ends[] = {6, -6, 6.5f, -6.5f, 7, -7, 7.5f, -7.5f, 8, -8, 8.5f, -8.5f, 9, -9};
    const float largest = largest_of(group->values, group->count);
    float best = largest / 7, best_gain = 0;
    for (size_t e = 0; e < sizeof ends / sizeof *ends && largest > 0; e++) {
        float products[LANES] = {0}, squares[LANES] = {0};
        for (uint64_t i = 0; i < group->count; i++) {
            const float code = clamp(rintf(group->values[i] * (ends[e] / largest)), -8, 7);
            products[i % LANES] += group->values[i] * (group->weights[i] * code);
            squares[i % LANES] += code * (group->weights[i] * code);
        }
        const float product = sum(products), square = sum(squares);
        if (square == 0 || product * product <= best_gain * square) continue;
        best_gain = product * product / square;
        best = product / square;
    }
    return f16_to_float(f16_from_float(best));
}

static double e2m1_error(const struct group *group, float scale)
{
    double error = 0;
    for (uint64_t i = 0; i < group->count; i++) {
        const float number = e2m1_to_float(e2m1_from_float(group->values[i] / scale));
        const float difference = group->values[i] - number * scale;
        error += (double)(difference * difference * group->weights[i]);
    }
    return error;
}

static float better_e2m1(const struct group *group, float a, float b)
{
    if (!(a > 0)) return b;
    if (!(b > 0)) return a;
    return e2m1_error(group, b) < e2m1_error(group, a) ? b : a;
}

/* The scale of a group as it is stored. */
static float expected_scale(const struct encoding *encoding, const struct group *group, float global)
{
    const float largest = largest_of(group->values, group->count);
    if (encoding->code == CODE_UINT4) return int4_scale(group);
    if (encoding->code == CODE_INT8) return f16_to_float(f16_from_float(largest / 127));
    if (encoding->code == CODE_TABLE) return largest;
    if (encoding->code == CODE_E4M3 && encoding->scale == SCALE_F32) return largest / 448;
    if (encoding->code == CODE_E4M3) {
        if (largest < 0x1p-110f) return 0x1p-118f;
        const float power = ldexpf(1, ilogbf(largest) - 8);
        return largest > 448 * power ? 2 * power : power;
    }
    if (!encoding->global) {
        if (largest < 0x1p-120f) return 0x1p-126f;
        const float power = ldexpf(1, ilogbf(largest) - 2);
        return better_e2m1(group, power, 2 * power);
    }
    if (!(global > 0)) return 0;
    const float six = e4m3_to_float(e4m3_from_float(largest / 6 / global)),
                four = e4m3_to_float(e4m3_from_float(largest / 4 / global));
    return better_e2m1(group, six * global, four * global) == six * global ? six : four;
}

static uint8_t expected_code(const struct encoding *encoding, float value, float scale)
{
    const float number = scale == 0 ? 0 : value / scale;
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_INT8: return (uint8_t)(int8_t)clamp(rintf(number), -127, 127);
    case CODE_UINT4: return (uint8_t)clamp(rintf(number) + 8, 0, 15);
    case CODE_E4M3: return e4m3_from_float(number);
    case CODE_E2M1: return e2m1_from_float(number);
    case CODE_TABLE: return table_from_float(encoding->table, number);
    }
    return 0;
}

static void check_row(const struct panel_form *form, uint64_t count, enum kind kind, bool weighted)
{
    const struct encoding *encoding = form->encoding;
    float values[COUNT], copy[COUNT];
    struct coded_row row;
    uint64_t refused;
    struct coded_feedback feedback = {.factors = factors, .error_weights = error_weights};
    for (uint64_t i = 0; i < count; i++) {
        values[i] = random_value(kind, i);
        if (weighted && values[i] == 0) values[i] = 0; /* errors of 0 times 0 may turn -0 into 0 */
        copy[i] = values[i];
    }
    assert_true(coded_row_open(&row, form, count));
    assert_true(coded_from_floats(form, copy, count, weighted ? &feedback : NULL, &row, &refused));
    const float largest = largest_of(values, count);
    const float factor = encoding->global ? largest / (448.0f * 6.0f)
                         : form->group    ? 1
                                          : largest / (encoding->code == CODE_INT8 ? 127.0f : 448.0f);
    assert_memory_equal(&row.factor, &factor, sizeof factor);
    const uint64_t step = form->group ? form->group : count;
    for (uint64_t begin = 0; begin < count; begin += step) {
        const uint64_t length = count - begin < step ? count - begin : step;
        float scale = factor;
        if (form->group) {
            const struct group group = group_of(values, begin, length, weighted);
            const float stored = expected_scale(encoding, &group, factor), found = row.scales[begin / step];
            if (float_to_bits(found) != float_to_bits(stored))
                fail_msg("%s: kind %d: the scale at %d of %d is %g, expected %g", encoding->name, (int)kind, (int)begin,
                         (int)count, (double)found, (double)stored);
            scale = encoding->global ? stored * factor : stored;
        }
        for (uint64_t i = begin; i < begin + length; i++)
            if (row.codes[i] != expected_code(encoding, values[i], scale))
                fail_msg("%s: kind %d: the code at %d of %d is %d, expected %d", encoding->name, (int)kind, (int)i,
                         (int)count, row.codes[i], expected_code(encoding, values[i], scale));
    }
    coded_row_close(&row);
}

TEST(scales_and_codes_are_those_of_the_search)
{
    static const uint64_t counts[] = {1, 3, 16, 33, 127, 128, 200, COUNT};
    for (size_t i = 0; i < sizeof error_weights / sizeof *error_weights; i++)
        error_weights[i] = 0.1f + fabsf(random_float()) * 5;
    for (size_t e = 0; encoding_at(e); e++) {
        struct panel_form form;
        if (encoding_is_plain(encoding_at(e)->id) || encoding_at(e)->zeros || !panel_form(encoding_at(e)->id, &form))
            continue;
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int kind = 0; kind < KINDS; kind++)
                for (int weighted = 0; weighted < (encoding_at(e)->bits == 4 ? 2 : 1); weighted++)
                    for (int repeat = 0; repeat < 4; repeat++)
                        check_row(&form, counts[c], (enum kind)kind, weighted != 0);
    }
}

/* The first element that is not finite is named, wherever it is. */
TEST(what_is_not_finite_is_named)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    struct panel_form form;
    struct coded_row row;
    float values[COUNT];
    assert_true(panel_form(ENCODING_INT4_G32, &form));
    assert_true(coded_row_open(&row, &form, COUNT));
    for (uint64_t at = 0; at < COUNT; at++) {
        uint64_t refused = COUNT;
        for (uint64_t i = 0; i < COUNT; i++) values[i] = random_float();
        values[at] = odd[at % 3];
        values[COUNT - 1] = at % 2 ? NAN : values[COUNT - 1];
        assert_false(coded_from_floats(&form, values, COUNT, NULL, &row, &refused));
        assert_int_equal(refused, at);
    }
    coded_row_close(&row);
}

int main(void) { return test_run(); }
