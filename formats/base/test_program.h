/* SPDX-License-Identifier: Apache-2.0 */
/* A test program with cmocka. TEST(name) { ... } defines a test and lists it, and main() runs the list:
 *
 *     TEST(a_property_holds)
 *     {
 *         assert_true(...);
 *     }
 *
 *     int main(void) { return test_run(); }
 */
#ifndef FORMATS_BASE_TEST_PROGRAM_H
#define FORMATS_BASE_TEST_PROGRAM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct test_list {
    struct CMUnitTest tests[100];
    size_t count;
};

/* The tests of this file. */
static inline struct test_list *test_list(void)
{
    static struct test_list list;
    return &list;
}

static inline void test_add(const char *name, CMUnitTestFunction test)
{
    struct test_list *list = test_list();
    if (list->count == sizeof list->tests / sizeof *list->tests) abort();
    list->tests[list->count++] = (struct CMUnitTest){.name = name, .test_func = test};
}

/* Constructors run in the order of their priorities: tests in the order of their lines. */
#define TEST(test_name)                                                             \
    static void test_name(void **state);                                            \
    __attribute__((constructor(1000 + __LINE__))) static void add_##test_name(void) \
    {                                                                               \
        test_add(#test_name, test_name);                                            \
    }                                                                               \
    static void test_name(void **state __attribute__((unused)))

/* Runs the tests of this file, with functions to call before and after all, and before and after each; NULL: none. */
static inline int test_run_with(CMFixtureFunction before_all, CMFixtureFunction before_each,
                                CMFixtureFunction after_each, CMFixtureFunction after_all)
{
    struct test_list *list = test_list();
    for (size_t i = 0; i < list->count; i++) {
        list->tests[i].setup_func = before_each;
        list->tests[i].teardown_func = after_each;
    }
    if (list->count == 0) return 1;
    return _cmocka_run_group_tests(program_invocation_short_name, list->tests, list->count, before_all, after_all);
}

static inline int test_run(void) { return test_run_with(NULL, NULL, NULL, NULL); }

#endif
