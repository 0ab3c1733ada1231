/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "builder/weights/calibration.h"
#include "builder/weights/coded.h"
#include "builder/test_model.h"
#include "formats/base/test_program.h"

enum { ROWS = 900, MOST_COLUMNS = 700 };

static uint64_t seed = 7;
static float x[ROWS * MOST_COLUMNS];

static float random_float(void) { return (float)(test_random(&seed) % (1 << 24)) * 0x1p-23f - 1; }

/* Activations of which each resembles the one before it, with columns of very different sizes, and one that is always 0. */
static void random_activations(uint64_t columns)
{
    for (uint64_t row = 0; row < ROWS; row++)
        for (uint64_t k = 0; k < columns; k++) {
            const float before = k ? x[row * columns + k - 1] / (float)(1 + (k - 1) % 5) : 0;
            const float own = random_float();
            x[row * columns + k] = k == 3 ? 0 : (0.8f * before + own) * (float)(1 + k % 5);
        }
}

/* Sum of the squared errors of the products of all activations with a row that is rounded. */
static double product_error(const float *values, const struct panel_form *form, const struct coded_row *row,
                            uint64_t columns)
{
    double sum = 0;
    for (uint64_t t = 0; t < ROWS; t++) {
        double error = 0;
        for (uint64_t k = 0; k < columns; k++) {
            const uint64_t group = k / form->group;
            const float number = coded_number(form->encoding, row->codes[k], row->zeros[group]);
            const float scale = row->scales[group] * row->factor;
            error += (double)x[t * columns + k] * (double)(values[k] - number * scale);
        }
        sum += error * error;
    }
    return sum;
}

static void add_all(struct calibration *calibration, uint64_t columns, int members)
{
    calibration->tokens = ROWS;
    for (int index = 0; index < members; index++) {
        const struct team_member member = {.index = index, .count = members};
        for (uint64_t first = 0; first < ROWS; first += 100)
            calibration_add(calibration, 0, 1, x + first * columns, 100, columns, &member);
    }
}

/* Rounding with feedback takes a quarter of the squared error of products, at least, in every encoding of 4 bits; blocks that the columns do not
 * fill are no exception. */
TEST(products_change_less)
{
    static const uint64_t columns[] = {32, 100, 256, 257, 700};
    static const enum encoding_id encodings[] = {ENCODING_INT4_G32, ENCODING_INT4_G128, ENCODING_INT4_G64_ZEROS,
                                                 ENCODING_MXFP4, ENCODING_NVFP4};
    struct status status = {0};
    struct team *team = team_create(2, &status);
    assert_non_null(team);
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
        for (size_t e = 0; e < sizeof encodings / sizeof *encodings; e++) {
            struct graph_weight weights[3] =
                {{.used = true, .columns = columns[c], .depth = columns[c], .encoding = ENCODING_INT8_CHANNEL},
                 {.used = true, .columns = columns[c], .depth = columns[c], .encoding = encodings[e]},
                 {.used = true,
                  .columns = columns[c],
                  .depth = columns[c],
                  .encoding = encodings[e],
                  .keeps_codes = true}};
            const struct graph graph = {.weights = weights, .weight_count = 3, .ranks = 1};
            struct calibration calibration;
            struct panel_form form;
            struct coded_row row;
            float values[MOST_COLUMNS], moved[MOST_COLUMNS];
            double plain = 0, fed_back = 0;
            uint64_t refused;
            random_activations(columns[c]);
            test_expect_success(calibration_open(&calibration, &graph, ".", &status), &status);
            assert_null(calibration_factors(&calibration, 0, 0));
            assert_null(calibration_factors(&calibration, 0, 2));
            add_all(&calibration, columns[c], 3);
            test_expect_success(calibration_finish(&calibration, &graph, team, &status), &status);
            const float *factors = calibration_factors(&calibration, 0, 1);
            assert_non_null(factors);
            struct coded_feedback feedback = {.factors = factors,
                                              .error_weights = calibration_error_weights(&calibration, 0, 1)};
            assert_true(panel_form(encodings[e], &form) && coded_row_open(&row, &form, columns[c]));
            for (int n = 0; n < 12; n++) {
                for (uint64_t k = 0; k < columns[c]; k++) values[k] = random_float();
                memcpy(moved, values, sizeof moved);
                assert_true(coded_from_floats(&form, moved, columns[c], NULL, &row, &refused));
                assert_memory_equal(moved, values, sizeof values);
                plain += product_error(values, &form, &row, columns[c]);
                assert_true(coded_from_floats(&form, moved, columns[c], &feedback, &row, &refused));
                fed_back += product_error(values, &form, &row, columns[c]);
            }
            if (!(fed_back < 0.75 * plain))
                fail_msg("%s, %llu columns: %g, without feedback %g", encoding_name(encodings[e]),
                         (unsigned long long)columns[c], fed_back, plain);
            coded_row_close(&row);
            calibration_close(&calibration);
            calibration_close(&calibration);
        }
    team_destroy(team);
}

/* Activations that are not finite, or a folder without room, end in a message. */
TEST(refusals)
{
    struct status status = {0};
    struct team *team = team_create(1, &status);
    struct graph_weight weights[2] = {{.used = true, .columns = 64, .depth = 64, .encoding = ENCODING_INT4_G32},
                                      {.used = true, .columns = 64, .depth = 64, .encoding = ENCODING_INT4_G32}};
    const struct graph graph = {.weights = weights, .weight_count = 2, .ranks = 1};
    struct calibration calibration;
    assert_non_null(team);
    test_expect_success(calibration_open(&calibration, &graph, ".", &status), &status);
    random_activations(64);
    x[70] = INFINITY;
    add_all(&calibration, 64, 1);
    test_expect_failure(calibration_finish(&calibration, &graph, team, &status), &status, STATUS_MACHINE, "not finite");
    calibration_close(&calibration);
    status_clear(&status);
    test_expect_failure(calibration_open(&calibration, &graph, "/nonexistent/folder", &status), &status, STATUS_MACHINE,
                        "no room for the statistics");
    calibration_close(&calibration);
    team_destroy(team);
}

int main(void) { return test_run(); }
