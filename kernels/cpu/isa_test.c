/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the choice of an instruction set. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/base/test_support.h"
#include "kernels/op/op.h"

TEST(names_differ)
{
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        assert_string_not_equal(cpu_isa_name((enum cpu_isa)isa), "?");
        for (int other = 0; other < isa; other++)
            assert_string_not_equal(cpu_isa_name((enum cpu_isa)isa), cpu_isa_name((enum cpu_isa)other));
    }
    assert_string_equal(cpu_isa_name(CPU_ISA_COUNT), "?");
}

TEST(all_up_to_the_best_are_supported)
{
    const enum cpu_isa best = cpu_isa_best();
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++)
        assert_int_equal(cpu_isa_supported((enum cpu_isa)isa), isa <= (int)best);
    assert_int_equal(cpu_isa_best(), best);
}

/* What cpu_isa_best says in a process with an alternate signal stack that tile registers do not fit on. */
static int best_with_small_signal_stack(void)
{
    static char stack[4096];
    const stack_t small = {.ss_sp = stack, .ss_size = sizeof stack};
    return sigaltstack(&small, NULL) == 0 ? (int)cpu_isa_best() : CPU_ISA_COUNT;
}

static int refused = CPU_ISA_COUNT;

/* The system refuses tile registers to such a process: the next best instruction set serves it. */
TEST(refused_tile_registers)
{
    const enum cpu_isa best = cpu_isa_best();
    if (refused == CPU_ISA_COUNT) skip(); /* the system allows no such stack, or no child */
    assert_int_equal(refused, best == CPU_AMX ? CPU_AVX512BF16 : best);
}

int main(void)
{
    /* Before this process asks for tile registers itself: a child inherits the permission. */
    const pid_t child = fork();
    if (child == 0) _exit(best_with_small_signal_stack());
    int result;
    if (child > 0 && waitpid(child, &result, 0) == child && WIFEXITED(result)) refused = WEXITSTATUS(result);
    return test_run();
}
