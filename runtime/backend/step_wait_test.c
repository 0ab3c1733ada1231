/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeps of sequences of steps whose times are known. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "runtime/backend/step_wait.h"

/* Waits for a step that takes so long; returns by how much the wait ended late. */
static double wait_for(struct step_wait *wait, int32_t rows, double seconds)
{
    const double slept = step_wait_sleep(wait, rows), late = slept > seconds ? slept - seconds : 0;
    step_wait_learn(wait, rows, seconds + late, late > 0);
    return late;
}

TEST(steps_alike_are_slept_through)
{
    struct step_wait wait = {0};
    for (int i = 0; i < STEP_WAIT_STEPS; i++) assert_true(wait_for(&wait, 512, 11e-3) == 0);
    const double slept = step_wait_sleep(&wait, 512);
    assert_true(slept > 0.5 * 11e-3 && slept < 11e-3);
}

TEST(nothing_is_slept_of_short_or_unknown_steps)
{
    struct step_wait wait = {0};
    assert_true(step_wait_sleep(&wait, 64) == 0);
    wait_for(&wait, 64, 11e-3);
    assert_true(step_wait_sleep(&wait, 64) == 0); /* one may be an exception */
    for (int i = 0; i < STEP_WAIT_STEPS; i++) wait_for(&wait, 64, 0.4e-3);
    assert_true(step_wait_sleep(&wait, 64) == 0);
}

TEST(one_long_step_delays_none)
{
    static const double long_steps[] = {60e-3, 10, 1e9};
    for (int i = 0; i < 3; i++) {
        struct step_wait wait = {0};
        double late = 0;
        for (int step = 0; step < 20; step++) late += wait_for(&wait, 512, step == 7 ? long_steps[i] : 11e-3);
        assert_true(late == 0);
    }
}

TEST(steps_in_turn_delay_none)
{
    struct step_wait wait = {0};
    double late = 0;
    for (int step = 0; step < 20; step++) late += wait_for(&wait, 1, step % 2 ? 7.5e-3 : 3.75e-3);
    assert_true(late == 0);
}

TEST(fewer_rows_are_slept_through_for_less)
{
    struct step_wait wait = {0};
    for (int i = 0; i < STEP_WAIT_STEPS; i++) wait_for(&wait, 2048, 46e-3);
    assert_true(step_wait_sleep(&wait, 512) < 46e-3 / 4);
    assert_true(step_wait_sleep(&wait, 0) == 0);
    assert_true(step_wait_sleep(&wait, 4096) == step_wait_sleep(&wait, 2048));
}

/* Where many long steps are followed by short ones, the estimate falls soon: late by less than one long step in all. */
TEST(a_change_is_learnt)
{
    struct step_wait wait = {0};
    double late = 0;
    for (int step = 0; step < 30; step++) late += wait_for(&wait, 512, step < 10 ? 60e-3 : 11e-3);
    assert_true(late < 60e-3);
    for (int i = 0; i < STEP_WAIT_STEPS; i++) wait_for(&wait, 512, 1e9);
    assert_true(step_wait_sleep(&wait, 512) <= 0.1001);
}

int main(void) { return test_run(); }
