/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tuner/machine.h"
#include "formats/base/test_program.h"

TEST(description_measures_nothing)
{
    struct status status = {0};
    for (int threads = 1; threads <= 3; threads += 2) {
        struct machine machine, again;
        struct team *team = team_create(threads, &status);
        assert_non_null(team);
        machine_describe(&machine, team);
        machine_describe(&again, team);
        assert_true(machine.name[0] != '\0');
        assert_string_equal(machine.name, again.name);
        assert_int_equal(machine.threads, threads);
        assert_int_equal(machine.isa, cpu_isa_best());
        assert_true(machine.read_gb_s == 0 && machine.peak_gflops == 0);
        team_destroy(team);
    }
}

TEST(roofline_is_the_higher_of_two_floors)
{
    struct machine machine = {.read_gb_s = 20, .peak_gflops = 100};
    assert_true(fabs(roofline_us(&machine, 40000000, 0) - 2000) < 1e-6);  /* 40 MB at 20 GB/s */
    assert_true(fabs(roofline_us(&machine, 0, 400000000) - 4000) < 1e-6); /* 0.4 GFLOP at 100 GFLOP/s */
    assert_true(fabs(roofline_us(&machine, 40000000, 400000000) - 4000) < 1e-6);
    assert_true(fabs(roofline_us(&machine, 400000000, 400000000) - 20000) < 1e-6);
    assert_true(isfinite(roofline_us(&machine, UINT64_MAX, UINT64_MAX)));
    machine.peak_gflops = 0; /* not measured: no lower bound is known */
    assert_true(roofline_us(&machine, 40000000, 400000000) == 0);
}

int main(void) { return test_run(); }
