/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/estimate.h"
#include "formats/base/test_program.h"

#include <math.h>

#include "formats/base/test_support.h"

/* The ceilings that an H200 gets. */
static const struct machine h200 = {.read_gb_s = 4540, .peak_gflops = 642400};

/* A plan whose launches share the bytes and operations. */
static struct plan make_plan(uint32_t launches, double bytes, double flops)
{
    struct plan_launch *made = calloc(launches, sizeof *made);
    struct plan_operand *operands = calloc(2, sizeof *operands);
    assert_non_null(made);
    assert_non_null(operands);
    for (uint32_t l = 0; l < launches; l++)
        made[l] = (struct plan_launch){.op = OP_MATMUL,
                                       .bytes = (uint64_t)(bytes / launches),
                                       .flops = (uint64_t)(flops / launches)};
    return (struct plan){.header = {.launch_count = launches}, .launches = made, .operands = operands};
}

static void free_plan(struct plan *plan)
{
    free((void *)plan->launches);
    free((void *)plan->operands);
}

/* engbuild's measurements of whole plans on an H200: launches, bytes, operations, milliseconds. */
TEST(agrees_with_what_was_measured)
{
    static const struct {
        uint32_t launches;
        double bytes, flops, ms;
    } measured[] = {
        {164, 15084482096., 15277883136., 3.679},     /* 8B: decode of 1 row */
        {229, 16220993416., 244463169536., 4.099},    /* 16 rows */
        {261, 19109403696., 7088914167040., 11.864},  /* prefill of 512 */
        {261, 31202970672., 28351346636032., 45.960}, /* of 2048 */
        {84, 2491144880., 2538732032., 0.696},        /* 1B: decode of 1 row */
        {133, 6575745456., 3901239194880., 6.280},    /* prefill of 2048 */
    };
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        struct plan plan = make_plan(measured[i].launches, measured[i].bytes, measured[i].flops);
        double ms = estimate_cuda_plan_us(&plan, &h200, 1) * 1e-3;
        if (fabs(ms / measured[i].ms - 1) > 0.05) fail_msg("plan %zu: %.3f ms, measured %.3f", i, ms, measured[i].ms);
        free_plan(&plan);
    }
}

TEST(collectives_take_the_link)
{
    /* Measurements of collectives-bench on H200s, with residual and norm, from 4 KB on, each message twice the size of
     * the one before; one run. */
    enum { MESSAGES = 13 };
    static const struct {
        uint64_t ranks;
        double us[MESSAGES];
    } measured[] = {
        {2, {1.93, 2.33, 2.44, 2.58, 2.71, 3.03, 3.55, 4.30, 5.63, 9.29, 13.54, 25.91, 52.18}},
        {4, {2.57, 3.10, 3.29, 3.44, 3.69, 4.41, 5.68, 7.23, 9.13, 13.43, 21.70, 40.12, 78.16}},
        {8, {3.67, 4.15, 4.40, 4.78, 5.30, 6.85, 8.01, 8.71, 11.42, 16.58, 26.45, 49.63, 97.28}},
    };
    int near = 0;
    struct plan plan = make_plan(1, 0, 0);
    double without = estimate_cuda_plan_us(&plan, &h200, 8), before = 0;
    ((struct plan_launch *)plan.launches)[0].op = OP_ALL_REDUCE;
    for (uint64_t bytes = 4096; bytes <= 16 << 20; bytes *= 2) {
        ((struct plan_operand *)plan.operands)[1].bytes = bytes;
        double two = estimate_cuda_plan_us(&plan, &h200, 2) - without,
               eight = estimate_cuda_plan_us(&plan, &h200, 8) - without;
        assert_true(two >= 0.75 && eight > two && eight > before);
        assert_true(eight <= 3 * two + 2); /* in two trips the link carries 7/8 of the data twice */
        before = eight;
    }
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        for (int m = 0; m < MESSAGES; m++) {
            ((struct plan_operand *)plan.operands)[1].bytes = UINT64_C(4096) << m;
            double us = estimate_cuda_plan_us(&plan, &h200, measured[i].ranks), off = fabs(us / measured[i].us[m] - 1);
            near += off <= 0.1;
            if (off > 0.33)
                fail_msg("%d GPUs, message %d: %.2f us, measured %.2f", (int)measured[i].ranks, m, us,
                         measured[i].us[m]);
        }
    assert_true(near >= 34);
    free_plan(&plan);
}

int main(void) { return test_run(); }
