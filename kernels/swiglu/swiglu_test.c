/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/swiglu/swiglu.h"
#include "kernels/op/test_support.h"

#include <float.h>
#include <math.h>

static const struct plan_geometry geometry =
    {.slots = 1, .max_context = 8, .page_tokens = 8, .pages_per_slot = 1, .page_bytes = 64, .vocab_size = 10};

static void equals_reference(void **state)
{
    (void)state;
    struct test_random random = {2};
    for (int round = 0; round < 90; round++) {
        int64_t rows = test_random_range(&random, 1, 9), width = test_random_range(&random, 1, round < 60 ? 70 : 5000);
        int64_t valid = test_random_range(&random, 0, rows);
        const int64_t params[SWIGLU_PARAMS] = {rows, 0, width};
        float range = round % 2 ? 4.0f : 100.0f;
        TEST_FOR_EACH_ISA(isa)
        {
            struct test_case test;
            test_case_open(&test, &op_swiglu, params, &geometry, (int32_t)valid);
            size_t count = (size_t)(valid * width), all = (size_t)(rows * width), bytes = count * sizeof(float);
            float *gate = test.call.operands[SWIGLU_GATE], *up = test.call.operands[SWIGLU_UP];
            float *out = test.call.operands[SWIGLU_OUT], *expected = malloc(all * sizeof *expected);
            float *separate = malloc(all * sizeof *separate);
            test_fill(&random, gate, count, DTYPE_F32, -range, range);
            test_fill(&random, up, count, DTYPE_F32, -2, 2);
            op_swiglu.reference(&test.call);
            memcpy(expected, out, bytes);
            test_buffer_poison(&test.buffers[SWIGLU_OUT]);
            test_run(&op_swiglu, isa, &test.call, 1);
            test_assert_close(out, expected, count, 1e-36, 4e-7, cpu_isa_name(isa));
            assert_true(test_is_poison(out + count, (all - count) * sizeof *out));
            /* The same bits with any team, and when out is gate or up. */
            memcpy(separate, out, bytes);
            test.call.operands[SWIGLU_OUT] = round % 2 ? gate : up;
            test_run(&op_swiglu, isa, &test.call, test_teams[round % TEST_TEAMS]);
            test_assert_same_bits(test.call.operands[SWIGLU_OUT], separate, bytes, "in place");
            free(expected);
            free(separate);
            test_case_close(&test);
        }
    }
}

/* silu alone (up = 1) in units in the last place: the accuracy of the vectors' exponential. */
static void silu_is_accurate(void **state)
{
    (void)state;
    enum { COUNT = 1 << 18 };
    const int64_t params[SWIGLU_PARAMS] = {1, 0, COUNT};
    TEST_FOR_EACH_ISA(isa)
    {
        struct test_case test;
        test_case_open(&test, &op_swiglu, params, &geometry, 1);
        float *gate = test.call.operands[SWIGLU_GATE], *up = test.call.operands[SWIGLU_UP];
        float *out = test.call.operands[SWIGLU_OUT];
        for (int i = 0; i < COUNT; i++) {
            gate[i] = -88.0f + 176.0f * (float)i / COUNT;
            up[i] = 1;
        }
        const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-30f, -1e-30f, -200, 200, -104, FLT_MAX};
        memcpy(gate, special, sizeof special);
        test_run(&op_swiglu, isa, &test.call, 1);
        double worst = 0;
        for (int i = (int)(sizeof special / sizeof special[0]); i < COUNT; i++) {
            double exact = gate[i] / (1.0 + exp(-(double)gate[i]));
            if (exact == 0) continue;
            double unit = ldexp(1.0, ilogb(exact) - 23);
            double error = fabs(out[i] - exact) / unit;
            if (error > worst) worst = error;
        }
        print_message("%s: silu within %.2f units in the last place\n", cpu_isa_name(isa), worst);
        assert_true(worst < 3.0);
        assert_true(out[0] == 0 && out[1] == 0 && out[2] == INFINITY && isnan(out[4]));
        assert_true(isnan(out[3]) || out[3] == 0); /* -infinity * 0 */
        assert_true(out[5] == 5e-31f && out[6] == -5e-31f && out[8] == 200 && out[10] == FLT_MAX);
        assert_true(fabsf(out[7]) < 1e-30f && fabsf(out[9]) < 1e-30f);
        test_case_close(&test);
    }
}

static void hostile_params_are_refused(void **state)
{
    (void)state;
    const int64_t params[SWIGLU_PARAMS] = {4, 0, 64};
    test_hostile_params(&op_swiglu, params, &geometry);
    test_assert_refused(&op_swiglu, params, &geometry, SWIGLU_WIDTH, 0);
    test_assert_refused(&op_swiglu, params, &geometry, SWIGLU_WIDTH, INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(silu_is_accurate),
        cmocka_unit_test(hostile_params_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
