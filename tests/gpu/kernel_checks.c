/* SPDX-License-Identifier: Apache-2.0 */
/* The test programs of the device kernels as one: BUILD compiles each with main named FILE_main and with
 * kernel_checks_group in place of cmocka's runner. */
#include "kernels/op/test_support.h"
#include "tests/gpu/check.h"

#define KERNEL_TEST(file) int file##_main(void);
#include "tests/gpu/kernel_tests.h"
#undef KERNEL_TEST
int kernel_checks_group(const char *group, const struct CMUnitTest *tests, size_t count, CMFixtureFunction set_up,
                        CMFixtureFunction tear_down);

/* What the next group is to do: visit all tests, or run one of them. */
static struct {
    const char *file;
    void (*visit)(const char *name, void *context);
    void *context;
    const char *wanted; /* TEST of FILE/TEST */
    bool found, finished;
    CMUnitTestFunction function;
} now;

/* skip() and failures do not come back from the test. */
static void run_and_note(void **state)
{
    now.function(state);
    now.finished = true;
}

int kernel_checks_group(const char *group, const struct CMUnitTest *tests, size_t count, CMFixtureFunction set_up,
                        CMFixtureFunction tear_down)
{
    for (size_t i = 0; i < count; i++) {
        char name[CHECK_NAME];
        if (now.visit) {
            snprintf(name, sizeof name, "%s/%s", now.file, tests[i].name);
            now.visit(name, now.context);
        } else if (strcmp(tests[i].name, now.wanted) == 0) {
            struct CMUnitTest test = tests[i];
            now.found = true;
            now.function = test.test_func;
            test.test_func = run_and_note;
            int failed = _cmocka_run_group_tests(group, &test, 1, set_up, tear_down);
            return failed ? CHECK_FAILED : now.finished ? CHECK_PASSED : CHECK_SKIPPED;
        }
    }
    return CHECK_PASSED;
}

static const struct {
    const char *file;
    int (*main)(void);
} files[] = {
#define KERNEL_TEST(file) {#file, file##_main},
#include "tests/gpu/kernel_tests.h"
#undef KERNEL_TEST
};

void kernel_checks_visit(void (*visit)(const char *name, void *context), void *context)
{
    now.visit = visit;
    now.context = context;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        now.file = files[i].file;
        files[i].main();
    }
    now.visit = NULL;
}

int kernel_check_run(const char *name)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t length = strlen(files[i].file);
        if (strncmp(name, files[i].file, length) != 0 || name[length] != '/') continue;
        now.wanted = name + length + 1;
        int result = files[i].main();
        return now.found ? result : -1;
    }
    return -1;
}
