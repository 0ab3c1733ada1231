#include "builder/estimate_cuda.h"

#include <math.h>
#include <stdlib.h>

#include "formats/test_support.h"

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

/* What engbuild measured of whole plans on an H200: launches, bytes, operations, milliseconds. */
static void agrees_with_what_was_measured(void **state)
{
    (void)state;
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

static void collectives_take_the_link(void **state)
{
    (void)state;
    /* Of collectives-bench on H200s, with residual and norm. */
    static const struct {
        uint64_t ranks, bytes;
        double us;
    } collectives[] = {{2, 8192, 2.42},      {2, 262144, 3.63},    {2, 1 << 20, 5.70},  {2, 4 << 20, 15.05},
                       {2, 16 << 20, 54.04}, {4, 8192, 3.25},      {4, 262144, 5.80},   {4, 1 << 20, 9.05},
                       {4, 4 << 20, 21.87},  {4, 16 << 20, 78.09}, {8, 8192, 4.15},     {8, 65536, 5.30},
                       {8, 262144, 8.01},    {8, 1 << 20, 11.42},  {8, 4 << 20, 26.45}, {8, 16 << 20, 97.28}};
    struct plan plan = make_plan(1, 0, 0);
    double without = estimate_cuda_plan_us(&plan, &h200, 8), before = 0;
    ((struct plan_launch *)plan.launches)[0].op = OP_ALL_REDUCE;
    for (uint64_t bytes = 4096; bytes <= 16 << 20; bytes *= 2) {
        ((struct plan_operand *)plan.operands)[1].bytes = bytes;
        double two = estimate_cuda_plan_us(&plan, &h200, 2) - without,
               eight = estimate_cuda_plan_us(&plan, &h200, 8) - without;
        assert_true(two >= 0.75 && eight > two && eight > before);
        assert_true(eight <= 6 * two + 2); /* the hops of two trips, or a link that carries 7/8 of the data twice */
        before = eight;
    }
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++) {
        ((struct plan_operand *)plan.operands)[1].bytes = collectives[i].bytes;
        double us = estimate_cuda_plan_us(&plan, &h200, collectives[i].ranks);
        if (fabs(us / collectives[i].us - 1) > 0.1)
            fail_msg("all_reduce %zu: %.2f us, measured %.2f", i, us, collectives[i].us);
    }
    free_plan(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_what_was_measured),
        cmocka_unit_test(collectives_take_the_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
