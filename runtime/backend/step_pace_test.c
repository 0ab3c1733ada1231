/* SPDX-License-Identifier: Apache-2.0 */
/* A host that keeps two steps queued and sleeps as step_pace says, beside a GPU whose steps' times are given. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "runtime/backend/step_pace.h"

enum { PLAN = 3, STEPS = 300 };

static const double host = 60e-6, oversleep = 55e-6,
                    wakes = 70e-6; /* seconds: of a step; of sleeps; of the driver's wait */

struct run {
    double idle;    /* of the GPU, seconds */
    double latest;  /* the latest that a wait has ended after its step */
    uint32_t asked; /* waits that did not end with a sleep */
    double looked;  /* seconds of them */
};

/* `seconds`: of each step. rows: of each step. The wait for step `late` ends `more` seconds late. */
static struct run run_disturbed(struct step_pace *pace, const double seconds[STEPS], const int32_t rows[STEPS],
                                int late, double more)
{
    struct run run = {0};
    double now = 5, end = now, ends[STEPS]; /* ends[i]: of step i; two are queued before the first wait */
    for (int i = 0; i < 2; i++) ends[i] = end += seconds[i];
    for (int i = 0; i < STEPS; i++) {
        const double sleep = step_pace_sleep(pace, PLAN, rows[i], now);
        assert_true(sleep >= 0 && sleep < 0.2);
        if (sleep > 0) now += sleep + oversleep;
        const bool awaited = now < ends[i];
        if (awaited) run.looked += ends[i] - now, now = ends[i] + wakes, run.asked++;
        if (i == late) now += more;
        step_pace_learn(pace, awaited, now);
        if (now - ends[i] > run.latest) run.latest = now - ends[i];
        now += host;
        if (i + 2 >= STEPS) continue;
        const double begin = now > ends[i + 1] ? now : ends[i + 1];
        run.idle += begin - ends[i + 1];
        ends[i + 2] = begin + seconds[i + 2];
    }
    return run;
}

static struct run run_steps(struct step_pace *pace, const double seconds[STEPS], const int32_t rows[STEPS])
{
    return run_disturbed(pace, seconds, rows, -1, 0);
}

static void fill(double seconds[STEPS], int32_t rows[STEPS], int from, double value, double growth)
{
    for (int i = from; i < STEPS; i++) seconds[i] = value * (1 + growth * (i - from)), rows[i] = 64;
}

TEST(steps_alike_are_slept_through)
{
    static const double times[] = {0.9e-3, 4.8e-3, 20e-3, 90e-3};
    double seconds[STEPS];
    int32_t rows[STEPS];
    for (int i = 0; i < 4; i++) {
        struct step_pace pace = {0};
        fill(seconds, rows, 0, times[i], 0);
        const struct run run = run_steps(&pace, seconds, rows);
        assert_true(run.idle == 0 && run.latest < 300e-6);
        assert_true(run.asked < STEPS / 16);
    }
}

TEST(short_and_very_long_steps_are_not_slept_through)
{
    double seconds[STEPS];
    int32_t rows[STEPS];
    for (int i = 0; i < 2; i++) {
        struct step_pace pace = {0};
        fill(seconds, rows, 0, i ? 0.3 : 0.3e-3, 0);
        assert_int_equal(run_steps(&pace, seconds, rows).asked, STEPS);
        assert_true(step_pace_is_short(&pace) == !i && !step_pace_is_known(&pace));
    }
    assert_false(step_pace_is_short(&(struct step_pace){0}));
}

/* Contexts grow: as those of 64 answers of a model with 8 billion weights do, and faster. */
TEST(slower_steps_are_followed)
{
    static const double growths[] = {1e-5, 1e-4, 4e-4, 1e-3, 1e-2};
    double seconds[STEPS];
    int32_t rows[STEPS];
    for (int i = 0; i < 5; i++) {
        struct step_pace pace = {0};
        fill(seconds, rows, 0, 4.8e-3, growths[i]);
        const struct run run = run_steps(&pace, seconds, rows);
        assert_true(run.idle == 0 && run.latest < 300e-6);
        assert_true(i > 2 || run.asked < STEPS / 16);
    }
}

/* Other work on the GPU, or its clock, makes each step differ. */
TEST(steps_that_differ_are_slept_through)
{
    static const double parts[] = {0.005, 0.02, 0.05, 0.1}, most_looked[] = {60e-6, 80e-6, 150e-6, 250e-6};
    double seconds[STEPS];
    int32_t rows[STEPS];
    for (int i = 0; i < 4; i++)
        for (int smooth = 0; smooth < 2; smooth++) {
            struct step_pace pace = {0};
            uint64_t bits = 88172645463325252;
            double part = 0;
            fill(seconds, rows, 0, 5.2e-3, 0);
            for (int s = 0; s < STEPS; s++) {
                bits = bits * UINT64_C(6364136223846793005) + 1442695040888963407;
                const double one = ((double)(bits >> 40) / (1 << 23) - 1) * parts[i];
                part = smooth ? 0.8 * part + 0.6 * one : one;
                seconds[s] *= 1 + part;
            }
            const struct run run = run_steps(&pace, seconds, rows);
            assert_true(run.idle < 1e-3 && run.looked / STEPS < most_looked[i]);
        }
}

/* Another program that used the GPU has ended: the GPU idles for less than the steps that were slept through took before. */
TEST(much_faster_steps_are_learnt_soon)
{
    static const double parts[] = {0.97, 0.9, 0.5, 0.2};
    double seconds[STEPS];
    int32_t rows[STEPS];
    for (int i = 0; i < 4; i++) {
        struct step_pace pace = {0};
        fill(seconds, rows, 0, 4.8e-3, 0);
        fill(seconds, rows, 100, 4.8e-3 * parts[i], 0);
        const struct run run = run_steps(&pace, seconds, rows);
        assert_true(run.idle < (STEP_PACE_NAPS + 2) * 4.8e-3 * (1 - parts[i]));
        assert_true(pace.seconds == 0 ||
                    (pace.seconds > 0.9 * 4.8e-3 * parts[i] && pace.seconds < 1.1 * 4.8e-3 * parts[i]));
    }
}

TEST(other_steps_are_measured_anew)
{
    struct step_pace pace = {0};
    double seconds[STEPS];
    int32_t rows[STEPS];
    fill(seconds, rows, 0, 4.8e-3, 0);
    run_steps(&pace, seconds, rows);
    pace.naps = 0;
    assert_true(step_pace_sleep(&pace, PLAN, 63, pace.end) > 0);
    assert_true(step_pace_sleep(&pace, PLAN, 63, pace.end + 1) == 0); /* long ago */
    struct step_pace fewer = pace, other = pace;
    assert_true(step_pace_sleep(&fewer, PLAN, 32, pace.end) == 0);
    assert_true(step_pace_sleep(&other, PLAN + 1, 64, pace.end) == 0);
}

/* One step that takes longer, or one wait that ends late. */
TEST(a_single_disturbance_costs_little)
{
    static const double times[] = {0.3e-3, 4.8e-3};
    double seconds[STEPS];
    int32_t rows[STEPS];
    for (int t = 0; t < 2; t++)
        for (int at = 4; at < 100; at++) /* before that nothing is known */
            for (int late = 0; late < 2; late++) {
                struct step_pace pace = {0};
                const double more = 2e-3;
                fill(seconds, rows, 0, times[t], 0);
                if (!late) seconds[at] += more;
                const struct run run = run_disturbed(&pace, seconds, rows, late ? at : -1, more);
                assert_true(run.idle < 2 * more);
            }
}

int main(void) { return test_run(); }
